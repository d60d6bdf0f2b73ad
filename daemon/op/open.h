/*
 * open.h - ranks open jobs: op/open.c has the model.
 */
#ifndef ZSD_OP_OPEN_H
#define ZSD_OP_OPEN_H

#include "daemon/job/job.h"

/** The connection has gone: nobody waits for the answer. */
void zsd_opens_gone(struct zsd_conn *conn);
void zsd_opens_refuse(struct zsd_core *core);
void zsd_open_answer(struct zsd_member *m);
/** Somebody lacks memory for `lacks`: other saved jobs that nobody is attached to give theirs back,
 * one at a time, the one that has been there longest first. True: some is on its way. */
bool zsd_core_make_room(struct zsd_core *core, const struct zsd_job *lacks);
/** What zsd_room_changed() defers: opens and placings that wait look again. */
void zsd_room_on_work(struct zsd_work *work);

#endif
