/*
 * opens.h - job-opens that wait: op/open.c says what for.
 *
 * Loop thread only.
 */
#ifndef ZSD_OP_OPENS_H
#define ZSD_OP_OPENS_H

#include "daemon/job/job.h"
#include "daemon/op/ops.h"
#include "proto/shard.pb-c.h"

#define ZSD_DEVICE_MAX 63u /* bytes of a device's id */

/** What a job-open waits for. */
enum zsd_open_cause {
    ZSD_OPEN_JOB,    /* an incarnation of its job to end, or a change of it to be over */
    ZSD_OPEN_ROOM,   /* jobs that end, or that nobody is attached to, to give room */
    ZSD_OPEN_MEMORY, /* memory that is in use: other jobs', or readers' */
};

/** A job-open that waits: its own copy of the request. It always has a deadline, which stays the same
 * when it waits again, for something else too. */
struct zsd_open_wait {
    enum zsd_open_cause cause;
    struct zb_err lacks; /* of ZSD_OPEN_ROOM: what it would be refused with */
    struct zsd_req *req;
    struct zsd_conn *conn;
    Zp__JobOpen q;
    char name[ZP_NAME_MAX + 1];
    char device[ZSD_DEVICE_MAX + 1];
    uint64_t staging_bytes; /* what it lacks memory for */
    struct zsd_want want;   /* host memory for that, that others give up state for */
    struct zsd_timed timed; /* until when it waits */
    struct zb_list node;
};

/** Lets an open wait for the configured time (deadline_ns 0), or until then. NULL: no memory. */
struct zsd_open_wait *zsd_open_park(struct zsd_core *core, struct zsd_req *req,
                                    const Zp__JobOpen *q, enum zsd_open_cause cause,
                                    uint64_t deadline_ns);
/** Ends its wait; the request is answered, or decided, elsewhere. */
void zsd_open_wait_free(struct zsd_core *core, struct zsd_open_wait *w);
/** Lets an open wait for memory that others give up (`lacks` bytes), if that is enough; deadline_ns
 * as above. False: it is not. */
bool zsd_open_want(struct zsd_core *core, struct zsd_req *req, const Zp__JobOpen *q, uint64_t lacks,
                   uint64_t deadline_ns);
/** The connection has gone: nobody waits for the answer. */
void zsd_opens_gone(struct zsd_conn *conn);
/** The daemon is ending. */
void zsd_opens_refuse(struct zsd_core *core);
/** Tells opens that wait until this job has given its memory back that it cannot. */
void zsd_opens_fail(struct zsd_job *job, const struct zb_err *err);
/** Answers a rank that has opened its job, with the points that it can resume from. */
void zsd_open_answer(struct zsd_member *m);

#endif
