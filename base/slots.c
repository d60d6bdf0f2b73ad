#include "base/slots.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/util.h"

int zb_slots_count(struct zb_slots *s, uint64_t bytes, uint32_t tag, uint32_t *ret_class)
{
    uint32_t i;

    for (i = 0; i < s->nclasses; i++)
        if (s->classes[i].bytes == bytes && s->classes[i].tag == tag)
            break;
    if (i == s->nclasses) {
        if (zb_grow(&s->classes, &s->room, s->nclasses, 1) < 0)
            return -ENOMEM;
        s->classes[s->nclasses++] = (struct zb_slot_class){ .bytes = bytes, .tag = tag };
    }
    s->classes[i].users++;
    *ret_class = i;
    return 0;
}

int zb_slots_lay(struct zb_slot_class *c, uint32_t total)
{
    assert(!c->free_at);
    c->free_at = malloc(zb_max_u64(total, 1) * sizeof(*c->free_at));
    if (!c->free_at)
        return -ENOMEM;
    c->total = total;
    zb_list_init(&c->cached);
    return 0;
}

uint64_t zb_slots_take(struct zb_slot_class *c)
{
    return c->free > 0 ? c->free_at[--c->free] : ZB_NO_PLACE;
}

void zb_slots_give(struct zb_slot_class *c, uint64_t at)
{
    assert(c->free < c->total);
    c->free_at[c->free++] = at;
}

void zb_slots_done(struct zb_slots *s)
{
    for (uint32_t i = 0; i < s->nclasses; i++)
        free(s->classes[i].free_at);
    free(s->classes);
    *s = (struct zb_slots){ 0 };
}
