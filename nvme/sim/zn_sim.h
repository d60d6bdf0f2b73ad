/*
 * zn_sim.h - the simulated device: it fails as drives and file systems may, on request, and always
 * in the same way for the same seed. It is the third implementation of the engine's table, and the
 * device under SQLite (a VFS of its own), so that one power cut hits both data and catalog.
 *
 * MODEL. A device holds files by name. A file has two contents: what a read sees now, and what is
 * durable. A write goes to the first, and into the device's volatile cache: a list of writes in
 * order. A flush of a file makes all of its earlier writes durable. Everything that reaches the
 * device (read, write, flush, truncate, create, delete; by an engine or by SQLite) is an operation
 * and has the next number, from 0, over all files: that number is what faults and power cuts name.
 * Sizes, creation and deletion of files become durable with a flush of that file (its directory
 * entry included), or by luck; creations and deletions also when SQLite flushes the folder.
 *
 * A POWER CUT at operation n, variant v: operation n and all later ones fail with -EIO ("the
 * device is dead"). zn_sim_restart() then decides, by (seed, n, v) alone, what became of each
 * write that was not flushed: kept, lost, or torn at 512-byte sectors, in any order among
 * themselves. Variant 0 loses all of them, variant 1 keeps all of them, 2 keeps a prefix in order;
 * the others choose freely. The write that was operation n itself may be torn too.
 *
 * FAULTS are rules: from operation n on, once or permanently, of one kind. ENOSPC and EDQUOT
 * hit writes, truncates that grow, and discards and allocations, which leave a hole; a short transfer moves a part of the bytes, a multiple of 512; a failed
 * flush returns -EIO and drops the unflushed writes of that file from the cache at random, as a
 * kernel does. A lost write reports success and never happens; a misdirected one goes to another 4
 * KiB-aligned place of the same file; a stale one is undone at the next restart although a flush
 * followed; a bit flip changes one bit of what is written or read.
 *
 * A DISCARD (ZN_DISCARD) replaces the bytes of the range, as a write of bytes that nobody wrote.
 *
 * TIME. Requests of an engine happen, get their numbers and finish inside zn_reap(), in an order
 * drawn from the seed, one for each zn_reap() or more (zn_sim_options.batch), immediately in real
 * time. So a flush that did not wait for a write may come before it. In the fixed-rate mode they
 * finish by the clock instead: the device moves rate_bytes bytes a second in all, one request
 * after the other, and each takes at least latency_ns; nothing else changes. This mode is for
 * measuring schedulers, where real drives are too noisy: the times are computed, so the rate is
 * exact (within 0.1 %, measured) while the requests in flight cover the 0.1 ms or so that a
 * wake-up is late. discard: contents are not kept at all (what an engine reads into stays as it
 * is, all other reads give zeros), for rates that memory copies would disturb.
 *
 * THREADS. A device, its engines and its VFS may be used from several threads (it has one lock). A
 * run is exactly repeatable when one thread at a time uses it.
 */
#ifndef ZN_SIM_H
#define ZN_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "nvme/zn.h"

struct zn_sim;

struct zn_sim_options {
    uint64_t seed;
    unsigned batch; /* maximum of completions of one zn_reap(); 0: 1 + a number from the seed */
    uint64_t rate_bytes; /* fixed-rate mode: bytes a second; 0: off */
    uint64_t latency_ns; /* of it */
    bool discard;
    bool record; /* keep all operations, for zn_sim_cut_at() */
};

int zn_sim_new(struct zn_sim **ret, const struct zn_sim_options *options, struct zb_err *err);
/** Engines on it are closed first. NULL is fine. */
void zn_sim_free(struct zn_sim *s);

/** An engine on a file of the device, by the rules of zn_open(): created, formatted, checked. */
int zn_sim_engine(struct zn_engine **ret, struct zn_sim *s, const char *name, uint64_t size_bytes,
                  unsigned depth, struct zb_err *err);

/** The same with an index (zn_options): for several data files on one device. */
int zn_sim_engine_at(struct zn_engine **ret, struct zn_sim *s, const char *name,
                     uint64_t size_bytes, unsigned index, struct zb_err *err);

/** Registers a VFS with SQLite on this device; *ret_name is what zn_catalog_options.vfs takes.
 * Lives until zn_sim_free(). Seeds SQLite's random numbers, of which a process has one sequence. */
int zn_sim_vfs(struct zn_sim *s, const char **ret_name, struct zb_err *err);

/** Operations so far. */
uint64_t zn_sim_ops(const struct zn_sim *s);

/* ---- faults */

enum zn_fault {
    ZN_FAULT_EIO,      /* the operation fails */
    ZN_FAULT_ENOSPC,   /* writes and growing truncates fail */
    ZN_FAULT_SHORT,    /* reads and writes move a part */
    ZN_FAULT_FLUSH,    /* flushes fail, and the cache forgets */
    ZN_FAULT_LOST,     /* writes are answered, and never happen */
    ZN_FAULT_MISPLACE, /* writes go elsewhere */
    ZN_FAULT_STALE,    /* writes vanish at the next restart, flushed or not */
    ZN_FAULT_FLIP,     /* one bit of a read or write */
    ZN_FAULT_DELAY,    /* the operation is the last of those in flight to finish */
    ZN_FAULT_EDQUOT,   /* the same, at a user's quota */
    ZN_FAULT_DEAD,     /* this and every later operation fail with -EIO */
    ZN_FAULTS
};
const char *zn_fault_name(enum zn_fault f);

/** From operation `op` on: the next operation that the kind applies to (or every one: forever). */
int zn_sim_fault(struct zn_sim *s, enum zn_fault fault, uint64_t op, bool forever);
void zn_sim_faults_clear(struct zn_sim *s);
/** How often a fault has struck. */
uint64_t zn_sim_struck(const struct zn_sim *s);
/** Bytes of files that were discarded and have no space: writes to them fail with -ENOSPC until
 * ZN_ALLOCATE, or a restart, after which the file is reserved again. */
uint64_t zn_sim_holes(const struct zn_sim *s);

/* ---- power */

/** The power fails at operation `op`. */
void zn_sim_cut(struct zn_sim *s, uint64_t op, uint32_t variant);
/** After every engine and database on it was closed: what was not flushed is decided, faults are
 * cleared, the device is alive again, the count of operations continues. Without a cut: as if the
 * power had failed now, or when ZN_FAULT_DEAD struck, with variant 0. 0; -ENOMEM: the device is
 * unusable. */
int zn_sim_restart(struct zn_sim *s);

/** Of a device with `record`: a new device, as a power cut at operation `op`, variant `variant`
 * would have left it, restarted. The recorded one is not changed. */
int zn_sim_cut_at(struct zn_sim **ret, const struct zn_sim *s, uint64_t op, uint32_t variant,
                  struct zb_err *err);
/** A copy of a device as it is (its durable and its cached contents), alive and without faults. */
int zn_sim_copy(struct zn_sim **ret, const struct zn_sim *s, struct zb_err *err);

/* ---- damage, for tests of corruption: changes contents directly */

/** A file's size, or -ENOENT. */
int64_t zn_sim_size(const struct zn_sim *s, const char *name);
/** Reads or overwrites bytes of a file; they are durable at once. -ENOENT, -ERANGE. */
int zn_sim_peek(const struct zn_sim *s, const char *name, uint64_t off, void *bytes, size_t len);
int zn_sim_poke(struct zn_sim *s, const char *name, uint64_t off, const void *bytes, size_t len);

#endif
