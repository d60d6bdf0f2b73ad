/*
 * tensors.h - norms of single tensors, and values by tensor: op/tensors.c has the model. Loop thread.
 *
 * Trainable tensors are numbered over all units in order, within each unit in order of declaration.
 */
#ifndef ZSD_OP_TENSORS_H
#define ZSD_OP_TENSORS_H

#include "daemon/job/shard.h"
#include "daemon/op/classes.h"

/* Values that the ranks of a job sent for one step. */
struct zsd_values {
    uint64_t step;
    uint32_t known; /* number of the first ones that some rank has sent */
    double *v;      /* [n of struct zsd_tensors] */
};

/* The trainable tensors of a job. Made when it is first needed. */
struct zsd_tensors {
    uint32_t n;
    uint32_t *first;        /* [nunits + 1]: number of trainable tensors before each unit */
    struct zk_segment *all; /* [n] */
    struct zsd_values limits, factors;
};

/** Returns job->tensors, and makes it first if necessary. NULL: no memory. */
struct zsd_tensors *zsd_tensors_get(struct zsd_job *job);
void zsd_tensors_free(struct zsd_tensors *t);

/** Number of trainable tensors of a unit, when the job's are known. */
static inline uint32_t zsd_unit_tensors(const struct zsd_job *job, const struct zsd_unit *unit)
{
    const uint32_t *first = job->tensors->first + unit->index;

    return first[1] - first[0];
}

/** Makes room for the sums of a shard, of a job with tensor_norms. 0 or -ENOMEM. */
int zsd_sums_room(struct zsd_shard *s);
/** Resets them: a new micro-step begins. */
void zsd_sums_reset(struct zsd_shard *s);
/** Before elements [first, first + count) of the unit are taken in: what to sum. 0 or -ENOMEM. */
int zsd_sums_begin(const struct zsd_shard *s, uint64_t first, uint64_t count,
                   struct zk_by_tensor *ret);
/** Adds the result to the sums of the shard (unless `s` has lost its gradient: NULL); frees `by`. */
void zsd_sums_end(struct zsd_shard *s, struct zk_by_tensor *by);

/** Forgets what the ranks have sent: they have dropped the step, and other gradients may follow. */
void zsd_values_drop(struct zsd_job *job);
/** Checks that rank m has sent the values of all tensors for this step: 0 or -EINVAL. */
int zsd_values_check(const struct zsd_member *m, bool limits, uint64_t step, struct zb_err *err);

/**
 * Computes the factors that limit the norms of a unit's tensors, from the sums of all of its
 * shards, whose gradients are complete.
 *
 * @param table    of the step, with the scale of each tensor's gradient
 * @param sums     [n] over all nodes; NULL: those of the unit's shards
 * @param factors  [n]: those of the unit's tensors are set
 */
void zsd_limits_apply(struct zsd_job *job, const struct zsd_unit *unit,
                      const struct zsd_step_table *table, const struct zk_xsum *sums,
                      double *factors);

#endif
