/*
 * drive.h - what a drive gives to one reader, at the moment: the control of figures that depend on
 * it.
 *
 * MODEL. A file of our own beside the daemon's, written once and read from its begin to its end by
 * the engine that the daemon uses, many pieces at one time. One thread.
 */
#ifndef ZBENCH_DRIVE_H
#define ZBENCH_DRIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct zbench_drive;
struct zn_engine;

/** Writes a file of so many bytes, of whole pieces, in the folder; it has no name then. 0 or a
 * negative errno. */
int zbench_drive_open(struct zbench_drive **ret, const char *dir, uint64_t bytes,
                      uint32_t piece_bytes, struct zb_err *err);
/** Reads all of it: seconds that it took. */
int zbench_drive_read(struct zbench_drive *d, double *ret_s, struct zb_err *err);
/** Reads pass by the page cache. */
bool zbench_drive_direct(const struct zbench_drive *d);
/** Waits for all requests of an engine that are in flight, and for those that their `done` submits. */
void zbench_drain(struct zn_engine *e, unsigned depth);
/** NULL is fine. */
void zbench_drive_close(struct zbench_drive *d);

#endif
