/*
 * muon.h - the memory of a job with Muon, in addition to its planes.
 *
 * MODEL. A step orthogonalizes whole matrices (daemon/op/muon.c). Their pages begin in order, of one unit after the
 * other. Meanwhile the job holds
 *
 *     matrices  those whose pages have begun and not all ended, in fp32: a ring, in order
 *     slots     if its planes may be streamed, a page buffer for each of these pages. So a page is read and
 *               written once, although it waits for its matrices in between
 *     scratch   for the matrices that are being orthogonalized: for each another one, and two squares of its
 *               smaller side. None with an engine on a GPU, which has memory there instead, for one matrix
 *
 * It is the job's own, so jobs never wait for each other's buffers. The least room is that of
 * the pages of one matrix, which may have parts of its neighbours: then these are in memory, too. With twice or
 * three times as much, the next pages are read and the last ones are written while a matrix is orthogonalized.
 *
 * THE LEAST IS ENOUGH. Consider the oldest matrix that is not orthogonalized. Pages before its first
 * one wait for no matrix, so they end, and give back what they have. The pages that are left are a run that
 * begins with its first page. They have elements of the matrices that share a page with it, and of no others until all of
 * its own pages have begun. So its pages find slots, and these matrices find memory: a ring loses less than one of
 * them where it wraps, and the least has as much in addition. A matrix that shares no page begins in an empty ring.
 */
#ifndef ZB_MUON_H
#define ZB_MUON_H

#include "base/late.h"

#define ZB_MUON_SPANS_MAX 3u /* room for so many of the largest matrix */

/* A matrix, and the elements of a unit that one shard has. */
struct zb_muon_matrix {
    uint64_t first, rows, cols;
};
struct zb_muon_slice {
    uint64_t first, count;
};

/* What the matrices of a job need. Zeros at first, except for the engine. */
struct zb_muon_needs {
    enum zb_muon_engine engine;
    uint64_t gpu_bytes;                  /* of a GPU, for the largest; 0: the engine has none */
    uint64_t matrix_bytes;               /* the least for a ring of them */
    uint64_t all_bytes;                  /* of all matrices */
    uint64_t scratch_bytes, scratch_all; /* for the largest; for all */
    uint64_t slots, pages;               /* the most pages of a matrix; all pages of the units */
    uint64_t page_bytes;                 /* all planes of the largest page */
    uint32_t page_elems;
};

struct zb_muon_room {
    uint64_t matrices_bytes, slot_bytes, scratch_bytes, bytes; /* bytes: of all */
    uint32_t slots;
};

/** Adds `times` units with these matrices (at least one), in the order of their elements, cut into these slices. */
void zb_muon_add(struct zb_muon_needs *n, const struct zb_layout *layout, uint32_t page_elems,
                 const struct zb_muon_matrix *matrices, uint32_t nmatrices,
                 const struct zb_muon_slice *slices, uint32_t nslices, uint64_t times);
/** The room for 1 to ZB_MUON_SPANS_MAX of the largest matrix; 1: the least.
 *
 * @param streams  planes may be streamed */
struct zb_muon_room zb_muon_room(const struct zb_muon_needs *n, unsigned spans, bool streams);

#endif
