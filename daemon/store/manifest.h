/*
 * manifest.h - the units of a job and their tensors, as its trainer described them; and the
 * trainer's notes.
 */
#ifndef ZSD_MANIFEST_H
#define ZSD_MANIFEST_H

#include "base/plan.h"
#include "base/sorted.h"
#include "kernels/zk_page.h"
#include "proto/frame.h"

#define ZSD_TENSORS_MAX (1u << 18) /* of one job, in all units: their names take less than 64 MiB */

struct zsd_tensor {
    char name[ZP_TENSOR_MAX + 1];
    uint64_t first, count;
    uint32_t ndims, group;
    uint64_t dims[ZP_DIMS_MAX];
    bool muon; /* a matrix that Muon steps */
};

struct zsd_unit {
    char name[ZP_NAME_MAX + 1];
    uint32_t index;
    uint64_t elems;
    struct zb_layout layout;
    struct zsd_tensor *tensors;
    uint32_t ntensors;
    size_t tensors_room;
    struct zk_segment *segments; /* of stepped elements; adjacent tensors of a group are merged */
    uint32_t nsegments;
    struct zb_sorted shards; /* struct zsd_shard, by first element */
};

/* A note, received in parts. */
struct zsd_note {
    uint8_t *data;
    uint32_t total, got;
    uint64_t iteration; /* that the note belongs to, once it is kept */
};

/** Memory that is charged for a unit (ZSD_LIMIT_DEFINITION_BYTES). */
#define ZSD_TENSOR_BYTES (sizeof(struct zsd_tensor) + sizeof(struct zk_segment))
static inline uint64_t zsd_unit_bytes(const struct zsd_unit *unit)
{
    return sizeof(*unit) + unit->ntensors * (uint64_t)ZSD_TENSOR_BYTES;
}

void zsd_unit_free(struct zsd_unit *unit);
/** Makes the segments of a unit from its tensors. 0 or -ENOMEM. */
int zsd_unit_segments(struct zsd_unit *unit);
/** A copy of the unit: name, index, elems, layout, tensors, segments; no shards. NULL: no
 * memory. */
struct zsd_unit *zsd_unit_copy(const struct zsd_unit *unit);

void zsd_note_done(struct zsd_note *note);
/** 0 or -ENOMEM. */
int zsd_note_copy(struct zsd_note *to, const struct zsd_note *from);

#endif
