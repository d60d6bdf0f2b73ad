/*
 * core_world.h - the daemon's core without an event loop and without sockets, for tests: clients
 * are structs, requests are calls of handlers, and answers are recorded by their tags.
 *
 * MODEL. A fixture fills in `daemon` (configuration, engine), calls world_up(), and provides the
 * function that turns the core until a request is answered. The core is either turned by hand, with
 * threads and a real file (tests/unit/daemon/core_fixture.h), or in a random order on a simulated
 * device (tests/sim/zsim.h). What clients do, and the results, are the same in both.
 *
 * There is one world at a time: the recorded answers are global, like the functions of net/conn.h
 * that record them.
 */
#ifndef CORE_WORLD_H
#define CORE_WORLD_H

#include "tests/ztest.h"

#include "proto/shard.pb-c.h"
#include "tests/core/core_all.h"

#define CLIENTS_MAX 4u
#define UNITS_MAX   9u
#define ANSWERS     32u
#define NONE        1234 /* no answer yet */

struct client {
    struct zsd_conn conn;
    uint8_t *staging;
    uint64_t staging_bytes;
    uint64_t job;
    uint64_t iterations;        /* from the answer to job-open */
    uint64_t shards[UNITS_MAX]; /* by unit; 0: another rank's */
    uint64_t first[UNITS_MAX], count[UNITS_MAX];
    unsigned events;
};

struct world {
    struct zsd daemon;
    struct client clients[CLIENTS_MAX];
    uint32_t nclients;
    char path[64];          /* of the data file, if there is a real one */
    uint64_t staging_bytes; /* of a rank that does not set it */
    bool writable;          /* ranks ask at ready for write access to the arena */
    /* Turns until the request of this tag is answered; returns the code. */
    int (*answer)(struct world *w, unsigned tag);
};

/* The recorded answer, by the tag of the request. */
struct answer {
    int rc; /* NONE, 0 or the code */
    char text[480];
    uint8_t *bytes; /* the packed reply */
    size_t len;
    int fd;
    unsigned times;
    bool lost; /* its client had gone */
};
extern struct answer answers[ANSWERS];

/** The daemon's code is running, not the test's: only its allocations are made to fail. */
extern _Thread_local bool core_runs;
/** Reports a failed check: fail_msg() by default. */
extern void (*world_wrong)(const char *what);

/** Starts kernels, compute threads, the core and clients: 0, or why the core does not start.
 * world_down() cleans up in either case. */
int world_up(struct world *w, uint32_t nclients, struct zb_err *err);
/** Ends the core with whatever is in flight, then everything else, the engine too. */
void world_down(struct world *w);

/** Sends a request of client c under a tag; it is answered when answers[tag].rc is not NONE. */
void ask_as(struct world *w, unsigned c, unsigned tag, zsd_handler *handler, const void *message);
/** The same with c as the tag. */
void ask(struct world *w, unsigned c, zsd_handler *handler, const void *message);
/** Sends it and turns until it is answered; returns the code. */
int call(struct world *w, unsigned c, zsd_handler *handler, const void *message);
/** Closes the connection. */
void client_gone(struct world *w, unsigned c);

struct open_args {
    const char *name;     /* NULL: "j" */
    uint32_t rank, world; /* world 0: 1 */
    uint32_t groups;      /* 0: 1 */
    bool keep, durable, attach, takeover, early, grad_ring, ring_limits, returns;
    uint64_t epoch;
    uint64_t staging_bytes; /* 0: that of the world */
    uint64_t host_bytes_max;
    uint32_t device_node;        /* 1 + the NUMA node of its GPU; 0: not known */
    enum zb_optimizer optimizer; /* 0: AdamW */
};

void job_open_ask(struct world *w, unsigned c, unsigned tag, const struct open_args *args);
/** What the client does with the answer to job-open. */
void job_opened(struct world *w, unsigned c, unsigned tag);
int job_open_with(struct world *w, unsigned c, const struct open_args *args);
struct zsd_job *job_of(struct world *w, unsigned c);

#define UNIT_TENSORS 4u

struct unit {
    const char *name;
    uint64_t elems;
    enum zb_dtype dtype, grad_dtype;
    bool frozen, quantized;
    struct {
        uint64_t first, count;
        uint32_t group;
    } tensors[UNIT_TENSORS]; /* named "a" to "d" */
    unsigned ntensors;
};

int unit_define(struct world *w, unsigned c, uint32_t index, const struct unit *unit);
/** Registers first and count of each of `n` units where count is not 0; fills in shards. */
int shards_register(struct world *w, unsigned c, uint32_t n);
void job_ready_ask(struct world *w, unsigned c, unsigned tag);

#endif
