/*
 * turn.h - the engine's main loop, and waiting: turn.c.
 */
#ifndef ZC_ZERO_TURN_H
#define ZC_ZERO_TURN_H

#include <stdbool.h>
#include <stdint.h>

struct zc_zero;
struct zcz_op;

#define ZCZ_MACHINES 4u

/** A machine: advances what it can, and calls zcz_moved() if anything moved. 0 or the failure. */
typedef int zcz_machine_fn(struct zc_zero *z);

struct zcz_turns {
    zcz_machine_fn *machines[ZCZ_MACHINES]; /* in the order of a turn */
    bool store_gone;                        /* its poll() failed */
    bool moved;                             /* something moved in this turn */
    uint64_t moved_ns;                      /* when something moved last */
    uint32_t patience_ms;                   /* how long zcz_wait() waits while nothing moves */
    uint64_t stall_ns;                      /* time spent waiting, since zcz_turn_clear() */
};

void zcz_turn_init(struct zc_zero *z, zcz_machine_fn *const machines[ZCZ_MACHINES],
                   uint32_t patience_ms);
/** Changes how long zcz_wait() waits while nothing moves. Returns the previous value. */
uint32_t zcz_turn_patience(struct zc_zero *z, uint64_t patience_ms);
/** Resets the count of time spent waiting. */
void zcz_turn_clear(struct zc_zero *z);
/** Advances everything that can move. If nothing can, waits for the store up to wait_us. */
int zcz_turn(struct zc_zero *z, uint32_t wait_us);

/* For a loop: while (!condition && (rc = zcz_wait(z, &w)) == 0) ... Makes a turn. Sleeps longer the
 * longer nothing has moved; -ETIMEDOUT when nothing has moved for patience_ms. */
struct zcz_wait {
    const char *what; /* for the error message: "the gradients to reach the store" */
    uint64_t begin_ns;
    bool again; /* the call can be repeated: -EINTR is a refusal, not a failure */
};
int zcz_wait(struct zc_zero *z, struct zcz_wait *w);
/** Waits for one call to the store, returns its code, and zeroes op. */
int zcz_wait_op(struct zc_zero *z, struct zcz_op *op, const char *what);

#endif
