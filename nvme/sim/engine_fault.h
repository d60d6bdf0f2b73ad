/*
 * engine_fault.h - failures on request, for tests. Only the library zn_fault has it, and no program
 * links that: no option, environment variable or configuration leads here.
 *
 * MODEL. A filter between engine.c and the backend of an open engine. It counts transfers: each
 * request is one, and each time that it goes down again is one more.
 */
#ifndef ZN_ENGINE_FAULT_H
#define ZN_ENGINE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#include "nvme/zn.h"

struct zn_fault_plan {
    unsigned nth;         /* this transfer (1: the next) never reaches the backend; 0: none */
    bool nth_on;          /* nor do those after it: a device that died */
    int nth_res;          /* their result: a negative errno, or 0 for the end of the file */
    unsigned short_every; /* every so-many-th read or write is short; 0: none */
    uint32_t short_bytes; /* ends after this many bytes; 0: half of it */
    unsigned again_every; /* every so-many-th transfer is interrupted (-EINTR) */
    bool lifo;            /* what finished last comes up first */
};

/**
 * From now on, until the engine is closed; a second call replaces the plan and the counts.
 * Requests in flight are left alone.
 *
 * @return 0 or -ENOMEM
 */
int zn_fault_install(struct zn_engine *e, const struct zn_fault_plan *plan);

/** Transfers since the plan was installed: >= nth when the n-th was reached. */
unsigned zn_fault_seen(const struct zn_engine *e);

#endif
