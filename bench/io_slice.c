#include "bench/io_slice.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/size.h"
#include "base/util.h"
#include "bench/drive.h"
#include "nvme/sim/zn_sim.h"

#define IO_DEPTH_MAX 32u
#define IO_HUGE      (2 * ZB_MIB)
#define IO_CRC_BYTES 65536u
#define IO_SIM_NS    100000

_Static_assert(IO_INFLIGHT / IO_BLOCK_MIN == IO_DEPTH_MAX, "a buffer for each request");

const char *const zbench_io_mixes[] = {
    [IO_READ] = "read",
    [IO_WRITE] = "write",
    [IO_MIXED] = "mix",
};

volatile sig_atomic_t zbench_io_stop;

/* A small generator (xorshift64*): offsets, and bytes that no device can compress. */
static uint64_t io_random(struct io_file *f)
{
    f->seed ^= f->seed >> 12;
    f->seed ^= f->seed << 25;
    f->seed ^= f->seed >> 27;
    return f->seed * UINT64_C(0x2545f4914f6cdd1d);
}

int zbench_io_fill(struct io_file *f)
{
    f->seed = UINT64_C(0x9e3779b97f4a7c15);
    f->fill = malloc(IO_INFLIGHT);
    if (!f->fill)
        return zb_fail(&f->z->err, -ENOMEM, "%s of random bytes: %m", zb_size_text(IO_INFLIGHT).s);
    for (size_t i = 0; i < IO_INFLIGHT / sizeof(uint64_t); i++)
        ((uint64_t *)(void *)f->fill)[i] = io_random(f);
    return 0;
}

/* Maps and touches buffers. *ret_bufs: IO_INFLIGHT bytes within the returned mapping. */
static void *io_bufs_map(const struct io_file *f, bool small_pages, char **ret_bufs)
{
    void *map = mmap(NULL, IO_INFLIGHT + IO_HUGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (map == MAP_FAILED)
        return NULL;
    *ret_bufs = (char *)map + (IO_HUGE - (uintptr_t)map % IO_HUGE);
    /* only a hint, as for fio */
    (void)madvise(*ret_bufs, IO_INFLIGHT, small_pages ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    memcpy(*ret_bufs, f->fill, IO_INFLIGHT);
    return map;
}

/* One slice of ours. */
struct io_run {
    struct io_file *f;
    struct zn_engine *e;
    char *bufs;
    enum io_mix mix;
    const struct io_how *how;
    uint32_t block_bytes;
    uint64_t blocks, next;  /* next: for filling the file, or in order */
    uint64_t slice_ns;      /* 0: fill the file, each block once */
    uint64_t ramp_ns;       /* until then nothing counts */
    bool counting;          /* slice_ns long from begin_ns on, however late that is */
    uint64_t ios, begin_ns; /* since the ramp */
    double begin_cpu_s;
    int rc;
    struct io_request {
        struct zn_io io;
        struct io_run *run;
    } requests[IO_DEPTH_MAX];
};

static bool io_run_over(const struct io_run *r)
{
    return r->rc < 0 || zbench_io_stop ||
           (r->slice_ns == 0 ? r->next == r->blocks
                             : r->counting && zb_now_ns() - r->begin_ns >= r->slice_ns);
}

static void io_run_done(struct zn_io *io, int rc);

/* Computes checksums, as the daemon does after it reads a page and before it writes one. */
static void io_run_crc(struct io_run *r, const struct zn_io *io)
{
    static uint32_t crcs[IO_BLOCK_MAX / IO_CRC_BYTES];
    struct zn_page_id id = { .job = 1, .index = (uint32_t)r->ios };

    zn_page_seal(&id, io->buf, io->len_bytes, IO_CRC_BYTES, crcs);
}

static void io_run_submit(struct io_request *q)
{
    struct io_run *r = q->run;
    uint64_t block = r->slice_ns > 0 && !r->how->in_order ? io_random(r->f) % r->blocks
                                                          : r->next++ % r->blocks;
    bool write = r->mix == IO_WRITE || (r->mix == IO_MIXED && io_random(r->f) >> 63);

    q->io.op = write ? ZN_WRITE : ZN_READ;
    q->io.len_bytes = r->block_bytes;
    q->io.off_bytes = ZN_DATA_START + block * r->block_bytes;
    q->io.done = io_run_done;
    if (write && r->how->crc)
        io_run_crc(r, &q->io);
    r->rc = zn_submit(r->e, &q->io);
}

static void io_run_count(struct io_run *r)
{
    r->counting = true;
    r->begin_cpu_s = zbench_cpu_s();
    r->begin_ns = zb_now_ns();
}

static void io_run_done(struct zn_io *io, int rc)
{
    struct io_request *q = zb_container_of(io, struct io_request, io);
    struct io_run *r = q->run;

    if (rc < 0 && r->rc == 0)
        r->rc = rc;
    if (io->op == ZN_READ && r->how->crc)
        io_run_crc(r, io);
    if (r->counting)
        r->ios++;
    else if (zb_now_ns() >= r->ramp_ns)
        io_run_count(r);
    if (!io_run_over(r))
        io_run_submit(q);
}

static void io_run_all(struct io_run *r)
{
    for (unsigned i = 0; i < io_depth(r->block_bytes) && !io_run_over(r); i++) {
        r->requests[i].run = r;
        r->requests[i].io.buf = r->bufs + (size_t)i * r->block_bytes;
        io_run_submit(&r->requests[i]);
    }
    zbench_drain(r->e, IO_DEPTH_MAX);
}

static int io_open(struct io_file *f, const struct io_how *how, unsigned depth,
                   struct zn_engine **ret, struct zn_sim **ret_sim)
{
    struct zn_options o = {
        .path = f->path, .size_bytes = f->size_bytes, .io = how->engine, .depth = depth
    };
    struct zn_sim_options so = { .rate_bytes = how->sim_bytes_s,
                                 .latency_ns = IO_SIM_NS,
                                 .discard = true };
    int rc;

    *ret_sim = NULL;
    if (how->engine)
        return zn_open(ret, &o, &f->z->err);
    rc = zn_sim_new(ret_sim, &so, &f->z->err);
    if (rc == 0)
        rc = zn_sim_engine(ret, *ret_sim, "data", f->size_bytes, depth, &f->z->err);
    if (rc < 0)
        zn_sim_free(*ret_sim);
    return rc;
}

int zbench_io_slice(struct io_file *f, const struct io_how *how, enum io_mix mix,
                    uint32_t block_bytes, double seconds, struct io_slice *ret)
{
    struct io_run r = { .f = f,
                        .mix = mix,
                        .how = how,
                        .block_bytes = block_bytes,
                        .blocks = io_block_count(f, block_bytes) };
    const char *engine = how->engine ? how->engine : "the simulated device";
    struct zn_sim *sim;
    double cpu_s, wall_s;
    void *map;
    int rc = io_open(f, how, io_depth(block_bytes), &r.e, &sim);

    if (rc < 0)
        return rc;
    map = io_bufs_map(f, how->small_pages, &r.bufs);
    if (!map) {
        zn_close(r.e);
        zn_sim_free(sim);
        return zb_fail(&f->z->err, -ENOMEM, "%s of buffers: %m", zb_size_text(IO_INFLIGHT).s);
    }
    if (how->engine)
        f->direct = zn_info(r.e)->direct;
    if (how->in_order)
        r.next = f->at;
    (void)zn_register(r.e, r.bufs, IO_INFLIGHT); /* on failure, buffers are used unregistered */
    if (seconds > 0) {
        r.ramp_ns = zb_now_ns() + (uint64_t)(IO_RAMP_S * 1e9);
        r.slice_ns = (uint64_t)(seconds * 1e9);
    }
    io_run_all(&r);
    wall_s = (double)(zb_now_ns() - r.begin_ns) / 1e9;
    cpu_s = zbench_cpu_s() - r.begin_cpu_s;
    zn_close(r.e);
    zn_sim_free(sim);
    (void)munmap(map, IO_INFLIGHT + IO_HUGE);
    f->at = r.next;
    if (r.rc < 0)
        return zb_fail(&f->z->err, r.rc, "%s by %s on '%s': %m", zbench_io_mixes[mix], engine,
                       f->path);
    if (seconds > 0 && r.ios == 0 && !zbench_io_stop)
        return zb_fail(&f->z->err, -ETIME,
                       "no request of %s by %s ended in %g s: ask for more "
                       "--seconds",
                       zbench_io_mixes[mix], engine, seconds);
    *ret = (struct io_slice){
        .mib_s = (double)(r.ios * block_bytes) / (double)ZB_MIB / wall_s,
        .cpu_us = r.ios > 0 ? cpu_s * 1e6 / (double)r.ios : 0,
    };
    return 0;
}
