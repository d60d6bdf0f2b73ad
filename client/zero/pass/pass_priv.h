/*
 * pass_priv.h - what the files of pass/ call of each other.
 */
#ifndef ZC_ZERO_PASS_PRIV_H
#define ZC_ZERO_PASS_PRIV_H

#include "client/zero/pass/pass.h"

/* ---- schedule.c */
/** The trainer gathers a unit that it did not hold. 0 or -ENOMEM. */
int zcz_schedule_gathered(struct zc_zero *z, uint32_t unit);
/** A micro-step is over: the next one is expected to repeat it. */
void zcz_schedule_learn(struct zc_zero *z);
/** A step is over. */
void zcz_schedule_rewind(struct zc_zero *z);
/** Begins what comes next, drops what does not; may wait for a gather that was given up. */
void zcz_schedule_apply(struct zc_zero *z);

/* ---- reduce.c */
/** So many micro-steps of each step only add to what stays here. */
uint32_t zcz_reduce_local(const struct zc_zero *z);
/** With reduce_waits: until nothing is being reduced. */
int zcz_reduce_waits(struct zc_zero *z);
/** There is u->pass->grad: as it was, unless zeros are wanted, or it is new. */
int zcz_grad_make(struct zc_zero *z, struct zcz_unit *u, bool zeros);
/** The unit's gradient leaves for the other ranks, when there is room for it. */
int zcz_reduce_leave(struct zc_zero *z, struct zcz_unit *u);
/** A step has begun: micro-steps count from 0. */
void zcz_reduce_rewind(struct zc_zero *z);

/* ---- micro.c */
/** At the start, when pass->units is there. A refusal. */
int zcz_micro_start(struct zc_zero *z);
/** A step has begun: no tensor has a gradient. */
void zcz_micro_rewind(struct zc_zero *z);
/** Options say that there are as many micro-steps as come. */
static inline bool zcz_micro_any(const struct zc_zero *z)
{
    return z->options.micro_steps == 0;
}
/** What zc_zero_grad() begins with: the unit has a buffer that may be added into, or the refusal. */
int zcz_grad_ask(struct zc_zero *z, uint32_t unit, struct zcz_unit **ret);

/* ---- sums.c */
/** n floats become n bf16 or fp16 at the same place. */
void zcz_round_in_place(const struct zk_ops *ops, enum zb_dtype dtype, void *data, uint64_t n);
/** What is never stepped has no gradient either, or it would count in the norm. */
void zcz_grad_mask(const struct zcz_unit *u, uint64_t padded, float *grad);

/** Of a slice: parameters, and codes. */
static inline size_t zcz_slice_bytes(const struct zcz_unit *u)
{
    return u->slice * zb_dtype_bytes(u->layout.dtype);
}

static inline size_t zcz_wire_bytes(const struct zcz_unit *u)
{
    return zb_blocks_bytes(ZB_Q8_BLOCK_BYTES, u->slice);
}

/* ---- gather.c */
void zcz_gather_begin(struct zc_zero *z, struct zcz_unit *u);
void zcz_gather_drop(struct zc_zero *z, struct zcz_unit *u);
/** It was dropped, and is wanted: waits until it is idle. A failure is z's. */
void zcz_gather_gone(struct zc_zero *z, struct zcz_unit *u);

/* ---- alone.c: the steps of a gather that is this rank's own */
void zcz_alone_begin(struct zcz_unit *u);
int zcz_alone_fetch(struct zc_zero *z, struct zcz_unit *u);
int zcz_alone_fetched(struct zc_zero *z, struct zcz_unit *u);
int zcz_alone_collect(struct zc_zero *z, struct zcz_unit *u);
/** Gives back the slices that are pinned. */
int zcz_alone_unpin(struct zc_zero *z, struct zcz_unit *u);
void zcz_alone_done(struct zc_zero *z);

/* ---- gather_dev.c */
/** What a view of `count` elements of the unit shows: of the host, or on the device, where it is copied
 * within. Codes have zeros between their pages. */
struct zcz_pieces zcz_gather_pieces(const struct zc_zero *z, const struct zcz_unit *u,
                                    const struct zc_view *view, uint64_t count);
/** There is u->pass->on_dev, and u->pass->wire for what comes as codes; or the failure. */
int zcz_gather_dev_get(struct zc_zero *z, struct zcz_unit *u);
/** All of it is on its way, or being made of codes, in u->pass->on_dev: UPLOAD. */
int zcz_gather_made(struct zc_zero *z, struct zcz_unit *u);
/** There is u->pass->on_dev, or the failure. */
int zcz_gather_dev_whole(struct zc_zero *z, struct zcz_unit *u);
/** With quantize_gather, between devices: begins to make this rank's part of the codes of its slice,
 * which has come to its place on the device; */
int zcz_gather_quantize(struct zc_zero *z, struct zcz_unit *u);
/** ... and begins to make the parameters of all codes, whose buffer goes. */
int zcz_gather_dequantize(struct zc_zero *z, struct zcz_unit *u);

/* ---- reduce_dev.c */
/** Begins to bring a gradient to the host, as the unit's dtype says: r->on_dev to r->send. */
int zcz_reduce_down(struct zc_zero *z, struct zcz_reduce *r);
/** Between devices, instead: begins to make of r->on_dev what is exchanged, and arms that; */
int zcz_reduce_exchange(struct zc_zero *z, struct zcz_reduce *r);
/** ... and after it, begins to add up this rank's slices, in rank order, and to bring the sum to
 * r->send. */
int zcz_reduce_sum(struct zc_zero *z, struct zcz_reduce *r);
/** Replicas > 1, in its place: begins to add up this rank's slice (not of stage 0, which has one),
 * and arms the exchange of its parts; */
int zcz_reduce_inside(struct zc_zero *z, struct zcz_reduce *r);
/** ... which are there: begins to add up this rank's part, and arms the gather of all sums; */
int zcz_reduce_part(struct zc_zero *z, struct zcz_reduce *r);
/** ... which are there, too: as zcz_reduce_sum(). */
int zcz_reduce_parts(struct zc_zero *z, struct zcz_reduce *r);

#endif
