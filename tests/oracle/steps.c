/*
 * steps.c - makes many steps of one optimizer on fp32 parameters, for optimizers.py.
 *
 *     steps OPTIMIZER STEPS ELEMS [NAME=VALUE...]      names of struct zk_params
 *
 * Reads from standard input ELEMS floats of parameters, then as many gradients for each step.
 * Writes the parameters after each step to standard output.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "kernels/zk.h"

struct run {
    enum zb_optimizer optimizer;
    struct zk_params params;
    size_t steps, elems;
    float *p, *m, *v, *grad;
};

static void usage(const char *why)
{
    (void)fprintf(stderr, "steps: %s\n", why);
    exit(2);
}

static void set_param(struct zk_params *p, const char *text)
{
    const struct {
        const char *name;
        double *value;
    } names[] = { { "lr", &p->lr },
                  { "beta1", &p->beta1 },
                  { "beta2", &p->beta2 },
                  { "eps", &p->eps },
                  { "weight_decay", &p->weight_decay },
                  { "momentum", &p->momentum },
                  { "dampening", &p->dampening },
                  { "lr_decay", &p->lr_decay } };
    const char *value = strchr(text, '=');
    char *end;
    double number;

    if (!value)
        usage(text);
    number = strtod(value + 1, &end);
    if (end == value + 1 || *end != '\0')
        usage(text);
    if (strncmp(text, "nesterov=", sizeof("nesterov=") - 1) == 0) {
        p->nesterov = number != 0;
        return;
    }
    for (size_t i = 0; i < ZB_COUNT(names); i++)
        if (strlen(names[i].name) == (size_t)(value - text) &&
            strncmp(names[i].name, text, (size_t)(value - text)) == 0) {
            *names[i].value = number;
            return;
        }
    usage(text);
}

static void run_parse(struct run *r, int argc, char **argv)
{
    struct zb_err err = { 0 };

    if (argc < 4)
        usage("OPTIMIZER STEPS ELEMS [NAME=VALUE...]");
    r->optimizer = ZB_ADAMW;
    while (zb_optimizer_name(r->optimizer) && strcmp(zb_optimizer_name(r->optimizer), argv[1]) != 0)
        r->optimizer++;
    if (!zb_optimizer_name(r->optimizer))
        usage(argv[1]);
    r->steps = strtoul(argv[2], NULL, 10);
    r->elems = strtoul(argv[3], NULL, 10);
    r->params.scale = 1;
    for (int i = 4; i < argc; i++)
        set_param(&r->params, argv[i]);
    if (r->elems == 0 || zk_params_check(r->optimizer, &r->params, &err) < 0)
        usage(err.text);
}

static void run_steps(struct run *r, const struct zk_ops *ops)
{
    const struct zk_step_arrays a = {
        .param = r->p,
        .m = r->m,
        .v = zb_moment_name(r->optimizer, 1) ? r->v : NULL,
        .grad = r->grad,
    };

    if (fread(r->p, sizeof(float), r->elems, stdin) != r->elems)
        usage("parameters are missing");
    for (size_t t = 1; t <= r->steps; t++) {
        struct zk_scalars s = zk_prepare(r->optimizer, &r->params, t);

        if (fread(r->grad, sizeof(float), r->elems, stdin) != r->elems)
            usage("gradients are missing");
        ops->step[r->optimizer][ZB_F32][ZB_F32](&s, &a, r->elems);
        if (fwrite(r->p, sizeof(float), r->elems, stdout) != r->elems)
            usage("the parameters cannot be written");
    }
    if (fflush(stdout) != 0)
        usage("the parameters cannot be written");
}

int main(int argc, char **argv)
{
    const struct zk_ops *ops;
    struct zb_err err = { 0 };
    struct run r = { 0 };

    run_parse(&r, argc, argv);
    if (zk_select(NULL, &ops, &err) < 0)
        usage(err.text);
    r.p = calloc(4 * r.elems, sizeof(float));
    if (!r.p)
        usage("no memory");
    r.m = r.p + r.elems;
    r.v = r.m + r.elems;
    r.grad = r.v + r.elems;
    zk_thread_init();
    run_steps(&r, ops);
    free(r.p);
    return 0;
}
