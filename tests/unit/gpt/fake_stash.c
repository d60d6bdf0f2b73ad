#include "tests/unit/gpt/fake_stash.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct fake_stash_counts fake_stash;

struct stash {
    struct gpt_stash base;
    struct gpt_stash_options options;
    uint32_t at[GPT_STASH_SLOTS]; /* the entry in each slot; UINT32_MAX: none */
    enum { FREE, HELD, KEPT, DROPPED } state[GPT_STASH_SLOTS]; /* the last two: until not busy */
    unsigned char **stored;                                    /* by entry; NULL: nothing */
    uint32_t announced;
    bool failed;
};

static struct stash *stash_of(struct gpt_stash *s)
{
    return (struct stash *)s;
}

static unsigned char *slot_at(const struct stash *s, unsigned slot)
{
    return (unsigned char *)s->base.memory + slot * s->options.entry_bytes;
}

static unsigned slot_of(const struct stash *s, uint32_t entry)
{
    unsigned slot = 0;

    while (slot < GPT_STASH_SLOTS && s->at[slot] != entry)
        slot++;
    return slot;
}

static void device_await(const struct stash *s, unsigned slot)
{
    const struct timespec moment = { .tv_nsec = 20000 };

    while (s->base.busy && s->base.busy(s->base.busy_arg, slot))
        (void)nanosleep(&moment, NULL);
}

/* Frees a kept or dropped slot when the device is done with it. wait: waits for that. */
static void slot_settle(struct stash *s, unsigned slot, bool wait)
{
    uint32_t entry = s->at[slot];

    if (s->state[slot] < KEPT)
        return;
    if (wait)
        device_await(s, slot);
    else if (s->base.busy && s->base.busy(s->base.busy_arg, slot))
        return;
    if (s->state[slot] == KEPT) {
        s->stored[entry] = malloc(s->options.entry_bytes);
        assert(s->stored[entry]);
        memcpy(s->stored[entry], slot_at(s, slot), s->options.entry_bytes);
    }
    memset(slot_at(s, slot), 0xff, s->options.entry_bytes);
    s->at[slot] = UINT32_MAX;
    s->state[slot] = FREE;
}

static void slots_settle(struct stash *s)
{
    for (unsigned i = 0; i < GPT_STASH_SLOTS; i++)
        slot_settle(s, i, false);
}

/* The next slot in turn, so that entries change slots often. */
static void *slot_new(struct stash *s, uint32_t entry, unsigned *ret_slot)
{
    unsigned slot = (entry + fake_stash.made + fake_stash.taken) % GPT_STASH_SLOTS;

    s->failed = s->failed || fake_stash.made + fake_stash.taken == fake_stash.fail_at;
    if (s->failed)
        return NULL;
    assert(entry < s->options.entries && slot_of(s, entry) == GPT_STASH_SLOTS);
    while (s->state[slot] == HELD)
        slot = (slot + 1) % GPT_STASH_SLOTS;
    slot_settle(s, slot, true);
    s->at[slot] = entry;
    s->state[slot] = HELD;
    *ret_slot = slot;
    return slot_at(s, slot);
}

static void fake_forget(struct gpt_stash *base, uint32_t entry)
{
    struct stash *s = stash_of(base);
    unsigned slot = slot_of(s, entry);

    if (s->failed)
        return;
    if (slot < GPT_STASH_SLOTS) {
        s->state[slot] = s->state[slot] == HELD ? DROPPED : s->state[slot];
        slot_settle(s, slot, true);
    }
    free(s->stored[entry]);
    s->stored[entry] = NULL;
    slots_settle(s);
}

static void *fake_make(struct gpt_stash *base, uint32_t entry, unsigned *ret_slot)
{
    fake_forget(base, entry);
    fake_stash.made++;
    return slot_new(stash_of(base), entry, ret_slot);
}

static void fake_keep(struct gpt_stash *base, uint32_t entry)
{
    struct stash *s = stash_of(base);
    unsigned slot = slot_of(s, entry);

    if (s->failed)
        return;
    assert(slot < GPT_STASH_SLOTS && s->state[slot] == HELD && !s->stored[entry]);
    s->state[slot] = KEPT;
    slots_settle(s);
}

static void *fake_take(struct gpt_stash *base, uint32_t entry, unsigned *ret_slot)
{
    struct stash *s = stash_of(base);
    unsigned slot = slot_of(s, entry);
    void *to;

    fake_stash.taken++;
    fake_stash.ahead += s->announced == entry;
    s->announced = UINT32_MAX;
    if (slot < GPT_STASH_SLOTS && !s->failed)
        slot_settle(s, slot, true);
    to = slot_new(s, entry, ret_slot);
    assert(!to || s->stored[entry]);
    if (to)
        memcpy(to, s->stored[entry], s->options.entry_bytes);
    return to;
}

static void fake_drop(struct gpt_stash *base, uint32_t entry)
{
    struct stash *s = stash_of(base);
    unsigned slot = slot_of(s, entry);

    if (s->failed)
        return;
    assert(slot < GPT_STASH_SLOTS && s->state[slot] == HELD);
    s->state[slot] = DROPPED;
    slots_settle(s);
}

static void fake_ahead(struct gpt_stash *base, uint32_t entry)
{
    assert(entry < stash_of(base)->options.entries);
    stash_of(base)->announced = entry;
}

static const struct gpt_stash_ops fake_ops = {
    .make = fake_make,
    .keep = fake_keep,
    .take = fake_take,
    .drop = fake_drop,
    .forget = fake_forget,
    .ahead = fake_ahead,
};

int gpt_stash_open(struct gpt_stash **ret, const struct gpt_stash_options *o, struct zb_err *err)
{
    struct stash *s = calloc(1, sizeof(*s));

    (void)err;
    assert(s && o->entries > 0 && o->entry_bytes > 0);
    s->options = *o;
    s->base.ops = &fake_ops;
    s->base.memory_bytes = (GPT_STASH_SLOTS * o->entry_bytes + 4095) / 4096 * 4096;
    s->base.memory = aligned_alloc(4096, s->base.memory_bytes);
    s->stored = calloc(o->entries, sizeof(*s->stored));
    assert(s->base.memory && s->stored);
    memset(s->base.memory, 0xff, s->base.memory_bytes);
    memset(s->at, 0xff, sizeof(s->at));
    s->announced = UINT32_MAX;
    fake_stash.opened++;
    fake_stash.made = fake_stash.taken = fake_stash.ahead = 0;
    fake_stash.entries = o->entries;
    fake_stash.entry_bytes = o->entry_bytes;
    *ret = &s->base;
    return 0;
}

bool gpt_stash_poll(struct gpt_stash *s)
{
    return !stash_of(s)->failed;
}

int gpt_stash_error(const struct gpt_stash *s, struct zb_err *err)
{
    return ((const struct stash *)s)->failed ? zb_fail(err, -EIO, "the stash, says the test") : 0;
}

double gpt_stash_waited(const struct gpt_stash *s)
{
    (void)s;
    return 0;
}

void gpt_stash_close(struct gpt_stash *base)
{
    struct stash *s = stash_of(base);

    if (!s)
        return;
    for (uint32_t i = 0; i < s->options.entries; i++)
        free(s->stored[i]);
    free(s->stored);
    free(s->base.memory);
    free(s);
    fake_stash.closed++;
}
