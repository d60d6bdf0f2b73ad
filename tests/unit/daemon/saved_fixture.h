/*
 * saved_fixture.h - a world (core_fixture.h) with a store, and one durable job in it whose values
 * are known: a reader of its commits must see the same bytes that its rank reads of its pages.
 */
#ifndef SAVED_FIXTURE_H
#define SAVED_FIXTURE_H

#include "tests/unit/daemon/core_fixture.h"

#define SAVED_HOST  (16u << 20) /* everything resident, and room for a reader */
#define SAVED_TIGHT (6u << 20)  /* a part of the state is streamed */

struct saved_world {
    struct world w;
    char catalog[80];
    enum zb_dtype dtype;
    struct zb_layout layout;
    uint8_t *truth[UNITS][5]; /* by enum zk_what; as last committed */
};

/* Client 0 is the job's rank; the others have none. The job has values, and one commit. */
void saved_open(struct saved_world *s, uint64_t host_bytes, enum zb_dtype dtype, uint32_t nclients);
void saved_close(struct saved_world *s);
/* The core ends first, with whatever it could not save. */
void saved_kill(struct saved_world *s);

/* The rank writes other values into every unit, and commits them. */
void saved_commit(struct saved_world *s, uint64_t salt);
struct zsd_saved *saved_job(struct saved_world *s);
/* From here on the device returns other bytes for a page of a row: one bit is flipped. */
void page_damage(struct saved_world *s, const struct zsd_row *r, enum zsd_saved_plane p,
                 uint32_t page);

#endif
