/*
 * again.c - continues with the next daemon after one was lost, or has restarted.
 *
 *     all ranks finish what they began ---> each closes its store, and opens another, waiting for a
 *     daemon up to reconnect_ms ---> the first rank of each node takes the job over, if no other
 *     run has ---> resume.c chooses the newest step that all nodes have ---> the start of a store
 *
 * WHEN. Between two steps, at a place that all ranks reach (step.c, commit.c). Ranks whose daemon
 * is well attach again, too: the job is in its memory, and nothing is read.
 *
 * SAME OR ROLLED BACK. If no daemon was lost, and all nodes have the step that was made last, the
 * job continues, and the trainer sees nothing. Otherwise gradients or steps are lost, and the
 * trainer gets ZC_ROLLED_BACK.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "client/zero/engine.h"
#include "client/zero/pass/pass.h"
#include "client/zero/step/step.h"
#include "client/zero/store/stores.h"

#define AGAIN_PAUSE_US 20000u
#define NS_PER_MS      UINT64_C(1000000)

/* Opens the store when a daemon answers. */
static int again_open(struct zc_zero *z, uint32_t page_elems)
{
    uint64_t until_ns = zb_now_ns() + z->options.reconnect_ms * NS_PER_MS;
    struct zcz_store *s = z->store;
    int rc;

    while ((rc = s->ops->open(s)) == -ENOTCONN || rc == -ETIMEDOUT) {
        if (zb_now_ns() >= until_ns)
            return zcz_refuse(z, -ENOTCONN, "no daemon has answered for %u ms: %s",
                              z->options.reconnect_ms, z->error.text);
        if (atomic_load(&z->guard.interrupted))
            return zcz_refuse(z, -EINTR, "interrupted while waiting for a daemon");
        (void)usleep(AGAIN_PAUSE_US);
    }
    if (rc == 0 && s->page_elems != page_elems)
        return zcz_refuse(z, -EINVAL,
                          "the daemon was restarted with pages of %u elements instead of %u",
                          s->page_elems, page_elems);
    return rc;
}

/* Replaces the store by a new one. The ranks of this node stay the same. */
static int again_store(struct zc_zero *z)
{
    struct zcz_store *old = z->store, *s = zcz_store_daemon(z);
    uint32_t page_elems = old->page_elems;

    if (!s)
        return zcz_refuse(z, -ENOMEM, "no memory for a store");
    s->node_rank = old->node_rank;
    s->node_world = old->node_world;
    s->node_ranks = old->node_ranks;
    s->epoch_next = old->epoch + 1;
    old->node_ranks = NULL;
    zcz_stats_keep(z);
    if (!old->lost)
        (void)old->ops->leave(old); /* it is lost meanwhile, at worst */
    zcz_forgive(z);
    zcz_device_unpin(z);
    old->ops->close(old);
    z->store = s;
    return again_open(z, page_elems);
}

/* Attaches, and starts the store as a resumed run does. */
static int again_resume(struct zc_zero *z)
{
    bool there;
    int rc;

    zcz_alone_done(z);
    zcz_steps_again(z);
    z->options.resume = true;
    rc = zcz_resume_attach(z, &there);
    return rc < 0 ? rc : zcz_start_store(z, NULL, NULL);
}

int zcz_again(struct zc_zero *z)
{
    uint32_t patience_ms;
    uint64_t at = z->iterations;
    uint32_t lost;
    int rc;

    zcz_pass_drop(z); /* units that were gathered ahead */
    rc = zcz_idle_wait(z, "what is in progress before a restart");
    if (rc < 0)
        return rc;
    lost = z->store->lost;
    z->placing = false;
    patience_ms = zcz_turn_patience(z, (uint64_t)z->turns.patience_ms + z->options.reconnect_ms);
    rc = zcz_vote(z, again_store(z), 0, ZCZ_CALL_AGAIN);
    if (rc == 0)
        rc = zcz_vote_any(z, &lost, ZCZ_CALL_AGAIN);
    if (rc == 0)
        rc = again_resume(z);
    (void)zcz_turn_patience(z, patience_ms);
    if (rc < 0)
        return rc;
    zcz_pass_rewind(z);
    rc = zcz_turn(z, 0);
    if (rc < 0)
        return rc;
    if (lost || z->iterations != at)
        return zcz_refuse(z, ZC_ROLLED_BACK,
                          "the daemon was lost after step %llu: the job continues from step %llu",
                          (unsigned long long)at, (unsigned long long)z->iterations);
    return 0;
}
