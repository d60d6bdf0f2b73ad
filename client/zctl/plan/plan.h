/*
 * plan.h - `zctl plan`, and the state that its files share: the model, the run and the node that
 * options and files describe. base/forecast.h does the arithmetic; docs/PLANNING.md explains it.
 */
#ifndef ZCTL_PLAN_H
#define ZCTL_PLAN_H

#include "base/forecast.h"
#include "base/iteration.h"
#include "base/links.h"
#include "client/zctl/base/zctl.h"

extern const struct zctl_cmd zctl_plan;

/** Where ranks compute: on the node's GPUs if parameters are to be there, else on the processor; or as
 * said. */
enum zctl_plan_device { ZCTL_PLAN_DEVICE_AUTO, ZCTL_PLAN_DEVICE_CPU, ZCTL_PLAN_DEVICE_GPU };

/** How gradients are clipped. */
enum zctl_plan_clip { ZCTL_PLAN_CLIP_NONE, ZCTL_PLAN_CLIP_TENSOR, ZCTL_PLAN_CLIP_GLOBAL };

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
    enum zctl_plan_device device;
    enum zb_optimizer optimizer;
    enum zb_moments moments;
    enum zctl_plan_clip clip_mode;
    struct zb_run run;

    const char *node_file;
    struct zb_node node;
    char gpu_tier_bytes[256]; /* sizes, separated by commas: node.gpu_tiers */
    const char *node_from;    /* for people: "the daemon", "options" ... */
    uint64_t gives_room;      /* host memory of idle jobs that would leave it for this one */
    const char *measure;      /* directory on the drive to measure */

    const char *scale; /* modes, separated by commas: a table over numbers of nodes */
    const char *svg;   /* file for its picture */
};

/** Sets the model, and the dtype of its files, from --params, --layers ... or --index. 0, or
 *  z->err. */
int zctl_plan_model(struct zctl_plan *p);
/** Sets the node from options, --node, the daemon or this machine. 0, or z->err. */
int zctl_plan_node(struct zctl_plan *p);
/** Computes the run as it is in p. Of ZB_GATHER_AUTO it makes the faster way, if times are known;
 * else by collectives. *ret_timed: `it` is set. 0, or z->err. */
int zctl_plan_run(struct zctl_plan *p, struct zb_forecast *f, struct zb_iteration *it,
                  bool *ret_timed);
struct zctl_links;
/** Prints the whole output; it: NULL if it is not known. 0, or z->err. */
int zctl_plan_print(struct zctl_plan *p, const struct zb_forecast *f, const struct zb_iteration *it,
                    const struct zctl_links *links);

struct json_t;

/* ---- links.c: bytes of gathers in a node, in both ways */

struct zctl_links {
    bool known[ZB_GATHER_AUTO]; /* by way */
    struct zb_links way[ZB_GATHER_AUTO];
};

/** Computes them; f is the forecast of the run in p. 0, or z->err. */
int zctl_plan_links(struct zctl_plan *p, const struct zb_forecast *f, struct zctl_links *ret);
void zctl_links_people(const struct zctl_plan *p, const struct zctl_links *links);
struct json_t *zctl_links_json(const struct zctl_plan *p, const struct zctl_links *links);

/** The iteration for people, and for programs (NULL: null). */
void zctl_iteration_people(const struct zctl_plan *p, const struct zb_iteration *it);
struct json_t *zctl_iteration_json(const struct zb_iteration *it);
/** A number; null if it is not known (0), or JSON cannot represent it. */
struct json_t *zctl_plan_real(double x);

/* ---- numbers of nodes */

/** A run on a number of nodes. */
struct zctl_scale_row {
    enum zb_mode mode;
    uint32_t nodes, ranks;
    bool fits, timed;
    struct zb_err why;               /* why it does not fit */
    uint64_t rank_bytes;             /* of a rank's GPU, without activations */
    uint64_t host_bytes, nvme_bytes; /* of the node, in use */
    struct zb_iteration it;          /* if timed */
    double loss; /* of operations per second, against the fewest nodes that fit; 0..1 */
};

/** Prints the table of --scale, and draws its picture. 0, or z->err. */
int zctl_scale(struct zctl_plan *p);
/** Draws rows that were timed: a line for each mode. 0, or z->err. */
int zctl_picture(struct zctl_plan *p, const char *path, const struct zctl_scale_row *rows,
                 size_t n);

#endif
