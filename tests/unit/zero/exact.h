/*
 * exact.h - a small model, trained with the engine by ranks that are threads, in host memory or on
 * emulated GPUs, joined by a fake libnccl there (fake_nccl.h).
 *
 * SUMS ARE EXACT. The number of ranks changes results by rounding alone (NUMBERS in zc_zero.h). Here
 * nothing is rounded that depends on it: gradients of a sample are multiples of 1/16, and the mean of
 * all samples fits the 8 bits of a bf16. So runs of 1, 2, 4 and 8 ranks must have the same bits.
 */
#ifndef EXACT_H
#define EXACT_H

#include <pthread.h>
#include <stdbool.h>

#include "client/zero/zc_zero.h"

#define EX_RANKS   8u /* at most; a power of two */
#define EX_UNITS   3u
#define EX_SAMPLES 8u
#define EX_STEPS   8u
#define EX_JOB     "eight"
#define EX_DEVICE  "emulated@%u:32M:::4K"

struct ex_rank {
    struct zc_zero_options options;
    struct zc_comm *comm;
    struct comm_group *group;
    char device[40];
    bool nccl;
    enum zc_dtype dtype;
    uint64_t until;                     /* the step to end at */
    void (*before_step)(uint64_t step); /* called by rank 0 */
    pthread_t thread;
    /* out */
    int rc;
    char error[512], gpu_why[256];
    uint64_t begun; /* after this step */
    double losses[EX_STEPS], norms[EX_STEPS];
    float *values[EX_UNITS][3]; /* ZC_MASTER, ZC_EXP_AVG, ZC_EXP_AVG_SQ */
    uint64_t gpu_params;
    /* only if `counts`: bytes that this rank's gathers have moved up to the end of each step */
    bool counts; /* in */
    struct ex_count {
        uint64_t up, down, sent, fetched;
    } counted[EX_STEPS];
};

struct ex_party {
    struct ex_rank ranks[EX_RANKS];
    struct comm_group *group;
    uint32_t world;
};

struct ex_setting {
    enum zc_dtype dtype;
    double clip; /* 0: steps begin early */
};

enum ex_where { EX_ON_HOST, EX_ON_ONE_GPU, EX_ON_ITS_OWN };

/** A run of `world` ranks up to the last step. socket NULL: without a daemon; otherwise the job EX_JOB is
 * durable, commits every second step, and its parameters are where the ranks compute. */
void ex_new(struct ex_party *p, uint32_t world, const struct ex_setting *s, const char *socket,
            enum ex_where where);
void ex_run(struct ex_party *p);
void ex_done(struct ex_party *p);

/** Elements of a unit. */
uint64_t ex_elems(uint32_t unit);

/** Fails the test if a rank has failed. */
void ex_assert_ran(const char *what, const struct ex_party *p);
/** Fails the test if a rank does not have the losses, norms and values of `want`, from the step it began
 * after. */
void ex_assert_same(const char *what, const struct ex_party *want, const struct ex_party *p);

#endif
