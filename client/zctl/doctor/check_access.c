/*
 * check_access.c - the configuration, users and groups, and the socket.
 */
#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "client/zctl/doctor/check.h"

void doctor_config(const struct doctor_machine *m, struct doctor_finding *f)
{
    if (m->conf_path[0] == '\0') {
        doctor_found(f, DOCTOR_OK, "no file: a daemon would run with defaults");
    } else if (m->conf_err.code != 0) {
        doctor_found(f, DOCTOR_FAILED, "%.380s", m->conf_err.text);
        if (m->conf_err.code != -EINVAL)
            doctor_fix(f, "Name a file that this user can read, with --config.");
    } else if (m->answers.config[0] == '!') {
        doctor_found(f, DOCTOR_FAILED, "zshardd --check-config: %.360s", m->answers.config + 1);
    } else {
        doctor_found(f, DOCTOR_OK, "'%.300s'", m->conf_path);
    }
}

void doctor_user(const struct doctor_machine *m, struct doctor_finding *f)
{
    if (!m->service)
        doctor_found(f, DOCTOR_SKIPPED, "the service is not installed");
    else if (!m->daemon_user.known)
        doctor_found(f, DOCTOR_FAILED, "there is no user '%s', as whom the service runs",
                     m->daemon_user.name);
    else
        doctor_found(f, DOCTOR_OK, "the service runs as '%s'", m->daemon_user.name);
}

/* ---- groups */

/** Whether only membership in socket_group lets this user connect. */
static bool group_decides(const struct doctor_machine *m)
{
    return m->session.uid != 0 && m->session.uid != m->daemon_user.uid;
}

void doctor_socket_group(const struct doctor_machine *m, struct doctor_finding *f)
{
    const char *group = m->conf.socket_group;
    uint32_t gid;
    bool member;

    if (group[0] != '\0' && !doctor_group(m->root, group, &m->session, &gid, &member)) {
        doctor_found(f, DOCTOR_FAILED, "there is no group '%s' (socket_group): zshardd exits",
                     group);
        doctor_fix(f, "Create the group '%s' (systemd-sysusers creates zshard).", group);
    } else if (group[0] != '\0') {
        doctor_found(f, DOCTOR_OK, "members of '%s' may connect", group);
    } else if (!m->service || m->conf_err.code != 0) {
        doctor_found(f, DOCTOR_SKIPPED,
                     m->service ? "the configuration cannot be read"
                                : "the daemon serves the user who starts it");
    } else {
        doctor_found(f, group_decides(m) ? DOCTOR_FAILED : DOCTOR_ADVICE,
                     "socket_group is empty: only root and '%s' can connect", m->daemon_user.name);
    }
}

/** The part that both checks of a user's group share. False: they do not apply. */
static bool group_find(const struct doctor_machine *m, struct doctor_finding *f, uint32_t *ret_gid,
                       bool *ret_member)
{
    if (!group_decides(m))
        doctor_found(f, DOCTOR_SKIPPED, "this user may connect in any case");
    else if (m->conf.socket_group[0] == '\0' ||
             !doctor_group(m->root, m->conf.socket_group, &m->session, ret_gid, ret_member))
        doctor_found(f, DOCTOR_SKIPPED, "no socket_group");
    else
        return true;
    return false;
}

void doctor_group_member(const struct doctor_machine *m, struct doctor_finding *f)
{
    const char *group = m->conf.socket_group;
    uint32_t gid;
    bool member;

    if (!group_find(m, f, &gid, &member))
        return;
    if (member || doctor_person_in(&m->session, gid)) {
        doctor_found(f, DOCTOR_OK, "user '%s' is in group '%s'", m->session.name, group);
        return;
    }
    doctor_found(f, DOCTOR_FAILED, "user '%s' is not in group '%s', and cannot connect",
                 m->session.name, group);
    doctor_fix(f, "Run as root: usermod -aG %s %s. Then log in again.", group, m->session.name);
}

void doctor_group_session(const struct doctor_machine *m, struct doctor_finding *f)
{
    const char *group = m->conf.socket_group;
    uint32_t gid;
    bool member;

    if (!group_find(m, f, &gid, &member))
        return;
    if (doctor_person_in(&m->session, gid))
        doctor_found(f, DOCTOR_OK, "this session has group '%s'", group);
    else if (!member)
        doctor_found(f, DOCTOR_SKIPPED, "the user is not in group '%s'", group);
    else
        doctor_found(f, DOCTOR_FAILED,
                     "user '%s' is in group '%s', and this session began before that",
                     m->session.name, group);
}

/* ---- the socket */

/** The socket that clients of this session use, or NULL. */
static const struct doctor_socket *socket_first(const struct doctor_machine *m)
{
    for (size_t i = 0; i < m->nsockets; i++)
        if (m->sockets[i].rc == 0)
            return &m->sockets[i];
    return NULL;
}

static const struct doctor_socket *socket_denied(const struct doctor_machine *m)
{
    for (size_t i = 0; i < m->nsockets; i++)
        if (m->sockets[i].rc < 0 && m->sockets[i].rc != -ENOTCONN && m->sockets[i].rc != -EPROTO)
            return &m->sockets[i];
    return NULL;
}

/** Whether the daemon will serve a path at which clients of this session do not look. */
static bool socket_elsewhere(const struct doctor_machine *m)
{
    for (size_t i = 0; i < m->nsockets; i++)
        if (strcmp(m->sockets[i].path, m->conf.socket) == 0)
            return false;
    return m->conf.socket[0] != '\0';
}

/** Nobody answers. */
static void socket_none(const struct doctor_machine *m, struct doctor_finding *f)
{
    const struct doctor_socket *denied = socket_denied(m);
    char tried[2 * PATH_MAX] = "";

    if (denied) {
        if (denied->rc == -ETIMEDOUT)
            doctor_found(f, DOCTOR_FAILED, "the daemon at '%.200s' does not answer", denied->path);
        else
            doctor_found(f, DOCTOR_FAILED, "%s", denied->text);
        if (denied->rc == -EPERM)
            doctor_fix(f,
                       "Become a member of the daemon's socket_group: see the checks of groups.");
        else if (denied->rc == -EINVAL)
            doctor_fix(f, "Use a shorter path for the socket: at most 107 bytes.");
        return;
    }
    if (socket_elsewhere(m)) {
        doctor_found(f, DOCTOR_FAILED, "the daemon will serve '%.110s', where clients do not look",
                     m->conf.socket);
        doctor_fix(f, "Set ZSHARD_SOCKET=%.110s for its users, or leave the option socket empty.",
                   m->conf.socket);
        return;
    }
    for (size_t i = 0; i < m->nsockets; i++) {
        size_t len = strlen(tried);

        (void)snprintf(tried + len, sizeof(tried) - len, "%s'%.120s'", len > 0 ? ", " : "",
                       m->sockets[i].path);
    }
    doctor_found(f, DOCTOR_OK, "no daemon answers yet; tried: %.340s", tried);
}

void doctor_socket(const struct doctor_machine *m, struct doctor_finding *f)
{
    const struct doctor_socket *first = socket_first(m), *s;

    if (!first) {
        socket_none(m, f);
        return;
    }
    doctor_found(f, DOCTOR_OK, "%s answers at '%.200s'", first->text, first->path);
    if (m->nsockets > 0 && m->sockets[0].by_name && first != &m->sockets[0]) {
        doctor_found(f, DOCTOR_FAILED,
                     "no daemon answers at '%.120s', which was named; one does at '%.120s'",
                     m->sockets[0].path, first->path);
        doctor_fix(f, "Unset ZSHARD_SOCKET (or --socket), or set it to %.200s.", first->path);
        return;
    }
    for (s = first + 1; s < m->sockets + m->nsockets && !first->by_name; s++)
        if (s->rc == 0) {
            doctor_found(f, DOCTOR_ADVICE,
                         "daemons answer at '%.120s' and '%.120s': clients use the first",
                         first->path, s->path);
            doctor_fix(f, "End one of the daemons, or name the one to use with ZSHARD_SOCKET.");
            return;
        }
}

/** Whether the daemon's user may remove a socket: its directory decides. systemd makes that of the
 * service. */
static bool may_replace(const struct doctor_machine *m, const struct doctor_socket *s)
{
    const struct doctor_person *user = &m->daemon_user;
    const char *slash = strrchr(s->path, '/');
    char dir[PATH_MAX];
    struct stat st;

    (void)snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - s->path) + 1 : 1,
                   slash ? s->path : ".");
    if (m->service || user->uid == 0 || !tree_stat(m->root, dir, &st))
        return true;
    if ((st.st_mode & S_ISVTX) && st.st_uid != user->uid && s->uid != user->uid)
        return false;
    return doctor_person_may(user, &st, 03);
}

void doctor_socket_stale(const struct doctor_machine *m, struct doctor_finding *f)
{
    const struct doctor_socket *s;

    doctor_found(f, DOCTOR_OK, "none");
    for (s = m->sockets; s < m->sockets + m->nsockets; s++) {
        if (!s->file || s->rc != -ENOTCONN)
            continue;
        doctor_found(f, DOCTOR_ADVICE,
                     "nobody serves the socket '%.200s': its daemon was killed, or is ending",
                     s->path);
        if (may_replace(m, s))
            return;
        doctor_found(
            f, DOCTOR_FAILED,
            "nobody serves the socket '%.200s' of user %u, and user '%s' may not replace it",
            s->path, s->uid, m->daemon_user.name);
        doctor_fix(f, "Remove it: rm '%.200s'. Or name another one with --socket.", s->path);
        return;
    }
}

void doctor_version(const struct doctor_machine *m, struct doctor_finding *f)
{
    static const char ours[] = "zshardd " ZSHARD_VERSION;
    const struct doctor_socket *s;

    for (s = m->sockets; s < m->sockets + m->nsockets; s++)
        if (s->rc == -EPROTO) {
            doctor_found(f, DOCTOR_FAILED, "the daemon at '%.120s' is of another release: %.200s",
                         s->path, s->text);
            doctor_fix(f, "Install the same release of zctl, libzclient and zshardd, and restart "
                          "the daemon.");
            return;
        }
    if (!m->daemon.answers)
        doctor_found(f, DOCTOR_SKIPPED, "no daemon answers");
    else if (strcmp(m->daemon.server, ours) == 0)
        doctor_found(f, DOCTOR_OK, "%s", ours);
    else
        doctor_found(f, DOCTOR_ADVICE, "the daemon is '%s', and zctl is " ZSHARD_VERSION,
                     m->daemon.server);
}
