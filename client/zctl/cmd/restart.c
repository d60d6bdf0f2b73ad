/*
 * restart.c - zctl restart: asks the daemon for a planned restart, and waits for the next one.
 */
#include <errno.h>

#include "base/util.h"
#include "client/zctl/cmd/cmd.h"

#define POLL_MS 1000

struct restart_options {
    bool dry_run;
};

static const struct zb_opt restart_options[] = {
    { "dry-run", ZB_OPT_FLAG, ZB_OPT_AT(struct restart_options, dry_run),
      .help = "only show which jobs would continue" },
    { 0 },
};

/* Waits until the daemon that was asked has gone, and the next one answers: --wait for each. */
static int restart_await(struct zctl *z)
{
    uint64_t until_ns = zb_now_ns() + (uint64_t)z->wait_ms * 1000000;
    int rc = 0;

    while (rc >= 0 && zb_now_ns() < until_ns)
        rc = zc_poll(z->client, POLL_MS);
    if (rc >= 0)
        return zb_fail(&z->err, -ETIMEDOUT,
                       "the daemon has not ended after %u s: it still waits "
                       "for a step, or commits (zctl's --wait is over)",
                       z->wait_ms / 1000);
    if (rc != -ENOTCONN)
        return zctl_failed(z, rc);
    zc_close(z->client);
    z->client = NULL;
    return zctl_connect(z);
}

static const struct zctl_column columns[] = {
    { "job", ZCTL_TEXT, offsetof(struct zc_restart_row, job), ZCTL_SHOWN, NULL, 0 },
    { "uid", ZCTL_USER, offsetof(struct zc_restart_row, uid), ZCTL_SHOWN, "USER", 0 },
    { "attached", ZCTL_U32, offsetof(struct zc_restart_row, attached), ZCTL_SHOWN, "RANKS", 0 },
    { "fate", ZCTL_TEXT, offsetof(struct zc_restart_row, fate), ZCTL_SHOWN, NULL, 0 },
    { "why", ZCTL_TEXT, offsetof(struct zc_restart_row, why), ZCTL_SHOWN, NULL, 0 },
};

static int restart(struct zctl *z, int argc, char **argv)
{
    const struct restart_options *o = z->opts.values;
    struct zc_restart_row *rows = NULL;
    size_t n = 0;
    int rc = zctl_connect(z);

    (void)argc;
    (void)argv;
    if (rc == 0)
        rc = zctl_failed_new(z, zc_restart_wait(z->client, !o->dry_run, &rows, &n));
    if (rc == 0)
        rc = zctl_print(z, columns, ZB_COUNT(columns), rows, n, sizeof(*rows));
    if (rc == 0 && !o->dry_run && z->wait_ms > 0)
        rc = restart_await(z);
    zc_rows_free(rows);
    return rc;
}

const struct zctl_cmd zctl_restart = {
    .name = "restart",
    .args = "",
    .help = "restart the daemon after the jobs' next step; shows which jobs continue",
    .argc_min = 0,
    .argc_max = 0,
    .run = restart,
    .options = restart_options,
    .bytes = sizeof(struct restart_options),
    ZCTL_COLUMNS(columns),
};
