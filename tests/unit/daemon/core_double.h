/*
 * core_double.h - a core that tests of the daemon's outer half link in place of the real one. It
 * holds requests until the test answers them, and counts its calls.
 */
#ifndef CORE_DOUBLE_H
#define CORE_DOUBLE_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon/net/conn.h"

#define CORE_HELD_MAX 4096u

/*
 * What a method does here:
 *
 *     fetch     is held, to be answered by core_answer() or core_answer_all()
 *     list      is answered at once with a body of about list_bytes
 *     jobs      is refused with -ENOENT
 *     job-open  is answered with the descriptor `fd`
 *     tiers     is answered with a body that is too long to be sent
 *     norms     sends an event, then is answered
 *     others    are answered at once
 */
struct core_double {
    struct zsd_req *held[CORE_HELD_MAX]; /* in order of arrival */
    size_t first, count;                 /* held[first .. count) are unanswered */
    size_t list_bytes;
    int fd;
    bool answer_when_gone; /* zsd_core_gone() answers that connection's held requests */
    int new_rc;            /* what zsd_core_new() returns */
    unsigned busy, jobs;
    bool others;            /* what zsd_core_others() returns */
    unsigned farewell_busy; /* operations that zsd_core_farewell() begins; it answers all */
    unsigned farewells;
    bool leaving, draining;
    bool waits; /* what zsd_core_waits() returns */
    unsigned handled, released, gone, turns, ticks;
    unsigned news, frees;
};

extern struct core_double core_double;

/** Answers the oldest held request with `bytes` of body. */
void core_answer(size_t bytes);
void core_answer_all(size_t bytes);

#endif
