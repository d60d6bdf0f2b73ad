#include "tests/integ/saved.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/plan.h"
#include "base/util.h"

#define PAGE    4096u
#define STAGING (512u << 10)

static const struct zc_tensor frozen[] = {
    { "frozen", 0, 1, { 3 * PAGE }, ZC_GROUP_FROZEN, false },
};
/* Elements of no tensor are not stepped: the first elements of u4. */
static const struct zc_tensor t0[] = { { "t0", 0, 1, { 7 * PAGE + 100 }, 0, false } };
static const struct zc_tensor t1[] = { { "t1", 0, 1, { 12 * PAGE }, 0, false } };
static const struct zc_tensor t3[] = { { "t3", 0, 1, { 100 }, 0, false } };
static const struct zc_tensor t4[] = { { "t4", 10, 1, { 9 * PAGE - 9 }, 0, false } };

static const struct zc_unit usual_units[SV_UNITS] = {
    { 0, "u0", 7 * PAGE + 100, ZC_F32, ZC_F32, false, false, t0, 1 },
    { 1, "u1", 12 * PAGE, ZC_BF16, ZC_F32, false, false, t1, 1 },
    { 2, "u2", 3 * PAGE, ZC_F32, ZC_F32, true, false, frozen, 1 },
    { 3, "u3", 100, ZC_BF16, ZC_F32, false, false, t3, 1 },
    { 4, "u4", 9 * PAGE + 1, ZC_BF16, ZC_F32, false, false, t4, 1 },
};

const struct zc_unit *sv_units = usual_units;

static const enum zc_what whats[SV_WHATS] = { ZC_PARAM, ZC_MASTER, ZC_EXP_AVG, ZC_EXP_AVG_SQ };
const struct zc_group sv_groups[SV_GROUPS] = { { .lr = 0.1,
                                                 .beta1 = 0.9,
                                                 .beta2 = 0.99,
                                                 .eps = 1e-8,
                                                 .weight_decay = 0.01,
                                                 .momentum = 0.5,
                                                 .lr_decay = 0.1 } };

const struct sv_place sv_places[SV_PLACES] = {
    { "resident", 0, "uring" },
    { "streamed", 3 * ZB_MIB, "uring" },
    { "streamed, threads", 3 * ZB_MIB, "threads" },
    { "mixed", 4 * ZB_MIB, "uring" },
};

const char *sv_name = "job";
enum zc_optimizer sv_optimizer = ZC_ADAMW;
enum zc_moments sv_moments = ZC_MOMENTS_F32;
enum zc_place sv_param;
const char *sv_device;

const char *sv_options[] = {
    "--host-bytes", "32M",          "--nvme-bytes", "24M",  "--page-elems", "8192", "--ring-bytes",
    "1M",           "--timeout-ms", "120000",       "--io", "uring",        NULL
};

struct zc_job_options sv_job(unsigned place)
{
    return (struct zc_job_options){ .name = sv_name,
                                    .staging_bytes = STAGING,
                                    .groups = 1,
                                    .keep = true,
                                    .durable = true,
                                    .optimizer = sv_optimizer,
                                    .moments = sv_moments,
                                    .offload_param = sv_param,
                                    .device = sv_device,
                                    .host_bytes_max = sv_places[place].host_bytes_max };
}

float sv_value(uint64_t element)
{
    return 1.0f + (float)(element % 1000) / 7;
}

static uint64_t grad_step;

static float grad(uint64_t element)
{
    return (float)((element + 13 * grad_step) % 17) - 8.0f;
}

void sv_fill(struct zi_rank *ranks, unsigned world)
{
    for (unsigned r = 0; r < world; r++)
        for (unsigned u = 0; u < SV_UNITS; u++)
            if (ranks[r].shards[u])
                zi_write_all(&ranks[r], u, sv_value);
}

int sv_push_try(struct zi_rank *ranks, unsigned world, uint64_t number, unsigned *rank)
{
    int rc;

    grad_step = number;
    for (*rank = 0; *rank < world; ++*rank)
        for (unsigned u = 0; u < SV_UNITS; u++)
            if (ranks[*rank].shards[u] && !sv_units[u].frozen) {
                rc = zi_push_try(&ranks[*rank], u, number, grad);
                if (rc < 0)
                    return rc;
            }
    return 0;
}

void sv_push(struct zi_rank *ranks, unsigned world, uint64_t number)
{
    unsigned rank;
    int rc = sv_push_try(ranks, world, number, &rank);

    if (rc < 0)
        fail_msg("push of step %llu: %d, %s", (unsigned long long)number, rc,
                 zc_error(ranks[rank].c));
}

void sv_step(struct zi_rank *ranks, unsigned world, uint64_t number, enum zc_commit commit)
{
    struct zc_step step = { .step = number,
                            .scale = 1,
                            .groups = sv_groups,
                            .ngroups = 1,
                            .commit = commit,
                            .timeout_ms = 120000 };
    struct zc_stepped stepped[SV_WORLD_MAX];
    struct zi_call calls[SV_WORLD_MAX];
    const char *text;
    int rc;

    sv_push(ranks, world, number);
    zi_step_ask(ranks, world, &step, false, stepped, calls);
    rc = zi_await_all(ranks, world, calls, &text);
    if (rc < 0)
        fail_msg("step %llu: %d, %s", (unsigned long long)number, rc, text);
    for (unsigned r = 0; r < world; r++) {
        assert_int_equal(stepped[r].applied, number);
        if (stepped[r].commit_code != 0)
            fail_msg("commit of step %llu: %s", (unsigned long long)number, stepped[r].commit_text);
    }
}

/* Elements of a unit as stored: up to the end of its last block. */
static uint64_t padded(unsigned u)
{
    return zb_padded_elems(sv_units[u].elems);
}

static bool has(unsigned u, unsigned w)
{
    if (!sv_units[u].frozen)
        return whats[w] != ZC_EXP_AVG_SQ || zb_moment_name((enum zb_optimizer)sv_optimizer, 1);
    return whats[w] == ZC_PARAM || (whats[w] == ZC_MASTER && sv_units[u].dtype == ZC_F32);
}

void sv_dump_free(struct sv_dump *d)
{
    for (unsigned u = 0; u < SV_UNITS; u++)
        for (unsigned w = 0; w < SV_WHATS; w++)
            free(d->values[u][w]);
    *d = (struct sv_dump){ 0 };
}

static void dump_shard(struct sv_dump *d, struct zi_rank *r, unsigned u, unsigned w)
{
    uint64_t page = zc_server(r->c)->page_elems, count = r->ranges[u].count;
    size_t bytes = whats[w] == ZC_PARAM && sv_units[u].dtype != ZC_F32 ? 2 : 4;

    for (uint64_t first = 0, n; first < count; first += n) {
        n = zb_min_u64(STAGING / 4 / page * page, count - first);
        if (zc_read_wait(r->c, r->shards[u], whats[w], first, n, r->job.staging) < 0)
            fail_msg("read unit %u: %s", u, zc_error(r->c));
        memcpy((char *)d->values[u][w] + (r->ranges[u].first + first) * bytes, r->job.staging,
               n * bytes);
    }
}

void sv_dump_take(struct sv_dump *d, struct zi_rank *ranks, unsigned world)
{
    sv_dump_free(d);
    for (unsigned u = 0; u < SV_UNITS; u++) {
        for (unsigned w = 0; w < SV_WHATS; w++) {
            if (!has(u, w))
                continue;
            d->values[u][w] = calloc(padded(u), sizeof(float));
            assert_non_null(d->values[u][w]);
            for (unsigned r = 0; r < world; r++)
                if (ranks[r].shards[u])
                    dump_shard(d, &ranks[r], u, w);
        }
    }
}

void sv_dump_same(const char *when, struct sv_dump *was, struct zi_rank *ranks, unsigned world)
{
    struct sv_dump now = { 0 };

    sv_dump_take(&now, ranks, world);
    for (unsigned u = 0; u < SV_UNITS; u++)
        for (unsigned w = 0; w < SV_WHATS; w++)
            if (has(u, w) &&
                memcmp(was->values[u][w], now.values[u][w], padded(u) * sizeof(float)) != 0)
                fail_msg("%s: unit %u, plane %u differs", when, u, w);
    sv_dump_free(&now);
}

int sv_attach(struct zi_rank *ranks, unsigned world, const struct zi_daemon *d, unsigned place,
              bool takeover, const uint64_t *at)
{
    struct zc_job_options o = sv_job(place);
    struct zi_call calls[SV_WORLD_MAX];
    int rc = 0;

    o.attach = true;
    o.world = world;
    for (o.rank = 0; o.rank < world; o.rank++) {
        o.takeover = takeover && o.rank == 0;
        o.epoch = o.rank == 0 ? 0 : ranks[0].job.epoch;
        rc = zi_open(&ranks[o.rank], d, &o);
        if (rc < 0)
            fail_msg("attach: %d, %s", rc, zc_error(ranks[o.rank].c));
        zi_define(&ranks[o.rank], sv_units, SV_UNITS, world);
    }
    for (unsigned r = 0; r < world; r++) {
        calls[r] = ZI_CALL(&ranks[r]);
        assert_int_equal(zc_ready(ranks[r].c, ranks[r].job.id, at, ZI_WAIT_MS, &ranks[r].place,
                                  zi_done, &calls[r]),
                         0);
    }
    for (unsigned r = 0; r < world; r++)
        if (zi_await(ranks, world, &calls[r]) < 0) {
            rc = calls[r].rc;
            print_message("ready: %d, %s\n", rc, calls[r].text);
        }
    return rc;
}

void sv_hang_up(struct zi_rank *ranks, unsigned world)
{
    for (unsigned r = 0; r < world; r++) {
        zc_close(ranks[r].c);
        ranks[r].c = NULL;
    }
}

void sv_begin(struct zi_rank *ranks, unsigned world, struct zi_daemon *d, unsigned place)
{
    sv_options[11] = sv_places[place].io;
    zi_start(d, sv_options);
    sv_open(ranks, world, d, place);
}

void sv_open(struct zi_rank *ranks, unsigned world, const struct zi_daemon *d, unsigned place)
{
    const struct zc_job_options o = sv_job(place);

    zi_job(ranks, world, d, &o, sv_units, SV_UNITS);
    sv_fill(ranks, world);
}

/* ---- a reference run */

uint64_t sv_want(struct sv_dump *want, uint64_t steps)
{
    struct zi_rank ranks[2];
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    uint64_t state_bytes;

    sv_begin(ranks, 2, &d, 0);
    sv_dump_take(&want[0], ranks, 2);
    for (uint64_t k = 1; k <= steps; k++) {
        sv_step(ranks, 2, k, ZC_COMMIT_NO);
        sv_dump_take(&want[k], ranks, 2);
    }
    c = zi_client(&d);
    state_bytes = zi_tier(c, "host").state;
    zc_close(c);
    zi_close(ranks, 2);
    zi_stop(&d);
    return state_bytes;
}

void sv_want_free(struct sv_dump *want, uint64_t steps)
{
    for (uint64_t k = 0; k <= steps; k++)
        sv_dump_free(&want[k]);
}

/* ---- the data file */

void sv_flip_all(const struct zi_daemon *d)
{
    char path[160];
    uint8_t bytes[65536];
    ssize_t n;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/pages.zsd", d->data);
    fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    for (off_t at = ZI_DATA_START; (n = pread(fd, bytes, sizeof(bytes), at)) > 0; at += n) {
        for (ssize_t i = 0; i < n; i++)
            bytes[i] ^= 0x01;
        assert_int_equal(pwrite(fd, bytes, (size_t)n, at), n);
    }
    assert_int_equal(fsync(fd), 0);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    (void)close(fd);
}
