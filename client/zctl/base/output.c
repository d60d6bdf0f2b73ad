/*
 * output.c - the options that say how rows are printed: -o, -p, -H, --json.
 */
#include <errno.h>
#include <string.h>

#include "base/near.h"
#include "client/zctl/base/zctl.h"

/** Fails with a word that is not a column of cmd: names the one that was probably meant, or all. */
static int column_unknown(struct zctl *z, const struct zctl_cmd *cmd, const char *name, size_t len)
{
    struct zb_near near = zb_near(name, len);
    char all[sizeof(z->err.text)] = "";

    for (size_t i = 0; i < cmd->ncolumns; i++) {
        size_t at = strlen(all);

        zb_near_try(&near, cmd->columns[i].key);
        (void)snprintf(all + at, sizeof(all) - at, "%s%s", at > 0 ? ", " : "", cmd->columns[i].key);
    }
    if (near.found)
        return zb_fail(&z->err, -EINVAL, "%s has no column '%.*s'; did you mean '%s'?", cmd->name,
                       (int)len, name, near.found);
    return zb_fail(&z->err, -EINVAL, "%s has no column '%.*s'; its columns: %s", cmd->name,
                   (int)len, name, all);
}

static int columns_check(struct zctl *z, const struct zctl_cmd *cmd, const char *names)
{
    size_t n = 0;

    if (!cmd->columns)
        return zb_fail(&z->err, -EINVAL, "--output must be table or json for %s, not '%s'",
                       cmd->name, names);
    for (const char *at = names; *at; n++) {
        size_t len = strcspn(at, ",");

        if (!zctl_column(cmd->columns, cmd->ncolumns, at, len))
            return column_unknown(z, cmd, at, len);
        at += len + (at[len] == ',');
    }
    return n <= ZCTL_COLUMNS_MAX
               ? 0
               : zb_fail(&z->err, -EINVAL, "--output: at most %u columns", ZCTL_COLUMNS_MAX);
}

int zctl_output(struct zctl *z, const struct zctl_cmd *cmd, const struct zctl_output *o)
{
    bool table = strcmp(o->output, "table") == 0, list = strcmp(o->output, "list") == 0;
    bool columns = !table && !list && strcmp(o->output, "json") != 0;

    z->json = o->json || strcmp(o->output, "json") == 0;
    z->style = (struct zctl_style){ .list = list, .bare = o->bare, .exact = o->exact };
    if (columns)
        z->style.columns = o->output;
    if (columns && o->json)
        return zb_fail(&z->err, -EINVAL, "--json has all columns: leave out --output %s",
                       o->output);
    if (cmd && !cmd->columns && (list || o->bare || o->exact))
        return zb_fail(&z->err, -EINVAL, "%s is for commands that print rows: %s does not",
                       list       ? "--output list"
                       : o->exact ? "-p"
                                  : "-H",
                       cmd->name);
    return cmd && columns ? columns_check(z, cmd, o->output) : 0;
}
