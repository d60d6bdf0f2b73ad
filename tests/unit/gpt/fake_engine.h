/*
 * fake_engine.h - the engine's public functions in one process and in plain memory, strict about
 * how they are called, and failing where a test asks: for the tests of the trainer's loop.
 */
#ifndef FAKE_ENGINE_H
#define FAKE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

struct fake_engine {
    unsigned fail_at; /* this call to the engine, counted from 1, fails; 0: none does */
    unsigned calls;   /* seen so far */
    uint32_t world;   /* that zc_comm_open() says; rank 0 is the only one there is */

    unsigned opened, closed, comm_opened, comm_closed;
    bool closed_clean;
    bool skip_next_step;
};

extern struct fake_engine fake;

#define FAKE_SENTENCE "a peer died, says the test"

#endif
