/*
 * core_fixture.h - the core without a loop and without sockets: clients are structs, answers are
 * recorded, and the test turns the core by hand. What a test asks for and does not wait for is in
 * flight until it turns the world.
 */
#ifndef CORE_FIXTURE_H
#define CORE_FIXTURE_H

#include "daemon/job/job.h"
#include "proto/shard.pb-c.h"

#define PAGE        8192u /* elements */
#define UNITS       7u
#define STAGING     (ANSWERS * STAGED)
#define STAGED      (1u << 17) /* of it, enough for any unit: each request may have its own */
#define NONE        1234       /* no answer yet */
#define CLIENTS_MAX 4u
#define ANSWERS     32u

/* Odd sizes: one page; two pages and a tail, more of them than the ring has places; less than a
 * block. */
extern const uint64_t unit_elems[UNITS];

struct client {
    struct zsd_conn conn;
    uint8_t *staging;
    uint64_t job;
    uint64_t iterations;    /* as job-open said */
    uint64_t shards[UNITS]; /* 0: another rank's */
    int events;
};

struct world {
    struct zsd daemon;
    char path[64];
    struct client clients[CLIENTS_MAX];
    uint32_t nclients;
};

/* What was answered, by the tag of the request. */
struct answer {
    int rc; /* NONE, 0 or the code */
    char text[480];
    uint8_t *bytes; /* the packed reply */
    size_t len;
    int fd;
    unsigned times;
    bool lost; /* its client was gone */
};
extern struct answer answers[ANSWERS];

/* A data file, an engine ("uring", "threads"; NULL: no NVMe tier), a pool, a core. */
void world_open(struct world *w, uint64_t host_bytes, const char *io, uint32_t nclients);
/* Whatever happened: when the clients are gone, every byte is back. */
void world_close(struct world *w);
/* The core ends first, with whatever is in flight. */
void world_kill(struct world *w);

void world_turn(struct world *w);
/* Turns until nothing is in progress. */
void world_settle(struct world *w);
/* Every deadline passes. */
void world_expire(struct world *w);

/* Asks as client c under a tag; answered when answers[tag].rc is not NONE. */
void ask_as(struct world *w, unsigned c, unsigned tag, zsd_handler *handler, const void *message);
/* The same under the tag c. */
void ask(struct world *w, unsigned c, zsd_handler *handler, const void *message);
/* Turns until it is answered: the code. Checks that it is answered once. */
int answer(struct world *w, unsigned tag);
int call(struct world *w, unsigned c, zsd_handler *handler, const void *message);
/* The connection ends. */
void client_gone(struct world *w, unsigned c);

/* The n-th allocation from now on that the core makes on the loop thread fails, and those behind
 * it, `times` in all. */
void alloc_fail(unsigned nth, unsigned times);
bool alloc_failed(void);
/* The test calls into the core by itself: allocations count. */
void core_entered(bool entered);

struct open_args {
    const char *name;     /* NULL: "j" */
    uint32_t rank, world; /* world 0: 1 */
    bool keep, durable, attach, early;
    uint64_t staging_bytes; /* 0: STAGING */
    uint64_t host_bytes_max;
};

void job_open_ask(struct world *w, unsigned c, unsigned tag, const struct open_args *args);
/* What the client does with the answer of job-open. */
void job_opened(struct world *w, unsigned c, unsigned tag);
int job_open_with(struct world *w, unsigned c, const struct open_args *args);
int job_open(struct world *w, unsigned c);
/* The rank that registers unit u as a whole: rank 1 has two units, rank 0 the others, which are
 * more of one size than a ring has places. Further ranks have none. */
uint32_t unit_owner(uint32_t u, uint32_t world);
/* Defines every unit and registers those of the rank; 0 or the first code. */
int job_register(struct world *w, unsigned c, uint32_t rank, uint32_t world, enum zb_dtype dtype);
void job_ready_ask(struct world *w, unsigned c, unsigned tag);
int job_define(struct world *w, unsigned c, enum zb_dtype dtype);
struct zsd_job *job_of(struct world *w, unsigned c);

#endif
