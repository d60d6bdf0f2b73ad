/*
 * member.h - what every operation does with ranks.
 *
 * Loop thread only.
 */
#ifndef ZSD_OP_MEMBER_H
#define ZSD_OP_MEMBER_H

#include "daemon/job/job.h"

/** Refuses what a member waits for, if it does. */
void zsd_member_answer(struct zsd_req **req, struct zsd_timed *timed, const struct zb_err *why);
/** What it has described of a unit is forgotten. */
void zsd_member_undefine(struct zsd_member *m);
void zsd_staging_put(struct zsd_member *m); /* undoes a staging_users++ */
/** Frees a member that is gone and whose staging nobody reads any more. */
void zsd_member_free_if_over(struct zsd_member *m);

#endif
