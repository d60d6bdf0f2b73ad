/*
 * Settings of the service must not change the result: a long training is cut into lives with random
 * settings.
 *
 * MODEL. A step depends on its number alone (gradients, micro-steps, scalars, and whether a value
 * is not finite, which skips it), so a step that is made again has the same result. The reference
 * is made first, on arrays of whole units with the reference kernels: norms of each step, a
 * checksum of the parameters of each version, and all planes at the end. Then a durable job makes
 * the same training in lives of random length. Each life draws: ranks, host and GPU memory,
 * kernels, compute threads, I/O engine and depth, page buffers, whether parameters are requested on
 * the GPU (then they are checked there), and how the life before it ends:
 *
 *     leave   the ranks close, the daemon stays       resumes from memory
 *     end     the daemon ends in good order           resumes where it ended
 *     kill    the daemon is killed                    resumes from the last commit
 *
 * often in the middle of a step. Each step draws the order of pushes, their parts, whether it
 * begins early, which units are fetched before, during and after it, whether it commits, and
 * sometimes another budget of host memory or of an emulated GPU, with which state moves during the
 * step. The page size is fixed for a run, because a job on disk keeps it. At the end every byte of
 * every plane is compared.
 *
 * ZSHARD_GPU names a GPU other than the emulated one. The seed is printed: ZSHARD_SEED=... repeats
 * a run; ZSHARD_STEPS=... makes each longer.
 */
#include "tests/integ/draw.h"
#include "tests/integ/zinteg.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plan.h"
#include "base/util.h"
#include "kernels/gpu.h"
#include "kernels/zk_page.h"

#define UNITS        6u
#define GROUPS       2u
#define WORLD_MAX    3u
#define MICROS_MAX   3u
#define PARTS_MAX    8u
#define LIFE_MAX     40u /* steps of a long life, */
#define LIFE_SHORT   5u  /* and of a short one */
#define SURE_STEPS   500u
#define STAGING      (512u << 10)
#define HOST_BYTES   (UINT64_C(64) << 20)
#define HOST_TEXT    "64M"
#define GPU_EMULATED "emulated:16M:::4K"
#define SEED_DEFAULT UINT64_C(20261121)

/* ---- the GPU: an emulated one, or the one that ZSHARD_GPU names */

static const char *gpu_name(void)
{
    const char *name = getenv("ZSHARD_GPU");

    return name && *name && strcmp(name, "emulated") != 0 ? name : GPU_EMULATED;
}

/* Enough for some of the state. A real GPU allocates memory in units of 2 MiB, so there it is all
 * or nothing.
 */
static uint64_t gpu_bytes(void)
{
    return UINT64_C(1) << (strcmp(gpu_name(), GPU_EMULATED) == 0 ? 20 : 23);
}

/* ---- what is trained */

struct kind {
    const char *name;
    enum zc_dtype dtype, grad_dtype;
    enum zc_optimizer optimizer;
    enum zc_moments moments;
    unsigned weight; /* its part of the steps */
};

static const struct kind kinds[] = {
    { "adamw, bf16", ZC_BF16, ZC_F32, ZC_ADAMW, ZC_MOMENTS_F32, 10 },
    { "adamw, fp32", ZC_F32, ZC_F32, ZC_ADAMW, ZC_MOMENTS_F32, 2 },
    { "adamw, fp16", ZC_F16, ZC_F16, ZC_ADAMW, ZC_MOMENTS_F32, 1 },
    { "adam, bf16", ZC_BF16, ZC_BF16, ZC_ADAM, ZC_MOMENTS_F32, 1 },
    { "lion, bf16", ZC_BF16, ZC_F32, ZC_LION, ZC_MOMENTS_F32, 1 },
    { "sgd, fp32", ZC_F32, ZC_F32, ZC_SGD, ZC_MOMENTS_F32, 1 },
    { "adagrad, fp16", ZC_F16, ZC_F32, ZC_ADAGRAD, ZC_MOMENTS_F32, 1 },
    { "adamw, bf16, moments bf16", ZC_BF16, ZC_F32, ZC_ADAMW, ZC_MOMENTS_BF16, 1 },
    { "adamw, bf16, moments 8bit", ZC_BF16, ZC_F32, ZC_ADAMW, ZC_MOMENTS_Q8, 1 },
    { "adamw, bf16, moments 8bit-lo", ZC_BF16, ZC_F32, ZC_ADAMW, ZC_MOMENTS_Q8_LO, 1 },
    { "lion, fp32, moments 8bit", ZC_F32, ZC_F32, ZC_LION, ZC_MOMENTS_Q8, 1 },
};

/* Blocks and partial ones, a hole with a frozen tensor in it, a frozen unit, one of few
 * elements. */
static const struct zc_tensor embed[] = { { "a", 0, 1, { 7000 }, 0, false },
                                          { "b", 7000, 1, { 2000 }, 1, false } };
static const struct zc_tensor block[] = { { "a", 0, 1, { 5001 }, 0, false },
                                          { "b", 5010, 1, { 90 }, ZC_GROUP_FROZEN, false },
                                          { "c", 5100, 1, { 15381 }, 1, false } };
static const struct zc_tensor norm[] = { { "g", 0, 1, { 7 }, 1, false } };
static const struct zc_tensor layer[] = { { "w", 0, 1, { 8193 }, 0, false } };
static const struct zc_unit shapes[UNITS] = {
    { .name = "embed", .elems = 9000, .tensors = embed, .ntensors = 2 },
    { .name = "block", .elems = 20481, .tensors = block, .ntensors = 3 },
    { .name = "table", .elems = 4097, .frozen = true },
    { .name = "norm", .elems = 7, .tensors = norm, .ntensors = 1 },
    { .name = "layer.0", .elems = 8193, .tensors = layer, .ntensors = 1 },
    { .name = "layer.1", .elems = 8193, .tensors = layer, .ntensors = 1 },
};

/* A gradient that is not finite: value, unit, position and step. */
struct bad {
    uint64_t step, elem;
    unsigned unit;
    float value;
};

struct train {
    const struct kind *kind;
    uint64_t salt, steps;
    struct bad bad; /* step 0: random, in about one of 16 steps */
    const struct zk_ops *ref;
    struct zc_unit units[UNITS];
    struct zb_layout layouts[UNITS];
    struct zk_segment segments[UNITS][3];
    unsigned nsegments[UNITS];
    /* the reference, at its present step */
    uint8_t *param[UNITS], *state[UNITS], *grad[UNITS];
    uint64_t iterations, applied;
    /* what it had after each step */
    struct zc_norm *norms;   /* [step] */
    uint64_t *applied_at;    /* [step] */
    uint64_t (*sums)[UNITS]; /* [version] */
    void *pushed[UNITS];     /* the gradients of a micro-step */
    float *floats;
    uint64_t skips, fetches, early, pages_early,
        moved;              /* totals of lives: pages made early, NVMe bytes */
    unsigned budgets;       /* how often one was set between two steps */
    uint64_t spilled;       /* steps of lives with gradients on NVMe */
    uint64_t on_gpu;        /* and steps with state on the GPU */
    uint64_t params_on_gpu; /* and steps with parameters there */
};

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t state = a * UINT64_C(0x9e3779b97f4a7c15) ^ b;

    return ztest_random(&state);
}

static uint64_t padded(const struct train *t, unsigned u)
{
    return zb_padded_elems(t->units[u].elems);
}

static float value(const struct train *t, uint64_t stream, uint64_t elem)
{
    return (float)((double)(int64_t)mix(t->salt ^ stream, elem) * 0x1p-63);
}

static unsigned micros_of(const struct train *t, uint64_t step)
{
    return t->kind->grad_dtype == ZC_F32 ? 1 + (unsigned)(mix(t->salt, step) % MICROS_MAX) : 1;
}

static struct bad bad_of(const struct train *t, uint64_t step)
{
    static const unsigned units[] = { 0, 1, 3, 4, 5 };
    static const float values[] = { INFINITY, -INFINITY, NAN };
    uint64_t x = mix(t->salt ^ 77, step);
    struct bad b = t->bad;

    if (b.step > 0 || x % 16 != 0)
        return b;
    b = (struct bad){ .step = step, .unit = units[x / 16 % 5], .value = values[x / 128 % 3] };
    b.elem = x / 1024 % t->units[b.unit].elems;
    return b;
}

/* An fp32 plane also accepts bf16 pushes. */
static enum zc_dtype pushed_dtype(const struct train *t, uint64_t step, unsigned u)
{
    return t->kind->grad_dtype == ZC_F32 && mix(step, u) % 3 == 0 ? ZC_BF16 : t->kind->grad_dtype;
}

/* The gradient of a whole unit, as it is pushed. */
static void gradient(struct train *t, uint64_t step, unsigned micro, unsigned u)
{
    const struct bad b = bad_of(t, step);
    uint64_t n = padded(t, u), elems = t->units[u].elems;
    enum zc_dtype dtype = pushed_dtype(t, step, u);
    float *f = dtype == ZC_F32 ? t->pushed[u] : t->floats;

    for (uint64_t i = 0; i < n; i++)
        f[i] = i < elems ? value(t, (step * MICROS_MAX + micro) * UNITS + u + 1, i) : 0;
    if (b.step == step && b.unit == u && micro == 0)
        f[b.elem] = b.value;
    if (dtype == ZC_BF16)
        t->ref->f32_to_bf16(f, t->pushed[u], n);
    else if (dtype == ZC_F16)
        t->ref->f32_to_f16(f, t->pushed[u], n);
}

static struct zc_step step_of(const struct train *t, uint64_t number, struct zc_group *groups)
{
    for (unsigned g = 0; g < GROUPS; g++)
        groups[g] = (struct zc_group){ .lr = 1e-3 * (double)(1 + mix(number, g) % 16),
                                       .beta1 = 0.9,
                                       .beta2 = 0.95,
                                       .eps = 1e-8,
                                       .weight_decay = g == 0 ? 0.1 : 0,
                                       .momentum = 0.9,
                                       .lr_decay = 1e-3,
                                       .nesterov = g == 1 };
    return (struct zc_step){ .step = number,
                             .scale = 1.0 / micros_of(t, number),
                             .groups = groups,
                             .ngroups = GROUPS,
                             .timeout_ms = 120000 };
}

/* Some steps are given by classes of tensors, and leave some of these unchanged. */
#define CLASSES 3u
#define TENSORS 7u /* the number of trained tensors */

struct by_classes {
    struct zc_class classes[CLASSES];
    uint32_t class_of[TENSORS];
    struct zc_classes all;
};

static bool classes_of(const struct train *t, uint64_t number, struct by_classes *ret)
{
    struct zc_group groups[GROUPS];

    (void)step_of(t, number, groups);
    for (unsigned c = 0; c < CLASSES; c++)
        ret->classes[c] = (struct zc_class){ .group = groups[c % GROUPS],
                                             .factor = (double)(1 + mix(number, 200 + c) % 8) / 4,
                                             .t = 1 + mix(number, 300 + c) % number };
    for (unsigned i = 0; i < TENSORS; i++) {
        uint64_t class = mix(number, 100 + i) % (CLASSES + 1);

        ret->class_of[i] = class < CLASSES ? (uint32_t) class : ZC_CLASS_NONE;
    }
    ret->all = (struct zc_classes){ ret->classes, CLASSES, ret->class_of, TENSORS };
    return mix(number, 99) % 3 == 0;
}

/* Every rank sends them. */
static void say_classes(struct zi_rank *ranks, unsigned world, const struct train *t,
                        struct zc_step *step)
{
    struct by_classes by;

    if (!classes_of(t, step->step, &by))
        return;
    for (unsigned r = 0; r < world; r++)
        if (zc_step_classes_wait(ranks[r].c, ranks[r].job.id, step->step, &by.all) < 0)
            fail_msg("classes: %s", zc_error(ranks[r].c));
    step->groups = NULL;
    step->ngroups = 0;
}

/* ---- the reference */

static struct zk_page ref_page(const struct train *t, unsigned u, uint64_t first, uint64_t count)
{
    const uint32_t *bytes = t->layouts[u].block_bytes;

    return (struct zk_page){
        .param = t->param[u] + zb_blocks_bytes(bytes[ZB_PARAM], first),
        .state = t->state[u] ? t->state[u] + zb_blocks_bytes(bytes[ZB_STATE], first) : NULL,
        .grad = t->grad[u] ? t->grad[u] + zb_blocks_bytes(bytes[ZB_GRAD], first) : NULL,
        .first = first,
        .count = count,
    };
}

/* A checksum of stored parameters. Checksums of parts add up to that of the whole. */
static uint64_t sum_of(const struct train *t, const void *params, uint64_t first, uint64_t count)
{
    uint64_t sum = 0;

    if (t->kind->dtype == ZC_F32)
        for (uint64_t i = 0; i < count; i++)
            sum += mix(first + i, ((const uint32_t *)params)[i]);
    else
        for (uint64_t i = 0; i < count; i++)
            sum += mix(first + i, ((const uint16_t *)params)[i]);
    return sum;
}

static void *array(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);

    assert_non_null(p);
    memset(p, 0, bytes);
    return p;
}

static void ref_sums(struct train *t)
{
    for (unsigned u = 0; u < UNITS; u++)
        t->sums[t->applied][u] = sum_of(t, t->param[u], 0, padded(t, u));
}

static void train_new(struct train *t, const struct kind *kind, uint64_t salt, uint64_t steps)
{
    *t = (struct train){ .kind = kind, .salt = salt, .steps = steps };
    assert_int_equal(zk_select("ref", &t->ref, NULL), 0);
    t->norms = calloc(steps + 1, sizeof(*t->norms));
    t->applied_at = calloc(steps + 1, sizeof(*t->applied_at));
    t->sums = calloc(steps + 1, sizeof(*t->sums));
    t->floats = array(32768 * sizeof(float));
    assert_true(t->norms && t->applied_at && t->sums);
    for (unsigned u = 0; u < UNITS; u++) {
        struct zc_unit *unit = &t->units[u];
        struct zk_page page;

        *unit = shapes[u];
        unit->index = u;
        unit->dtype = kind->dtype;
        unit->grad_dtype = kind->grad_dtype;
        assert_int_equal(zb_layout_of((enum zb_dtype)unit->dtype, (enum zb_dtype)unit->grad_dtype,
                                      (enum zb_optimizer)kind->optimizer,
                                      (enum zb_moments)kind->moments, unit->frozen, &t->layouts[u],
                                      NULL),
                         0);
        for (uint32_t i = 0; i < unit->ntensors; i++)
            if (unit->tensors[i].group != ZC_GROUP_FROZEN)
                t->segments[u][t->nsegments[u]++] =
                    (struct zk_segment){ .first = unit->tensors[i].first,
                                         .count = unit->tensors[i].dims[0],
                                         .group = unit->tensors[i].group };
        t->pushed[u] = array(padded(t, u) * sizeof(float));
        t->param[u] = array(zb_blocks_bytes(t->layouts[u].block_bytes[ZB_PARAM], padded(t, u)));
        if (!unit->frozen) {
            t->state[u] = array(zb_blocks_bytes(t->layouts[u].block_bytes[ZB_STATE], padded(t, u)));
            t->grad[u] = array(zb_blocks_bytes(t->layouts[u].block_bytes[ZB_GRAD], padded(t, u)));
        }
        for (uint64_t i = 0; i < padded(t, u); i++)
            t->floats[i] = i < unit->elems ? value(t, UINT64_MAX - u, i) : 0;
        page = ref_page(t, u, 0, padded(t, u));
        zk_page_init(t->ref, &t->layouts[u], &page, t->floats);
    }
    ref_sums(t);
}

static void train_free(struct train *t)
{
    for (unsigned u = 0; u < UNITS; u++) {
        free(t->pushed[u]);
        free(t->param[u]);
        free(t->state[u]);
        free(t->grad[u]);
    }
    free(t->floats);
    free(t->norms);
    free(t->applied_at);
    free(t->sums);
}

static struct zk_scalars scalars_of(const struct train *t, const struct zc_group *g, double scale,
                                    uint64_t number)
{
    const struct zk_params p = { .lr = g->lr,
                                 .beta1 = g->beta1,
                                 .beta2 = g->beta2,
                                 .eps = g->eps,
                                 .weight_decay = g->weight_decay,
                                 .scale = scale,
                                 .momentum = g->momentum,
                                 .dampening = g->dampening,
                                 .lr_decay = g->lr_decay,
                                 .nesterov = g->nesterov };

    return zk_prepare((enum zb_optimizer)t->kind->optimizer, &p, number);
}

/* Steps each tensor by itself; *tensor counts over all units. */
static void ref_unit_by_classes(struct train *t, unsigned u, const struct by_classes *by,
                                const struct zk_scalars *by_class, unsigned *tensor)
{
    struct zk_page page = ref_page(t, u, 0, padded(t, u));
    struct zk_segment segments[3];
    unsigned n = 0;

    for (unsigned s = 0; s < t->nsegments[u]; s++) {
        struct zk_segment segment = t->segments[u][s];

        segment.group = by->class_of[(*tensor)++];
        if (segment.group != ZC_CLASS_NONE)
            segments[n++] = segment;
    }
    zk_page_step(t->ref, &t->layouts[u], &page, segments, n, by_class);
}

static void ref_apply(struct train *t, uint64_t number)
{
    struct zc_group groups[GROUPS];
    struct zc_step step = step_of(t, number, groups);
    struct zk_scalars by_group[GROUPS], by_class[CLASSES];
    struct by_classes by;
    bool classes = classes_of(t, number, &by);
    unsigned tensor = 0;

    t->applied++;
    for (unsigned g = 0; g < GROUPS; g++)
        by_group[g] = scalars_of(t, &groups[g], step.scale, t->applied);
    for (unsigned c = 0; c < CLASSES; c++)
        by_class[c] =
            scalars_of(t, &by.classes[c].group, by.classes[c].factor * step.scale, by.classes[c].t);
    for (unsigned u = 0; u < UNITS; u++) {
        struct zk_page page = ref_page(t, u, 0, padded(t, u));

        if (t->units[u].frozen)
            continue;
        if (classes)
            ref_unit_by_classes(t, u, &by, by_class, &tensor);
        else
            zk_page_step(t->ref, &t->layouts[u], &page, t->segments[u], t->nsegments[u], by_group);
    }
    assert_true(!classes || tensor == TENSORS);
    ref_sums(t);
}

static void ref_step(struct train *t)
{
    uint64_t number = ++t->iterations;
    struct zk_xsum sum = { 0 };
    uint64_t nonfinite = 0;

    for (unsigned u = 0; u < UNITS; u++) {
        struct zk_page page = ref_page(t, u, 0, padded(t, u));
        struct zk_xsum of_unit = { 0 };
        uint64_t bad = 0;

        for (unsigned m = 0; m < micros_of(t, number) && !t->units[u].frozen; m++) {
            gradient(t, number, m, u);
            of_unit = (struct zk_xsum){ 0 };
            bad = 0;
            zk_page_ingest(t->ref, &t->layouts[u], &page, t->pushed[u],
                           (enum zb_dtype)pushed_dtype(t, number, u), m > 0, &of_unit, &bad);
        }
        zk_xsum_merge(&sum, &of_unit);
        nonfinite += bad;
    }
    zk_xsum_store(&sum, t->norms[number].sum_of_squares);
    t->norms[number].nonfinite = nonfinite;
    if (nonfinite == 0)
        ref_apply(t, number);
    t->applied_at[number] = t->applied;
}

/* ---- the same in a daemon */

struct life {
    struct train *t;
    struct zi_daemon *d;
    struct zi_rank ranks[WORLD_MAX];
    unsigned world;
    uint32_t page;
    bool gpu;                  /* the daemon has one */
    struct zk_gpu_mem *params; /* the job's, mapped here; NULL: not on the GPU */
    uint64_t iterations;
    /* the least that the daemon admits: at all, and with all gradients in memory; by number of
     * ranks */
    uint64_t host_least[WORLD_MAX + 1], host_grads[WORLD_MAX + 1];
};

static struct zc_job_options job_of(const struct life *l, const char *name)
{
    return (struct zc_job_options){ .name = name,
                                    .world = l->world,
                                    .staging_bytes = STAGING,
                                    .groups = GROUPS,
                                    .keep = true,
                                    .durable = true,
                                    .early = true,
                                    .optimizer = l->t->kind->optimizer,
                                    .moments = l->t->kind->moments };
}

static int life_open(struct life *l, const struct zc_job_options *options)
{
    struct zc_job_options o = *options;

    for (o.rank = 0; o.rank < l->world; o.rank++) {
        int rc = zi_open(&l->ranks[o.rank], l->d, &o);

        if (rc < 0)
            fail_msg("%s: open: %d, %s", l->t->kind->name, rc, zc_error(l->ranks[o.rank].c));
        zi_define(&l->ranks[o.rank], l->t->units, UNITS, l->world);
    }
    return zi_ready(l->ranks, l->world);
}

/* The least host memory, as the daemon reports it. */
static uint64_t life_probe(struct life *l, enum zc_place grads)
{
    static const char mark[] = "the smallest host_bytes_max that would work is ";
    struct zc_job_options o = job_of(l, "probe");
    const char *at;

    o.host_bytes_max = l->world * STAGING + 4096;
    o.offload_grad = grads;
    assert_int_equal(life_open(l, &o), -ENOSPC);
    at = strstr(l->ranks[0].event_text, mark);
    assert_non_null(at);
    zi_close(l->ranks, l->world);
    return strtoull(at + strlen(mark), NULL, 10);
}

static void life_least(struct life *l)
{
    for (l->world = 1; l->world <= WORLD_MAX; l->world++) {
        l->host_least[l->world] = life_probe(l, ZC_NVME);
        l->host_grads[l->world] = life_probe(l, ZC_HOST);
        assert_true(l->host_least[l->world] < l->host_grads[l->world]);
    }
}

/* Everything resident, all but gradients streamed, the least possible, or anything between; and a
 * name for it. */
static uint64_t draw_host(const struct life *l, const char **ret_name)
{
    static const char *const names[] = { "resident", "streamed", "gradients too", "mixed" };
    unsigned which = (unsigned)draw(ZB_COUNT(names));

    *ret_name = names[which];
    if (which == 0)
        return 0;
    return (which == 1 ? l->host_grads : l->host_least)[l->world] +
           (which == 3 ? draw(256) * 4096 : 0);
}

static void life_fill(struct life *l)
{
    struct train *t = l->t;

    for (unsigned r = 0; r < l->world; r++)
        for (unsigned u = 0; u < UNITS; u++) {
            const struct zc_range *range = &l->ranks[r].ranges[u];
            float *staged = l->ranks[r].job.staging;

            for (uint64_t i = 0; i < range->count; i++)
                staged[i] = range->first + i < t->units[u].elems
                                ? value(t, UINT64_MAX - u, range->first + i)
                                : 0;
            if (range->count > 0)
                assert_int_equal(zc_write_wait(l->ranks[r].c, l->ranks[r].shards[u], ZC_MASTER, 0,
                                               range->count, staged),
                                 0);
        }
}

/* ---- parameters on the GPU, as this process maps them */

static struct zk_gpu *device; /* NULL: it does not open here */

static int device_open(void **state)
{
    struct zb_err err = { 0 };

    (void)state;
    if (zk_gpu_open(gpu_name(), 0, &device, &err) < 0)
        print_message("no parameters on the GPU: %s\n", err.text);
    return 0;
}

static int device_close(void **state)
{
    (void)state;
    zk_gpu_close(device);
    return 0;
}

static void params_map(struct life *l)
{
    struct zc_gpu_memory memory;
    struct zk_gpu_share share;
    struct zb_err err = { 0 };

    if (l->ranks[0].place.gpu_params == 0)
        return;
    assert_int_equal(zc_gpu_share_wait(l->ranks[0].c, l->ranks[0].job.id, &memory), 0);
    share = (struct zk_gpu_share){ memory.mem_fd, memory.mark_fd, memory.bytes };
    if (zk_gpu_import(device, &share, false, &l->params, &err) < 0)
        fail_msg("%s", err.text);
    zk_gpu_share_close(&share);
}

static void params_let_go(struct life *l)
{
    zk_gpu_free(l->params);
    l->params = NULL;
}

/* Pinned parameters in host memory: in place, or copied to a buffer that the next call reuses. */
static const void *view_data(const struct life *l, const struct zc_view *view)
{
    static uint64_t buffer[STAGING / sizeof(uint64_t)];
    struct zk_gpu_stream *stream = NULL;
    struct zb_err err = { 0 };

    if (!l->params)
        return view->data;
    assert_true(!view->data && view->bytes <= sizeof(buffer));
    if (zk_gpu_stream_new(device, &stream, &err) < 0 ||
        zk_gpu_copy(stream, ZK_GPU_TO_HOST, buffer,
                    (const char *)zk_gpu_addr(l->params) + view->offset, view->bytes, &err) < 0 ||
        zk_gpu_stream_sync(stream, &err) < 0)
        fail_msg("%s", err.text);
    zk_gpu_stream_free(stream);
    return buffer;
}

/* A unit's parameters must be completely those of this version. */
static void fetch_one(struct life *l, uint64_t version)
{
    struct train *t = l->t;
    struct zi_rank *r = &l->ranks[draw(l->world)];
    unsigned u = (unsigned)draw(UNITS), n = 0;
    uint64_t ids[WORLD_MAX], sum = 0;
    struct zc_view views[WORLD_MAX];
    struct zi_call call = ZI_CALL(r);

    for (unsigned i = 0; i < l->world; i++)
        if (l->ranks[i].ranges[u].count > 0)
            ids[n++] = l->ranks[i].shards[u];
    assert_int_equal(zc_fetch(r->c, ids, n, version, ZI_FETCH_MS, views, zi_done, &call), 0);
    if (zi_await(l->ranks, l->world, &call) < 0)
        fail_msg("fetch of '%s': %d, %s", t->units[u].name, call.rc, call.text);
    for (unsigned i = 0, k = 0; i < l->world; i++)
        if (l->ranks[i].ranges[u].count > 0) {
            assert_true(t->units[u].frozen || views[k].version == version);
            sum += sum_of(t, view_data(l, &views[k++]), l->ranks[i].ranges[u].first,
                          l->ranks[i].ranges[u].count);
        }
    if (sum != t->sums[version][u])
        fail_msg("%s: parameters of unit '%s' differ at version %llu", t->kind->name,
                 t->units[u].name, (unsigned long long)version);
    assert_int_equal(zc_release(r->c, ids, n), 0);
    t->fetches++;
}

static void fetch_some(struct life *l, uint64_t version)
{
    while (chance(35))
        fetch_one(l, version);
}

/* Pushes the parts of a shard's gradient, in order, from a part of staging that only this unit
 * uses. */
static unsigned push_shard(struct life *l, unsigned r, unsigned u, unsigned micro,
                           struct zi_call *calls)
{
    struct train *t = l->t;
    const struct zc_range *range = &l->ranks[r].ranges[u];
    struct zc_push push = { .shard = l->ranks[r].shards[u],
                            .step = l->iterations + 1,
                            .micro = micro,
                            .add = micro > 0,
                            .dtype = pushed_dtype(t, l->iterations + 1, u) };
    size_t bytes = push.dtype == ZC_F32 ? 4 : 2;
    char *staged = l->ranks[r].job.staging;
    unsigned n = 0;

    for (unsigned i = 0; i < u; i++)
        staged += padded(t, i) * sizeof(float);
    memcpy(staged, (const char *)t->pushed[u] + range->first * bytes, range->count * bytes);
    for (; push.first < range->count; push.first += push.count) {
        push.count = range->count - push.first;
        if (n + 1 < PARTS_MAX && chance(50))
            push.count = zb_min_u64(push.count, (1 + draw(3)) * l->page);
        push.staged = staged + push.first * bytes;
        calls[n] = ZI_CALL(&l->ranks[r]);
        assert_int_equal(zc_push(l->ranks[r].c, &push, zi_done, &calls[n]), 0);
        n++;
    }
    return n;
}

/* One micro-step's gradients of every rank, in a random order. */
static void push_micro(struct life *l, unsigned micro)
{
    static struct zi_call calls[WORLD_MAX * UNITS * PARTS_MAX];
    unsigned order[WORLD_MAX * UNITS], n = 0, ncalls = 0;

    for (unsigned u = 0; u < UNITS; u++)
        if (!l->t->units[u].frozen)
            gradient(l->t, l->iterations + 1, micro, u);
    for (unsigned i = 0; i < l->world * UNITS; i++)
        if (!l->t->units[i % UNITS].frozen && l->ranks[i / UNITS].ranges[i % UNITS].count > 0)
            order[n++] = i;
    while (n > 0) {
        unsigned i = (unsigned)draw(n), at = order[i];

        order[i] = order[--n];
        ncalls += push_shard(l, at / UNITS, at % UNITS, micro, &calls[ncalls]);
    }
    for (unsigned i = 0; i < ncalls; i++)
        if (zi_await(l->ranks, l->world, &calls[i]) < 0)
            fail_msg("push: %d, %s", calls[i].rc, calls[i].text);
}

/* Checks each rank's part of the norm; ret_bad: ranks with nonfinite values. True: the step is to
 * be skipped, which every rank finds. */
static bool check_norms(struct life *l, uint64_t number, unsigned *ret_bad)
{
    struct zc_norm all = { .nonfinite = 0 };

    *ret_bad = 0;
    for (unsigned r = 0; r < l->world; r++) {
        struct zc_norm mine;

        if (zc_norms_wait(l->ranks[r].c, l->ranks[r].job.id, number, &mine) < 0)
            fail_msg("norms: %s", zc_error(l->ranks[r].c));
        *ret_bad += mine.nonfinite > 0;
        zc_norm_merge(&all, &mine);
    }
    assert_int_equal(all.nonfinite, l->t->norms[number].nonfinite);
    if (memcmp(&all, &l->t->norms[number], sizeof(all)) != 0)
        fail_msg("%s: the norm of step %llu differs", l->t->kind->name, (unsigned long long)number);
    return all.nonfinite > 0;
}

static void step_begin(struct life *l, const struct zc_step *step)
{
    struct zi_call calls[WORLD_MAX];

    for (unsigned r = 0; r < l->world; r++) {
        calls[r] = ZI_CALL(&l->ranks[r]);
        assert_int_equal(zc_step_begin(l->ranks[r].c, l->ranks[r].job.id, step,
                                       micros_of(l->t, step->step), zi_done, &calls[r]),
                         0);
    }
    for (unsigned r = 0; r < l->world; r++)
        if (zi_await(l->ranks, l->world, &calls[r]) < 0)
            fail_msg("step begin: %d, %s", calls[r].rc, calls[r].text);
    l->t->early++;
}

/* Every rank asks for the step or skip, and some fetch the version after it. */
static void step_end(struct life *l, const struct zc_step *step, bool skip, bool serve)
{
    struct zc_stepped stepped[WORLD_MAX];
    struct zi_call calls[WORLD_MAX];
    uint64_t applied = l->t->applied_at[step->step];
    const char *text;
    int rc;

    zi_step_ask(l->ranks, l->world, step, skip, stepped, calls);
    if (serve)
        fetch_some(l, applied);
    rc = zi_await_all(l->ranks, l->world, calls, &text);
    if (rc < 0)
        fail_msg("step %llu: %d, %s", (unsigned long long)step->step, rc, text);
    for (unsigned r = 0; r < l->world; r++) {
        assert_int_equal(stepped[r].iterations, step->step);
        assert_int_equal(stepped[r].applied, applied);
        if (stepped[r].commit_code != 0)
            fail_msg("commit: %s", stepped[r].commit_text);
    }
}

/* Returns the number of ranks with nonfinite values. */
static unsigned life_step(struct life *l, bool early, enum zc_commit commit)
{
    struct zc_group groups[GROUPS];
    uint64_t number = l->iterations + 1, version = l->t->applied_at[l->iterations];
    struct zc_step step = step_of(l->t, number, groups);
    unsigned bad;
    bool skip;

    step.commit = commit;
    say_classes(l->ranks, l->world, l->t, &step);
    fetch_some(l, version);
    if (early)
        step_begin(l, &step);
    for (unsigned m = 0; m < micros_of(l->t, number); m++) {
        push_micro(l, m);
        fetch_some(l, version); /* no effect of the step is visible */
    }
    skip = check_norms(l, number, &bad);
    step_end(l, &step, skip, chance(50));
    l->iterations++;
    l->t->skips += skip;
    l->t->spilled += l->ranks[0].place.grads_on_nvme > 0;
    return bad;
}

/* A step that is incomplete when the life ends: gradients have come, it may have begun early, it
 * may have been asked for. The point where the next life resumes shows whether it was made. */
static void life_step_torn(struct life *l, bool early, bool asked)
{
    static struct zc_stepped stepped[WORLD_MAX]; /* the calls end when the ranks are closed */
    static struct zi_call calls[WORLD_MAX];
    struct zc_group groups[GROUPS];
    uint64_t number = l->iterations + 1;
    struct zc_step step = step_of(l->t, number, groups);

    say_classes(l->ranks, l->world, l->t, &step);
    if (early)
        step_begin(l, &step);
    for (unsigned m = 0; m < micros_of(l->t, number); m++)
        push_micro(l, m);
    if (!asked || l->t->norms[number].nonfinite > 0)
        return;
    for (unsigned r = 0; r < l->world; r++) {
        calls[r] = ZI_CALL(NULL);
        assert_int_equal(
            zc_step(l->ranks[r].c, l->ranks[r].job.id, &step, &stepped[r], zi_done, &calls[r]), 0);
    }
    zi_pump(l->ranks, l->world, (unsigned)draw(4));
}

/* All of it, or the least that works and up to `more`. */
static void draw_tier(struct life *l, const char *tier, uint64_t bytes, uint64_t more, bool all)
{
    struct zc_client *c = l->ranks[0].c;

    if (!all)
        bytes = zi_least(c, tier) + draw(256) * (more / 256);
    if (zc_tier_set_wait(c, tier, bytes) < 0)
        fail_msg("a budget of %llu bytes: %s", (unsigned long long)bytes, zc_error(c));
    l->t->budgets++;
}

/* Sets another budget of the running daemon, of host memory or of the GPU: all of it, or a random
 * one that is enough. Its next steps move state accordingly. */
static void draw_budget(struct life *l, bool all)
{
    if (l->gpu && chance(50))
        draw_tier(l, "gpu", gpu_bytes() * 4, gpu_bytes(), all);
    else
        draw_tier(l, "host", HOST_BYTES, ZB_MIB, all);
}

/* Counts steps of lives with state on the GPU. */
static void count_gpu(struct life *l)
{
    struct zc_tier_row *rows;
    size_t n;

    assert_int_equal(zc_tiers_wait(l->ranks[0].c, &rows, &n), 0);
    assert_int_equal(n, l->gpu ? 3 : 2);
    l->t->on_gpu += l->gpu && rows[2].state > 0;
    l->t->params_on_gpu += l->params != NULL;
    zc_rows_free(rows);
}

/* Compares every byte of every plane with the reference at the job's step. */
static void check_all(struct life *l, const char *when)
{
    struct train *t = l->t;

    assert_int_equal(t->iterations, l->iterations);
    for (unsigned r = 0; r < l->world; r++)
        for (unsigned u = 0; u < UNITS; u++)
            for (enum zk_what what = ZK_PARAM; what <= ZK_EXP_AVG_SQ; what++) {
                const struct zc_range *range = &l->ranks[r].ranges[u];
                struct zk_page page = ref_page(t, u, range->first, range->count);
                size_t bytes = range->count * sizeof(float);

                if (range->count == 0 || !zk_page_has(&t->layouts[u], what))
                    continue;
                if (what == ZK_PARAM)
                    bytes = range->count * zb_dtype_bytes((enum zb_dtype)t->kind->dtype);
                zk_page_read(t->ref, &t->layouts[u], &page, what, t->floats);
                if (zc_read_wait(l->ranks[r].c, l->ranks[r].shards[u], (enum zc_what)what, 0,
                                 range->count, l->ranks[r].job.staging) < 0)
                    fail_msg("read: %s", zc_error(l->ranks[r].c));
                if (memcmp(l->ranks[r].job.staging, t->floats, bytes) != 0)
                    fail_msg("%s: %s, plane %d of unit '%s' differs", t->kind->name, when, what,
                             t->units[u].name);
            }
}

/* ---- lives */

struct settings {
    char page[16], ring[24], threads[8], depth[8], gpu[24];
    const char *options[23];
};

static const char *draw_kernels(void)
{
    const struct zk_ops *const *all;
    size_t n, i;

    all = zk_all(&n);
    do
        i = draw(n);
    while (!all[i]->supported());
    return all[i]->name;
}

static void draw_settings(struct settings *s, uint32_t page)
{
    static const unsigned depths[] = { 1, 4, 32 };
    const char *io = chance(50) ? "uring" : "threads";
    const char *const options[] = { "--host-bytes",
                                    HOST_TEXT,
                                    "--nvme-bytes",
                                    "32M",
                                    "--page-elems",
                                    s->page,
                                    "--ring-bytes",
                                    s->ring,
                                    "--threads",
                                    s->threads,
                                    "--io-depth",
                                    s->depth,
                                    "--io",
                                    io,
                                    "--kernels",
                                    draw_kernels(),
                                    "--timeout-ms",
                                    "120000",
                                    "--gpu",
                                    gpu_name(),
                                    "--gpu-bytes",
                                    s->gpu,
                                    NULL };
    unsigned buffers = 1 + (unsigned)draw(chance(50) ? 1 : 24);

    (void)snprintf(s->page, sizeof(s->page), "%u", page);
    (void)snprintf(s->ring, sizeof(s->ring), "%llu",
                   (unsigned long long)buffers * ZI_BUFFER_BYTES * page);
    (void)snprintf(s->threads, sizeof(s->threads), "%u", 1 + (unsigned)draw(4));
    (void)snprintf(s->gpu, sizeof(s->gpu), "%llu",
                   (unsigned long long)(chance(30) ? 0 : gpu_bytes() + draw(2 * gpu_bytes())));
    (void)snprintf(s->depth, sizeof(s->depth), "%u", depths[draw(ZB_COUNT(depths))]);
    memcpy(s->options, options, sizeof(options));
    print_message("  %s, depth %s, %u buffers, %s threads, %s, %s bytes of GPU\n", io, s->depth,
                  buffers, s->threads, options[15], s->gpu);
}

static void life_attach(struct life *l)
{
    struct zc_job_options o = job_of(l, "job");
    const char *host;

    o.host_bytes_max = draw_host(l, &host);
    if (device && chance(50)) {
        o.offload_param = ZC_GPU;
        o.device = zk_gpu_info(device)->id;
    }
    o.attach = l->iterations > 0;
    if (life_open(l, &o) < 0)
        fail_msg("%s, %u ranks, %s: ready: %s", l->t->kind->name, l->world, host,
                 l->ranks[0].event_text);
    if (!o.attach)
        life_fill(l);
    l->iterations = l->ranks[0].place.iterations;
    params_map(l);
    print_message("  behind step %llu: %u ranks, %s, %llu KiB of host memory, %llu of gradients on "
                  "NVMe%s\n",
                  (unsigned long long)l->iterations, l->world, host,
                  (unsigned long long)l->ranks[0].place.host_bytes / ZB_KIB,
                  (unsigned long long)l->ranks[0].place.grads_on_nvme / ZB_KIB,
                  l->params ? ", parameters on the GPU" : "");
    assert_int_equal(l->ranks[0].place.applied, l->t->applied_at[l->iterations]);
}

enum ending { LEAVE, END, KILL };

/* Adds the counters of this life to the totals. */
static void life_count(struct life *l)
{
    struct zc_job_row row = zi_job_row(l->ranks[0].c, "job");

    l->t->moved += row.nvme_read_bytes + row.nvme_written_bytes;
    l->t->pages_early += zi_counter(l->ranks[0].c, "pages_early");
}

static void life_end(struct life *l, enum ending how)
{
    params_let_go(l);
    if (how == LEAVE) {
        zi_close(l->ranks, l->world);
        return;
    }
    if (how == END)
        zi_end(l->d);
    else
        zi_kill(l->d);
    for (unsigned r = 0; r < l->world; r++)
        zc_close(l->ranks[r].c);
}

static void lives(struct train *t)
{
    static const uint32_t pages[] = { 4096, 8192, 16384 };
    struct zi_daemon d = { 0 };
    struct life l = { .t = t, .d = &d, .page = pages[draw(ZB_COUNT(pages))] };
    unsigned count[3] = { 0 };
    bool runs = false;

    for (;;) {
        struct settings s;
        enum ending how = (enum ending)draw(3);
        unsigned left = 1 + (unsigned)draw(chance(50) ? LIFE_SHORT : LIFE_MAX);
        unsigned commits = 1 + (unsigned)draw(12);

        if (!runs) {
            draw_settings(&s, l.page);
            l.gpu = strcmp(s.gpu, "0") != 0;
            if (d.dir[0])
                zi_start_again(&d, s.options);
            else
                zi_start(&d, s.options);
            if (l.iterations == 0)
                life_least(&l);
        }
        l.world = 1 + (unsigned)draw(WORLD_MAX);
        life_attach(&l);
        for (; left > 0 && l.iterations < t->steps; left--) {
            if (chance(25))
                draw_budget(&l, chance(40));
            (void)life_step(&l, l.ranks[0].place.early && chance(60),
                            l.iterations == 0 || draw(commits) == 0 ? ZC_COMMIT_STEP
                                                                    : ZC_COMMIT_NO);
            count_gpu(&l);
        }
        draw_tier(&l, "host", HOST_BYTES, ZB_MIB, true); /* the next life draws its own */
        if (how != LEAVE || l.iterations == t->steps)
            life_count(&l); /* the counters since the daemon's start */
        if (l.iterations == t->steps)
            break;
        if (chance(50))
            life_step_torn(&l, l.ranks[0].place.early && chance(60), how != LEAVE && chance(70));
        life_end(&l, how);
        runs = how == LEAVE;
        count[how]++;
    }
    check_all(&l, "in the end");
    params_let_go(&l);
    zi_close(l.ranks, l.world);
    zi_stop(&d);
    print_message("%s: pages of %u, %llu steps, %llu of them skipped; %llu begun early, %llu pages "
                  "of them; %llu with gradients on NVMe; %llu "
                  "with state on the GPU, %llu with parameters; %u times left, %u ended, %u "
                  "killed; %u budgets; "
                  "%llu fetches, %llu KiB on NVMe\n",
                  t->kind->name, l.page, (unsigned long long)t->steps,
                  (unsigned long long)(t->steps - t->applied), (unsigned long long)t->early,
                  (unsigned long long)t->pages_early, (unsigned long long)t->spilled,
                  (unsigned long long)t->on_gpu, (unsigned long long)t->params_on_gpu, count[LEAVE],
                  count[END], count[KILL], t->budgets, (unsigned long long)t->fetches,
                  (unsigned long long)t->moved / ZB_KIB);
    if (t->steps >= SURE_STEPS) /* else the random settings tested nothing */
        assert_true(t->applied < t->steps && t->pages_early > 0 && t->moved > 0 && t->spilled > 0 &&
                    t->on_gpu > 0 && (!device || t->params_on_gpu > 0));
}

static void settings_change_nothing(void **state)
{
    const char *text = getenv("ZSHARD_SEED"), *unit = getenv("ZSHARD_STEPS");
    uint64_t steps = unit && *unit ? strtoull(unit, NULL, 10) : 50;

    (void)state;
    seed = text && *text ? strtoull(text, NULL, 10) : SEED_DEFAULT;
    print_message("ZSHARD_SEED=%llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < ZB_COUNT(kinds); i++) {
        struct train t;

        train_new(&t, &kinds[i], draw(UINT64_MAX), steps * kinds[i].weight);
        while (t.iterations < t.steps)
            ref_step(&t);
        lives(&t);
        train_free(&t);
    }
}

/* ---- a gradient that is not finite */

/* The first element of the first unit, which is rank 0's, and the last element of the last, rank
 * 1's. */
static const struct {
    const char *name;
    unsigned unit;
    uint64_t elem;
    float value;
} bads[] = {
    { "NaN at first", 0, 0, NAN },
    { "infinity at first", 0, 0, INFINITY },
    { "NaN at last", UNITS - 1, 8192, NAN },
    { "minus infinity at last", UNITS - 1, 8192, -INFINITY },
};

/* Two steps, the bad one, and two more: without the bad one, the state is the same. */
static void bad_case(struct life *l, size_t b, unsigned streamed, bool early)
{
    struct train *t = l->t;
    struct zc_job_options o;
    char when[96];

    train_new(t, t->kind, 5, 5);
    t->bad = (struct bad){ 3, bads[b].elem, bads[b].unit, bads[b].value };
    (void)snprintf(when, sizeof(when), "%s, %s, %s", bads[b].name,
                   streamed == 2   ? "gradients too"
                   : streamed == 1 ? "streamed"
                                   : "resident",
                   early ? "early" : "plain");
    o = job_of(l, "job");
    o.keep = o.durable = false;
    o.host_bytes_max = streamed == 2 ? l->host_least[2] : streamed == 1 ? l->host_grads[2] : 0;
    if (life_open(l, &o) < 0)
        fail_msg("%s: ready: %s", when, l->ranks[0].event_text);
    assert_true(!early || l->ranks[0].place.early);
    life_fill(l);
    for (l->iterations = 0; l->iterations < t->steps;) {
        unsigned bad;

        ref_step(t);
        bad = life_step(l, early, ZC_COMMIT_NO);
        assert_int_equal(bad, l->iterations == 3 ? 1 : 0);
        assert_int_equal(t->applied, l->iterations - (l->iterations >= 3));
        check_all(l, when);
    }
    assert_int_equal(t->skips, 1);
    zi_close(l->ranks, l->world);
    train_free(t);
}

static void one_bad_gradient_skips_all(void **state)
{
    static const size_t which[] = { 0, 1, 3 }; /* fp32 and fp16 gradients, and bf16 */
    struct settings s;

    (void)state;
    seed = SEED_DEFAULT;
    for (size_t k = 0; k < ZB_COUNT(which); k++) {
        struct train t;
        struct zi_daemon d = { 0 };
        struct life l = { .t = &t, .d = &d, .page = 4096 };

        draw_settings(&s, l.page);
        zi_start(&d, s.options);
        train_new(&t, &kinds[which[k]], 5, 5);
        life_least(&l);
        train_free(&t);
        l.world = 2;
        for (unsigned c = 0; c < 6 * ZB_COUNT(bads); c++)
            bad_case(&l, c / 6, c % 6 / 2, c % 2 == 1);
        zi_stop(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(settings_change_nothing, zi_teardown),
        cmocka_unit_test_teardown(one_bad_gradient_skips_all, zi_teardown),
    };

    return cmocka_run_group_tests(tests, device_open, device_close);
}
