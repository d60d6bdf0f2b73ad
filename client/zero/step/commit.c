/*
 * commit.c - makes steps durable: directly on one node, by a vote on several.
 *
 *     one node       step with ZC_COMMIT_STEP; every rank gets the same answer
 *     several nodes  step with ZC_COMMIT_PREPARE ---> the ranks tell each other the result of their
 *                    nodes ---> the first rank of each node commits what is prepared if all
 *                    succeeded, or drops it
 *
 * WHEN. The call of the step has returned long before. The vote is a collective, so it needs a
 * place in the order of the trainer's calls: the next step, commit or clean close. The commit must
 * be resolved before the next step begins, and has until then.
 *
 * FAILURE. A step that is not durable is still whole, and every rank knows it: the error is not
 * final, and training may continue. A prepared step that cannot be resolved is a final failure:
 * this node and the others would no longer agree.
 */
#include <errno.h>
#include <stdio.h>

#include "client/zero/pass/pass.h"
#include "client/zero/step/step.h"

struct ballot {
    int32_t code;
    char text[sizeof(((struct zb_err *)0)->text)];
};

int zcz_stepping_wait(struct zc_zero *z, const char *what)
{
    struct zcz_wait w = { .what = what };
    int rc = zcz_turn(z, 0);

    while (rc == 0 && z->stepping)
        rc = zcz_wait(z, &w);
    return rc;
}

int zcz_idle_wait(struct zc_zero *z, const char *what)
{
    struct zcz_wait w = { .what = what };
    int rc = zcz_turn(z, 0);

    while (rc == 0 && (!zcz_pass_idle(z) || !zcz_steps_idle(z)))
        rc = zcz_wait(z, &w);
    return rc;
}

/* Asks the store to commit. 0: begun; or refused. */
static int commit_ask(struct zc_zero *z, struct zcz_op *op, enum zc_commit what,
                      uint64_t iterations)
{
    struct zcz_wait w = { .what = "a commit to begin" };
    int rc;

    while ((rc = z->store->ops->commit(z->store, op, what, iterations)) == -EAGAIN &&
           (rc = zcz_wait(z, &w)) == 0)
        ;
    return rc;
}

int zcz_commit_resolve(struct zc_zero *z, enum zc_commit what, uint64_t iterations)
{
    int rc = z->store->lost ? 0 : commit_ask(z, &z->steps->resolve, what, iterations);

    z->steps->dropping = what == ZC_COMMIT_DROP;
    return rc < 0 ? zcz_fail(z, rc, "%s", z->error.text) : 0;
}

int zcz_commit_resolved(struct zc_zero *z)
{
    int rc = zcz_wait_op(z, &z->steps->resolve, "what was prepared to be resolved");

    if (rc == -ENOENT && z->steps->dropping) { /* there is nothing left to drop */
        zcz_store_forgive(z->store);
        rc = 0;
    }
    return rc < 0 ? zcz_fail(z, rc, "what was prepared: %s", zcz_store_text(z->store)) : 0;
}

static int commit_refuse(struct zc_zero *z, uint32_t rank, const struct ballot *b)
{
    if (z->world == 1)
        return zcz_refuse(z, b->code, "step %llu is made, but not durable: %s",
                          (unsigned long long)z->iterations, b->text);
    return zcz_refuse(z, b->code, "step %llu is made, but not durable: rank %u: %s",
                      (unsigned long long)z->iterations, rank, b->text);
}

void zcz_commit_begun(struct zc_zero *z, enum zc_commit what)
{
    z->steps->unsettled = what;
    z->steps->saved = false;
}

void zcz_commit_known(struct zc_zero *z, bool saved)
{
    z->steps->saved = saved;
}

/* A daemon was lost: all ranks attach again at the end of the step, or of zc_zero_commit(). */
static int commit_lost(struct zc_zero *z)
{
    return zcz_refuse(z, ZC_ROLLED_BACK, "step %llu: the daemon was lost before it was committed",
                      (unsigned long long)z->iterations);
}

/* All ranks exchange their results, and a prepared step is resolved accordingly. */
static int commit_agree(struct zc_zero *z, enum zc_commit what, const struct ballot *mine)
{
    const struct ballot *all;
    struct zcz_buf *buf;
    uint32_t bad = 0;
    bool lost = false;
    int rc = zcz_share(z, mine, sizeof(*mine), ZCZ_CALL_COMMIT, 0, &buf);

    if (rc < 0)
        return rc;
    all = buf->data;
    for (uint32_t r = 0; r < z->world; r++)
        lost = lost || all[r].code == ZC_ROLLED_BACK;
    if (lost) { /* what is prepared is resolved when the job is attached again */
        zcz_buf_put(&z->small, buf);
        z->steps->saved = false;
        return commit_lost(z);
    }
    while (bad < z->world && all[bad].code == 0)
        bad++;
    z->steps->saved = bad == z->world;
    if (what == ZC_COMMIT_PREPARE && z->store->node_rank == 0 && mine->code == 0)
        rc = zcz_commit_resolve(z, z->steps->saved ? ZC_COMMIT_PREPARED : ZC_COMMIT_DROP,
                                z->iterations);
    if (rc == 0 && !z->steps->saved)
        rc = commit_refuse(z, bad, &all[bad]);
    zcz_buf_put(&z->small, buf);
    return rc;
}

static int commit_settle(struct zc_zero *z)
{
    struct ballot mine = { .code = z->steps->stepped.commit_code };
    enum zc_commit what = z->steps->unsettled;

    z->steps->unsettled = ZC_COMMIT_NO;
    if (z->store->lost && z->steps->stepped.iterations != z->iterations) /* no answer came */
        mine.code = ZC_ROLLED_BACK;
    (void)snprintf(mine.text, sizeof(mine.text), "%.*s", ZC_MESSAGE_MAX,
                   z->steps->stepped.commit_text);
    if (what == ZC_COMMIT_PREPARE)
        return commit_agree(z, what, &mine);
    z->steps->saved = mine.code == 0;
    if (mine.code == ZC_ROLLED_BACK)
        return commit_lost(z);
    return z->steps->saved ? 0 : commit_refuse(z, z->rank, &mine);
}

int zcz_commit_settle(struct zc_zero *z)
{
    int rc;

    if (z->steps->unsettled == ZC_COMMIT_NO)
        return 0;
    z->committing = true;
    rc = zcz_stepping_wait(z, "the step in progress, to be committed");
    if (rc == 0)
        rc = commit_settle(z);
    z->committing = false;
    return rc;
}

/* Commits the newest step, for which no commit was requested yet. */
static int commit_now(struct zc_zero *z)
{
    enum zc_commit what = z->nodes > 1 ? ZC_COMMIT_PREPARE : ZC_COMMIT_STEP;
    struct ballot mine = { 0 };
    int rc = 0;

    if (z->store->node_rank == 0) {
        rc = commit_ask(z, &z->op, what, z->iterations);
        if (rc < 0)
            (void)snprintf(mine.text, sizeof(mine.text), "%s", z->error.text);
        else if ((rc = zcz_wait_op(z, &z->op, "the commit")) < 0)
            (void)snprintf(mine.text, sizeof(mine.text), "%s", zcz_store_text(z->store));
        if (!z->failed)
            zcz_store_forgive(z->store); /* the run continues */
    }
    if (z->failed)
        return z->failed;
    mine.code = z->store->lost ? ZC_ROLLED_BACK : rc;
    rc = commit_agree(z, what, &mine);
    return rc < 0 ? rc : zcz_commit_resolved(z);
}

/* Whether some rank's daemon was lost: 0, ZC_ROLLED_BACK, or the failure. */
static int commit_lost_anywhere(struct zc_zero *z)
{
    uint32_t lost = z->store->lost;
    int rc = z->options.reconnect_ms > 0 ? zcz_vote_any(z, &lost, ZCZ_CALL_COMMIT) : 0;

    return rc == 0 && lost ? ZC_ROLLED_BACK : rc;
}

int zc_zero_commit(struct zc_zero *z)
{
    ZCZ_GUARD(z);
    int rc = zcz_enter(z, true);

    if (rc < 0)
        return rc;
    if (z->options.offload_optimizer == ZC_ZERO_NONE)
        return zcz_refuse(z, -ENOTSUP, "a commit needs a daemon, and this run has none");
    if (!z->options.durable)
        return zcz_refuse(z, -EINVAL, "a commit of a job that is not durable");
    z->committing = true;
    rc = zcz_stepping_wait(z, "the step in progress, to be committed");
    if (rc == 0)
        rc = commit_lost_anywhere(z);
    if (rc == 0)
        rc = zcz_commit_settle(z);
    z->committing = true;
    if (rc == 0)
        rc = zcz_commit_resolved(z);
    if (rc == 0 && !z->steps->saved)
        rc = commit_now(z);
    z->committing = false;
    return rc == ZC_ROLLED_BACK ? z->again(z) : rc;
}
