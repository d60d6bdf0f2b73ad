/*
 * muon.h - the pages of a step whose matrices Muon orthogonalizes: op/muon.c has the model. Loop thread.
 */
#ifndef ZSD_OP_MUON_H
#define ZSD_OP_MUON_H

#include "daemon/job/shard.h"
#include "proto/shard.pb-c.h"

struct zsd_page_spec;

/** Whether a page has elements of a matrix that the step changes, as its table says. */
bool zsd_muon_page(const struct zsd_shard *s, uint32_t page);
/** Whether a unit has such a matrix. */
bool zsd_muon_unit(const struct zsd_unit *unit, const struct zsd_job *job);
/** The table of a step is made; no page of another one is in flight. 0 or -ENOMEM. */
int zsd_muon_begin(struct zsd_job *job);
/** Before the step: all gradients of the unit, which has matrices, are there. Its pages that can be stepped early may
 * begin. Once for each step. */
void zsd_muon_offer(struct zsd_job *job, const struct zsd_unit *unit);
bool zsd_muon_offered(const struct zsd_job *job, const struct zsd_unit *unit);
/** Whether such a page was begun early, or will be. */
bool zsd_muon_early(const struct zsd_shard *s, uint32_t page);
/** The step runs: all pages may begin. */
void zsd_muon_all(struct zsd_job *job);
/**
 * The next of these pages that may begin. Sets the kind (EARLY or STEP), the shard, the page, and what holds it, in
 * *spec. Call zsd_muon_begun() when the operation has started, and zsd_muon_page_over() when it has ended, while the
 * job lives. False: none for now; when a page ends, ask again.
 */
bool zsd_muon_next(struct zsd_job *job, struct zsd_page_spec *spec);
void zsd_muon_begun(struct zsd_job *job, const struct zsd_page_spec *spec);
void zsd_muon_page_over(struct zsd_job *job, const struct zsd_page_spec *spec);
/** Whether all of them have begun. */
bool zsd_muon_walked(const struct zsd_job *job);
/** Number of them that have begun and not ended. */
uint32_t zsd_muon_pages(const struct zsd_job *job);
/** No more of them begin until zsd_muon_begin(). Those that wait for their matrices end with this error, some of them
 * later. */
void zsd_muon_stop(struct zsd_job *job, const struct zb_err *why);
/** Fills what a list of jobs says of Muon. Zeros: another optimizer. */
void zsd_muon_row(const struct zsd_job *job, Zp__JobRow *row);
void zsd_muon_free(struct zsd_muon *m);

#endif
