/*
 * disk.h - the drives as the core uses them: transfers, the queue of each data file, page buffers,
 * places.
 *
 * Loop thread only.
 */
#ifndef ZSD_DISK_H
#define ZSD_DISK_H

#include "base/space.h"
#include "daemon/run/turn.h"

struct zsd_extents;

/** One transfer of a page, at its off_bytes (ZN_AT). A flush or a commit slot goes to every data
 * file, one after the other, until one fails. It waits here when the engine is full. */
struct zsd_pio {
    struct zn_io io;         /* op, buf, len, off and urgent are the caller's; done is ours */
    struct zsd_payer *payer; /* the job; NULL: the house */
    struct zsd_core *core;
    unsigned path;
    uint64_t since_ns; /* when the engine accepted it */
    void (*done)(struct zsd_pio *pio, int rc);
    struct zsd_turn turn;
};

/** A request for a page buffer: waits in the queue by payer and bytes. The caller sets the first
 * three fields and zeroes the rest. It must not move while it waits. */
struct zsd_claim {
    struct zsd_payer *payer; /* NULL: the house */
    uint64_t bytes;          /* to read and write in the buffer */
    struct zsd_work *work;   /* deferred when the buffer has been given */
    bool waits;              /* in the queue */
    void *buffer;            /* assigned, and not fetched yet */
    struct zsd_turn turn;
};

/** The best throughput of a drive over one second, in each direction: an estimate of its speed. */
struct zsd_second {
    uint64_t since_ns, read_bytes, written_bytes; /* at the start of the current second */
    uint64_t best_read, best_written;             /* bytes per second */
};

/** Why a data file is drained: drives.h. */
enum zsd_drain {
    ZSD_DRAIN_NONE, /* it is in use */
    ZSD_DRAIN_ASKED,
    ZSD_DRAIN_FAILED,
    ZSD_DRAIN_SLOW,
    ZSD_DRAIN_STALLED
};

/** What is known of a drive from its traffic: drives.h. */
struct zsd_drive {
    uint64_t since_ns, bytes, transfers, area_ns, busy_ns; /* at the start of the window */
    uint64_t rate;              /* bytes per second, of loaded windows; 0: there was none */
    uint64_t seen;              /* of the last window, loaded or not */
    uint64_t slow_ns;           /* since when it is far slower than its peers; 0: it is not */
    uint64_t moved_ns;          /* when a transfer ended, or the first one began */
    uint64_t stalled_ns;        /* moved_ns of the stall that was reported last */
    uint64_t errors, errors_ns; /* transfers that failed in the hour that began then */
    uint64_t held_bytes;        /* places that have a holder */
    enum zsd_drain drain;
    bool emptied;  /* logged that it holds nothing any more */
    char why[160]; /* with numbers, for people; "": on request */
};

/** Ranges that hold nothing any more, as the drive is told: discard.h. At most one is being discarded,
 * and is out of the map meanwhile. */
struct zsd_discard {
    struct zn_io io;
    struct zsd_core *core;
    unsigned path;
    uint64_t first, units; /* the range; 0 units: there is none */
    bool runs;             /* the engine has it */
    bool lent;             /* it is still in the map, because its bytes were needed */
    bool holed;            /* it has no space in the file */
    bool given;            /* there may be stale units that this pass has not seen */
    bool seen;             /* a pass has found no more */
    bool refused;          /* the drive or file system does not discard */
    uint64_t next;         /* unit at which the pass continues */
    uint64_t since_ns, rests_until_ns;
    uint64_t discarded_bytes;
    struct zb_list waits; /* writes to the range (struct zsd_pio), if it is lent */
};

/** The queue of a data file: transfers that wait for room in the engine, and writes delayed by a
 * hold, which were charged already. */
struct zsd_line {
    struct zsd_fair waiting;
    struct zb_list held;
    unsigned depth;          /* transfers in the queue and in flight */
    struct zsd_gauge depths; /* of depth; updated once per turn */
    struct zsd_second second;
    struct zsd_drive drive;
    struct zsd_discard discard;
    uint64_t spent_ns[ZSD_TIME_FLUSH + 1]; /* total time of reads, writes and flushes */
    uint64_t failed_ns;                    /* when a transfer failed last; 0: none has */
    int failed_rc;                         /* its error */
    uint64_t logged_ns;                    /* when a failure was logged last; 0: none was */
};

/** A pause of page writes while a change of the catalog is flushed: pio.c has the model. */
struct zsd_hold {
    bool on;
    uint64_t since_ns, rests_until_ns;
    struct zsd_timed timed;
};

struct zsd_disk {
    struct zsd_core *core;
    uint64_t generation;                 /* of the newest page written; never repeats */
    struct zb_space *maps[ZN_PATHS_MAX]; /* of each data file, in ZB_PAGE_ALIGN units: paths.h */
    uint64_t lost_bytes;                 /* of pages whose data files are absent */
    struct zb_space *extents;            /* the first one; NULL: no NVMe tier */
    struct zsd_extents *places;          /* of pages (extents.c); NULL: no NVMe tier */
    struct zb_list leaving;              /* struct zsd_leaving: leaving.h */
    struct zsd_work leaving_work;
    struct zsd_line lines[ZN_PATHS_MAX]; /* of each data file */
    unsigned drained;                    /* data files that are drained, as bits: drives.h */
    uint64_t drains;                     /* how often that has changed */
    uint64_t slow_ns, window_ns; /* ZSD_DRIVE_SLOW_NS, ZSD_DRIVE_WINDOW_NS; shorter in tests */
    struct zsd_hold hold;
    uint64_t discard_least, discard_most; /* units of a discard: discard.h; smaller in tests */

    uint8_t *buffers; /* page buffers: streamed pages pass through them */
    uint64_t buffer_bytes;
    uint32_t nbuffers, nbuffers_free;
    void **buffers_free;
    struct zsd_fair buffer_line;   /* zsd_claim; empty while a buffer is free */
    struct zsd_gauge buffers_used; /* updated once per turn */
};

/** Begins with no maps and no buffers. */
void zsd_disk_init(struct zsd_disk *disk, struct zsd_core *core);

/* ---- pio.c */

/** The next page written has a generation above this one. */
void zsd_generation_from(struct zsd_core *core, uint64_t generation);
/** The generation of a page that is about to be written: no other page ever has it. */
uint64_t zsd_generation_next(struct zsd_core *core);
/** done runs later, never from inside. */
void zsd_pio_start(struct zsd_core *core, struct zsd_pio *pio);
/** Hands the transfers submitted in this turn to the engines. */
void zsd_pio_kick(struct zsd_core *core);

/** Delays new page writes until zsd_hold_end(), for 100 ms at most. Does nothing if the last hold
 * ended a short time ago. zsd_hold_end() without a hold is fine. */
void zsd_hold_begin(struct zsd_core *core);
void zsd_hold_end(struct zsd_core *core);

/** Resumes the writes that waited for the end of a discard. */
void zsd_pio_resume(struct zsd_core *core, unsigned path);

/* ---- buffers.c */

/** Makes the page buffers, from the host tier's budget: 0, -ENOSPC with the numbers, -ENOMEM. */
int zsd_buffers_make(struct zsd_core *core, struct zb_err *err);
/** Frees the buffers, if there are any. */
void zsd_buffers_end(struct zsd_core *core);
/** A page buffer, or NULL. Then claim->work is deferred when the claim gets one, and the next call
 * takes it; calls in between change nothing. A waiting claim cannot be withdrawn. */
void *zsd_buffer_get(struct zsd_core *core, struct zsd_claim *claim);
/** Returns a buffer; the next claim gets it. */
void zsd_buffer_put(struct zsd_core *core, void *buffer);
/** The smallest host_bytes with our options that leaves `bytes` in addition to the page buffers. */
uint64_t zsd_host_least(const struct zsd_core *core, uint64_t bytes);

#endif
