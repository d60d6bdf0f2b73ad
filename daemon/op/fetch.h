/*
 * fetch.h - pins of parameters, and fills that read them into memory: op/fetch.c has the model.
 */
#ifndef ZSD_OP_FETCH_H
#define ZSD_OP_FETCH_H

#include "daemon/job/shard.h"

/** Why the fetch that is request `req` of this rank waits. */
enum zsd_wait zsd_fetch_wait(const struct zsd_member *m, const struct zsd_req *req);
void zsd_fetch_resume(struct zsd_job *job); /* all fetches check again */
void zsd_fetch_cancel(struct zsd_member *m, const struct zb_err *why);
void zsd_fill_resume(struct zsd_job *job); /* call when a place in the ring may be free */
void zsd_fill_cancel(struct zsd_job *job); /* ends the fills that wait for a place */

#endif
