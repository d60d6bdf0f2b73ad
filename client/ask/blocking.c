/*
 * blocking.c - the blocking forms: each makes the call of the same name, and waits for it.
 */
#include "client/ask/ask_priv.h"

/** Defines NAME_wait() with these parameters: calls NAME() with these arguments, and zc_wait(). */
#define FORM(name, parameters, timeout_ms, ...)                                \
    int name##_wait parameters                                                 \
    {                                                                          \
        struct zc_waiter w = { .client = c };                                  \
                                                                               \
        return zc_wait(&w, name(__VA_ARGS__, zc_waiter_done, &w), timeout_ms); \
    }

/* clang-format off */

FORM(zc_job_open, (struct zc_client *c, const struct zc_job_options *options, struct zc_job *ret),
     0, c, options, ret)

FORM(zc_unit_define, (struct zc_client *c, uint64_t job, const struct zc_unit *unit),
     0, c, job, unit)

FORM(zc_register, (struct zc_client *c, uint64_t job, const struct zc_range *ranges, uint32_t n,
         uint64_t *ret_ids),
     0, c, job, ranges, n, ret_ids)

FORM(zc_ready, (struct zc_client *c, uint64_t job, const uint64_t *at, uint32_t timeout_ms,
         struct zc_placement *ret),
     timeout_ms, c, job, at, timeout_ms, ret)

FORM(zc_job_close, (struct zc_client *c, uint64_t job), 0, c, job)

FORM(zc_job_destroy, (struct zc_client *c, const char *name), 0, c, name)

FORM(zc_job_share, (struct zc_client *c, const char *name, uint32_t share), 0, c, name, share)

FORM(zc_gpu_share, (struct zc_client *c, uint64_t job, struct zc_gpu_memory *ret), 0, c, job, ret)

FORM(zc_quota_set, (struct zc_client *c, const struct zc_quota *quota), 0, c, quota)

FORM(zc_drive_set, (struct zc_client *c, uint32_t number, bool drain), 0, c, number, drain)

FORM(zc_tier_set, (struct zc_client *c, const char *tier, uint64_t bytes), 0, c, tier, bytes)

FORM(zc_write, (struct zc_client *c, uint64_t shard, enum zc_what what, uint64_t first,
         uint64_t count, const float *staged),
     0, c, shard, what, first, count, staged)

FORM(zc_read, (struct zc_client *c, uint64_t shard, enum zc_what what, uint64_t first,
         uint64_t count, void *staged),
     0, c, shard, what, first, count, staged)

FORM(zc_fetch, (struct zc_client *c, const uint64_t *shards, uint32_t n, uint64_t min_version,
         uint32_t timeout_ms, struct zc_view *ret_views),
     timeout_ms, c, shards, n, min_version, timeout_ms, ret_views)

FORM(zc_push, (struct zc_client *c, const struct zc_push *push), 0, c, push)

FORM(zc_norms, (struct zc_client *c, uint64_t job, uint64_t step, struct zc_norm *ret),
     0, c, job, step, ret)

FORM(zc_tensor_norms, (struct zc_client *c, uint64_t job, uint64_t step, uint32_t ntensors,
         uint8_t *ret),
     0, c, job, step, ntensors, ret)

FORM(zc_step_tensors, (struct zc_client *c, uint64_t job, uint64_t step, bool limits,
         const double *values, uint32_t ntensors),
     0, c, job, step, limits, values, ntensors)

FORM(zc_job_about, (struct zc_client *c, uint64_t job, const struct zc_job_about *about),
     0, c, job, about)

FORM(zc_unit_norms, (struct zc_client *c, uint64_t job, uint64_t step, uint32_t first,
         uint32_t ntensors, uint8_t *ret),
     0, c, job, step, first, ntensors, ret)

FORM(zc_unit_sums, (struct zc_client *c, uint64_t job, uint64_t step, uint32_t unit,
         const uint8_t *sums, uint32_t ntensors),
     0, c, job, step, unit, sums, ntensors)

FORM(zc_step, (struct zc_client *c, uint64_t job, const struct zc_step *step,
         struct zc_stepped *ret),
     step->timeout_ms, c, job, step, ret)

FORM(zc_step_begin, (struct zc_client *c, uint64_t job, const struct zc_step *step,
         uint32_t micros),
     0, c, job, step, micros)

FORM(zc_step_classes, (struct zc_client *c, uint64_t job, uint64_t step,
         const struct zc_classes *classes),
     0, c, job, step, classes)

FORM(zc_job_optimizer, (struct zc_client *c, uint64_t job, enum zc_optimizer optimizer,
         enum zc_moments moments),
     0, c, job, optimizer, moments)

FORM(zc_abandon, (struct zc_client *c, uint64_t job, uint64_t step), 0, c, job, step)

FORM(zc_skip, (struct zc_client *c, uint64_t job, uint64_t step, enum zc_commit commit,
         uint32_t timeout_ms, struct zc_stepped *ret),
     timeout_ms, c, job, step, commit, timeout_ms, ret)

FORM(zc_commit, (struct zc_client *c, uint64_t job, enum zc_commit what, uint64_t iterations,
         uint32_t timeout_ms, struct zc_point *ret),
     timeout_ms, c, job, what, iterations, timeout_ms, ret)

FORM(zc_progress, (struct zc_client *c, uint64_t job, uint64_t iterations, uint64_t applied),
     0, c, job, iterations, applied)

FORM(zc_snapshot, (struct zc_client *c, const struct zc_snapshot *snapshot,
         struct zc_snapshot_row *ret),
     snapshot->timeout_ms, c, snapshot, ret)

FORM(zc_rollback, (struct zc_client *c, const char *job, const char *snapshot,
         struct zc_snapshot_row *ret),
     0, c, job, snapshot, ret)

FORM(zc_clone, (struct zc_client *c, const char *job, const char *snapshot, const char *name,
         struct zc_snapshot_row *ret),
     0, c, job, snapshot, name, ret)

FORM(zc_snapshot_destroy, (struct zc_client *c, const char *job, const char *snapshot),
     0, c, job, snapshot)

FORM(zc_reader_open, (struct zc_client *c, const char *job, const char *snapshot,
         uint64_t staging_bytes, struct zc_reader *ret),
     0, c, job, snapshot, staging_bytes, ret)

FORM(zc_reader_read, (struct zc_client *c, uint64_t reader, uint32_t unit, enum zc_what what,
         uint64_t first, uint64_t count, void *staged),
     0, c, reader, unit, what, first, count, staged)

FORM(zc_reader_close, (struct zc_client *c, uint64_t reader), 0, c, reader)

FORM(zc_note_put, (struct zc_client *c, uint64_t job, bool of_job, const void *note, size_t bytes),
     0, c, job, of_job, note, bytes)
/* clang-format on */
