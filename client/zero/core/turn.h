/*
 * turn.h - turning and waiting: turn.c.
 */
#ifndef ZC_ZERO_TURN_H
#define ZC_ZERO_TURN_H

#include <stdbool.h>
#include <stdint.h>

struct zc_zero;
struct zcz_op;

#define ZCZ_MACHINES 4u

/** Moves what it can of one kind of thing, and says so by zcz_moved(). 0 or the failure. */
typedef int zcz_machine_fn(struct zc_zero *z);

struct zcz_turns {
    zcz_machine_fn *machines[ZCZ_MACHINES]; /* in the order of a turn */
    bool store_gone;                        /* its poll() failed */
    bool moved;                             /* something did, in this turn */
    uint64_t moved_ns;                      /* when something did last */
    uint32_t patience_ms;                   /* of zcz_wait() */
    uint64_t stall_ns;                      /* waited, since zcz_turn_clear() */
};

void zcz_turn_init(struct zc_zero *z, zcz_machine_fn *const machines[ZCZ_MACHINES],
                   uint32_t patience_ms);
/** Counts what is waited from 0 on. */
void zcz_turn_clear(struct zc_zero *z);
/** Moves whatever can move; waits for the store up to wait_us when nothing can. */
int zcz_turn(struct zc_zero *z, uint32_t wait_us);

/* while (!condition && (rc = zcz_wait(z, &w)) == 0) ...: turns, sleeping longer the longer nothing
 * moves; -ETIMEDOUT after z's timeout without anything that moved. */
struct zcz_wait {
    const char *what; /* for the error message: "the gradients to reach the store" */
    uint64_t begin_ns;
    bool again; /* the call can be made again: -EINTR is no failure */
};
int zcz_wait(struct zc_zero *z, struct zcz_wait *w);
/** Waits for one call to the store and returns its code; op is zeroed. */
int zcz_wait_op(struct zc_zero *z, struct zcz_op *op, const char *what);

#endif
