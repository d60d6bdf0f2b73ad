/*
 * wire.h - the values of fields of shard.proto for which base/ has no enum. (For dtypes, optimizers
 * and moments it has one.)
 *
 * A message may contain any other number: the receiver checks each field, and rejects an unknown
 * value with -EINVAL.
 */
#ifndef ZP_WIRE_H
#define ZP_WIRE_H

/* JobOpen.offload_*: where bytes may be stored. */
enum zp_offload {
    ZP_HOST = 1, /* in host memory, always */
    ZP_NVME = 2, /* on NVMe, if they do not fit; for gradients, 0 means the same */
    ZP_GPU = 3,  /* parameters only: in GPU memory of the daemon; else as ZP_NVME */
};

/* Push.mode */
enum zp_push_mode { ZP_PUSH_SET = 1, ZP_PUSH_ADD = 2 };

/* Point.kind */
enum zp_point_kind { ZP_POINT_MEMORY = 1, ZP_POINT_PREPARED = 2, ZP_POINT_COMMITTED = 3 };

/* TopJob.late: what a step waits for */
enum zp_late { ZP_LATE_NOBODY, ZP_LATE_STEP, ZP_LATE_PINS };

/* JobAbout.early: whether steps begin during the backward pass, or why they do not. zp_early_text() */
enum zp_early {
    ZP_EARLY_UNKNOWN,
    ZP_EARLY_YES,
    ZP_EARLY_OFF,
    ZP_EARLY_ROOM,
    ZP_EARLY_GLOBAL,
    ZP_EARLY_SCALE,
    ZP_EARLY_MICROS,
    ZP_EARLY_OLD,
    ZP_EARLY_END
};

/* HelloReply.features: bits. A client does not send fields that the daemon would ignore. */
enum zp_feature {
    ZP_FEATURE_OWNER = 1, /* the field `owner` of requests that name a job */
    /* the field `sums` of step-begin, with unit-sums; tensor-norms of tensors whose shards have their
     * gradients, while others of the rank do not; job-about */
    ZP_FEATURE_SUMS = 2,
    ZP_FEATURE_MUON_ENGINE = 4, /* JobOpen.muon_engine */
};

#endif
