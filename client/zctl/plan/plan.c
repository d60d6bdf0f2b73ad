/*
 * plan.c - zctl plan: what a run will take of a node, before it is started.
 *
 * MODEL. Options make a model, a run and a node (plan.h); base/forecast.h answers, with the code by
 * which the daemon admits jobs; here it is read and shown. A plan that does not fit is shown, too:
 * with what would do, and an exit status of its own.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/measure.h"
#include "base/util.h"
#include "client/zctl/plan/plan.h"
#include "kernels/measure.h"

#define MEASURE_NS UINT64_C(1000000000)
#define NAMES_MAX  16u

/* ---- the run */

/* The number of the word that an option has, in a list that ends with NULL. */
static int plan_choice(struct zctl *z, const char *option, const char *const *words, unsigned *ret)
{
    const char *text = zctl_option(z, option);
    char all[128] = "";

    if (!text)
        return 0;
    for (unsigned i = 0; words[i]; i++) {
        size_t len = strlen(all);

        if (strcmp(words[i], text) == 0) {
            *ret = i;
            return 0;
        }
        (void)snprintf(all + len, sizeof(all) - len, "%s%s", i > 0 ? ", " : "", words[i]);
    }
    return zb_fail(&z->err, -EINVAL, "--%s is one of %s, not '%s'", option, all, text);
}

static int plan_number(struct zctl *z, const char *option, uint64_t least, uint32_t *ret)
{
    uint64_t n = *ret;
    int rc = zctl_option_number(z, option, UINT32_MAX, &n);

    if (rc == 0 && n < least)
        rc = zb_fail(&z->err, -EINVAL, "--%s is at least %llu", option, (unsigned long long)least);
    *ret = (uint32_t)n;
    return rc;
}

/* The names of base/plan.h's numbers, from 1 on. */
static const char *dtype_name(unsigned n)
{
    return zb_dtype_name((enum zb_dtype)n);
}

static const char *optimizer_name(unsigned n)
{
    return zb_optimizer_name((enum zb_optimizer)n);
}

static const char *moments_name(unsigned n)
{
    return zb_moments_name((enum zb_moments)n);
}

static int plan_named(struct zctl *z, const char *option, const char *(*name_of)(unsigned n),
                      unsigned *ret)
{
    const char *words[NAMES_MAX] = { NULL };
    unsigned n = 0, chosen;
    int rc;

    while (n + 1 < NAMES_MAX && name_of(n + 1)) {
        words[n] = name_of(n + 1);
        n++;
    }
    chosen = *ret - 1;
    rc = plan_choice(z, option, words, &chosen);
    *ret = chosen + 1;
    return rc;
}

static int plan_layout(struct zctl_plan *p)
{
    unsigned dtype = p->dtype ? p->dtype : ZB_BF16, grad = ZB_F32, optimizer = ZB_ADAMW,
             moments = ZB_MOMENTS_F32;
    int rc = plan_named(p->z, "dtype", dtype_name, &dtype);

    if (rc == 0)
        rc = plan_named(p->z, "grad-dtype", dtype_name, &grad);
    if (rc == 0)
        rc = plan_named(p->z, "optimizer", optimizer_name, &optimizer);
    if (rc == 0)
        rc = plan_named(p->z, "moments", moments_name, &moments);
    return rc < 0 ? rc
                  : zb_layout_of((enum zb_dtype)dtype, (enum zb_dtype)grad,
                                 (enum zb_optimizer)optimizer, (enum zb_moments)moments, false,
                                 &p->run.layout, &p->z->err);
}

static int plan_offload(struct zctl_plan *p)
{
    static const char *const words[] = { "host", "nvme", NULL };
    static const char *const grads[] = { "host", "auto", NULL };
    unsigned param = 1, optimizer = 1, grad = 1;
    int rc = plan_choice(p->z, "offload-param", words, &param);

    if (rc == 0)
        rc = plan_choice(p->z, "offload-optimizer", words, &optimizer);
    if (rc == 0)
        rc = plan_choice(p->z, "offload-grad", grads, &grad);
    p->run.grad = grad == 0 ? ZB_OFFLOAD_HOST : ZB_OFFLOAD_NVME;
    p->run.param = param == 0 ? ZB_OFFLOAD_HOST : ZB_OFFLOAD_NVME;
    p->run.optimizer = optimizer == 0 ? ZB_OFFLOAD_HOST : ZB_OFFLOAD_NVME;
    return rc;
}

static int plan_mode(struct zctl_plan *p)
{
    const char *words[ZB_MODES + 1] = { NULL };
    unsigned mode = ZB_ZERO3;
    int rc;

    for (unsigned m = 0; m < ZB_MODES; m++)
        words[m] = zb_mode_name((enum zb_mode)m);
    rc = plan_choice(p->z, "mode", words, &mode);
    p->run.mode = (enum zb_mode)mode;
    return rc;
}

static int plan_run(struct zctl_plan *p)
{
    struct zb_run *run = &p->run;
    struct zctl *z = p->z;
    int rc;

    *run = (struct zb_run){ .model = &p->model,
                            .ranks = 1,
                            .nodes = 1,
                            .commit_every = 100,
                            .micro_steps = 1,
                            .prefetch_units = 1,
                            .durable = zctl_option(z, "durable") != NULL,
                            .early = zctl_option(z, "early") != NULL };
    rc = plan_mode(p);
    if (rc == 0)
        rc = plan_layout(p);
    if (rc == 0)
        rc = plan_offload(p);
    if (rc == 0)
        rc = plan_number(z, "ranks", 1, &run->ranks);
    if (rc == 0)
        rc = plan_number(z, "nodes", 1, &run->nodes);
    if (rc == 0)
        rc = plan_number(z, "micro-steps", 1, &run->micro_steps);
    if (rc == 0)
        rc = plan_number(z, "prefetch", 0, &run->prefetch_units);
    if (rc == 0)
        rc = zctl_option_number(z, "commit-every", UINT64_MAX, &run->commit_every);
    if (rc == 0)
        rc = zctl_option_decimal(z, "flops", &run->flops);
    return rc < 0 ? rc : zctl_option_decimal(z, "step-seconds", &run->seconds);
}

/* ---- what is measured */

/* What is not known yet: memory, and the drive under `dir`. */
static int plan_measure(struct zctl_plan *p, const char *dir)
{
    struct zb_node *node = &p->node;
    struct zb_err *err = &p->z->err;
    double drive = 0;
    int rc = 0, fd;

    if (node->memory <= 0)
        rc = zk_measure_steps(&p->run.layout, node->cores, &node->memory, err);
    if (rc < 0 || (node->drive_read > 0 && node->drive_write > 0))
        return rc;
    fd = zb_measure_open(dir, err);
    if (fd < 0)
        return fd;
    rc = zb_measure_drive(fd, zb_layout_page(&p->run.layout, ZB_STATE, node->page_elems),
                          MEASURE_NS, &drive, err);
    zb_close_fd(&fd);
    node->drive_read = node->drive_read > 0 ? node->drive_read : drive;
    node->drive_write = node->drive_write > 0 ? node->drive_write : drive;
    return rc;
}

/* ---- the command */

int zctl_plan(struct zctl *z, int argc, char **argv)
{
    struct zctl_plan p = { .z = z };
    const char *measure = zctl_option(z, "measure");
    struct zb_forecast f;
    int rc = zctl_plan_model(&p);

    (void)argc;
    (void)argv;
    if (rc == 0)
        rc = plan_run(&p);
    if (rc == 0)
        rc = zctl_plan_node(&p);
    if (rc == 0 && measure)
        rc = plan_measure(&p, measure);
    if (rc == 0)
        rc = zb_forecast(&p.run, &p.node, &f, &z->err);
    if (rc == 0)
        rc = zctl_plan_print(&p, &f);
    if (rc == 0 && !f.fits) {
        z->status = ZCTL_EXIT_NO_FIT;
        rc = zb_fail(&z->err, f.why.code, "does not fit, because %s", f.why.text);
    }
    zb_model_done(&p.model);
    return rc;
}
