/*
 * reader.h - readers of saved versions: op/reader.c has the model.
 */
#ifndef ZSD_OP_READER_H
#define ZSD_OP_READER_H

#include "daemon/store/saved.h"

struct zsd_conn;

/** Called when only readers hold v (refs == readers), and no promise of a saved job covers its
 * places. Each reader gets its own promise of them, or releases v. The last release frees v. */
void zsd_readers_orphaned(struct zsd_version *v);
/** Closes the reader of a connection that ends, if it has one. */
void zsd_reader_gone(struct zsd_conn *conn);
/** The room has changed: tries the opens that wait for host memory. */
void zsd_reader_waits_retry(struct zsd_core *core);
/** Rejects them: the daemon ends. */
void zsd_reader_waits_refuse(struct zsd_core *core);
/** Adds the promises of all readers to *promise, and the bytes booked for them to *held. 0 or
 * -ENOMEM. */
int zsd_readers_promised(const struct zsd_core *core, struct zb_needs *promise,
                         struct zsd_account *held);
/** Closes all readers: the daemon ends. */
void zsd_readers_end(struct zsd_core *core);

#endif
