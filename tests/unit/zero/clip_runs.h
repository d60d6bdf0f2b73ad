/*
 * clip_runs.h - runs of a small model whose tensors are clipped by averages of their norms, by the engine
 * on several ranks and by plain loops in fp64.
 */
#ifndef CLIP_RUNS_H
#define CLIP_RUNS_H

#include "tests/ztest.h"

#include <pthread.h>

#include "client/zero/zc_zero.h"
#include "comm_threads.h"

#define RANKS   3u
#define STEPS   10u
#define WARMUP  3u
#define SMALL   40u           /* tensors of 7 elements each */
#define TRAINED (4u + SMALL)  /* without the wide units */
#define UNUSED  (TRAINED - 1) /* this tensor's gradient is 0 up to step LATE */
#define LATE    6u
#define UNITS   3u
#define WIDE    4u     /* more units, of WIDTH elements and one tensor each */
#define WIDTH   86000u /* 21 blocks: a part for each of three ranks */
#define LEN     (13100u + SMALL * 7u + WIDE * WIDTH)

extern struct zc_unit units[UNITS + WIDE];
extern uint32_t nunits; /* of the model: without the wide ones unless a test says so */

/* Calls body with the tensor's number, unit, and position of its elements. */
#define EACH_TENSOR(n, u, t, at)                                                                  \
    for (uint32_t n = 0, u = 0, at = 0; u < nunits; u++)                                          \
        for (const struct zc_tensor *t = units[u].tensors;                                        \
             t < units[u].tensors + units[u].ntensors; n += t->group != ZC_GROUP_FROZEN,          \
                                    at += t->group != ZC_GROUP_FROZEN ? (uint32_t)t->dims[0] : 0, \
                                    t++)                                                          \
            if (t->group != ZC_GROUP_FROZEN)

struct plan {
    uint32_t micro_steps;
    bool announce;
    uint64_t poison;   /* the gradient of this step is not finite; 0: of none */
    uint64_t abandons; /* this step is abandoned in its backward pass, and begins again; 0: none */
    double clip;
};

void options_of(struct zc_zero_options *o, const struct plan *plan);

struct rank {
    struct zc_zero_options options;
    const struct plan *plan;
    uint64_t until;
    /* called in the backward pass of step `at`, between two units, the first time; <0: the rank ends without a
     * farewell. NULL: never */
    int (*interrupt)(struct rank *r);
    uint64_t at;
    uint32_t after; /* the unit before; 1 unless a test says so; also of plan->abandons */
    void *arg;
    /* out */
    int rc;
    char error[512];
    float p[LEN], m[LEN], v[LEN];
    uint64_t begun, abandoned;
    uint64_t exchanged; /* bytes since the warm-up, without parameters and gradients */
    struct zc_zero_stepped stepped;
    pthread_t thread;
};

struct party {
    uint32_t world;
    struct comm_group *group;
    struct rank ranks[RANKS];
};

/** Initial values: a zc_zero_init_fn. */
int initial(void *arg, uint32_t unit, uint64_t first, uint64_t count, float *out);
/** Makes the tensors of the model: before all else. */
void clip_model(void);
/** Ranks with memory of their own. */
struct party *party_new(uint32_t world, const struct plan *plan);
/** Runs all ranks; a failure fails the test. */
void party_run(struct party *p);
/** The same; ranks may fail. */
void party_try(struct party *p);
void party_free(struct party *p);
/** Compares with plain loops; worlds: the number of ranks in each step. Returns how many tensors were
 * clipped. */
uint32_t assert_as_loops(const struct party *p, const struct plan *plan, const uint32_t *worlds);
/** The same bits. */
void assert_same(const struct party *a, const struct party *b);
/** A counter of the daemon on this socket. */
uint64_t counter(const char *socket, const char *name);

#endif
