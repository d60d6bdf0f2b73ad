/*
 * fake_client.h - libzclient and the daemon behind it, in one process and on request: what the
 * engine sees when answers are late, out of order, refusals, or do not come.
 *
 * MODEL. One daemon, reset by fake_reset(), with at most one job, whose ranks are threads: one
 * lock. A call waits in its handle until zc_poll(); each poll it may hide for a random number of
 * polls, then ends when the daemon's state lets it. Staged bytes are read when the call ends, not
 * when it begins, and are spoiled then: who reuses them early, or looks at them late, is found out.
 *
 * A step is done shard by shard, one for each poll of anybody, so fetches behind it see a model
 * that is partly stepped. Pins are counted: more than the ring holds wait, and a release of what is
 * not pinned, a write to what is, or a step of what is, is an assertion.
 *
 * A durable job has a committed and a prepared version: copies of everything, cut anew when another
 * world loads them.
 */
#ifndef FAKE_CLIENT_H
#define FAKE_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

enum fake_fault {
    FAKE_NONE,
    FAKE_START,  /* the call is refused at once, with rc */
    FAKE_NOBUFS, /* ... with -ENOBUFS, and works the next time */
    FAKE_DONE,   /* it ends with rc */
    FAKE_NEVER,  /* it does not end */
    FAKE_HANGUP, /* the daemon hangs up on this rank: -ENOTCONN, and its peers are told */
    FAKE_JOB,    /* the job fails: an event to all ranks */
    FAKE_LIES,   /* fetch: an old version; step: other counters; others: as FAKE_DONE */
};

struct fake_config {
    uint32_t page_elems;
    bool ring;           /* parameters are streamed: 3 pins a rank */
    uint64_t seed;       /* of the delays */
    uint32_t delay_max;  /* polls that an answer may hide */
    uint32_t shards_max; /* that one call may name; 0: 1024 */
    uint32_t step_ms;    /* that each shard of a step takes, at least */
    uint8_t nodes;       /* daemons: rank r is on node r % nodes; 0: one */
    /* the nth call (from 1) of rank `rank` fails so */
    enum fake_fault fault;
    uint32_t rank, nth;
    int rc;
    uint32_t
        dies_ms; /* after the reset the daemon is gone, and each rank sees it when it looks; 0: it stays */
    /* with commit_rc: commits of this step fail so, on this node */
    int commit_rc;
    uint32_t commit_node;
    uint64_t commit_at;
};

void fake_reset(const struct fake_config *config);
/** Whether the fault has happened, and in which call. */
enum fake_when { FAKE_NOT_YET, FAKE_AT_START, FAKE_AT_WORK, FAKE_AT_END };
enum fake_when fake_faulted(void);
/** Frees what a job left; asserts that no handle is open and that everything was released. */
void fake_end(void);
/** The daemon of this node dies, without ranks, and comes back: memory is lost. */
void fake_crash(uint32_t node);
/** The steps that it can resume from; -1: none. */
struct fake_points {
    int memory, prepared, committed;
};
struct fake_points fake_points(uint32_t node);
/** Behind the engine's back: what was durable is lost; what nobody asked for is prepared. */
void fake_forget(uint32_t node, bool prepared, bool committed);
void fake_prepare(uint32_t node);
/** Handles that are open. */
uint32_t fake_handles(void);
/** Slices that rank 0 has pinned now. */
uint32_t fake_pins(void);
/** The most slices that one rank had pinned at one time. */
uint32_t fake_pins_most(void);

#endif
