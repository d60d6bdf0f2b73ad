/*
 * pass_priv.h - functions that the files of pass/ share.
 */
#ifndef ZC_ZERO_PASS_PRIV_H
#define ZC_ZERO_PASS_PRIV_H

#include "client/zero/pass/pass.h"

/* ---- schedule.c */
/** Records a gather of a unit that the trainer did not hold. 0 or -ENOMEM. */
int zcz_schedule_gathered(struct zc_zero *z, uint32_t unit);
/** A micro-step has ended: the next one is expected to repeat its order. */
void zcz_schedule_learn(struct zc_zero *z);
/** A step has ended. */
void zcz_schedule_rewind(struct zc_zero *z);
/** Begins gathers in the window, drops what is not needed; may wait for a gather that was
 * dropped. */
void zcz_schedule_apply(struct zc_zero *z);

/* ---- reduce.c */
/** How many micro-steps of each step only add to the buffer on this rank. */
uint32_t zcz_reduce_local(const struct zc_zero *z);
/** With reduce_waits: waits until nothing is being reduced. */
int zcz_reduce_waits(struct zc_zero *z);
/** Makes sure that u->pass->grad exists. Fills it with zeros if it is new, or if zeros are
 * wanted. */
int zcz_grad_make(struct zc_zero *z, struct zcz_unit *u, bool zeros);
/** Begins the reduction of the unit's gradient, when there is room for it. */
int zcz_reduce_leave(struct zc_zero *z, struct zcz_unit *u);
/** A step has begun: resets the count of micro-steps. */
void zcz_reduce_rewind(struct zc_zero *z);

/* ---- unit_sums.c */
/** A unit is being reduced, in this micro-step: the first of its collectives has its place. */
void zcz_sums_begin(struct zc_zero *z, struct zcz_unit *u, uint32_t micro);
/** The collectives of all units in progress take their places. */
void zcz_sums_follow(struct zc_zero *z);
/** What counts the pushes of this unit. */
struct zcz_op *zcz_sums_pushes(struct zc_zero *z, struct zcz_unit *u, uint32_t micro);
/** All of its slice was passed to the store. */
void zcz_sums_pushed(const struct zc_zero *z, struct zcz_unit *u, uint32_t micro);
int zcz_sums_turn(struct zc_zero *z);

/* ---- micro.c */
/** Called in the start, when pass->units exists. 0 or a refusal. */
int zcz_micro_start(struct zc_zero *z);
/** A step has begun: clears the reports about tensors. */
void zcz_micro_rewind(struct zc_zero *z);
/** Whether the number of micro-steps is not fixed (micro_steps 0). */
static inline bool zcz_micro_any(const struct zc_zero *z)
{
    return z->options.micro_steps == 0;
}
/** Begins zc_zero_grad(): provides the buffer that may be added into. 0, or a refusal. */
int zcz_grad_ask(struct zc_zero *z, uint32_t unit, struct zcz_unit **ret);

/* ---- sums.c */
/** Rounds n floats to bf16 or fp16, in place. */
void zcz_round_in_place(const struct zk_ops *ops, enum zb_dtype dtype, void *data, uint64_t n);
/** Zeros elements that are never stepped, or they would count in the norm. */
void zcz_grad_mask(const struct zcz_unit *u, uint64_t padded, float *grad);

/** Bytes of a slice: as parameters, and as codes. */
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
/** Waits until a dropped unit, which is needed again, is idle. A failure is recorded in z. */
void zcz_gather_gone(struct zc_zero *z, struct zcz_unit *u);

/* ---- nodes.c: with ZCZ_WAY_NODES */
/** The collectives take their places. */
void zcz_nodes_begin(struct zc_zero *z, struct zcz_unit *u);
/** The slices of this node are in u->pass->buf: gathers the others. 1: all are there; 0: not yet;
 * or the failure. */
int zcz_nodes_collect(struct zc_zero *z, struct zcz_unit *u);

/* ---- alone.c: stages of a gather of slices that are read by name */
void zcz_alone_begin(struct zcz_unit *u);
/** Sets the way of gathers that begin from now on: as asked for, or as chosen. */
void zcz_alone_way(struct zc_zero *z);
int zcz_alone_fetch(struct zc_zero *z, struct zcz_unit *u);
int zcz_alone_fetched(struct zc_zero *z, struct zcz_unit *u);
int zcz_alone_collect(struct zc_zero *z, struct zcz_unit *u);
/** Unpins slices. */
int zcz_alone_unpin(struct zc_zero *z, struct zcz_unit *u);

/* ---- gather_dev.c */
/** Makes sure that u->pass->buf exists, on the host. 0 or the failure. */
int zcz_gather_host_get(struct zc_zero *z, struct zcz_unit *u);
/** The whole unit is in u->pass->buf: begins to copy it to the device, and enters UPLOAD. */
int zcz_gather_host_up(struct zc_zero *z, struct zcz_unit *u);
/** Returns the layout of a view of `count` elements of the unit: in host memory, or on the device,
 * where it is copied within the device. Pages of codes have padding between them. */
struct zcz_pieces zcz_gather_pieces(const struct zc_zero *z, const struct zcz_unit *u,
                                    const struct zc_view *view, uint64_t count);
/** Makes sure that u->pass->on_dev exists, and u->pass->wire if the unit comes as codes. 0 or the
 * failure. */
int zcz_gather_dev_get(struct zc_zero *z, struct zcz_unit *u);
/** Enters UPLOAD: all data is on its way to u->pass->on_dev, or is being dequantized into it. */
int zcz_gather_made(struct zc_zero *z, struct zcz_unit *u);
/** Makes sure that u->pass->on_dev exists. 0 or the failure. */
int zcz_gather_dev_whole(struct zc_zero *z, struct zcz_unit *u);
/** With quantize_gather, between devices: begins to quantize this rank's slice, which is in its
 * place on the device, into its part of the codes; */
int zcz_gather_quantize(struct zc_zero *z, struct zcz_unit *u);
/** ... and begins to dequantize the codes of all ranks, and returns their buffer. */
int zcz_gather_dequantize(struct zc_zero *z, struct zcz_unit *u);

/* ---- reduce_dev.c */
/** Begins to bring a gradient to the host, in the unit's dtype: from r->on_dev to r->send. */
int zcz_reduce_down(struct zc_zero *z, struct zcz_reduce *r);
/** Instead, between devices: begins to prepare r->on_dev for the exchange, and arms it; */
int zcz_reduce_exchange(struct zc_zero *z, struct zcz_reduce *r);
/** ... and after the exchange, begins to add this rank's slices, in rank order, and to bring the
 * sum to r->send. */
int zcz_reduce_sum(struct zc_zero *z, struct zcz_reduce *r);
/** Instead of that, with replicas > 1: begins to add this rank's slices (at stage 0 there is only
 * one, and nothing to add), and arms the exchange of its parts; */
int zcz_reduce_inside(struct zc_zero *z, struct zcz_reduce *r);
/** ... then begins to add this rank's part, and arms the gather of all sums; */
int zcz_reduce_part(struct zc_zero *z, struct zcz_reduce *r);
/** ... and finally, as zcz_reduce_sum(). */
int zcz_reduce_parts(struct zc_zero *z, struct zcz_reduce *r);

#endif
