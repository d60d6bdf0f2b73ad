/*
 * fake_stash.h - a stash in plain memory, for tests of the passes and of the trainer. It is strict:
 * a slot is overwritten once its entry has left it and the device, if there is one, is done with
 * it; every take must be of stored bytes; and calls in a wrong order are errors.
 */
#ifndef FAKE_STASH_H
#define FAKE_STASH_H

#include "examples/gpt/stash_daemon.h"

struct fake_stash_counts {
    unsigned opened, closed;
    unsigned made, taken, ahead; /* ahead: takes of an entry that the previous call announced */
    unsigned fail_at;            /* this make or take fails, counted from 1; 0: none */
    uint32_t entries;            /* of the last stash that was opened */
    uint64_t entry_bytes;
};

extern struct fake_stash_counts fake_stash;

#endif
