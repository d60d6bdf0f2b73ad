/*
 * drive.h - the rate at which a drive serves one reader, as a control for figures that depend on
 * it.
 *
 * MODEL. A separate file on the daemon's drive, written once, then read from beginning to end by
 * the engine that the daemon uses, many pieces at a time. One thread.
 */
#ifndef ZBENCH_DRIVE_H
#define ZBENCH_DRIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct zbench_drive;
struct zn_engine;

/** Writes an unnamed file of `bytes` bytes (whole pieces) in the folder. 0 or a negative errno. */
int zbench_drive_open(struct zbench_drive **ret, const char *dir, uint64_t bytes,
                      uint32_t piece_bytes, struct zb_err *err);
/** Reads the whole file; *ret_s: seconds. */
int zbench_drive_read(struct zbench_drive *d, double *ret_s, struct zb_err *err);
/** Whether reads bypass the page cache. */
bool zbench_drive_direct(const struct zbench_drive *d);
/** Waits for all requests of an engine that are in flight, and for those that their `done`
 * submits. */
void zbench_drain(struct zn_engine *e, unsigned depth);
/** NULL is fine. */
void zbench_drive_close(struct zbench_drive *d);

#endif
