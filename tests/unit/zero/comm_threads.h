/*
 * comm_threads.h - a backend of collectives for tests: the ranks are threads of one process, and
 * nothing is in order but what the contract promises.
 *
 * MODEL. A group holds every collective that was started; a rank's n-th collective is the group's
 * n-th. What a rank sends is copied when it starts, so no rank touches another's memory. A
 * collective is finished for a rank when all ranks have started it and `delay` more tests have gone
 * by, a number drawn from the seed: so completions come in any order.
 *
 * It also holds its users to the contract: receive buffers are not looked at before the end (they
 * are filled with 0xa5 at the start), and an exchange's buffers do not overlap. Ranks that start
 * different collectives are told so where collectives have names. Where they have none, it is an
 * assertion: the engine must not let it come to that.
 */
#ifndef COMM_THREADS_H
#define COMM_THREADS_H

#include "client/zero/zc_zero.h"

struct comm_group;

/** delay_max: how many tests a finished collective may still hide; 0: none. */
struct comm_group *comm_group_new(uint32_t world, uint64_t seed, uint32_t delay_max);
void comm_group_free(struct comm_group *g);

enum comm_names {
    COMM_NAMES,     /* of collectives are compared: the usual */
    COMM_NO_NAMES,  /* as a backend that knows of none */
    COMM_NAMES_LOST /* are taken and not compared, as between devices */
};

/** Before the ranks begin. */
void comm_group_names(struct comm_group *g, enum comm_names names);
struct zc_comm *comm_group_rank(struct comm_group *g, uint32_t rank);
/** From its nth start on (from 1), this rank's calls return rc. */
void comm_group_break(struct comm_group *g, uint32_t rank, uint32_t nth, int rc);
/** As a launcher does when a rank has died: no collective ends any more. */
void comm_group_abort(struct comm_group *g);

#endif
