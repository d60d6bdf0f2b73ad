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
    ZSD_OPEN_JOB,    /* an incarnation of its job, or a change of the saved job, must end */
    ZSD_OPEN_ROOM,   /* jobs that give room must end: they are ending, or have no attached ranks */
    ZSD_OPEN_MEMORY, /* other jobs or readers must give memory back */
};

/** A job-open that waits, with a copy of the request. Its deadline stays the same if it waits
 * again, even for another cause. */
struct zsd_open_wait {
    enum zsd_open_cause cause;
    struct zb_err lacks; /* ZSD_OPEN_ROOM: the error with which it would be rejected */
    struct zsd_req *req;
    struct zsd_conn *conn;
    Zp__JobOpen q;
    char name[ZP_NAME_MAX + 1];
    char device[ZSD_DEVICE_MAX + 1];
    uint64_t staging_bytes; /* ZSD_OPEN_MEMORY: the staging that there is no memory for */
    struct zsd_want want;   /* ZSD_OPEN_MEMORY: its request that other jobs free memory */
    struct zsd_timed timed; /* its deadline */
    struct zb_list node;
};

/** Lets an open wait until deadline_ns; 0: for the configured time. NULL: no memory. */
struct zsd_open_wait *zsd_open_park(struct zsd_core *core, struct zsd_req *req,
                                    const Zp__JobOpen *q, enum zsd_open_cause cause,
                                    uint64_t deadline_ns);
/** Ends the wait. The caller answers the request, or has handled it again. */
void zsd_open_wait_free(struct zsd_core *core, struct zsd_open_wait *w);
/** Lets an open wait until others have freed `lacks` bytes of memory; deadline_ns as above. False:
 * they cannot free enough, or there is no memory to keep the open. */
bool zsd_open_want(struct zsd_core *core, struct zsd_req *req, const Zp__JobOpen *q, uint64_t lacks,
                   uint64_t deadline_ns);
/** Ends the waits of a closed connection. */
void zsd_opens_gone(struct zsd_conn *conn);
/** Whether an open of this connection waits. A connection has one job, so one open of it waits at most:
 * each change of the room tries all of them. */
bool zsd_open_parked(const struct zsd_conn *conn);
/** Rejects all waiting opens: the daemon ends. */
void zsd_opens_refuse(struct zsd_core *core);
/** Rejects the opens that wait until the job has retired: it could not be saved. */
void zsd_opens_fail(struct zsd_job *job, const struct zb_err *err);
/** Answers a rank that has opened its job, with the points that it can resume from. */
void zsd_open_answer(struct zsd_member *m);

#endif
