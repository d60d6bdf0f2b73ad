/*
 * Placement must not change any byte: random jobs on a real daemon are compared with plain arrays.
 *
 * MODEL. Each round has a daemon with a random page size, I/O engine, threads and page buffers. On
 * it run random jobs (any optimizer and moments; units of odd sizes, any dtypes, tensors in several
 * groups, frozen ones) of one to three ranks. Each rank is a client of this process, and the host
 * limit is between the least that the daemon admits and everything. The same calls are made on
 * arrays of whole units, through zk_page.h with the reference kernels, as if nothing were cut into
 * shards and pages. Whatever the daemon returns must be the same bytes at any time.
 *
 * Everything is asynchronous. A rank's operations are started in a random order, as many as its
 * staging has room for. The expected result of an operation is fixed when it is started. Between
 * two steps:
 *
 *     TRAIN ---> ASK ---> BEHIND ---> TRAIN
 *
 *     TRAIN   pushes in parts and micro-steps, fetches, releases, reads, sometimes new initial
 *             values; until every gradient is complete
 *     ASK     norms are compared; the step may begin early; ranks ask for the step (or skip), some while others still hold
 *             pins of the old version: their bytes must not change
 *     BEHIND  fetches of the next version are sent before the step is answered
 *
 * PINS. A rank has three places for its streamed shards of one size. The test pins no more than
 * that, so every fetch must succeed. Only fetches that are meant to fail (PRESS) exceed it, with a
 * short deadline.
 *
 * The seed is printed: ZSHARD_SEED=... repeats a run; ZSHARD_ROUNDS=... makes it longer.
 */
#include "tests/integ/draw.h"
#include "tests/integ/zinteg.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plan.h"
#include "base/util.h"
#include "kernels/ortho.h"
#include "kernels/zk_page.h"

#define WORLD_MAX    3u
#define UNITS_MAX    9u
#define TENSORS_MAX  6u
#define GROUPS_MAX   3u
#define SLOTS_MAX    6u
#define OPS_MAX      64u
#define PINS_MAX     64u
#define MICRO_MAX    3u
#define RING_PLACES  3u /* as the daemon promises */
#define PRESS_MS     20u
#define SHARDS_FETCH 4u
#define SEED_DEFAULT UINT64_C(20260715)

static const struct zk_ops
    *ortho_ops; /* the fastest: the same bits, and quicker than those of "ref" */

/* fp32, bf16 or fp16, as the value of its enum. */
static unsigned draw_dtype(void)
{
    return 1 + (unsigned)draw(ZB_DTYPE_END - 1);
}

static float draw_float(float scale)
{
    return scale * ((float)draw(1u << 20) / (float)(1u << 19) - 1.0f);
}

/* ---- the model: whole units in plain arrays */

struct unit {
    struct zc_unit def;
    char name[16];
    struct zc_tensor tensors[TENSORS_MAX];
    struct zb_layout layout;
    struct zk_segment segments[TENSORS_MAX];
    uint32_t nsegments;
    struct zk_matrix matrices[TENSORS_MAX];
    uint32_t nmatrices;
    uint64_t padded;
    uint8_t *param[2]; /* of even and of odd versions */
    uint8_t *state, *grad;
};

/* One rank's part of a unit. */
struct shard {
    unsigned unit, rank;
    uint64_t id, first, count;
    unsigned written; /* parts of initial values in flight; see TRAIN */
    bool live;
    uint64_t write_next;
    unsigned micros, micro;                /* micro-steps of this step; the next one */
    uint64_t next;                         /* the next element of that micro-step */
    unsigned pushes, reads, fetches, pins; /* in flight, or held */
    struct zk_xsum sum;
    uint64_t nonfinite;
};

enum kind { WRITE, PUSH, READ, FETCH };

struct op {
    struct job *job;
    bool busy;
    enum kind kind;
    unsigned rank, slot;
    struct shard *shards[SHARDS_FETCH];
    uint64_t ids[SHARDS_FETCH];
    unsigned n;
    struct zc_view views[SHARDS_FETCH];
    uint64_t version; /* of a FETCH: the least version */
    bool press;       /* may time out */
    uint8_t *want;    /* of a READ */
    size_t want_bytes;
};

struct pin {
    struct shard *shard;
    unsigned rank;
    struct zc_view view;
};

struct job {
    struct zi_daemon *d;
    const struct zk_ops *ops;
    uint64_t page;
    char name[16];
    unsigned world, ngroups, nunits, nshards, nslots;
    unsigned micros;  /* of all shards in this step; 0: each has its own number */
    bool keep, alike; /* alike: all units have one size, so that they compete for places */
    uint64_t slot_elems;
    struct zc_job_options options;
    struct unit units[UNITS_MAX];
    struct shard shards[UNITS_MAX * WORLD_MAX];
    struct zi_rank ranks[WORLD_MAX];
    bool slots[WORLD_MAX][SLOTS_MAX]; /* in use */
    struct op op[OPS_MAX];
    unsigned nops, nfetches; /* in flight; and how many of these are fetches */
    unsigned wanted;         /* shards that are being fetched */
    struct pin pins[PINS_MAX];
    unsigned npins;
    uint64_t iterations, applied; /* of the model */
    uint64_t calls, steps, skips, begun, pressed, timed_out, moved, grads_nvme;
};

static struct unit *unit_of(struct job *j, const struct shard *s)
{
    return &j->units[s->unit];
}

static uint8_t *plane_at(uint8_t *plane, const struct unit *u, enum zb_plane which, uint64_t elem)
{
    return plane ? plane + zb_blocks_bytes(u->layout.block_bytes[which], elem) : NULL;
}

/* Elements of a shard as a page of the model, where a unit's state is one long page. */
static struct zk_page model_page(struct job *j, const struct shard *s, uint64_t first,
                                 uint64_t count)
{
    struct unit *u = unit_of(j, s);
    uint64_t at = s->first + first;

    return (struct zk_page){ .param = plane_at(u->param[j->applied & 1], u, ZB_PARAM, at),
                             .state = plane_at(u->state, u, ZB_STATE, at),
                             .grad = plane_at(u->grad, u, ZB_GRAD, at),
                             .first = at,
                             .count = count };
}

/* ---- drawing jobs */

/* Makes the tensor a matrix that Muon steps, with a few elements less if need be. Returns its elements. */
static uint64_t draw_matrix(struct job *j, struct unit *u, struct zc_tensor *t)
{
    uint64_t count = t->ndims > 0 ? t->dims[0] : 1, side = 1 + draw(zb_min_u64(count, 40));
    bool tall = chance(50);

    t->muon = true;
    t->ndims = 2;
    t->dims[tall] = side;
    t->dims[!tall] = count / side;
    count = t->dims[0] * t->dims[1];
    u->segments[u->nsegments++] =
        (struct zk_segment){ .first = t->first, .count = count, .group = j->ngroups + t->group };
    u->matrices[u->nmatrices++] = (struct zk_matrix){
        .first = t->first, .count = count, .rows = t->dims[0], .cols = t->dims[1]
    };
    return count;
}

/* Whose layout the unit has: with Muon AdamW's, unless all trainable tensors are Muon's. */
static enum zb_optimizer layout_optimizer(const struct job *j, const struct unit *u)
{
    bool all = true;

    for (uint32_t t = 0; t < u->def.ntensors; t++)
        all = all && (u->tensors[t].muon || u->tensors[t].group == ZC_GROUP_FROZEN);
    return j->options.optimizer != ZC_MUON ? (enum zb_optimizer)j->options.optimizer
           : all && !u->def.frozen         ? ZB_MUON
                                           : ZB_ADAMW;
}

static void draw_tensors(struct job *j, struct unit *u)
{
    uint64_t at = 0;
    unsigned muon = chance(50) ? 100 : 60; /* often all: then the unit has one moment */

    while (u->def.ntensors < TENSORS_MAX && at < u->def.elems) {
        struct zc_tensor *t = &u->tensors[u->def.ntensors];
        uint64_t left, count;

        at += chance(30) ? draw(2000) : 0; /* elements of no tensor are never stepped */
        if (at >= u->def.elems && u->def.ntensors == 0)
            at = 0; /* a unit must have at least one */
        if (at >= u->def.elems)
            break;
        left = u->def.elems - at;
        count = u->def.ntensors + 1 == TENSORS_MAX || chance(20) ? left : 1 + draw(left);
        *t = (struct zc_tensor){ .name = "t",
                                 .first = at,
                                 .ndims = count == 1 ? 0 : 1,
                                 .dims = { count },
                                 .group = (uint32_t)draw(j->ngroups) };
        if (chance(15))
            t->group = ZC_GROUP_FROZEN;
        else if (!u->def.frozen && j->options.optimizer == ZC_MUON && chance(muon))
            count = draw_matrix(j, u, t);
        else if (!u->def.frozen)
            u->segments[u->nsegments++] =
                (struct zk_segment){ .first = at, .count = count, .group = t->group };
        u->def.ntensors++;
        at += count;
    }
}

static void draw_unit(struct job *j, unsigned index)
{
    struct unit *u = &j->units[index];
    uint64_t pages = 1 + draw(5);

    (void)snprintf(u->name, sizeof(u->name), "u%u", index);
    u->def = (struct zc_unit){ .index = index, .name = u->name, .tensors = u->tensors };
    switch (j->alike ? UINT64_MAX : draw(6)) {
    case 0:
        u->def.elems = 1 + draw(ZB_BLOCK_ELEMS);
        break;
    case 1:
        u->def.elems = pages * j->page;
        break;
    case 2:
        u->def.elems = pages * j->page + 1 + draw(j->page - 1);
        break;
    case 3:
        u->def.elems = 1 + draw(6 * j->page);
        break;
    default: /* as large as the one before, so that they share places of one size */
        u->def.elems = index > 0 ? j->units[index - 1].def.elems : 1 + draw(8 * j->page);
        break;
    }
    u->def.dtype = (enum zc_dtype)draw_dtype();
    if (index > 0 && (j->alike || chance(30)))
        u->def.dtype = j->units[index - 1].def.dtype;
    u->def.grad_dtype = chance(40) ? (enum zc_dtype)draw_dtype() : ZC_F32;
    u->def.frozen = index > 0 && chance(15);
    draw_tensors(j, u);
    assert_int_equal(zb_layout_of((enum zb_dtype)u->def.dtype,
                                  u->def.frozen ? ZB_F32 : (enum zb_dtype)u->def.grad_dtype,
                                  layout_optimizer(j, u), (enum zb_moments)j->options.moments,
                                  u->def.frozen, &u->layout, NULL),
                     0);
    u->def.quantized = u->def.frozen && chance(60);
    if (u->def.quantized)
        zb_layout_quantize(&u->layout);
    u->padded = zb_padded_elems(u->def.elems);
    for (int v = 0; v < 2; v++)
        u->param[v] = calloc(1, zb_blocks_bytes(u->layout.block_bytes[ZB_PARAM], u->padded));
    if (!u->def.frozen) {
        u->state = calloc(1, zb_blocks_bytes(u->layout.block_bytes[ZB_STATE], u->padded));
        u->grad = calloc(1, zb_blocks_bytes(u->layout.block_bytes[ZB_GRAD], u->padded));
    }
}

static void draw_shards(struct job *j)
{
    for (unsigned r = 0; r < j->world; r++)
        for (unsigned u = 0; u < j->nunits; u++) {
            struct shard *s = &j->shards[j->nshards];
            uint64_t slice;

            *s = (struct shard){ .unit = u, .rank = r };
            zb_slice(j->units[u].def.elems, j->world, r, &slice, &s->first, &s->count);
            j->nshards += s->count > 0;
        }
}

/* ---- opening: the least that the daemon reports is enough, and 4096 less is not */

static void job_define(struct job *j, unsigned rank)
{
    struct zi_rank *r = &j->ranks[rank];

    for (unsigned u = 0; u < j->nunits; u++)
        if (zc_unit_define_wait(r->c, r->job.id, &j->units[u].def) < 0)
            fail_msg("unit %u: %s", u, zc_error(r->c));
    for (unsigned i = 0; i < j->nshards; i++) {
        struct shard *s = &j->shards[i];
        struct zc_range range = { s->unit, s->first, s->count };

        if (s->rank == rank && zc_register_wait(r->c, r->job.id, &range, 1, &s->id) < 0)
            fail_msg("shard of unit %u: %s", s->unit, zc_error(r->c));
    }
}

/* Opens with this limit: 0; or -ENOSPC, and *ret_least is what the error message names. */
static int job_try(struct job *j, uint64_t limit, uint64_t *ret_least)
{
    static const char mark[] = "the smallest host_bytes_max that would work is ";
    int rc;

    j->options.host_bytes_max = limit;
    for (unsigned r = 0; r < j->world; r++) {
        j->options.rank = r;
        rc = zi_open(&j->ranks[r], j->d, &j->options);
        if (rc < 0)
            fail_msg("open: %d, %s", rc, zc_error(j->ranks[r].c));
        job_define(j, r);
    }
    rc = zi_ready(j->ranks, j->world);
    if (rc < 0) {
        const char *at = strstr(j->ranks[0].event_text, mark);

        if (rc != -ENOSPC || !at)
            fail_msg("ready: %d, %s", rc, j->ranks[0].event_text);
        *ret_least = strtoull(at + strlen(mark), NULL, 10);
        zi_close(j->ranks, j->world);
    }
    return rc;
}

/* The tiers' accounts must be those of the reply. Gradients must be complete, counted once, and in
 * memory where they have to be. */
static void job_account(struct job *j, uint64_t idle_host, uint64_t idle_nvme)
{
    const struct zc_placement *place = &j->ranks[0].place;
    bool spills = j->options.offload_param == ZC_NVME && j->options.offload_grad == ZC_NVME &&
                  j->options.offload_optimizer == ZC_NVME;
    uint64_t all = 0, host = 0, nvme = 0;
    struct zc_client *c = zi_client(j->d);
    struct zc_tier_row *tiers;
    size_t n;

    for (unsigned u = 0; u < j->nunits; u++)
        all += zb_plane_bytes(j->units[u].layout.block_bytes[ZB_GRAD], j->page, j->units[u].padded);
    assert_int_equal(zc_tiers_wait(c, &tiers, &n), 0);
    for (size_t i = 0; i < n; i++)
        *(strcmp(tiers[i].name, "host") == 0 ? &host : &nvme) = tiers[i].grads;
    zc_rows_free(tiers);
    assert_int_equal(host + nvme, all); /* the only job */
    assert_int_equal(nvme, place->grads_on_nvme);
    assert_true(nvme == 0 || spills);
    assert_int_equal(zi_job_row(c, j->name).grads_nvme_bytes, nvme);
    zc_close(c);
    assert_int_equal(zi_used(j->d, "host") - idle_host, place->host_bytes);
    assert_int_equal(zi_used(j->d, "nvme") - idle_nvme, place->nvme_bytes);
    j->grads_nvme = nvme;
}

static void job_open(struct job *j)
{
    uint64_t staging = j->world * j->options.staging_bytes, least = 0, all = 0, none;
    uint64_t idle_host = zi_used(j->d, "host"), idle_nvme = zi_used(j->d, "nvme");

    for (unsigned u = 0; u < j->nunits; u++)
        for (int p = 0; p < ZB_PLANES; p++)
            all += zb_plane_bytes(j->units[u].layout.block_bytes[p], j->page, j->units[u].padded);
    assert_int_equal(job_try(j, staging + 4096, &least), -ENOSPC);
    (void)zi_await_used(j->d, idle_host, idle_nvme);
    assert_int_equal(job_try(j, least - 4096, &none), -ENOSPC);
    assert_int_equal(none, least);
    (void)zi_await_used(j->d, idle_host, idle_nvme);
    all += staging;
    switch (draw(5)) {
    case 0:
    case 1:
        break;
    case 2:
        least = all > least ? all : least;
        break;
    default:
        least += all > least ? draw((all - least) / 4096 + 1) * 4096 : 0;
        break;
    }
    assert_int_equal(job_try(j, least, &none), 0);
    job_account(j, idle_host, idle_nvme);
}

/* ---- operations */

static void op_done(void *arg, int rc);

static struct op *op_take(struct job *j, enum kind kind, unsigned rank)
{
    for (unsigned i = 0; i < OPS_MAX; i++) {
        struct op *op = &j->op[i];

        if (op->busy)
            continue;
        *op = (struct op){ .job = j, .busy = true, .kind = kind, .rank = rank, .slot = SLOTS_MAX };
        j->nops++;
        j->calls++;
        return op;
    }
    return NULL;
}

static int slot_take(struct job *j, unsigned rank)
{
    for (unsigned i = 0; i < j->nslots; i++)
        if (!j->slots[rank][i]) {
            j->slots[rank][i] = true;
            return (int)i;
        }
    return -1;
}

static void *slot_at(struct job *j, unsigned rank, unsigned slot)
{
    return (char *)j->ranks[rank].job.staging + slot * j->slot_elems * sizeof(float);
}

static void started(struct job *j, const struct op *op, int rc)
{
    if (rc < 0)
        fail_msg("operation %d: %d, %s", op->kind, rc, zc_error(j->ranks[op->rank].c));
}

/* A part that fits a slot, of a shard's elements from `next` on. */
static uint64_t draw_part(struct job *j, const struct shard *s, uint64_t next)
{
    uint64_t pages = j->slot_elems / j->page, part = (1 + draw(pages)) * j->page;

    return zb_min_u64(part, s->count - next);
}

/* The next part of a shard's initial values; in order, but several at a time. */
static bool start_write(struct job *j, struct shard *s)
{
    struct unit *u = unit_of(j, s);
    int slot = slot_take(j, s->rank);
    struct op *op = slot < 0 ? NULL : op_take(j, WRITE, s->rank);
    uint64_t count;
    struct zk_page page;
    float *staged;

    if (!op) {
        if (slot >= 0)
            j->slots[s->rank][slot] = false;
        return false;
    }
    count = draw_part(j, s, s->write_next);
    page = model_page(j, s, s->write_next, count);
    staged = slot_at(j, s->rank, (unsigned)slot);
    for (uint64_t i = 0; i < count; i++)
        staged[i] = page.first + i < u->def.elems ? draw_float(1) : 0;
    if (j->iterations > 0) /* a trained job's moments stay */
        zk_page_set(j->ops, &u->layout, &page, ZK_MASTER, staged);
    else
        zk_page_init(j->ops, &u->layout, &page, staged);
    op->slot = (unsigned)slot;
    op->shards[0] = s;
    op->n = 1;
    started(
        j, op,
        zc_write(j->ranks[s->rank].c, s->id, ZC_MASTER, s->write_next, count, staged, op_done, op));
    s->written++;
    s->write_next += count;
    return true;
}

static void write_again(struct job *j, struct shard *s)
{
    s->write_next = 0;
    s->live = false;
    while (s->write_next < s->count || s->written > 0) {
        if (s->write_next == s->count || !start_write(j, s))
            zi_pump(j->ranks, j->world, 1);
    }
    s->live = true;
}

/* Copies the present version to the other version's buffer. */
static void param_copy(struct job *j)
{
    for (unsigned u = 0; u < j->nunits; u++) {
        struct unit *unit = &j->units[u];

        memcpy(unit->param[(j->applied + 1) & 1], unit->param[j->applied & 1],
               zb_blocks_bytes(unit->layout.block_bytes[ZB_PARAM], unit->padded));
    }
}

static bool complete(struct job *j, const struct shard *s)
{
    return unit_of(j, s)->def.frozen || s->micro == s->micros;
}

static void draw_grad(struct job *j, enum zc_dtype dtype, void *to, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        float f = draw_float(0.1f);

        if (dtype == ZC_F32)
            ((float *)to)[i] = f;
        else
            (dtype == ZC_BF16 ? j->ops->f32_to_bf16 : j->ops->f32_to_f16)(&f, (uint16_t *)to + i,
                                                                          1);
    }
}

static bool start_push(struct job *j, struct shard *s)
{
    struct unit *u = unit_of(j, s);
    struct zc_push push = { .shard = s->id,
                            .step = j->iterations + 1,
                            .micro = s->micro,
                            .add = s->micro > 0,
                            .first = s->next,
                            .dtype = (enum zc_dtype)draw_dtype() };
    struct zk_page page;
    struct op *op;
    int slot;

    if (complete(j, s) || (slot = slot_take(j, s->rank)) < 0)
        return false;
    op = op_take(j, PUSH, s->rank);
    if (!op) {
        j->slots[s->rank][slot] = false;
        return false;
    }
    push.count = draw_part(j, s, s->next);
    push.staged = slot_at(j, s->rank, (unsigned)slot);
    page = model_page(j, s, s->next, push.count);
    draw_grad(j, push.dtype, slot_at(j, s->rank, (unsigned)slot), push.count);
    if (s->next == 0) {
        memset(&s->sum, 0, sizeof(s->sum));
        s->nonfinite = 0;
    }
    zk_page_ingest(j->ops, &u->layout, &page, push.staged, (enum zb_dtype)push.dtype, push.add,
                   &s->sum, &s->nonfinite);
    op->slot = (unsigned)slot;
    op->shards[0] = s;
    op->n = 1;
    s->pushes++;
    started(j, op, zc_push(j->ranks[s->rank].c, &push, op_done, op));
    s->next += push.count;
    if (s->next == s->count) {
        s->next = 0;
        s->micro++;
    }
    return true;
}

/* Any rank reads anything, except that only its owner reads a gradient, in order with its own
 * pushes. */
static bool start_read(struct job *j, struct shard *s)
{
    struct unit *u = unit_of(j, s);
    enum zk_what what = (enum zk_what)(ZK_PARAM + draw(5));
    unsigned rank = what == ZK_GRAD ? s->rank : (unsigned)draw(j->world);
    uint64_t pages = zb_div_up(s->count, j->page), first = draw(pages) * j->page, count;
    struct zk_page page;
    struct op *op;
    int slot;

    if (!zk_page_has(&u->layout, what) || (what == ZK_GRAD && s->pushes > 0) ||
        (what == ZK_GRAD && s->micro == 0) || (slot = slot_take(j, rank)) < 0)
        return false;
    op = op_take(j, READ, rank);
    if (!op) {
        j->slots[rank][slot] = false;
        return false;
    }
    count = draw_part(j, s, first);
    page = model_page(j, s, first, count);
    op->want_bytes = count * (what == ZK_PARAM ? zb_dtype_bytes(u->layout.dtype) : sizeof(float));
    op->want = malloc(op->want_bytes);
    zk_page_read(j->ops, &u->layout, &page, what, op->want);
    op->slot = (unsigned)slot;
    op->shards[0] = s;
    op->n = 1;
    s->reads++;
    started(j, op,
            zc_read(j->ranks[rank].c, s->id, (enum zc_what)what, first, count,
                    slot_at(j, rank, (unsigned)slot), op_done, op));
    return true;
}

/* Bytes of the first `count` elements of a shard's parameters, as they are in the arena. */
static uint64_t param_bytes(struct job *j, const struct shard *s, uint64_t count)
{
    return zb_plane_bytes(unit_of(j, s)->layout.block_bytes[ZB_PARAM], j->page, count);
}

/* Whether the two shards, if streamed, share their places in the ring. */
static bool ring_same(struct job *j, const struct shard *s, const struct shard *t)
{
    return s->rank == t->rank && param_bytes(j, s, s->count) == param_bytes(j, t, t->count);
}

/* The number of other shards that share them and are pinned or wanted. */
static unsigned ring_others(struct job *j, const struct shard *s)
{
    unsigned n = 0;

    for (unsigned i = 0; i < j->nshards; i++) {
        const struct shard *t = &j->shards[i];

        n += t != s && t->pins + t->fetches > 0 && ring_same(j, s, t);
    }
    return n;
}

/* press: more than fits, deliberately. */
static bool start_fetch(struct job *j, uint64_t version, bool press)
{
    unsigned rank = (unsigned)draw(j->world);
    unsigned n = press ? SHARDS_FETCH : 1 + (unsigned)draw(SHARDS_FETCH);
    struct op *op = j->npins + j->wanted + n <= PINS_MAX ? op_take(j, FETCH, rank) : NULL;

    if (!op)
        return false;
    for (unsigned i = 0; i < n; i++) {
        struct shard *s = &j->shards[draw(j->nshards)];

        if (!s->live || (!press && ring_others(j, s) >= RING_PLACES) ||
            (press && op->n > 0 && !ring_same(j, s, op->shards[0])))
            continue;
        s->fetches++;
        j->wanted++;
        op->ids[op->n] = s->id;
        op->shards[op->n++] = s;
    }
    op->version = version;
    op->press = press;
    if (op->n == 0) {
        op->busy = false;
        j->nops--;
        return false;
    }
    j->pressed += press;
    j->nfetches++;
    started(j, op,
            zc_fetch(j->ranks[rank].c, op->ids, op->n, version, press ? PRESS_MS : ZI_FETCH_MS,
                     op->views, op_done, op));
    return true;
}

/* What a rank sees in the arena must be the model's, at the version that it was told. */
static void pin_check(struct job *j, const struct pin *p)
{
    struct unit *u = unit_of(j, p->shard);
    uint64_t count = p->shard->count;
    const uint8_t *param = u->param[p->view.version & 1];

    if (p->view.version != j->applied && p->view.version + 1 != j->applied)
        fail_msg("unit %u has version %llu, and %llu steps were applied", p->shard->unit,
                 (unsigned long long)p->view.version, (unsigned long long)j->applied);
    assert_int_equal(p->view.bytes, param_bytes(j, p->shard, count));
    for (uint64_t at = 0, n; at < count; at += n) { /* page by page */
        const uint8_t *is = (const uint8_t *)p->view.data + param_bytes(j, p->shard, at);
        const uint8_t *want =
            plane_at((uint8_t *)(uintptr_t)param, u, ZB_PARAM, p->shard->first + at);
        uint64_t used, end;

        n = zb_min_u64(j->page, count - at);
        used = zb_blocks_bytes(u->layout.block_bytes[ZB_PARAM], n);
        end = zb_page_bytes(u->layout.block_bytes[ZB_PARAM], n);
        for (uint64_t i = 0; memcmp(is, want, used) != 0 && i < used; i++)
            if (is[i] != want[i])
                fail_msg("unit %u, shard from %llu, version %llu: byte %llu of the page from %llu "
                         "differs",
                         p->shard->unit, (unsigned long long)p->shard->first,
                         (unsigned long long)p->view.version, (unsigned long long)i,
                         (unsigned long long)at);
        for (uint64_t i = used; i < end; i++)
            assert_int_equal(is[i], 0);
    }
}

static void fetch_done(struct job *j, struct op *op, int rc)
{
    for (unsigned i = 0; i < op->n; i++)
        op->shards[i]->fetches--;
    j->wanted -= op->n;
    j->nfetches--;
    if (op->press && rc == -ETIMEDOUT) {
        j->timed_out++;
        return;
    }
    if (rc < 0)
        fail_msg("fetch of %u shards: %d, %s", op->n, rc, zc_error(j->ranks[op->rank].c));
    for (unsigned i = 0; i < op->n; i++) {
        struct pin *p = &j->pins[j->npins++];

        assert_true(j->npins <= PINS_MAX);
        *p = (struct pin){ op->shards[i], op->rank, op->views[i] };
        p->shard->pins++;
        assert_true(p->view.version >= op->version);
        pin_check(j, p);
    }
}

static void op_done(void *arg, int rc)
{
    struct op *op = arg;
    struct job *j = op->job;

    assert_true(op->busy);
    if (op->kind != FETCH && rc < 0)
        fail_msg("operation %d on unit %u: %d, %s", op->kind, op->shards[0]->unit, rc,
                 zc_error(j->ranks[op->rank].c));
    switch (op->kind) {
    case WRITE:
        op->shards[0]->written--;
        break;
    case PUSH:
        op->shards[0]->pushes--;
        break;
    case READ:
        op->shards[0]->reads--;
        if (memcmp(slot_at(j, op->rank, op->slot), op->want, op->want_bytes) != 0)
            fail_msg("what is read of unit %u differs", op->shards[0]->unit);
        free(op->want);
        break;
    case FETCH:
        fetch_done(j, op, rc);
        break;
    }
    if (op->slot < SLOTS_MAX)
        j->slots[op->rank][op->slot] = false;
    op->busy = false;
    j->nops--;
}

static void release(struct job *j, unsigned i)
{
    struct pin *p = &j->pins[i];

    pin_check(j, p); /* the bytes have not changed meanwhile */
    assert_int_equal(zc_release(j->ranks[p->rank].c, &p->shard->id, 1), 0);
    p->shard->pins--;
    *p = j->pins[--j->npins];
}

/* Waits until nothing is in flight, or only fetches, which may need pins to be released. */
static void settle(struct job *j, bool but_fetches)
{
    uint64_t until = zb_now_ns() + ZI_SOON_NS;

    while (j->nops > (but_fetches ? j->nfetches : 0)) {
        if (zb_now_ns() > until)
            fail_msg("%u operations do not end", j->nops);
        if (j->npins > 0 && !but_fetches)
            release(j, (unsigned)draw(j->npins));
        zi_pump(j->ranks, j->world, 1);
    }
}

/* Releases every pin. Then nothing is in progress in the daemon, whatever timed out before. */
static void let_go(struct job *j)
{
    uint64_t until = zb_now_ns() + ZI_SOON_NS, busy;

    while (j->npins > 0)
        release(j, (unsigned)draw(j->npins));
    for (unsigned r = 0; r < j->world; r++)
        assert_int_equal(zc_ping_wait(j->ranks[r].c), 0);
    while ((busy = zi_counter(j->ranks[0].c, "operations_in_progress")) > 0) {
        if (zb_now_ns() > until)
            fail_msg("%llu operations of nobody do not end", (unsigned long long)busy);
    }
}

/* ---- a step */

static struct shard *draw_shard(struct job *j)
{
    return &j->shards[draw(j->nshards)];
}

static bool all_complete(struct job *j)
{
    for (unsigned i = 0; i < j->nshards; i++)
        if (!complete(j, &j->shards[i]))
            return false;
    return true;
}

static void train_one(struct job *j)
{
    switch (draw(10)) {
    case 0:
    case 1:
    case 2:
    case 3:
        (void)start_push(j, draw_shard(j));
        break;
    case 4:
    case 5:
        (void)start_fetch(j, draw(j->applied + 1), false);
        break;
    case 6:
        if (j->npins > 0 && chance(60))
            release(j, (unsigned)draw(j->npins));
        break;
    case 7:
        (void)start_read(j, draw_shard(j));
        break;
    case 8:
        if (chance(20))
            (void)start_fetch(j, j->applied, true);
        break;
    default:
        zi_pump(j->ranks, j->world, 0);
        break;
    }
}

static void train(struct job *j)
{
    j->micros = j->ranks[0].place.early && chance(50) ? 1 : 0;
    for (unsigned i = 0; i < j->nshards; i++) {
        struct shard *s = &j->shards[i];
        bool once = unit_of(j, s)->def.grad_dtype != ZC_F32 || j->micros == 1;

        s->micros = once ? 1 : 1 + (unsigned)draw(MICRO_MAX);
        s->micro = 0;
        s->next = 0;
    }
    for (unsigned n = 0; !all_complete(j); n++) {
        train_one(j);
        if (n % 16 == 0)
            zi_pump(j->ranks, j->world, 0);
    }
    if (chance(30)) { /* new initial values of a shard that is not pinned or being read */
        struct shard *s = draw_shard(j);

        settle(j, false);
        let_go(j);
        write_again(j, s);
    }
}

static void check_norms(struct job *j)
{
    for (unsigned r = 0; r < j->world; r++) {
        struct zc_norm norm;
        struct zk_xsum sum = { 0 };
        uint8_t want[ZK_XSUM_BYTES];
        int rc = zc_norms_wait(j->ranks[r].c, j->ranks[r].job.id, j->iterations + 1, &norm);

        if (rc < 0)
            fail_msg("norms: %d, %s", rc, zc_error(j->ranks[r].c));
        for (unsigned i = 0; i < j->nshards; i++)
            if (j->shards[i].rank == r && !unit_of(j, &j->shards[i])->def.frozen)
                zk_xsum_merge(&sum, &j->shards[i].sum);
        zk_xsum_store(&sum, want);
        assert_memory_equal(norm.sum_of_squares, want, sizeof(want));
    }
}

/* Memory and step sizes for a unit's matrices. */
static void model_matrices(const struct job *j, struct unit *u, const struct zc_step *step)
{
    for (uint32_t m = 0, s = 0; m < u->nmatrices; m++, s++) {
        struct zk_matrix *matrix = &u->matrices[m];
        const struct zc_group *g;

        while (u->segments[s].first != matrix->first)
            s++;
        g = &step->groups[u->segments[s].group - j->ngroups];
        matrix->step_size = (float)(g->lr * zk_muon_factor((enum zk_muon_scale)g->muon_scale,
                                                           matrix->rows, matrix->cols));
        matrix->at = calloc(matrix->count, sizeof(float));
    }
}

/* Makes the model's step at once. */
static void model_step(struct job *j, const struct zc_step *step)
{
    struct zk_scalars by_group[2 * GROUPS_MAX];

    param_copy(j);
    j->applied++;
    for (unsigned g = 0; g < j->ngroups; g++) {
        const struct zc_group *from = &step->groups[g];
        struct zk_params p = { .lr = from->lr,
                               .beta1 = from->beta1,
                               .beta2 = from->beta2,
                               .eps = from->eps,
                               .weight_decay = from->weight_decay,
                               .scale = step->scale,
                               .momentum = from->momentum,
                               .dampening = from->dampening,
                               .lr_decay = from->lr_decay,
                               .nesterov = from->nesterov };
        enum zb_optimizer o = (enum zb_optimizer)j->options.optimizer;

        by_group[g] = zk_prepare(o == ZB_MUON ? ZB_ADAMW : o, &p, j->applied);
        by_group[j->ngroups + g] = zk_prepare(o, &p, j->applied);
    }
    for (unsigned u = 0; u < j->nunits; u++) {
        struct unit *unit = &j->units[u];
        struct zk_page page = { .param = unit->param[j->applied & 1],
                                .state = unit->state,
                                .grad = unit->grad,
                                .count = unit->padded };

        if (unit->def.frozen)
            continue;
        page.matrices = unit->matrices;
        page.nmatrices = unit->nmatrices;
        model_matrices(j, unit, step);
        zk_page_step(j->ops, &unit->layout, &page, unit->segments, unit->nsegments, by_group);
        for (uint32_t m = 0; m < unit->nmatrices; m++) {
            const struct zk_matrix *matrix = &unit->matrices[m];
            void *scratch = calloc(1, zb_ortho_bytes(matrix->rows, matrix->cols));

            zk_ortho(ortho_ops, &zk_ortho_muon, matrix->at, matrix->rows, matrix->cols, scratch);
            free(scratch);
        }
        zk_page_weight(j->ops, &unit->layout, &page, unit->segments, unit->nsegments, by_group);
        for (uint32_t m = 0; m < unit->nmatrices; m++)
            free(unit->matrices[m].at);
    }
}

static struct zc_group draw_group(void)
{
    struct zc_group g = { .lr = 1e-3 * (double)(1 + draw(50)),
                          .beta1 = 0.8 + (double)draw(19) / 100,
                          .beta2 = 0.9 + (double)draw(99) / 1000,
                          .eps = 1e-8,
                          .weight_decay = (double)draw(10) / 100,
                          .momentum = (double)draw(10) / 10,
                          .lr_decay = (double)draw(10) / 10,
                          .muon_scale = chance(50) ? ZC_MUON_SHAPE : ZC_MUON_RMS };

    g.nesterov = g.momentum > 0 && chance(30);
    g.dampening = g.nesterov ? 0 : (double)draw(10) / 10;
    return g;
}

/* The step begins early, with the shards that have the most micro-steps. Some of their pages are stepped before the ranks
 * ask, others are in flight then. */
static void begin_early(struct job *j, const struct zc_step *step)
{
    unsigned micros = 1;

    for (unsigned i = 0; i < j->nshards; i++)
        if (!unit_of(j, &j->shards[i])->def.frozen && j->shards[i].micros > micros)
            micros = j->shards[i].micros;
    for (unsigned r = 0; r < j->world; r++)
        if (zc_step_begin_wait(j->ranks[r].c, j->ranks[r].job.id, step, micros) < 0)
            fail_msg("early: %s", zc_error(j->ranks[r].c));
    zi_pump(j->ranks, j->world, (unsigned)draw(20));
    j->begun++;
}

static void step(struct job *j)
{
    struct zc_group groups[GROUPS_MAX];
    struct zc_step step = { .step = j->iterations + 1,
                            .scale = 0.25 + (double)draw(8) / 8,
                            .groups = groups,
                            .ngroups = j->ngroups,
                            .timeout_ms = 120000 };
    bool skip = chance(15);
    struct zc_stepped stepped[WORLD_MAX];
    struct zi_call calls[WORLD_MAX];
    unsigned asked = 0, behind = 0;

    train(j);
    settle(j, true); /* no push may be in flight when a rank asks; fetches may */
    check_norms(j);
    for (unsigned g = 0; g < j->ngroups; g++)
        groups[g] = draw_group();
    if (j->ranks[0].place.early && chance(70))
        begin_early(j, &step);
    while (asked < j->world) {
        calls[asked] = ZI_CALL(&j->ranks[asked]);
        if (skip)
            assert_int_equal(zc_skip(j->ranks[asked].c, j->ranks[asked].job.id, step.step,
                                     ZC_COMMIT_NO, 120000, &stepped[asked], zi_done, &calls[asked]),
                             0);
        else
            assert_int_equal(zc_step(j->ranks[asked].c, j->ranks[asked].job.id, &step,
                                     &stepped[asked], zi_done, &calls[asked]),
                             0);
        asked++;
        if (chance(50) && j->npins > 0)
            release(j, (unsigned)draw(j->npins));
        zi_pump(j->ranks, j->world, 0);
    }
    if (!skip)
        model_step(j, &step);
    j->iterations++;
    for (;;) { /* ranks that hold pins of the old version delay the step; the pinned bytes stay */
        bool over = true;

        for (unsigned r = 0; r < j->world; r++)
            over &= calls[r].over;
        if (over)
            break;
        if (j->npins > 0 && chance(60))
            release(j, (unsigned)draw(j->npins));
        if (behind < 8 && start_fetch(j, j->applied, false))
            behind++;
        zi_pump(j->ranks, j->world, 1);
    }
    for (unsigned r = 0; r < j->world; r++) {
        if (calls[r].rc < 0)
            fail_msg("step: %d, %s", calls[r].rc, calls[r].text);
        assert_int_equal(stepped[r].iterations, j->iterations);
        assert_int_equal(stepped[r].applied, j->applied);
    }
    j->steps += !skip;
    j->skips += skip;
}

/* ---- the test */

/* Reads and compares every byte of every shard. */
static void check_all(struct job *j)
{
    for (unsigned i = 0; i < j->nshards; i++) {
        struct shard *s = &j->shards[i];
        struct unit *u = unit_of(j, s);
        struct zi_rank *r = &j->ranks[draw(j->world)];

        for (enum zk_what what = ZK_PARAM; what <= ZK_EXP_AVG_SQ; what++)
            for (uint64_t first = 0, count; first < s->count; first += count) {
                struct zk_page page;
                size_t bytes;
                void *want;

                count = draw_part(j, s, first);
                page = model_page(j, s, first, count);
                if (!zk_page_has(&u->layout, what))
                    continue;
                bytes = count *
                        (what == ZK_PARAM ? zb_dtype_bytes(u->layout.dtype) : sizeof(float));
                want = malloc(bytes);
                zk_page_read(j->ops, &u->layout, &page, what, want);
                if (zc_read_wait(r->c, s->id, (enum zc_what)what, first, count, r->job.staging) < 0)
                    fail_msg("read: %s", zc_error(r->c));
                if (memcmp(r->job.staging, want, bytes) != 0)
                    fail_msg("in the end, plane %d of unit %u from %llu differs", what, s->unit,
                             (unsigned long long)(s->first + first));
                free(want);
            }
    }
}

/* All ranks leave a kept job, in good order or not, and come back. */
static void leave_and_return(struct job *j)
{
    uint64_t ids[UNITS_MAX * WORLD_MAX];

    settle(j, false);
    let_go(j);
    for (unsigned i = 0; i < j->nshards; i++)
        ids[i] = j->shards[i].id;
    for (unsigned r = 0; r < j->world; r++) {
        if (chance(50))
            assert_int_equal(zc_job_close_wait(j->ranks[r].c, j->ranks[r].job.id), 0);
        zc_close(j->ranks[r].c);
    }
    j->options.attach = true;
    for (unsigned r = 0; r < j->world; r++) {
        int rc;

        j->options.rank = r;
        /* until the daemon has noticed the loss, and freed the staging */
        for (unsigned waited = 0;; waited++) {
            rc = zi_open(&j->ranks[r], j->d, &j->options);
            if ((rc != -EBUSY && rc != -ENOSPC) || waited > 200)
                break;
            zc_close(j->ranks[r].c);
            (void)poll(NULL, 0, 5);
        }
        if (rc < 0)
            fail_msg("attach: %d, %s", rc, zc_error(j->ranks[r].c));
        assert_int_equal(j->ranks[r].job.applied, j->applied);
        assert_int_equal(j->ranks[r].job.iterations, j->iterations);
        job_define(j, r);
    }
    assert_int_equal(zi_ready(j->ranks, j->world), 0);
    for (unsigned i = 0; i < j->nshards; i++)
        assert_int_equal(j->shards[i].id, ids[i]);
}

static void job_draw(struct job *j, struct zi_daemon *d, uint64_t page, unsigned number)
{
    *j = (struct job){ .d = d, .page = page };
    assert_int_equal(zk_select("ref", &j->ops, NULL), 0);
    assert_int_equal(zk_select(NULL, &ortho_ops, NULL), 0);
    (void)snprintf(j->name, sizeof(j->name), "job-%u", number);
    j->world = 1 + (unsigned)draw(WORLD_MAX);
    j->ngroups = 1 + (unsigned)draw(GROUPS_MAX);
    j->nunits = 2 + (unsigned)draw(UNITS_MAX - 1);
    j->nslots = 1 + (unsigned)draw(SLOTS_MAX);
    j->slot_elems = page * (1 + draw(3));
    j->keep = chance(30);
    j->alike = chance(40);
    if (j->alike)
        j->nunits = UNITS_MAX;
    j->options.optimizer = chance(25) ? ZC_MUON : (enum zc_optimizer)(1 + draw(ZB_MUON - 1));
    j->options.moments = (enum zc_moments)(1 + draw(ZB_MOMENTS_END - 1));
    for (unsigned u = 0; u < j->nunits; u++)
        draw_unit(j, u);
    draw_shards(j);
    j->options = (struct zc_job_options){
        .name = j->name,
        .world = j->world,
        .keep = j->keep,
        .groups = j->ngroups,
        .staging_bytes = j->nslots * j->slot_elems * sizeof(float),
        .offload_param = chance(15) ? ZC_HOST : ZC_NVME,
        .offload_optimizer = chance(15) ? ZC_HOST : ZC_NVME,
        .offload_grad = chance(30) ? ZC_HOST : ZC_NVME,
        .early = chance(50),
        .optimizer = j->options.optimizer,
        .moments = j->options.moments,
    };
}

static void job_free(struct job *j)
{
    for (unsigned u = 0; u < j->nunits; u++) {
        free(j->units[u].param[0]);
        free(j->units[u].param[1]);
        free(j->units[u].state);
        free(j->units[u].grad);
    }
}

static void job_run(struct job *j, unsigned steps)
{
    struct zc_job_row row;
    struct zc_client *c;

    job_open(j);
    for (unsigned i = 0; i < j->nshards; i++) /* all at a time, part by part */
        j->shards[i].write_next = 0;
    for (unsigned left = j->nshards; left > 0;) {
        struct shard *s = draw_shard(j);

        if (s->live || (s->write_next < s->count && start_write(j, s)))
            continue;
        if (s->write_next == s->count && s->written == 0) {
            s->live = true;
            left--;
        }
        zi_pump(j->ranks, j->world, 0);
    }
    for (unsigned i = 0; i < steps; i++) {
        step(j);
        if (j->keep && chance(25))
            leave_and_return(j);
    }
    settle(j, false);
    let_go(j);
    check_all(j);
    row = zi_job_row(j->ranks[0].c, j->name);
    j->moved = row.nvme_read_bytes + row.nvme_written_bytes;
    zi_close(j->ranks, j->world);
    if (j->keep) {
        c = zi_client(j->d);
        assert_int_equal(zc_job_destroy_wait(c, j->name), 0);
        zc_close(c);
    }
}

static void round_run(unsigned number, unsigned steps)
{
    static const uint32_t pages[] = { 4096, 8192, 16384, 32768, 65536 };
    uint32_t page = pages[draw(ZB_COUNT(pages))];
    unsigned buffers = 1 + (unsigned)draw(chance(50) ? 1 : 24), threads = 1 + (unsigned)draw(3);
    char page_text[16], ring_text[24], threads_text[8], depth_text[8];
    const char *io = chance(50) ? "uring" : "threads";
    const char *options[] = { "--host-bytes",
                              "256M",
                              "--nvme-bytes",
                              "256M",
                              "--page-elems",
                              page_text,
                              "--io",
                              io,
                              "--ring-bytes",
                              ring_text,
                              "--threads",
                              threads_text,
                              "--io-depth",
                              depth_text,
                              "--timeout-ms",
                              "120000",
                              NULL };
    uint64_t at_first = seed, host, nvme;
    struct zi_daemon d = { 0 };
    static struct job j;

    (void)snprintf(page_text, sizeof(page_text), "%u", page);
    (void)snprintf(ring_text, sizeof(ring_text), "%llu",
                   (unsigned long long)buffers * ZI_BUFFER_BYTES * page);
    (void)snprintf(threads_text, sizeof(threads_text), "%u", threads);
    (void)snprintf(depth_text, sizeof(depth_text), "%u", chance(30) ? 1 : 32);
    zi_start(&d, options);
    host = zi_used(&d, "host");
    nvme = zi_used(&d, "nvme");
    for (unsigned n = 0; n < 2; n++) {
        job_draw(&j, &d, page, n);
        job_run(&j, steps);
        (void)zi_await_used(&d, host, nvme);
        print_message(
            "round %u (seed %llu): pages of %u, %s, %u buffers; %s, %s moments; %u ranks, "
            "%u units, "
            "%llu calls, %llu steps, %llu skips, %llu begun early, %llu of %llu fetches pressed "
            "out, "
            "%llu KiB moved, %llu of gradients on NVMe\n",
            number, (unsigned long long)at_first, page, io, buffers,
            zb_optimizer_name((enum zb_optimizer)j.options.optimizer),
            zb_moments_name((enum zb_moments)j.options.moments), j.world, j.nunits,
            (unsigned long long)j.calls, (unsigned long long)j.steps, (unsigned long long)j.skips,
            (unsigned long long)j.begun, (unsigned long long)j.timed_out,
            (unsigned long long)j.pressed, (unsigned long long)(j.moved / ZB_KIB),
            (unsigned long long)(j.grads_nvme / ZB_KIB));
        job_free(&j);
    }
    zi_stop(&d);
}

static unsigned env_number(const char *name, unsigned otherwise)
{
    const char *text = getenv(name);

    return text && *text ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}

static void placement(void **state)
{
    const char *text = getenv("ZSHARD_SEED");
    unsigned rounds = env_number("ZSHARD_ROUNDS", 12), steps = env_number("ZSHARD_STEPS", 6);

    (void)state;
    seed = text && *text ? strtoull(text, NULL, 10) : SEED_DEFAULT;
    for (unsigned n = 0; n < rounds; n++) {
        print_message("ZSHARD_SEED=%llu\n", (unsigned long long)seed);
        round_run(n, steps);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(placement, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
