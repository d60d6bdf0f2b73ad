/*
 * restart.h - ranks that attach again when the daemon was restarted.
 *
 * MODEL. Before a restart these ranks are told (EVENT_RESTART). Each finishes its step with the
 * others, closes the job, and attaches again when the next daemon answers. The daemon ends when
 * they have left, so no gradient is lost.
 *
 * Loop thread only.
 */
#ifndef ZSD_OP_RESTART_H
#define ZSD_OP_RESTART_H

#include "daemon/job/job.h"

/** Tells these ranks that the daemon is about to restart. */
void zsd_restart_tell(struct zsd_core *core);
/** A job that is still waited for: it can be saved, and all of its attached ranks attach again.
 * NULL: there is none. */
const struct zsd_job *zsd_restart_waits(const struct zsd_core *core);

#endif
