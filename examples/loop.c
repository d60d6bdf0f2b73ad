/*
 * loop.c - a trainer inside a libuv program: nothing here waits. Calls are started, their callbacks
 * start the next ones, and a timer beats all the while, to show that the loop is free.
 *
 * MODEL. The handle is one descriptor of the loop: loop_watch() asks zc_events() before the loop
 * waits, loop_on_poll() calls zc_poll(c, 0) when it is due. The work is a list of states, each
 * entered by loop_next() and left by its call's `done`:
 *
 *     OPEN -> DEFINE -> REGISTER -> READY -> WRITE -> FETCH -> PUSH -> STEP --> CLOSE
 *                                                       ^                 |
 *                                                       `---- a step -----'
 *
 *     zshardd --socket /tmp/s --data /tmp/d &
 *     ZSHARD_SOCKET=/tmp/s loop
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <uv.h>
#include <zclient.h>

#define COUNT 4096u /* elements of the unit: one block, so one part */
#define STEPS 5u

enum state { OPEN, DEFINE, REGISTER, READY, WRITE, FETCH, PUSH, STEP, CLOSE, DONE };

struct loop {
    uv_loop_t *uv;
    uv_poll_t poll;
    uv_prepare_t prepare;
    uv_timer_t timer;
    unsigned beats;

    struct zc_client *c;
    enum state state;
    int rc; /* 0, or the first failure */
    struct zc_job job;
    struct zc_placement placement;
    struct zc_view view;
    struct zc_stepped stepped;
    uint64_t shard;
};

static void loop_done(void *arg, int rc);

/* ---- the work */

static float *loop_fill(struct loop *l, float value)
{
    float *staged = l->job.staging;

    for (uint32_t i = 0; i < COUNT; i++)
        staged[i] = value;
    return staged;
}

/** Starts the call of the state; 0, or it could not be started. */
static int loop_start(struct loop *l)
{
    const struct zc_job_options options = {
        .name = "loop", .world = 1, .groups = 1, .staging_bytes = COUNT * sizeof(float)
    };
    const struct zc_unit unit = {
        .name = "layer",
        .elems = COUNT,
        .dtype = ZC_F32,
        .grad_dtype = ZC_F32,
        .tensors = &(struct zc_tensor){ .name = "weight", .ndims = 1, .dims = { COUNT } },
        .ntensors = 1
    };
    const struct zc_range range = { .count = COUNT };
    const struct zc_group adamw = { .lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8 };
    const struct zc_step step = {
        .step = l->stepped.iterations + 1, .scale = 1, .groups = &adamw, .ngroups = 1
    };
    struct zc_push push = { .shard = l->shard, .step = step.step, .dtype = ZC_F32, .count = COUNT };

    switch (l->state) {
    case OPEN:
        return zc_job_open(l->c, &options, &l->job, loop_done, l);
    case DEFINE:
        return zc_unit_define(l->c, l->job.id, &unit, loop_done, l);
    case REGISTER:
        return zc_register(l->c, l->job.id, &range, 1, &l->shard, loop_done, l);
    case READY:
        return zc_ready(l->c, l->job.id, NULL, 0, &l->placement, loop_done, l);
    case WRITE:
        return zc_write(l->c, l->shard, ZC_MASTER, 0, COUNT, loop_fill(l, 1), loop_done, l);
    case FETCH:
        return zc_fetch(l->c, &l->shard, 1, l->stepped.applied, 0, &l->view, loop_done, l);
    case PUSH:
        push.staged = loop_fill(l, 1);
        return zc_push(l->c, &push, loop_done, l);
    case STEP:
        return zc_step(l->c, l->job.id, &step, &l->stepped, loop_done, l);
    case CLOSE:
        return zc_job_close(l->c, l->job.id, loop_done, l);
    case DONE:
        break;
    }
    return 0;
}

/** What the state's call has brought; the state that comes next. */
static enum state loop_after(struct loop *l)
{
    switch (l->state) {
    case FETCH:
        printf("version %llu: the first weight is %.6f\n", (unsigned long long)l->view.version,
               (double)*(const float *)l->view.data);
        l->rc = zc_release(l->c, &l->shard, 1);
        return l->stepped.iterations < STEPS ? PUSH : CLOSE;
    case STEP:
        return FETCH;
    default:
        return l->state + 1;
    }
}

static void loop_end(struct loop *l, int rc)
{
    if (rc < 0 && l->rc == 0) {
        l->rc = rc;
        fprintf(stderr, "loop: %s\n", zc_error(l->c));
    }
    l->state = DONE;
    uv_stop(l->uv);
}

static void loop_next(struct loop *l, enum state state)
{
    int rc;

    l->state = state;
    rc = loop_start(l);
    if (rc < 0 || state == DONE)
        loop_end(l, rc);
}

/** The `done` of every call. */
static void loop_done(void *arg, int rc)
{
    struct loop *l = arg;

    if (rc < 0)
        loop_end(l, rc);
    else
        loop_next(l, loop_after(l));
}

/* ---- the handle in the loop */

static void loop_on_poll(uv_poll_t *poll, int status, int events)
{
    struct loop *l = poll->data;
    int rc = zc_poll(l->c, 0); /* finds what is wrong with the socket, too */

    (void)status;
    (void)events;
    if (rc < 0 && l->state != DONE)
        loop_end(l, rc);
}

/** Before the loop waits: for what? */
static void loop_watch(uv_prepare_t *prepare)
{
    struct loop *l = prepare->data;
    short events = zc_events(l->c);

    (void)uv_poll_start(
        &l->poll, ((events & POLLIN) ? UV_READABLE : 0) | ((events & POLLOUT) ? UV_WRITABLE : 0),
        loop_on_poll);
}

static void loop_on_timer(uv_timer_t *timer)
{
    struct loop *l = timer->data;

    l->beats++;
}

static int loop_run(struct loop *l)
{
    int rc = zc_open(&l->c, &(struct zc_options){ .program = "loop" });

    if (rc < 0) {
        fprintf(stderr, "loop: %s\n", l->c ? zc_error(l->c) : zc_strerror(rc));
        return rc;
    }
    if (uv_poll_init(l->uv, &l->poll, zc_fd(l->c)) < 0 || uv_prepare_init(l->uv, &l->prepare) < 0 ||
        uv_timer_init(l->uv, &l->timer) < 0)
        return -ENOMEM;
    l->poll.data = l->prepare.data = l->timer.data = l;
    (void)uv_prepare_start(&l->prepare, loop_watch);
    (void)uv_timer_start(&l->timer, loop_on_timer, 0, 1);
    loop_next(l, OPEN);
    (void)uv_run(l->uv, UV_RUN_DEFAULT);
    printf("%llu steps, and %u beats of the timer meanwhile\n",
           (unsigned long long)l->stepped.iterations, l->beats);
    uv_close((uv_handle_t *)&l->poll, NULL);
    uv_close((uv_handle_t *)&l->prepare, NULL);
    uv_close((uv_handle_t *)&l->timer, NULL);
    (void)uv_run(l->uv, UV_RUN_DEFAULT);
    return l->rc;
}

int main(void)
{
    struct loop l = { .uv = uv_default_loop() };
    int rc = loop_run(&l);

    zc_close(l.c);
    (void)uv_loop_close(l.uv);
    return zc_exit_code(rc);
}
