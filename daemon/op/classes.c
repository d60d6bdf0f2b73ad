/*
 * op/classes.c - the scalars of a step: those of the job's groups, or classes of tensors
 * (step-classes).
 *
 * MODEL. A rank sends classes and runs of tensors in parts, before the step-begin or step that
 * refers to them. They stay with the rank until the step ends. The job has a reference to the
 * classes of the rank that asked first (step->classes, early->classes). Every other rank must have
 * sent the same classes.
 *
 *     parts ---> member->classes ---> step->classes ---> struct zsd_step_table: scalars by class,
 *                                                        segments by unit
 *
 * The table is made once per step, before its first page. A unit's own segments name groups; those
 * of the table name classes, and leave out tensors without a class.
 *
 * ANOTHER OPTIMIZER (job-optimizer). A trainer that learns its optimizer late opens its job with an
 * optimizer whose state is large enough for any other. Before the first step, only the kind of
 * optimizer changes. The state, all zeros, stays where it is (zb_layout_steps_with()).
 *
 * BOUNDS. A rank sends at most ZP_CLASSES_MAX classes, and at most one run for each tensor of the
 * job. A table has at most one segment for each tensor.
 */
#include "daemon/op/classes.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/late.h"
#include "daemon/op/early.h"
#include "daemon/op/requests.h"
#include "daemon/op/step.h"
#include "daemon/op/tensors.h"
#include "daemon/page/pageop.h"
#include "daemon/plan/muon.h"

/* ---- scalars */

static struct zk_params params_of(const Zp__GroupScalars *g, double scale)
{
    return (struct zk_params){ .lr = g->lr,
                               .beta1 = g->beta1,
                               .beta2 = g->beta2,
                               .eps = g->eps,
                               .weight_decay = g->weight_decay,
                               .scale = scale,
                               .momentum = g->momentum,
                               .dampening = g->dampening,
                               .lr_decay = g->lr_decay,
                               .nesterov = g->nesterov ? 1 : 0,
                               .muon_scale = g->muon_scale };
}

static int step_scalars(const struct zsd_job *job, double scale, Zp__GroupScalars *const *groups,
                        size_t n, struct zk_params *ret, struct zb_err *err)
{
    if (n != job->groups || !(fabs(scale) <= (double)FLT_MAX))
        return zb_fail(err, -EINVAL,
                       "a step with %zu groups of scalars (the job has %u) and scale %g", n,
                       job->groups, scale);
    for (size_t i = 0; i < n; i++) {
        struct zb_err why = { 0 };

        ret[i] = params_of(groups[i], scale);
        if (zk_params_check(job->optimizer, &ret[i], &why) < 0)
            return zb_fail(err, why.code, "group %zu: %s", i, why.text);
    }
    return 0;
}

/* ---- the classes of a rank */

struct zsd_classes *zsd_classes_get(struct zsd_classes *c)
{
    if (c)
        c->refs++;
    return c;
}

void zsd_classes_put(struct zsd_classes *c)
{
    if (!c || --c->refs > 0)
        return;
    free(c->classes);
    free(c->runs);
    free(c);
}

void zsd_classes_drop(struct zsd_job *job)
{
    zb_list_each(pos, &job->members)
    {
        struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        zsd_classes_put(m->classes);
        m->classes = NULL;
    }
}

bool zsd_classes_same(const struct zsd_classes *a, const struct zsd_classes *b)
{
    if (!a || !b || a == b)
        return a == b;
    return a->step == b->step && a->nclasses == b->nclasses && a->nruns == b->nruns &&
           a->tensors == b->tensors &&
           (a->nclasses == 0 ||
            memcmp(a->classes, b->classes, a->nclasses * sizeof(*a->classes)) == 0) &&
           (a->nruns == 0 || memcmp(a->runs, b->runs, a->nruns * sizeof(*a->runs)) == 0);
}

static uint32_t unit_trainable(const struct zsd_unit *unit)
{
    uint32_t n = 0;

    for (uint32_t t = 0; t < unit->ntensors; t++)
        n += zsd_tensor_trainable(unit, t);
    return n;
}

static uint32_t job_trainable(const struct zsd_job *job)
{
    uint32_t n = 0;

    for (uint32_t u = 0; u < job->nunits; u++)
        n += unit_trainable(job->units[u]);
    return n;
}

static int classes_of(const struct zsd_member *m, uint64_t step, struct zsd_classes **ret,
                      struct zb_err *err)
{
    const struct zsd_job *job = m->job;
    struct zsd_classes *c = m->classes;

    if (!c || c->step != step)
        return zb_fail(err, -EINVAL, "rank %u has sent no classes of step %llu of job '%s'",
                       m->rank, (unsigned long long)step, job->name);
    if (c->tensors != c->of)
        return zb_fail(err, -EINVAL,
                       "rank %u has sent classes of %u tensors for step %llu of job '%s', which "
                       "has %u trainable tensors",
                       m->rank, c->tensors, (unsigned long long)step, job->name, c->of);
    for (uint32_t r = 0; r < c->nruns; r++)
        if (c->runs[r].class != ZSD_CLASS_NONE && c->runs[r].class >= c->nclasses)
            return zb_fail(err, -EINVAL, "tensors of class %u, and the step has %u classes",
                           c->runs[r].class, c->nclasses);
    *ret = c;
    return 0;
}

int zsd_step_values(const struct zsd_member *m, double scale, Zp__GroupScalars *const *groups,
                    size_t n, uint64_t step, struct zk_params *ret, struct zsd_classes **classes,
                    struct zb_err *err)
{
    if (step == 0)
        return step_scalars(m->job, scale, groups, n, ret, err);
    if (n > 0 || !(fabs(scale) <= (double)FLT_MAX))
        return zb_fail(err, -EINVAL, "a step by classes with %zu groups of scalars and scale %g", n,
                       scale);
    if (classes_of(m, step, classes, err) < 0)
        return err->code;
    for (uint32_t i = 0; i < (*classes)->nclasses; i++)
        if (!(fabs((*classes)->classes[i].params.scale * scale) <= (double)FLT_MAX))
            return zb_fail(err, -EINVAL, "class %u: factor %g and scale %g: no float is as large",
                           i, (*classes)->classes[i].params.scale, scale);
    return 0;
}

static int class_add(const struct zsd_job *job, struct zsd_classes *c, const Zp__StepClass *from,
                     struct zb_err *err)
{
    struct zb_err why = { 0 };
    struct zsd_class class;

    if (c->nclasses == ZP_CLASSES_MAX)
        return zb_fail(err, -EINVAL, "more than %u classes in one step", ZP_CLASSES_MAX);
    if (!from->scalars || from->t < 1)
        return zb_fail(err, -EINVAL, "class %u has no scalars, or step count 0", c->nclasses);
    class = (struct zsd_class){ .params = params_of(from->scalars, from->factor), .t = from->t };
    if (zk_params_check(job->optimizer, &class.params, &why) < 0)
        return zb_fail(err, why.code, "class %u: %s", c->nclasses, why.text);
    if (zb_grow(&c->classes, &c->classes_room, c->nclasses, 1) < 0)
        return zb_fail(err, -ENOMEM, "classes of a step: %m");
    c->classes[c->nclasses++] = class;
    return 0;
}

static int run_add(struct zsd_classes *c, uint32_t count, uint32_t what, struct zb_err *err)
{
    uint32_t class = what == 0 ? ZSD_CLASS_NONE : what - 1;

    if (count == 0 || count > c->of - c->tensors)
        return zb_fail(err, -EINVAL,
                       "classes of %u more tensors after %u: the job has %u trainable tensors",
                       count, c->tensors, c->of);
    c->tensors += count;
    if (c->nruns > 0 && c->runs[c->nruns - 1].class == class) {
        c->runs[c->nruns - 1].count += count;
        return 0;
    }
    if (zb_grow(&c->runs, &c->runs_room, c->nruns, 1) < 0)
        return zb_fail(err, -ENOMEM, "classes of a step: %m");
    c->runs[c->nruns++] = (struct zsd_class_run){ .count = count, .class = class };
    return 0;
}

static int part_check(const struct zsd_member *m, const Zp__StepClasses *q, struct zb_err *err)
{
    const struct zsd_job *job = m->job;
    uint64_t step = job->iterations + 1;

    if (job->state != ZSD_READY)
        return zb_fail(err, -EBUSY, "job '%s' is not ready for classes of a step", job->name);
    if (q->step != step)
        return zb_fail(err, q->step < step ? -EEXIST : -EINVAL,
                       "classes of step %llu of job '%s': step %llu comes next",
                       (unsigned long long)q->step, job->name, (unsigned long long)step);
    if (q->n_runs % 2 != 0)
        return zb_fail(err, -EINVAL, "runs of tensors come in pairs");
    if (!q->begin && (!m->classes || m->classes->step != step || m->classes->refs > 1))
        return zb_fail(err, -EINVAL,
                       "a further part of classes of step %llu, without a first one, or after the "
                       "step was asked for with them",
                       (unsigned long long)step);
    return 0;
}

static int part_add(struct zsd_member *m, const Zp__StepClasses *q, struct zb_err *err)
{
    int rc = 0;

    for (size_t i = 0; i < q->n_classes && rc == 0; i++)
        rc = class_add(m->job, m->classes, q->classes[i], err);
    for (size_t i = 0; i < q->n_runs && rc == 0; i += 2)
        rc = run_add(m->classes, q->runs[i], q->runs[i + 1], err);
    return rc;
}

ZSD_REQUEST(zsd_step_classes, StepClasses)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    struct zb_err err = { 0 };

    if (!m)
        return;
    if (part_check(m, q, &err) < 0) {
        zsd_reply_err(req, &err);
        return;
    }
    if (q->begin) {
        zsd_classes_put(m->classes);
        m->classes = calloc(1, sizeof(*m->classes));
        if (!m->classes) {
            zsd_refuse(req, -ENOMEM, "classes of a step: %m");
            return;
        }
        m->classes->refs = 1;
        m->classes->step = q->step;
        m->classes->of = job_trainable(m->job);
    }
    if (part_add(m, q, &err) < 0) { /* some of it may have been added */
        zsd_classes_put(m->classes);
        m->classes = NULL;
        zsd_reply_err(req, &err);
        return;
    }
    zsd_reply(req, NULL, -1);
}

bool zsd_classes_leave(const struct zsd_job *job, const struct zsd_classes *c,
                       const struct zsd_unit *unit)
{
    uint64_t first = 0, end, at = 0;

    if (!c)
        return false;
    for (uint32_t u = 0; u < unit->index; u++)
        first += unit_trainable(job->units[u]);
    end = first + unit_trainable(unit);
    for (uint32_t r = 0; r < c->nruns && at < end; r++) {
        at += c->runs[r].count;
        if (at > first && end > first && c->runs[r].class != ZSD_CLASS_NONE)
            return false;
    }
    return true;
}

/* ---- the table for page operations */

/* Where the walk over the tensors of a job is, in the runs of its classes. */
struct table_walk {
    const struct zsd_class_run *run; /* NULL: by groups */
    uint32_t left;                   /* of the run */
    bool apart;                      /* a segment for each tensor */
    /* Muon */
    const struct zsd_class *classes; /* NULL: groups */
    const struct zk_params *groups;
    uint32_t nmatrices;
};

static uint32_t table_class(struct table_walk *w, const struct zsd_tensor *tensor)
{
    if (!w->run)
        return tensor->group;
    if (w->left == 0)
        w->left = (++w->run)->count;
    w->left--;
    return w->run->class;
}

/* Adds a matrix. op/muon.c gives it memory. */
static void table_matrix(struct zsd_step_table *table, struct table_walk *w,
                         const struct zsd_tensor *tensor, uint32_t class)
{
    const struct zk_params *p = w->classes ? &w->classes[class].params : &w->groups[class];
    uint64_t rows = tensor->dims[0], cols = tensor->dims[1];

    table->matrices[w->nmatrices++] = (struct zk_matrix){
        .first = tensor->first,
        .count = tensor->count,
        .rows = rows,
        .cols = cols,
        .step_size = (float)(p->lr * zk_muon_factor((enum zk_muon_scale)p->muon_scale, rows, cols)),
    };
}

static void table_unit(struct zsd_step_table *table, const struct zsd_unit *unit, uint32_t *n,
                       struct table_walk *w)
{
    uint32_t first = *n;

    for (uint32_t t = 0; t < unit->ntensors; t++) {
        const struct zsd_tensor *tensor = &unit->tensors[t];
        struct zk_segment *last = *n > first && !w->apart ? &table->segments[*n - 1] : NULL;
        uint32_t class;

        if (!zsd_tensor_trainable(unit, t))
            continue;
        class = table_class(w, tensor);
        if (class == ZSD_CLASS_NONE || tensor->count == 0)
            continue;
        if (table->matrices && tensor->muon) {
            table_matrix(table, w, tensor, class);
            class += table->nscalars / 2;
            last = NULL;
        }
        if (last && last->group == class && last->first + last->count == tensor->first)
            last->count += tensor->count;
        else
            table->segments[(*n)++] = (struct zk_segment){ .first = tensor->first,
                                                           .count = tensor->count,
                                                           .group = class };
    }
}

/* Makes the scalars of classes, or of groups if c is NULL. */
static void table_scalars(struct zsd_step_table *table, const struct zsd_job *job, double scale,
                          const struct zk_params *groups, const struct zsd_classes *c)
{
    enum zb_optimizer optimizer = table->matrices ? ZB_ADAMW : job->optimizer;
    uint32_t n = table->matrices ? table->nscalars / 2 : table->nscalars;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t t = c ? c->classes[i].t : job->applied + 1;
        struct zk_params params = c ? c->classes[i].params : groups[i];

        if (c)
            params.scale *= scale;
        table->scales[i] = params.scale;
        table->scalars[i] = zk_prepare(optimizer, &params, t);
        if (!table->matrices)
            continue;
        table->scales[n + i] = params.scale;
        table->scalars[n + i] = zk_prepare(ZB_MUON, &params, t);
    }
}

int zsd_table_make(struct zsd_step_table *table, const struct zsd_job *job, double scale,
                   const struct zk_params *params, const struct zsd_classes *c,
                   const double *factors)
{
    bool muon = job->optimizer == ZB_MUON;
    uint32_t n = 0, nscalars = (c ? c->nclasses : job->groups) * (muon ? 2 : 1);
    struct table_walk w = { .apart = factors != NULL,
                            .classes = c ? c->classes : NULL,
                            .groups = params };

    if (c && c->nruns > 0) {
        w.run = c->runs;
        w.left = c->runs->count;
    }
    *table = (struct zsd_step_table){
        .scalars = calloc(zb_max_u64(nscalars, 1), sizeof(*table->scalars)),
        .scales = calloc(zb_max_u64(nscalars, 1), sizeof(*table->scales)),
        .nscalars = nscalars,
        .segments = calloc(zb_max_u64(job_trainable(job), 1), sizeof(*table->segments)),
        .at = calloc(job->nunits + 1, sizeof(*table->at)),
    };
    if (muon) {
        table->matrices = calloc(zb_max_u64(job_trainable(job), 1), sizeof(*table->matrices));
        table->matrix_at = calloc(job->nunits + 1, sizeof(*table->matrix_at));
    }
    if (!table->scalars || !table->scales || !table->segments || !table->at ||
        (muon && (!table->matrices || !table->matrix_at))) {
        zsd_table_done(table);
        return -ENOMEM;
    }
    table_scalars(table, job, scale, params, c);
    for (uint32_t u = 0; u < job->nunits; u++) {
        table->at[u] = n;
        if (muon)
            table->matrix_at[u] = w.nmatrices;
        table_unit(table, job->units[u], &n, &w);
    }
    table->at[job->nunits] = n;
    if (muon)
        table->matrix_at[job->nunits] = w.nmatrices;
    for (uint32_t u = 0; u < job->nunits && factors; u++)
        zsd_table_scale(table, job, u, factors);
    return 0;
}

void zsd_table_scale(struct zsd_step_table *table, const struct zsd_job *job, uint32_t unit,
                     const double *factors)
{
    const struct zsd_tensors *t = job->tensors;
    uint32_t i = t->first[unit];

    for (uint32_t at = table->at[unit]; at < table->at[unit + 1]; at++) {
        struct zk_segment *s = &table->segments[at];

        while (t->all[i].first != s->first)
            i++; /* it is not stepped */
        if (!isnan(factors[i]))
            s->scale = zk_segment_scale(table->scales[s->group] * factors[i]);
    }
}

void zsd_table_done(struct zsd_step_table *table)
{
    free(table->scalars);
    free(table->scales);
    free(table->segments);
    free(table->at);
    free(table->matrices);
    free(table->matrix_at);
    *table = (struct zsd_step_table){ 0 };
}

/* ---- of a step */

/* Keeps what the step has for its first matrix, for those who ask. */
static void step_muon(struct zsd_job *job, const struct zk_params *params,
                      const struct zsd_classes *c)
{
    const struct zsd_step_table *t = &job->step->table;
    uint32_t n = t->nscalars / 2;

    for (uint32_t i = 0; i < t->at[job->nunits]; i++)
        if (t->segments[i].group >= n) {
            uint32_t class = t->segments[i].group - n;

            job->step->muon = c ? c->classes[class].params : params[class];
            job->step->muon_known = true;
            return;
        }
}

int zsd_step_prepare(struct zsd_job *job, double scale, const struct zk_params *params,
                     const struct zsd_classes *classes, const double *factors)
{
    assert(job->early_inflight == 0); /* E3 */
    zsd_table_done(&job->step->table);
    if (classes || factors || job->optimizer == ZB_MUON) {
        int rc = zsd_table_make(&job->step->table, job, scale, params, classes, factors);

        if (rc == 0 && job->optimizer == ZB_MUON)
            step_muon(job, params, classes);
        return rc;
    }
    for (uint32_t g = 0; g < job->groups; g++)
        job->step->by_group[g] = zk_prepare(job->optimizer, &params[g], job->applied + 1);
    return 0;
}

void zsd_step_with(const struct zsd_shard *s, struct zsd_page_spec *spec)
{
    const struct zsd_step_op *op = s->job->step;
    const struct zsd_step_table *table = &op->table;
    const struct zsd_unit *unit = s->unit;

    spec->segments = table->at ? table->segments + table->at[unit->index] : unit->segments;
    spec->nsegments = table->at ? table->at[unit->index + 1] - table->at[unit->index]
                                : unit->nsegments;
    spec->by_group = table->at ? table->scalars : op->by_group;
    spec->ngroups = table->at ? table->nscalars : s->job->groups;
    if (table->matrices) {
        spec->matrices = table->matrices + table->matrix_at[unit->index];
        spec->nmatrices = table->matrix_at[unit->index + 1] - table->matrix_at[unit->index];
    }
}

/* ---- another optimizer */

static int optimizer_check(const struct zsd_job *job, const Zp__JobOptimizer *q, struct zb_err *err)
{
    if (job->optimizer == ZB_MUON || q->optimizer == ZB_MUON)
        return zb_fail(err, -ENOTSUP,
                       "job '%s' cannot change its optimizer from or to Muon: it is opened with it",
                       job->name);
    if (job->keep)
        return zb_fail(err, -ENOTSUP,
                       "job '%s' is kept: its optimizer is the one that it was opened with",
                       job->name);
    if (job->state != ZSD_READY || job->step->asked || job->early_said > 0)
        return zb_fail(err, -EBUSY, "job '%s' is not ready, or a step was asked for", job->name);
    if (job->iterations > 0)
        return zb_fail(err, -EBUSY, "job '%s' has made a step with %s", job->name,
                       zb_optimizer_name(job->optimizer));
    for (uint32_t u = 0; u < job->nunits; u++)
        if (!job->units[u]->layout.frozen &&
            zb_layout_steps_with(&job->units[u]->layout, q->optimizer, q->moments, err) < 0)
            return err->code;
    return 0;
}

static void optimizer_set(struct zsd_unit **units, uint32_t nunits, enum zb_optimizer optimizer)
{
    for (uint32_t u = 0; u < nunits; u++)
        units[u]->layout.optimizer = optimizer;
}

ZSD_REQUEST(zsd_job_optimizer, JobOptimizer)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    struct zb_err err = { 0 };
    struct zsd_job *job;

    if (!m)
        return;
    job = m->job;
    if (optimizer_check(job, q, &err) < 0) {
        zsd_reply_err(req, &err);
        return;
    }
    if (q->optimizer != job->optimizer)
        zsd_classes_drop(job); /* they were checked for the old optimizer */
    job->optimizer = q->optimizer;
    optimizer_set(job->units, job->nunits, q->optimizer);
    if (job->image) { /* the daemon waits for the ranks, to save it */
        job->image->optimizer = q->optimizer;
        optimizer_set(job->image->units, job->image->nunits, q->optimizer);
    }
    zsd_reply(req, NULL, -1);
}
