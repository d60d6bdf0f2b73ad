/*
 * hello.c - the whole life of a small model in a few calls: a job, a unit, a shard; initial values
 * in, parameters out, a gradient in, a step. Blocking forms only; loop.c does the same inside an
 * event loop.
 *
 *     zshardd --socket /tmp/s --data /tmp/d &
 *     ZSHARD_SOCKET=/tmp/s hello
 */
#include <stdio.h>
#include <zclient.h>

#define ELEMS 10000u /* of the unit: weights of a little layer */
#define STEPS 3u

struct hello {
    struct zc_client *c;
    struct zc_job job;
    uint64_t shard;
    uint64_t count; /* elements of the shard: ELEMS, padded to a block */
};

/** A job of one rank with one unit, whose only shard is all of it. */
static int hello_begin(struct hello *h)
{
    const struct zc_tensor weight = { .name = "weight", .ndims = 2, .dims = { 100, 100 } };
    const struct zc_unit unit = { .name = "layer",
                                  .elems = ELEMS,
                                  .dtype = ZC_F32,
                                  .grad_dtype = ZC_F32,
                                  .tensors = &weight,
                                  .ntensors = 1 };
    uint64_t block = zc_server(h->c)->block_elems;
    struct zc_placement placement;
    struct zc_job_options options;
    struct zc_range range;
    int rc;

    h->count = (ELEMS + block - 1) / block * block;
    range = (struct zc_range){ .unit = 0, .first = 0, .count = h->count };
    options = (struct zc_job_options){
        .name = "hello", .world = 1, .groups = 1, .staging_bytes = h->count * sizeof(float)
    };
    rc = zc_job_open_wait(h->c, &options, &h->job);
    if (rc == 0)
        rc = zc_unit_define_wait(h->c, h->job.id, &unit);
    if (rc == 0)
        rc = zc_register_wait(h->c, h->job.id, &range, 1, &h->shard);
    if (rc == 0)
        rc = zc_ready_wait(h->c, h->job.id, NULL, 0, &placement);
    return rc;
}

/** The part of the shard that begins at `first`: parts are cut at multiples of page_elems. */
static uint64_t hello_part(const struct hello *h, uint64_t first)
{
    uint64_t page = zc_server(h->c)->page_elems;

    return h->count - first < page ? h->count - first : page;
}

/** All weights become 1. */
static int hello_init(struct hello *h)
{
    float *staged = h->job.staging;
    int rc = 0;

    for (uint64_t first = 0, n; rc == 0 && first < h->count; first += n) {
        n = hello_part(h, first);
        for (uint64_t i = 0; i < n; i++)
            staged[i] = first + i < ELEMS ? 1 : 0;
        rc = zc_write_wait(h->c, h->shard, ZC_MASTER, first, n, staged);
    }
    return rc;
}

/** Reads the weights where they are, without a copy. */
static int hello_look(struct hello *h, uint64_t version)
{
    struct zc_view view;
    const float *weights;
    double sum = 0;
    int rc = zc_fetch_wait(h->c, &h->shard, 1, version, 0, &view);

    if (rc < 0)
        return rc;
    weights = view.data;
    for (uint64_t i = 0; i < ELEMS; i++)
        sum += weights[i];
    printf("version %llu: the mean weight is %.6f\n", (unsigned long long)view.version,
           sum / ELEMS);
    return zc_release(h->c, &h->shard, 1);
}

/** A gradient of 1 everywhere, and one step of AdamW: each weight becomes smaller by about lr. */
static int hello_step(struct hello *h, uint64_t step)
{
    const struct zc_group adamw = { .lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8 };
    const struct zc_step q = { .step = step, .scale = 1, .groups = &adamw, .ngroups = 1 };
    float *staged = h->job.staging;
    struct zc_stepped stepped;
    int rc = 0;

    for (uint64_t first = 0, n; rc == 0 && first < h->count; first += n) {
        struct zc_push push = {
            .shard = h->shard, .step = step, .dtype = ZC_F32, .first = first, .staged = staged
        };

        push.count = n = hello_part(h, first);
        for (uint64_t i = 0; i < n; i++)
            staged[i] = first + i < ELEMS ? 1 : 0;
        rc = zc_push_wait(h->c, &push);
    }
    return rc < 0 ? rc : zc_step_wait(h->c, h->job.id, &q, &stepped);
}

static int hello_run(struct hello *h)
{
    int rc = zc_open(&h->c, &(struct zc_options){ .program = "hello" });

    if (rc < 0)
        return rc;
    printf("%s, process %llu\n", zc_server(h->c)->server, (unsigned long long)zc_server(h->c)->pid);
    rc = hello_begin(h);
    if (rc == 0)
        rc = hello_init(h);
    if (rc == 0)
        rc = hello_look(h, 0);
    for (uint64_t step = 1; rc == 0 && step <= STEPS; step++) {
        rc = hello_step(h, step);
        if (rc == 0)
            rc = hello_look(h, step);
    }
    return rc < 0 ? rc : zc_job_close_wait(h->c, h->job.id);
}

int main(void)
{
    struct hello h = { .c = NULL };
    int rc = hello_run(&h);

    if (rc < 0)
        fprintf(stderr, "hello: %s\n", h.c ? zc_error(h.c) : zc_strerror(rc));
    zc_close(h.c);
    return zc_exit_code(rc);
}
