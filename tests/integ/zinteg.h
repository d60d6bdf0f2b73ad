/*
 * zinteg.h - a real zshardd for a test, and clients for it.
 *
 * MODEL. A test starts a daemon with a socket, a data directory and a log of its own in a new
 * directory, and stops it as its last act. Then the exit status and the log are checked. If the
 * test's teardown (zi_teardown) finds a running daemon, the test has failed: it prints the log and
 * kills the daemon. A daemon also dies with the test's process.
 *
 * Every wait has a limit, and fails the test when that is exceeded.
 */
#ifndef ZINTEG_H
#define ZINTEG_H

#include "tests/ztest.h"

#include <stdbool.h>
#include <sys/types.h>

#include "client/zclient.h"
#include "proto/codec.h"
#include "proto/stream.h"

#define ZI_WAIT_MS 150000u /* for what must happen soon */
/* For what must not wait for a timeout of a job (120 s), on a drive that may stall for half a
 * minute. */
#define ZI_SOON_NS      UINT64_C(60000000000)
#define ZI_FETCH_MS     120000u /* the deadline of fetches that must succeed */
#define ZI_UNITS_MAX    64u
#define ZI_DATA_START   65536u /* of the data file: pages follow */
#define ZI_BUFFER_BYTES 18u    /* of a page buffer, for each element of a page */

/* ---- the daemon */

struct zi_daemon {
    pid_t pid; /* 0: none runs */
    char dir[64];
    char socket[96], data[96], log[96];
    char ready[1024];         /* its line, or "" */
    const char *cgroup_procs; /* NULL, or the file of a cgroup that it starts in (cgroup.h) */
};

/** Starts a daemon in a new directory. options: NULL-terminated, after --socket and --data. */
void zi_start(struct zi_daemon *d, const char *const *options);
/** The same in d's existing directory: after zi_kill() or zi_end(). */
void zi_start_again(struct zi_daemon *d, const char *const *options);
/** Starts one that may refuse: true when it is ready. Otherwise *ret_status is its exit status, and
 * its log stays until zi_clean(). */
bool zi_start_try(struct zi_daemon *d, const char *const *options, int *ret_status);
/** SIGTERM: it must exit with 0, its socket gone and its log free of sanitizer reports. Then
 * zi_clean(). */
void zi_stop(struct zi_daemon *d);
/** The same, but the directory stays. */
void zi_end(struct zi_daemon *d);
/** Sends SIGTERM and does not wait: zi_ended() must follow. */
void zi_term(struct zi_daemon *d);
void zi_ended(struct zi_daemon *d);
/** SIGKILL, and waits for its end. */
void zi_kill(struct zi_daemon *d);
/** Runs zshardd --fsck on its directory: the exit status. */
int zi_fsck(const struct zi_daemon *d);
/** Removes the directory. */
void zi_clean(struct zi_daemon *d);
/** The log line that contains `text`, or NULL. A static buffer. */
const char *zi_log_line(const struct zi_daemon *d, const char *text);
/** The number of descriptors that the daemon has open. */
unsigned zi_files(const struct zi_daemon *d);

/** For cmocka: shows the log of every daemon that a failed test left behind, and kills it. */
int zi_teardown(void **state);

/* ---- clients of the library */

/** A rank of a job. */
struct zi_rank {
    struct zc_client *c;
    struct zc_job job;
    struct zc_placement place;
    uint32_t rank;
    uint64_t shards[ZI_UNITS_MAX]; /* by unit; 0: this rank has no part of it */
    struct zc_range ranges[ZI_UNITS_MAX];
    unsigned peer_lost, job_failed; /* events */
    int event_code;
    char event_text[512];
};

/** A call in flight: pass zi_done and the struct. */
struct zi_call {
    struct zi_rank *rank; /* whose handle has the error message; may be NULL */
    bool over;
    int rc;
    char text[512];
};

void zi_done(void *arg, int rc);
/** A call of a rank that is not started yet. */
#define ZI_CALL(r) ((struct zi_call){ .rank = (r) })

struct zc_client *zi_client(const struct zi_daemon *d);
/** Polls the ranks until the call has ended; returns its rc. */
int zi_await(struct zi_rank *ranks, unsigned n, struct zi_call *call);
/** The same for one call of each rank: 0, or the rc of the first that failed, and its text. */
int zi_await_all(struct zi_rank *ranks, unsigned n, struct zi_call *calls, const char **ret_text);
/** Polls them for this long, whatever happens; at least once. */
void zi_pump(struct zi_rank *ranks, unsigned n, unsigned ms);

/** Connects and opens the job: its rc. */
int zi_open(struct zi_rank *r, const struct zi_daemon *d, const struct zc_job_options *options);
/** Defines a unit. If it is trained and has no tensors, it gets one of all its elements. */
int zi_unit_define(struct zi_rank *r, const struct zc_unit *unit);
/** Defines the units in the same way, and registers the rank's slice of each (base/plan.h). */
void zi_define(struct zi_rank *r, const struct zc_unit *units, unsigned n, uint32_t world);
/** Every rank calls ready: 0, or the rc of the first that failed. */
int zi_ready(struct zi_rank *ranks, unsigned n);
/** Opens, defines and calls ready; all of it must succeed. options->rank is set here. */
void zi_job(struct zi_rank *ranks, unsigned world, const struct zi_daemon *d,
            const struct zc_job_options *options, const struct zc_unit *units, unsigned nunits);
void zi_close(struct zi_rank *ranks, unsigned n);

/** What dies of a job of two ranks. */
enum zi_dies { ZI_ONE_RANK /* the second */, ZI_BOTH_RANKS, ZI_DAEMON, ZI_DIES };
/** It dies; then a daemon runs again with these options, and what died is attached and ready again. *o: options of the
 * job. */
void zi_death(struct zi_daemon *d, struct zi_rank r[2], struct zc_job_options *o,
              const struct zc_unit *units, unsigned nunits, enum zi_dies dies,
              const char *const *options);

/** Writes value(element of the unit) to the whole shard of unit u, in parts that fit staging. */
void zi_write_all(struct zi_rank *r, unsigned u, float (*value)(uint64_t element));
/** Pushes the same as a gradient of micro-step 0. */
void zi_push_all(struct zi_rank *r, unsigned u, uint64_t step, float (*value)(uint64_t element));
/** The same; 0, or the rc of the first refusal. */
int zi_push_try(struct zi_rank *r, unsigned u, uint64_t step, float (*value)(uint64_t element));

/** Begins a push of elements [first, first + count) of this rank's slice of unit u, of micro-step 0; zi_await() must
 * follow. */
void zi_push_begin(struct zi_rank *r, unsigned u, uint64_t step, uint64_t first, uint64_t count,
                   float (*value)(uint64_t element), struct zi_call *call);
/** A checksum of the parameters and all state that the shards of n ranks hold, which are those of AdamW, or
 * of Muon. */
uint64_t zi_bytes(struct zi_rank *ranks, unsigned n, const struct zc_unit *units, unsigned nunits);

/** Every rank asks for the step, or to skip it; zi_await_all() must follow. */
void zi_step_ask(struct zi_rank *ranks, unsigned n, const struct zc_step *step, bool skip,
                 struct zc_stepped *stepped, struct zi_call *calls);

/** Bytes in use in a tier. */
uint64_t zi_used(const struct zi_daemon *d, const char *tier);
/** Waits until both tiers use these amounts: milliseconds that it took; fails after ZI_SOON_NS. */
unsigned zi_await_used(const struct zi_daemon *d, uint64_t host, uint64_t nvme);

/** A tier's row, after checking its sums. */
struct zc_tier_row zi_tier(struct zc_client *c, const char *name);
/** Waits until the tier has come down to its target: freed memory has been given back. */
void zi_await_target(struct zc_client *c, const char *name);
/** The smallest budget of a tier that would work, according to a refusal. */
uint64_t zi_least(struct zc_client *c, const char *name);
/** A counter of the daemon; UINT64_MAX: there is none of that name. */
uint64_t zi_counter(struct zc_client *c, const char *name);
/** The row of the only job of that name. */
struct zc_job_row zi_job_row(struct zc_client *c, const char *name);
/** Bytes of a job's planes (NULL: of all jobs) that are on the GPU and on the data file. */
void zi_where(struct zc_client *c, const char *job, uint64_t *ret_gpu, uint64_t *ret_nvme);
/** The running daemon checks its files, and must find nothing. */
void zi_fsck_online(struct zc_client *c);

/* ---- a client that sends whatever it likes */

struct zi_raw {
    struct zp_stream *stream;
    struct zp_arena *arena;
    uint64_t tag;
    char text[512]; /* of the last refusal */
    const ProtobufCMessage *reply;
    int fd; /* that came with the reply; -1: none */
};

/** Connects; sends nothing. */
void zi_raw_connect(struct zi_raw *r, const struct zi_daemon *d);
/** Connects and sends hello. */
void zi_raw_open(struct zi_raw *r, const struct zi_daemon *d);
void zi_raw_close(struct zi_raw *r);
/** Sends a request and waits for its reply; returns the code. r->reply is valid until the next
 * call. */
int zi_raw_call(struct zi_raw *r, unsigned method, const ProtobufCMessage *message);
void zi_raw_send(struct zi_raw *r, unsigned method, const ProtobufCMessage *message);
int zi_raw_reply(struct zi_raw *r, unsigned method);
/** The next reply, to any request. */
int zi_raw_any(struct zi_raw *r, unsigned *ret_method);
/** Sends bytes as they are, with descriptors (n may be 0). */
void zi_raw_bytes(struct zi_raw *r, const void *bytes, size_t len, const int *fds, unsigned n);
/** The daemon must hang up, without sending anything before that. */
void zi_raw_hung_up(struct zi_raw *r);
/** The connection is alive: a ping is answered. */
void zi_raw_alive(struct zi_raw *r);

#endif
