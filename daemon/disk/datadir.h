/*
 * datadir.h - the data directory: where it is, whose it is, and its cleanup.
 *
 * WHERE. The path given; else $STATE_DIRECTORY, which systemd sets for a unit that has one; else a
 * temporary directory of our own, zshard-XXXXXX in $TMPDIR or /var/tmp (which is a disk where /tmp
 * is memory).
 *
 * A directory belongs to one daemon at a time, by a flock on the directory itself. The data file of
 * a temporary one loses its name as soon as it is open, so that its space returns however the
 * daemon ends; kill -9 leaves at most an empty directory.
 *
 * Loop thread, before and after the loop runs: these calls block.
 */
#ifndef ZSD_DATADIR_H
#define ZSD_DATADIR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define ZSD_DATA_FILE    "pages.zsd"        /* in the directory */
#define ZSD_CATALOG_FILE "catalog.zsd"      /* next to it */
#define ZSD_COPY_FILE    "catalog-copy.zsd" /* next to the data files of `paths`: a copy of it */

struct zsd_datadir;

/**
 * Makes the directory when only its last part is missing (0700), and locks it.
 *
 * @param path  "": as above
 * @return 0; -ENOENT, -ENOTDIR, -EACCES, -EROFS, -EBUSY another daemon has it, -ENAMETOOLONG,
 *         -ENOMEM: err has the message
 */
int zsd_datadir_open(struct zsd_datadir **ret, const char *path, struct zb_err *err);
/** 0; or -EKEYREJECTED, with advice in err: it belongs to a user other than root and ours, or
 * others may write to it. These users could put links and files of their own there. */
int zsd_datadir_trusted(const struct zsd_datadir *d, struct zb_err *err);
/** 0: data file and catalog are there; -ENOENT: neither is, -EBADMSG: one is missing. */
int zsd_datadir_holds(const struct zsd_datadir *d, struct zb_err *err);
/** Its contents are no longer needed: closing it removes the data file and the catalog. */
void zsd_datadir_forget(struct zsd_datadir *d);
/** Removes a temporary one, and unlocks. NULL is fine. */
void zsd_datadir_close(struct zsd_datadir *d);

const char *zsd_datadir_path(const struct zsd_datadir *d);
/** The data file's path. */
const char *zsd_datadir_file(const struct zsd_datadir *d);
/** The catalog's path; NULL for a temporary directory: nothing in it survives. */
const char *zsd_datadir_catalog(const struct zsd_datadir *d);
/** The path of the catalog's copy. */
const char *zsd_datadir_copy(const struct zsd_datadir *d);
/** The data file is open: a temporary one loses its name. */
void zsd_datadir_opened(struct zsd_datadir *d);

/** The default size of the data file: that of an existing one; else 4 GiB or half of the file
 * system's free space, whichever is less, as a multiple of 4 KiB; may be 0. */
uint64_t zsd_datadir_room(const struct zsd_datadir *d);

#endif
