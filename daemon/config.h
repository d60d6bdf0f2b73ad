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

enum zsd_option_type {
    ZSD_TEXT,   /* char[], which must hold it */
    ZSD_LIST,   /* char[] likewise: texts with ZSD_PATHS_SEPARATOR between; a list in the file */
    ZSD_CHOICE, /* char[]: one of the words of `choices` */
    ZSD_COUNT,  /* uint32_t: decimal, no unit */
    ZSD_SIZE,   /* uint64_t: base/size.h; rounded down to 4096 */
    ZSD_LEVEL,  /* enum zb_log_level */
};

/** One option: `name` in the file, "--" and '-' for '_' on the command line. */
struct zsd_option {
    const char *name;
    enum zsd_option_type type;
    size_t offset, size; /* of the member of struct zsd_config */
    const char *arg;     /* what --help calls the value */
    const char *def;     /* the default, as the file would say it */
    uint64_t min, max, multiple;
    bool zero;      /* 0 is fine below min, and means something else */
    bool automatic; /* the word "auto" is fine, and means auto_value */
    uint64_t auto_value;
    const char *choices;                                /* words, with a blank between two */
    int (*check)(const char *text, struct zb_err *err); /* of a text that is not "" */
    const char *help;
};

/** The rows, in the order of the struct. */
const struct zsd_option *zsd_options(size_t *ret_count);

/**
 * Defaults, then the file (--config, else none), then the command line; of two on the command line
 * the last counts. Called once, before threads start.
 *
 * @return 0; -EINVAL, or what opening the file answered (-ENOENT, -EACCES ...): err has the
 *         sentence, with file and line where there is one
 *         1: --help or --version was asked for: *ret_text has what to print (a static buffer)
 *         2: --check-config, and everything is fine; 3: --fsck, likewise
 */
int zsd_config_load(struct zsd_config *config, int argc, char **argv, const char **ret_text,
                    struct zb_err *err);

#endif
