/*
 * fork_ranks.h - ranks that are processes forked by a test, with the environment that torchrun
 * would set, on loopback.
 *
 * A port is drawn below the range that the kernel assigns by itself. If it is in use, the next one
 * is tried.
 */
#ifndef FORK_RANKS_H
#define FORK_RANKS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define FORK_RANKS_MAX 4u

struct fork_rank {
    int rc; /* what the function returned */
    char why[512];
};

/** Runs in a process of its own. */
typedef int fork_rank_fn(uint32_t rank, uint32_t world, char *why, size_t why_bytes);

/** Allocates them in memory that the processes share. */
struct fork_rank *fork_ranks_new(void);
void fork_ranks_free(struct fork_rank *ranks);

/** Runs fn in `world` processes and waits for them; repeats that with another port if this one was
 * in use. */
void fork_ranks_run(fork_rank_fn *fn, uint32_t world, struct fork_rank *ranks);

/* The parts of fork_ranks_run(). */

/** A port that differs between processes, and between calls. */
uint32_t fork_port_draw(void);
void fork_env_set(const char *name, unsigned long long value);
/** Sets the whole environment of a rank; ranks meet at this port. */
void fork_env_of(uint32_t rank, uint32_t world, uint32_t port);
void fork_rank_start(fork_rank_fn *fn, uint32_t rank, uint32_t world, uint32_t port,
                     struct fork_rank *out, pid_t *ret);

#endif
