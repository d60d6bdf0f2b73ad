/*
 * daemon_priv.h - the daemon as a store: shared by its files.
 */
#ifndef ZC_ZERO_DAEMON_PRIV_H
#define ZC_ZERO_DAEMON_PRIV_H

#include "base/model.h"
#include "base/util.h"
#include "client/zclient.h"
#include "client/zero/core/store.h"

struct zk_gpu_mem;

struct zcz_piece {
    float *data;
    bool used;
    struct zcz_op *op; /* for the write or push that uses the piece */
};

struct zcz_daemon {
    struct zcz_store base;
    struct zc_client *c;
    int gone; /* error code: the job or connection has ended; base.err says why */
    struct zc_job job;
    struct zc_point committed; /* the answer to a commit */
    bool joined;
    struct zc_placement placement;
    struct zk_gpu_mem *params; /* the daemon's parameters, mapped on this device; NULL: none */
    uint64_t *shards;          /* by unit; 0: no shard */
    uint64_t *ids;             /* for a registration in flight */
    struct zcz_piece pieces[ZB_PIECES];
    struct zcz_op op; /* for start and end */
    bool placing;
    struct zcz_op ping;
    uint64_t pinged_ns;
    struct zcz_store_stats stats; /* as last read */
    void *limbo; /* what views show when the daemon is lost; NULL: its loss is final */
    size_t limbo_bytes;
    bool returns; /* attaches to the next daemon after a restart in good order */
};

static inline struct zcz_daemon *zcz_daemon_of(struct zcz_store *s)
{
    return zb_container_of(s, struct zcz_daemon, base);
}

/* ---- daemon_calls.c */

/** Callbacks at the end of a call; arg is the op, or the piece. */
void zcz_daemon_on_op(void *arg, int rc);
void zcz_daemon_on_piece(void *arg, int rc);
void zcz_daemon_on_event(void *arg, const struct zc_event *event);
/** Handles the result of starting a call: 0 and op->pending grows, -EAGAIN, or a refusal. If the
 * daemon is lost, 0, and the op is as before. */
int zcz_daemon_begun(struct zcz_daemon *d, struct zcz_op *op, int rc);
/** The same for a call whose result is needed: a refusal if the daemon is lost. */
int zcz_daemon_begun_sure(struct zcz_daemon *d, struct zcz_op *op, int rc);
/** Whether the failure is the loss of a daemon that can be replaced: then it is recorded. */
bool zcz_daemon_lost(struct zcz_daemon *d, int rc);
/** The same, and waits for the call. On failure, its error message becomes the engine's. */
int zcz_daemon_wait(struct zcz_daemon *d, int rc, const char *what);

/* ---- daemon_start.c */

/* Of struct zcz_store_ops. */
int zcz_daemon_open(struct zcz_store *s);
int zcz_daemon_attach(struct zcz_store *s, uint64_t epoch);
int zcz_daemon_join(struct zcz_store *s);
int zcz_daemon_place(struct zcz_store *s);
/** Unmaps the daemon's parameters; nothing may copy from them any more. */
void zcz_daemon_let_go(struct zcz_daemon *d);
/** Returns why parameters that were requested on the GPU are not there; else "". */
const char *zcz_daemon_why(const struct zcz_daemon *d);

#endif
