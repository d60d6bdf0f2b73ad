/*
 * rows.c - collects the rows of several replies in one array.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "client/ask/rows_priv.h"

/** Adds n zeroed rows (n > 0). Returns the first of them; NULL: no memory. */
static void *rows_add(struct zc_rows *r, size_t n)
{
    void *added;

    if (zb_grow_bytes(&r->data, &r->room, r->n, n, r->row_bytes) < 0)
        return NULL;
    added = (char *)r->data + r->n * r->row_bytes;
    memset(added, 0, n * r->row_bytes);
    r->n += n;
    return added;
}

int zc_rows_begin(struct zc_client *c, struct zc_rows *r, size_t n, uint64_t cursor, void **ret)
{
    if (n == 0 && cursor != 0)
        return zc_fail(c, -EPROTO, "a reply without rows, and more to come");
    r->cursor = cursor;
    if (n == 0)
        return 0;
    *ret = rows_add(r, n);
    return *ret ? 1 : zc_fail(c, -ENOMEM, "%zu rows: %m", r->n + n);
}

int zc_rows_collect(struct zc_client *c, const struct zc_method *method,
                    const ProtobufCMessage *message, uint64_t *cursor, struct zc_rows *rows,
                    size_t *ret_n)
{
    int rc;

    do {
        struct zc_waiter w = { .client = c };

        if (cursor)
            *cursor = rows->cursor;
        rc = zc_wait(&w, zc_ask(c, method, message, rows, zc_waiter_done, &w), 0);
    } while (rc == 0 && rows->cursor != 0);
    if (rc < 0)
        free(rows->data);
    else
        *ret_n = rows->n;
    return rc;
}

void zc_rows_free(void *rows)
{
    free(rows);
}
