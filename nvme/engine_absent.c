/*
 * engine_absent.c - stands for a data file that is missing or was retired: it has no bytes.
 * Transfers fail with -ENODEV. Flushes and commit slots succeed, and do nothing: so the code that serves all
 * data files needs no exception.
 *
 * Everything runs in the caller's thread.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "nvme/engine_priv.h"

#define ABSENT_NAME "none"

/* ---- the backend: a queue of answers */

static int absent_start(struct zn_engine *e, struct zb_err *err)
{
    struct zb_list *answers = malloc(sizeof(*answers));

    if (!answers)
        return zb_fail(err, -ENOMEM, "an absent data file: %m");
    zb_list_init(answers);
    e->impl = answers;
    return 0;
}

static void absent_submit(struct zn_engine *e, struct zn_io *io)
{
    if (io->op == ZN_READ && zn_io_off(io) < ZN_DATA_START)
        memset(zn_io_at(io), 0, (size_t)io->res); /* the trial of zn_open() */
    else if (io->op != ZN_FLUSH && zn_io_off(io) >= ZN_DATA_START)
        io->res = -ENODEV;
    zb_list_push_back(e->impl, &io->node);
    zn_wake(e);
}

static int absent_kick(struct zn_engine *e)
{
    (void)e;
    return 0;
}

static struct zn_io *absent_reap(struct zn_engine *e)
{
    struct zb_list *node = zb_list_pop_front(e->impl);

    return node ? zb_container_of(node, struct zn_io, node) : NULL;
}

static void absent_close(struct zn_engine *e)
{
    free(e->impl);
    e->impl = NULL;
}

static const struct zn_ops absent_ops = {
    ABSENT_NAME, absent_start, absent_submit, absent_kick, absent_reap, absent_close, NULL, NULL,
};

/* ---- the place */

static ssize_t medium_read(const struct zn_medium *m, void *bytes, size_t len_bytes,
                           uint64_t off_bytes)
{
    (void)m;
    (void)off_bytes;
    memset(bytes, 0, len_bytes);
    return (ssize_t)len_bytes;
}

static ssize_t medium_write(const struct zn_medium *m, const void *bytes, size_t len_bytes,
                            uint64_t off_bytes)
{
    (void)m;
    (void)bytes;
    (void)off_bytes;
    return (ssize_t)len_bytes;
}

static int medium_flush(const struct zn_medium *m)
{
    (void)m;
    return 0;
}

static const struct zn_medium_ops medium_ops = { medium_read, medium_write, medium_flush };

static int place_open(struct zn_file *f, const char *path, struct zb_err *err)
{
    (void)path;
    (void)err;
    f->medium = (struct zn_medium){ .ops = &medium_ops };
    return 0;
}

static void place_direct(struct zn_file *f, const struct zn_options *o, struct zn_info *info)
{
    (void)f;
    (void)o;
    info->direct = true;
    info->align_bytes = ZN_SUPER_BYTES;
}

static const struct zn_ops *const place_backends[] = { &absent_ops, NULL };

static const struct zn_place absent_place = {
    place_backends, place_open, place_direct, NULL, NULL, NULL, NULL, NULL, NULL,
};

int zn_absent_open(struct zn_engine **ret, unsigned index, struct zb_err *err)
{
    const struct zn_options o = { .path = ABSENT_NAME,
                                  .size_bytes = ZN_DATA_START + ZN_SUPER_BYTES,
                                  .depth = 1,
                                  .index = index };
    int rc = zn_open_at(ret, &absent_place, NULL, &o, err);

    if (rc == 0)
        (*ret)->info.size_bytes = ZN_DATA_START;
    return rc;
}

bool zn_is_absent(const struct zn_engine *e)
{
    return e->ops == &absent_ops;
}
