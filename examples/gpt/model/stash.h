/*
 * stash.h - where arrays of one size are between the pass that makes them and those that need them:
 * checkpoints of activations, out of the way of whoever computes.
 *
 * MODEL. `entries` arrays, numbered. A few are in memory at one time, in slots; the others are
 * somewhere else, which takes a while. An entry is made anew in each round, and what it was before
 * is gone then.
 *
 *     make    a slot to fill             ... keep      it is whole, and may leave memory
 *     take    it is in memory, unchanged ... drop      it may leave memory again
 *     forget  nobody will take it again: it is not worth keeping
 *     ahead   it will be taken next
 *
 * make and take wait; the others only begin. A failure is final: make and take are NULL from then
 * on, and whoever opened the stash has the message.
 *
 * A DEVICE copies from and to slots, in the order in which it is told to: for as long as `busy`
 * says so of a slot that was kept or dropped, nothing happens to it but that it may be taken, for a
 * copy behind the others.
 */
#ifndef GPT_STASH_H
#define GPT_STASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPT_STASH_SLOTS 4u /* one is read, one is made, and one each is on its way, in and out */

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
    /* All slots, for a device to pin. */
    void *memory;
    size_t memory_bytes;
    /* Of whoever has a device. */
    bool (*busy)(void *arg, unsigned slot);
    void *busy_arg;
};

#endif
