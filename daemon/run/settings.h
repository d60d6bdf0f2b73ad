/*
 * settings.h - the settings of the daemon, from the configuration file and the command line
 * (daemon/config/config.h reads them).
 */
#ifndef ZSD_SETTINGS_H
#define ZSD_SETTINGS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/log.h"

#define ZSD_AUTO            UINT64_MAX /* host_bytes, nvme_bytes: chosen at the start (startup.c) */

#define ZSD_PATHS_SEPARATOR ":"
#define ZSD_GPUS_MAX        16u /* devices of the GPU tiers */

/** The settings. Sizes are bytes, times milliseconds. */
struct zsd_config {
    char socket[108];    /* "": the rule of proto/socket.h */
    char data[PATH_MAX]; /* data directory; "": the rule of disk/datadir.h */
    uint64_t host_bytes; /* budget of the host tier */
    uint64_t nvme_bytes; /* size of the data file; 0: no NVMe tier */
    char paths[4096];    /* more data directories, with ZSD_PATHS_SEPARATOR between them */
    uint64_t more_bytes; /* size of the data file in each; ZSD_AUTO: the rule of disk/datadir.h */
    char gpu_bytes[256]; /* budgets of GPUs: one for all, or a list; "0": there is no GPU tier */
    char gpu[1024];      /* its devices, a list: kernels/gpu.h */
    char io[16];         /* auto, uring, threads; fixed: memory as a drive (nvme/zn_fixed.h) */
    uint32_t io_depth;   /* requests in flight on the data file */
    uint64_t fixed_rate; /* of io fixed: bytes per second */
    uint32_t fixed_latency_us;
    char cpus[256];        /* CPU list of the compute threads ("0-3,8"); "": all we may use */
    char numa[256];        /* off, auto, or nodes ("0-1"): of compute threads and memory */
    uint32_t near_off;     /* bool: host memory is not placed near GPUs */
    uint32_t threads;      /* compute threads; 0: one for each of cpus */
    uint32_t page_elems;   /* elements of a page, a multiple of 4096 */
    uint64_t ring_bytes;   /* buffers that streamed pages pass through; 0: chosen from host_bytes */
    uint32_t drive_errors; /* failed transfers after which a drive is drained; 0: never */
    uint32_t drive_slow;   /* percent of its peers' speed below which it is drained; 0: never */
    uint32_t discard;      /* bool: free space is discarded: disk/discard.h */
    uint32_t drive_stall_s; /* seconds without progress after which it is drained; 0: never */
    uint32_t clients_max;   /* connections */
    uint32_t jobs_max;
    uint32_t user_clients_max; /* of one user; 0: three quarters of clients_max */
    uint32_t user_jobs_max;    /* of one user; 0: three quarters of jobs_max */
    uint32_t hello_ms;         /* deadline of a client's hello */
    uint32_t restart_wait_s;   /* how long an orderly end waits for ranks that attach again */
    uint32_t stop_timeout_s;   /* limit of an orderly end; 0: as long as operations finish */
    uint32_t timeout_ms;       /* deadline of requests that set none */
    uint32_t slow_request_ms;  /* a request that takes as long is logged; 0: none */
    char kernels[16];          /* auto, ref, avx2, avx512, neon */
    char socket_group[64];     /* group that may connect; "": the owner only */
    char admin_group[64];      /* group whose members are administrators; "": none */
    uint32_t root_is_user;     /* bool: root is no administrator */
    uint64_t user_host_bytes, user_nvme_bytes, user_gpu_bytes; /* of one user; 0: no limit */
    char quotas[4096]; /* limits of single users: daemon/run/quotas.h */
    enum zb_log_level log_level;
    enum zb_log_format log_format;
    struct {
        uint64_t bytes[ZSD_GPUS_MAX];
        unsigned n; /* 0: no GPU tier; 1: the same for each */
    } gpu_budgets;  /* from gpu_bytes: daemon/config/config.c */
    /* of the command line alone */
    uint32_t retire;        /* the data file whose pages are moved off, from 1; 0: none */
    uint32_t shrink;        /* the data file that is made shorter, from 1; 0: none */
    uint64_t shrink_bytes;  /* its new size */
    uint32_t without;       /* the data file that is lost, from 1; 0: none */
    bool read_only;         /* serves what is saved, and changes nothing */
    bool embedded;          /* a trainer started it: daemon/config/embedded.h */
    uint32_t ready_fd;      /* descriptor for its line */
    uint32_t linger_s;      /* seconds after the last client has left until it exits */
    uint32_t linger_kept_s; /* the same with a kept job in memory */
    /* how it was read: rows of zsd_options(), as bits */
    uint64_t in_file, on_line; /* given in the file; on the command line */
    const char *file;          /* NULL: none */
    int argc;                  /* the command line, for a reload */
    char **argv;
};

/** Whether a device of a fixed rate replaces the data file. */
static inline bool zsd_fixed(const struct zsd_config *config)
{
    return strcmp(config->io, "fixed") == 0;
}

/** The budget of a GPU, by its number in `gpu`. */
static inline uint64_t zsd_gpu_budget(const struct zsd_config *config, unsigned g)
{
    return config->gpu_budgets.n == 0
               ? 0
               : config->gpu_budgets.bytes[config->gpu_budgets.n > 1 ? g : 0];
}

#endif
