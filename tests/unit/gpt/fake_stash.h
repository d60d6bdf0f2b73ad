/*
 * fake_stash.h - a stash in plain memory, for tests of the passes and of the trainer. It is strict:
 * what left a slot is overwritten there as soon as the device, if there is one, is said to be done
 * with it, and every take is of bytes that were stored; so is whoever gets the order of calls
 * wrong.
 */
#ifndef FAKE_STASH_H
#define FAKE_STASH_H

#include "examples/gpt/stash_daemon.h"

struct fake_stash_counts {
    unsigned opened, closed;
    unsigned made, taken, ahead; /* ahead: takes of what was announced by the call before */
    unsigned fail_at;            /* this make or take fails, counted from 1; 0: none */
    uint32_t entries;            /* of the last one that was opened */
    uint64_t entry_bytes;
};

extern struct fake_stash_counts fake_stash;

#endif
