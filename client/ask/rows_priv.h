/*
 * rows_priv.h - rows that several replies bring, as one array.
 *
 * MODEL. struct zc_rows collects them in one growing array, which becomes the caller's. Each reply
 * adds its rows and says where the next one begins (cursor, 0: that was all).
 */
#ifndef ZC_ROWS_PRIV_H
#define ZC_ROWS_PRIV_H

#include <stdio.h>

#include "client/ask/ask_priv.h"

struct zc_rows {
    void *data;
    size_t n, room, row_bytes;
    uint64_t cursor;
    void *head; /* what a reply says beside its rows, where the caller wants it */
};

/** What every reply of rows begins with: 1 and *ret has room for n rows, zeroed; 0 there are none;
 *  or how the call ends. */
int zc_rows_begin(struct zc_client *c, struct zc_rows *r, size_t n, uint64_t cursor, void **ret);
/** Sends requests until the rows have ended. `cursor` is the message's field, or NULL. 0, and
 *  rows->data is the caller's; or how a call ended. */
int zc_rows_collect(struct zc_client *c, const struct zc_method *method,
                    const ProtobufCMessage *message, uint64_t *cursor, struct zc_rows *rows,
                    size_t *ret_n);

#define COPY(to, from) (void)snprintf(to, sizeof(to), "%s", from)

#endif
