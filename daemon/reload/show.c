/*
 * show.c - the request that lists the options of the running daemon: values, sources, and which wait
 * for a restart.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "daemon/config/config.h"
#include "daemon/reload/reload.h"
#include "daemon/reload/requests.h"
#include "daemon/run/core.h"
#include "daemon/run/turn.h"
#include "proto/frame.h"
#include "proto/shard.pb-c.h"

/** The texts of a reply. They fit: values of more than 256 bytes are three. */
struct texts {
    char bytes[ZP_BODY_MAX];
    size_t used;
};

static char *text_of(struct texts *t, const struct zb_opt *o, const struct zsd_config *c)
{
    char *at = t->bytes + t->used;

    (void)zb_opt_text(o, c, at, sizeof(t->bytes) - t->used);
    t->used += strlen(at) + 1;
    return at;
}

/** The name of an option in the file: '_' for '-'. */
static char *name_of(struct texts *t, const struct zb_opt *o)
{
    char *at = t->bytes + t->used;

    (void)snprintf(at, sizeof(t->bytes) - t->used, "%s", o->name);
    t->used += strlen(at) + 1;
    for (char *p = at; *p; p++)
        *p = *p == '-' ? '_' : *p;
    return at;
}

static Zp__Source source_of(const struct zsd_config *c, size_t row)
{
    return c->on_line >> row & 1   ? ZP__SOURCE__LINE
           : c->in_file >> row & 1 ? ZP__SOURCE__FILE
                                   : ZP__SOURCE__DEFAULT;
}

/** The bit of an option, by its row. */
static uint64_t bit_of(const char *name)
{
    const struct zb_opt *rows = zsd_options();

    return UINT64_C(1) << (zb_opt_find(rows, name, strlen(name)) - rows);
}

/** The budgets of GPUs, as the option has them: one size for all, or one for each. */
static void gpu_bytes_show(const struct zsd *daemon, struct zsd_config *c)
{
    uint64_t bytes[ZSD_GPUS_MAX] = { 0 };

    for (unsigned g = 0; g < daemon->ngpus; g++)
        bytes[g] = daemon->core->tiers.gpus[g].target;
    if (daemon->ngpus > 0)
        (void)zb_sizes_text(bytes, daemon->ngpus, c->gpu_bytes, sizeof(c->gpu_bytes));
}

/** The values in effect: the budgets as zctl tier set left them. Returns the options that were set
 * at run time, by their rows, as bits. */
static uint64_t in_effect(const struct zsd *daemon, struct zsd_config *c)
{
    const struct zsd_config *given = &daemon->reload->given;
    uint64_t host = given->host_bytes, run = 0;

    *c = daemon->config;
    if (host == ZSD_AUTO)
        host = c->host_bytes;
    c->host_bytes = daemon->core->tiers.host_target;
    gpu_bytes_show(daemon, c);
    if (c->host_bytes != host)
        run |= bit_of("host-bytes");
    if (strcmp(c->gpu_bytes, given->gpu_bytes) != 0)
        run |= bit_of("gpu-bytes");
    if (daemon->limits->quotas.set_at_run_time) {
        zsd_quotas_text(&daemon->limits->quotas, c->quotas, sizeof(c->quotas));
        run |= bit_of("quotas");
    }
    c->log_level = zb_log_level();
    if (c->log_level != given->log_level)
        run |= bit_of("log-level");
    return run;
}

static void row_of(const struct zsd *daemon, size_t i, const struct zsd_config *c, uint64_t run,
                   struct texts *texts, Zp__Setting *row)
{
    const struct zsd_reload *r = daemon->reload;
    const struct zb_opt *o = &zsd_options()[i];

    zp__setting__init(row);
    row->name = name_of(texts, o);
    row->value = text_of(texts, o, c);
    row->source = run >> i & 1 ? ZP__SOURCE__RUN : source_of(&r->given, i);
    row->pending = !zsd_same_value(o, &r->given, &r->wanted);
    if (row->pending)
        row->restart = text_of(texts, o, &r->wanted);
}

ZSD_REQUEST(zsd_settings, Empty)
{
    Zp__Setting rows[ZB_OPT_ROWS_MAX], *list[ZB_OPT_ROWS_MAX];
    Zp__SettingsReply reply = ZP__SETTINGS_REPLY__INIT;
    struct zsd *daemon = req->daemon;
    struct zsd_config *c;
    struct texts *texts;
    uint64_t run;

    (void)q;
    if (!zsd_admin(req->conn)) {
        zsd_refuse(req, -EPERM, "only an administrator may see the configuration");
        return;
    }
    c = malloc(sizeof(*c));
    texts = malloc(sizeof(*texts));
    if (c && texts) {
        texts->used = 0;
        run = in_effect(daemon, c);
        reply.n_rows = zb_opt_count(zsd_options());
        reply.rows = list;
        reply.file = (char *)(daemon->config.file ? daemon->config.file : "");
        for (size_t i = 0; i < reply.n_rows; i++) {
            list[i] = &rows[i];
            row_of(daemon, i, c, run, texts, &rows[i]);
        }
        zsd_reply(req, &reply.base, -1);
    } else {
        zsd_refuse(req, -ENOMEM, "the configuration");
    }
    free(texts);
    free(c);
}
