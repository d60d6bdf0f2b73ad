/*
 * reload.c - reads the configuration again, and applies what can be changed in a running daemon.
 * See reload.h.
 */
#include "daemon/reload/reload.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config/config.h"
#include "daemon/net/limits.h"
#include "daemon/net/server.h"
#include "daemon/plan/gpu_plan.h"
#include "daemon/plan/replan.h"
#include "daemon/run/turn.h"

#define TEXT_MAX 256u /* of a value in a log line */

/* ---- options that a running daemon can change */

static int set_host(struct zsd *daemon, const struct zsd_config *next, struct zb_err *err)
{
    if (next->host_bytes == ZSD_AUTO)
        return zb_fail(err, -EINVAL, "auto is chosen when the daemon starts");
    return zsd_host_set(daemon->core, next->host_bytes, err);
}

static int set_gpu(struct zsd *daemon, const struct zsd_config *next, struct zb_err *err)
{
    return zsd_gpus_set(daemon->core, next, err);
}

static int set_root(struct zsd *daemon, const struct zsd_config *next, struct zb_err *err)
{
    (void)err;
    daemon->config.root_is_user = next->root_is_user;
    zsd_limits_trust(daemon);
    return 0;
}

static int set_admins(struct zsd *daemon, const struct zsd_config *next, struct zb_err *err)
{
    return zsd_server_admins(daemon, next->admin_group, err);
}

static int set_quotas(struct zsd *daemon, const struct zsd_config *next, struct zb_err *err)
{
    return zsd_limits_quotas(daemon, next->quotas, err);
}

static int set_level(struct zsd *daemon, const struct zsd_config *next, struct zb_err *err)
{
    (void)daemon;
    (void)err;
    zb_log_set_level(next->log_level);
    return 0;
}

/* All other options wait for a restart. */
static const struct {
    const char *name;
    /* NULL: it is read from daemon->config whenever it is needed. A failure changes nothing. */
    int (*set)(struct zsd *daemon, const struct zsd_config *next, struct zb_err *err);
} changed[] = {
    { "host-bytes", set_host },    { "gpu-bytes", set_gpu },      { "timeout-ms", NULL },
    { "restart-wait", NULL },      { "stop-timeout", NULL },      { "hello-ms", NULL },
    { "jobs-max", NULL },          { "user-jobs-max", NULL },     { "user-clients-max", NULL },
    { "user-host-bytes", NULL },   { "user-nvme-bytes", NULL },   { "user-gpu-bytes", NULL },
    { "root-is-admin", set_root }, { "admin-group", set_admins }, { "quotas", set_quotas },
    { "log-level", set_level },    { "slow-request-ms", NULL },   { "drive-errors", NULL },
    { "drive-slow", NULL },        { "drive-stall", NULL },       { "discard", NULL },
};

/* ---- one option */

bool zsd_same_value(const struct zb_opt *o, const struct zsd_config *a, const struct zsd_config *b)
{
    const char *of_a = (const char *)a + o->at, *of_b = (const char *)b + o->at;

    return o->type == ZB_OPT_CHARS ? strcmp(of_a, of_b) == 0 : memcmp(of_a, of_b, o->size) == 0;
}

static void value_copy(const struct zb_opt *o, struct zsd_config *to, const struct zsd_config *from)
{
    memcpy((char *)to + o->at, (const char *)from + o->at, o->size);
}

/* Where the value comes from: zsd_config.in_file, on_line. */
static void source_copy(const struct zb_opt *o, struct zsd_config *to,
                        const struct zsd_config *from)
{
    uint64_t bit = UINT64_C(1) << (o - zsd_options());

    to->in_file = (to->in_file & ~bit) | (from->in_file & bit);
    to->on_line = (to->on_line & ~bit) | (from->on_line & bit);
}

/* "was" and "now" of an option, for the log. */
struct change {
    char was[TEXT_MAX], now[TEXT_MAX];
};

static struct change change_of(const struct zb_opt *o, const struct zsd_config *was,
                               const struct zsd_config *now)
{
    struct change c;

    (void)zb_opt_text(o, was, c.was, sizeof(c.was));
    (void)zb_opt_text(o, now, c.now, sizeof(c.now));
    return c;
}

/* Applies an option that differs from the value in effect. False: it waits for a restart. */
static bool reload_option(struct zsd *daemon, const struct zb_opt *o, const struct zsd_config *next)
{
    struct zsd_reload *r = daemon->reload;
    struct change c = change_of(o, &r->given, next);
    struct zb_err err = { 0 };
    size_t i = 0;

    while (i < ZB_COUNT(changed) && strcmp(changed[i].name, o->name) != 0)
        i++;
    if (i == ZB_COUNT(changed)) {
        zb_log(ZB_LOG_INFO, "reload-pending", "option=%s now=\"%s\" restart=\"%s\"", o->name, c.was,
               c.now);
        return false;
    }
    if (changed[i].set && changed[i].set(daemon, next, &err) < 0) {
        zb_log(ZB_LOG_WARN, "reload-refused", "option=%s now=\"%s\" restart=\"%s\" why=\"%s\"",
               o->name, c.was, c.now, err.text);
        return false;
    }
    if (changed[i].set != set_host && changed[i].set != set_gpu) /* the budgets are the tiers' */
        value_copy(o, &daemon->config, next);
    value_copy(o, &r->given, next);
    zb_log(ZB_LOG_INFO, "reload-option", "option=%s was=\"%s\" now=\"%s\"", o->name, c.was, c.now);
    return true;
}

/* ---- all of them */

static void reload_apply(struct zsd *daemon, const struct zsd_config *next)
{
    struct zsd_reload *r = daemon->reload;
    unsigned applied = 0, pending = 0;

    for (const struct zb_opt *o = zsd_options(); o->name; o++) {
        bool same = zsd_same_value(o, &r->given, next);

        if (same || reload_option(daemon, o, next)) {
            applied += !same;
            source_copy(o, &r->given, next);
        } else {
            pending++;
        }
    }
    r->wanted = *next;
    zb_log(ZB_LOG_INFO, "reload", "file=\"%s\" applied=%u pending=%u", next->file, applied,
           pending);
    if (applied > 0)
        zsd_room_changed(daemon->core); /* what waits for room may fit now */
}

void zsd_reload(struct zsd *daemon)
{
    struct zsd_config *next = malloc(sizeof(*next));
    struct zb_err err = { 0 };
    const char *text;
    int rc = next ? zsd_config_load(next, daemon->config.argc, daemon->config.argv, &text, &err)
                  : zb_fail(&err, -ENOMEM, "the configuration: %m");

    if (rc < 0)
        zb_log(ZB_LOG_ERROR, "reload-failed", "file=\"%s\" why=\"%s\"", daemon->config.file,
               err.text);
    else
        reload_apply(daemon, next);
    free(next);
}

int zsd_reload_open(struct zsd *daemon, struct zb_err *err)
{
    struct zsd_reload *r = malloc(sizeof(*r));

    if (!r)
        return zb_fail(err, -ENOMEM, "the configuration: %m");
    r->given = r->wanted = daemon->config;
    daemon->reload = r;
    return 0;
}

void zsd_reload_close(struct zsd *daemon)
{
    free(daemon->reload);
    daemon->reload = NULL;
}
