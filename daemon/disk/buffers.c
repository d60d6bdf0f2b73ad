/*
 * buffers.c - page buffers: memory that streamed pages pass through, and the queue for it.
 *
 * MODEL. A fixed number of buffers, each large enough for the parameter and state planes of one
 * page. An operation that streams a page holds exactly one, from before its read until after its
 * write. Buffers are the back-pressure of the step pipeline: an operation that finds none waits in
 * the queue.
 *
 * SHARES. A free buffer is given at once to the next operation by share (run/fair.h), so no later
 * request can take it. The holder of a buffer waits only for transfers and tasks, which always end.
 * So every buffer is returned, whatever the clients of its job do.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/place.h"
#include "daemon/disk/paths.h"
#include "daemon/os/arena.h"
#include "daemon/run/gpu_tier.h"

static void *buffer_take(struct zsd_core *core, struct zsd_claim *claim)
{
    zsd_fair_take(&core->disk->buffer_line, &claim->turn);
    claim->waits = false;
    return core->disk->buffers_free[--core->disk->nbuffers_free];
}

void *zsd_buffer_get(struct zsd_core *core, struct zsd_claim *claim)
{
    struct zsd_payer *payer = claim->payer ? claim->payer : &core->house;
    void *buffer = claim->buffer;

    claim->buffer = NULL;
    if (buffer || claim->waits)
        return buffer;
    claim->waits = true;
    zsd_fair_push(&core->disk->buffer_line, &payer->flows[ZSD_LINE_BUFFERS], &claim->turn,
                  claim->bytes, payer->share, false);
    return core->disk->nbuffers_free > 0 ? buffer_take(core, claim) : NULL;
}

void zsd_buffer_put(struct zsd_core *core, void *buffer)
{
    struct zsd_turn *turn = zsd_fair_next(&core->disk->buffer_line);
    struct zsd_claim *claim;

    assert(core->disk->nbuffers_free < core->disk->nbuffers);
    core->disk->buffers_free[core->disk->nbuffers_free++] = buffer;
    if (!turn)
        return;
    claim = zb_container_of(turn, struct zsd_claim, turn);
    claim->buffer = buffer_take(core, claim);
    zsd_defer(core, claim->work);
}

/* Without NVMe and GPU tier there are no buffers, so nothing is added. */
uint64_t zsd_host_least(const struct zsd_core *core, uint64_t bytes)
{
    return core->disk->nbuffers > 0
               ? zb_buffers_least(bytes, core->daemon->config.ring_bytes, core->disk->buffer_bytes)
               : bytes;
}

/* Pins them for each GPU, as far as the driver allows it. */
static void buffers_pin(struct zsd_core *core, uint64_t bytes)
{
    for (unsigned g = 0; g < core->daemon->ngpus; g++) {
        struct zb_err *err = &core->tiers.gpus[g].unpinned;

        if (zsd_gpu_pin(core->daemon->gpus[g], core->disk->buffers, bytes, err) < 0)
            zb_log(ZB_LOG_WARN, "gpu-unpinned",
                   "gpu=%s what=\"page buffers\" bytes=%llu why=\"%s\"",
                   zsd_gpu_name(core->daemon->gpus[g]), (unsigned long long)bytes, err->text);
    }
}

int zsd_buffers_make(struct zsd_core *core, struct zb_err *err)
{
    uint64_t bytes = zb_buffer_bytes(core->page_elems);
    uint64_t want = zb_buffers(core->tiers.host.budget, core->daemon->config.ring_bytes, bytes);

    core->disk->buffer_bytes = bytes;
    if (want * bytes > core->tiers.host.budget)
        return zb_fail(
            err, -ENOSPC,
            "host_bytes %s is less than one page buffer (%s for %u elements a page): give "
            "more, or smaller pages (page_elems)",
            zb_size_text(core->tiers.host.budget).s, zb_size_text(core->disk->buffer_bytes).s,
            core->page_elems);
    core->disk->nbuffers = (uint32_t)want;
    core->disk->buffers_free = calloc(want, sizeof(*core->disk->buffers_free));
    core->disk->buffers = zsd_private_new(want * core->disk->buffer_bytes);
    if (!core->disk->buffers_free || !core->disk->buffers)
        return zb_fail(err, -ENOMEM, "%u page buffers of %s: %m", core->disk->nbuffers,
                       zb_size_text(core->disk->buffer_bytes).s);
    for (uint32_t i = 0; i < core->disk->nbuffers; i++)
        core->disk->buffers_free[core->disk->nbuffers_free++] = core->disk->buffers +
                                                                i * core->disk->buffer_bytes;
    zsd_book(&core->tiers.host, NULL, ZSD_USE_RING, want * core->disk->buffer_bytes);
    zsd_paths_register(core->daemon, core->disk->buffers, want * core->disk->buffer_bytes);
    buffers_pin(core, want * core->disk->buffer_bytes);
    return 0;
}

void zsd_buffers_end(struct zsd_core *core)
{
    struct zsd_disk *disk = core->disk;

    zsd_paths_unregister(core->daemon, disk->buffers);
    zsd_gpu_unpin(core->daemon, disk->buffers, disk->nbuffers * disk->buffer_bytes);
    zsd_private_free(disk->buffers, disk->nbuffers * disk->buffer_bytes);
    free(disk->buffers_free);
}
