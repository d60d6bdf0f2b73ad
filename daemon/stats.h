/*
 * stats.h - counters of the daemon since its start, as `zctl stat` prints them.
 *
 * MODEL. One list of names; the struct and the table of names are made of it. Loop thread only: a
 * counter is a plain integer that its owner increases where the thing happens. Who adds a counter
 * adds a line here.
 */
#ifndef ZSD_STATS_H
#define ZSD_STATS_H

#include <stddef.h>
#include <stdint.h>

/* The loop's half: server, connections, requests. */
#define ZSD_STATS_LOOP(X)                                                            \
    X(clients_accepted)                                                              \
    X(clients_refused)    /* clients_max was reached, or no descriptors were left */ \
    X(clients_dropped)    /* by us: garbage, or a peer that does not read */         \
    X(requests)           /* and one-way messages */                                 \
    X(requests_unknown)   /* answered -ENOSYS, or dropped when one-way */            \
    X(requests_malformed) /* a body that is no such message */                       \
    X(replies_failed)     /* answers with an error code */                           \
    X(replies_lost)       /* the client had gone */                                  \
    X(sent_stalls)        /* times that a connection was not read from: back-pressure */

/* The core's half. */
#define ZSD_STATS_CORE(X)                                                      \
    X(releases_bad)    /* one-way, so only counted */                          \
    X(pages_early)     /* stepped ahead of the barrier */                      \
    X(pages_undone)    /* of these, dropped again */                           \
    X(scrub_bytes)     /* of saved pages that were read */                     \
    X(scrub_bad_pages) /* corrupt, or not readable */                          \
    X(write_holds)     /* page writes waited for a change of the catalog... */ \
    X(write_hold_us)   /* ...so long, all together */

#define ZSD_STATS(X) ZSD_STATS_LOOP(X) ZSD_STATS_CORE(X)

struct zsd_stats {
#define ZSD_STATS_MEMBER(name) uint64_t name;
    ZSD_STATS(ZSD_STATS_MEMBER)
#undef ZSD_STATS_MEMBER
};

#define ZSD_STATS_COUNT (sizeof(struct zsd_stats) / sizeof(uint64_t))

/** Names in the order of the struct: value i of a struct is ((const uint64_t *)stats)[i]. */
extern const char *const zsd_stats_names[ZSD_STATS_COUNT];

#endif
