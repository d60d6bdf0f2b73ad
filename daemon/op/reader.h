/*
 * reader.h - readers of saved versions: op/reader.c has the model.
 */
#ifndef ZSD_OP_READER_H
#define ZSD_OP_READER_H

#include "daemon/store/saved.h"

struct zsd_conn;

/** Nobody but readers holds v any more (refs == readers), so that no saved job is promised its
 * places: each reader is promised them, or lets go. The last one ends v. */
void zsd_readers_orphaned(struct zsd_version *v);
/** The connection ends: its reader, if any, lets go. */
void zsd_reader_gone(struct zsd_conn *conn);
/** Adds what readers are promised, and what is booked for that. 0 or -ENOMEM. */
int zsd_readers_promised(const struct zsd_core *core, struct zb_needs *promise,
                         struct zsd_account *held);
/** The daemon ends. */
void zsd_readers_end(struct zsd_core *core);

#endif
