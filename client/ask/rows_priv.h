/*
 * rows_priv.h - collects the rows of several replies in one array.
 *
 * MODEL. struct zc_rows is one growing array, which becomes the caller's. Each reply adds its rows
 * and has the cursor for the next request (0: there are no more).
 */
#ifndef ZC_ROWS_PRIV_H
#define ZC_ROWS_PRIV_H

#include <stdio.h>

#include "client/ask/ask_priv.h"

struct zc_rows {
    void *data;
    size_t n, room, row_bytes;
    uint64_t cursor;
    void *head; /* output for the other fields of a reply; NULL: not wanted */
};

/** Begins to read a reply with n rows. 1: *ret has room for them, zeroed; 0: there are none; else
 *  the code that the call ends with. */
int zc_rows_begin(struct zc_client *c, struct zc_rows *r, size_t n, uint64_t cursor, void **ret);
/** Sends requests until there are no more rows. `cursor` points to the message's field, or is NULL.
 *  0, and rows->data is the caller's; or the code of the call that failed. */
int zc_rows_collect(struct zc_client *c, const struct zc_method *method,
                    const ProtobufCMessage *message, uint64_t *cursor, struct zc_rows *rows,
                    size_t *ret_n);

/** rows_look.c: copies a tier. */
void zc_tier_copy(struct zc_tier_row *to, const Zp__TierRow *from);

#define COPY(to, from) (void)snprintf(to, sizeof(to), "%s", from)

#endif
