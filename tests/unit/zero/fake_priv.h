/*
 * fake_priv.h - the fake's state, shared by fake_client.c (handles, and jobs that come and go),
 * fake_work.c (what a job does), fake_calls.c (how calls begin and end) and fake_job.c (the daemon,
 * and the test's side). fake_client.h has the model.
 *
 * Everything declared here is called under the lock, except fake_end_calls().
 */
#ifndef FAKE_PRIV_H
#define FAKE_PRIV_H

#include <pthread.h>
#include <stddef.h>

#include "base/err.h"
#include "base/plan.h"
#include "base/util.h"
#include "client/zclient.h"
#include "fake_client.h"
#include "kernels/zk.h"
#include "kernels/zk_page.h"

#define RANKS_MAX  8u
#define UNITS_MAX  64u
#define SHARDS_MAX 256u
#define NODES_MAX  4u

enum kind {
    JOB_OPEN,
    DEFINE,
    REGISTER,
    READY,
    WRITE,
    PUSH,
    READ,
    FETCH,
    NORMS,
    STEP,
    ABANDON,
    NOTE,
    COMMIT,
    PING,
    CLOSE,
};

struct note {
    bool there;
    size_t bytes;
    unsigned char data[64]; /* the engine puts 32 bytes before those of the test */
};

struct shard {
    uint64_t id, first, count, version;
    struct zb_layout layout;
    struct unit *unit;
    uint32_t rank, pins;
    unsigned char *param, *state, *grad;
    unsigned char *paged; /* of a quantized unit: param in pages, as it is fetched */
    uint64_t written, grad_next;
    uint32_t micro;
    struct zk_xsum sum;
    uint64_t nonfinite;
};

struct unit {
    char name[ZC_NAME_MAX + 1];
    uint64_t elems;
    struct zb_layout layout;
    struct zk_segment segments[8];
    size_t nsegments;
};

struct member {
    bool here, ready, asked;
    uint32_t pins;
    struct note note, job_note; /* sent for the next step */
};

/* A whole state of a job, which a commit keeps. By unit, so that it can be cut again. */
struct version {
    bool there;
    uint64_t iterations, applied;
    unsigned char *param[UNITS_MAX], *state[UNITS_MAX];
    struct note notes[RANKS_MAX], job_note;
};

struct job {
    bool exists, failed, keep, durable, live;
    uint64_t epoch;
    struct version committed, prepared;
    struct note notes[RANKS_MAX], job_note; /* of the newest step */
    uint64_t at;                            /* the point that ready named, */
    bool at_said;                           /* if it named one */
    int code;                               /* of failed */
    uint32_t lost;                          /* the rank that -EOWNERDEAD names */
    uint32_t world, groups;
    struct member members[RANKS_MAX];
    struct unit units[UNITS_MAX];
    uint32_t nunits;
    struct shard shards[SHARDS_MAX];
    uint32_t nshards;
    uint64_t iterations, applied;
    /* the step */
    bool stepping, skip;
    struct zc_step step;
    struct zc_group step_groups[64];
    int commit_code; /* of the step that has ended */
    uint32_t next_shard;
    uint64_t shard_ns; /* when the last one was done */
    uint64_t pushed_bytes, fetched_bytes;
};

extern struct fake {
    pthread_mutex_t lock;
    struct fake_config config;
    const struct zk_ops *ops;
    struct job jobs[NODES_MAX];
    uint32_t calls; /* of the rank that is to fail */
    enum fake_when faulted;
    uint64_t dies_ns; /* of config.dies_ms; 0: never */
    uint32_t handles, pins_most;
    uint64_t seed;
} fake;

struct call {
    struct zb_list node;
    enum kind kind;
    zc_done_fn *done;
    void *arg, *ret;
    uint32_t delay;
    bool never;
    int rc; /* the error that it will end with, if any */
    uint64_t shard, first, count, number, micro;
    bool add, lies;
    enum zc_what what;
    enum zc_commit commit;
    void *staged;
    uint64_t shards[RANKS_MAX]; /* of a fetch */
    uint32_t n;
};

struct zc_client {
    struct zb_err err;
    struct zc_server server;
    uint32_t node, rank, who; /* rank on the node, and in the job */
    bool lost, joined, told;
    uint64_t epoch;
    struct zb_list calls;
    zc_event_fn *on_event;
    void *on_event_arg;
    void *staging;
    uint64_t staging_bytes;
};

/* ---- fake_job.c */

struct job *fake_job_of(struct zc_client *c);
struct shard *fake_shard_of(struct zc_client *c, uint64_t id);
struct zk_page fake_page_of(struct shard *s, uint64_t first, uint64_t count);
/** Whether another epoch has begun, so that this handle is of an older one. */
bool fake_stale(const struct zc_client *c);
/** Records the text for zc_error(); returns rc. */
int fake_record(struct zc_client *c, int rc, const char *text);
void fake_job_fail(struct job *job, int code, uint32_t rank);
void fake_hang_up(struct zc_client *c);
/** A rank leaves. When the last one does, the job ends; a kept job loses only its unfinished
 * work. */
void fake_member_leave(struct zc_client *c);
void fake_shards_free(struct job *job);
void fake_version_load(struct version *v, struct job *job);
/** 0, or the error. */
int fake_job_commit(struct job *job, enum zc_commit what);
void fake_job_resolve(struct job *job, bool commit);
bool fake_step_may_begin(const struct job *job);
/** Makes the next shard of the step in progress, if any. */
void fake_step_one(struct job *job);

/* ---- fake_calls.c */

/** Begins a call: 0, and *ret is in the handle; or the refusal. */
int fake_begin(struct zc_client *c, enum kind kind, zc_done_fn *done, void *arg, struct call **ret);
/** Ends all calls that can end; returns how many. */
int fake_end_calls(struct zc_client *c);

#define BEGIN(c, kind, done, arg, call)                   \
    pthread_mutex_lock(&fake.lock);                       \
    rc = fake_begin((c), (kind), (done), (arg), &(call)); \
    if (rc == 0)

#define END()                         \
    pthread_mutex_unlock(&fake.lock); \
    return rc

#endif
