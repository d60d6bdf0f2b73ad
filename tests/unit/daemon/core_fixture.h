/*
 * core_fixture.h - a core (tests/core/core_world.h) over threads and a real data file, turned by
 * hand. What a test asks for and does not wait for is in flight until it turns the world. Memory can
 * run out at any allocation of the core.
 */
#ifndef CORE_FIXTURE_H
#define CORE_FIXTURE_H

#include "tests/alloc_fail.h"
#include "tests/core/core_world.h"

#define PAGE    8192u /* elements */
#define UNITS   7u
#define STAGING (ANSWERS * STAGED)
#define STAGED  (1u << 17) /* of it, enough for any unit: each request may have its own */

/* Odd sizes: one page; two pages and a tail, more of them than the ring has places; less than a
 * block. */
extern const uint64_t unit_elems[UNITS];

/* A data file, an engine ("uring", "threads"; NULL: no NVMe tier), a pool, a core. */
void world_open(struct world *w, uint64_t host_bytes, const char *io, uint32_t nclients);
/* The same with a data file and pages of another size. */
void world_open_sized(struct world *w, uint64_t host_bytes, const char *io, uint32_t nclients,
                      uint64_t file_bytes, uint32_t page_elems);
/* Whatever happened: when the clients are gone, every byte is back. */
void world_close(struct world *w);
/* The core ends first, with whatever is in flight. */
void world_kill(struct world *w);

void world_turn(struct world *w);
/* Turns until nothing is in progress. */
void world_settle(struct world *w);
/* Every deadline passes. */
void world_expire(struct world *w);
/* Turns until it is answered: the code. Checks that it is answered once. */
int answer(struct world *w, unsigned tag);

/* The test calls into the core by itself: its allocations count, as those of handlers do, for
 * alloc_fail(). */
void core_entered(bool entered);

int job_open(struct world *w, unsigned c);
/* The rank that registers unit u as a whole: rank 1 has two units, rank 0 the others, which are
 * more of one size than a ring has places. Further ranks have none. */
uint32_t unit_owner(uint32_t u, uint32_t world);
/* Defines every unit and registers those of the rank; 0 or the first code. */
int job_register(struct world *w, unsigned c, uint32_t rank, uint32_t world, enum zb_dtype dtype);
/* Client 0 registers a block of its first unit from each of these elements on. */
int ranges_register(struct world *w, const uint64_t *firsts, uint32_t n);
int job_define(struct world *w, unsigned c, enum zb_dtype dtype);

#endif
