/*
 * catalog_priv.h - a transaction as catalog.c sees it; txn.c builds it.
 */
#ifndef ZN_CATALOG_PRIV_H
#define ZN_CATALOG_PRIV_H

#include "nvme/zn_catalog.h"

enum zn_change_op { ZN_CHANGE_PUT, ZN_CHANGE_DEL, ZN_CHANGE_DEL_ALL };

struct zn_change {
    enum zn_change_op op;
    struct zn_key key; /* DEL_ALL: any b */
    uint8_t *bytes;    /* of PUT: owned here; one byte is allocated even if len_bytes is 0 */
    size_t len_bytes;
};

struct zn_txn {
    struct zn_change *changes; /* in the order of execution */
    size_t count, room;
};

#endif
