/*
 * model.h - a toy model, trained with the engine by any number of ranks, and by plain loops.
 *
 * MODEL. Units of awkward sizes: an odd one, one with a hole and a frozen tensor inside, a frozen
 * one, one of a single element, several of one size (so that a ring can be smaller than the model),
 * two parameter groups. The gradient of element i for sample s pulls
 * it to a target, with noise of the sample:
 *
 *     g = a * (w - target(unit, i)) + noise(unit, i, s)
 *
 * A global batch of BATCH samples is divided over ranks and micro-steps, each of which averages its
 * own: so every division trains the same model, but for rounding.
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
/** Adds all units to an engine; quantized: what is frozen is kept in 8 bits. */
int model_declare(struct zc_zero *z, enum zc_dtype dtype, bool quantized);
/** The zc_zero_init_fn that gives these values. */
int model_init_fn(void *arg, uint32_t unit, uint64_t first, uint64_t count, float *out);

/** What was trained, whole: [unit][element]. */
struct model_values {
    float *master[MODEL_UNITS], *m[MODEL_UNITS], *v[MODEL_UNITS];
};

struct run {
    /* in */
    struct zc_zero_options options; /* comm and all */
    enum zc_dtype dtype;
    bool quantized; /* units that are frozen */
    uint32_t steps;
    uint64_t until; /* instead: up to this step, whatever the job has already; 0: `steps` of them */
    uint64_t poison_step; /* this step's gradient is not finite on the last rank; 0: none */
    uint32_t poison_more; /* of steps beside that one: bit 1 << step */
    uint32_t poison_unit; /* in its last element */
    float poison_value;   /* 0: infinity */
    bool announce;        /* each step, before its last micro-step */
    bool evaluate;        /* a forward pass between steps */
    uint32_t stop_after;  /* micro-step steps: then leaves without a word; 0: never */
    void (*before_step)(uint64_t step);
    uint64_t commit_behind;       /* asks for a commit behind this step; 0: never */
    int refusal;                  /* a step or commit that is refused so is asked for again */
    struct comm_group *abort;     /* when this rank fails, the others' collectives do; or NULL */
    bool dirty_end;               /* closes as after a failure */
    bool no_values;               /* reads nothing at the end */
    struct device_copies *copies; /* while it runs */
    /* out */
    int rc;
    char error[512];
    double begun_s, ended_s; /* monotonic: of the failure, when there was one */
    double norms[MODEL_STEPS_MAX], clips[MODEL_STEPS_MAX], losses[MODEL_STEPS_MAX];
    bool skipped[MODEL_STEPS_MAX];
    double scales[MODEL_STEPS_MAX], next_scale; /* of the loss; behind the last step */
    struct zc_zero_stepped last;
    uint64_t begun_at; /* behind this step */
    uint32_t refused;
    char refusal_text[512];
    struct zc_zero_stats stats;
    struct zc_zero_bytes bytes;
    char gpu_why[256]; /* of stats: the engine's is gone */
    struct model_values values;
};

/** Opens an engine, trains, reads everything, closes it. */
void run_train(struct run *r);
void run_done(struct run *r);
/** run_train() by so many threads, which have a struct each. */
void run_threads(struct run *runs, uint32_t n);

/** The same by plain loops in double, fp32 parameters only: norms and masters to compare with. */
void model_reference(const struct run *like, struct model_values *ret, double *ret_norms);
void model_values_new(struct model_values *v);
void model_values_done(struct model_values *v);

/** Fails the test where two runs differ in a bit. */
void assert_runs_same(const char *name, const struct run *a, const struct run *b);
/** ... or by more than this, relative to the largest value of the unit. */
void assert_values_near(const char *name, const struct model_values *a,
                        const struct model_values *b, double relative);

#endif
