/*
 * party.h - a number of ranks, as threads, with one set of options.
 */
#ifndef PARTY_H
#define PARTY_H

#include "comm_threads.h"
#include "model.h"

#define PARTY_MAX 8

struct party {
    uint32_t world;
    struct comm_group *group;
    struct run runs[PARTY_MAX];
    char sockets[PARTY_MAX][16];
};

/** delay_max: as in comm_threads.h. runs[r].options may be changed before party_run(). */
void party_new(struct party *p, uint32_t world, enum zc_dtype dtype, uint64_t seed,
               uint32_t delay_max);
void party_offload(struct party *p, enum zc_zero_offload offload);
void party_run(struct party *p);
/** Every rank must have finished, with the same values. */
void party_assert_ran(const struct party *p);
void party_done(struct party *p);

#endif
