/*
 * stores.h - creates the stores (core/store.h defines their interface).
 */
#ifndef ZC_ZERO_STORES_H
#define ZC_ZERO_STORES_H

struct zc_zero;
struct zcz_store;

/** Returns a store that is not opened yet; NULL: no memory. */
struct zcz_store *zcz_store_local(struct zc_zero *z);
struct zcz_store *zcz_store_device(struct zc_zero *z);
struct zcz_store *zcz_store_daemon(struct zc_zero *z);

#endif
