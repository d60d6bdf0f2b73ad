/*
 * reasons.h - the rules by which the daemon is healthy or degraded.
 *
 * MODEL. Facts are numbers and messages, which health.c collects. Each rule looks at some of them
 * and yields a reason: nothing, advice or an error. An error makes the daemon degraded;
 * advice never does. Facts that are all zero are those of a healthy daemon. Pure functions.
 *
 * A reason's id is part of the interface: programs and alerts compare it. docs/reference/health.md
 * has all of them.
 */
#ifndef ZSD_REASONS_H
#define ZSD_REASONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "nvme/zn.h"

/** An error of a drive lasts so long, then it is advice. */
#define ZSD_DRIVE_ERROR_NS UINT64_C(3600000000000)
/** Free space of the data directory's file system, in which the catalog grows. */
#define ZSD_FILESYSTEM_ERROR     (64 * ZB_MIB)
#define ZSD_FILESYSTEM_ADVICE    ZB_GIB
#define ZSD_HOST_LEAST           (256 * ZB_MIB) /* of available memory */
#define ZSD_DRIVE_STALL_NS       UINT64_C(10000000000)
#define ZSD_NVME_FULL_PERCENT    95u /* of the tier */
#define ZSD_FILES_ADVICE_PERCENT 80u /* of the limit of descriptors */
#define ZSD_FILES_ERROR_PERCENT  95u
#define ZSD_CLIENTS_FULL_PERCENT 90u /* of clients_max */

/** A data file. */
struct zsd_drive_facts {
    uint64_t failed, failed_ns;    /* number of failed transfers; when the last one failed */
    int failed_rc;                 /* its error */
    uint64_t waits_ns, held_bytes; /* as in zsd_drive_waits_ns(), struct zsd_drive */
    bool device_known;             /* by sysfs: the next one */
    uint64_t device_written;       /* bytes that its device has written since the machine started */
    bool drained, asked;           /* asked: on request */
    char state[40], drained_why[160];
    char path[256]; /* its directory */
    char why[160];  /* why a better I/O engine is not used; "": this is the best */
    char why_buffered[160], why_unregistered[160]; /* as in struct zn_info */
};

struct zsd_facts {
    uint64_t now_ns;
    struct zb_err poisoned, catalog_full;
    struct zb_err gpu_failed, gpu_unpinned; /* of the first GPU that has one */
    unsigned gpus, gpus_failed;             /* all GPUs; those that have failed */
    bool read_only;                         /* the store is open read-only */
    unsigned copies_failed;                 /* copies of the catalog; the first of them: */
    struct zb_err copy_why;
    char copy_path[256]; /* its directory */
    struct zsd_drive_facts drives[ZN_PATHS_MAX];
    unsigned ndrives;
    bool fixed;       /* the NVMe tier is memory */
    uint32_t without; /* the number of a data file whose drive is lost; 0: none is */

    /* corrupt pages: read since the start, when last; found by the newest complete scrub, and by
     * the one that runs */
    uint64_t corrupt, corrupt_ns;
    uint64_t scrub_began_ns, scrub_ended_ns; /* ended 0: no scrub was complete */
    uint64_t scrub_bad, scrub_now_bad;

    /* jobs whose last commit failed; the first that the client may see */
    uint32_t jobs_failing;
    char failing_job[80], failing_why[256]; /* "": it may see none */

    uint64_t host_left, host_bytes; /* memory available to the process; host_bytes 0: unknown */
    uint64_t filesystem_left;
    bool filesystem_known;
    uint64_t nvme_used, nvme_bytes;
    uint64_t files, files_max, files_wanted; /* descriptors: open, limit, wanted. 0: unknown */
    uint32_t clients, clients_max;
    uint64_t lines_dropped;
    bool ending;
};

enum zsd_reason_level { ZSD_REASON_NONE, ZSD_REASON_ADVICE, ZSD_REASON_ERROR };

#define ZSD_REASONS 23u

struct zsd_reason {
    const char *id, *fix; /* fix: what to do */
    enum zsd_reason_level level;
    char text[512]; /* "" at NONE */
};

/** Applies all rules, in a fixed order. Returns the number of errors: 0: the daemon is healthy. */
unsigned zsd_reasons_find(const struct zsd_facts *facts, struct zsd_reason ret[ZSD_REASONS]);

#endif
