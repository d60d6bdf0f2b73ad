/*
 * engine_uring.c - the fast backend: requests wait in the submission ring until zn_kick() hands all
 * of them to the kernel in one system call.
 *
 * RESTRICTIONS. The ring is created disabled, restricted to reads, writes and flushes of file
 * number 0 (the data file), and then enabled. From then on the kernel refuses everything else, even
 * if other code writes into the ring's memory.
 *
 * REGISTERED MEMORY. A region that zn_register() names is cut into pieces of URING_PIECE_BYTES. The
 * first request that lies in a piece registers it. A request that crosses two pieces, or lies in
 * none, uses memory that is not registered. Registering a piece costs its first request about 0.3
 * ms on huge pages and 0.8 to 2 ms on others, once; a whole arena at one time would cost the loop
 * that much for each 32 MiB. It is worth it: at 1 MiB a request took 0.70 of fio's CPU time with it
 * and 1.12 without (bench/results/); the flags of the ring made no difference that could be told
 * from noise.
 *
 * INVARIANTS
 *     U1  The submission ring has `depth` entries and the completion ring twice as many; engine.c
 *         keeps `depth`, so neither ever overflows.
 *     U2  Only the thread that opened the ring enters it (IORING_SETUP_SINGLE_ISSUER). On a kernel
 *         that supports it, completions are posted when that thread asks for them (DEFER_TASKRUN):
 *         the eventfd reports that there are some, and no device interrupts the thread.
 *     U3  An entry that the kernel does not take now stays in the ring; the wake-up is set, so the
 *         caller comes back, and the next kick tries again.
 *     U4  The kernel signals twice: when there are completions to ask for, and when they were
 *         posted. Once the ring is empty the second signal is cleared, and then the ring is checked
 *         again: completions that came in between are found, and later ones signal again.
 *     U5  A slot of the kernel's table belongs to one piece at most. A piece may be unregistered
 *         while requests use it: the kernel keeps the pages for requests that it has taken, and
 *         those that still wait in the ring are changed to use plain memory (uring_plain()).
 */
#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/array.h"
#include "base/size.h"
#include "base/space.h"
#include "nvme/engine_priv.h"

#define URING_PIECE_BYTES (UINT64_C(32) << 20)
#define URING_SLOTS       (UINT32_C(1) << 14) /* of pieces: what the kernel allows; 512 GiB */
#define URING_REGIONS_MAX 8192u
#define URING_NO_SLOT     (-1)

struct uring_region {
    uintptr_t base;
    uint64_t len_bytes;
    uint32_t pieces;
    int32_t *slots; /* [pieces] */
};

struct uring {
    struct io_uring ring; /* first: a test looks at it */
    bool ring_up;
    bool popped;            /* a completion was reaped since the ring was last empty (U4) */
    bool stuck;             /* the kernel did not take all entries at the last kick (U3) */
    struct zb_space *slots; /* NULL: the kernel has no table for us */
    bool refused;           /* the table takes no more: not tried again until a piece is dropped */
    struct uring_region *regions; /* by base */
    unsigned nregions;
};

/*
 * The best first; a kernel that does not know a flag answers -EINVAL. With TASKRUN_FLAG liburing must
 * enter the kernel for completions: before 2.3 it does not, and completions would be lost.
 */
static const struct {
    unsigned flags;
    const char *lacks;
} uring_modes[] = {
#ifdef IORING_SETUP_DEFER_TASKRUN /* liburing 2.3 */
    { IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
          IORING_SETUP_R_DISABLED,
      NULL }, /* 6.1 */
    { IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_R_DISABLED,
      "io_uring without DEFER_TASKRUN (Linux 6.1)" },                          /* 5.19 */
    { IORING_SETUP_R_DISABLED, "io_uring without COOP_TASKRUN (Linux 5.19)" }, /* 5.10 */
#else
    { IORING_SETUP_R_DISABLED, "io_uring without COOP_TASKRUN (built with liburing < 2.3)" },
#endif
    { 0, "io_uring without restrictions (Linux 5.10)" },
};

/* All operations that the engine submits, and registers after the ring is enabled. */
static struct io_uring_restriction uring_allowed[] = {
    { .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_READ },
    { .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_WRITE },
    { .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_READ_FIXED },
    { .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_WRITE_FIXED },
    { .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_FSYNC },
    { .opcode = IORING_RESTRICTION_SQE_FLAGS_REQUIRED, .sqe_flags = IOSQE_FIXED_FILE },
    { .opcode = IORING_RESTRICTION_REGISTER_OP, .register_op = IORING_REGISTER_BUFFERS_UPDATE },
    { .opcode = IORING_RESTRICTION_REGISTER_OP, .register_op = IORING_UNREGISTER_FILES },
};

static const char *uring_hint(int rc)
{
    switch (rc) {
    case -EPERM:
        return " (sysctl kernel.io_uring_disabled, or a container's seccomp profile)";
    case -ENOSYS:
        return " (the kernel, or its sandbox, has none)";
    case -ENOMEM:
        return " (RLIMIT_MEMLOCK may be too low for this kernel)";
    default:
        return "";
    }
}

/* ---- up and down */

/* For operations that liburing 2.1 or 2.3 has no function for, or declares one and does not export it. */
static int uring_register(struct uring *u, unsigned op, void *arg, unsigned count)
{
    return syscall(__NR_io_uring_register, u->ring.ring_fd, op, arg, count) < 0 ? -errno : 0;
}

/* Restricts the ring, and enables it. */
static int uring_enable(struct zn_engine *e, struct uring *u, struct zb_err *err)
{
    struct zb_err why = { 0 };
    int rc;

    if (!(u->ring.flags & IORING_SETUP_R_DISABLED))
        return 0;
    rc = uring_register(u, IORING_REGISTER_RESTRICTIONS, uring_allowed, ZB_COUNT(uring_allowed));
    if (rc < 0) {
        (void)zb_fail(&why, rc, "io_uring takes no restrictions: %m");
        zn_why(e, why.text);
    }
    rc = uring_register(u, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
    return rc < 0 ? zb_fail(err, rc, "io_uring cannot be enabled: %m") : 0;
}

/* Creates an empty table of pieces. Without it no request uses registered memory. */
static void uring_table(struct zn_engine *e, struct uring *u)
{
    struct zb_err why = { 0 };
    /* struct io_uring_rsrc_register: its second field has this name since liburing 2.2. */
    struct {
        uint32_t nr, flags;
        uint64_t resv2, data, tags;
    } table = { .nr = URING_SLOTS, .flags = 1 /* IORING_RSRC_REGISTER_SPARSE */ };
    int rc = uring_register(u, IORING_REGISTER_BUFFERS2, &table, sizeof(table));

    if (rc == 0)
        rc = zb_space_new(&u->slots, URING_SLOTS);
    if (rc == 0)
        return;
    (void)zb_fail(&why, rc, "io_uring has no table for memory (Linux 5.19): %m");
    (void)snprintf(e->info.why_unregistered, sizeof(e->info.why_unregistered), "%.*s",
                   (int)sizeof(e->info.why_unregistered) - 1, why.text);
}

static int uring_start(struct zn_engine *e, struct zb_err *err)
{
    struct uring *u = calloc(1, sizeof(*u));
    int rc = -EINVAL;
    size_t mode = 0;

    if (!u)
        return zb_fail(err, -ENOMEM, "io_uring engine: %m");
    e->impl = u;
    for (; mode < ZB_COUNT(uring_modes); mode++) {
        rc = io_uring_queue_init(e->info.depth, &u->ring, uring_modes[mode].flags);
        if (rc != -EINVAL)
            break;
    }
    if (rc < 0)
        return zb_fail(err, rc, "io_uring is refused: %m%s", uring_hint(rc));
    u->ring_up = true;
    if (uring_modes[mode].lacks)
        zn_why(e, uring_modes[mode].lacks);
    /* The data file is registered once: no lookup and no reference per request. */
    rc = io_uring_register_files(&u->ring, &e->file.fd, 1);
    if (rc == 0)
        rc = io_uring_register_eventfd(&u->ring, e->wake_fd);
    if (rc < 0)
        return zb_fail(err, rc, "io_uring takes no file or no wake-up: %m%s", uring_hint(rc));
    uring_table(e, u);
    return uring_enable(e, u, err);
}

static void uring_close(struct zn_engine *e)
{
    struct uring *u = e->impl;

    if (!u)
        return;
    if (u->ring_up) {
        /* The kernel tears the ring down later; this releases the file at once. */
        (void)io_uring_unregister_files(&u->ring);
        io_uring_queue_exit(&u->ring);
    }
    for (unsigned i = 0; i < u->nregions; i++)
        free(u->regions[i].slots);
    free(u->regions);
    zb_space_free(u->slots);
    free(u);
    e->impl = NULL;
}

/* ---- registered memory */

/* Index of the first region that begins above addr. */
static unsigned uring_region_above(const struct uring *u, uintptr_t addr)
{
    unsigned at;

    zb_lower_bound(at, u->nregions, u->regions[at].base <= addr);
    return at;
}

static int uring_add(struct zn_engine *e, void *base, uint64_t len_bytes)
{
    struct uring *u = e->impl;
    struct uring_region r = { .base = (uintptr_t)base,
                              .len_bytes = len_bytes,
                              .pieces = (uint32_t)zb_div_up(len_bytes, URING_PIECE_BYTES) };
    unsigned at = uring_region_above(u, r.base);
    struct uring_region *grown;

    if (!u->slots || u->nregions == URING_REGIONS_MAX)
        return -EOPNOTSUPP;
    assert(at == 0 || u->regions[at - 1].base + u->regions[at - 1].len_bytes <= r.base);
    r.slots = malloc(zb_max_u64(r.pieces, 1) * sizeof(*r.slots));
    grown = r.slots ? realloc(u->regions, (u->nregions + 1) * sizeof(*grown)) : NULL;
    if (!grown) {
        free(r.slots);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < r.pieces; i++)
        r.slots[i] = URING_NO_SLOT;
    u->regions = grown;
    memmove(grown + at + 1, grown + at, (u->nregions - at) * sizeof(*grown));
    grown[at] = r;
    u->nregions++;
    return 0;
}

/* Fills or (NULL) empties a slot. */
static int uring_slot_set(struct uring *u, int32_t slot, void *base, uint64_t len_bytes)
{
    struct iovec iov = { .iov_base = base, .iov_len = len_bytes };
    int rc = io_uring_register_buffers_update_tag(&u->ring, (unsigned)slot, &iov, NULL, 1);

    return rc < 0 ? rc : 0;
}

/* Requests that wait in the ring and name this slot are changed to plain memory: the kernel has
 * not seen them yet, and would find the slot empty (-EFAULT). */
static void uring_plain(struct uring *u, int32_t slot)
{
    const struct io_uring_sq *sq = &u->ring.sq;

    for (unsigned left = io_uring_sq_ready(&u->ring); left > 0; left--) {
        struct io_uring_sqe *sqe = &sq->sqes[(sq->sqe_tail - left) & *sq->kring_mask];

        if (sqe->buf_index != slot ||
            (sqe->opcode != IORING_OP_READ_FIXED && sqe->opcode != IORING_OP_WRITE_FIXED))
            continue;
        sqe->opcode = sqe->opcode == IORING_OP_READ_FIXED ? IORING_OP_READ : IORING_OP_WRITE;
        sqe->buf_index = 0;
    }
}

static void uring_drop(struct zn_engine *e, void *base)
{
    struct uring *u = e->impl;
    unsigned at = uring_region_above(u, (uintptr_t)base);
    struct uring_region *r = at > 0 ? &u->regions[at - 1] : NULL;

    if (!r || r->base != (uintptr_t)base)
        return;
    for (uint32_t i = 0; i < r->pieces; i++) {
        int rc;

        if (r->slots[i] == URING_NO_SLOT)
            continue;
        uring_plain(u, r->slots[i]);
        rc = uring_slot_set(u, r->slots[i], NULL, 0);
        assert(rc == 0); /* an own slot is emptied: the memory must not stay with the kernel */
        zb_space_give(u->slots, (uint64_t)r->slots[i], 1);
        u->refused = false;
    }
    free(r->slots);
    u->nregions--;
    memmove(r, r + 1, (u->nregions - (at - 1)) * sizeof(*r));
}

/* Registers a piece. A failure is no error: its requests use plain memory. */
static int32_t uring_piece(struct zn_engine *e, struct uring *u, struct uring_region *r,
                           uint32_t piece)
{
    uint64_t from = piece * URING_PIECE_BYTES,
             len_bytes = zb_min_u64(URING_PIECE_BYTES, r->len_bytes - from), slot;
    struct zb_err why = { 0 };
    int rc = zb_space_take(u->slots, 1, &slot);

    if (rc == 0) {
        rc = uring_slot_set(u, (int32_t)slot, (char *)r->base + from, len_bytes);
        if (rc < 0)
            zb_space_give(u->slots, slot, 1);
    }
    if (rc == 0) {
        r->slots[piece] = (int32_t)slot;
        return (int32_t)slot;
    }
    u->refused = true;
    (void)zb_fail(&why, rc, "register %s of memory: %m%s", zb_size_text(len_bytes).s,
                  uring_hint(rc));
    (void)snprintf(e->info.why_unregistered, sizeof(e->info.why_unregistered), "%.*s",
                   (int)sizeof(e->info.why_unregistered) - 1, why.text);
    return URING_NO_SLOT;
}

/* The slot of the piece that contains all memory of this transfer. */
static int32_t uring_slot(struct zn_engine *e, struct uring *u, const void *mem, uint64_t len_bytes)
{
    unsigned at = uring_region_above(u, (uintptr_t)mem);
    struct uring_region *r;
    uint64_t from;
    uint32_t piece;

    if (at == 0)
        return URING_NO_SLOT;
    r = &u->regions[at - 1];
    from = (uintptr_t)mem - r->base;
    piece = (uint32_t)(from / URING_PIECE_BYTES);
    if (!zb_range_inside(from, len_bytes, r->len_bytes) ||
        (from + len_bytes - 1) / URING_PIECE_BYTES != piece)
        return URING_NO_SLOT;
    return r->slots[piece] != URING_NO_SLOT || u->refused ? r->slots[piece]
                                                          : uring_piece(e, u, r, piece);
}

/* ---- requests */

static void uring_submit(struct zn_engine *e, struct zn_io *io)
{
    struct uring *u = e->impl;
    void *mem = io->op == ZN_FLUSH ? NULL : zn_io_at(io);
    int32_t slot = mem ? uring_slot(e, u, mem, (unsigned)io->res) : URING_NO_SLOT;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

    assert(sqe); /* U1 */
    e->stats.registered += slot != URING_NO_SLOT;
    switch (io->op) {
    case ZN_READ:
        if (slot != URING_NO_SLOT)
            io_uring_prep_read_fixed(sqe, 0, mem, (unsigned)io->res, zn_io_off(io), slot);
        else
            io_uring_prep_read(sqe, 0, mem, (unsigned)io->res, zn_io_off(io));
        break;
    case ZN_WRITE:
    case ZN_SLOT: /* comes as a write */
        if (slot != URING_NO_SLOT)
            io_uring_prep_write_fixed(sqe, 0, mem, (unsigned)io->res, zn_io_off(io), slot);
        else
            io_uring_prep_write(sqe, 0, mem, (unsigned)io->res, zn_io_off(io));
        break;
    case ZN_FLUSH:
        io_uring_prep_fsync(sqe, 0, IORING_FSYNC_DATASYNC);
        break;
    case ZN_DISCARD: /* discard.c */
    case ZN_ALLOCATE:
        break;
    }
    io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE); /* number 0 of the registered ones */
    io_uring_sqe_set_data(sqe, io);
}

static int uring_kick(struct zn_engine *e)
{
    struct uring *u = e->impl;

    u->stuck = false;
    while (io_uring_sq_ready(&u->ring) > 0 && !u->stuck) {
        int rc = io_uring_submit(&u->ring);

        if (rc < 0 && rc != -EAGAIN && rc != -EBUSY && rc != -EINTR)
            return rc;
        u->stuck = rc <= 0;
    }
    if (u->stuck)
        zn_wake(e); /* U3 */
    return 0;
}

static struct zn_io *uring_reap(struct zn_engine *e)
{
    struct uring *u = e->impl;
    struct io_uring_cqe *cqe;
    struct zn_io *io;
    eventfd_t n;

    while (io_uring_peek_cqe(&u->ring, &cqe) != 0) {
        if (!u->popped)
            return NULL;
        u->popped = false;
        (void)eventfd_read(e->wake_fd, &n); /* U4 */
        if (u->stuck)
            zn_wake(e); /* U3: that one was not the kernel's */
    }
    u->popped = true;
    io = io_uring_cqe_get_data(cqe);
    io->res = cqe->res;
    io_uring_cqe_seen(&u->ring, cqe);
    return io;
}

const struct zn_ops zn_uring_ops = {
    .name = "uring",
    .start = uring_start,
    .submit = uring_submit,
    .kick = uring_kick,
    .reap = uring_reap,
    .close = uring_close,
    .add = uring_add,
    .drop = uring_drop,
};
