/*
 * classes.c - the classes of a step, in parts; call->at is the number of parts sent. Each part has
 * the next ZP_CLASSES_PART classes and the next ZP_RUNS_PART runs of tensors, or those that are
 * left.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/ask/ask_priv.h"

struct classes_copy {
    uint64_t job, step;
    uint32_t nclasses, nruns;
    uint32_t *runs; /* [2 * nruns], after the classes */
    struct zc_class classes[];
};

struct part {
    Zp__StepClasses m;
    Zp__StepClass classes[ZP_CLASSES_PART], *pointers[ZP_CLASSES_PART];
    Zp__GroupScalars scalars[ZP_CLASSES_PART];
};

void zc_group_scalars(const struct zc_group *from, Zp__GroupScalars *to)
{
    zp__group_scalars__init(to);
    to->lr = from->lr;
    to->beta1 = from->beta1;
    to->beta2 = from->beta2;
    to->eps = from->eps;
    to->weight_decay = from->weight_decay;
    to->momentum = from->momentum;
    to->dampening = from->dampening;
    to->nesterov = from->nesterov;
    to->lr_decay = from->lr_decay;
    to->muon_scale = from->muon_scale;
}

/* Fills a part. Returns whether others follow. */
static bool part_make(struct part *p, const struct classes_copy *copy, uint64_t number)
{
    uint64_t class = zb_min_u64(number * ZP_CLASSES_PART, copy->nclasses);
    uint64_t run = zb_min_u64(number * ZP_RUNS_PART, copy->nruns);
    uint32_t nclasses = (uint32_t)zb_min_u64(copy->nclasses - class, ZP_CLASSES_PART);
    uint32_t nruns = (uint32_t)zb_min_u64(copy->nruns - run, ZP_RUNS_PART);

    zp__step_classes__init(&p->m);
    p->m.job = copy->job;
    p->m.step = copy->step;
    p->m.begin = number == 0;
    for (uint32_t i = 0; i < nclasses; i++) {
        const struct zc_class *from = &copy->classes[class + i];

        zp__step_class__init(&p->classes[i]);
        zc_group_scalars(&from->group, &p->scalars[i]);
        p->classes[i].scalars = &p->scalars[i];
        p->classes[i].factor = from->factor;
        p->classes[i].t = from->t;
        p->pointers[i] = &p->classes[i];
    }
    p->m.n_classes = nclasses;
    p->m.classes = p->pointers;
    p->m.n_runs = 2 * (size_t)nruns;
    p->m.runs = copy->runs + 2 * run;
    return class + nclasses < copy->nclasses || run + nruns < copy->nruns;
}

static int next_classes(struct zc_client *c, struct zc_call *call)
{
    const struct classes_copy *copy = call->spec.copy;
    struct part part;
    int rc;

    if (!part_make(&part, copy, call->at))
        return 0;
    (void)part_make(&part, copy, ++call->at);
    rc = zc_call_again(c, call, &part.m.base);
    return rc < 0 ? rc : 1;
}

static const struct zc_method method_step_classes = { .id = ZP_STEP_CLASSES,
                                                      .next = next_classes,
                                                      .of_job = true };

/* Consecutive tensors of one class form a run. Returns the number of runs; runs NULL: only that. */
static uint32_t classes_runs(const struct zc_classes *classes, uint32_t *runs)
{
    uint32_t n = 0;

    for (uint32_t i = 0, first = 0; i < classes->ntensors; i++) {
        if (i + 1 < classes->ntensors && classes->class_of[i + 1] == classes->class_of[i])
            continue;
        if (runs) {
            runs[2 * n] = i + 1 - first;
            runs[2 * n + 1] = classes->class_of[i] == ZC_CLASS_NONE ? 0 : classes->class_of[i] + 1;
        }
        first = i + 1;
        n++;
    }
    return n;
}

int zc_step_classes(struct zc_client *c, uint64_t job, uint64_t step,
                    const struct zc_classes *classes, zc_done_fn *done, void *arg)
{
    struct zc_call_spec spec = { .method = &method_step_classes, .done = done, .arg = arg };
    uint32_t nruns = classes_runs(classes, NULL);
    struct classes_copy *copy;
    struct part part;

    if (classes->nclasses > ZP_CLASSES_MAX)
        return zc_fail(c, -EINVAL, "%u classes in one step: at most %u", classes->nclasses,
                       ZP_CLASSES_MAX);
    for (uint32_t i = 0; i < classes->ntensors; i++)
        if (classes->class_of[i] != ZC_CLASS_NONE && classes->class_of[i] >= classes->nclasses)
            return zc_fail(c, -EINVAL, "tensor %u has class %u, and there are only %u classes", i,
                           classes->class_of[i], classes->nclasses);
    copy = malloc(sizeof(*copy) + classes->nclasses * sizeof(copy->classes[0]) +
                  2 * (size_t)nruns * sizeof(*copy->runs));
    if (!copy)
        return zc_fail(c, -ENOMEM, "classes of %u tensors: %m", classes->ntensors);
    *copy = (struct classes_copy){ .job = job,
                                   .step = step,
                                   .nclasses = classes->nclasses,
                                   .nruns = nruns,
                                   .runs = (uint32_t *)(void *)&copy->classes[classes->nclasses] };
    if (classes->nclasses > 0)
        memcpy(copy->classes, classes->classes, classes->nclasses * sizeof(copy->classes[0]));
    (void)classes_runs(classes, copy->runs);
    (void)part_make(&part, copy, 0);
    spec.message = &part.m.base;
    spec.copy = copy;
    return zc_call_start(c, &spec);
}
