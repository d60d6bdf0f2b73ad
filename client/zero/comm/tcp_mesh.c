/*
 * tcp_mesh.c - connects the ranks of a run, which find each other by torchrun's environment:
 *
 *     RANK, WORLD_SIZE          this rank, and the number of ranks
 *     MASTER_ADDR, MASTER_PORT  where rank 0 is; the port belongs to torchrun's own store, so the
 *                               ranks meet at the next one
 *     ZSHARD_PORT               or at this one
 *     ZSHARD_MEET_SECONDS       how long ranks wait for each other (120)
 *     TORCHELASTIC_RUN_ID       identifies the run: ranks of other runs are turned away
 *
 * MODEL. Rank 0 listens at the meeting point. Every other rank listens at a port of its own,
 * connects to rank 0 and sends that port (struct hello). When all have come, rank 0 sends each the
 * list of addresses (struct welcome and an address per rank), or the reason why it gives up. Then
 * each rank connects to the ranks before it, and accepts connections from the ranks after it. Its
 * connection to rank 0 stays the one of the hello.
 *
 * TRUST. Any process that reaches the ports can connect. A connection that does not begin with this
 * run's hello is closed, after at most HELLO_S. Between other ranks the hello must contain the
 * number that rank 0 has drawn for this meeting. This prevents accidents only: traffic is neither
 * encrypted nor authenticated, as with MPI and NCCL. Use a network of the trainers' own.
 *
 * BYTES are sent as they are in memory. The magic number detects a machine with the other byte
 * order.
 */
#include "client/zero/comm/tcp_mesh.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/util.h"
#include "client/zero/comm/tcp_socket.h"

#define MESH_MAGIC UINT32_C(0x7a733154)
#define MEET_S     120 /* a launcher starts nodes one after the other */
#define HELLO_S    10  /* how long a new connection may take to send its hello */
#define WORLD_MAX  16384
#define SECONDS(n) ((uint64_t)(n)*UINT64_C(1000000000))

struct hello {
    uint32_t magic, run; /* a checksum of the run's name */
    uint32_t rank, world;
    uint64_t token; /* between two ranks: the meeting's; 0 towards rank 0 */
    uint32_t port;  /* where this rank listens; towards rank 0 */
    uint32_t zero;
};

struct welcome {
    uint32_t magic;
    int32_t rc; /* 0, or why there is no meeting */
    uint64_t token;
    char text[480]; /* as struct zb_err */
};

struct env {
    uint32_t rank, world, run, port;
    uint64_t seconds;
    const char *address;
};

struct meeting {
    const struct env *env;
    uint64_t deadline_ns;
    union zc_tcp_socket_address master; /* as this rank reaches it */
    uint64_t token;
    int listener;
    int refused; /* of rank 0: the connection whose hello ended the meeting; it is told the reason,
                    too */
    struct zc_tcp_address *addresses; /* [world] */
    struct zc_tcp_mesh *mesh;
    struct zb_err *err;
};

/* ---- the environment */

bool zc_tcp_launched(void)
{
    static const char *const marks[] = { "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT" };

    for (size_t i = 0; i < ZB_COUNT(marks); i++)
        if (!getenv(marks[i]))
            return false;
    return true;
}

static int env_number(const char *name, uint64_t min, uint64_t max, uint64_t *ret,
                      struct zb_err *err)
{
    const char *text = getenv(name);
    char *end;

    if (!text || !*text)
        return zb_fail(err, -EINVAL, "%s is not set: torchrun sets it", name);
    errno = 0;
    *ret = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || *ret < min || *ret > max)
        return zb_fail(err, -EINVAL, "%s is '%s': must be a number from %llu to %llu", name, text,
                       (unsigned long long)min, (unsigned long long)max);
    return 0;
}

static int env_read(struct env *env, struct zb_err *err)
{
    const char *run = getenv("TORCHELASTIC_RUN_ID");
    uint64_t rank, world, port, seconds = MEET_S;
    int rc = env_number("WORLD_SIZE", 1, WORLD_MAX, &world, err);

    if (rc == 0)
        rc = env_number("RANK", 0, world - 1, &rank, err);
    if (rc == 0 && getenv("ZSHARD_PORT"))
        rc = env_number("ZSHARD_PORT", 1, 65535, &port, err);
    else if (rc == 0 && (rc = env_number("MASTER_PORT", 1, 65534, &port, err)) == 0)
        port++;
    if (rc == 0 && getenv("ZSHARD_MEET_SECONDS"))
        rc = env_number("ZSHARD_MEET_SECONDS", 1, 86400, &seconds, err);
    if (rc < 0)
        return rc;
    env->address = getenv("MASTER_ADDR");
    if (!env->address || !*env->address)
        return zb_fail(err, -EINVAL, "MASTER_ADDR is not set: torchrun sets it");
    env->run = run ? zb_crc32c(0, run, strlen(run)) : 0;
    env->rank = (uint32_t)rank;
    env->world = (uint32_t)world;
    env->port = (uint32_t)port;
    env->seconds = seconds;
    return 0;
}

/* ---- connections */

static bool hello_fits(const struct meeting *m, const struct hello *h)
{
    return h->magic == MESH_MAGIC && h->run == m->env->run && h->token == m->token;
}

/*
 * Takes one connection whose hello belongs to this run; others are closed.
 *
 * @return the descriptor, or -ETIMEDOUT
 */
static int accept_one(struct meeting *m, struct hello *h, union zc_tcp_socket_address *from)
{
    for (;;) {
        socklen_t bytes = sizeof(*from);
        uint64_t until;
        int fd, rc = zc_tcp_ready(m->listener, POLLIN, m->deadline_ns);

        if (rc < 0)
            return rc;
        fd = accept4(m->listener, &from->any, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) { /* the peer closed it, or descriptors are short */
            zc_tcp_nap();
            continue;
        }
        until = zb_min_u64(m->deadline_ns, zb_now_ns() + SECONDS(HELLO_S));
        if (zc_tcp_move(fd, h, sizeof(*h), false, until) == 0 && hello_fits(m, h))
            return fd;
        (void)close(fd);
    }
}

/* Lists the missing ranks, for an error message: "1, 2 and 5 more". */
static void missing(const struct zc_tcp_mesh *mesh, char *out, size_t bytes)
{
    uint32_t shown = 0, more = 0;
    size_t at = 0;

    out[0] = 0;
    for (uint32_t r = 0; r < mesh->world; r++) {
        if (r == mesh->rank || mesh->fds[r] >= 0)
            continue;
        if (shown < 8) {
            at += (size_t)snprintf(out + at, bytes - at, "%s%u", shown ? ", " : "", r);
            shown++;
        } else {
            more++;
        }
    }
    if (more)
        (void)snprintf(out + at, bytes - at, " and %u more", more);
}

static int not_all_came(struct meeting *m, int rc)
{
    char who[128];

    missing(m->mesh, who, sizeof(who));
    return zb_fail(m->err, rc == -ETIMEDOUT ? -EOWNERDEAD : rc,
                   "rank %u: after %llu s these ranks are missing: %s", m->env->rank,
                   (unsigned long long)m->env->seconds, who);
}

static void peer_take(struct meeting *m, uint32_t rank, int fd,
                      const union zc_tcp_socket_address *at)
{
    zc_tcp_settle(fd);
    m->mesh->fds[rank] = fd;
    zc_tcp_address_name(at, m->mesh->names[rank]);
}

/* ---- rank 0 */

static int host_listen(struct meeting *m)
{
    uint32_t port;
    char name[ZC_TCP_NAME_BYTES];
    int fd = zc_tcp_listen(m->master.any.sa_family, &m->master, &port);

    if (fd == -EADDRNOTAVAIL) { /* the address is not one of this machine's own */
        union zc_tcp_socket_address any = { .any.sa_family = m->master.any.sa_family };

        zc_tcp_address_set_port(&any, m->env->port);
        fd = zc_tcp_listen(any.any.sa_family, &any, &port);
    }
    m->listener = fd;
    zc_tcp_address_name(&m->master, name);
    return fd < 0 ? zb_fail(m->err, fd, "rank 0 cannot listen at %s: %s", name, strerror(-fd)) : 0;
}

static int host_gather(struct meeting *m)
{
    for (uint32_t left = m->env->world - 1; left > 0;) {
        union zc_tcp_socket_address from;
        struct hello h;
        int fd = accept_one(m, &h, &from);

        if (fd < 0)
            return not_all_came(m, fd);
        if (h.world != m->env->world || h.rank == 0 || h.rank >= m->env->world ||
            m->mesh->fds[h.rank] >= 0) {
            m->refused = fd;
            return h.world != m->env->world
                       ? zb_fail(m->err, -EPROTO, "rank %u expects %u ranks, rank 0 expects %u",
                                 h.rank, h.world, m->env->world)
                       : zb_fail(m->err, -EPROTO, "two processes claim to be rank %u", h.rank);
        }
        zc_tcp_address_pack(&from, h.port, &m->addresses[h.rank]);
        peer_take(m, h.rank, fd, &from);
        left--;
    }
    return 0;
}

/* Sends the result of the meeting to all connected ranks. */
static int host_answer(struct meeting *m, int rc)
{
    struct welcome w = { .magic = MESH_MAGIC, .rc = rc };
    size_t bytes = sizeof(struct zc_tcp_address) * m->env->world;
    uint64_t until = zb_max_u64(m->deadline_ns, zb_now_ns() + SECONDS(HELLO_S));

    if (rc == 0 && getrandom(&m->token, sizeof(m->token), 0) != sizeof(m->token))
        rc = w.rc = zb_fail(m->err, -EIO, "no random numbers are available");
    w.token = m->token;
    if (rc < 0)
        (void)snprintf(w.text, sizeof(w.text), "%s", m->err->text);
    if (m->refused >= 0)
        (void)zc_tcp_move(m->refused, &w, sizeof(w), true, until);
    for (uint32_t r = 1; r < m->env->world; r++) {
        int told = m->mesh->fds[r] < 0 ? 0
                                       : zc_tcp_move(m->mesh->fds[r], &w, sizeof(w), true, until);

        if (told == 0 && rc == 0)
            told = zc_tcp_move(m->mesh->fds[r], m->addresses, bytes, true, until);
        if (told < 0 && rc == 0)
            rc = zb_fail(m->err, told, "rank %u (%s) left: %s", r, m->mesh->names[r],
                         strerror(-told));
    }
    return rc;
}

static int host_meet(struct meeting *m)
{
    int rc = host_listen(m);

    return rc < 0 ? rc : host_answer(m, host_gather(m));
}

/* ---- the others */

static struct hello hello_of(const struct meeting *m, uint32_t port)
{
    return (struct hello){ .magic = MESH_MAGIC,
                           .run = m->env->run,
                           .rank = m->env->rank,
                           .world = m->env->world,
                           .token = m->token,
                           .port = port };
}

/* Sends hello to rank 0 and receives the list of addresses. */
static int guest_meet(struct meeting *m)
{
    size_t bytes = sizeof(struct zc_tcp_address) * m->env->world;
    char name[ZC_TCP_NAME_BYTES];
    struct welcome w = { 0 };
    struct hello h;
    uint32_t port;
    int rc, fd = zc_tcp_connect(&m->master, m->deadline_ns);

    zc_tcp_address_name(&m->master, name);
    if (fd < 0)
        return zb_fail(m->err, fd, "rank 0 is not at %s: %s", name, strerror(-fd));
    peer_take(m, 0, fd, &m->master);
    m->listener = zc_tcp_listen(m->master.any.sa_family, NULL, &port);
    if (m->listener < 0)
        return zb_fail(m->err, m->listener, "cannot listen: %s", strerror(-m->listener));
    h = hello_of(m, port);
    rc = zc_tcp_move(fd, &h, sizeof(h), true, m->deadline_ns);
    if (rc == 0) /* rank 0 gives up first, and sends the reason */
        rc = zc_tcp_move(fd, &w, sizeof(w), false, m->deadline_ns + SECONDS(HELLO_S));
    if (rc == 0 && w.magic != MESH_MAGIC)
        return zb_fail(m->err, -EPROTO, "the process that answers at %s is not rank 0 of this run",
                       name);
    if (rc == 0 && w.rc < 0) {
        w.text[sizeof(w.text) - 1] = 0;
        return zb_fail(m->err, w.rc, "rank 0 gave up: %s", w.text);
    }
    if (rc == 0)
        rc = zc_tcp_move(fd, m->addresses, bytes, false, m->deadline_ns);
    m->token = w.token;
    return rc < 0 ? zb_fail(m->err, rc,
                            "rank 0 at %s did not answer: %s (does another program listen there?)",
                            name, strerror(-rc))
                  : 0;
}

/* Returns the address of another rank. If rank 0 has the address of a rank on its own machine as
 * loopback, other machines reach that rank at rank 0's address. */
static void peer_address(const struct meeting *m, uint32_t rank, union zc_tcp_socket_address *out)
{
    zc_tcp_address_unpack(&m->addresses[rank], out);
    if (zc_tcp_address_loopback(out) && !zc_tcp_address_loopback(&m->master)) {
        *out = m->master;
        zc_tcp_address_set_port(out, m->addresses[rank].port);
    }
}

static int guest_connect(struct meeting *m)
{
    struct hello h = hello_of(m, 0);

    for (uint32_t r = 1; r < m->env->rank; r++) {
        union zc_tcp_socket_address to;
        int rc, fd;

        peer_address(m, r, &to);
        fd = zc_tcp_connect(&to, m->deadline_ns);
        if (fd >= 0)
            peer_take(m, r, fd, &to);
        rc = fd < 0 ? fd : zc_tcp_move(fd, &h, sizeof(h), true, m->deadline_ns);
        if (rc < 0) {
            zc_tcp_address_name(&to, m->mesh->names[r]);
            return zb_fail(m->err, rc, "rank %u cannot reach rank %u at %s: %s", m->env->rank, r,
                           m->mesh->names[r], strerror(-rc));
        }
    }
    return 0;
}

static int guest_accept(struct meeting *m)
{
    for (uint32_t left = m->env->world - m->env->rank - 1; left > 0;) {
        union zc_tcp_socket_address from;
        struct hello h;
        int fd = accept_one(m, &h, &from);

        if (fd < 0)
            return not_all_came(m, fd);
        if (h.rank <= m->env->rank || h.rank >= m->env->world || m->mesh->fds[h.rank] >= 0) {
            (void)close(fd);
            continue; /* not a rank of this run */
        }
        peer_take(m, h.rank, fd, &from);
        left--;
    }
    return 0;
}

/* ---- all ranks */

static int master_find(struct meeting *m)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found = NULL;
    char port[16];
    int rc;

    (void)snprintf(port, sizeof(port), "%u", m->env->port);
    rc = getaddrinfo(m->env->address, port, &hints, &found);
    if (rc != 0)
        return zb_fail(m->err, -EINVAL, "MASTER_ADDR '%s': %s", m->env->address, gai_strerror(rc));
    memcpy(&m->master, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return 0;
}

static int meet(struct meeting *m)
{
    int rc = master_find(m);

    if (rc < 0)
        return rc;
    if (m->env->rank == 0)
        return host_meet(m);
    rc = guest_meet(m);
    if (rc == 0)
        rc = guest_connect(m);
    return rc < 0 ? rc : guest_accept(m);
}

int zc_tcp_meet(struct zc_tcp_mesh *ret, struct zb_err *err)
{
    struct env env;
    struct meeting m = { .env = &env, .listener = -1, .refused = -1, .mesh = ret, .err = err };
    int rc = env_read(&env, err);

    *ret = (struct zc_tcp_mesh){ 0 };
    if (rc < 0)
        return rc;
    *ret = (struct zc_tcp_mesh){ .rank = env.rank, .world = env.world, .patience_s = env.seconds };
    m.deadline_ns = zb_now_ns() + SECONDS(env.seconds);
    ret->fds = malloc(sizeof(int) * env.world);
    ret->names = calloc(env.world, ZC_TCP_NAME_BYTES);
    m.addresses = calloc(env.world, sizeof(*m.addresses));
    for (uint32_t r = 0; ret->fds && r < env.world; r++)
        ret->fds[r] = -1;
    if (!ret->fds || !ret->names || !m.addresses)
        rc = zb_fail(err, -ENOMEM, "no memory for %u ranks", env.world);
    else if (env.world > 1)
        rc = meet(&m);
    zb_close_fd(&m.listener);
    zb_close_fd(&m.refused);
    free(m.addresses);
    if (rc < 0)
        zc_tcp_mesh_close(ret);
    return rc;
}

void zc_tcp_mesh_shut(struct zc_tcp_mesh *mesh)
{
    for (uint32_t r = 0; mesh->fds && r < mesh->world; r++)
        zb_close_fd(&mesh->fds[r]);
}

void zc_tcp_mesh_close(struct zc_tcp_mesh *mesh)
{
    zc_tcp_mesh_shut(mesh);
    free(mesh->fds);
    free(mesh->names);
    *mesh = (struct zc_tcp_mesh){ 0 };
}
