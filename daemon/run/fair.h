/*
 * fair.h - a queue that divides a resource among jobs: start-time fair queueing.
 *
 * MODEL. A LINE (struct zsd_fair) is the queue for one resource: the page buffers, the compute
 * threads, a data file. A PAYER is a job, or the house for work that belongs to no job. It has a
 * share, and one FLOW in each line. A TURN is one waiting request for a number of bytes; the turns
 * of a flow are in order of arrival.
 *
 * Each flow has a tag, a virtual time. Taking a turn advances it by bytes / share. The flow with
 * the smallest tag is next. So flows that always have turns in the line get bytes in proportion to
 * their shares, to within one turn each, and a flow that is alone gets everything. A flow that
 * returns begins at the line's time, which is the smallest tag of the waiting flows. So it gets no
 * credit for the time when it was absent, and owes only the bytes that it took in advance.
 *
 * URGENT turns (a client waits for the result: a fetch) are taken before the rest. They are charged
 * like any other, so the job gets less of the rest later. A job may be ahead of the waiting flows
 * by ZSD_URGENT_BYTES at the default share, in proportion to its own share. Beyond that its urgent
 * turns queue like the rest, so no flow starves.
 *
 * Taking a turn loops over the flows in the line. That is cheap: a flow is a waiting job, and a
 * turn is a whole page.
 *
 * Not locked: a line belongs to the loop thread, or to the holder of its owner's mutex
 * (compute.c).
 */
#ifndef ZSD_FAIR_H
#define ZSD_FAIR_H

#include "base/size.h"
#include "base/util.h"
#include "nvme/zn.h"

#define ZSD_SHARE_MAX     10000u
#define ZSD_SHARE_DEFAULT 100u
/* How far the urgent turns of a job with the default share may be ahead of the waiting flows. */
#define ZSD_URGENT_BYTES (64 * ZB_MIB)

struct zsd_flow {
    uint64_t tag;
    uint32_t share;              /* the payer's, at its newest turn */
    struct zb_list urgent, rest; /* struct zsd_turn */
    struct zb_list node;         /* in the line's flows while it has turns */
};

struct zsd_turn {
    struct zsd_flow *flow;
    uint64_t price;
    struct zb_list node;
};

struct zsd_fair {
    uint64_t now; /* the line's virtual time: never decreases */
    struct zb_list flows;
};

/** The lines that every payer has a flow in; ZSD_LINE_FILES + i: the data file i. */
enum zsd_line_of { ZSD_LINE_BUFFERS, ZSD_LINE_COMPUTE, ZSD_LINE_FILES };

struct zsd_payer {
    uint32_t share; /* 1 .. ZSD_SHARE_MAX; loop thread */
    struct zsd_flow flows[ZSD_LINE_FILES + ZN_PATHS_MAX];
};

void zsd_fair_init(struct zsd_fair *line);
void zsd_flow_init(struct zsd_flow *flow);
/** share 0: the default. */
void zsd_payer_init(struct zsd_payer *payer, uint32_t share);

/** Queues a turn. */
void zsd_fair_push(struct zsd_fair *line, struct zsd_flow *flow, struct zsd_turn *turn,
                   uint64_t bytes, uint32_t share, bool urgent);
/** The next turn, or NULL; it stays in the line. */
struct zsd_turn *zsd_fair_next(const struct zsd_fair *line);
/** Takes the turn of zsd_fair_next() out of the line, and charges its flow. */
void zsd_fair_take(struct zsd_fair *line, struct zsd_turn *turn);

#endif
