/*
 * stash_daemon.c - a stash whose entries are shards of a frozen unit, in a job of this process.
 *
 * MODEL. Slots are in the job's staging, so nothing is copied here. The daemon writes an entry from
 * its slot (zc_write() of a whole shard) and reads it into a slot (zc_read()). The trainer computes
 * in the slot itself. Entries are stored as fp32, so their bits do not change.
 *
 *     a slot has one entry or none; `held`: in use by the trainer; `io`: a transfer is in progress
 *     an entry is `stored` when the daemon has its content; `busy` during a transfer
 *
 * A kept entry is written at once, and stays in its slot until another entry needs the slot: the
 * least recently used slot is reused. Reading ahead uses only slots that are empty or whose entry
 * is stored, and never the last slot in which an entry could be made.
 *
 * INVARIANTS. An entry is in at most one slot. When a slot changes its entry, it is neither held,
 * nor under io, nor busy for a device, and its old entry is stored or forgotten. There is at most
 * one call on a shard at a time (the daemon would reject the second).
 */
#include "examples/gpt/stash_daemon.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "client/zclient.h"

#define SLOTS      GPT_STASH_SLOTS
#define NO_ENTRY   UINT32_MAX
#define RING       3u /* places for a job's streamed shards of one size: ZC_PINS_MIN */
#define TIMEOUT_MS 60000u
#define WAIT_MS    1

enum io { IO_NONE, IO_WRITE, IO_READ };

struct stash;

struct slot {
    struct stash *stash;
    uint32_t entry;
    unsigned held;
    bool whole;  /* entry's bytes are in it */
    bool device; /* may be copying */
    enum io io;
    uint32_t io_entry; /* whose shard it is on */
    uint64_t touched;
};

struct entry {
    uint64_t shard;
    bool stored, wanted; /* wanted: kept, and not forgotten */
    bool busy;
};

struct stash {
    struct gpt_stash base;
    struct zc_client *c;
    struct zc_job job;
    struct slot slots[SLOTS];
    struct entry *entries;
    uint32_t nentries;
    uint64_t elems; /* of an entry, whole blocks */
    uint64_t clock;
    bool (*tick)(void *arg);
    void *tick_arg;
    double waited;
    struct zb_err err;
    int failed; /* 0, or the code */
};

static struct stash *stash_of(struct gpt_stash *s)
{
    return (struct stash *)s;
}

static int stash_fail(struct stash *s, int rc)
{
    if (s->failed == 0) {
        s->failed = rc;
        (void)zb_fail(&s->err, rc, "checkpoints of activations: %s", zc_error(s->c));
    }
    return s->failed;
}

static void *slot_memory(const struct stash *s, unsigned slot)
{
    return (char *)s->job.staging + slot * s->elems * sizeof(float);
}

/* ---- calls to the daemon */

static void slot_on_done(void *arg, int rc)
{
    struct slot *slot = arg;
    struct stash *s = slot->stash;
    struct entry *e = &s->entries[slot->io_entry];

    if (rc < 0)
        (void)stash_fail(s, rc);
    e->busy = false;
    if (slot->io == IO_WRITE && slot->entry == slot->io_entry)
        e->stored = true;
    if (slot->io == IO_READ && slot->entry == slot->io_entry)
        slot->whole = true;
    slot->io = IO_NONE;
}

static void slot_io(struct stash *s, struct slot *slot, enum io io)
{
    struct entry *e = &s->entries[slot->entry];
    void *at = slot_memory(s, (unsigned)(slot - s->slots));
    int rc = io == IO_WRITE
                 ? zc_write(s->c, e->shard, ZC_MASTER, 0, s->elems, at, slot_on_done, slot)
                 : zc_read(s->c, e->shard, ZC_PARAM, 0, s->elems, at, slot_on_done, slot);

    if (rc == -ENOBUFS)
        return; /* another time */
    if (rc < 0) {
        (void)stash_fail(s, rc);
        return;
    }
    slot->io = io;
    slot->io_entry = slot->entry;
    e->busy = true;
}

/* Starts every transfer that can start. */
static void stash_turn(struct stash *s, int wait_ms)
{
    int rc = zc_poll(s->c, wait_ms);

    if (rc < 0)
        (void)stash_fail(s, rc);
    for (unsigned i = 0; i < SLOTS && s->failed == 0; i++) {
        struct slot *slot = &s->slots[i];
        struct entry *e = slot->entry == NO_ENTRY ? NULL : &s->entries[slot->entry];

        if (slot->device)
            slot->device = s->base.busy && s->base.busy(s->base.busy_arg, i);
        if (!e || slot->device || slot->io != IO_NONE || e->busy)
            continue;
        if (slot->whole && e->wanted && !e->stored)
            slot_io(s, slot, IO_WRITE);
        else if (!slot->whole && e->wanted && e->stored)
            slot_io(s, slot, IO_READ);
    }
}

bool gpt_stash_poll(struct gpt_stash *base)
{
    struct stash *s = stash_of(base);

    if (s->failed == 0)
        stash_turn(s, 0);
    return s->failed == 0;
}

/* ---- slots */

static struct slot *slot_of(struct stash *s, uint32_t entry)
{
    for (unsigned i = 0; i < SLOTS; i++)
        if (s->slots[i].entry == entry)
            return &s->slots[i];
    return NULL;
}

static bool slot_free(const struct stash *s, const struct slot *slot)
{
    const struct entry *e = slot->entry == NO_ENTRY ? NULL : &s->entries[slot->entry];

    return slot->held == 0 && !slot->device && slot->io == IO_NONE &&
           (!e || (slot->whole && e->stored));
}

/* Returns the free slot that was used least recently, empty ones first. *ret_n: the number of free
 * slots. */
static struct slot *slot_find(struct stash *s, unsigned *ret_n)
{
    struct slot *best = NULL;

    *ret_n = 0;
    for (unsigned i = 0; i < SLOTS; i++) {
        struct slot *slot = &s->slots[i];

        if (!slot_free(s, slot))
            continue;
        ++*ret_n;
        if (!best || (slot->entry == NO_ENTRY) > (best->entry == NO_ENTRY) ||
            ((slot->entry == NO_ENTRY) == (best->entry == NO_ENTRY) &&
             slot->touched < best->touched))
            best = slot;
    }
    return best;
}

static void slot_take(struct stash *s, struct slot *slot, uint32_t entry)
{
    slot->entry = entry;
    slot->whole = false;
    slot->touched = ++s->clock;
}

static double now_s(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* Waits briefly. False: waiting is useless. */
static bool stash_wait(struct stash *s)
{
    double begin = now_s();

    stash_turn(s, WAIT_MS);
    if (s->failed == 0 && s->tick && !s->tick(s->tick_arg))
        s->failed = -ECANCELED;
    s->waited += now_s() - begin;
    return s->failed == 0;
}

/* ---- the table */

static void stash_forget(struct gpt_stash *base, uint32_t entry)
{
    struct stash *s = stash_of(base);
    struct slot *slot = slot_of(s, entry);

    s->entries[entry].wanted = s->entries[entry].stored = false;
    if (slot) { /* a transfer in progress ends by itself */
        slot->entry = NO_ENTRY;
        slot->held = 0;
    }
}

static void *stash_make(struct gpt_stash *base, uint32_t entry, unsigned *ret_slot)
{
    struct stash *s = stash_of(base);
    struct slot *slot = NULL;
    unsigned n;

    assert(entry < s->nentries);
    stash_forget(base, entry);
    while (s->failed == 0 && !(slot = slot_find(s, &n)) && stash_wait(s))
        ;
    if (!slot || s->failed != 0)
        return NULL;
    slot_take(s, slot, entry);
    slot->held = 1;
    *ret_slot = (unsigned)(slot - s->slots);
    return slot_memory(s, *ret_slot);
}

static void stash_let(struct stash *s, uint32_t entry)
{
    struct slot *slot = slot_of(s, entry);

    if (s->failed != 0)
        return;
    assert(slot && slot->held > 0);
    slot->held--;
    slot->device = s->base.busy != NULL;
    slot->touched = ++s->clock;
}

static void stash_keep(struct gpt_stash *base, uint32_t entry)
{
    struct stash *s = stash_of(base);

    if (s->failed != 0)
        return;
    stash_let(s, entry);
    slot_of(s, entry)->whole = true;
    s->entries[entry].wanted = true;
    (void)gpt_stash_poll(base);
}

static void *stash_take(struct gpt_stash *base, uint32_t entry, unsigned *ret_slot)
{
    struct stash *s = stash_of(base);
    struct slot *slot = slot_of(s, entry);
    unsigned n;

    assert(s->failed != 0 || (entry < s->nentries && s->entries[entry].wanted));
    while (s->failed == 0 && (!slot || !slot->whole)) {
        if (!slot && (slot = slot_find(s, &n)) != NULL)
            slot_take(s, slot, entry);
        if (!stash_wait(s))
            break;
    }
    if (s->failed != 0)
        return NULL;
    slot->held++;
    slot->touched = ++s->clock;
    *ret_slot = (unsigned)(slot - s->slots);
    return slot_memory(s, *ret_slot);
}

static void stash_drop(struct gpt_stash *base, uint32_t entry)
{
    stash_let(stash_of(base), entry);
}

static void stash_ahead(struct gpt_stash *base, uint32_t entry)
{
    struct stash *s = stash_of(base);
    struct slot *slot;
    unsigned n;

    assert(entry < s->nentries);
    if (s->failed != 0 || slot_of(s, entry) || !s->entries[entry].wanted)
        return;
    slot = slot_find(s, &n);
    if (slot && n > 1)
        slot_take(s, slot, entry);
    (void)gpt_stash_poll(base);
}

static const struct gpt_stash_ops daemon_ops = {
    .make = stash_make,
    .keep = stash_keep,
    .take = stash_take,
    .drop = stash_drop,
    .forget = stash_forget,
    .ahead = stash_ahead,
};

/* ---- opening and closing */

static int open_job(struct stash *s, const struct gpt_stash_options *o)
{
    uint64_t bytes = s->elems * sizeof(float), ring = o->entries < RING ? o->entries : RING;
    struct zc_job_options options = {
        .world = 1,
        .staging_bytes = SLOTS * bytes,
        .offload_param = o->nvme ? ZC_NVME : ZC_HOST,
        .offload_optimizer = o->nvme ? ZC_NVME : ZC_HOST,
        .groups = 1,
    };
    char name[ZC_NAME_MAX + 1];
    int n = snprintf(name, sizeof(name), "%.40s.acts.%u.%ld", o->job, o->rank, (long)getpid());

    assert(n > 0 && (size_t)n < sizeof(name));
    options.name = name;
    if (o->nvme) /* else what is free of host memory is used first, and others have less */
        options.host_bytes_max = options.staging_bytes + ring * bytes;
    return zc_job_open_wait(s->c, &options, &s->job);
}

static int open_shards(struct stash *s)
{
    const struct zc_unit unit = { .name = "checkpoints",
                                  .elems = s->nentries * s->elems,
                                  .dtype = ZC_F32,
                                  .grad_dtype = ZC_F32,
                                  .frozen = true };
    struct zc_placement placement;
    int rc = zc_unit_define_wait(s->c, s->job.id, &unit);

    for (uint32_t i = 0; i < s->nentries && rc == 0; i++) {
        const struct zc_range range = { .unit = 0, .first = i * s->elems, .count = s->elems };

        rc = zc_register_wait(s->c, s->job.id, &range, 1, &s->entries[i].shard);
    }
    return rc < 0 ? rc : zc_ready_wait(s->c, s->job.id, NULL, TIMEOUT_MS, &placement);
}

int gpt_stash_open(struct gpt_stash **ret, const struct gpt_stash_options *o, struct zb_err *err)
{
    const struct zc_options options = { .socket = o->socket, .program = "zgpt" };
    struct stash *s = calloc(1, sizeof(*s));
    uint64_t block;
    int rc;

    if (!s || !(s->entries = calloc(o->entries, sizeof(*s->entries)))) {
        free(s);
        return zb_fail(err, -ENOMEM, "checkpoints of activations: %m");
    }
    s->base.ops = &daemon_ops;
    s->nentries = o->entries;
    s->tick = o->tick;
    s->tick_arg = o->tick_arg;
    for (unsigned i = 0; i < SLOTS; i++)
        s->slots[i] = (struct slot){ .stash = s, .entry = NO_ENTRY };
    rc = zc_open(&s->c, &options);
    if (rc == 0) {
        block = zc_server(s->c)->block_elems;
        s->elems = (o->entry_bytes / sizeof(float) + block - 1) / block * block;
        rc = open_job(s, o);
    }
    if (rc == 0)
        rc = open_shards(s);
    if (rc < 0) {
        (void)zb_fail(err, rc, "checkpoints of activations: %s",
                      s->c ? zc_error(s->c) : "no memory for a connection");
        gpt_stash_close(&s->base);
        return rc;
    }
    s->base.memory = s->job.staging;
    s->base.memory_bytes = s->job.staging_bytes;
    *ret = &s->base;
    return 0;
}

int gpt_stash_error(const struct gpt_stash *base, struct zb_err *err)
{
    const struct stash *s = (const struct stash *)base;

    return s->failed == 0 || s->failed == -ECANCELED ? s->failed
                                                     : zb_fail(err, s->failed, "%s", s->err.text);
}

double gpt_stash_waited(const struct gpt_stash *base)
{
    return ((const struct stash *)base)->waited;
}

void gpt_stash_close(struct gpt_stash *base)
{
    struct stash *s = stash_of(base);

    if (!s)
        return;
    if (s->failed == 0 && s->base.memory)
        (void)zc_job_close_wait(s->c, s->job.id);
    zc_close(s->c);
    free(s->entries);
    free(s);
}
