/*
 * config.h - the options of zshardd: the rows that the file, the command line, --help, the check
 * and the installed example are all made of.
 */
#ifndef ZSD_CONFIG_H
#define ZSD_CONFIG_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/opt.h"

#define ZSD_AUTO            UINT64_MAX /* of host_bytes and nvme_bytes: chosen at the start (startup.c) */

#define ZSD_PATHS_SEPARATOR ":"

/** What the daemon runs with. Sizes are bytes, times milliseconds. */
struct zsd_config {
    char socket[108];    /* "": the rule of proto/socket.h */
    char data[PATH_MAX]; /* data directory; "": the rule of datadir.h */
    uint64_t host_bytes; /* budget of the host tier */
    uint64_t nvme_bytes; /* size of the data file; 0: no NVMe tier */
    char paths[4096];    /* more data directories, with ZSD_PATHS_SEPARATOR between them */
    uint64_t more_bytes; /* of the data file in each; ZSD_AUTO: by the rule of datadir.h */
    uint64_t gpu_bytes;  /* budget of the GPU tier; 0: there is none */
    char gpu[64];        /* its device, as kernels/gpu.h names it */
    char io[16];         /* auto, uring, threads; fixed: no data file, but nvme/zn_fixed.h */
    uint32_t io_depth;   /* requests in flight on the data file */
    uint64_t fixed_rate; /* of io fixed: bytes a second */
    uint32_t fixed_latency_us;
    char cpus[256];       /* CPU list of the compute threads ("0-3,8"); "": all we may use */
    char numa[256];       /* off, auto, or nodes ("0-1"): of compute threads and memory */
    uint32_t threads;     /* compute threads; 0: one for each of cpus */
    uint32_t page_elems;  /* elements of a page, a multiple of 4096 */
    uint64_t ring_bytes;  /* buffers that streamed pages pass through; 0: chosen from host_bytes */
    uint32_t clients_max; /* connections */
    uint32_t jobs_max;
    uint32_t timeout_ms;   /* of requests that name none */
    char kernels[16];      /* auto, ref, avx2, avx512, neon */
    char socket_group[64]; /* group that may connect; "": the owner only */
    enum zb_log_level log_level;
};

/** No data file, but a device of a fixed rate. */
static inline bool zsd_fixed(const struct zsd_config *config)
{
    return strcmp(config->io, "fixed") == 0;
}

/** The rows, in the order of the struct. In the file their names have '_' for '-'. */
const struct zb_opt *zsd_options(void);

/**
 * Defaults, then the file (--config, else none), then the command line; of two on the command line
 * the last counts. Called once, before threads start.
 *
 * @return 0; -EINVAL, or what opening the file answered (-ENOENT, -EACCES ...): err has the
 *         message, with file and line where there is one
 *         1: --help or --version was asked for: *ret_text has what to print (a static buffer)
 *         2: --check-config, and everything is fine; 3: --fsck, likewise
 */
int zsd_config_load(struct zsd_config *config, int argc, char **argv, const char **ret_text,
                    struct zb_err *err);

/**
 * Reads a file of options over what *config has (config_file.c).
 *
 * @return 0; -EINVAL, -ENOMEM, or what opening it answered: err has the file, and the line where
 *         there is one
 */
int zsd_config_file(struct zsd_config *config, const char *path, struct zb_err *err);

#endif
