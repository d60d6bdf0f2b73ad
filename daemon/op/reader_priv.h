/*
 * reader_priv.h - a reader, as shared by reader.c (what it holds, opening, closing) and
 * reader_read.c (its reads), reader_wait.c (opens that wait).
 */
#ifndef ZSD_OP_READER_PRIV_H
#define ZSD_OP_READER_PRIV_H

#include "daemon/net/conn.h"
#include "daemon/os/arena.h"
#include "daemon/store/rowio.h"
#include "daemon/store/saved.h"
#include "proto/shard.pb-c.h"

#define ZSD_READER_LANES 4u /* pieces of one read in progress */

enum zsd_reader_state { READER_OPENING, READER_OPEN, READER_CLOSING };
enum zsd_lane_state { LANE_IDLE, LANE_BUFFER, LANE_PIECE, LANE_READ, LANE_COPY };

struct zsd_lane {
    struct zsd_reader *reader;
    struct zsd_read_op *read;  /* the read in progress; set by read_begin() */
    enum zsd_lane_state state; /* written by lane_run() and read_begin() only */
    struct zb_err err;
    struct zsd_work work;
    struct zsd_task task;
    struct zsd_claim claim; /* for the buffer; paid by the house */
    void *buffer;           /* a page buffer */
    void *scratch;          /* for a page larger than page_elems: zsd_row_room() */
    uint8_t *planes_at[ZSD_SAVED_PLANES];
    struct zsd_row *row; /* kept by zsd_row_look() while there is a piece */
    uint64_t from, take; /* elements of its page */
    uint8_t *out;
    struct zsd_row_read reads[ZSD_SAVED_PLANES];
    unsigned reads_left;
};

struct zsd_reader {
    struct zsd_core *core;
    struct zsd_conn *conn; /* NULL: it was closed */
    enum zsd_reader_state state;
    uint64_t id;
    struct zsd_saved *saved;     /* held */
    struct zsd_version *version; /* NULL: released, because of `why` */
    struct zb_err why;
    bool covered; /* orphaned, and a promise covers it: the reader's, or a destroyed job's */
    struct zb_needs promise;
    struct zsd_account nvme_held;
    struct zsd_account host_held; /* its staging, charged to the user of the connection */
    struct zsd_arena staging;
    uint64_t booked; /* bytes of it in the host account */
    struct zsd_req *open_req;
    struct zb_err open_err;
    struct zsd_task task;
    void (*idle)(struct zsd_reader *r); /* CLOSING: called when its last lane becomes idle */
    struct zb_list reads; /* struct zsd_read_op: the first runs, while lanes_busy > 0 */
    struct zsd_lane lanes[ZSD_READER_LANES];
    unsigned lanes_busy;
    struct zb_list node; /* in core->ops->readers */
};

/** Opens a reader. deadline_ns: of an open that has waited; else 0. */
typedef void zsd_reader_open_fn(struct zsd_req *req, const Zp__ReaderOpen *q, uint64_t deadline_ns);
/** Lets an open that lacks host memory wait until deadline_ns; 0: for the configured time. Calls
 * again() when the room has changed. False: no memory is being given back, or there is none for the
 * wait. */
bool zsd_reader_wait(struct zsd_req *req, const Zp__ReaderOpen *q, uint64_t deadline_ns,
                     zsd_reader_open_fn *again);
/** Answers the waiting opens of a connection that ends. */
void zsd_reader_waits_gone(struct zsd_conn *conn);
/** Whether a reader-open of this connection waits. It has one reader, so one waits at most. */
bool zsd_reader_parked(const struct zsd_conn *conn);
/** Initialises the lanes as idle. */
void zsd_reader_lanes_init(struct zsd_reader *r);
/** Checks a read, and begins it when all earlier ones have ended. req is answered once. */
void zsd_reader_read_start(struct zsd_reader *r, struct zsd_req *req, const Zp__ReaderRead *q);
/** Answers waiting reads with `why`. The running one ends by itself; r->idle() follows. */
void zsd_reader_reads_end(struct zsd_reader *r, const struct zb_err *why);

#endif
