/*
 * run.c - the first steps of a command: looking it up, parsing JOB@SNAPSHOT, connecting.
 */
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/near.h"
#include "client/zctl/base/zctl.h"

const struct zctl_cmd *zctl_command(const struct zctl *z, const char *name)
{
    for (size_t i = 0; i < z->ncmds; i++)
        if (strcmp(z->cmds[i]->name, name) == 0)
            return z->cmds[i];
    return NULL;
}

int zctl_unknown(struct zctl *z, const char *name)
{
    struct zb_near near = zb_near(name, strlen(name));

    for (size_t i = 0; i < z->ncmds; i++)
        zb_near_try(&near, z->cmds[i]->name);
    z->err = (struct zb_err){ 0 };
    if (near.found)
        return zb_fail(&z->err, -EINVAL, "unknown command '%s'; did you mean '%s'?", name,
                       near.found);
    return zb_fail(&z->err, -EINVAL, "unknown command '%s'; try: zctl help", name);
}

int zctl_uid(struct zctl *z, const char *word, uint32_t *ret)
{
    const struct passwd *p;
    unsigned long long n;
    char *end;

    if (*word >= '0' && *word <= '9') {
        n = strtoull(word, &end, 10);
        if (*end || n >= UINT32_MAX)
            return zb_fail(&z->err, -EINVAL, "'%s' is not a uid", word);
        *ret = (uint32_t)n;
        return 0;
    }
    p = getpwnam(word);
    if (!p)
        return zb_fail(&z->err, -EINVAL, "there is no user '%s'", word);
    *ret = p->pw_uid;
    return 0;
}

struct zctl_user zctl_user(uint32_t uid)
{
    const struct passwd *p = getpwuid(uid);
    struct zctl_user ret;

    (void)snprintf(ret.name, sizeof(ret.name), "%u", uid);
    if (p && strlen(p->pw_name) < sizeof(ret.name))
        (void)snprintf(ret.name, sizeof(ret.name), "%s", p->pw_name);
    return ret;
}

const char *zctl_job(struct zctl *z, const char *word)
{
    const char *slash = strchr(word, '/');
    char user[33];
    uint32_t uid;

    if (!slash)
        return word;
    if (slash == word || (size_t)(slash - word) >= sizeof(user) ||
        strlen(slash + 1) > ZC_NAME_MAX) {
        (void)zb_fail(&z->err, -EINVAL, "'%s' is neither JOB nor USER/JOB", word);
        return NULL;
    }
    (void)snprintf(user, sizeof(user), "%.*s", (int)(slash - word), word);
    if (zctl_uid(z, user, &uid) < 0)
        return NULL;
    (void)snprintf(z->job, sizeof(z->job), "%u/%s", uid, slash + 1);
    return z->job;
}

int zctl_saved(struct zctl *z, const char *word, struct zctl_saved *ret)
{
    const char *at = strchr(word, '@'), *name;
    size_t job = at ? (size_t)(at - word) : strlen(word), snapshot = at ? strlen(at + 1) : 0;
    char text[ZC_NAME_MAX + 34];

    if (job < 1 || job >= sizeof(text) || snapshot > ZC_NAME_MAX || (at && snapshot < 1))
        return zb_fail(&z->err, -EINVAL, "'%s' is neither JOB nor JOB@SNAPSHOT", word);
    *ret = (struct zctl_saved){ 0 };
    (void)snprintf(text, sizeof(text), "%.*s", (int)job, word);
    name = zctl_job(z, text);
    if (!name)
        return -EINVAL;
    if (strlen(name) > (name == text ? ZC_NAME_MAX : ZCTL_JOB_MAX))
        return zb_fail(&z->err, -EINVAL, "'%s' is neither JOB nor JOB@SNAPSHOT", word);
    (void)snprintf(ret->job, sizeof(ret->job), "%s", name);
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
