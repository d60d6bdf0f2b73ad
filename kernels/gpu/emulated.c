/*
 * emulated.c - a GPU emulated by threads: for tests, and for development without a GPU.
 *
 * MODEL. Device memory is a memfd that is mapped twice: `shadow`, where the device's threads work,
 * and `dev`, the address that everyone is given, where nothing may be touched (PROT_NONE). A stream
 * is a thread with a queue of items; it takes one at a time, waits as long as the device is slow,
 * does it, and removes it from the queue. Device addresses of a work are looked up when it runs, as
 * a GPU does: a wrong one loses the device.
 *
 * INVARIANTS.
 *     I1  What a work does to memory happens in its stream's thread, never in the call.
 *     I2  An item leaves the queue when it is done: an empty queue is an idle stream.
 *     I3  A lost device (`dead`) runs no work but ends all of them: queues drain and events are
 *         reached, so every waiting caller gets the error. It stays lost.
 *     I4  The lock guards queues, events and `dead`; it is not held while a work runs, while
 *         gpu.c's lock is taken, or while anyone sleeps.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "kernels/gpu/emulated_priv.h"

#define GRANULARITY   (2 * ZB_MIB)
#define UNIT_MIN      4096u
#define TOTAL_DEFAULT (256 * ZB_MIB)

static void emu_close(struct zk_gpu *g)
{
    struct emu *e = emu_of(g);

    (void)pthread_cond_destroy(&e->changed);
    (void)pthread_mutex_destroy(&e->lock);
    free(e);
}

/* Parses the next number of "A:B:C", and advances *args. If it is empty, *ret is unchanged. */
static int args_number(const char **args, bool size, uint64_t *ret, struct zb_err *err)
{
    char text[32];
    size_t len = strcspn(*args, ":");
    int rc;

    if (len >= sizeof(text))
        return zb_fail(err, -EINVAL, "'%s' is not the number of an emulated GPU", *args);
    memcpy(text, *args, len);
    text[len] = '\0';
    *args += len + ((*args)[len] == ':');
    if (len == 0)
        return 0;
    rc = zb_size_parse(text, ret, err);
    if (rc == 0 && !size && strspn(text, "0123456789") != len)
        return zb_fail(err, -EINVAL, "'%s' is not the number of an emulated GPU", text);
    return rc;
}

static int args_parse(struct emu *e, const char *args, struct zb_err *err)
{
    uint64_t works = UINT64_MAX;
    int rc = args_number(&args, true, &e->base.info.total_bytes, err);

    if (rc == 0)
        rc = args_number(&args, false, &e->delay_us, err);
    if (rc == 0)
        rc = args_number(&args, false, &works, err);
    if (rc == 0)
        rc = args_number(&args, true, &e->base.info.granularity_bytes, err);
    e->pin_left = UINT64_MAX;
    if (rc == 0)
        rc = args_number(&args, true, &e->pin_left, err);
    e->shares = UINT64_MAX;
    if (rc == 0)
        rc = args_number(&args, false, &e->shares, err);
    e->limited = works != UINT64_MAX;
    e->works_left = works;
    if (rc == 0 && *args != '\0')
        return zb_fail(err, -EINVAL,
                       "'%s' is too much: emulated[:BYTES[:US[:WORKS[:UNIT[:PIN[:SHARES]]]]]]",
                       args);
    if (rc == 0 &&
        (e->base.info.granularity_bytes == 0 || e->base.info.granularity_bytes % UNIT_MIN != 0))
        return zb_fail(err, -EINVAL, "memory of an emulated GPU comes in multiples of %u bytes",
                       UNIT_MIN);
    if (rc == 0 && e->base.info.total_bytes < e->base.info.granularity_bytes)
        return zb_fail(err, -EINVAL, "an emulated GPU has at least %s of memory",
                       zb_size_text(e->base.info.granularity_bytes).s);
    return rc;
}

static int emu_open(const char *args, struct zk_gpu **ret, struct zb_err *err)
{
    struct emu *e = calloc(1, sizeof(*e));
    int rc;

    if (!e)
        return zb_fail(err, -ENOMEM, "emulated GPU: %m");
    rc = pthread_mutex_init(&e->lock, NULL);
    assert(rc == 0);
    rc = pthread_cond_init(&e->changed, NULL);
    assert(rc == 0);
    zb_list_init(&e->pins);
    e->base.info.total_bytes = TOTAL_DEFAULT;
    e->base.info.granularity_bytes = GRANULARITY;
    rc = args_parse(e, args, err);
    if (rc == 0)
        rc = zk_select(NULL, &e->ops, err);
    if (rc < 0) {
        emu_close(&e->base);
        return rc;
    }
    (void)snprintf(e->base.info.id, sizeof(e->base.info.id), "emulated");
    (void)snprintf(e->base.info.name, sizeof(e->base.info.name), "emulated GPU, %s, kernels %s",
                   zb_size_text(e->base.info.total_bytes).s, e->ops->name);
    *ret = &e->base;
    return 0;
}

/* Under gpu.c's lock. */
static int emu_free_bytes(struct zk_gpu *g, uint64_t *ret, struct zb_err *err)
{
    (void)err;
    *ret = g->info.total_bytes - g->used.owned_bytes - g->used.stranded_bytes;
    return 0;
}

const struct zk_gpu_backend zk_gpu_emulated = {
    .name = "emulated",
    .open = emu_open,
    .close = emu_close,
    .free_bytes = emu_free_bytes,
    .mem_new = zk_emu_mem_new,
    .mem_import = zk_emu_mem_import,
    .mem_export = zk_emu_mem_export,
    .mem_free = zk_emu_mem_free,
    .pin_piece_bytes = UINT64_C(1) << 20,
    .pin = zk_emu_pin,
    .unpin = zk_emu_unpin,
    .stream_new = zk_emu_stream_new,
    .stream_free = zk_emu_stream_free,
    .stream_sync = zk_emu_stream_sync,
    .event_new = zk_emu_event_new,
    .event_free = zk_emu_event_free,
    .event_record = zk_emu_event_record,
    .event_wait = zk_emu_event_wait,
    .event_query = zk_emu_event_query,
    .copy = zk_emu_copy,
    .fill = zk_emu_fill,
    .signal = zk_emu_signal,
    .launch = zk_emu_launch,
    .call = zk_emu_call,
};
