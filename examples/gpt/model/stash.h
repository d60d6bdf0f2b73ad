/*
 * stash.h - holds arrays of one size between the pass that makes them and the passes that read
 * them: checkpoints of activations, which would otherwise fill the memory.
 *
 * MODEL. `entries` arrays, numbered. A few are in memory at one time, in slots. The others are
 * elsewhere, and bringing them back takes time. Making an entry again replaces its old content.
 *
 *     make    returns a slot to fill         ... keep   it is complete, and may leave memory
 *     take    returns the entry, unchanged   ... drop   it may leave memory again
 *     forget  the entry will not be taken again, so it need not be kept
 *     ahead   the entry will be taken next
 *
 * make and take wait; the others only start work. A failure is final: make and take then return
 * NULL, and the opener of the stash can ask for the error message.
 *
 * A DEVICE copies from and to slots in order. While `busy` returns true for a slot that was kept or
 * dropped, the slot is not reused. It may only be taken, for a copy that follows the others.
 */
#ifndef GPT_STASH_H
#define GPT_STASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPT_STASH_SLOTS 4u /* one being read, one being made, one on its way in, one out */

struct gpt_stash;

struct gpt_stash_ops {
    void *(*make)(struct gpt_stash *s, uint32_t entry, unsigned *ret_slot);
    void (*keep)(struct gpt_stash *s, uint32_t entry);
    void *(*take)(struct gpt_stash *s, uint32_t entry, unsigned *ret_slot);
    void (*drop)(struct gpt_stash *s, uint32_t entry);
    void (*forget)(struct gpt_stash *s, uint32_t entry);
    void (*ahead)(struct gpt_stash *s, uint32_t entry);
};

struct gpt_stash {
    const struct gpt_stash_ops *ops;
    /* The memory of all slots, for a device to pin. */
    void *memory;
    size_t memory_bytes;
    /* Set by the user of a device. */
    bool (*busy)(void *arg, unsigned slot);
    void *busy_arg;
};

#endif
