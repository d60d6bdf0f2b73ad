/*
 * bench_fetch_gpu.c - `zbench fetch --gpu`: copying parameters from the daemon into a GPU's memory,
 * against the bandwidth of the link to the GPU.
 *
 * MODEL. A zshardd of our own holds a job of whole units, in host memory, on a device of a fixed
 * rate or on a drive. A slice fetches all units in order, GPU_AHEAD at a time, and copies each to
 * its place in device memory on one stream. The reference copies as many bytes, in as many pieces,
 * from pinned memory of this process on the same stream: the rate of cudaMemcpyAsync(). Slices of
 * both alternate (A B B A).
 *
 * TWO WAYS from the daemon's memory to a GPU are measured, one of them also without pinning;
 * docs/decisions/0013 says which one the engine uses:
 *
 *     client    this process pins its own mapping of the daemon's memory (read-only if the driver
 *               can pin that), and copies
 *     daemon    the owner of the memory copies into a buffer that this process has exported. A
 *               forked process stands for the daemon, with the same messages (a unit's number
 *               there, a code back), the same mapping of device memory, and its own pinned memory
 *     pageable  as client, without pinning
 *
 * FROM NVMe the reference is the slower of the link and the device, both in the same round: a fixed
 * rate (nvme-fixed), or the drive of --dir, from which as many bytes are read between our slices
 * (nvme: drive.h).
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/size.h"
#include "base/util.h"
#include "bench/device.h"
#include "bench/drive.h"
#include "bench/gpu_other.h"
#include "bench/job.h"
#include "bench/rig.h"
#include "bench/turns.h"

#define GPU_UNIT      (UINT64_C(32) << 20) /* bytes */
#define GPU_UNITS_MAX 1024u
#define GPU_UNITS_MIN 8u
#define GPU_AHEAD     3u /* units in flight */
#define GPU_STAGING   (UINT64_C(4) << 20)
#define GPU_BUFFERS   (UINT64_C(32) << 20)         /* page buffers of the daemon */
#define GPU_RING      4u                           /* units that host memory has room for */
#define GPU_PAGE      (2u * ZB_PAGE_ELEMS_DEFAULT) /* bytes that the daemon reads at a time */

struct gpu_bench {
    struct zbench *z;
    const char *device, *dir;
    uint64_t size, rate;
    unsigned rounds;
    bool gpu_flag; /* --gpu, which selects this benchmark */

    struct zk_gpu *gpu;
    struct zk_gpu_stream *stream;
    struct zk_gpu_event *events[GPU_AHEAD];
    struct zk_gpu_mem *to;
    char *own;                  /* `size` pinned bytes of this process */
    struct zbench_drive *drive; /* limits the reference; or NULL */

    struct zbench_rig rig;
    uint64_t ids[GPU_UNITS_MAX];
    uint32_t units;
    uint64_t unit_bytes;
    char *arena; /* its pinned part; or NULL */

    struct zbench_child other;                       /* stands for the daemon */
    int (*ours)(struct gpu_bench *b, double *ret_s); /* a slice of the case */
};

static uint64_t page_round(uint64_t at, bool up)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    return (up ? at + page - 1 : at) / page * page;
}

/* ---- the link */

static char *gpu_place(const struct gpu_bench *b, uint32_t unit)
{
    return (char *)zk_gpu_addr(b->to) + unit * b->unit_bytes;
}

/* 0; -EAGAIN: not yet. */
static int gpu_copied(struct gpu_bench *b, uint32_t unit)
{
    return zk_gpu_event_query(b->events[unit % GPU_AHEAD], &b->z->err);
}

static int gpu_copy(struct gpu_bench *b, uint32_t unit, const void *from)
{
    int rc = zk_gpu_copy(b->stream, ZK_GPU_TO_DEVICE, gpu_place(b, unit), from, b->unit_bytes,
                         &b->z->err);

    return rc < 0 ? rc : zk_gpu_event_record(b->events[unit % GPU_AHEAD], b->stream, &b->z->err);
}

static int slice_copy(struct gpu_bench *b, double *ret_s)
{
    uint64_t begin_ns = zb_now_ns();
    int rc = 0;

    for (uint32_t i = 0; i < b->units && rc == 0; i++)
        rc = gpu_copy(b, i, b->own + i * b->unit_bytes);
    if (rc == 0)
        rc = zk_gpu_stream_sync(b->stream, &b->z->err);
    *ret_s = (double)(zb_now_ns() - begin_ns) * 1e-9;
    return rc;
}

/* ---- the client's way */

struct fetched {
    struct zc_view view;
    bool done;
    int rc;
};

static void fetch_on_done(void *arg, int rc)
{
    struct fetched *f = arg;

    f->rc = rc;
    f->done = true;
}

/* Fetches, copies and releases each unit. Each turn does whichever of these is possible. */
static int slice_fetch(struct gpu_bench *b, double *ret_s)
{
    uint32_t asked = 0, copied = 0, released = 0;
    struct fetched slots[GPU_AHEAD];
    uint64_t begin_ns = zb_now_ns();
    int rc = 0;

    while (released < b->units) {
        struct fetched *next = &slots[copied % GPU_AHEAD];

        if (asked < b->units && asked - released < GPU_AHEAD) {
            struct fetched *f = &slots[asked % GPU_AHEAD];

            *f = (struct fetched){ 0 };
            rc = zc_fetch(b->rig.c, &b->ids[asked++], 1, 0, 0, &f->view, fetch_on_done, f);
        } else if (copied < asked && next->done) {
            if (next->rc < 0)
                return zbench_rig_failed(&b->rig, next->rc);
            if ((rc = gpu_copy(b, copied++, next->view.data)) < 0)
                return rc;
        } else if (released < copied && (rc = gpu_copied(b, released)) != -EAGAIN) {
            if (rc < 0)
                return rc;
            rc = zc_release(b->rig.c, &b->ids[released++], 1);
        } else {
            rc = zc_poll(b->rig.c, 0);
            (void)sched_yield();
        }
        if (rc < 0)
            return zbench_rig_failed(&b->rig, rc);
    }
    *ret_s = (double)(zb_now_ns() - begin_ns) * 1e-9;
    return 0;
}

/* Pins the range of memory that contains the job's views. */
static int arena_pin(struct gpu_bench *b)
{
    uint64_t least = UINT64_MAX, most = 0, begin_ns;
    struct zc_view view;
    struct zb_err err = { 0 };
    int rc = 0;

    for (uint32_t i = 0; i < b->units && rc == 0; i++) {
        rc = zc_fetch_wait(b->rig.c, &b->ids[i], 1, 0, 0, &view);
        if (rc == 0)
            rc = zc_release(b->rig.c, &b->ids[i], 1);
        least = zb_min_u64(least, (uintptr_t)view.data);
        most = zb_max_u64(most, (uintptr_t)view.data + view.bytes);
    }
    if (rc < 0)
        return zbench_rig_failed(&b->rig, rc);
    least = page_round(least, false);
    most = page_round(most, true);
    begin_ns = zb_now_ns();
    rc = zk_gpu_pin(b->gpu, (void *)(uintptr_t)least, most - least,
                    zk_gpu_info(b->gpu)->pins_read_only, &err);
    if (rc < 0) {
        zbench_note(b->z, "the client cannot pin its mapping, and copies unpinned: %s", err.text);
        return 0;
    }
    b->arena = (char *)(uintptr_t)least;
    zbench_note(b->z, "pinning the client's mapping of %s (%s) took %.3f s",
                zb_size_text(most - least).s,
                zk_gpu_info(b->gpu)->pins_read_only ? "read-only" : "read-write",
                (double)(zb_now_ns() - begin_ns) * 1e-9);
    return 0;
}

static int arena_unpin(struct gpu_bench *b)
{
    int rc = b->arena ? zk_gpu_unpin(b->gpu, b->arena, &b->z->err) : 0;

    b->arena = NULL;
    return rc;
}

/* ---- the daemon's way */

static int slice_other(struct gpu_bench *b, double *ret_s)
{
    uint64_t begin_ns = zb_now_ns();
    int rc = 0;

    for (uint32_t i = 0; i < b->units + GPU_AHEAD && rc == 0; i++) {
        if (i < b->units)
            rc = zbench_other_ask(&b->other, i, &b->z->err);
        if (rc == 0 && i >= GPU_AHEAD)
            rc = zbench_other_answer(&b->other, &b->z->err);
    }
    *ret_s = (double)(zb_now_ns() - begin_ns) * 1e-9;
    return rc;
}

/* ---- the job */

static int job_define(struct gpu_bench *b, enum zc_place place)
{
    struct zc_job_options options = { .name = "bench",
                                      .world = 1,
                                      .groups = 1,
                                      .staging_bytes = GPU_STAGING,
                                      .offload_param = place,
                                      .offload_optimizer = place,
                                      .writable = !zk_gpu_info(b->gpu)->pins_read_only };
    struct zc_placement placement;
    int rc = zbench_rig_connect(&b->rig, &b->rig.c);

    if (rc < 0)
        return rc;
    rc = zc_job_open_wait(b->rig.c, &options, &b->rig.job);
    for (uint32_t i = 0; i < b->units && rc == 0; i++) {
        char name[16];
        const struct zc_unit unit = {
            .index = i, .name = name, .elems = b->unit_bytes / 2, .dtype = ZC_BF16, .frozen = true
        };
        const struct zc_range range = { .unit = i, .count = unit.elems };

        (void)snprintf(name, sizeof(name), "u%u", i);
        rc = zc_unit_define_wait(b->rig.c, b->rig.job.id, &unit);
        if (rc == 0)
            rc = zc_register_wait(b->rig.c, b->rig.job.id, &range, 1, &b->ids[i]);
    }
    if (rc == 0)
        rc = zc_ready_wait(b->rig.c, b->rig.job.id, NULL, 0, &placement);
    if (rc == 0)
        memset(b->rig.job.staging, 0, b->rig.job.staging_bytes);
    for (uint32_t i = 0; i < b->units && rc == 0; i++)
        rc = zbench_send(b->rig.c, &b->rig.job, b->ids[i], b->unit_bytes / 2, ZC_BF16, 0);
    return rc < 0 ? zbench_rig_failed(&b->rig, rc) : 0;
}

/* Where the job's parameters live. */
enum home { HOST, FIXED, DRIVE };

static int job_start(struct gpu_bench *b, enum home home)
{
    uint64_t room = home != HOST ? GPU_RING * b->unit_bytes : b->size;
    char fixed[64] = "";
    int rc;

    if (home == FIXED)
        (void)snprintf(fixed, sizeof(fixed), "--io fixed --fixed-rate %" PRIu64, b->rate);
    rc = zbench_rig_start(&b->rig, b->z, b->dir,
                          "--host-bytes %" PRIu64 " --nvme-bytes %" PRIu64 " --ring-bytes %" PRIu64
                          " --log-level error %s",
                          room + GPU_STAGING + GPU_BUFFERS, home != HOST ? 2 * b->size : 0,
                          GPU_BUFFERS, fixed);
    return rc < 0 ? rc : job_define(b, home != HOST ? ZC_NVME : ZC_HOST);
}

/* Bytes that the job has read from the device so far. */
static int job_read(struct gpu_bench *b, uint64_t *ret)
{
    struct zc_job_row row = { .id = 0 };
    int rc = zbench_rig_row(&b->rig, &row);

    *ret = row.nvme_read_bytes;
    return rc;
}

static int job_end(struct gpu_bench *b)
{
    return zbench_rig_end(&b->rig, arena_unpin(b));
}

/* ---- cases */

static int slice_drive(struct gpu_bench *b, double *ret_s)
{
    return zbench_drive_read(b->drive, ret_s, &b->z->err);
}

/* The reference: the slower of the link and, if there is one, the drive, in the same round. */
static int reference_slice(struct gpu_bench *b, double *ret_s)
{
    double drive_s = 0;
    int rc = slice_copy(b, ret_s);

    if (rc == 0 && b->drive)
        rc = slice_drive(b, &drive_s);
    *ret_s = *ret_s > drive_s ? *ret_s : drive_s;
    return rc;
}

static int gpu_slice(void *bench, unsigned who, double *ret_s)
{
    struct gpu_bench *b = bench;

    return who == 0 ? b->ours(b, ret_s) : reference_slice(b, ret_s);
}

/* limit: upper bound of the reference in bytes per second; 0: none. */
static int gpu_case(struct gpu_bench *b, const char *name, const char *against,
                    int (*ours)(struct gpu_bench *b, double *ret_s), double limit)
{
    const struct zbench_row row = zbench_row("GB/s", false, against, "%s", name);
    double gb = (double)(b->units * b->unit_bytes) * 1e-9, warm;
    struct zbench_series s;
    int rc;

    b->ours = ours;
    if ((rc = ours(b, &warm)) < 0 || (rc = reference_slice(b, &warm)) < 0 ||
        (rc = zbench_turns(&s, "ABBA", 1, b->rounds, gpu_slice, b)) < 0)
        return rc;
    for (unsigned i = 0; i < b->rounds; i++) {
        s.of[0][0][i] = gb / s.of[0][0][i];
        s.of[1][0][i] = gb / s.of[1][0][i];
        if (limit > 0 && s.of[1][0][i] > limit * 1e-9)
            s.of[1][0][i] = limit * 1e-9;
    }
    return zbench_add(b->z, &row, s.of[0][0], s.of[1][0], b->rounds);
}

/* As slice_fetch(). Some units may still be in host memory from the previous slice: the time is
 * increased in proportion, as if all had come from the device. */
static int slice_stream(struct gpu_bench *b, double *ret_s)
{
    uint64_t before = 0, after = 0;
    int rc = job_read(b, &before);

    if (rc == 0)
        rc = slice_fetch(b, ret_s);
    if (rc == 0)
        rc = job_read(b, &after);
    if (rc == 0 && after == before)
        return zb_fail(
            &b->z->err, -EBADMSG,
            "nothing was read from the device: everything fits into the daemon's memory");
    if (rc == 0)
        *ret_s *= (double)b->size / (double)(after - before);
    return rc;
}

/* From a device of a fixed rate, or from the drive, which is also read alone between the slices. */
static int gpu_case_nvme(struct gpu_bench *b, enum home home)
{
    uint64_t before = 0, after = 0, fetched = b->size * (2 * b->rounds + 1);
    const char *from = "nvme-fixed";
    char name[64];
    int rc = job_start(b, home);

    if (rc == 0 && home == DRIVE) {
        rc = zbench_drive_open(&b->drive, b->dir, b->size, GPU_PAGE, &b->z->err);
        from = rc == 0 && zbench_drive_direct(b->drive) ? "nvme" : "nvme-buffered";
    }
    (void)snprintf(name, sizeof(name), "fetch/gpu/%s/least", from);
    if (rc == 0)
        rc = arena_pin(b);
    if (rc == 0)
        rc = job_read(b, &before);
    if (rc == 0)
        rc = gpu_case(b, name, "the smaller of drive and link", slice_stream,
                      home == FIXED ? (double)b->rate : 0);
    if (rc == 0)
        rc = job_read(b, &after);
    if (rc < 0)
        return rc;
    zbench_note(b->z, "fetch/gpu/%s: %s%s; %.0f %% of the bytes came from it", from,
                home == FIXED ? zb_size_text(b->rate).s : "files in ",
                home == FIXED ? "/s" : b->dir, 100.0 * (double)(after - before) / (double)fetched);
    zbench_drive_close(b->drive);
    b->drive = NULL;
    return job_end(b);
}

static int gpu_cases(struct gpu_bench *b)
{
    static const char pinned[] = "copy from pinned memory";
    int rc;

    if ((rc = gpu_case(b, "fetch/gpu/copy/copy", pinned, slice_copy, 0)) < 0 ||
        (rc = job_start(b, HOST)) < 0 ||
        (rc = gpu_case(b, "fetch/gpu/pageable/copy", pinned, slice_fetch, 0)) < 0 ||
        (rc = arena_pin(b)) < 0)
        return rc;
    if (b->arena && (rc = gpu_case(b, "fetch/gpu/client/copy", pinned, slice_fetch, 0)) < 0)
        return rc;
    if ((rc = job_end(b)) < 0)
        return rc;
    rc = zbench_other_begin(&b->other, b->to, b->unit_bytes, &b->z->err);
    if (rc == -ENOTSUP) {
        zbench_note(b->z, "no fetch/gpu/daemon: %s", b->z->err.text);
        b->z->err = (struct zb_err){ 0 };
    } else if (rc < 0 || (rc = gpu_case(b, "fetch/gpu/daemon/copy", pinned, slice_other, 0)) < 0) {
        return rc;
    }
    zbench_child_end(&b->other);
    rc = gpu_case_nvme(b, FIXED);
    return rc < 0 ? rc : gpu_case_nvme(b, DRIVE);
}

/* ---- begin and end */

static int gpu_open(struct gpu_bench *b)
{
    struct zb_err *err = &b->z->err;
    int rc = zbench_device_open(b->z, b->device, &b->gpu, &b->stream);

    if (rc < 0)
        return rc;
    zbench_note(b->z, "%s in %u units", zb_size_text(b->size).s, b->units);
    b->own = mmap(NULL, b->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->own == MAP_FAILED) {
        b->own = NULL;
        return zb_fail(err, -ENOMEM, "%s of memory: %m", zb_size_text(b->size).s);
    }
    memset(b->own, 1, b->size);
    if ((rc = zk_gpu_pin(b->gpu, b->own, b->size, false, err)) < 0 ||
        (rc = zk_gpu_alloc(b->gpu, b->size, 0, &b->to, err)) < 0)
        return rc;
    for (unsigned i = 0; i < GPU_AHEAD && rc == 0; i++)
        rc = zk_gpu_event_new(b->gpu, &b->events[i], err);
    return rc;
}

static void gpu_end(struct gpu_bench *b)
{
    zbench_child_end(&b->other);
    if (b->stream)
        (void)zk_gpu_stream_sync(b->stream, NULL);
    (void)arena_unpin(b);
    (void)zbench_rig_end(&b->rig, -ECANCELED); /* still running if a case failed */
    zbench_drive_close(b->drive);
    for (unsigned i = 0; i < GPU_AHEAD; i++)
        zk_gpu_event_free(b->events[i]);
    zk_gpu_stream_free(b->stream);
    zk_gpu_free(b->to);
    if (b->own) {
        (void)zk_gpu_unpin(b->gpu, b->own, NULL);
        (void)munmap(b->own, b->size);
    }
    zk_gpu_close(b->gpu);
}

static int gpu_main(struct zbench *z, void *bench)
{
    struct gpu_bench *b = bench;
    int rc;

    b->z = z;
    b->rig.daemon = ZBENCH_NO_DAEMON;
    b->other = ZBENCH_NO_CHILD;
    b->unit_bytes = zb_min_u64(GPU_UNIT, b->size / GPU_UNITS_MIN) >> 20 << 20;
    b->units = (uint32_t)zb_min_u64(b->size / b->unit_bytes, GPU_UNITS_MAX);
    b->size = b->units * b->unit_bytes;
    rc = zbench_other_start(&b->other, b->device, &z->err);
    if (rc == 0)
        rc = gpu_open(b);
    if (rc == 0)
        rc = gpu_cases(b);
    gpu_end(b);
    return rc;
}

#define AT(member) ZB_OPT_AT(struct gpu_bench, member)

static const struct zb_opt gpu_options[] = {
    { "gpu", ZB_OPT_FLAG, AT(gpu_flag) },
    { "device", ZB_OPT_TEXT, AT(device), .arg = "NAME", .def = "cuda" },
    { "size", ZB_OPT_SIZE, AT(size), .arg = "SIZE", .def = "1G", .min = GPU_UNITS_MIN * ZB_MIB },
    { "rate", ZB_OPT_SIZE, AT(rate), .arg = "SIZE", .def = "1000000000", .min = 1 },
    ZBENCH_DIR(struct gpu_bench, "/tmp"),
    ZBENCH_ROUNDS(struct gpu_bench, "9"),
    { 0 },
};

const struct zbench_cmd zbench_fetch_gpu = {
    .name = "fetch",
    .flag = "--gpu",
    .help = "fetches into a GPU's memory, against a copy from pinned memory",
    .options = gpu_options,
    .bytes = sizeof(struct gpu_bench),
    .run = gpu_main,
};
