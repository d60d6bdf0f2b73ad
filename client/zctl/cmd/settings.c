/*
 * settings.c - zctl config show: the options of the running daemon; zctl log-level.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "client/zctl/cmd/cmd.h"

struct setting_row {
    struct zc_setting s;
    char source[16];
};

static const struct zctl_column columns[] = {
    { "option", ZCTL_TEXT, offsetof(struct setting_row, s.name), ZCTL_SHOWN, NULL, 0 },
    { "value", ZCTL_TEXT, offsetof(struct setting_row, s.value), ZCTL_SHOWN, NULL, 0 },
    { "source", ZCTL_TEXT, offsetof(struct setting_row, source), ZCTL_SHOWN, NULL, 0 },
    { "pending", ZCTL_BOOL, offsetof(struct setting_row, s.pending), ZCTL_JSON_ONLY, NULL, 0 },
    { "restart", ZCTL_TEXT, offsetof(struct setting_row, s.restart), ZCTL_SHOWN, "AFTER RESTART",
      0 },
};

static struct setting_row row_of(const struct zc_setting *s)
{
    static const char *const sources[] = { [ZC_FROM_DEFAULT] = "default",
                                           [ZC_FROM_FILE] = "file",
                                           [ZC_FROM_LINE] = "command line",
                                           [ZC_FROM_RUN] = "run time" };
    struct setting_row r = { .s = *s };

    (void)snprintf(r.source, sizeof(r.source), "%s",
                   (size_t)s->source < ZB_COUNT(sources) ? sources[s->source] : "unknown");
    return r;
}

int zctl_settings(struct zctl *z)
{
    struct zc_setting *from = NULL;
    struct setting_row *rows = NULL;
    size_t n = 0;
    int rc = zctl_connect(z);

    if (rc == 0)
        rc = zctl_failed_new(z, zc_settings_wait(z->client, &from, &n));
    if (rc == 0 && !(rows = calloc(n + 1, sizeof(*rows))))
        rc = zb_fail(&z->err, -ENOMEM, "%zu rows: %m", n);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rows[i] = row_of(&from[i]);
    if (rc == 0)
        rc = zctl_print(z, columns, ZB_COUNT(columns), rows, n, sizeof(*rows));
    free(rows);
    zc_rows_free(from);
    return rc;
}

static const struct zctl_column level_columns[] = {
    { "level", ZCTL_TEXT, offsetof(struct zc_log_level, name), ZCTL_SHOWN, NULL, 0 },
};

static int log_level(struct zctl *z, int argc, char **argv)
{
    struct zc_log_level level;
    int rc = zctl_connect(z);

    if (rc == 0)
        rc = zctl_failed_new(z, zc_log_level_wait(z->client, argc > 0 ? argv[0] : NULL, &level));
    return rc < 0 ? rc : zctl_print(z, level_columns, 1, &level, 1, sizeof(level));
}

const struct zctl_cmd zctl_log_level = {
    .name = "log-level",
    .args = "[LEVEL]",
    .help = "show or set what the daemon logs: error, warn, info or debug",
    .argc_min = 0,
    .argc_max = 1,
    .run = log_level,
    ZCTL_COLUMNS(level_columns),
};
