/*
 * sim_state.c - contents of the simulated device: chunks, changes, states.
 *
 * MODEL. A state is the durable contents of every file and the list of changes that are not
 * durable yet, in order. Everything in it is shared with other states: chunks until somebody
 * writes to them, changes always. So a copy costs a pointer for each chunk, and a device that a
 * power cut left is made from a recorded state by applying a few changes to a copy.
 *
 * A NAME always belongs to the same file. Creating the file again after it was deleted gives it a
 * new birth number. A change only applies to the birth that it was made for, so bytes of a new file
 * whose creation was lost never get into the old one.
 *
 * A POWER CUT chooses a subset of the changes, and of torn writes a subset of their sectors, and
 * applies it in order. For each sector that reaches every outcome that writing them in any order
 * has: it holds one of its versions.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/util.h"
#include "nvme/sim/sim_priv.h"

/* ---- chunks */

static struct sim_chunk *chunk_ref(struct sim_chunk *c)
{
    if (c)
        atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    return c;
}

static void chunk_unref(struct sim_chunk *c)
{
    if (c && atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) == 1)
        free(c);
}

/* Makes a chunk exclusive. keep: copies its bytes; false if all of them will be written. */
static int chunk_own(struct sim_chunk **c, bool keep)
{
    struct sim_chunk *own;

    if (*c && atomic_load_explicit(&(*c)->refs, memory_order_acquire) == 1)
        return 0;
    own = malloc(sizeof(*own));
    if (!own)
        return -ENOMEM;
    atomic_init(&own->refs, 1);
    if (keep && *c)
        memcpy(own->bytes, (*c)->bytes, sizeof(own->bytes));
    else
        memset(own->bytes, 0, sizeof(own->bytes)); /* whoever does not write after all: zeros */
    chunk_unref(*c);
    *c = own;
    return 0;
}

/* ---- contents */

void sim_data_done(struct sim_data *d)
{
    for (size_t i = 0; i < d->nchunks; i++)
        chunk_unref(d->chunks[i]);
    free(d->chunks);
    *d = (struct sim_data){ .born = d->born };
}

int sim_data_copy(struct sim_data *ret, const struct sim_data *d)
{
    struct sim_chunk **chunks = NULL;

    if (d->nchunks > 0) {
        chunks = malloc(d->nchunks * sizeof(struct sim_chunk *));
        if (!chunks)
            return -ENOMEM;
    }
    for (size_t i = 0; i < d->nchunks; i++)
        chunks[i] = chunk_ref(d->chunks[i]);
    *ret = *d;
    ret->chunks = chunks;
    return 0;
}

void sim_data_get(const struct sim_data *d, uint64_t off, void *bytes, size_t len)
{
    for (size_t done = 0; done < len;) {
        uint64_t at = off + done, in = at % SIM_CHUNK, i = at / SIM_CHUNK;
        size_t n = (size_t)zb_min_u64(SIM_CHUNK - in, len - done);

        if (i < d->nchunks && d->chunks[i])
            memcpy((char *)bytes + done, d->chunks[i]->bytes + in, n);
        else
            memset((char *)bytes + done, 0, n);
        done += n;
    }
}

/* Makes the table large enough for `end` bytes. */
static int data_reserve(struct sim_data *d, uint64_t end)
{
    size_t n = (size_t)zb_div_up(end, SIM_CHUNK);
    struct sim_chunk **chunks;

    if (n <= d->nchunks)
        return 0;
    chunks = realloc(d->chunks, n * sizeof(struct sim_chunk *));
    if (!chunks)
        return -ENOMEM;
    memset(chunks + d->nchunks, 0, (n - d->nchunks) * sizeof(struct sim_chunk *));
    d->chunks = chunks;
    d->nchunks = n;
    return 0;
}

int sim_data_own(struct sim_data *d, uint64_t off, size_t len)
{
    int rc = data_reserve(d, off + len);

    for (uint64_t at = off; rc == 0 && at < off + len; at = (at / SIM_CHUNK + 1) * SIM_CHUNK)
        rc = chunk_own(&d->chunks[at / SIM_CHUNK], true);
    return rc;
}

void sim_data_put(struct sim_data *d, uint64_t off, const void *bytes, size_t len)
{
    for (size_t done = 0; done < len;) {
        uint64_t at = off + done, in = at % SIM_CHUNK;
        size_t n = (size_t)zb_min_u64(SIM_CHUNK - in, len - done);

        memcpy(d->chunks[at / SIM_CHUNK]->bytes + in, (const char *)bytes + done, n);
        done += n;
    }
    d->size = zb_max_u64(d->size, off + len);
}

int sim_data_resize(struct sim_data *d, uint64_t size)
{
    uint64_t in = size % SIM_CHUNK;
    size_t keep = (size_t)zb_div_up(size, SIM_CHUNK);

    if (in > 0 && size < d->size && keep <= d->nchunks && d->chunks[keep - 1]) {
        if (chunk_own(&d->chunks[keep - 1], true) < 0)
            return -ENOMEM;
        memset(d->chunks[keep - 1]->bytes + in, 0, SIM_CHUNK - in);
    }
    for (size_t i = keep; i < d->nchunks; i++) {
        chunk_unref(d->chunks[i]);
        d->chunks[i] = NULL;
    }
    d->size = size;
    return 0;
}

/* Takes over the chunks of the range from contents that have the same bytes there. */
static void data_share(struct sim_data *d, const struct sim_data *from, uint64_t off, size_t len)
{
    for (uint64_t at = off; at < off + len; at = (at / SIM_CHUNK + 1) * SIM_CHUNK) {
        size_t i = (size_t)(at / SIM_CHUNK);

        if (d->chunks[i] == from->chunks[i])
            continue;
        chunk_unref(d->chunks[i]);
        d->chunks[i] = chunk_ref(from->chunks[i]);
    }
}

/* ---- changes */

struct sim_change *sim_change_new(enum sim_change_kind kind, unsigned file, uint32_t born,
                                  uint64_t off, const void *bytes, size_t len)
{
    struct sim_change *c = malloc(sizeof(*c) + len);

    if (!c)
        return NULL;
    atomic_init(&c->refs, 1);
    c->kind = kind;
    c->stale = false;
    c->file = file;
    c->born = born;
    c->off = off;
    c->len = len;
    if (len > 0 && bytes)
        memcpy(c->bytes, bytes, len);
    return c;
}

struct sim_change *sim_change_ref(struct sim_change *c)
{
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    return c;
}

void sim_change_unref(struct sim_change *c)
{
    if (c && atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) == 1)
        free(c);
}

static bool change_is_of(const struct sim_change *c, const struct sim_data *d)
{
    return d->exists && d->born == c->born;
}

static int change_write(const struct sim_change *c, struct sim_data *d, size_t from, size_t len)
{
    int rc = sim_data_own(d, c->off + from, len);

    if (rc == 0)
        sim_data_put(d, c->off + from, c->bytes + from, len);
    return rc;
}

int sim_change_apply(const struct sim_change *c, struct sim_data *d)
{
    switch (c->kind) {
    case SIM_CHANGE_WRITE:
        return change_is_of(c, d) ? change_write(c, d, 0, c->len) : 0;
    case SIM_CHANGE_RESIZE:
        return change_is_of(c, d) ? sim_data_resize(d, c->off) : 0;
    case SIM_CHANGE_CREATE:
        sim_data_done(d);
        d->exists = true;
        d->born = c->born;
        return 0;
    case SIM_CHANGE_DELETE:
        if (change_is_of(c, d))
            sim_data_done(d);
        return 0;
    }
    return 0;
}

/* ---- states */

void sim_state_done(struct sim_state *st)
{
    for (unsigned i = 0; i < st->nfiles; i++)
        sim_data_done(&st->files[i]);
    for (size_t i = 0; i < st->npending; i++)
        sim_change_unref(st->pending[i].change);
    free(st->files);
    free(st->pending);
    *st = (struct sim_state){ 0 };
}

int sim_state_copy(struct sim_state *ret, const struct sim_state *st)
{
    ret->files = calloc(st->nfiles + 1, sizeof(*ret->files));
    ret->room = st->npending + 1;
    ret->pending = malloc(ret->room * sizeof(*ret->pending));
    if (!ret->files || !ret->pending)
        return -ENOMEM;
    for (; ret->nfiles < st->nfiles; ret->nfiles++) {
        if (sim_data_copy(&ret->files[ret->nfiles], &st->files[ret->nfiles]) < 0)
            return -ENOMEM;
    }
    for (; ret->npending < st->npending; ret->npending++) {
        ret->pending[ret->npending] = st->pending[ret->npending];
        (void)sim_change_ref(ret->pending[ret->npending].change);
    }
    ret->pending_bytes = st->pending_bytes;
    return 0;
}

int sim_state_room(struct sim_state *st, unsigned file)
{
    if (file >= st->nfiles) {
        struct sim_data *files = realloc(st->files, (file + 1) * sizeof(*files));

        if (!files)
            return -ENOMEM;
        memset(files + st->nfiles, 0, (file + 1 - st->nfiles) * sizeof(*files));
        st->files = files;
        st->nfiles = file + 1;
    }
    return zb_grow(&st->pending, &st->room, st->npending, 1);
}

void sim_state_add(struct sim_state *st, struct sim_change *c)
{
    assert(st->npending < st->room && c->file < st->nfiles);
    st->pending[st->npending++] = (struct sim_pending){ .change = c };
    st->pending_bytes += c->len;
}

/* A write becomes durable by taking over the chunks of contents that have it. A write to an earlier
 * file of that name is in none of them. */
static int state_share(struct sim_data *d, const struct sim_change *c, const struct sim_data *now)
{
    int rc = change_is_of(c, d) ? data_reserve(d, c->off + c->len) : 0;

    if (rc == 0 && change_is_of(c, d)) {
        data_share(d, now, c->off, c->len);
        d->size = zb_max_u64(d->size, c->off + c->len);
    }
    return rc;
}

static bool state_only_writes(const struct sim_state *st, unsigned file)
{
    for (size_t i = 0; i < st->npending; i++) {
        const struct sim_change *c = st->pending[i].change;

        if (c->file == file && c->kind != SIM_CHANGE_WRITE)
            return false;
    }
    return true;
}

int sim_state_flush(struct sim_state *st, unsigned file, const struct sim_data *now)
{
    bool whole = false;
    size_t kept = 0;
    int rc = 0;

    if (now && !state_only_writes(st, file)) {
        struct sim_data copy;

        rc = sim_data_copy(&copy, now);
        if (rc < 0)
            return rc;
        sim_data_done(&st->files[file]);
        st->files[file] = copy;
        whole = true;
    }
    for (size_t i = 0; i < st->npending; i++) {
        struct sim_pending *p = &st->pending[i];

        if (p->change->file == file && rc == 0 && !whole && !p->change->stale && !p->forgotten)
            rc = now ? state_share(&st->files[file], p->change, now)
                     : sim_change_apply(p->change, &st->files[file]);
        if (p->change->file != file || rc < 0) {
            st->pending[kept++] = *p;
            continue;
        }
        st->pending_bytes -= p->change->len;
        sim_change_unref(p->change);
    }
    st->npending = kept;
    return rc;
}

void sim_state_flush_names(struct sim_state *st)
{
    size_t kept = 0;

    for (size_t i = 0; i < st->npending; i++) {
        struct sim_change *c = st->pending[i].change;

        if (c->kind != SIM_CHANGE_CREATE && c->kind != SIM_CHANGE_DELETE) {
            st->pending[kept++] = st->pending[i];
            continue;
        }
        (void)sim_change_apply(c, &st->files[c->file]); /* these two need no memory */
        sim_change_unref(c);
    }
    st->npending = kept;
}

void sim_state_forget(struct sim_state *st, unsigned file, uint64_t seed)
{
    for (size_t i = 0; i < st->npending; i++) {
        struct sim_pending *p = &st->pending[i];

        if (p->change->file == file && p->change->kind == SIM_CHANGE_WRITE &&
            sim_draw(&seed) % 2 == 0)
            p->forgotten = true;
    }
}

/* ---- the power cut */

enum state_fate { FATE_KEPT, FATE_LOST, FATE_TORN };

/* What the variants have in common: how many are kept, of how many. */
struct state_plan {
    uint32_t variant;
    size_t prefix;          /* variant 2 */
    unsigned keep, of_keep; /* the others */
    unsigned of_torn;
};

static struct state_plan state_plan(const struct sim_state *st, uint64_t *seed, uint32_t variant)
{
    uint64_t prefix = sim_draw(seed), keep = sim_draw(seed), torn = sim_draw(seed);

    return (struct state_plan){
        .variant = variant,
        .prefix = (size_t)(prefix % (st->npending + 1)),
        .keep = (unsigned)(keep % 9),
        .of_keep = 8,
        .of_torn = 2 + (unsigned)(torn % 7),
    };
}

static enum state_fate state_fate(const struct state_plan *plan, const struct sim_change *c,
                                  size_t i, uint64_t *seed)
{
    uint64_t keep = sim_draw(seed), torn = sim_draw(seed);

    switch (plan->variant) {
    case 0:
        return FATE_LOST;
    case 1:
        return FATE_KEPT;
    case 2:
        return i < plan->prefix ? FATE_KEPT : FATE_LOST;
    default:
        if (c->kind == SIM_CHANGE_WRITE && torn % plan->of_torn == 0)
            return FATE_TORN;
        return keep % plan->of_keep < plan->keep ? FATE_KEPT : FATE_LOST;
    }
}

/* Some sectors: the first ones, the last ones, or any. */
static int state_tear(struct sim_data *d, const struct sim_change *c, uint64_t *seed)
{
    uint64_t first = c->off / SIM_SECTOR, last = zb_div_up(c->off + c->len, SIM_SECTOR);
    uint64_t how = sim_draw(seed) % 3, at = first + sim_draw(seed) % (last - first + 1);
    int rc = 0;

    for (uint64_t sector = first; rc == 0 && sector < last; sector++) {
        uint64_t from = zb_max_u64(sector * SIM_SECTOR, c->off);
        uint64_t end = zb_min_u64((sector + 1) * SIM_SECTOR, c->off + c->len);
        bool any = sim_draw(seed) % 2 == 0;

        if (how == 0 ? sector < at : how == 1 ? sector >= at : any)
            rc = change_write(c, d, (size_t)(from - c->off), (size_t)(end - from));
    }
    return rc;
}

int sim_state_settle(struct sim_state *st, uint64_t seed, uint32_t variant)
{
    struct state_plan plan;
    int rc = 0;

    seed = sim_mix(seed, variant);
    plan = state_plan(st, &seed, variant);
    for (size_t i = 0; i < st->npending && rc == 0; i++) {
        const struct sim_change *c = st->pending[i].change;
        struct sim_data *d = &st->files[c->file];
        enum state_fate fate = state_fate(&plan, c, i, &seed);
        uint64_t tear = sim_draw(&seed), grow = sim_draw(&seed);

        if (c->stale || st->pending[i].forgotten)
            continue;
        if (fate == FATE_KEPT)
            rc = sim_change_apply(c, d);
        else if (fate == FATE_TORN && change_is_of(c, d))
            rc = state_tear(d, c, &tear);
        /* The file system may have made a file longer before its bytes were there. */
        if (rc == 0 && fate != FATE_KEPT && variant > 2 && grow % 8 == 0 &&
            c->kind == SIM_CHANGE_WRITE && change_is_of(c, d))
            d->size = zb_max_u64(d->size, c->off + c->len);
    }
    for (size_t i = 0; i < st->npending; i++)
        sim_change_unref(st->pending[i].change);
    st->npending = 0;
    st->pending_bytes = 0;
    return rc;
}
