/*
 * classes.h - what a step is made with: the scalars of its groups, or classes of tensors.
 * op/classes.c has the model. Loop thread.
 */
#ifndef ZSD_OP_CLASSES_H
#define ZSD_OP_CLASSES_H

#include "daemon/job/job.h"
#include "proto/shard.pb-c.h"

/* Tensors that are stepped alike. No padding, so classes compare as bytes. */
struct zsd_class {
    struct zk_params params; /* scale: the factor on the gradient, besides the step's scale */
    uint64_t t;              /* which step of theirs it is, from 1 */
};

#define ZSD_CLASS_NONE UINT32_MAX /* not stepped */

/* Trainable tensors in a row, over all units in order; neighbours of one class are one run. */
struct zsd_class_run {
    uint32_t count, class;
};

/* What a rank said of one step. Shared (refs), and unchanged once it is. */
struct zsd_classes {
    uint32_t refs;
    uint64_t step; /* iterations + 1 */
    struct zsd_class *classes;
    uint32_t nclasses;
    size_t classes_room;
    struct zsd_class_run *runs;
    uint32_t nruns;
    size_t runs_room;
    uint32_t tensors; /* of all runs, */
    uint32_t of;      /* of so many trainable ones that the job has */
};

/* What page operations of a step by classes are given. Zeroed: there is none. */
struct zsd_step_table {
    struct zk_scalars *scalars; /* by class */
    uint32_t nscalars;
    struct zk_segment *segments; /* of all units, one unit after the other */
    uint32_t *at;                /* [nunits + 1] where those of a unit begin */
};

/** NULL is fine for both. */
struct zsd_classes *zsd_classes_get(struct zsd_classes *c);
void zsd_classes_put(struct zsd_classes *c);
/** Of every rank: the step is over, or will not be. */
void zsd_classes_drop(struct zsd_job *job);
/** Both NULL, or equal. */
bool zsd_classes_same(const struct zsd_classes *a, const struct zsd_classes *b);

/** No tensor of the unit is in a class. NULL: the step is by groups, and leaves no unit alone. */
bool zsd_classes_leave(const struct zsd_job *job, const struct zsd_classes *c,
                       const struct zsd_unit *unit);
/** 0 or -ENOMEM; the table is empty then. */
int zsd_table_make(struct zsd_step_table *table, const struct zsd_job *job, double scale,
                   const struct zsd_classes *c);
void zsd_table_done(struct zsd_step_table *table);

/**
 * The values of a step that rank m asks for, or begins, checked.
 *
 * @param step     0: by groups; else by the classes that m has sent of that step
 * @param ret      [ZP_GROUPS_MAX] zeroed; of groups
 * @param classes  of classes; still the rank's
 * @return 0 or -EINVAL
 */
int zsd_step_values(const struct zsd_member *m, double scale, Zp__GroupScalars *const *groups,
                    size_t n, uint64_t step, struct zk_params *ret, struct zsd_classes **classes,
                    struct zb_err *err);

#endif
