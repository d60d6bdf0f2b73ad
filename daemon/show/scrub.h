/*
 * scrub.h - a run over all saved pages: show/scrub.c has the model.
 */
#ifndef ZSD_SCRUB_H
#define ZSD_SCRUB_H

#include "daemon/run/core.h"

void zsd_scrub_tick(struct zsd_core *core, uint64_t now_ns);
/** Is a run in progress, which zsd_scrub_tick() keeps going? */
bool zsd_scrub_running(const struct zsd_core *core);
/** No page is asked for any more; the one in flight ends by itself. */
void zsd_scrub_end(struct zsd_core *core);
/** Nothing is in flight. */
void zsd_scrub_free(struct zsd_core *core);

#endif
