/*
 * model.h - a toy model, trained with the engine by any number of ranks, and by plain loops.
 *
 * MODEL. Units of awkward sizes: an odd one, one with a hole and a frozen tensor inside, a frozen
 * one, one of a single element, several of one size (so that a ring can be smaller than the model),
 * two parameter groups. The gradient of element i for sample s pulls it to a target, with noise of
 * the sample:
 *
 *     g = a * (w - target(unit, i)) + noise(unit, i, s)
 *
 * A global batch of BATCH samples is divided over ranks and micro-steps, each of which averages its
 * own samples. So every division trains the same model, except for rounding.
 */
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>

#include "client/zero/zc_zero.h"

#define MODEL_BATCH     12u /* divisible by 1, 2, 3, 4, 6 */
#define MODEL_UNITS     10u
#define MODEL_STEPS_MAX 16u
#define MODEL_ELEMS     40000u /* of the largest unit, at most */

struct model_unit {
    const char *name;
    uint64_t elems;
    bool frozen;
    uint32_t ntensors;
    struct zc_tensor tensors[4];
};

extern const struct model_unit model_units[MODEL_UNITS];

float model_init(uint32_t unit, uint64_t elem);
/** Adds all units to an engine; quantized: frozen units are kept in 8 bits. */
int model_declare(struct zc_zero *z, enum zc_dtype dtype, bool quantized);
/** The zc_zero_init_fn with these initial values. */
int model_init_fn(void *arg, uint32_t unit, uint64_t first, uint64_t count, float *out);

/** The trained values, complete: [unit][element]. */
struct model_values {
    float *master[MODEL_UNITS], *m[MODEL_UNITS], *v[MODEL_UNITS];
};

struct run {
    /* in */
    struct zc_zero_options options; /* comm and everything else */
    enum zc_dtype dtype;
    bool quantized; /* the frozen units */
    uint32_t steps;
    uint64_t until;       /* instead of steps: the job's step to end at; 0: makes `steps` steps */
    uint64_t poison_step; /* this step's gradient is not finite on the last rank; 0: none */
    uint32_t poison_more; /* more such steps: bit 1 << step */
    uint32_t poison_unit; /* at its last element */
    float poison_value;   /* 0: infinity */
    bool announce;        /* announces each step, before its last micro-step */
    bool evaluate;        /* a forward pass between steps */
    uint32_t stop_after;  /* leaves after this many micro-steps, without closing; 0: never */
    void (*before_step)(uint64_t step);
    uint64_t commit_behind;       /* asks for a commit after this step; 0: never */
    int refusal;                  /* a step or commit refused with this code is asked for again */
    struct comm_group *abort;     /* aborts this group's collectives when the rank fails; or NULL */
    bool dirty_end;               /* closes as after a failure */
    bool no_values;               /* reads nothing at the end */
    struct device_copies *copies; /* copies made while it runs */
    /* out */
    int rc;
    char error[512];
    double begun_s, ended_s; /* monotonic; the end is that of the failure, if there was one */
    double norms[MODEL_STEPS_MAX], clips[MODEL_STEPS_MAX], losses[MODEL_STEPS_MAX];
    bool skipped[MODEL_STEPS_MAX];
    double scales[MODEL_STEPS_MAX], next_scale; /* of the loss; after the last step */
    struct zc_zero_stepped last;
    uint64_t begun_at; /* after this step */
    uint32_t refused;
    char refusal_text[512];
    struct zc_zero_stats stats;
    struct zc_zero_bytes bytes;
    char gpu_why[256], gather_why[256]; /* from stats: the engine is closed by then */
    struct model_values values;
};

/** Opens an engine, trains, reads everything, closes the engine. */
void run_train(struct run *r);
void run_done(struct run *r);
/** run_train() by n threads, each with its own struct. */
void run_threads(struct run *runs, uint32_t n);

/** The same by plain loops in double, fp32 parameters only: reference norms and masters. */
void model_reference(const struct run *like, struct model_values *ret, double *ret_norms);
void model_values_new(struct model_values *v);
void model_values_done(struct model_values *v);

/** Fails the test if two runs differ in a bit. */
void assert_runs_same(const char *name, const struct run *a, const struct run *b);
/** Fails the test if values differ by more than this, relative to the largest value of the unit. */
void assert_values_near(const char *name, const struct model_values *a,
                        const struct model_values *b, double relative);

#endif
