/*
 * abandon.c - abandons a step: its gradients are dropped on all ranks, and it begins again.
 *
 *     end the micro-step in progress ---> wait until the store has all gradients ---> vote --->
 *     the first rank of each node has the store drop them ---> vote
 *
 * Nothing is counted: iterations, notes, the loss scale and the step counts of tensors stay.
 */
#include <errno.h>

#include "client/zero/pass/pass.h"
#include "client/zero/step/announce.h"
#include "client/zero/step/step.h"

static int abandon_settle(struct zc_zero *z)
{
    struct zcz_wait w = { .what = "gradients to reach the store, before they are dropped",
                          .again = true };
    int rc = zcz_micro_abandon(z);

    if (rc == 0)
        rc = zcz_turn(z, 0);
    while (rc == 0 && (!zcz_reduce_idle(z) || z->stepping || z->steps->announce.pending > 0 ||
                       z->steps->announcing))
        rc = zcz_wait(z, &w);
    return rc;
}

static int abandon_store(struct zc_zero *z)
{
    const struct zcz_store_ops *ops = z->store->ops;
    struct zcz_wait w = { .what = "gradients to be dropped" };
    int rc;

    if (!ops->abandon || z->store->node_rank != 0)
        return 0;
    while ((rc = ops->abandon(z->store, &z->op, z->iterations + 1)) == -EAGAIN &&
           (rc = zcz_wait(z, &w)) == 0)
        ;
    if (rc == 0 && (rc = zcz_wait_op(z, &z->op, w.what)) < 0 && !z->failed)
        rc = zcz_refuse(z, rc, "%s", zcz_store_text(z->store));
    return rc;
}

int zc_zero_abandon(struct zc_zero *z)
{
    ZCZ_GUARD(z);
    int rc = zcz_enter(z, true);

    if (rc == 0)
        rc = abandon_settle(z);
    if (rc == 0)
        rc = zcz_vote(z, 0, z->pass->micro, ZCZ_CALL_ABANDON);
    if (rc == 0)
        rc = zcz_vote(z, abandon_store(z), 0, ZCZ_CALL_ABANDON);
    if (rc < 0)
        return rc;
    zcz_announce_forget(z);
    zcz_reduce_drop(z);
    zcz_pass_rewind(z);
    return zcz_turn(z, 0);
}
