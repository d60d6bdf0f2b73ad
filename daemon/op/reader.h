/*
 * reader.h - readers of saved versions: op/reader.c has the model.
 */
#ifndef ZSD_OP_READER_H
#define ZSD_OP_READER_H

#include "daemon/store/saved.h"

struct zsd_conn;

/** Called when only readers hold v (refs == readers), so that no saved job is promised its places:
 * each reader is promised them, or releases v. The last one frees v. */
void zsd_readers_orphaned(struct zsd_version *v);
/** Closes the reader of a connection that ends, if it has one. */
void zsd_reader_gone(struct zsd_conn *conn);
/** Adds the promises of readers, and the bytes booked for them. 0 or -ENOMEM. */
int zsd_readers_promised(const struct zsd_core *core, struct zb_needs *promise,
                         struct zsd_account *held);
/** The daemon ends. */
void zsd_readers_end(struct zsd_core *core);

#endif
