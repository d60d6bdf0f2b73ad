/*
 * stream.c - the residual stream: in memory, or in a stash.
 */
#include "examples/gpt/model/run_priv.h"

static uint32_t stream_entry(const struct gpt_run *run, uint32_t layer)
{
    return (uint32_t)(run->now - run->micro) * (run->model->shape.layers + 1) + layer;
}

/* Behind the last block, of a micro-batch that is alone: wanted at once, and not worth keeping. */
static bool stream_stays(const struct gpt_run *run, uint32_t layer)
{
    return run->micros == 1 && layer == run->model->shape.layers;
}

float *gpt_stream_make(struct gpt_run *run, uint32_t layer)
{
    unsigned slot;
    float *x;

    if (!run->stash)
        return run->now->x[layer];
    x = run->stash->ops->make(run->stash, stream_entry(run, layer), &slot);
    if (!x)
        run->stopped = true;
    if (stream_stays(run, layer))
        run->last = x;
    return x;
}

void gpt_stream_keep(struct gpt_run *run, uint32_t layer)
{
    if (run->stash && !stream_stays(run, layer))
        run->stash->ops->keep(run->stash, stream_entry(run, layer));
}

const float *gpt_stream_take(struct gpt_run *run, uint32_t layer)
{
    unsigned slot;
    const float *x;

    if (!run->stash)
        return run->now->x[layer];
    if (stream_stays(run, layer))
        return run->last;
    x = run->stash->ops->take(run->stash, stream_entry(run, layer), &slot);
    if (!x)
        run->stopped = true;
    return x;
}

void gpt_stream_drop(struct gpt_run *run, uint32_t layer, bool again)
{
    if (!run->stash)
        return;
    if (!stream_stays(run, layer))
        run->stash->ops->drop(run->stash, stream_entry(run, layer));
    if (!again)
        run->stash->ops->forget(run->stash, stream_entry(run, layer));
}

void gpt_stream_ahead(struct gpt_run *run, uint32_t now, int64_t layer)
{
    uint32_t streams = run->model->shape.layers + 1, next = stream_entry(run, now) + streams;

    if (!run->stash)
        return;
    if (next < run->micros * streams)
        run->stash->ops->ahead(run->stash, next);
    else if (layer >= 0)
        run->stash->ops->ahead(run->stash, (uint32_t)layer);
}
