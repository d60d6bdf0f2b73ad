/*
 * fake_client.h - a fake of libzclient and the daemon, in one process. On request, answers are
 * late, out of order, refusals, or missing.
 *
 * MODEL. There is one daemon, reset by fake_reset(), with at most one job, whose ranks are threads;
 * one lock protects it. A call waits in its handle until zc_poll(). It may stay hidden for a random
 * number of polls, then ends when the daemon's state allows it. Staged bytes are read when the call
 * ends, not when it begins, and are then overwritten, so reusing them early or reading them late is
 * detected.
 *
 * A step is made shard by shard, one for each poll of any rank, so fetches that follow it see a
 * partly stepped model. Pins are counted: pins that exceed the ring wait. It is a failed assertion
 * to release what is not pinned, or to write or step what is pinned.
 *
 * A durable job has a committed and a prepared version. These are complete copies, which are cut
 * again when another world loads them.
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
    FAKE_HANGUP, /* the daemon hangs up on this rank with -ENOTCONN, and its peers are told */
    FAKE_JOB,    /* the job fails: an event to all ranks */
    FAKE_LIES,   /* fetch returns an old version, step other counters; others: as FAKE_DONE */
};

struct fake_config {
    uint32_t page_elems;
    bool ring;           /* parameters are streamed: 3 pins a rank */
    uint64_t seed;       /* of the delays */
    uint32_t delay_max;  /* for how many polls an answer may stay hidden */
    uint32_t shards_max; /* the most shards that one call may name; 0: 1024 */
    uint32_t step_ms;    /* how long each shard of a step takes, at least */
    uint8_t nodes;       /* daemons: rank r is on node r % nodes; 0: one */
    /* the nth call (from 1) of rank `rank` fails in this way */
    enum fake_fault fault;
    uint32_t rank, nth;
    int rc;
    uint32_t dies_ms; /* from the reset until the daemon dies; ranks see that in polls; 0: never */
    /* with commit_rc: commits of this step fail on this node */
    int commit_rc;
    uint32_t commit_node;
    uint64_t commit_at;
};

void fake_reset(const struct fake_config *config);
/** Whether the fault has occurred, and in which part of the call. */
enum fake_when { FAKE_NOT_YET, FAKE_AT_START, FAKE_AT_WORK, FAKE_AT_END };
enum fake_when fake_faulted(void);
/** Frees what a job left behind; asserts that no handle is open and everything was released. */
void fake_end(void);
/** The daemon of this node dies, without ranks, and starts again; its memory is lost. */
void fake_crash(uint32_t node);
/** The steps that the job can resume from; -1: none. */
struct fake_points {
    int memory, prepared, committed;
};
struct fake_points fake_points(uint32_t node);
/** Change what is saved behind the engine's back: fake_forget() loses versions, fake_prepare()
 * prepares one that nobody asked for. */
void fake_forget(uint32_t node, bool prepared, bool committed);
void fake_prepare(uint32_t node);
/** The number of open handles. */
uint32_t fake_handles(void);
/** The number of slices that rank 0 has pinned. */
uint32_t fake_pins(void);
/** The most slices that one rank has had pinned at a time. */
uint32_t fake_pins_most(void);

#endif
