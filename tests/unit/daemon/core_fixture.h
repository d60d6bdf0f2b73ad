/*
 * core_fixture.h - a core (tests/core/core_world.h) with threads and a real data file, turned by
 * hand. A request that a test does not wait for stays in flight until the test turns the world. Any
 * allocation of the core can be made to fail.
 */
#ifndef CORE_FIXTURE_H
#define CORE_FIXTURE_H

#include "tests/alloc_fail.h"
#include "tests/core/core_world.h"

#define PAGE    8192u /* elements */
#define UNITS   7u
#define STAGING (ANSWERS * STAGED)
#define STAGED  (1u << 17) /* a part of it, enough for any unit: each request may have its own */

/* Odd sizes: one page; two pages and a partial one, more of these than the ring has places; less
 * than a block. */
extern const uint64_t unit_elems[UNITS];

/* Opens a data file, an engine ("uring", "threads"; NULL: no NVMe tier), a pool and a core. */
void world_open(struct world *w, uint64_t host_bytes, const char *io, uint32_t nclients);
/* The same with a data file and pages of another size. */
void world_open_sized(struct world *w, uint64_t host_bytes, const char *io, uint32_t nclients,
                      uint64_t file_bytes, uint32_t page_elems);
/* Checks, whatever happened before, that all memory is free once the clients are gone. */
void world_close(struct world *w);
/* The same, but the core ends first, with whatever is in flight. */
void world_kill(struct world *w);

void world_turn(struct world *w);
/* Turns until nothing is in progress. */
void world_settle(struct world *w);
/* Lets every deadline pass. */
void world_expire(struct world *w);
/* Turns until the request is answered, and checks that it is answered once; returns the code. */
int answer(struct world *w, unsigned tag);

/* Marks that the test itself calls into the core: alloc_fail() then counts its allocations, as it
 * does those of handlers. */
void core_entered(bool entered);

int job_open(struct world *w, unsigned c);
/* The rank that registers the whole unit u. Rank 1 has two units, rank 0 the others, which include
 * more of one size than a ring has places. Further ranks have none. */
uint32_t unit_owner(uint32_t u, uint32_t world);
/* Defines every unit and registers those of the rank; 0 or the first code that is not. */
int job_register(struct world *w, unsigned c, uint32_t rank, uint32_t world, enum zb_dtype dtype);
/* Client 0 registers a block of its first unit at each of these elements. */
int ranges_register(struct world *w, const uint64_t *firsts, uint32_t n);
int job_define(struct world *w, unsigned c, enum zb_dtype dtype);

#endif
