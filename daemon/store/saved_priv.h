/*
 * saved_priv.h - functions of saved.c for recover.c.
 */
#ifndef ZSD_SAVED_PRIV_H
#define ZSD_SAVED_PRIV_H

#include "daemon/store/store.h"

/** In no list, with room for nunits units. NULL: no memory. */
struct zsd_saved *zsd_saved_alloc(struct zsd_store *store, uint32_t nunits);
/** Frees it, and everything that it holds. */
void zsd_saved_free(struct zsd_saved *s);
/** Counts what its versions hold, row by row: at the start. 0 or -ENOMEM. */
int zsd_saved_recount(struct zsd_saved *saved);
/** Books `want`, with the bytes of its newest version as such, and the gradients' of the job in
 * memory: 0, -ENOSPC or -ENOMEM. */
int zsd_saved_book(struct zsd_saved *saved, const struct zsd_version *v,
                   const struct zb_needs *want, struct zb_err *err);

#endif
