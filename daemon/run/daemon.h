/*
 * daemon.h - the daemon as one struct: data that its parts share.
 *
 * MODEL. The loop thread owns all data that can be reached from here: jobs, shards, placement,
 * connections, requests. No other thread reads or changes it, so nothing is locked. Only compute
 * tasks (compute.h) and I/O (nvme/zn.h) run elsewhere. They use only the memory that they name, and
 * report their end through an eventfd.
 *
 * Only net/ and loop*.c use libuv, so tests run the other rooms without a loop.
 */
#ifndef ZSD_DAEMON_H
#define ZSD_DAEMON_H

#include <stdint.h>

#include "base/util.h"
#include "daemon/os/near.h"
#include "daemon/run/histogram.h"
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
struct zsd_reload;
struct zsd_server;

/** One more data file. */
struct zsd_path {
    struct zn_engine *engine;
    struct zsd_datadir *datadir;
    const char *copy_path; /* of the catalog's copy; NULL: none is kept there */
    bool fresh;            /* made by this start, and not in use yet: zsd_paths_keep() */
};

/** Bytes per second of a data file. */
struct zsd_rates {
    uint64_t read, written, mixed; /* mixed: reads and writes in equal amounts */
};

struct zsd {
    struct zsd_config config;  /* the start replaces ZSD_AUTO in it with sizes */
    struct zsd_reload *reload; /* the settings as given: reload/reload.h */
    uint8_t instance[16];      /* random; changes with every start */
    uint64_t started_ns;
    const struct zk_ops *kernels;
    struct zsd_numa *numa; /* NULL: off */
    struct zsd_near near;  /* memory near GPUs */
    bool near_refused;     /* that was logged */
    struct zsd_compute *compute;
    struct zsd_gpu *gpus[ZSD_GPUS_MAX];     /* the devices of the GPU tiers: gpu_tier.h */
    unsigned ngpus;                         /* 0: no GPU tier */
    struct zn_engine *engine;               /* of the first data file; NULL: no NVMe tier */
    uint64_t engine_base;                   /* first usable byte of a data file */
    struct zsd_path more[ZN_PATHS_MAX - 1]; /* the other data files: disk/paths.h */
    unsigned nmore;
    bool measures;                             /* measure the data files when the store opens */
    struct zsd_rates path_rates[ZN_PATHS_MAX]; /* measured at the start; 0: not measured */
    uint64_t
        path_device_bytes[ZN_PATHS_MAX]; /* 1 + written by the device at the start; 0: unknown */
    int path_nodes[ZN_PATHS_MAX];        /* NUMA nodes of the drives, from 1; 0: unknown */
    const char *catalog_path;            /* NULL: nothing survives the daemon */
    bool read_only;          /* saved data must not be changed: offline.c, --read-only */
    const char *catalog_vfs; /* of SQLite; NULL: the system's */
    struct zsd_compute
        *catalog_thread; /* the store's pool, a worker for each data file; NULL: no store */
    struct zsd_core *core;
    struct zsd_server *server;
    gid_t admin_gid; /* of admin_group, if has_admin_gid */
    bool has_admin_gid;
    struct zsd_limits *limits; /* net/limits.h; NULL: no limits */
    uint32_t clients;          /* connections, counted by the server */
    uint32_t reqs; /* unanswered requests, also of clients that have left; net/answer.c */
    struct zb_list unanswered; /* the same requests, oldest first; zero before the first one */
    struct zsd_datadir *datadir;
    struct zsd_loop *loop;
    bool restart; /* an administrator asks for a restart: the loop begins the end */
    struct zsd_stats stats;
    struct zsd_turns turns; /* lengths of the loop's turns */
    struct zsd_histogram times[ZSD_TIMES];
    uint64_t corrupt_ns;   /* when a corrupt page was read last; 0: never */
    uint64_t files_wanted; /* descriptors that clients_max may need: startup.c; 0: not known */
};

/** Counts a page whose bytes on NVMe are not those that were written. */
static inline void zsd_page_corrupt(struct zsd *daemon)
{
    daemon->stats.pages_corrupt++;
    daemon->corrupt_ns = zb_now_ns();
}

#endif
