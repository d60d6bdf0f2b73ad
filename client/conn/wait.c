/*
 * wait.c - zc_poll(), and the blocking forms: the same calls and a loop around it.
 *
 * WHEN TO STOP WAITING. The daemon ends every request itself, by its deadline where it has one, and
 * its loop never blocks. So a blocking form asks one question only: does the daemon live? When
 * nothing came for half of quiet_ns, it pings; when nothing came for all of it, the connection is
 * given up. A long write on a slow device is thus waited for, and a daemon that is stopped is not.
 * Where the caller named a deadline, the answer must also come within quiet_ns behind it.
 */
#include <errno.h>

#include "client/conn/conn.h"

#define NS_PER_MS UINT64_C(1000000)

int zc_poll(struct zc_client *c, int timeout_ms)
{
    uint64_t until_ns = UINT64_MAX;
    unsigned ran;
    int rc = zc_conn_usable(c);

    if (rc == 0 && c->running)
        rc = zc_fail(c, -EBUSY, "a callback may not poll");
    if (rc < 0)
        return rc;
    if (timeout_ms == 0)
        until_ns = 0;
    else if (timeout_ms > 0)
        until_ns = zb_now_ns() + (uint64_t)timeout_ms * NS_PER_MS;
    ran = zc_conn_turn(c, until_ns);
    return c->state == ZC_LOST ? zc_conn_usable(c) : (int)ran;
}

void zc_waiter_done(void *arg, int rc)
{
    struct zc_waiter *w = arg;

    w->finished = true;
    w->rc = rc;
    w->err = w->client->err; /* callbacks behind this one have sentences too */
}

static void wait_give_up(struct zc_client *c, uint64_t waited_ns, const char *what)
{
    struct zb_err why = { 0 };

    (void)zb_fail(&why, -ETIMEDOUT, "%s for %.1f s: the connection is given up", what,
                  (double)waited_ns / 1e9);
    (void)zc_conn_lose(c, &why);
}

static void wait_ping(struct zc_client *c)
{
    struct zb_err err = c->err;

    (void)zc_ping(c, NULL, NULL); /* where there is no room for it, replies are due */
    c->err = err;
}

int zc_wait_until(struct zc_waiter *w, int rc, uint64_t until_ns)
{
    struct zc_client *c = w->client;
    uint64_t begun_ns = zb_now_ns(), now_ns = begun_ns, pinged_ns = 0;

    if (rc < 0)
        return rc;
    while (!w->finished) {
        uint64_t heard_ns = zb_max_u64(begun_ns, c->heard_ns);
        bool pinged = pinged_ns > heard_ns;
        uint64_t quiet_ns = heard_ns + (pinged ? c->quiet_ns : c->quiet_ns / 2);

        if (now_ns >= until_ns) {
            wait_give_up(c, now_ns - begun_ns, "the answer did not come");
        } else if (now_ns >= quiet_ns && pinged) {
            wait_give_up(c, now_ns - heard_ns, "the daemon has said nothing");
        } else {
            if (now_ns >= quiet_ns) {
                wait_ping(c);
                pinged_ns = now_ns;
                quiet_ns = heard_ns + c->quiet_ns;
            }
            (void)zc_conn_turn(c, zb_min_u64(until_ns, quiet_ns));
            now_ns = zb_now_ns();
        }
    }
    if (w->rc < 0)
        c->err = w->err;
    return w->rc;
}

int zc_wait(struct zc_waiter *w, int rc, uint32_t timeout_ms)
{
    uint64_t until_ns = UINT64_MAX;

    if (timeout_ms > 0)
        until_ns = zb_now_ns() + timeout_ms * NS_PER_MS + w->client->quiet_ns;
    return zc_wait_until(w, rc, until_ns);
}

/* ---- the blocking forms */

int zc_ping_wait(struct zc_client *c)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_ping(c, zc_waiter_done, &w), 0);
}

int zc_job_open_wait(struct zc_client *c, const struct zc_job_options *options, struct zc_job *ret)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_job_open(c, options, ret, zc_waiter_done, &w), 0);
}

int zc_unit_define_wait(struct zc_client *c, uint64_t job, const struct zc_unit *unit)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_unit_define(c, job, unit, zc_waiter_done, &w), 0);
}

int zc_register_wait(struct zc_client *c, uint64_t job, const struct zc_range *ranges, uint32_t n,
                     uint64_t *ret_ids)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_register(c, job, ranges, n, ret_ids, zc_waiter_done, &w), 0);
}

int zc_ready_wait(struct zc_client *c, uint64_t job, const uint64_t *at, uint32_t timeout_ms,
                  struct zc_placement *ret)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_ready(c, job, at, timeout_ms, ret, zc_waiter_done, &w), timeout_ms);
}

int zc_job_close_wait(struct zc_client *c, uint64_t job)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_job_close(c, job, zc_waiter_done, &w), 0);
}

int zc_job_destroy_wait(struct zc_client *c, const char *name)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_job_destroy(c, name, zc_waiter_done, &w), 0);
}

int zc_job_share_wait(struct zc_client *c, const char *name, uint32_t share)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_job_share(c, name, share, zc_waiter_done, &w), 0);
}

int zc_gpu_share_wait(struct zc_client *c, uint64_t job, struct zc_gpu_memory *ret)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_gpu_share(c, job, ret, zc_waiter_done, &w), 0);
}

int zc_tier_set_wait(struct zc_client *c, const char *tier, uint64_t bytes)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_tier_set(c, tier, bytes, zc_waiter_done, &w), 0);
}

int zc_write_wait(struct zc_client *c, uint64_t shard, enum zc_what what, uint64_t first,
                  uint64_t count, const float *staged)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_write(c, shard, what, first, count, staged, zc_waiter_done, &w), 0);
}

int zc_read_wait(struct zc_client *c, uint64_t shard, enum zc_what what, uint64_t first,
                 uint64_t count, void *staged)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_read(c, shard, what, first, count, staged, zc_waiter_done, &w), 0);
}

int zc_fetch_wait(struct zc_client *c, const uint64_t *shards, uint32_t n, uint64_t min_version,
                  uint32_t timeout_ms, struct zc_view *ret_views)
{
    struct zc_waiter w = { .client = c };
    int rc = zc_fetch(c, shards, n, min_version, timeout_ms, ret_views, zc_waiter_done, &w);

    return zc_wait(&w, rc, timeout_ms);
}

int zc_push_wait(struct zc_client *c, const struct zc_push *push)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_push(c, push, zc_waiter_done, &w), 0);
}

int zc_norms_wait(struct zc_client *c, uint64_t job, uint64_t step, struct zc_norm *ret)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_norms(c, job, step, ret, zc_waiter_done, &w), 0);
}

int zc_step_wait(struct zc_client *c, uint64_t job, const struct zc_step *step,
                 struct zc_stepped *ret)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_step(c, job, step, ret, zc_waiter_done, &w), step->timeout_ms);
}

int zc_step_begin_wait(struct zc_client *c, uint64_t job, const struct zc_step *step,
                       uint32_t micros)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_step_begin(c, job, step, micros, zc_waiter_done, &w), 0);
}

int zc_skip_wait(struct zc_client *c, uint64_t job, uint64_t step, enum zc_commit commit,
                 uint32_t timeout_ms, struct zc_stepped *ret)
{
    struct zc_waiter w = { .client = c };
    int rc = zc_skip(c, job, step, commit, timeout_ms, ret, zc_waiter_done, &w);

    return zc_wait(&w, rc, timeout_ms);
}

int zc_commit_wait(struct zc_client *c, uint64_t job, enum zc_commit what, uint64_t iterations,
                   uint32_t timeout_ms, struct zc_point *ret)
{
    struct zc_waiter w = { .client = c };
    int rc = zc_commit(c, job, what, iterations, timeout_ms, ret, zc_waiter_done, &w);

    return zc_wait(&w, rc, timeout_ms);
}

int zc_progress_wait(struct zc_client *c, uint64_t job, uint64_t iterations, uint64_t applied)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_progress(c, job, iterations, applied, zc_waiter_done, &w), 0);
}

int zc_snapshot_wait(struct zc_client *c, const struct zc_snapshot *snapshot,
                     struct zc_snapshot_row *ret)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_snapshot(c, snapshot, ret, zc_waiter_done, &w), snapshot->timeout_ms);
}

int zc_rollback_wait(struct zc_client *c, const char *job, const char *snapshot,
                     struct zc_snapshot_row *ret)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_rollback(c, job, snapshot, ret, zc_waiter_done, &w), 0);
}

int zc_clone_wait(struct zc_client *c, const char *job, const char *snapshot, const char *name,
                  struct zc_snapshot_row *ret)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_clone(c, job, snapshot, name, ret, zc_waiter_done, &w), 0);
}

int zc_snapshot_destroy_wait(struct zc_client *c, const char *job, const char *snapshot)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_snapshot_destroy(c, job, snapshot, zc_waiter_done, &w), 0);
}

int zc_reader_open_wait(struct zc_client *c, const char *job, const char *snapshot,
                        uint64_t staging_bytes, struct zc_reader *ret)
{
    struct zc_waiter w = { .client = c };
    int rc = zc_reader_open(c, job, snapshot, staging_bytes, ret, zc_waiter_done, &w);

    return zc_wait(&w, rc, 0);
}

int zc_reader_read_wait(struct zc_client *c, uint64_t reader, uint32_t unit, enum zc_what what,
                        uint64_t first, uint64_t count, void *staged)
{
    struct zc_waiter w = { .client = c };
    int rc = zc_reader_read(c, reader, unit, what, first, count, staged, zc_waiter_done, &w);

    return zc_wait(&w, rc, 0);
}

int zc_reader_close_wait(struct zc_client *c, uint64_t reader)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_reader_close(c, reader, zc_waiter_done, &w), 0);
}

int zc_note_put_wait(struct zc_client *c, uint64_t job, bool of_job, const void *note, size_t bytes)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_note_put(c, job, of_job, note, bytes, zc_waiter_done, &w), 0);
}

int zc_note_get_wait(struct zc_client *c, uint64_t job, bool of_job, void *buf, size_t *ret_bytes)
{
    struct zc_note_part part = { .buf = buf };
    int rc;

    do {
        struct zc_waiter w = { .client = c };

        rc = zc_wait(&w, zc_note_get(c, job, of_job, &part, zc_waiter_done, &w), 0);
    } while (rc == 0 && part.got < part.total);
    if (rc == 0)
        *ret_bytes = part.total;
    return rc;
}
