/*
 * paths.h - the data files, one for each path: selection, speed, free space.
 *
 * MODEL. A place of a page is ZN_AT(path, offset from engine_base). The path's index is in the
 * superblock of its file: 0 is the data directory's, 1 and up are those of `paths`, in any order.
 * People count from 1. An index that no file has is absent: it has no bytes. New pages are spread
 * by measured speed (drives.h): a path that is twice as fast gets twice as many bytes, as long as it
 * has room. A drained path gets none.
 *
 * Loop thread only.
 */
#ifndef ZSD_PATHS_H
#define ZSD_PATHS_H

#include "daemon/disk/disk.h"

static inline unsigned zsd_paths(const struct zsd *daemon)
{
    return daemon->engine ? 1 + daemon->nmore : 0;
}

static inline struct zn_engine *zsd_path_engine(const struct zsd *daemon, unsigned path)
{
    return path == 0 ? daemon->engine : daemon->more[path - 1].engine;
}

/** The directory of a data file, for people; "": it has none. */
const char *zsd_path_folder(const struct zsd *daemon, unsigned path);

/** Logs every fallback of an engine that was opened. */
void zsd_path_log(const struct zn_info *info, const char *path);

/** Before the first data file is opened, which would create it: 0; -ENOMEDIUM: it is not there, and
 * those of `paths` belong to a store. */
int zsd_paths_first_missing(const struct zsd *daemon, struct zb_err *err);
/** Whether the data file is absent, or so new that nothing was ever committed with it: then what a
 * catalog names there is elsewhere. */
bool zsd_path_missing(const struct zsd *daemon, unsigned path);
/** Whether a place is on an absent data file. */
static inline bool zsd_place_lost(const struct zsd *daemon, uint64_t at)
{
    return ZN_AT_PATH(at) >= zsd_paths(daemon) ||
           zn_is_absent(zsd_path_engine(daemon, ZN_AT_PATH(at)));
}

/** Opens the data files of `paths`, when the first one is open. Blocks: at the start only. A
 * failure leaves what is open to zsd_paths_close(). */
int zsd_paths_open(struct zsd *daemon, struct zb_err *err);
/** Opens directories and data files of a store as they are, the first one too; read_only: changes
 * nothing. `what`: the option that asks for it. The caller closes daemon->datadir and engine, and
 * zsd_paths_close(), also after a failure. 0; -EINVAL: no --data; or a code of zsd_datadir_open(),
 * zsd_datadir_trusted(), zsd_datadir_holds(), zn_open(). */
int zsd_paths_open_found(struct zsd *daemon, const char *what, bool read_only, struct zb_err *err);
/** Call when the store uses the data files. Before that, zsd_paths_close() removes those that this
 * start has made: so a start that fails leaves nothing in the directory of a drive that is not
 * mounted. */
void zsd_paths_keep(struct zsd *daemon);
void zsd_paths_close(struct zsd *daemon);

/** Measures the speed of all data files: fills daemon->path_rates. It writes only to ranges that
 * are free in the map, so the places of saved data must be in the map already. Blocks: at the start
 * only. Returns 0; -ENOMEM; with several files, the error of one of them. */
int zsd_paths_measure(struct zsd_core *core, struct zb_err *err);

/** As zn_register() and zn_unregister(), on all data files. */
void zsd_paths_register(const struct zsd *daemon, void *base, uint64_t len_bytes);
void zsd_paths_unregister(const struct zsd *daemon, void *base);

/** The newest commit slot of each data file, for zn_catalog_open(). Files other than the first that
 * have none were added later, and are left out; so is the first if `without` says that it is lost.
 * 0; -EBADMSG, -EOPNOTSUPP; -ENOMEDIUM: the first is new, and the others are not. */
int zsd_paths_slots(const struct zsd *daemon, struct zn_slot slots[ZN_PATHS_MAX], unsigned *ret_n,
                    struct zb_err *err);

/* ---- the map: which bytes of each data file are taken */

/** Makes core->disk->maps of all data files. 0 or -ENOMEM; zsd_map_done() also frees a partial
 * result. */
int zsd_map_init(struct zsd_core *core, struct zb_err *err);
void zsd_map_done(struct zsd_core *core);

/** Takes a free range, on the path whose turn it is; ZB_NO_PLACE: no gap is large enough. */
uint64_t zsd_map_take(struct zsd_core *core, uint64_t bytes);
/** The same on one of the paths in the set `paths` (bits) that are not drained. */
uint64_t zsd_map_take_on(struct zsd_core *core, uint64_t bytes, unsigned paths);
/** Takes n such ranges, on the same paths as if each were taken in turn: ret[0..n). Returns how many
 * it took: fewer if no gap is left. */
uint64_t zsd_map_take_many(struct zsd_core *core, uint64_t bytes, uint64_t n, uint64_t *ret);
/** Takes that range, also in the file that `without` says is lost: then it is only counted. 0; -EBUSY a part of it is taken; -ERANGE there is no such range. */
int zsd_map_take_at(struct zsd_core *core, uint64_t at, uint64_t bytes);
void zsd_map_give(struct zsd_core *core, uint64_t at, uint64_t bytes);
/** Gives n ranges of `bytes` back. Faster than one by one if neighbours are close in at[]. */
void zsd_map_give_many(struct zsd_core *core, uint64_t bytes, uint64_t n, const uint64_t *at);

/** Takes a range of a data file that is free and not discarded, for discard.c: struct
 * zsd_discard.first and units. False: the pass has come to no such range. */
bool zsd_map_take_stale(struct zsd_core *core, unsigned path, const struct zb_stale *want);
/** Gives the range back, as one that needs no discard. Does nothing if it is lent. */
void zsd_map_give_discarded(struct zsd_core *core, unsigned path);

/** Takes all that is free on a data file from an offset on: nothing new is placed there. */
void zsd_map_close(struct zsd_core *core, unsigned path, uint64_t from);
/** Of data files that are not drained, with what is being discarded. */
uint64_t zsd_map_free_bytes(const struct zsd_core *core);
/** Free bytes of the others: nothing new is placed there. */
uint64_t zsd_map_drained_bytes(const struct zsd_core *core);
/** Of data files that are not drained, and what is taken on the others: the NVMe tier's budget. */
uint64_t zsd_map_total_bytes(const struct zsd_core *core);
/** Weight of a path when pages are spread: its measured speed, but at least a 16th of the fastest
 * one's; 0: it is drained. */
uint64_t zsd_path_weight(const struct zsd_core *core, unsigned path);
/** Bytes of a data file that pages may take. */
uint64_t zsd_path_bytes(const struct zsd_core *core, unsigned path);
/** Known speed of a data file: as measured at the start, or its best second since. */
struct zsd_rates zsd_path_best(const struct zsd_core *core, unsigned path);

#endif
