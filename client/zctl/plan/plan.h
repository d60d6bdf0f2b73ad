/*
 * plan.h - `zctl plan`, and what its files share: the model, the run and the node that options and
 * files describe. base/forecast.h does the arithmetic; docs/PLANNING.md says what is planned.
 */
#ifndef ZCTL_PLAN_H
#define ZCTL_PLAN_H

#include "base/forecast.h"
#include "client/zctl/base/zctl.h"

extern const struct zctl_cmd zctl_plan;

/** The options of the command, and what they become. */
struct zctl_plan {
    struct zctl *z;

    /* the model: one of three */
    double params; /* parameters in so many units, */
    uint32_t units;
    struct zb_gpt shape; /* or a shape, */
    const char *index;   /* or files */
    struct zb_model model;

    enum zb_dtype dtype; /* 0: not said */
    enum zb_dtype grad_dtype;
    enum zb_optimizer optimizer;
    enum zb_moments moments;
    struct zb_run run;

    const char *node_file;
    struct zb_node node;
    const char *node_from; /* for people: "the daemon", "options" ... */
    uint64_t gives_room;   /* of host memory: of jobs that leave it for one that needs it */
    const char *measure;   /* a directory */
};

/** --params, --layers ..., or --index: the model, and the dtype of its files. 0, or z->err. */
int zctl_plan_model(struct zctl_plan *p);
/** Options, --node, the daemon or this machine: 0, or z->err. */
int zctl_plan_node(struct zctl_plan *p);
/** The whole output. 0, or z->err. */
int zctl_plan_print(struct zctl_plan *p, const struct zb_forecast *f);

#endif
