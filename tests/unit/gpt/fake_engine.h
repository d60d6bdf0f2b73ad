/*
 * fake_engine.h - the engine's public functions in one process and in plain memory, for tests of
 * the trainer's loop. It is strict about how they are called, and fails where a test asks.
 */
#ifndef FAKE_ENGINE_H
#define FAKE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/zero/zc_zero.h"

struct fake_engine {
    unsigned fail_at; /* this call to the engine, counted from 1, fails; 0: none does */
    unsigned calls;   /* seen so far */
    uint32_t world;   /* as zc_comm_open() reports it; rank 0 is the only one there is */

    unsigned opened, closed, comm_opened, comm_closed;
    bool closed_clean;
    bool skip_next_step;

    /* a kept job: the next engine that resumes finds its state */
    char note[600], socket[64];
    size_t note_bytes;
    uint64_t committed;             /* after this step */
    uint32_t quantized;             /* units of the last engine */
    double lrs[64];                 /* of the first steps of the last engine */
    struct zc_zero_options options; /* that it was opened with; its strings are freed */
    int commit_rc;                  /* of every commit */
    bool other_job;                 /* resuming is -EINVAL */
};

extern struct fake_engine fake;

/** Frees the kept job. */
void fake_forget(void);

#define FAKE_SCALE   1024.0
#define FAKE_MESSAGE "a peer died, says the test"

#endif
