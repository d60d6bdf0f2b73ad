/*
 * comm_threads.h - a backend of collectives for tests. The ranks are threads of one process, and
 * only the order that the contract promises is kept.
 *
 * MODEL. A group holds every collective that was started; a rank's nth collective is the group's
 * nth. What a rank sends is copied when it starts, so no rank touches another's memory. A
 * collective is finished for a rank when all ranks have started it and have called test `delay`
 * more times, a random number from the seed. So completions come in any order.
 *
 * It also checks its users: receive buffers may not be used before the end (they are filled with
 * 0xa5 at the start), and the buffers of an exchange may not overlap. If collectives have names,
 * ranks that start different ones get an error. Without names that is a failed assertion, because
 * the engine must prevent it.
 */
#ifndef COMM_THREADS_H
#define COMM_THREADS_H

#include "client/zero/zc_zero.h"

struct comm_group;

/** delay_max: how many more tests a finished collective may take to show; 0: none. */
struct comm_group *comm_group_new(uint32_t world, uint64_t seed, uint32_t delay_max);
void comm_group_free(struct comm_group *g);

enum comm_names {
    COMM_NAMES,     /* names of collectives are compared: the usual case */
    COMM_NO_NAMES,  /* as in a backend without names */
    COMM_NAMES_LOST /* names are accepted but not compared, as between devices */
};

/** To be called before the ranks begin. */
void comm_group_names(struct comm_group *g, enum comm_names names);
struct zc_comm *comm_group_rank(struct comm_group *g, uint32_t rank);
/** From its nth start on (from 1), this rank's calls return rc. */
void comm_group_break(struct comm_group *g, uint32_t rank, uint32_t nth, int rc);
/** What a launcher does when a rank has died: no further collective ends. */
void comm_group_abort(struct comm_group *g);

#endif
