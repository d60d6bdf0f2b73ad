/*
 * classes.h - parameters of a step: the scalars of its groups, or classes of tensors.
 * op/classes.c has the model. Loop thread.
 */
#ifndef ZSD_OP_CLASSES_H
#define ZSD_OP_CLASSES_H

#include "daemon/job/job.h"
#include "proto/shard.pb-c.h"

/* The scalars of tensors that are stepped alike. No padding: classes are compared as bytes. */
struct zsd_class {
    struct zk_params params; /* scale: factor of the gradient, in addition to the step's */
    uint64_t t;              /* number of their step, from 1 */
};

#define ZSD_CLASS_NONE UINT32_MAX /* not stepped */

/* Consecutive trainable tensors of one class, over all units in order. */
struct zsd_class_run {
    uint32_t count, class;
};

/* The classes that a rank sent for one step. They do not change when they are shared (refs > 1). */
struct zsd_classes {
    uint32_t refs;
    uint64_t step; /* iterations + 1 */
    struct zsd_class *classes;
    uint32_t nclasses;
    size_t classes_room;
    struct zsd_class_run *runs;
    uint32_t nruns;
    size_t runs_room;
    uint32_t tensors; /* in all runs */
    uint32_t of;      /* number of trainable tensors of the job */
};

/* Arguments for page operations of a step by classes, or with factors of tensors: then a segment is
 * one tensor, and has its own scale. All zero: it is a step by groups. Without classes, the job's
 * groups are the classes of the table. */
struct zsd_step_table {
    struct zk_scalars *scalars; /* by class */
    uint32_t nscalars;
    struct zk_segment *segments; /* of all units, one unit after the other */
    uint32_t *at;                /* [nunits + 1] first segment of each unit */
    double *scales;              /* of gradients, by class, before they are rounded */
    /* Muon: its tensors that are stepped, of all units. Classes [0, n) are AdamW's, [n, 2 n) are the same
     * classes with Muon's scalars. NULL: another optimizer */
    struct zk_matrix *matrices;
    uint32_t *matrix_at; /* [nunits + 1] */
};

/** Whether a tensor of a unit is stepped at all. */
static inline bool zsd_tensor_trainable(const struct zsd_unit *unit, uint32_t tensor)
{
    return !unit->layout.frozen && unit->tensors[tensor].group != ZP_GROUP_FROZEN;
}

/** c may be NULL in both. */
struct zsd_classes *zsd_classes_get(struct zsd_classes *c);
void zsd_classes_put(struct zsd_classes *c);
/** Drops the classes of every rank. Call when the step has ended, or will not run. */
void zsd_classes_drop(struct zsd_job *job);
/** Whether both are NULL, or equal. */
bool zsd_classes_same(const struct zsd_classes *a, const struct zsd_classes *b);

/** Whether no tensor of the unit is in a class. False if c is NULL: a step by groups steps every
 * unit. */
bool zsd_classes_leave(const struct zsd_job *job, const struct zsd_classes *c,
                       const struct zsd_unit *unit);
/**
 * @param params   the scalars of the groups, if c is NULL
 * @param factors  by trainable tensor; NaN: not known yet; NULL: none
 * @return 0; -ENOMEM: the table is empty
 */
int zsd_table_make(struct zsd_step_table *table, const struct zsd_job *job, double scale,
                   const struct zk_params *params, const struct zsd_classes *c,
                   const double *factors);
/** Sets the scales of a unit's segments from the factors of its tensors. */
void zsd_table_scale(struct zsd_step_table *table, const struct zsd_job *job, uint32_t unit,
                     const double *factors);
void zsd_table_done(struct zsd_step_table *table);

/**
 * Checks the values of a step that rank m asks for, or announces by step-begin.
 *
 * @param step     0: by groups; else by the classes that m has sent for this step
 * @param ret      [ZP_GROUPS_MAX] zeroed; set for a step by groups
 * @param classes  set for a step by classes; owned by the rank
 * @return 0 or -EINVAL
 */
int zsd_step_values(const struct zsd_member *m, double scale, Zp__GroupScalars *const *groups,
                    size_t n, uint64_t step, struct zk_params *ret, struct zsd_classes **classes,
                    struct zb_err *err);

#endif
