/*
 * op/copy.c - write (initial values) and read (stored values): copies between staging and pages.
 *
 * MODEL. One struct copy for each request, one page operation (page/pageop.h) for each page. A
 * write excludes all other uses of its shard. Reads run together with other reads and with pins. A
 * push waits for reads of its gradient.
 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/op/early.h"
#include "daemon/op/member.h"
#include "daemon/op/push.h"
#include "daemon/op/requests.h"
#include "daemon/page/pageop.h"
#include "proto/shard.pb-c.h"

static bool bit_get(const uint8_t *bits, uint32_t i)
{
    return bits[i / 8] >> (i % 8) & 1;
}

static void bit_set(uint8_t *bits, uint32_t i, bool value)
{
    if (value)
        bits[i / 8] |= (uint8_t)(1u << (i % 8));
    else
        bits[i / 8] &= (uint8_t) ~(1u << (i % 8));
}

struct copy {
    struct zsd_req *req;
    struct zsd_member *member;
    struct zsd_shard *shard;
    bool write;
    bool grad;     /* reads the gradient */
    uint32_t left; /* page operations in flight, plus one during copy_start() */
    struct zb_err err;
};

static void copy_end(struct copy *c)
{
    struct zsd_shard *s = c->shard;
    struct zsd_job *job = s->job;
    struct zsd_member *m = c->member;

    s->copies--;
    if (c->write && s->copies == 0)
        zsd_shard_writing(s, false);
    job->grads_busy -= c->grad;
    if (c->grad && --s->grad_reads == 0) {
        zsd_push_resume(s);
        zsd_early_offer(s);
    }
    if (c->err.code != 0)
        zsd_reply_err(c->req, &c->err);
    else
        zsd_reply(c->req, NULL, -1);
    free(c);
    zsd_shard_wake(s);
    zsd_staging_put(m);
    zsd_job_idle(job);
    zsd_job_unhold(job);
}

static void copy_on_page(void *owner, const struct zsd_page_spec *spec, const struct zb_err *err)
{
    struct copy *c = owner;
    struct zsd_shard *s = c->shard;

    if (err)
        (void)zb_fail(&c->err, err->code, "%s", err->text);
    if (c->write) { /* a failed write may leave a mix of old and new values */
        zsd_shard_written(s, s->pages_written + !err - bit_get(s->written, spec->page));
        bit_set(s->written, spec->page, !err);
        bit_set(s->busy, spec->page, false);
    }
    if (--c->left == 0)
        copy_end(c);
}

/* Checks of both requests. NULL: req was answered. */
static uint8_t *copy_check(struct zsd_req *req, struct zsd_shard *s, uint64_t first, uint64_t count,
                           uint64_t staging, size_t elem_bytes)
{
    uint64_t per_page = s->job->core->page_elems, bytes;
    uint8_t *at;

    if (s->job->state != ZSD_READY) {
        zsd_refuse(req, -EBUSY, "job '%s' is stepping", s->job->name);
        return NULL;
    }
    if (count < 1 || first % per_page != 0 || !zb_range_inside(first, count, s->count) ||
        (count % per_page != 0 && first + count != s->count)) {
        zsd_refuse(
            req, -EINVAL,
            "elements %llu to %llu of a shard of %llu: ranges begin and end at multiples of %llu, "
            "or at its end",
            (unsigned long long)first, (unsigned long long)(first + count),
            (unsigned long long)s->count, (unsigned long long)per_page);
        return NULL;
    }
    if (!zb_mul_fits(count, elem_bytes, &bytes) ||
        !(at = zsd_staging_at(req->conn->member, staging, bytes))) {
        zsd_refuse(
            req, -EINVAL,
            "%llu elements at %llu are not inside the staging of %llu bytes, or not at a multiple "
            "of 64",
            (unsigned long long)count, (unsigned long long)staging,
            (unsigned long long)req->conn->member->staging.bytes);
        return NULL;
    }
    return at;
}

static void copy_start(struct zsd_req *req, struct zsd_shard *s, uint64_t first, uint64_t count,
                       uint8_t *staged, size_t elem_bytes, bool write, enum zk_what what)
{
    uint64_t per_page = s->job->core->page_elems;
    struct copy *c = calloc(1, sizeof(*c));

    if (!c) {
        zsd_refuse(req, -ENOMEM, "%llu elements of unit '%s'", (unsigned long long)count,
                   s->unit->name);
        return;
    }
    c->req = req;
    c->member = req->conn->member;
    c->shard = s;
    c->write = write;
    c->grad = !write && what == ZK_GRAD;
    c->left = 1;
    c->member->staging_users++;
    s->copies++;
    s->grad_reads += c->grad;
    s->job->grads_busy += c->grad;
    if (write)
        zsd_shard_writing(s, true);
    zsd_job_hold(s->job);
    zsd_job_active(s->job);
    for (uint64_t at = first; at < first + count && c->err.code == 0; at += per_page) {
        uint8_t *bytes = staged + (at - first) * elem_bytes;
        struct zsd_page_spec spec = { .kind = write ? ZSD_PAGE_INIT : ZSD_PAGE_READ,
                                      .shard = s,
                                      .page = (uint32_t)(at / per_page),
                                      .values = (const float *)(const void *)bytes,
                                      .out = bytes,
                                      .what = what,
                                      .done = copy_on_page,
                                      .owner = c };
        int rc;

        /* trained values are replaced, but their moments stay */
        spec.keep = write && s->job->iterations > 0 && bit_get(s->written, spec.page);
        rc = zsd_pageop_start(&spec);

        if (rc < 0)
            (void)zb_fail(&c->err, rc, "a page of unit '%s': %m", s->unit->name);
        else
            c->left++;
        if (write && rc == 0)
            bit_set(s->busy, spec.page, true);
    }
    if (--c->left == 0)
        copy_end(c);
}

/* Whether a shard can be written now. A durable job also needs places for both its saved and its
 * new values. */
static int write_check(const struct zsd_shard *s, struct zb_err *err)
{
    const struct zsd_job *job = s->job;
    struct zsd_saved *saved = job->saved;

    if (job->commit)
        return zb_fail(err, -EBUSY, "job '%s' is being committed", job->name);
    if (job->early_said > 0 || job->early_inflight > 0)
        return zb_fail(err, -EBUSY, "step %llu of job '%s' was begun",
                       (unsigned long long)job->iterations + 1, job->name);
    if (saved && saved->prepared)
        return zb_fail(err, -EBUSY,
                       "job '%s' has step %llu prepared, which must be committed or dropped first",
                       job->name, (unsigned long long)saved->prepared->iterations);
    if (saved && zsd_saved_kept(saved) && s->unit->layout.frozen)
        return zb_fail(err, -EINVAL, "unit '%s' of job '%s' is frozen, and was saved",
                       s->unit->name, job->name);
    if (zsd_saved_room(saved, err) < 0)
        return err->code;
    if (s->pins > 0 || s->fill || (s->copies > 0 && !s->writing))
        return zb_fail(err, -EBUSY, "shard %u of unit '%s' is pinned or being read",
                       zsd_shard_number(s), s->unit->name);
    return 0;
}

ZSD_REQUEST(zsd_write, Write)
{
    struct zb_err err = { 0 };
    struct zsd_shard *s = zsd_shard_own(req, q->shard, "write");
    enum zk_what what = q->what == 0 ? ZK_MASTER : (enum zk_what)q->what;
    uint8_t *staged;

    if (!s)
        return;
    if (q->what != 0 && (q->what < ZK_MASTER || q->what > ZK_EXP_AVG_SQ ||
                         (what != ZK_MASTER && !zk_page_has(&s->unit->layout, what)))) {
        zsd_refuse(req, -EINVAL, "what %u cannot be written to unit '%s'", q->what, s->unit->name);
        return;
    }
    staged = copy_check(req, s, q->first, q->count, q->staging, sizeof(float));
    if (!staged)
        return;
    if (write_check(s, &err) < 0) {
        zsd_reply_err(req, &err);
        return;
    }
    for (uint64_t at = q->first; at < q->first + q->count; at += s->job->core->page_elems)
        if (bit_get(s->busy, (uint32_t)(at / s->job->core->page_elems))) {
            zsd_refuse(req, -EBUSY, "elements from %llu of unit '%s' are being written already",
                       (unsigned long long)at, s->unit->name);
            return;
        } else if (what != ZK_MASTER &&
                   !bit_get(s->written, (uint32_t)(at / s->job->core->page_elems))) {
            zsd_refuse(req, -EAGAIN, "elements from %llu of unit '%s' have no masters yet",
                       (unsigned long long)at, s->unit->name);
            return;
        }
    if (!zsd_shard_resident(s))
        zsd_shard_uncache(s);
    s->job->rewritten = true;
    copy_start(req, s, q->first, q->count, staged, sizeof(float), true, what);
}

ZSD_REQUEST(zsd_read, Read)
{
    struct zsd_shard *s = zsd_shard_of(req, q->shard);
    enum zk_what what = q->what;
    uint8_t *staged;

    if (!s)
        return;
    if (what < ZK_PARAM || what > ZK_GRAD || !zk_page_has(&s->unit->layout, what)) {
        zsd_refuse(req, -EINVAL, "unit '%s' has nothing of kind %u to read", s->unit->name,
                   q->what);
        return;
    }
    staged = copy_check(req, s, q->first, q->count, q->staging,
                        what == ZK_PARAM ? zb_dtype_bytes(s->unit->layout.dtype) : sizeof(float));
    if (!staged)
        return;
    if (s->writing || (what == ZK_GRAD && (s->pushing > 0 || !zb_list_empty(&s->push_waiters)))) {
        zsd_refuse(req, -EBUSY, "shard %u of unit '%s' is being written", zsd_shard_number(s),
                   s->unit->name);
        return;
    }
    if (what == ZK_GRAD && zsd_page_rings(s, s->npages - 1)) {
        zsd_refuse(req, -ENOTSUP, "unit '%s' does not hold its gradient: its job was opened so",
                   s->unit->name);
        return;
    }
    if (what == ZK_GRAD && (s->early || s->early_inflight > 0)) {
        zsd_refuse(req, -EBUSY, "the gradient of shard %u of unit '%s' is being stepped",
                   zsd_shard_number(s), s->unit->name);
        return;
    }
    if (!zsd_shard_live(s)) {
        zsd_refuse(req, -EAGAIN, "shard %u of unit '%s' has no initial values yet",
                   zsd_shard_number(s), s->unit->name);
        return;
    }
    copy_start(req, s, q->first, q->count, staged,
               what == ZK_PARAM ? zb_dtype_bytes(s->unit->layout.dtype) : sizeof(float), false,
               what);
}
