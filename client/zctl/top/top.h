/*
 * top.h - zctl top: the interface between its files.
 *
 *     top.c     reads samples at intervals; output as a screen, lines or JSON
 *     view.c    computes a view from two samples: rates, shares, means
 *     why.c     computes a verdict from a view: what limits the node
 *     print.c   prints a view as tables, or as JSON
 *     screen.c  the terminal
 *
 * Shares are fractions of 1. A negative one is undefined (division by 0).
 */
#ifndef ZCTL_TOP_H
#define ZCTL_TOP_H

#include "client/zctl/base/zctl.h"

extern const struct zctl_cmd zctl_top;

/** One reading of the daemon's counters. */
struct top_sample {
    struct zc_top node;
    struct zc_top_job *jobs; /* by id */
    size_t njobs;
    struct zctl_device devices[ZC_TOP_PATHS_MAX]; /* of the data files; unknown: all zero */
};

struct top_path {
    uint32_t path;
    uint64_t read_bytes_s, written_bytes_s;                   /* in this interval */
    uint64_t measured_read_bytes_s, measured_written_bytes_s; /* capability of the drive */
    double read_share, written_share;                         /* of the measured rates */
    double load;                                              /* their sum, at most 1 */
    double busy;       /* share of the time with a transfer in the queue or in progress */
    double queue;      /* mean number of transfers queued or in progress */
    double latency_us; /* of one transfer, including the queue */
    uint64_t depth, failed;
    double
        device_over_ours; /* bytes that the device wrote in this interval, over ours; -1: unknown */
    double wear;          /* part of its life that is used; -1: unknown */
};

struct top_job {
    char name[ZC_NAME_MAX + 1], state[16];
    uint32_t uid, world, attached;
    uint64_t iterations, applied;
    double steps_s;
    uint64_t host_bytes, nvme_bytes;
    uint64_t nvme_read_bytes_s, nvme_written_bytes_s, fetched_bytes_s, pushed_bytes_s;
    double fetches_s, pushes_s, pages_s;
    double hit_ratio;                                /* of fetched shards */
    double in_buffer, in_read, in_compute, in_write; /* mean number of page operations */
    double in_gpu;
    double page_ms, compute_ms; /* of one page operation; the part spent computing */
    double drive_only;          /* share of the time in which pages are only read or written */
    double asking;              /* share of the time in which a rank waits for an answer */
    double waits[ZC_WAITS];     /* share of the time in which a request waits for this */
    uint32_t late, late_ranks, late_rank; /* as in zc_top_job */
    uint64_t late_pid, late_ms;
};

/** A cause that a job's requests wait for, or waited for in this interval. */
struct top_stall {
    char job[ZC_NAME_MAX + 1], cause[16];
    uint64_t now;   /* number of requests that wait for it */
    double share;   /* share of the time in which a request waited */
    double seconds; /* sum over all requests, in this interval */
    double total_s; /* the same since the job came into memory */
};

struct top_view {
    double interval_s;
    uint64_t uptime_ms;
    uint32_t clients, threads, buffers;
    uint32_t gpu_threads;  /* 0: there is no GPU tier */
    double computing, gpu; /* busy share of compute threads, and of GPU threads */
    double compute_line;   /* mean number of tasks that wait for a compute thread */
    double gpu_line;       /* mean number of pages that wait for a GPU thread */
    double buffers_used;   /* mean number */
    uint32_t ntiers, npaths;
    struct zc_tier_row tiers[ZC_TOP_TIERS_MAX];
    struct top_path paths[ZC_TOP_PATHS_MAX];
    struct zc_top_oldest oldest;
    struct top_job *jobs;
    size_t njobs;
    struct top_stall *stalls;
    size_t nstalls;
};

/** The names of the causes: PROTOCOL.md, top. */
extern const char *const top_wait_names[ZC_WAITS];

/** 0 or -ENOMEM. top_view_done() accepts a zeroed view, too. */
int top_view_make(const struct top_sample *from, const struct top_sample *to, struct top_view *ret);
void top_view_done(struct top_view *v);

enum top_bound {
    TOP_IDLE,
    TOP_COMPUTE,
    TOP_GPU, /* of the GPU tier */
    TOP_NVME_READ,
    TOP_NVME_WRITE,
    TOP_NVME,         /* both directions */
    TOP_NVME_LATENCY, /* busy all the time, but far below the measured rates */
    TOP_BUFFERS,
    TOP_RANK, /* a rank that does not ask for the step, or does not release */
    TOP_COMMIT,
    TOP_RING,
    TOP_RANKS, /* ranks that wait for each other, step by step */
    TOP_TRAINERS,
    TOP_MIXED,
};

struct top_verdict {
    enum top_bound bound;
    char text[320]; /* the message */
};

/** The name for programs, as "nvme-write". */
const char *top_bound_name(enum top_bound bound);
/** Computes the verdict; a pure function. */
void top_why(const struct top_view *v, struct top_verdict *ret);

/** Prints tables. 0 or -ENOMEM. */
int top_table(FILE *out, const struct top_view *v);
/** Prints one JSON object, on one line. 0, -ENOMEM or -EIO. */
int top_json(FILE *out, const struct top_view *v);

/* ---- screen.c: one screen per process */

/** Takes over the terminal `out`: alternate screen, no echo, no line editing. 0, or -errno: nothing
 *  was changed. */
int screen_open(FILE *out, struct zb_err *err);
/** Draws lines in place, cut to the terminal's size. 0 or -EIO. */
int screen_draw(const char *text);
/** Restores the terminal. Does nothing without a screen. */
void screen_close(void);

enum screen_event { SCREEN_TIME, SCREEN_SIZE, SCREEN_END };
/** Waits until a time of zb_now_ns(), or an event. Returns what came first; without a screen always
 *  SCREEN_TIME. */
enum screen_event screen_wait(uint64_t until_ns);

#endif
