/*
 * job.h - the job that a bench trains: units of one tensor each, so that a step changes every
 * element. (Elements in no tensor are never stepped, and a bench of those would measure only the
 * drive.) Blocking; one thread per client.
 */
#ifndef ZBENCH_JOB_H
#define ZBENCH_JOB_H

#include "client/zclient.h"

/** Defines unit `index`, "u<index>": `elems` bf16 parameters, gradients of `grad`, all of one
 * parameter group. 0 or the client's code, with its message in zc_error(). */
int zbench_unit(struct zc_client *c, uint64_t job, uint32_t index, uint64_t elems,
                enum zc_dtype grad);
/** The same, and registers it as one shard. */
int zbench_unit_whole(struct zc_client *c, uint64_t job, uint32_t index, uint64_t elems,
                      enum zc_dtype grad, uint64_t *ret_shard);

/** Equal matrices of a unit, which Muon steps. */
struct zbench_matrices {
    uint64_t rows;
    uint32_t count; /* 0: none */
};
#define ZBENCH_MATRICES_MAX 16u

/** The same, of matrices. */
int zbench_unit_matrices(struct zc_client *c, uint64_t job, uint32_t index, uint64_t elems,
                         struct zbench_matrices of, enum zc_dtype grad, uint64_t *ret_shard);

/**
 * Sends the contents of staging to all `elems` elements of a shard, in parts that fit: fp32 initial
 * values at step 0, a gradient of dtype `grad` at any other. 0 or the client's code.
 */
int zbench_send(struct zc_client *c, const struct zc_job *job, uint64_t shard, uint64_t elems,
                enum zc_dtype grad, uint64_t step);

#endif
