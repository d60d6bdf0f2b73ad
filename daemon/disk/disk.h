/*
 * disk.h - the drives as the core uses them: transfers, the lines before each data file, page
 * buffers, places.
 *
 * Loop thread only.
 */
#ifndef ZSD_DISK_H
#define ZSD_DISK_H

#include "base/space.h"
#include "daemon/run/turn.h"

struct zsd_extents;

/** One transfer of a page, to where its off_bytes says (ZN_AT); a flush or a commit slot goes to
 * every data file, one after the other, until one fails. Waits here when the engine is full. */
struct zsd_pio {
    struct zn_io io;         /* op, buf, len, off and urgent are the caller's; done is ours */
    struct zsd_payer *payer; /* whose it is; NULL: the house's */
    struct zsd_core *core;
    unsigned path;
    void (*done)(struct zsd_pio *pio, int rc);
    struct zsd_turn turn;
};

/** A page buffer that somebody wants: waits in line, as payer and bytes say. Zeroed but for the
 * first three, and not moved while it waits. */
struct zsd_claim {
    struct zsd_payer *payer; /* NULL: the house */
    uint64_t bytes;          /* that the buffer is wanted for: read and written */
    struct zsd_work *work;   /* deferred when the buffer has been given */
    bool waits;              /* in line */
    void *buffer;            /* given, and not taken yet */
    struct zsd_turn turn;
};

/** What the best second of a drive was, in each direction: nobody measures better than that. */
struct zsd_second {
    uint64_t since_ns, read_bytes, written_bytes; /* where the present one began */
    uint64_t best_read, best_written;             /* bytes a second */
};

/** zsd_pio that an engine had no place for; and writes that a hold keeps, which are paid for. */
struct zsd_line {
    struct zsd_fair waiting;
    struct zb_list held;
    unsigned depth;           /* transfers that are not done: those in line, and those in flight */
    struct zsd_gauge depths;  /* the same over the time; seen once a turn */
    struct zsd_second second; /* the best one */
};

/** Page writes wait for a change of the catalog: pio.c has the model. */
struct zsd_hold {
    bool on;
    uint64_t since_ns, rests_until_ns;
    struct zsd_timed timed;
};

struct zsd_disk {
    struct zsd_core *core;
    uint64_t generation; /* of the newest page written: never repeats in a run of the daemon */
    struct zb_space *maps[ZN_PATHS_MAX]; /* of each data file, in ZB_PAGE_ALIGN units: paths.h */
    struct zb_space *extents;            /* the first one; NULL: no NVMe tier */
    struct zsd_extents *places;          /* of pages there (extents.c); NULL likewise */
    struct zb_list leaving;              /* struct zsd_leaving: leaving.h */
    struct zsd_work leaving_work;
    struct zsd_line lines[ZN_PATHS_MAX]; /* before each data file */
    struct zsd_hold hold;

    uint8_t *buffers; /* page buffers: what streams passes through them */
    uint64_t buffer_bytes;
    uint32_t nbuffers, nbuffers_free;
    void **buffers_free;
    struct zsd_fair buffer_line;   /* zsd_claim; nobody waits while a buffer is free */
    struct zsd_gauge buffers_used; /* seen once a turn */
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
/** Hands what was submitted in this turn to the engines. */
void zsd_pio_kick(struct zsd_core *core);

/** From here on page writes that come wait, until the end of the hold, or some 100 ms; unless one
 *  was not long ago. Ending none is fine. */
void zsd_hold_begin(struct zsd_core *core);
void zsd_hold_end(struct zsd_core *core);

/* ---- buffers.c */

/** Makes the page buffers, from the host tier's budget: 0, -ENOSPC with the numbers, -ENOMEM. */
int zsd_buffers_make(struct zsd_core *core, struct zb_err *err);
/** Takes what zsd_buffers_make() left, and none. */
void zsd_buffers_end(struct zsd_core *core);
/** A page buffer, or NULL: then claim->work is deferred when one has been given, and asking again
 * takes it; asking meanwhile changes nothing. A claim that waits cannot be withdrawn. */
void *zsd_buffer_get(struct zsd_core *core, struct zsd_claim *claim);
/** Gives it to whose turn it is. */
void zsd_buffer_put(struct zsd_core *core, void *buffer);
/** The least host_bytes of a daemon with our options that leaves `bytes` beside its page buffers.
 */
uint64_t zsd_host_least(const struct zsd_core *core, uint64_t bytes);

#endif
