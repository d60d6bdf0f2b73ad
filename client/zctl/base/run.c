/*
 * run.c - the first steps of a command: looking it up, parsing JOB@SNAPSHOT, connecting.
 */
#include <errno.h>
#include <string.h>

#include "client/zctl/base/zctl.h"

const struct zctl_cmd *zctl_command(const struct zctl *z, const char *name)
{
    for (size_t i = 0; i < z->ncmds; i++)
        if (strcmp(z->cmds[i]->name, name) == 0)
            return z->cmds[i];
    return NULL;
}

int zctl_saved(struct zctl *z, const char *word, struct zctl_saved *ret)
{
    const char *at = strchr(word, '@');
    size_t job = at ? (size_t)(at - word) : strlen(word), snapshot = at ? strlen(at + 1) : 0;

    if (job < 1 || job > ZC_NAME_MAX || snapshot > ZC_NAME_MAX || (at && snapshot < 1))
        return zb_fail(&z->err, -EINVAL, "'%s' is neither JOB nor JOB@SNAPSHOT", word);
    *ret = (struct zctl_saved){ 0 };
    memcpy(ret->job, word, job);
    if (at)
        memcpy(ret->snapshot, at + 1, snapshot);
    return 0;
}

int zctl_failed(struct zctl *z, int rc)
{
    const char *why = z->client ? zc_error(z->client) : "";

    if (rc >= 0)
        return rc;
    return zb_fail(&z->err, rc, "%s", *why ? why : zc_strerror(rc));
}

int zctl_failed_new(struct zctl *z, int rc)
{
    if (rc != -ENOSYS)
        return zctl_failed(z, rc);
    return zb_fail(&z->err, rc,
                   "%s is older than this zctl and does not know the request: update it",
                   zc_server(z->client)->server);
}

int zctl_connect(struct zctl *z)
{
    const struct zc_options options = { .socket = z->socket,
                                        .program = "zctl",
                                        .connect_timeout_ms = z->wait_ms };
    int rc = zc_open(&z->client, &options);

    if (rc == -ENOTCONN)
        return zb_fail(&z->err, rc,
                       "%s. Is zshardd running? --socket or $ZSHARD_SOCKET names its socket",
                       zc_error(z->client));
    return zctl_failed(z, rc);
}
