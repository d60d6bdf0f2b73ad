#include "daemon/pagework.h"

#include <errno.h>
#include <string.h>

static void *work_bytes(const struct zsd_pagework *w, enum zsd_work_plane plane)
{
    return plane == ZSD_WORK_PARAM ? w->page.param : w->page.state;
}

static int work_verify(const struct zsd_pagework *w, struct zsd_pagework_bad *ret_bad)
{
    for (enum zsd_work_plane i = 0; i < ZSD_WORK_PLANES; i++) {
        const struct zsd_pagework_plane *p = &w->planes[i];

        if (p->verify && zn_page_verify(&p->was, work_bytes(w, i), p->len_bytes, p->crc_bytes,
                                        p->crcs, &ret_bad->crc) != 0) {
            ret_bad->plane = i;
            return -EBADMSG;
        }
    }
    return 0;
}

/* A page that is stepped while its parameters in memory stay as they are: as a copy, which takes
 * the gradient's place when that has been used. */
static void work_early(const struct zsd_pagework *w)
{
    size_t bytes = w->planes[ZSD_WORK_PARAM].len_bytes;

    if (w->param)
        memcpy(w->page.param, w->param, bytes);
    zk_page_step(w->ops, w->layout, &w->page, w->segments, w->nsegments, w->by_group);
    if (w->param)
        memcpy(w->page.grad, w->page.param, bytes);
}

static void work_kernel(const struct zsd_pagework *w)
{
    switch (w->kind) {
    case ZSD_PAGE_STEP:
        zk_page_step(w->ops, w->layout, &w->page, w->segments, w->nsegments, w->by_group);
        break;
    case ZSD_PAGE_EARLY:
        work_early(w);
        break;
    case ZSD_PAGE_PUBLISH:
        if (w->param)
            memcpy(w->param, w->page.grad, w->planes[ZSD_WORK_PARAM].len_bytes);
        break;
    case ZSD_PAGE_INIT:
        if (w->what == ZK_MASTER)
            zk_page_init(w->ops, w->layout, &w->page, w->values);
        else
            zk_page_set(w->ops, w->layout, &w->page, w->what, w->values);
        break;
    case ZSD_PAGE_READ:
        zk_page_read(w->ops, w->layout, &w->page, w->what, w->out);
        break;
    case ZSD_PAGE_FILL:
    case ZSD_PAGE_SAVE:
        break;
    }
}

static void work_seal(const struct zsd_pagework *w)
{
    for (enum zsd_work_plane i = 0; i < ZSD_WORK_PLANES; i++) {
        const struct zsd_pagework_plane *p = &w->planes[i];
        uint64_t used = zb_blocks_bytes(
            w->layout->block_bytes[i == ZSD_WORK_PARAM ? ZB_PARAM : ZB_STATE], w->page.count);

        if (!p->seal)
            continue;
        memset((char *)work_bytes(w, i) + used, 0, p->len_bytes - used); /* behind the last block */
        zn_page_seal(&p->becomes, work_bytes(w, i), p->len_bytes, p->crc_bytes, p->new_crcs);
    }
}

int zsd_pagework_run(const struct zsd_pagework *w, struct zsd_pagework_bad *ret_bad)
{
    int rc = work_verify(w, ret_bad);

    if (rc < 0)
        return rc;
    work_kernel(w);
    work_seal(w);
    return 0;
}
