/*
 * plan.h - what the files of `zctl plan` share: the model, the run and the node that options and
 * files describe. base/forecast.h does the arithmetic; docs/PLANNING.md says what is planned.
 */
#ifndef ZCTL_PLAN_H
#define ZCTL_PLAN_H

#include "base/forecast.h"
#include "client/zctl/base/zctl.h"

struct zctl_plan {
    struct zctl *z;
    struct zb_model model;
    enum zb_dtype dtype; /* 0: not said */
    struct zb_run run;
    struct zb_node node;
    const char *node_from; /* for people: "the daemon", "options" ... */
};

/** A decimal number with an optional K, M, G or B, T, P (powers of 1000); *ret is unchanged when
 * the option was not given. 0, or z->err. */
int zctl_option_decimal(struct zctl *z, const char *name, double *ret);

/** --params, --layers ..., or --index: the model, and the dtype of its files. 0, or z->err. */
int zctl_plan_model(struct zctl_plan *p);
/** Options, --node, the daemon or this machine: 0, or z->err. */
int zctl_plan_node(struct zctl_plan *p);
/** The whole output. 0, or z->err. */
int zctl_plan_print(struct zctl_plan *p, const struct zb_forecast *f);

#endif
