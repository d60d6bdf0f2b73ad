/*
 * method.c - the rows of methods, and for each how its request is written and its reply read.
 *
 * What the caller gave is written into a message at once, so nothing of it is looked at after a
 * call returns; a call in parts keeps a copy. What the daemon answers is checked against what was
 * asked (C3): -EPROTO from here ends the connection.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/conn/conn.h"

/** Tensors in one part of a unit: their names and shapes at their longest fit a body. */
#define PART_TENSORS 256u
_Static_assert(PART_TENSORS *(ZP_TENSOR_MAX + 10 * ZP_DIMS_MAX + 32) + 2 * ZP_NAME_MAX <
                   ZP_BODY_MAX,
               "a part of a unit fits a frame");

int zc_name_check(struct zc_client *c, const char *what, const char *name, unsigned max)
{
    if (!name)
        return zc_fail(c, -EINVAL, "%s without a name", what);
    if (strnlen(name, max + 1) > max)
        return zc_fail(c, -EINVAL, "the name of %s is longer than %u bytes: '%.32s...'", what, max,
                       name);
    return 0;
}

/** 0, or the failure is recorded: so many shards cannot be named at once. */
static int count_check(struct zc_client *c, uint32_t n)
{
    int rc = zc_conn_usable(c);

    if (rc == 0 && (n < 1 || n > c->server.shards_max))
        rc = zc_fail(c, -EINVAL, "%u shards in one call: from 1 to %u", n, c->server.shards_max);
    return rc;
}

int zc_staging_offset(struct zc_client *c, const struct zc_map *map, const void *staged,
                      uint64_t *ret)
{
    uint64_t at = (uint64_t)(uintptr_t)staged - (uint64_t)(uintptr_t)map->base;
    int rc = zc_conn_usable(c);

    if (rc == 0 && (!map->base || at >= map->bytes))
        rc = zc_fail(c, -EINVAL, "the bytes are not in the %s's staging",
                     map == &c->reader ? "reader" : "job");
    if (rc == 0)
        *ret = at;
    return rc;
}

/* ---- hello, ping */

int zc_hello(struct zc_client *c, const char *program, zc_done_fn *done, void *arg)
{
    Zp__Hello m = ZP__HELLO__INIT;

    m.version_min = ZP_VERSION_MIN;
    m.version_max = ZP_VERSION_MAX;
    m.program = UNCONST(char, program);
    return zc_call_start(
        c,
        &(struct zc_call_spec){
            .method = ZP_HELLO, .message = &m.base, .ret = &c->server, .done = done, .arg = arg });
}

static int reply_hello(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                       int *fds)
{
    const Zp__HelloReply *r = (const Zp__HelloReply *)m;
    struct zc_server *s = call->spec.ret;

    (void)fds;
    if (r->version < ZP_VERSION_MIN || r->version > ZP_VERSION_MAX)
        return zc_fail(c, -EPROTO, "the daemon chose version %u of the protocol", r->version);
    if (r->instance.len != sizeof(s->instance) || r->block_elems == 0 || r->page_elems == 0 ||
        r->page_elems % r->block_elems != 0 || r->shards_max == 0)
        return zc_fail(c, -EPROTO, "hello with pages of %u, blocks of %u, %u shards", r->page_elems,
                       r->block_elems, r->shards_max);
    s->version = r->version;
    s->page_elems = r->page_elems;
    s->block_elems = r->block_elems;
    s->shards_max = (uint32_t)zb_min_u64(r->shards_max, ZP_SHARDS_MAX);
    memcpy(s->instance, r->instance.data, sizeof(s->instance));
    s->pid = r->pid;
    (void)snprintf(s->server, sizeof(s->server), "%s", r->server);
    return 0;
}

int zc_ping(struct zc_client *c, zc_done_fn *done, void *arg)
{
    Zp__Empty m = ZP__EMPTY__INIT;

    return zc_call_start(c, &(struct zc_call_spec){
                                .method = ZP_PING, .message = &m.base, .done = done, .arg = arg });
}

/* ---- jobs */

int zc_job_open(struct zc_client *c, const struct zc_job_options *options, struct zc_job *ret,
                zc_done_fn *done, void *arg)
{
    Zp__JobOpen m = ZP__JOB_OPEN__INIT;
    int rc = zc_name_check(c, "a job", options->name, ZC_NAME_MAX);

    if (rc < 0)
        return rc;
    m.name = UNCONST(char, options->name);
    m.rank = options->rank;
    m.world = options->world;
    m.keep = options->keep;
    m.attach = options->attach;
    m.staging_bytes = options->staging_bytes;
    m.offload_param = options->offload_param ? options->offload_param : ZC_NVME;
    m.offload_optimizer = options->offload_optimizer ? options->offload_optimizer : ZC_NVME;
    m.offload_grad = options->offload_grad ? options->offload_grad : ZC_NVME;
    m.host_bytes_max = options->host_bytes_max;
    m.groups = options->groups;
    m.optimizer = options->optimizer ? options->optimizer : ZC_ADAMW;
    m.moments = options->moments ? options->moments : ZC_MOMENTS_F32;
    m.durable = options->durable;
    m.takeover = options->takeover;
    m.epoch = options->epoch;
    m.share = options->share;
    m.early = options->early;
    c->params_writable = options->writable;
    m.device = UNCONST(char, options->device ? options->device : "");
    return zc_call_start(
        c, &(struct zc_call_spec){
               .method = ZP_JOB_OPEN, .message = &m.base, .ret = ret, .done = done, .arg = arg });
}

static int points_check(struct zc_client *c, const Zp__JobOpenReply *r)
{
    if (r->n_points > ZC_POINTS_MAX)
        return zc_fail(c, -EPROTO, "a job with %zu points to go on from", r->n_points);
    for (size_t i = 0; i < r->n_points; i++)
        if (r->points[i]->kind < ZC_POINT_MEMORY || r->points[i]->kind > ZC_POINT_COMMITTED)
            return zc_fail(c, -EPROTO, "a point of kind %u", r->points[i]->kind);
    return 0;
}

static int reply_job_open(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                          int *fds)
{
    const Zp__JobOpenReply *r = (const Zp__JobOpenReply *)m;
    struct zc_job *ret = call->spec.ret;
    int rc;

    if (r->job == 0)
        return zc_fail(c, -EPROTO, "a job without a number");
    rc = points_check(c, r);
    if (rc == 0)
        rc = zc_map_open(c, &c->staging, "staging", fds[0], r->staging_bytes, true);
    if (rc < 0)
        return rc;
    c->job = r->job;
    *ret = (struct zc_job){ .id = r->job,
                            .iterations = r->iterations,
                            .applied = r->applied,
                            .staging = c->staging.base,
                            .staging_bytes = c->staging.bytes,
                            .epoch = r->epoch,
                            .world = r->world,
                            .npoints = (uint32_t)r->n_points };
    for (size_t i = 0; i < r->n_points; i++)
        ret->points[i] = (struct zc_point){ .kind = (enum zc_point_kind)r->points[i]->kind,
                                            .iterations = r->points[i]->iterations,
                                            .applied = r->points[i]->applied };
    return 0;
}

int zc_ready(struct zc_client *c, uint64_t job, const uint64_t *at, uint32_t timeout_ms,
             struct zc_placement *ret, zc_done_fn *done, void *arg)
{
    Zp__Ready m = ZP__READY__INIT;

    m.job = job;
    m.timeout_ms = timeout_ms;
    m.at_point = at != NULL;
    m.iterations = at ? *at : 0;
    m.writable = c->params_writable;
    return zc_call_start(
        c, &(struct zc_call_spec){
               .method = ZP_READY, .message = &m.base, .ret = ret, .done = done, .arg = arg });
}

static int reply_ready(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                       int *fds)
{
    const Zp__ReadyReply *r = (const Zp__ReadyReply *)m;
    struct zc_placement *ret = call->spec.ret;
    int rc = zc_map_open(c, &c->params, "parameter", fds[0], r->arena_bytes, c->params_writable);

    if (rc < 0)
        return rc;
    c->gpu_params = r->gpu_params;
    *ret = (struct zc_placement){ .arena_bytes = r->arena_bytes,
                                  .ring_bytes = r->ring_bytes,
                                  .host_bytes = r->host_bytes,
                                  .nvme_bytes = r->nvme_bytes,
                                  .iterations = r->iterations,
                                  .applied = r->applied,
                                  .early = r->early,
                                  .grads_on_nvme = r->grads_on_nvme,
                                  .arena = c->params.base,
                                  .gpu_params = r->gpu_params };
    (void)snprintf(ret->gpu_why, sizeof(ret->gpu_why), "%s", r->gpu_why);
    return 0;
}

int zc_gpu_share(struct zc_client *c, uint64_t job, struct zc_gpu_memory *ret, zc_done_fn *done,
                 void *arg)
{
    Zp__JobRef m = ZP__JOB_REF__INIT;

    m.job = job;
    return zc_call_start(
        c, &(struct zc_call_spec){
               .method = ZP_GPU_SHARE, .message = &m.base, .ret = ret, .done = done, .arg = arg });
}

static int reply_gpu_share(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                           int *fds)
{
    const Zp__GpuShareReply *r = (const Zp__GpuShareReply *)m;

    if (r->bytes < c->gpu_params)
        return zc_fail(c, -EPROTO, "%llu bytes of GPU memory, and %llu of parameters in it",
                       (unsigned long long)r->bytes, (unsigned long long)c->gpu_params);
    *(struct zc_gpu_memory *)call->spec.ret =
        (struct zc_gpu_memory){ .mem_fd = fds[0], .mark_fd = fds[1], .bytes = r->bytes };
    fds[0] = fds[1] = -1;
    return 0;
}

int zc_job_close(struct zc_client *c, uint64_t job, zc_done_fn *done, void *arg)
{
    Zp__JobRef m = ZP__JOB_REF__INIT;

    m.job = job;
    return zc_call_start(
        c, &(struct zc_call_spec){
               .method = ZP_JOB_CLOSE, .message = &m.base, .done = done, .arg = arg });
}

static int reply_job_close(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                           int *fds)
{
    (void)call;
    (void)m;
    (void)fds;
    zc_map_close(&c->staging);
    zc_map_close(&c->params);
    c->gpu_params = 0;
    c->job = 0;
    return 0;
}

int zc_job_destroy(struct zc_client *c, const char *name, zc_done_fn *done, void *arg)
{
    Zp__JobName m = ZP__JOB_NAME__INIT;
    int rc = zc_name_check(c, "a job", name, ZC_NAME_MAX);

    if (rc < 0)
        return rc;
    m.name = UNCONST(char, name);
    return zc_call_start(
        c, &(struct zc_call_spec){
               .method = ZP_JOB_DESTROY, .message = &m.base, .done = done, .arg = arg });
}

int zc_job_share(struct zc_client *c, const char *name, uint32_t share, zc_done_fn *done, void *arg)
{
    Zp__JobShare m = ZP__JOB_SHARE__INIT;
    int rc = zc_name_check(c, "a job", name, ZC_NAME_MAX);

    if (rc < 0)
        return rc;
    m.name = UNCONST(char, name);
    m.share = share;
    return zc_call_start(
        c, &(struct zc_call_spec){
               .method = ZP_JOB_SHARE, .message = &m.base, .done = done, .arg = arg });
}

int zc_tier_set(struct zc_client *c, const char *tier, uint64_t bytes, zc_done_fn *done, void *arg)
{
    Zp__TierSet m = ZP__TIER_SET__INIT;
    int rc = zc_name_check(c, "a tier", tier, ZC_NAME_MAX);

    if (rc < 0)
        return rc;
    m.name = UNCONST(char, tier);
    m.bytes = bytes;
    return zc_call_start(c,
                         &(struct zc_call_spec){
                             .method = ZP_TIER_SET, .message = &m.base, .done = done, .arg = arg });
}

/* ---- units, in parts: call->at counts the tensors that were sent */

static int unit_check(struct zc_client *c, const struct zc_unit *unit)
{
    int rc = zc_name_check(c, "a unit", unit->name, ZC_NAME_MAX);

    for (uint32_t i = 0; rc == 0 && i < unit->ntensors; i++) {
        const struct zc_tensor *t = &unit->tensors[i];

        rc = zc_name_check(c, "a tensor", t->name, ZC_TENSOR_MAX);
        if (rc == 0 && t->ndims > ZC_DIMS_MAX)
            rc = zc_fail(c, -EINVAL, "tensor '%s' has %u dimensions: at most %d", t->name, t->ndims,
                         ZC_DIMS_MAX);
    }
    return rc;
}

struct unit_copy {
    uint64_t job;
    struct zc_unit unit;
    struct zc_tensor tensors[]; /* and behind them the names */
};

/** NULL: no memory. */
static struct unit_copy *unit_copy(uint64_t job, const struct zc_unit *unit)
{
    size_t tensors_bytes = unit->ntensors * sizeof(struct zc_tensor);
    size_t bytes = sizeof(struct unit_copy) + tensors_bytes + strlen(unit->name) + 1;
    struct zc_tensor *tensors;
    struct unit_copy *copy;
    char *text;

    for (uint32_t i = 0; i < unit->ntensors; i++)
        bytes += strlen(unit->tensors[i].name) + 1;
    copy = malloc(bytes);
    if (!copy)
        return NULL;
    tensors = copy->tensors;
    text = (char *)tensors + tensors_bytes;
    copy->job = job;
    copy->unit = *unit;
    copy->unit.tensors = tensors;
    copy->unit.name = strcpy(text, unit->name);
    text += strlen(text) + 1;
    for (uint32_t i = 0; i < unit->ntensors; i++) {
        tensors[i] = unit->tensors[i];
        tensors[i].name = strcpy(text, unit->tensors[i].name);
        text += strlen(text) + 1;
    }
    return copy;
}

/** A part of a unit, as a message. */
struct unit_part {
    Zp__UnitDefine m;
    Zp__Tensor tensors[PART_TENSORS], *list[PART_TENSORS];
};

/** Fills a part from tensor `at` on: the number of its tensors. */
static uint32_t unit_part(struct unit_part *part, uint64_t job, const struct zc_unit *unit,
                          uint32_t at)
{
    uint32_t n = (uint32_t)zb_min_u64(unit->ntensors - at, PART_TENSORS);

    zp__unit_define__init(&part->m);
    part->m.job = job;
    part->m.unit = unit->index;
    part->m.name = UNCONST(char, unit->name);
    part->m.elems = unit->elems;
    part->m.dtype = unit->dtype;
    part->m.grad_dtype = unit->grad_dtype;
    part->m.frozen = unit->frozen;
    part->m.quantized = unit->quantized;
    part->m.last = at + n == unit->ntensors;
    part->m.n_tensors = n;
    part->m.tensors = part->list;
    for (uint32_t i = 0; i < n; i++) {
        const struct zc_tensor *t = &unit->tensors[at + i];

        zp__tensor__init(&part->tensors[i]);
        part->tensors[i].name = UNCONST(char, t->name);
        part->tensors[i].first = t->first;
        part->tensors[i].n_dims = t->ndims;
        part->tensors[i].dims = UNCONST(uint64_t, t->dims);
        part->tensors[i].group = t->group;
        part->list[i] = &part->tensors[i];
    }
    return n;
}

int zc_unit_define(struct zc_client *c, uint64_t job, const struct zc_unit *unit, zc_done_fn *done,
                   void *arg)
{
    struct zc_call_spec spec = { .method = ZP_UNIT_DEFINE, .done = done, .arg = arg };
    struct unit_part part;
    int rc = unit_check(c, unit);

    if (rc < 0)
        return rc;
    if (unit_part(&part, job, unit, 0) < unit->ntensors) {
        spec.copy = unit_copy(job, unit);
        if (!spec.copy)
            return zc_fail(c, -ENOMEM, "unit '%s': %m", unit->name);
    }
    spec.message = &part.m.base;
    return zc_call_start(c, &spec);
}

static int next_unit(struct zc_client *c, struct zc_call *call)
{
    const struct unit_copy *copy = call->spec.copy;
    struct unit_part part;
    int rc;

    if (!copy || call->at + PART_TENSORS >= copy->unit.ntensors)
        return 0;
    call->at += PART_TENSORS;
    (void)unit_part(&part, copy->job, &copy->unit, (uint32_t)call->at);
    rc = zc_call_again(c, call, &part.m.base);
    return rc < 0 ? rc : 1;
}

/* ---- shards */

int zc_register(struct zc_client *c, uint64_t job, const struct zc_range *ranges, uint32_t n,
                uint64_t *ret_ids, zc_done_fn *done, void *arg)
{
    Zp__ShardRegister m = ZP__SHARD_REGISTER__INIT;
    Zp__Range list[ZP_SHARDS_MAX], *pointers[ZP_SHARDS_MAX];
    int rc = count_check(c, n);

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
    return zc_call_start(c, &(struct zc_call_spec){ .method = ZP_SHARD_REGISTER,
                                                    .message = &m.base,
                                                    .ret = ret_ids,
                                                    .n = n,
                                                    .done = done,
                                                    .arg = arg });
}

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

/* ---- data */

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
    return zc_call_start(c, &(struct zc_call_spec){
                                .method = ZP_WRITE, .message = &m.base, .done = done, .arg = arg });
}

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
    return zc_call_start(c, &(struct zc_call_spec){
                                .method = ZP_READ, .message = &m.base, .done = done, .arg = arg });
}

int zc_fetch(struct zc_client *c, const uint64_t *shards, uint32_t n, uint64_t min_version,
             uint32_t timeout_ms, struct zc_view *ret_views, zc_done_fn *done, void *arg)
{
    Zp__Fetch m = ZP__FETCH__INIT;
    int rc = count_check(c, n);

    if (rc == 0 && !c->params.held)
        rc = zc_fail(c, -EBUSY, "a fetch before zc_ready() was done");
    if (rc < 0)
        return rc;
    m.n_shards = n;
    m.shards = UNCONST(uint64_t, shards);
    m.min_version = min_version;
    m.timeout_ms = timeout_ms;
    return zc_call_start(c, &(struct zc_call_spec){ .method = ZP_FETCH,
                                                    .message = &m.base,
                                                    .ret = ret_views,
                                                    .n = n,
                                                    .min_version = min_version,
                                                    .done = done,
                                                    .arg = arg });
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

int zc_release(struct zc_client *c, const uint64_t *shards, uint32_t n)
{
    int rc = count_check(c, n);

    if (rc < 0)
        return rc;
    if (n > ZP_SHARDS_MAX - c->nreleases && (rc = zc_conn_releases(c)) < 0)
        return zc_fail(c, rc, "release: %m");
    memcpy(c->releases + c->nreleases, shards, n * sizeof(shards[0]));
    c->nreleases += n;
    return 0;
}

int zc_push(struct zc_client *c, const struct zc_push *push, zc_done_fn *done, void *arg)
{
    Zp__Push m = ZP__PUSH__INIT;
    int rc = zc_staging_offset(c, &c->staging, push->staged, &m.staging);

    if (rc < 0)
        return rc;
    m.shard = push->shard;
    m.step = push->step;
    m.micro = push->micro;
    m.mode = push->add ? 2 : 1;
    m.dtype = push->dtype;
    m.first = push->first;
    m.count = push->count;
    return zc_call_start(c, &(struct zc_call_spec){
                                .method = ZP_PUSH, .message = &m.base, .done = done, .arg = arg });
}

int zc_norms(struct zc_client *c, uint64_t job, uint64_t step, struct zc_norm *ret,
             zc_done_fn *done, void *arg)
{
    Zp__Norms m = ZP__NORMS__INIT;

    m.job = job;
    m.step = step;
    return zc_call_start(
        c, &(struct zc_call_spec){
               .method = ZP_NORMS, .message = &m.base, .ret = ret, .done = done, .arg = arg });
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

/* ---- the step */

/* The scalars of a step, as messages: how many, or a negative errno. */
static int step_groups(struct zc_client *c, const struct zc_step *step, Zp__GroupScalars *groups,
                       Zp__GroupScalars **pointers)
{
    if (step->ngroups > ZP_GROUPS_MAX)
        return zc_fail(c, -EINVAL, "%u parameter groups: at most %u", step->ngroups, ZP_GROUPS_MAX);
    for (uint32_t i = 0; i < step->ngroups; i++) {
        zp__group_scalars__init(&groups[i]);
        groups[i].lr = step->groups[i].lr;
        groups[i].beta1 = step->groups[i].beta1;
        groups[i].beta2 = step->groups[i].beta2;
        groups[i].eps = step->groups[i].eps;
        groups[i].weight_decay = step->groups[i].weight_decay;
        groups[i].momentum = step->groups[i].momentum;
        groups[i].dampening = step->groups[i].dampening;
        groups[i].nesterov = step->groups[i].nesterov;
        groups[i].lr_decay = step->groups[i].lr_decay;
        pointers[i] = &groups[i];
    }
    return (int)step->ngroups;
}

int zc_step(struct zc_client *c, uint64_t job, const struct zc_step *step, struct zc_stepped *ret,
            zc_done_fn *done, void *arg)
{
    Zp__Step m = ZP__STEP__INIT;
    Zp__GroupScalars groups[ZP_GROUPS_MAX], *pointers[ZP_GROUPS_MAX];
    int n = step_groups(c, step, groups, pointers);

    if (n < 0)
        return n;
    m.job = job;
    m.step = step->step;
    m.scale = step->scale;
    m.n_groups = (size_t)n;
    m.groups = pointers;
    m.commit = step->commit;
    m.timeout_ms = step->timeout_ms;
    return zc_call_start(
        c, &(struct zc_call_spec){
               .method = ZP_STEP, .message = &m.base, .ret = ret, .done = done, .arg = arg });
}

int zc_step_begin(struct zc_client *c, uint64_t job, const struct zc_step *step, uint32_t micros,
                  zc_done_fn *done, void *arg)
{
    Zp__StepBegin m = ZP__STEP_BEGIN__INIT;
    Zp__GroupScalars groups[ZP_GROUPS_MAX], *pointers[ZP_GROUPS_MAX];
    int n = step_groups(c, step, groups, pointers);

    if (n < 0)
        return n;
    m.job = job;
    m.step = step->step;
    m.scale = step->scale;
    m.n_groups = (size_t)n;
    m.groups = pointers;
    m.micros = micros;
    return zc_call_start(
        c, &(struct zc_call_spec){
               .method = ZP_STEP_BEGIN, .message = &m.base, .done = done, .arg = arg });
}

int zc_skip(struct zc_client *c, uint64_t job, uint64_t step, enum zc_commit commit,
            uint32_t timeout_ms, struct zc_stepped *ret, zc_done_fn *done, void *arg)
{
    Zp__Skip m = ZP__SKIP__INIT;

    m.job = job;
    m.step = step;
    m.commit = commit;
    m.timeout_ms = timeout_ms;
    return zc_call_start(
        c, &(struct zc_call_spec){
               .method = ZP_SKIP, .message = &m.base, .ret = ret, .done = done, .arg = arg });
}

static int reply_step(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                      int *fds)
{
    const Zp__StepReply *r = (const Zp__StepReply *)m;
    struct zc_stepped *ret = call->spec.ret;

    (void)fds;
    if (r->commit_code > 0)
        return zc_fail(c, -EPROTO, "a step with a commit of code %d", r->commit_code);
    *ret = (struct zc_stepped){ .iterations = r->iterations,
                                .applied = r->applied,
                                .commit_code = r->commit_code };
    if (r->commit_code < 0)
        (void)snprintf(ret->commit_text, sizeof(ret->commit_text), "%s",
                       r->commit_text[0] ? r->commit_text : zc_strerror(r->commit_code));
    return 0;
}

int zc_commit(struct zc_client *c, uint64_t job, enum zc_commit what, uint64_t iterations,
              uint32_t timeout_ms, struct zc_point *ret, zc_done_fn *done, void *arg)
{
    Zp__Commit m = ZP__COMMIT__INIT;

    m.job = job;
    m.what = what;
    m.iterations = iterations;
    m.timeout_ms = timeout_ms;
    return zc_call_start(c, &(struct zc_call_spec){ .method = ZP_COMMIT,
                                                    .message = &m.base,
                                                    .ret = ret,
                                                    .n = what == ZC_COMMIT_PREPARE
                                                             ? ZC_POINT_PREPARED
                                                             : ZC_POINT_COMMITTED,
                                                    .done = done,
                                                    .arg = arg });
}

static int reply_commit(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                        int *fds)
{
    const Zp__CommitReply *r = (const Zp__CommitReply *)m;
    struct zc_point *ret = call->spec.ret;

    (void)c;
    (void)fds;
    *ret = (struct zc_point){ .kind = (enum zc_point_kind)call->spec.n,
                              .iterations = r->iterations,
                              .applied = r->applied };
    return 0;
}

int zc_progress(struct zc_client *c, uint64_t job, uint64_t iterations, uint64_t applied,
                zc_done_fn *done, void *arg)
{
    Zp__Progress m = ZP__PROGRESS__INIT;

    m.job = job;
    m.iterations = iterations;
    m.applied = applied;
    return zc_call_start(c,
                         &(struct zc_call_spec){
                             .method = ZP_PROGRESS, .message = &m.base, .done = done, .arg = arg });
}

/* ---- snapshots */

/** A name that may be left out: "" then. */
static char *or_empty(const char *name)
{
    return UNCONST(char, name ? name : "");
}

static int snapshot_check(struct zc_client *c, const char *job, const char *snapshot)
{
    int rc = zc_name_check(c, "a job", job, ZC_NAME_MAX);

    return rc < 0 ? rc : zc_name_check(c, "a snapshot", or_empty(snapshot), ZC_NAME_MAX);
}

int zc_snapshot(struct zc_client *c, const struct zc_snapshot *snapshot,
                struct zc_snapshot_row *ret, zc_done_fn *done, void *arg)
{
    Zp__SnapshotTake m = ZP__SNAPSHOT_TAKE__INIT;
    int rc = snapshot_check(c, snapshot->job, snapshot->name);

    if (rc < 0)
        return rc;
    m.job = UNCONST(char, snapshot->job);
    m.name = or_empty(snapshot->name);
    m.next = snapshot->next;
    m.retain = snapshot->retain;
    m.timeout_ms = snapshot->timeout_ms;
    return zc_call_start(
        c, &(struct zc_call_spec){
               .method = ZP_SNAPSHOT, .message = &m.base, .ret = ret, .done = done, .arg = arg });
}

static int snapshot_ref(struct zc_client *c, uint16_t method, const char *job, const char *snapshot,
                        struct zc_snapshot_row *ret, zc_done_fn *done, void *arg)
{
    Zp__SnapshotRef m = ZP__SNAPSHOT_REF__INIT;
    int rc = snapshot_check(c, job, snapshot);

    if (rc < 0)
        return rc;
    m.job = UNCONST(char, job);
    m.name = or_empty(snapshot);
    return zc_call_start(
        c, &(struct zc_call_spec){
               .method = method, .message = &m.base, .ret = ret, .done = done, .arg = arg });
}

int zc_rollback(struct zc_client *c, const char *job, const char *snapshot,
                struct zc_snapshot_row *ret, zc_done_fn *done, void *arg)
{
    return snapshot_ref(c, ZP_ROLLBACK, job, snapshot, ret, done, arg);
}

int zc_snapshot_destroy(struct zc_client *c, const char *job, const char *snapshot,
                        zc_done_fn *done, void *arg)
{
    return snapshot_ref(c, ZP_SNAPSHOT_DESTROY, job, snapshot, NULL, done, arg);
}

int zc_clone(struct zc_client *c, const char *job, const char *snapshot, const char *name,
             struct zc_snapshot_row *ret, zc_done_fn *done, void *arg)
{
    Zp__Clone m = ZP__CLONE__INIT;
    int rc = snapshot_check(c, job, snapshot);

    if (rc == 0)
        rc = zc_name_check(c, "a job", name, ZC_NAME_MAX);
    if (rc < 0)
        return rc;
    m.job = UNCONST(char, job);
    m.snapshot = or_empty(snapshot);
    m.name = UNCONST(char, name);
    return zc_call_start(
        c, &(struct zc_call_spec){
               .method = ZP_CLONE, .message = &m.base, .ret = ret, .done = done, .arg = arg });
}

static int reply_snapshot(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                          int *fds)
{
    (void)c;
    (void)fds;
    *(struct zc_snapshot_row *)call->spec.ret = (struct zc_snapshot_row){ 0 };
    zc_snapshot_row(call->spec.ret, (const Zp__SnapshotRow *)m);
    return 0;
}

/* ---- notes, in parts: call->at counts the bytes that were sent */

struct note_copy {
    uint64_t job;
    bool of_job;
    uint32_t bytes;
    uint8_t data[];
};

/** A part of a note from byte `at` on: the number of its bytes. */
static uint32_t note_part(Zp__NotePut *m, const struct note_copy *note, uint32_t at)
{
    uint32_t n = (uint32_t)zb_min_u64(note->bytes - at, ZP_NOTE_PART);

    zp__note_put__init(m);
    m->job = note->job;
    m->of_job = note->of_job;
    m->total = note->bytes;
    m->offset = at;
    m->data.data = UNCONST(uint8_t, note->data + at);
    m->data.len = n;
    return n;
}

int zc_note_put(struct zc_client *c, uint64_t job, bool of_job, const void *note, size_t bytes,
                zc_done_fn *done, void *arg)
{
    struct zc_call_spec spec = { .method = ZP_NOTE_PUT, .done = done, .arg = arg };
    struct note_copy *copy;
    Zp__NotePut m;

    if (bytes > ZC_NOTE_MAX)
        return zc_fail(c, -EINVAL, "a note of %zu bytes: at most %d", bytes, ZC_NOTE_MAX);
    copy = malloc(sizeof(*copy) + bytes);
    if (!copy)
        return zc_fail(c, -ENOMEM, "a note of %zu bytes: %m", bytes);
    copy->job = job;
    copy->of_job = of_job;
    copy->bytes = (uint32_t)bytes;
    if (bytes > 0)
        memcpy(copy->data, note, bytes);
    (void)note_part(&m, copy, 0);
    spec.message = &m.base;
    spec.copy = copy;
    return zc_call_start(c, &spec);
}

static int next_note(struct zc_client *c, struct zc_call *call)
{
    const struct note_copy *note = call->spec.copy;
    Zp__NotePut m;
    int rc;

    if (call->at + ZP_NOTE_PART >= note->bytes)
        return 0;
    call->at += ZP_NOTE_PART;
    (void)note_part(&m, note, (uint32_t)call->at);
    rc = zc_call_again(c, call, &m.base);
    return rc < 0 ? rc : 1;
}

int zc_note_get(struct zc_client *c, uint64_t job, bool of_job, struct zc_note_part *part,
                zc_done_fn *done, void *arg)
{
    Zp__NoteGet m = ZP__NOTE_GET__INIT;

    m.job = job;
    m.of_job = of_job;
    m.offset = part->got;
    return zc_call_start(
        c, &(struct zc_call_spec){
               .method = ZP_NOTE_GET, .message = &m.base, .ret = part, .done = done, .arg = arg });
}

/** A note that a step replaced between two parts is begun anew. */
static int reply_note_get(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                          int *fds)
{
    const Zp__NoteGetReply *r = (const Zp__NoteGetReply *)m;
    struct zc_note_part *part = call->spec.ret;

    (void)fds;
    if (part->got > 0 && (r->iteration != part->iteration || r->total != part->total)) {
        part->got = 0;
        return 0;
    }
    if (r->total > ZC_NOTE_MAX || !zb_range_inside(part->got, r->data.len, r->total) ||
        (r->data.len == 0 && part->got < r->total))
        return zc_fail(c, -EPROTO, "%zu bytes from %u of a note of %u", r->data.len, part->got,
                       r->total);
    part->iteration = r->iteration;
    part->total = r->total;
    if (r->data.len > 0)
        memcpy(part->buf + part->got, r->data.data, r->data.len);
    part->got += (uint32_t)r->data.len;
    return 0;
}

/* ---- the rows */

static const struct zc_method methods[ZP_METHOD_END] = {
    [ZP_HELLO] = { .reply = reply_hello },
    [ZP_JOB_OPEN] = { .reply = reply_job_open, .fds = 1 },
    [ZP_UNIT_DEFINE] = { .next = next_unit, .of_job = true },
    [ZP_SHARD_REGISTER] = { .reply = reply_register, .of_job = true },
    [ZP_READY] = { .reply = reply_ready, .fds = 1, .of_job = true },
    [ZP_WRITE] = { .of_job = true },
    [ZP_READ] = { .of_job = true },
    [ZP_FETCH] = { .reply = reply_fetch, .of_job = true },
    [ZP_PUSH] = { .of_job = true },
    [ZP_NORMS] = { .reply = reply_norms, .of_job = true },
    [ZP_NOTE_PUT] = { .next = next_note, .of_job = true },
    [ZP_NOTE_GET] = { .reply = reply_note_get, .of_job = true },
    [ZP_STEP] = { .reply = reply_step, .of_job = true },
    [ZP_SKIP] = { .reply = reply_step, .of_job = true },
    [ZP_STEP_BEGIN] = { .of_job = true },
    [ZP_JOB_CLOSE] = { .reply = reply_job_close },
    [ZP_LIST] = { .reply = zc_rows_reply_list },
    [ZP_JOBS] = { .reply = zc_rows_reply_jobs },
    [ZP_TIERS] = { .reply = zc_rows_reply_tiers },
    [ZP_STAT] = { .reply = zc_rows_reply_stat },
    [ZP_COMMIT] = { .reply = reply_commit, .of_job = true },
    [ZP_PROGRESS] = { .of_job = true },
    [ZP_SNAPSHOT] = { .reply = reply_snapshot },
    [ZP_SNAPSHOTS] = { .reply = zc_rows_reply_snapshots },
    [ZP_ROLLBACK] = { .reply = reply_snapshot },
    [ZP_CLONE] = { .reply = reply_snapshot },
    [ZP_READER_OPEN] = { .reply = zc_reader_reply_open, .fds = 1 },
    [ZP_READER_UNIT] = { .reply = zc_reader_reply_unit },
    [ZP_READER_CLOSE] = { .reply = zc_reader_reply_close },
    [ZP_SCRUB] = { .reply = zc_rows_reply_scrub },
    [ZP_FSCK] = { .reply = zc_rows_reply_fsck },
    [ZP_DF] = { .reply = zc_rows_reply_df },
    [ZP_TOP] = { .reply = zc_rows_reply_top },
    [ZP_GPU_SHARE] = { .reply = reply_gpu_share, .fds = 2, .of_job = true },
};

const struct zc_method *zc_method(unsigned method)
{
    return &methods[method];
}
