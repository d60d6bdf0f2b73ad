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
/** A step begins: its table is made. 0 or -ENOMEM. */
int zsd_muon_begin(struct zsd_job *job);
/**
 * The next of these pages that may begin. Sets the shard, the page, and what holds it, in *spec. Call
 * zsd_muon_begun() when the operation has started, and zsd_muon_page_over() when it has ended, while the job
 * lives. False: none for now; when a page ends, ask again.
 */
bool zsd_muon_next(struct zsd_job *job, struct zsd_page_spec *spec);
void zsd_muon_begun(struct zsd_job *job, const struct zsd_page_spec *spec);
void zsd_muon_page_over(struct zsd_job *job, const struct zsd_page_spec *spec);
/** Whether all of them have begun. */
bool zsd_muon_walked(const struct zsd_job *job);
/** The job ends: ends the operations that wait for their matrices. */
void zsd_muon_cancel(struct zsd_job *job, const struct zb_err *why);
/** Fills what a list of jobs says of Muon. Zeros: another optimizer. */
void zsd_muon_row(const struct zsd_job *job, Zp__JobRow *row);
void zsd_muon_free(struct zsd_muon *m);

#endif
