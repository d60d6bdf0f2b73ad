/*
 * opens.h - job-opens that wait; op/open.c has the causes.
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
    ZSD_OPEN_JOB,    /* for the end of an incarnation of its job, or of a change of it */
    ZSD_OPEN_ROOM,   /* for room of jobs that end, or that can (no ranks attached) */
    ZSD_OPEN_MEMORY, /* for memory that other jobs or readers use */
};

/** A job-open that waits, with a copy of the request. It always has a deadline, which stays the
 * same if it waits again, also for another cause. */
struct zsd_open_wait {
    enum zsd_open_cause cause;
    struct zb_err lacks; /* ZSD_OPEN_ROOM: the error with which it would be rejected */
    struct zsd_req *req;
    struct zsd_conn *conn;
    Zp__JobOpen q;
    char name[ZP_NAME_MAX + 1];
    char device[ZSD_DEVICE_MAX + 1];
    uint64_t staging_bytes; /* for which there is no memory */
    struct zsd_want want;   /* its request for that memory, which others free */
    struct zsd_timed timed; /* its deadline */
    struct zb_list node;
};

/** Lets an open wait until deadline_ns; 0: for the configured time. NULL: no memory. */
struct zsd_open_wait *zsd_open_park(struct zsd_core *core, struct zsd_req *req,
                                    const Zp__JobOpen *q, enum zsd_open_cause cause,
                                    uint64_t deadline_ns);
/** Ends its wait; the request is answered, or decided, elsewhere. */
void zsd_open_wait_free(struct zsd_core *core, struct zsd_open_wait *w);
/** Lets an open wait for `lacks` bytes of memory that others free; deadline_ns as above. False:
 * they cannot free enough. */
bool zsd_open_want(struct zsd_core *core, struct zsd_req *req, const Zp__JobOpen *q, uint64_t lacks,
                   uint64_t deadline_ns);
/** Ends the waits of a connection that was closed. */
void zsd_opens_gone(struct zsd_conn *conn);
/** Rejects all of them: the daemon ends. */
void zsd_opens_refuse(struct zsd_core *core);
/** The job could not be saved: rejects opens of it that wait until it has retired. */
void zsd_opens_fail(struct zsd_job *job, const struct zb_err *err);
/** Answers a rank that has opened its job, with the points that it can resume from. */
void zsd_open_answer(struct zsd_member *m);

#endif
