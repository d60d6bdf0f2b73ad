/*
 * plan.h - `zctl plan`, and the state that its files share: the model, the run and the node that
 * options and files describe. base/forecast.h does the arithmetic; docs/PLANNING.md explains it.
 */
#ifndef ZCTL_PLAN_H
#define ZCTL_PLAN_H

#include "base/forecast.h"
#include "client/zctl/base/zctl.h"

extern const struct zctl_cmd zctl_plan;

/** The options of the command, and the values derived from them. */
struct zctl_plan {
    struct zctl *z;

    /* the model, given in one of three ways */
    double params; /* a number of parameters in a number of units, */
    uint32_t units;
    struct zb_gpt shape; /* a shape, */
    const char *index;   /* or files */
    struct zb_model model;

    enum zb_dtype dtype; /* 0: not given */
    enum zb_dtype grad_dtype;
    enum zb_optimizer optimizer;
    enum zb_moments moments;
    struct zb_run run;

    const char *node_file;
    struct zb_node node;
    const char *node_from; /* for people: "the daemon", "options" ... */
    uint64_t gives_room;   /* host memory of idle jobs that would leave it for this one */
    const char *measure;   /* directory on the drive to measure */
};

/** Sets the model, and the dtype of its files, from --params, --layers ... or --index. 0, or
 *  z->err. */
int zctl_plan_model(struct zctl_plan *p);
/** Sets the node from options, --node, the daemon or this machine. 0, or z->err. */
int zctl_plan_node(struct zctl_plan *p);
/** Prints the whole output. 0, or z->err. */
int zctl_plan_print(struct zctl_plan *p, const struct zb_forecast *f);

#endif
