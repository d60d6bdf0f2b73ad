/*
 * daemon_priv.h - the daemon as a store, for the files that are it.
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
    struct zcz_op *op; /* of the write or push that has it */
};

struct zcz_daemon {
    struct zcz_store base;
    struct zc_client *c;
    int gone; /* a code: the job or the connection is over, base.err says why */
    struct zc_job job;
    struct zc_point committed; /* the answer to a commit */
    bool joined;
    struct zc_placement placement;
    struct zk_gpu_mem
        *params;      /* parameters of the daemon on our device; NULL: they are not there */
    uint64_t *shards; /* by unit; 0: none */
    uint64_t *ids;    /* of a registration in flight */
    struct zcz_piece pieces[ZB_PIECES];
    struct zcz_op op; /* of the start and the end */
    bool placing;
    struct zcz_op ping;
    uint64_t pinged_ns;
};

static inline struct zcz_daemon *zcz_daemon_of(struct zcz_store *s)
{
    return zb_container_of(s, struct zcz_daemon, base);
}

/* ---- daemon_calls.c */

/** Ends of calls: the argument is the op, or the piece. */
void zcz_daemon_on_op(void *arg, int rc);
void zcz_daemon_on_piece(void *arg, int rc);
void zcz_daemon_on_event(void *arg, const struct zc_event *event);
/** What the start of a call says: 0 and one more pending, -EAGAIN, or a refusal. */
int zcz_daemon_begun(struct zcz_daemon *d, struct zcz_op *op, int rc);
/** The same of one that is waited for; its error message, if it fails, is the engine's last. */
int zcz_daemon_wait(struct zcz_daemon *d, int rc, const char *what);

/* ---- daemon_start.c */

/* Of struct zcz_store_ops. */
int zcz_daemon_open(struct zcz_store *s);
int zcz_daemon_attach(struct zcz_store *s, uint64_t epoch);
int zcz_daemon_join(struct zcz_store *s);
int zcz_daemon_place(struct zcz_store *s);
/** The daemon's parameters on the device are copied from no more. */
void zcz_daemon_let_go(struct zcz_daemon *d);
/** Why parameters are not on the GPU, where they were asked to be; else "". */
const char *zcz_daemon_why(const struct zcz_daemon *d);

#endif
