/*
 * member.h - functions on ranks that all operations use.
 *
 * Loop thread only.
 */
#ifndef ZSD_OP_MEMBER_H
#define ZSD_OP_MEMBER_H

#include "daemon/job/job.h"

/** Answers a request that the member waits for with `why`, if there is one. */
void zsd_member_answer(struct zsd_req **req, struct zsd_timed *timed, const struct zb_err *why);
/** Drops the parts of a unit that it has described. */
void zsd_member_undefine(struct zsd_member *m);
void zsd_staging_put(struct zsd_member *m); /* undoes a staging_users++ */
/** Frees a detached member whose staging is no longer used. */
void zsd_member_free_if_over(struct zsd_member *m);

#endif
