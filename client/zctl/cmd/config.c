/*
 * config.c - zctl config check: shows how each key of a DeepSpeed file is used. The file is read as
 * by zgpt --config. Nothing is trained, and no daemon is needed. zctl config show: settings.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/plan.h"
#include "base/util.h"
#include "client/zctl/cmd/cmd.h"
#include "client/zero/zc_config.h"

#define DEFAULTS_MAX 4u

struct config_row {
    char key[96], value[48], effect[16], text[192];
};

static const struct zctl_column columns[] = {
    { "key", ZCTL_TEXT, offsetof(struct config_row, key), ZCTL_SHOWN, NULL, 0 },
    { "value", ZCTL_TEXT, offsetof(struct config_row, value), ZCTL_SHOWN, NULL, 0 },
    { "effect", ZCTL_TEXT, offsetof(struct config_row, effect), ZCTL_SHOWN, NULL, 0 },
    { "because", ZCTL_TEXT, offsetof(struct config_row, text), ZCTL_SHOWN, NULL, 0 },
};

static struct config_row row_of(const struct zc_config_line *l)
{
    struct config_row row;

    (void)snprintf(row.key, sizeof(row.key), "%s", l->key);
    (void)snprintf(row.value, sizeof(row.value), "%s", l->value);
    (void)snprintf(row.effect, sizeof(row.effect), "%s", l->ignored ? "ignored" : "acted on");
    (void)snprintf(row.text, sizeof(row.text), "%s", l->text);
    return row;
}

/* Adds rows for defaults that take effect without being in the file. */
static size_t rows_of_defaults(const struct zc_zero_config *c, struct config_row *rows)
{
    const struct zc_zero_options *o = &c->options;
    const struct {
        const char *key, *text;
        bool acts;
        double value, second; /* second below 0: there is none */
    } defaults[] = {
        { "gradient_clipping",
          "DeepSpeed's default since 0.19; older releases do not clip, and 0 turns it off",
          !(c->left & ZC_LEFT_CLIP) && o->clip > 0, o->clip, -1 },
        { "optimizer.params.lr", "DeepSpeed's default", !(c->left & ZC_LEFT_LR), c->lr, -1 },
        { "optimizer.params.betas", "DeepSpeed's default",
          !(c->left & ZC_LEFT_OPTIMIZER) && o->optimizer != ZC_SGD && o->optimizer != ZC_ADAGRAD,
          o->beta1, o->beta2 },
        { "optimizer.params.weight_decay", "DeepSpeed's default", !(c->left & ZC_LEFT_WEIGHT_DECAY),
          o->weight_decay[0], -1 },
    };
    size_t n = 0;

    for (size_t i = 0; i < ZB_COUNT(defaults); i++) {
        bool there = false;

        for (size_t k = 0; k < c->nlines; k++)
            there = there || strcmp(c->lines[k].key, defaults[i].key) == 0;
        if (there || !defaults[i].acts)
            continue;
        (void)snprintf(rows[n].key, sizeof(rows[n].key), "%s", defaults[i].key);
        if (defaults[i].second < 0)
            (void)snprintf(rows[n].value, sizeof(rows[n].value), "%g", defaults[i].value);
        else
            (void)snprintf(rows[n].value, sizeof(rows[n].value), "[%g, %g]", defaults[i].value,
                           defaults[i].second);
        (void)snprintf(rows[n].effect, sizeof(rows[n].effect), "default");
        (void)snprintf(rows[n].text, sizeof(rows[n].text), "%s", defaults[i].text);
        n++;
    }
    return n;
}

struct part {
    char s[48];
};

/* Text for one factor of the batch size; n 0: it is not given. */
static struct part batch_part(uint64_t n, const char *what)
{
    struct part p;

    if (n > 0)
        (void)snprintf(p.s, sizeof(p.s), "%llu %s", (unsigned long long)n, what);
    else
        (void)snprintf(p.s, sizeof(p.s), "any number of %s", what);
    return p;
}

static struct zc_message run_message(const struct zc_zero_config *c)
{
    struct zc_message s;
    static const char *const tiers[] = { "nowhere", "to host memory", "to NVMe" };
    const struct zc_zero_options *o = &c->options;
    bool steps = !(c->left & ZC_LEFT_MICRO_STEPS);

    (void)snprintf(s.text, sizeof(s.text),
                   "stage %d, %s, %s; offloaded: state %s, parameters %s; %s, %s at a time, %s",
                   (int)o->stage,
                   c->left & ZC_LEFT_DTYPE ? "any dtype" : zb_dtype_name((enum zb_dtype)c->dtype),
                   c->left & ZC_LEFT_OPTIMIZER ? "any optimizer"
                                               : zb_optimizer_name((enum zb_optimizer)o->optimizer),
                   tiers[o->offload_optimizer], tiers[o->offload_param],
                   batch_part(c->train_batch, "samples").s, batch_part(c->micro_batch, "samples").s,
                   batch_part(steps ? o->micro_steps : 0, "micro-steps").s);
    return s;
}

static int config_print(struct zctl *z, const struct zc_zero_config *c)
{
    struct config_row *rows = calloc(c->nlines + DEFAULTS_MAX, sizeof(*rows));
    size_t n;
    struct zc_message message;
    int rc;

    if (!rows)
        return zb_fail(&z->err, -ENOMEM, "%zu keys: %m", c->nlines);
    for (size_t i = 0; i < c->nlines; i++)
        rows[i] = row_of(&c->lines[i]);
    n = c->nlines + rows_of_defaults(c, rows + c->nlines);
    message = run_message(c);
    rc = zctl_print_more(z, columns, ZB_COUNT(columns), rows, n, sizeof(*rows), "run", &message, 1);
    free(rows);
    return rc;
}

struct config_options {
    uint32_t ranks;
};

static const struct zb_opt config_options[] = {
    { "ranks", ZB_OPT_COUNT, ZB_OPT_AT(struct config_options, ranks), .arg = "N", .max = 1u << 20,
      .help = "ranks of the run; batches must be divisible by them" },
    { 0 },
};

static int config(struct zctl *z, int argc, char **argv)
{
    const struct config_options *o = z->opts.values;
    struct zc_zero_config *c = NULL;
    char why[sizeof(z->err.text)];
    const char *name;
    int rc;

    if (strcmp(argv[0], "show") == 0 && argc == 1)
        return zctl_settings(z);
    if (strcmp(argv[0], "check") != 0 || argc != 2)
        return zb_fail(&z->err, -EINVAL,
                       "usage: zctl config show, or zctl config check FILE [--ranks N]");
    name = argv[1] + strlen(argv[1]) - zb_min_u64(strlen(argv[1]), strlen(".conf"));
    rc = zc_zero_config_load(&c, argv[1], o->ranks, why, sizeof(why));
    if (rc < 0 && strcmp(name, ".conf") == 0)
        return zb_fail(&z->err, rc,
                       "%s; zshardd --check-config --config FILE checks the daemon's file", why);
    if (rc < 0)
        return zb_fail(&z->err, rc, "%s", why);
    rc = config_print(z, c);
    zc_zero_config_free(c);
    return rc;
}

/* For -o: the columns of config show, then those of config check that it does not have. */
static const struct zctl_column config_keys[] = {
    { .key = "option" },  { .key = "value" }, { .key = "source" }, { .key = "pending" },
    { .key = "restart" }, { .key = "key" },   { .key = "effect" }, { .key = "because" },
};

const struct zctl_cmd zctl_config = {
    .name = "config",
    .args = "show | check FILE",
    .help = "show the daemon's options; check a DeepSpeed file, and explain each key",
    .argc_min = 1,
    .argc_max = 2,
    .run = config,
    .options = config_options,
    .bytes = sizeof(struct config_options),
    ZCTL_COLUMNS(config_keys),
};
