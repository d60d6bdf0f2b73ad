/*
 * top.h - zctl top, between its files.
 *
 *     top.c    looks, waits, looks again; a terminal's screen, or lines
 *     view.c   two looks make a view: rates, shares, mean numbers
 *     why.c    a view makes a verdict: what bounds the node
 *     print.c  a view as tables, or as JSON
 *     screen.c     the terminal
 *
 * Shares are parts of 1; negative where there is nothing to divide by.
 */
#ifndef ZCTL_TOP_H
#define ZCTL_TOP_H

#include "client/zctl/base/zctl.h"

extern const struct zctl_cmd zctl_top;

/** One look. */
struct top_sample {
    struct zc_top node;
    struct zc_top_job *jobs; /* by id */
    size_t njobs;
};

struct top_path {
    uint32_t path;
    uint64_t read_bytes_s, written_bytes_s;                   /* now */
    uint64_t measured_read_bytes_s, measured_written_bytes_s; /* what there is */
    double read_share, written_share;                         /* of what was measured */
    double load;                                              /* their sum, at most 1 */
    double busy;       /* of the time, there was a transfer */
    double queue;      /* transfers, the mean number */
    double latency_us; /* of one, with its time in line */
    uint64_t depth, failed;
};

struct top_job {
    char name[ZC_NAME_MAX + 1], state[16];
    uint32_t uid, world, attached;
    uint64_t iterations, applied;
    double steps_s;
    uint64_t host_bytes, nvme_bytes;
    uint64_t nvme_read_bytes_s, nvme_written_bytes_s, fetched_bytes_s, pushed_bytes_s;
    double fetches_s, pushes_s, pages_s;
    double hit_ratio;                                /* of shards that were fetched */
    double in_buffer, in_read, in_compute, in_write; /* page operations, the mean number */
    double in_gpu;
    double page_ms, compute_ms; /* of one page operation; of it, computing */
    double drive_only;          /* of the time: nothing to compute or step, pages on their way */
    double asking;              /* of the time: a rank waits for an answer */
    double waits[ZC_WAITS];     /* of the time: somebody waits for it */
    uint32_t late, late_ranks, late_rank; /* as in zc_top_job */
    uint64_t late_pid, late_ms;
};

/** What a job's requests wait for, where any do or did. */
struct top_stall {
    char job[ZC_NAME_MAX + 1], cause[16];
    uint64_t now;   /* requests */
    double share;   /* of the time, somebody waited */
    double seconds; /* of this interval, of all requests */
    double total_s; /* since the job is in memory */
};

struct top_view {
    double interval_s;
    uint64_t uptime_ms;
    uint32_t clients, threads, buffers;
    uint32_t gpu_threads;  /* 0: there is no GPU tier */
    double computing, gpu; /* share of the threads, and of the GPU's */
    double compute_line;   /* tasks that wait for one, the mean number */
    double gpu_line;       /* pages, likewise */
    double buffers_used;   /* the mean number */
    uint32_t ntiers, npaths;
    struct zc_tier_row tiers[ZC_TOP_TIERS_MAX];
    struct top_path paths[ZC_TOP_PATHS_MAX];
    struct zc_top_oldest oldest;
    struct top_job *jobs;
    size_t njobs;
    struct top_stall *stalls;
    size_t nstalls;
};

/** What each cause is called: PROTOCOL.md, top. */
extern const char *const top_wait_names[ZC_WAITS];

/** 0 or -ENOMEM. top_view_done() takes zeros, too. */
int top_view_make(const struct top_sample *from, const struct top_sample *to, struct top_view *ret);
void top_view_done(struct top_view *v);

enum top_bound {
    TOP_IDLE,
    TOP_COMPUTE,
    TOP_GPU, /* of the GPU tier */
    TOP_NVME_READ,
    TOP_NVME_WRITE,
    TOP_NVME,         /* both directions */
    TOP_NVME_LATENCY, /* busy all the time, far from what was measured */
    TOP_BUFFERS,
    TOP_RANK, /* one that does not come, or does not release */
    TOP_COMMIT,
    TOP_RING,
    TOP_RANKS, /* that wait for each other, step by step */
    TOP_TRAINERS,
    TOP_MIXED,
};

struct top_verdict {
    enum top_bound bound;
    char text[320]; /* the message */
};

/** For programs: "nvme-write". */
const char *top_bound_name(enum top_bound bound);
/** A pure function. */
void top_why(const struct top_view *v, struct top_verdict *ret);

/** Tables. 0 or -ENOMEM. */
int top_table(FILE *out, const struct top_view *v);
/** One object, on one line. 0, -ENOMEM or -EIO. */
int top_json(FILE *out, const struct top_view *v);

/* ---- screen.c: one in a process */

/** Takes the terminal that `out` is: another screen, no echo, no line to be typed. 0, or -errno:
 *  nothing was changed. */
int screen_open(FILE *out, struct zb_err *err);
/** Draws lines in place, cut to the terminal's size. 0 or -EIO. */
int screen_draw(const char *text);
/** What was there before comes back. Fine without a screen. */
void screen_close(void);

enum screen_event { SCREEN_TIME, SCREEN_SIZE, SCREEN_END };
/** Waits until a time of zb_now_ns(): what came first. Without a screen that is the time. */
enum screen_event screen_wait(uint64_t until_ns);

#endif
