/*
 * txn.c - a transaction of the catalog before its commit: a list of changes in memory.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "nvme/catalog_priv.h"

#define TXN_ROOM_FIRST 16u

struct zn_txn *zn_txn_new(void)
{
    return calloc(1, sizeof(struct zn_txn));
}

void zn_txn_free(struct zn_txn *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->count; i++)
        free(t->changes[i].bytes);
    free(t->changes);
    free(t);
}

/* Appends a change with op and key, otherwise zero: *ret. */
static int txn_add(struct zn_txn *t, enum zn_change_op op, const struct zn_key *key,
                   struct zn_change **ret)
{
    if (key->kind == 0 || key->a > INT64_MAX || key->b > INT64_MAX)
        return -EINVAL;
    if (zb_grow(&t->changes, &t->room, t->count, 1) < 0)
        return -ENOMEM;
    *ret = &t->changes[t->count++];
    **ret = (struct zn_change){ .op = op, .key = *key };
    return 0;
}

int zn_txn_put_room(struct zn_txn *t, const struct zn_key *key, size_t len_bytes, void **ret)
{
    struct zn_change *change;
    uint8_t *bytes;
    int rc;

    if (len_bytes > ZN_RECORD_MAX)
        return -EINVAL;
    bytes = malloc(len_bytes > 0 ? len_bytes : 1);
    if (!bytes)
        return -ENOMEM;
    rc = txn_add(t, ZN_CHANGE_PUT, key, &change);
    if (rc < 0) {
        free(bytes);
        return rc;
    }
    change->len_bytes = len_bytes;
    *ret = change->bytes = bytes;
    return 0;
}

int zn_txn_del(struct zn_txn *t, const struct zn_key *key)
{
    struct zn_change *change;

    return txn_add(t, ZN_CHANGE_DEL, key, &change);
}

int zn_txn_del_all(struct zn_txn *t, uint32_t kind, uint64_t a)
{
    struct zn_change *change;

    return txn_add(t, ZN_CHANGE_DEL_ALL, &(struct zn_key){ .kind = kind, .a = a }, &change);
}
