/*
 * config.c - zctl config check: what becomes of each key of a DeepSpeed file. It is read as
 * zgpt --config reads it; nothing is trained, and no daemon is asked.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/plan.h"
#include "base/util.h"
#include "client/zctl/cmd/cmd.h"
#include "client/zero/zc_config.h"

struct config_row {
    char key[96], value[48], effect[16], text[192];
};

static const struct zctl_column columns[] = {
    { "key", ZCTL_TEXT, offsetof(struct config_row, key), ZCTL_SHOWN },
    { "value", ZCTL_TEXT, offsetof(struct config_row, value), ZCTL_SHOWN },
    { "effect", ZCTL_TEXT, offsetof(struct config_row, effect), ZCTL_SHOWN },
    { "because", ZCTL_TEXT, offsetof(struct config_row, text), ZCTL_SHOWN },
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

struct part {
    char s[48];
};

/* What of a batch is known. */
static struct part batch_part(uint64_t n, const char *what)
{
    struct part p;

    if (n > 0)
        (void)snprintf(p.s, sizeof(p.s), "%llu %s", (unsigned long long)n, what);
    else
        (void)snprintf(p.s, sizeof(p.s), "any number of %s", what);
    return p;
}

static struct zc_sentence run_sentence(const struct zc_zero_config *c)
{
    struct zc_sentence s;
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
    struct config_row *rows = calloc(c->nlines + 1, sizeof(*rows));
    struct zc_sentence sentence;
    int rc;

    if (!rows)
        return zb_fail(&z->err, -ENOMEM, "%zu keys: %m", c->nlines);
    for (size_t i = 0; i < c->nlines; i++)
        rows[i] = row_of(&c->lines[i]);
    sentence = run_sentence(c);
    rc = zctl_print_more(z, columns, ZB_COUNT(columns), rows, c->nlines, sizeof(*rows), "run",
                         &sentence, 1);
    free(rows);
    return rc;
}

struct config_options {
    uint32_t ranks;
};

static const struct zb_opt config_options[] = {
    { "ranks", ZB_OPT_COUNT, ZB_OPT_AT(struct config_options, ranks), .arg = "N", .max = 1u << 20,
      .help = "of the run: batches must divide into them" },
    { 0 },
};

static int config(struct zctl *z, int argc, char **argv)
{
    const struct config_options *o = z->opts.values;
    struct zc_zero_config *c = NULL;
    char why[sizeof(z->err.text)];
    int rc;

    (void)argc;
    if (strcmp(argv[0], "check") != 0)
        return zb_fail(&z->err, -EINVAL, "usage: zctl config check FILE [--ranks N]");
    rc = zc_zero_config_load(&c, argv[1], o->ranks, why, sizeof(why));
    if (rc < 0)
        return zb_fail(&z->err, rc, "%s", why);
    rc = config_print(z, c);
    zc_zero_config_free(c);
    return rc;
}

const struct zctl_cmd zctl_config = {
    .name = "config",
    .args = "check FILE",
    .help = "say what becomes of each key of a DeepSpeed file, or which is wrong",
    .argc_min = 2,
    .argc_max = 2,
    .run = config,
    .options = config_options,
    .bytes = sizeof(struct config_options),
};
