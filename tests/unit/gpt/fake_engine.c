/*
 * fake_engine.c - see fake_engine.h. Weights are fp32 masters; a bf16 or fp16 unit returns the
 * rounded masters. A dynamic loss scale is FAKE_SCALE. The step is AdamW's. Wrong use by the
 * trainer fails an assertion.
 */
#include "tests/unit/gpt/fake_engine.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/zero/zc_zero.h"

#define UNITS_MAX 16

struct fake_engine fake;

struct unit {
    uint64_t elems;
    enum zc_dtype dtype;
    float *master, *m, *v, *sum, *grad; /* grad: of this micro-step, or NULL */
    float *decay;                       /* by element */
    uint16_t *half;
    unsigned gathered;
    bool reduced, frozen;
};

struct zc_zero;
static void keep(struct zc_zero *z);
static void resume(struct zc_zero *z);

struct zc_zero {
    struct zc_zero_options options;
    struct unit units[UNITS_MAX];
    uint32_t nunits, trained, reduced, micro;
    bool started;
    int failed;
    uint64_t iterations, applied, fetched;
};

static int call(struct zc_zero *z)
{
    if (z && z->failed)
        return z->failed;
    if (++fake.calls != fake.fail_at)
        return 0;
    if (z)
        z->failed = -EOWNERDEAD;
    return -EOWNERDEAD;
}

const char *zc_strerror(int rc)
{
    return rc == 0 ? "" : "no memory for the engine, says the test";
}

static void comm_close(struct zc_comm *comm, bool clean)
{
    fake.comm_closed++;
    assert(fake.closed == fake.opened); /* the engine must be closed first */
    assert(clean == fake.closed_clean || fake.opened == 0);
    free(comm);
}

int zc_comm_open(struct zc_comm **ret, const char *name, char *error, size_t error_bytes)
{
    static const struct zc_comm_ops ops = { .name = "fake", .close = comm_close };

    assert(strcmp(name, "auto") == 0);
    if (call(NULL) != 0) {
        (void)snprintf(error, error_bytes, "%s", FAKE_MESSAGE);
        return -EOWNERDEAD;
    }
    *ret = calloc(1, sizeof(**ret));
    **ret = (struct zc_comm){ .ops = &ops, .rank = 0, .world = fake.world };
    fake.comm_opened++;
    return 0;
}

void zc_comm_close(struct zc_comm *comm, bool clean)
{
    comm->ops->close(comm, clean);
}

void zc_zero_defaults(struct zc_zero_options *options)
{
    *options = (struct zc_zero_options){
        .micro_steps = 1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .groups = 1
    };
}

int zc_zero_open(struct zc_zero **ret, const struct zc_zero_options *options)
{
    struct zc_zero *z = calloc(1, sizeof(*z));

    assert(options->comm && options->micro_steps >= 1 && options->groups == 2);
    assert(options->beta1 == 0.9);
    fake.options = *options;
    fake.quantized = 0;
    assert(options->weight_decay[1] == 0);
    z->options = *options;
    (void)snprintf(fake.socket, sizeof(fake.socket), "%s", options->socket ? options->socket : "");
    fake.opened++;
    *ret = z;
    return call(z);
}

void zc_zero_close(struct zc_zero *z, bool clean)
{
    if (!z)
        return;
    if (z->options.keep && z->started)
        keep(z);
    for (uint32_t u = 0; u < z->nunits; u++) {
        struct unit *x = &z->units[u];

        assert(!clean || x->gathered == 0);
        free(x->master);
        free(x->m);
        free(x->v);
        free(x->sum);
        free(x->grad);
        free(x->decay);
        free(x->half);
    }
    fake.closed++;
    fake.closed_clean = clean;
    assert(!clean || !z->failed);
    free(z);
}

const char *zc_zero_error(const struct zc_zero *z)
{
    return z->failed ? FAKE_MESSAGE : "";
}

int zc_zero_add_unit(struct zc_zero *z, const struct zc_unit *unit)
{
    struct unit *x = &z->units[z->nunits];
    int rc = call(z);

    if (rc != 0)
        return rc;
    assert(unit->index == z->nunits && z->nunits < UNITS_MAX && !z->started);
    x->elems = unit->elems;
    x->dtype = unit->dtype;
    x->frozen = unit->frozen;
    z->trained += !unit->frozen;
    fake.quantized += unit->quantized;
    assert(unit->frozen || !unit->quantized);
    x->master = calloc(x->elems, sizeof(float));
    x->m = calloc(x->elems, sizeof(float));
    x->v = calloc(x->elems, sizeof(float));
    x->sum = calloc(x->elems, sizeof(float));
    x->decay = calloc(x->elems, sizeof(float));
    x->half = calloc(x->elems, sizeof(uint16_t));
    z->nunits++;
    for (uint32_t k = 0; k < unit->ntensors; k++) {
        const struct zc_tensor *t = &unit->tensors[k];
        uint64_t elems = 1;

        assert((t->group == ZC_GROUP_FROZEN) == unit->frozen);
        for (uint32_t d = 0; d < t->ndims; d++)
            elems *= t->dims[d];
        for (uint64_t i = t->first; i < t->first + elems; i++)
            x->decay[i] = unit->frozen ? 0 : (float)z->options.weight_decay[t->group];
    }
    return 0;
}

/* Calls init for pieces of an odd size, like the slices of a rank. */
int zc_zero_start(struct zc_zero *z, zc_zero_init_fn *init, void *arg)
{
    int rc = call(z);

    if (rc == 0 && z->options.resume) {
        rc = fake.other_job ? -EINVAL : 0;
        if (rc == 0)
            resume(z);
        z->failed = rc;
        z->started = rc == 0;
        return rc;
    }
    for (uint32_t u = 0; u < z->nunits && rc == 0; u++)
        for (uint64_t at = 0; at < z->units[u].elems && rc == 0; at += 1001) {
            uint64_t left = z->units[u].elems - at;

            rc = init(arg, u, at, left < 1001 ? left : 1001, z->units[u].master + at);
        }
    z->failed = rc;
    z->started = rc == 0;
    return rc;
}

static uint16_t round_away(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return (uint16_t)((bits + 0x8000) >> 16);
}

/* fp16, ties to even: normal numbers have 11 bits; below them, multiples of 2^-24. */
static uint16_t round_half(float x)
{
    int power;
    float ulp;
    long n;

    (void)frexpf(x, &power);
    ulp = ldexpf(1, power - 11 < -24 ? -24 : power - 11);
    n = lrintf(fabsf(x) / ulp); /* 1024 to 2048 for a normal number */
    assert(fabsf(x) < 65504);
    power = n < 1024 ? 0 : ilogbf(ulp) + 25;
    return (uint16_t)((signbit(x) ? 0x8000 : 0) + (power > 0 ? (power - 1) * 1024 : 0) + n);
}

static float half_value(uint16_t h)
{
    int power = h >> 10 & 31, fraction = h & 1023;
    float x = power ? ldexpf((float)(fraction + 1024), power - 25) : ldexpf((float)fraction, -24);

    return h >> 15 ? -x : x;
}

static float round_even(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&x, &bits, sizeof(bits));
    return x;
}

int zc_zero_gather(struct zc_zero *z, uint32_t unit, const void **ret_params)
{
    struct unit *x = &z->units[unit];
    int rc = call(z);

    if (rc != 0)
        return rc;
    assert(z->started && unit < z->nunits);
    x->gathered++;
    *ret_params = x->master;
    z->fetched += x->elems * (x->dtype == ZC_F32 ? 4 : 2);
    if (x->dtype != ZC_F32) {
        for (uint64_t i = 0; i < x->elems; i++)
            x->half[i] = x->dtype == ZC_BF16 ? round_away(x->master[i]) : round_half(x->master[i]);
        *ret_params = x->half;
    }
    return 0;
}

int zc_zero_release(struct zc_zero *z, uint32_t unit)
{
    int rc = call(z);

    if (rc != 0)
        return rc;
    assert(z->units[unit].gathered > 0);
    if (--z->units[unit].gathered == 0) /* later reads get garbage */
        for (uint64_t i = 0; i < z->units[unit].elems; i++)
            z->units[unit].half[i] = 0x7fc0;
    return 0;
}

int zc_zero_grad(struct zc_zero *z, uint32_t unit, float **ret_grad)
{
    struct unit *x = &z->units[unit];
    int rc = call(z);

    if (rc != 0)
        return rc;
    assert(!x->reduced && !x->frozen);
    if (!x->grad)
        x->grad = calloc(x->elems, sizeof(float));
    *ret_grad = x->grad;
    return 0;
}

int zc_zero_reduce(struct zc_zero *z, uint32_t unit)
{
    struct unit *x = &z->units[unit];
    int rc = call(z);

    if (rc != 0)
        return rc;
    assert(x->grad && !x->reduced);
    for (uint64_t i = 0; i < x->elems; i++)
        x->sum[i] += x->dtype == ZC_BF16  ? round_even(x->grad[i])
                     : x->dtype == ZC_F16 ? half_value(round_half(x->grad[i]))
                                          : x->grad[i];
    free(x->grad);
    x->grad = NULL;
    x->reduced = true;
    if (++z->reduced == z->trained) {
        z->reduced = 0;
        z->micro++;
        for (uint32_t u = 0; u < z->nunits; u++)
            z->units[u].reduced = false;
    }
    return 0;
}

static void step_unit(struct zc_zero *z, struct unit *x, double lr, double scale)
{
    double c1 = 1 - pow(0.9, (double)z->applied), c2 = 1 - pow(0.999, (double)z->applied);

    for (uint64_t i = 0; i < x->elems; i++) {
        float g = (float)(x->sum[i] * scale);

        x->master[i] *= (float)(1 - lr * (double)x->decay[i]);
        x->m[i] += 0.1f * (g - x->m[i]);
        x->v[i] = 0.999f * x->v[i] + (float)(1 - 0.999) * g * g;
        x->master[i] -= (float)(lr / c1) * x->m[i] /
                        (sqrtf(x->v[i]) * (float)(1 / sqrt(c2)) + 1e-8f);
    }
}

double zc_zero_loss_scale(const struct zc_zero *z)
{
    const struct zc_loss_scale *s = &z->options.loss_scale;

    return s->dynamic ? FAKE_SCALE : s->fixed > 0 ? s->fixed : 1;
}

int zc_zero_announce(struct zc_zero *z, double lr)
{
    (void)lr;
    return call(z);
}

int zc_zero_step(struct zc_zero *z, double lr, struct zc_zero_stepped *ret)
{
    double sum = 0, scale = 1.0 / z->options.micro_steps / zc_zero_loss_scale(z);
    int rc = call(z);

    if (rc != 0)
        return rc;
    assert(z->micro == (z->options.vertical ? 1 : z->options.micro_steps) && z->reduced == 0);
    z->micro = 0;
    if (z->iterations < sizeof(fake.lrs) / sizeof(fake.lrs[0]))
        fake.lrs[z->iterations] = lr;
    z->iterations++;
    for (uint32_t u = 0; u < z->nunits; u++)
        for (uint64_t i = 0; i < z->units[u].elems; i++)
            sum += pow(z->units[u].sum[i] * scale, 2);
    *ret = (struct zc_zero_stepped){ .iterations = z->iterations,
                                     .grad_norm = fake.skip_next_step ? NAN : sqrt(sum),
                                     .clip_scale = 1,
                                     .loss_scale = zc_zero_loss_scale(z),
                                     .skipped = fake.skip_next_step };
    if (z->options.clip > 0)
        ret->clip_scale = fmin(1, z->options.clip / (sqrt(sum) + 1e-6));
    if (!fake.skip_next_step) {
        z->applied++;
        for (uint32_t u = 0; u < z->nunits; u++)
            if (!z->units[u].frozen)
                step_unit(z, &z->units[u], lr, scale * ret->clip_scale);
    }
    fake.skip_next_step = false;
    for (uint32_t u = 0; u < z->nunits; u++)
        memset(z->units[u].sum, 0, z->units[u].elems * sizeof(float));
    ret->applied = z->applied;
    return 0;
}

int zc_zero_commit(struct zc_zero *z)
{
    int rc = call(z);

    if (rc != 0)
        return rc;
    assert(z->options.keep && z->options.durable);
    fake.committed = z->iterations;
    return fake.commit_rc;
}

int zc_zero_note_put(struct zc_zero *z, bool of_job, const void *note, size_t bytes)
{
    int rc = call(z);

    if (rc != 0)
        return rc;
    assert(of_job && bytes < sizeof(fake.note) && z->options.keep);
    memcpy(fake.note, note, bytes);
    fake.note_bytes = bytes;
    return 0;
}

int zc_zero_note_get(struct zc_zero *z, bool of_job, void *buf, size_t *ret_bytes)
{
    int rc = call(z);

    if (rc != 0)
        return rc;
    assert(of_job && z->options.resume);
    memcpy(buf, fake.note, fake.note_bytes);
    *ret_bytes = fake.note_bytes;
    return 0;
}

int zc_zero_progress(struct zc_zero *z, uint64_t *ret_iterations, uint64_t *ret_applied)
{
    int rc = call(z);

    *ret_iterations = z->iterations;
    *ret_applied = z->applied;
    return rc;
}

/* The state of the last engine that was closed, if its job was kept. */
static struct kept {
    uint64_t iterations, applied;
    float *master[UNITS_MAX], *m[UNITS_MAX], *v[UNITS_MAX];
} kept;

static void keep(struct zc_zero *z)
{
    kept.iterations = z->iterations;
    kept.applied = z->applied;
    for (uint32_t u = 0; u < z->nunits; u++) {
        free(kept.master[u]);
        free(kept.m[u]);
        free(kept.v[u]);
        kept.master[u] = z->units[u].master;
        kept.m[u] = z->units[u].m;
        kept.v[u] = z->units[u].v;
        z->units[u].master = z->units[u].m = z->units[u].v = NULL;
    }
}

static void resume(struct zc_zero *z)
{
    z->iterations = kept.iterations;
    z->applied = kept.applied;
    for (uint32_t u = 0; u < z->nunits; u++) {
        memcpy(z->units[u].master, kept.master[u], z->units[u].elems * sizeof(float));
        memcpy(z->units[u].m, kept.m[u], z->units[u].elems * sizeof(float));
        memcpy(z->units[u].v, kept.v[u], z->units[u].elems * sizeof(float));
    }
}

void fake_forget(void)
{
    for (uint32_t u = 0; u < UNITS_MAX; u++) {
        free(kept.master[u]);
        free(kept.m[u]);
        free(kept.v[u]);
    }
    memset(&kept, 0, sizeof(kept));
}

int zc_zero_sum(struct zc_zero *z, double *values, uint32_t n)
{
    int rc = call(z);

    for (uint32_t i = 0; i < n && rc == 0; i++)
        values[i] *= fake.world; /* every rank has the same */
    return rc;
}

int zc_zero_poll(struct zc_zero *z)
{
    return call(z);
}

int zc_zero_read(struct zc_zero *z, uint32_t unit, enum zc_what what, uint64_t first,
                 uint64_t count, float *out)
{
    int rc = call(z);

    if (rc != 0)
        return rc;
    assert(what == (z->units[unit].frozen ? ZC_PARAM : ZC_MASTER)); /* no other */
    assert(first + count <= z->units[unit].elems);
    memcpy(out, z->units[unit].master + first, count * sizeof(*out));
    return 0;
}

int zc_zero_stats(struct zc_zero *z, struct zc_zero_stats *ret)
{
    int rc = call(z);

    if (rc != 0)
        return rc;
    *ret = (struct zc_zero_stats){ .fetched_bytes = z->fetched,
                                   .nvme_read_bytes = 100 * z->iterations,
                                   .nvme_written_bytes = 30 * z->iterations,
                                   .host_bytes = 5000000,
                                   .nvme_bytes = 70,
                                   .stall_seconds = 0.25 * (double)z->iterations,
                                   .gpu_why = "",
                                   .node_gather_why = "" };
    return 0;
}

/* There is no device here: test_device.py uses the real engine. */
const char *zc_zero_device(struct zc_zero *z)
{
    (void)z;
    return NULL;
}

void *zc_zero_stream(struct zc_zero *z)
{
    (void)z;
    return NULL;
}

void zc_zero_bytes(const struct zc_zero *z, struct zc_zero_bytes *ret)
{
    (void)z;
    *ret = (struct zc_zero_bytes){ .param = 1, .grad = 2, .state = 3 };
}

uint64_t zc_zero_device_bytes(const struct zc_zero *z)
{
    (void)z;
    return 0;
}
