/*
 * server.c - listens, accepts, limits, and removes the socket at the end.
 *
 * CLAIMING THE PATH. Three checks are made in this order, and any of them fails the start:
 *
 *     1. the lock on PATH.lock: a daemon that starts, runs or is being killed holds it;
 *     2. what is at PATH: only a socket may be replaced;
 *     3. whether a process answers there (a program that does not know the lock).
 *
 * If all succeed, a socket at PATH was left by a dead daemon and is removed. The lock file is
 * removed at the end, while the lock is held. A process that gets the lock of a file which is not
 * at the path any more tries again. The daemon removes the socket only if it is still the one that
 * it made.
 */
#include "daemon/net/server.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/net/conn_priv.h"
#include "daemon/os/lock.h"
#include "proto/socket.h"

#define LISTEN_BACKLOG 128
#define SOCKET_NEW     ".new"

/* ---- the path */

/** Makes the directory of the default path (/run/zshard) if it is missing, so that root's daemon
 * needs no setup. */
static void path_make_directory(const char *path)
{
    char dir[sizeof(((struct sockaddr_un *)0)->sun_path)];
    char *slash;

    (void)snprintf(dir, sizeof(dir), "%s", path);
    slash = strrchr(dir, '/');
    if (slash && slash != dir) {
        *slash = '\0';
        (void)mkdir(dir, 0755); /* if it fails, so does opening the lock file */
    }
}

/** 0: the lock is held; 1: the file was removed meanwhile, try again; or a negative errno. */
static int path_lock_once(struct zsd_server *s, const char *path, struct zb_err *err)
{
    struct stat ours, there;
    int rc;

    s->lock_fd = open(s->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (s->lock_fd < 0 && errno == ENOENT)
        return zb_fail(err, -ENOENT,
                       "socket '%s': its directory does not exist; give --socket, or set "
                       "XDG_RUNTIME_DIR",
                       path);
    if (s->lock_fd < 0)
        return zb_fail(err, -errno, "socket '%s': lock file '%s': %m", path, s->lock_path);
    rc = zsd_lock(s->lock_fd);
    if (rc == -EBUSY)
        return zb_fail(err, -EADDRINUSE, "socket '%s' is in use by another daemon", path);
    if (rc < 0)
        return zb_fail(err, rc, "socket '%s': lock '%s': %m", path, s->lock_path);
    if (fstat(s->lock_fd, &ours) == 0 && stat(s->lock_path, &there) == 0 &&
        ours.st_dev == there.st_dev && ours.st_ino == there.st_ino)
        return 0;
    zb_close_fd(&s->lock_fd);
    return 1;
}

static int path_lock(struct zsd_server *s, const char *path, struct zb_err *err)
{
    int rc;

    (void)snprintf(s->lock_path, sizeof(s->lock_path), "%s.lock", path);
    do
        rc = path_lock_once(s, path, err);
    while (rc == 1);
    if (rc < 0)
        zb_close_fd(&s->lock_fd); /* another daemon's: do not remove the file */
    return rc;
}

/** Whether a process listens at the address. */
static bool path_answers(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool answers = false;

    if (fd >= 0)
        answers = connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 ||
                  errno == EAGAIN || errno == EACCES;
    zb_close_fd(&fd);
    return answers;
}

/** Removes a dead socket at the path; fails if anything else is there. */
static int path_clear(const struct sockaddr_un *address, struct zb_err *err)
{
    const char *path = address->sun_path;
    struct stat st;

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : zb_fail(err, -errno, "socket '%s': %m", path);
    if (!S_ISSOCK(st.st_mode))
        return zb_fail(err, -EEXIST,
                       "'%s' exists and is not a socket: remove it, or choose another path", path);
    if (path_answers(address))
        return zb_fail(err, -EADDRINUSE, "socket '%s' is in use by another program", path);
    if (unlink(path) < 0)
        return zb_fail(err, -errno, "cannot remove the unused socket '%s': %m", path);
    zb_log(ZB_LOG_INFO, "socket-replaced", "path=\"%s\" why=\"no process answered\"", path);
    return 0;
}

/** Gives the group access to the socket, which only its owner could use until now. */
static int path_group(const char *path, const char *name, struct zb_err *err)
{
    struct group *g;

    if (!*name)
        return 0;
    g = getgrnam(name);
    if (!g)
        return zb_fail(err, -EINVAL, "socket_group: there is no group '%s'", name);
    if (chown(path, (uid_t)-1, g->gr_gid) < 0)
        return zb_fail(err, -errno, "give socket '%s' to group '%s': %m", path, name);
    if (chmod(path, 0660) < 0)
        return zb_fail(err, -errno, "open socket '%s' to group '%s': %m", path, name);
    return 0;
}

int zsd_server_admins(struct zsd *daemon, const char *name, struct zb_err *err)
{
    const struct group *g = *name ? getgrnam(name) : NULL;

    if (*name && !g)
        return zb_fail(err, -EINVAL, "admin_group: there is no group '%s'", name);
    daemon->has_admin_gid = g != NULL;
    daemon->admin_gid = g ? g->gr_gid : 0;
    if (daemon->server)
        zb_list_each(pos, &daemon->server->links)
            zsd_link_rights(zb_container_of(pos, struct zsd_link, node));
    return 0;
}

/** Binds the socket to `at`, and lets its group use it. */
static int server_bind_at(struct zsd_server *s, const struct sockaddr_un *at, struct zb_err *err)
{
    const char *path = at->sun_path;
    struct stat st;

    (void)fchmod(s->listen_fd, 0600); /* so that bind() makes the file with this mode */
    if (bind(s->listen_fd, (const struct sockaddr *)at, sizeof(*at)) < 0)
        return zb_fail(err, -errno, "socket '%s': %m", path);
    if (lstat(path, &st) < 0)
        return zb_fail(err, -errno, "socket '%s': %m", path);
    s->dev = st.st_dev;
    s->ino = st.st_ino;
    return path_group(path, s->daemon->config.socket_group, err);
}

/** A socket of a group is made under another name, and renamed when the group may use it. Otherwise
 * a client that waits for the daemon could be denied access in between. */
static int server_bind(struct zsd_server *s, const struct sockaddr_un *address, struct zb_err *err)
{
    const char *path = address->sun_path;
    struct sockaddr_un at = *address;
    size_t len = strlen(path);
    bool beside = *s->daemon->config.socket_group &&
                  len + sizeof(SOCKET_NEW) <= sizeof(at.sun_path);
    int rc;

    s->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listen_fd < 0)
        return zb_fail(err, -errno, "a socket: %m");
    if (beside) {
        memcpy(at.sun_path + len, SOCKET_NEW, sizeof(SOCKET_NEW));
        (void)unlink(at.sun_path); /* of a daemon that was killed; the lock is ours */
    }
    rc = server_bind_at(s, &at, err);
    if (rc == 0 && beside && rename(at.sun_path, path) < 0)
        rc = zb_fail(err, -errno, "rename socket '%s' to '%s': %m", at.sun_path, path);
    if (rc < 0 && s->ino != 0)
        (void)unlink(at.sun_path);
    s->bound = rc == 0;
    return rc;
}

/* ---- accepting */

static void server_on_poll(uv_poll_t *poll, int status, int events);

static void server_listen(struct zsd_server *s)
{
    int rc = uv_poll_start(&s->poll, UV_READABLE, server_on_poll);

    assert(rc == 0); /* cannot fail: it only records the events for the next poll */
}

static void server_on_pause(uv_timer_t *timer)
{
    server_listen(timer->data);
}

/** Stops accepting for a while. Clients wait in the kernel's queue. */
static void server_stop(struct zsd_server *s, unsigned ms)
{
    (void)uv_poll_stop(&s->poll);
    (void)uv_timer_start(&s->pause, server_on_pause, ms, 0);
}

/** After a failure. */
static void server_pause(struct zsd_server *s, int rc)
{
    if (!s->pausing)
        zb_log(ZB_LOG_WARN, "accept-paused", "clients=%u why=\"%s\"", s->daemon->clients,
               strerror(-rc));
    s->pausing = true;
    server_stop(s, ZSD_ACCEPT_PAUSE_MS);
}

/** Accepts one client. 0; -EAGAIN: none waits; or another negative errno. */
static int server_accept(struct zsd_server *s)
{
    int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), rc;
    bool refused = true;

    if (fd < 0)
        return errno == ECONNABORTED || errno == EINTR ? 0 : -errno;
    rc = zsd_link_new(s, fd, &refused);
    if (refused)
        s->daemon->stats.clients_refused++;
    else
        s->daemon->stats.clients_accepted++;
    if (s->nrefused > ZSD_REFUSED_MAX) /* the oldest makes room for the newest */
        zsd_link_end(zb_container_of(s->refused.next, struct zsd_link, node));
    return rc;
}

static void server_on_poll(uv_poll_t *poll, int status, int events)
{
    struct zsd_server *s = poll->data;
    uint64_t begin_ns = zb_now_ns();
    int rc = 0;

    (void)events;
    assert(status == 0); /* our own listening socket */
    if (zsd_accept_must_rest(s)) {
        server_stop(s, ZSD_PACE_MS);
        return;
    }
    for (unsigned i = 0; i == 0 || (i < ZSD_ACCEPT_MAX && rc == 0 && zsd_server_has_time(s)); i++)
        rc = server_accept(s);
    zsd_pace_charge(&s->accept_ready_ns, begin_ns);
    if (rc < 0 && rc != -EAGAIN)
        server_pause(s, rc);
    else
        s->pausing = false;
}

/* ---- up and down */

static int server_watch(struct zsd_server *s, struct zb_err *err)
{
    int rc;

    if (listen(s->listen_fd, LISTEN_BACKLOG) < 0)
        return zb_fail(err, -errno, "listen: %m");
    rc = uv_poll_init(s->uv, &s->poll, s->listen_fd);
    if (rc < 0)
        return zb_fail(err, rc, "watch the socket: %m");
    (void)uv_timer_init(s->uv, &s->pause); /* these cannot fail */
    (void)uv_timer_init(s->uv, &s->hello);
    (void)uv_timer_init(s->uv, &s->later);
    (void)uv_timer_init(s->uv, &s->trim);
    (void)uv_timer_init(s->uv, &s->pace);
    s->handles = 6;
    s->poll.data = s->pause.data = s->hello.data = s->later.data = s->trim.data = s->pace.data = s;
    server_listen(s);
    return 0;
}

static int server_build(struct zsd_server *s, struct zb_err *err)
{
    struct zsd_config *config = &s->daemon->config;
    const char *given = config->socket[0] ? config->socket : NULL;
    struct sockaddr_un address;
    int rc = zp_socket_address(given, &address, err);

    if (rc < 0)
        return rc;
    (void)snprintf(config->socket, sizeof(config->socket), "%s", address.sun_path);
    if (!given)
        path_make_directory(address.sun_path);
    rc = path_lock(s, address.sun_path, err);
    if (rc == 0)
        rc = path_clear(&address, err);
    if (rc == 0)
        rc = server_bind(s, &address, err);
    if (rc == 0)
        rc = zsd_server_admins(s->daemon, config->admin_group, err);
    if (rc < 0)
        return rc;
    if (zp_arena_new(&s->arena) < 0)
        return zb_fail(err, -ENOMEM, "memory for messages: %m");
    return server_watch(s, err);
}

static void server_free(struct zsd_server *s)
{
    zp_arena_free(s->arena);
    free(s);
}

static void server_on_closed(uv_handle_t *handle)
{
    struct zsd_server *s = handle->data;

    if (--s->handles == 0)
        server_free(s);
}

int zsd_server_open(struct zsd *daemon, struct uv_loop_s *uv, const struct zsd_conn_ops *ops,
                    struct zb_err *err)
{
    struct zsd_server *s = calloc(1, sizeof(*s));
    int rc;

    if (!s)
        return zb_fail(err, -ENOMEM, "the server: %m");
    s->daemon = daemon;
    s->uv = uv;
    s->ops = ops;
    s->most_ns = ZSD_NET_NS;
    s->lock_fd = s->listen_fd = -1;
    zb_list_init(&s->links);
    zb_list_init(&s->refused);
    zb_list_init(&s->todo);
    zb_list_init(&s->hungry);
    zb_list_init(&s->silent);
    zb_list_init(&s->waiting);
    zb_list_init(&s->resting);
    daemon->server = s;
    rc = server_build(s, err);
    if (rc < 0)
        zsd_server_close(daemon);
    return rc;
}

/** Removes the socket and the lock file, if they are ours. */
static void server_leave(struct zsd_server *s)
{
    const char *path = s->daemon->config.socket;
    struct stat st;

    if (s->bound && lstat(path, &st) == 0 && st.st_dev == s->dev && st.st_ino == s->ino)
        (void)unlink(path);
    s->bound = false;
    if (s->lock_fd >= 0)
        (void)unlink(s->lock_path); /* while the lock is held: see the opening comment */
    zb_close_fd(&s->lock_fd);
}

void zsd_server_drain(struct zsd *daemon)
{
    struct zsd_server *s = daemon->server;

    if (s->handles > 0) {
        (void)uv_poll_stop(&s->poll);
        (void)uv_timer_stop(&s->pause);
    }
    server_leave(s);
    zb_close_fd(&s->listen_fd);
}

static void server_end_links(struct zb_list *links)
{
    while (!zb_list_empty(links))
        zsd_link_end(zb_container_of(links->next, struct zsd_link, node));
}

void zsd_server_close(struct zsd *daemon)
{
    struct zsd_server *s = daemon->server;

    if (!s)
        return;
    zsd_server_drain(daemon);
    server_end_links(&s->links);
    server_end_links(&s->refused);
    daemon->server = NULL;
    if (s->handles == 0) {
        server_free(s);
        return;
    }
    uv_close((uv_handle_t *)&s->poll, server_on_closed);
    uv_close((uv_handle_t *)&s->pause, server_on_closed);
    uv_close((uv_handle_t *)&s->hello, server_on_closed);
    uv_close((uv_handle_t *)&s->later, server_on_closed);
    uv_close((uv_handle_t *)&s->trim, server_on_closed);
    uv_close((uv_handle_t *)&s->pace, server_on_closed);
}

/* ---- the turn */

bool zsd_server_turn(struct zsd *daemon)
{
    struct zsd_server *s = daemon->server;
    struct zb_list now, *node;
    bool work = false, time = true;

    if (!s)
        return false;
    zb_list_init(&now); /* links that are touched from here on wait for the next turn */
    zb_list_splice_front(&s->todo, &now);
    zb_list_splice_front(&s->hungry, &now);
    s->end_ns = zb_now_ns() + s->most_ns;
    memset(s->frames, 0, sizeof(s->frames));
    while (time && (node = zb_list_pop_front(&now)) != NULL) {
        work |= zsd_link_turn(zb_container_of(node, struct zsd_link, todo_node));
        time = zsd_server_has_time(s);
    }
    zb_list_splice_front(&now, &s->hungry);
    s->end_ns = 0;
    memset(s->frames, 0, sizeof(s->frames));
    return work || !zb_list_empty(&s->todo) || !zb_list_empty(&s->hungry);
}

void zsd_server_flush(struct zsd *daemon)
{
    zb_list_each(node, &daemon->server->links)(void)
        zp_stream_write(zb_container_of(node, struct zsd_link, node)->stream);
}

size_t zsd_server_unsent(const struct zsd *daemon)
{
    size_t bytes = 0;

    zb_list_each(node, &daemon->server->links)
        bytes += zp_stream_pending(zb_container_of(node, struct zsd_link, node)->stream);
    return bytes;
}
