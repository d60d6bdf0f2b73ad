/*
 * scrub.h - reads and verifies all saved pages in the background: show/scrub.c has the model.
 */
#ifndef ZSD_SCRUB_H
#define ZSD_SCRUB_H

#include "daemon/run/core.h"

/** Call about every 20 ms while a run is in progress. */
void zsd_scrub_tick(struct zsd_core *core, uint64_t now_ns);
/** The state of the newest run, as in the answer of the request: "idle", "running", ... */
const char *zsd_scrub_state(const struct zsd_core *core);
/** Bad pages of the newest run so far; 0: there was no run. */
uint64_t zsd_scrub_bad(const struct zsd_core *core);
/** Whether a run is in progress, so that zsd_scrub_tick() must be called. */
bool zsd_scrub_running(const struct zsd_core *core);
/** Stops the run: no more pages are read. A page in flight ends by itself. */
void zsd_scrub_end(struct zsd_core *core);
/** Frees it. No page may be in flight. */
void zsd_scrub_free(struct zsd_core *core);

#endif
