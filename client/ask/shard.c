/*
 * shard.c - shards and their bytes: register, write, read, fetch, release, push; norms.
 */
#include <errno.h>
#include <string.h>

#include "client/ask/ask_priv.h"
#include "proto/wire.h"

static int reply_register(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                          int *fds)
{
    const Zp__ShardRegisterReply *r = (const Zp__ShardRegisterReply *)m;

    (void)fds;
    if (r->n_shards != call->spec.n)
        return zc_fail(c, -EPROTO, "%zu ids for %u ranges", r->n_shards, call->spec.n);
    memcpy(call->spec.ret, r->shards, r->n_shards * sizeof(r->shards[0]));
    return 0;
}

static const struct zc_method method_shard_register = { .id = ZP_SHARD_REGISTER,
                                                        .reply = reply_register,
                                                        .of_job = true };

int zc_register(struct zc_client *c, uint64_t job, const struct zc_range *ranges, uint32_t n,
                uint64_t *ret_ids, zc_done_fn *done, void *arg)
{
    Zp__ShardRegister m = ZP__SHARD_REGISTER__INIT;
    Zp__Range list[ZP_SHARDS_MAX], *pointers[ZP_SHARDS_MAX];
    int rc = zc_count_check(c, n);

    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < n; i++) {
        zp__range__init(&list[i]);
        list[i].unit = ranges[i].unit;
        list[i].first = ranges[i].first;
        list[i].count = ranges[i].count;
        pointers[i] = &list[i];
    }
    m.job = job;
    m.n_ranges = n;
    m.ranges = pointers;
    return zc_call_start(c, &(struct zc_call_spec){ .method = &method_shard_register,
                                                    .message = &m.base,
                                                    .ret = ret_ids,
                                                    .n = n,
                                                    .done = done,
                                                    .arg = arg });
}

/* ---- data */

static const struct zc_method method_write = { .id = ZP_WRITE, .of_job = true };

int zc_write(struct zc_client *c, uint64_t shard, enum zc_what what, uint64_t first, uint64_t count,
             const float *staged, zc_done_fn *done, void *arg)
{
    Zp__Write m = ZP__WRITE__INIT;
    int rc = zc_staging_offset(c, &c->staging, staged, &m.staging);

    if (rc < 0)
        return rc;
    m.shard = shard;
    m.what = what;
    m.first = first;
    m.count = count;
    return zc_ask(c, &method_write, &m.base, NULL, done, arg);
}

static const struct zc_method method_read = { .id = ZP_READ, .of_job = true };

int zc_read(struct zc_client *c, uint64_t shard, enum zc_what what, uint64_t first, uint64_t count,
            void *staged, zc_done_fn *done, void *arg)
{
    Zp__Read m = ZP__READ__INIT;
    int rc = zc_staging_offset(c, &c->staging, staged, &m.staging);

    if (rc < 0)
        return rc;
    m.shard = shard;
    m.what = what;
    m.first = first;
    m.count = count;
    return zc_ask(c, &method_read, &m.base, NULL, done, arg);
}

static int reply_fetch(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                       int *fds)
{
    const Zp__FetchReply *r = (const Zp__FetchReply *)m;
    struct zc_view *views = call->spec.ret;
    uint64_t all = c->gpu_params > 0 ? c->gpu_params : c->params.bytes;

    (void)fds;
    if (r->n_items != call->spec.n)
        return zc_fail(c, -EPROTO, "%zu views of %u shards", r->n_items, call->spec.n);
    for (size_t i = 0; i < r->n_items; i++) {
        const Zp__FetchItem *item = r->items[i];

        if ((!c->params.base && c->gpu_params == 0) ||
            !zb_range_inside(item->offset, item->bytes, all) || item->bytes == 0)
            return zc_fail(c, -EPROTO, "%llu bytes at %llu of a parameter arena of %llu",
                           (unsigned long long)item->bytes, (unsigned long long)item->offset,
                           (unsigned long long)all);
        if (item->version < call->spec.min_version)
            return zc_fail(c, -EPROTO, "version %llu where %llu was asked for",
                           (unsigned long long)item->version,
                           (unsigned long long)call->spec.min_version);
    }
    for (size_t i = 0; i < r->n_items; i++)
        views[i] = (struct zc_view){
            .data = c->gpu_params > 0 ? NULL : c->params.base + r->items[i]->offset,
            .bytes = r->items[i]->bytes,
            .version = r->items[i]->version,
            .offset = r->items[i]->offset,
        };
    return 0;
}

static const struct zc_method method_fetch = { .id = ZP_FETCH,
                                               .reply = reply_fetch,
                                               .of_job = true };

int zc_fetch(struct zc_client *c, const uint64_t *shards, uint32_t n, uint64_t min_version,
             uint32_t timeout_ms, struct zc_view *ret_views, zc_done_fn *done, void *arg)
{
    Zp__Fetch m = ZP__FETCH__INIT;
    int rc = zc_count_check(c, n);

    if (rc == 0 && !c->params.held)
        rc = zc_fail(c, -EBUSY, "a fetch before zc_ready() was done");
    if (rc < 0)
        return rc;
    m.n_shards = n;
    m.shards = UNCONST(uint64_t, shards);
    m.min_version = min_version;
    m.timeout_ms = timeout_ms;
    return zc_call_start(c, &(struct zc_call_spec){ .method = &method_fetch,
                                                    .message = &m.base,
                                                    .ret = ret_views,
                                                    .n = n,
                                                    .min_version = min_version,
                                                    .done = done,
                                                    .arg = arg });
}

int zc_release(struct zc_client *c, const uint64_t *shards, uint32_t n)
{
    int rc = zc_count_check(c, n);

    if (rc < 0)
        return rc;
    if (n > ZP_SHARDS_MAX - c->nreleases && (rc = zc_conn_releases(c)) < 0)
        return zc_fail(c, rc, "release: %m");
    memcpy(c->releases + c->nreleases, shards, n * sizeof(shards[0]));
    c->nreleases += n;
    return 0;
}

static const struct zc_method method_push = { .id = ZP_PUSH, .of_job = true };

int zc_push(struct zc_client *c, const struct zc_push *push, zc_done_fn *done, void *arg)
{
    Zp__Push m = ZP__PUSH__INIT;
    int rc = zc_staging_offset(c, &c->staging, push->staged, &m.staging);

    if (rc < 0)
        return rc;
    m.shard = push->shard;
    m.step = push->step;
    m.micro = push->micro;
    m.mode = push->add ? ZP_PUSH_ADD : ZP_PUSH_SET;
    m.dtype = push->dtype;
    m.first = push->first;
    m.count = push->count;
    return zc_ask(c, &method_push, &m.base, NULL, done, arg);
}

static int reply_norms(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                       int *fds)
{
    const Zp__NormsReply *r = (const Zp__NormsReply *)m;
    struct zc_norm *ret = call->spec.ret;

    (void)fds;
    if (r->sum_of_squares.len != sizeof(ret->sum_of_squares))
        return zc_fail(c, -EPROTO, "a sum of %zu bytes", r->sum_of_squares.len);
    memcpy(ret->sum_of_squares, r->sum_of_squares.data, sizeof(ret->sum_of_squares));
    ret->nonfinite = r->nonfinite;
    return 0;
}

static const struct zc_method method_norms = { .id = ZP_NORMS,
                                               .reply = reply_norms,
                                               .of_job = true };

int zc_norms(struct zc_client *c, uint64_t job, uint64_t step, struct zc_norm *ret,
             zc_done_fn *done, void *arg)
{
    Zp__Norms m = ZP__NORMS__INIT;

    m.job = job;
    m.step = step;
    return zc_ask(c, &method_norms, &m.base, ret, done, arg);
}
