/*
 * measure.c - measures how fast this machine's threads step the pages of a layout in memory.
 *
 * MODEL. Every thread has its own pages, far more than the caches hold, and steps one after the
 * other: the same function, planes and bytes as in a job's step, with gradients that do not change.
 */
#include "kernels/measure.h"

#include <string.h>

#include "base/measure.h"
#include "base/place.h"
#include "base/plan.h"
#include "kernels/zk_page.h"

#define PAGE_ELEMS (UINT64_C(16) * ZB_BLOCK_ELEMS)
#define PAGES      UINT64_C(128) /* of each thread: 8 M elements */

struct steps {
    const struct zk_ops *ops;
    struct zb_layout layout;
    struct zk_scalars scalars;
};

static uint64_t steps_bytes(const struct zb_layout *layout, enum zb_plane plane)
{
    return zb_layout_page(layout, plane, PAGE_ELEMS);
}

static struct zk_page steps_page(const struct steps *s, uint8_t *room, uint64_t i)
{
    uint64_t param = steps_bytes(&s->layout, ZB_PARAM), state = steps_bytes(&s->layout, ZB_STATE);
    uint8_t *grads = room + PAGES * (param + state);

    return (struct zk_page){ .param = room + i * param,
                             .state = room + PAGES * param + i * state,
                             .grad = grads + i * steps_bytes(&s->layout, ZB_GRAD),
                             .first = i * PAGE_ELEMS,
                             .count = PAGE_ELEMS };
}

/* Bytes of 0x3c are about 0.01 or 1 in every dtype. No value ever becomes denormal: processors are
 * slow on those. */
static void steps_begin(const void *arg, uint8_t *room)
{
    const struct steps *s = arg;
    float master[PAGE_ELEMS];

    zk_thread_init();
    memset(master, 0x3c, sizeof(master));
    for (uint64_t i = 0; i < PAGES; i++) {
        struct zk_page page = steps_page(s, room, i);

        zk_page_init(s->ops, &s->layout, &page, master);
        memset(page.grad, 0x3c, steps_bytes(&s->layout, ZB_GRAD));
    }
}

static uint64_t steps_turn(const void *arg, uint8_t *room, uint64_t turn)
{
    static const struct zk_segment all = { .count = PAGES * PAGE_ELEMS };
    const struct steps *s = arg;
    struct zk_page page = steps_page(s, room, turn % PAGES);

    zk_page_step(s->ops, &s->layout, &page, &all, 1, &s->scalars);
    return 2 * (steps_bytes(&s->layout, ZB_PARAM) + steps_bytes(&s->layout, ZB_STATE)) +
           steps_bytes(&s->layout, ZB_GRAD);
}

int zk_measure_steps(const struct zb_layout *layout, unsigned threads, double *ret,
                     struct zb_err *err)
{
    static const struct zk_params params = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .scale = 1, .momentum = 0.9
    };
    struct steps s = { .layout = *layout, .scalars = zk_prepare(layout->optimizer, &params, 2) };
    struct zb_measure_work work = { .begin = steps_begin, .turn = steps_turn, .arg = &s };
    int rc = zk_select(NULL, &s.ops, err);

    *ret = 0;
    work.room_bytes = PAGES * (steps_bytes(layout, ZB_PARAM) + steps_bytes(layout, ZB_STATE) +
                               steps_bytes(layout, ZB_GRAD));
    return rc < 0 ? rc : zb_measure_memory(&work, threads, ret, err);
}
