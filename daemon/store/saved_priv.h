/*
 * saved_priv.h - functions of saved.c for recover.c.
 */
#ifndef ZSD_SAVED_PRIV_H
#define ZSD_SAVED_PRIV_H

#include "daemon/store/store.h"

/** Makes a saved job with room for nunits units, in no list. NULL: no memory. */
struct zsd_saved *zsd_saved_alloc(struct zsd_store *store, uint32_t nunits);
/** Frees it, and everything that it holds. */
void zsd_saved_free(struct zsd_saved *s);
/** At the start: sets saved->held, from the rows of its versions. 0 or -ENOMEM. */
int zsd_saved_recount(struct zsd_saved *saved);
/** Promises and books `want`: the bytes of version v, and of gradients of the job in memory, by
 * plane, the rest as ring. 0, -ENOSPC or -ENOMEM. */
int zsd_saved_book(struct zsd_saved *saved, const struct zsd_version *v,
                   const struct zb_needs *want, struct zb_err *err);

#endif
