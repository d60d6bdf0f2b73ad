/*
 * stream.c - the residual stream: on the device, or in a stash, whose failure is seen at the end.
 */
#include "examples/gpt/dev/run_priv.h"

static uint32_t stream_entry(const struct gpt_dev_run *run, uint32_t layer)
{
    return (uint32_t)(run->now - run->micro) * (run->model->shape.layers + 1) + layer;
}

static uint64_t stream_bytes(const struct gpt_dev_run *run)
{
    return run->rows * run->model->shape.width * sizeof(float);
}

/* The one that was used longest ago; never the one that is read. */
static unsigned window_find(const struct gpt_dev_run *run)
{
    unsigned best = (run->read + 1) % WINDOWS;

    for (unsigned w = 0; w < WINDOWS; w++)
        if (w != run->read && run->windows[w].touched < run->windows[best].touched)
            best = w;
    return best;
}

const float *gpt_dev_stream_in(struct gpt_dev_run *run, uint32_t layer)
{
    uint32_t entry = stream_entry(run, layer);
    unsigned slot, w = 0;
    struct window *window;
    void *from;

    if (!run->stash)
        return run->now->x[layer];
    while (w < WINDOWS && run->windows[w].entry != entry)
        w++;
    if (w < WINDOWS) {
        run->read = w;
        return run->windows[w].at;
    }
    run->read = window_find(run);
    window = &run->windows[run->read];
    window->entry = entry;
    window->leaves = false; /* this copy is behind that one */
    from = run->stash->ops->take(run->stash, entry, &slot);
    if (from) {
        gpt_dev_up_beside(run->dev, window->at, from, stream_bytes(run), MARK_WINDOW + run->read,
                          MARK_SLOT + slot);
        gpt_dev_behind(run->dev, MARK_SLOT + slot);
        run->stash->ops->drop(run->stash, entry);
    }
    return window->at;
}

void gpt_dev_stream_done(struct gpt_dev_run *run)
{
    if (!run->stash)
        return;
    run->windows[run->read].touched = ++run->clock;
    gpt_dev_mark(run->dev, MARK_WINDOW + run->read);
}

float *gpt_dev_stream_out(struct gpt_dev_run *run, uint32_t layer)
{
    uint32_t entry = stream_entry(run, layer);
    struct window *w;

    if (!run->stash)
        return run->now->x[layer];
    for (unsigned i = 0; i < WINDOWS; i++) /* of the step before */
        if (run->windows[i].entry == entry)
            run->windows[i].entry = NO_ENTRY;
    w = &run->windows[window_find(run)];
    if (w->leaves)
        gpt_dev_behind(run->dev, MARK_SLOT + w->slot);
    w->leaves = false;
    w->entry = entry;
    return w->at;
}

void gpt_dev_stream_made(struct gpt_dev_run *run, uint32_t layer)
{
    unsigned made = window_find(run);
    struct window *w = &run->windows[made];
    void *to;

    if (!run->stash)
        return;
    w->touched = ++run->clock;
    gpt_dev_mark(run->dev, MARK_WINDOW + made);
    if (run->micros == 1 && layer == run->model->shape.layers)
        return;
    to = run->stash->ops->make(run->stash, stream_entry(run, layer), &w->slot);
    if (!to)
        return;
    gpt_dev_down_beside(run->dev, to, w->at, stream_bytes(run), MARK_WINDOW + made,
                        MARK_SLOT + w->slot);
    w->leaves = true;
    run->stash->ops->keep(run->stash, stream_entry(run, layer));
}

void gpt_dev_stream_forget(struct gpt_dev_run *run, uint32_t layer)
{
    if (run->stash)
        run->stash->ops->forget(run->stash, stream_entry(run, layer));
}

void gpt_dev_stream_ahead(struct gpt_dev_run *run, uint32_t now, int64_t layer)
{
    uint32_t streams = run->model->shape.layers + 1, next = stream_entry(run, now) + streams;

    if (!run->stash)
        return;
    if (next < run->micros * streams)
        run->stash->ops->ahead(run->stash, next);
    else if (layer >= 0)
        run->stash->ops->ahead(run->stash, (uint32_t)layer);
}
