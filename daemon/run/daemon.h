/*
 * daemon.h - the daemon as one struct: data that its parts share.
 *
 * MODEL. One loop thread owns everything reached from here: jobs, shards, placement, connections,
 * requests. No other thread reads or changes it, so nothing is locked. Two things run elsewhere
 * and return through an eventfd: compute tasks (compute.h) and I/O (nvme/zn.h). They use only the
 * memory that their task names.
 *
 * Only net/ and loop*.c use libuv. So tests of the other rooms run them without a loop.
 */
#ifndef ZSD_DAEMON_H
#define ZSD_DAEMON_H

#include <stdint.h>

#include "base/util.h"
#include "daemon/run/settings.h"
#include "daemon/run/stats.h"
#include "daemon/run/turns.h"
#include "kernels/zk.h"
#include "nvme/zn.h"

struct zsd_compute;
struct zsd_core;
struct zsd_datadir;
struct zsd_gpu;
struct zsd_limits;
struct zsd_loop;
struct zsd_numa;
struct zsd_server;

/** One more data file. */
struct zsd_path {
    struct zn_engine *engine;
    struct zsd_datadir *datadir;
};

/** Bytes per second of a data file. */
struct zsd_rates {
    uint64_t read, written, mixed; /* mixed: as much read as written */
};

struct zsd {
    struct zsd_config config; /* as resolved at the start: no "auto" is left in it */
    uint8_t instance[16];     /* random; changes with every start */
    uint64_t started_ns;
    const struct zk_ops *kernels;
    struct zsd_numa *numa; /* NULL: off */
    struct zsd_compute *compute;
    struct zsd_gpu *gpu;                    /* NULL: no GPU tier */
    struct zsd_compute *gpu_threads;        /* its own pool; NULL: no GPU tier */
    struct zn_engine *engine;               /* of the first data file; NULL: no NVMe tier */
    uint64_t engine_base;                   /* first usable byte of a data file */
    struct zsd_path more[ZN_PATHS_MAX - 1]; /* the other data files: disk/paths.h */
    unsigned nmore;
    bool measures;                             /* measures the data files, when the store is open */
    struct zsd_rates path_rates[ZN_PATHS_MAX]; /* measured at the start; 0: not measured */
    const char *catalog_path;                  /* NULL: nothing survives the daemon */
    bool read_only;                            /* saved data is not changed: offline.c */
    const char *catalog_vfs;                   /* of SQLite; NULL: the system's */
    struct zsd_compute *catalog_thread;        /* one worker, the store's; NULL: no store */
    struct zsd_core *core;
    struct zsd_server *server;
    struct zsd_limits *limits; /* net/limits.h; NULL: no limits */
    uint32_t clients;          /* connections, counted by the server */
    uint32_t reqs; /* unanswered requests, also those of clients that have left; net/conn.c */
    struct zb_list unanswered; /* the same requests, oldest first; no list before the first one */
    struct zsd_datadir *datadir;
    struct zsd_loop *loop;
    struct zsd_stats stats;
    struct zsd_turns turns; /* lengths of the loop's turns */
};

#endif
