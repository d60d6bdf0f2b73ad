/*
 * health.h - collects the facts, and applies the rules of reasons.h to them.
 *
 * Loop thread only.
 */
#ifndef ZSD_HEALTH_H
#define ZSD_HEALTH_H

#include "daemon/net/conn.h"
#include "daemon/show/reasons.h"

struct zsd_core;

struct zsd_health {
    struct zsd_facts facts;
    struct zsd_reason reasons[ZSD_REASONS];
    unsigned errors; /* 0: the daemon is healthy */
};

/** Collects the facts that the client of req may see; a compute thread asks the system for some of
 * them. done() answers req, later and on the loop. Without memory, req is answered here. */
void zsd_health_start(struct zsd_req *req,
                      void (*done)(struct zsd_req *req, const struct zsd_health *health));
/** Number of saved jobs that are not in memory. */
unsigned zsd_health_saved(const struct zsd_core *core);

#endif
