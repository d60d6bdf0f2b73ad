/*
 * start.c - the start: ranks are compared, the store makes room, and slices get their initial
 * values.
 *
 * A kept job is attached first (resume.c). Everything that could differ between ranks is compared.
 * Then the store makes room, and values are written piece by piece, so memory never holds more of a
 * unit than its slice in the store and the pieces on their way there. Before each stage that needs
 * every rank, and at the end, the ranks vote, so that a rank that is refused does not leave the
 * others waiting.
 */
#include <errno.h>
#include <string.h>

#include "base/crc.h"
#include "client/zero/core/piece.h"
#include "client/zero/engine.h"
#include "client/zero/pass/pass.h"
#include "client/zero/step/clip.h"
#include "client/zero/step/counts.h"
#include "client/zero/step/step.h"

/* Writes elements [first, first + count) of this rank's slice, made by the caller's function. */
static int start_write(struct zc_zero *z, struct zcz_unit *u, uint64_t first, uint64_t count,
                       zc_zero_init_fn *init, void *arg)
{
    struct zcz_wait w = { .what = "the store to take initial values" };
    uint64_t at = u->first + first, inside;
    float *piece;
    int rc = zcz_piece_get(z, &piece);

    if (rc < 0)
        return rc;
    inside = at < u->def.elems ? zb_min_u64(count, u->def.elems - at) : 0;
    memset(piece + inside, 0, (count - inside) * sizeof(*piece));
    rc = inside > 0 ? init(arg, u->def.index, at, inside, piece) : 0;
    if (rc != 0) {
        z->store->ops->piece_put(z->store, piece);
        rc = rc < 0 ? rc : -EINVAL;
        return zcz_refuse(z, rc, "no initial values of unit %u '%s' from element %llu: %m",
                          u->def.index, u->def.name, (unsigned long long)at);
    }
    do
        rc = z->store->ops->write(z->store, &z->op, u, first, count, piece);
    while (rc == -EAGAIN && (rc = zcz_wait(z, &w)) == 0);
    return rc;
}

static int start_values(struct zc_zero *z, zc_zero_init_fn *init, void *arg)
{
    int rc = 0, rest;

    for (uint32_t i = 0; i < z->nunits; i++) {
        struct zcz_unit *u = &z->units[i];
        uint64_t n;

        for (uint64_t at = 0; at < u->count && rc == 0 && z->op.rc == 0; at += n) {
            n = zb_min_u64(z->store->piece_elems, u->count - at);
            rc = start_write(z, u, at, n, init, arg);
        }
    }
    if (z->failed)
        return z->failed;
    rest = zcz_wait_op(z, &z->op, "the initial values to be stored");
    if (rc == 0 && rest < 0 && !z->failed)
        rc = zcz_refuse(z, rest, "initial values: %s", zcz_store_text(z->store));
    return rc < 0 ? rc : rest;
}

/* Checks that all ranks continue in the same way. */
static int start_agree(struct zc_zero *z, int rc)
{
    uint64_t version[7];

    version[0] = z->iterations;
    version[1] = z->applied;
    memcpy(&version[2], &z->steps->scaler.scale, sizeof(z->steps->scaler.scale));
    version[3] = (uint64_t)z->steps->scaler.last_overflow;
    version[4] = z->steps->scaler.hysteresis;
    version[5] = zcz_counts_digest(z);
    version[6] = zcz_clip_digest(z);
    return zcz_vote(z, rc, zb_crc32c(0, version, sizeof(version)), ZCZ_CALL_START);
}

int zcz_start_store(struct zc_zero *z, zc_zero_init_fn *init, void *arg)
{
    uint32_t run = 0;
    int rc = zcz_vote(z, z->store->ops->join(z->store), 0, ZCZ_CALL_JOIN), counted;

    if (rc == 0)
        rc = zcz_alone_start(z);
    z->placing = true;
    if (rc == 0 && (rc = z->store->ops->place(z->store)) < 0)
        rc = zcz_fail(z, rc, "%s", z->error.text); /* the daemon tells the others */
    if (rc == 0 && !z->started)
        rc = zcz_pass_start(z);
    counted = zcz_steps_start(z);
    rc = rc == 0 ? counted : rc;
    if (rc == 0)
        rc = z->options.resume ? zcz_resume_settle(z) : start_values(z, init, arg);
    if (rc == 0)
        rc = zcz_stats_begin(z);
    if (rc == 0 && z->options.resume)
        rc = zcz_note_resume(z, &run);
    if (z->options.resume && z->nodes > 1) {
        rc = zcz_vote(z, rc, run, ZCZ_CALL_RUN);
        if (rc < 0)
            return rc;
    }
    if (rc == 0)
        rc = zcz_note_begin(z);
    rc = start_agree(z, rc);
    if (rc == 0)
        rc = zcz_clip_agree(z);
    return rc < 0 ? rc : zcz_about_tell(z);
}

/* Chooses how to gather, if that is left to the engine. What it moves for that is not counted. */
static int start_choose(struct zc_zero *z)
{
    int rc = zcz_choose(z);

    if (rc < 0 || z->options.node_gather != ZC_NODE_GATHER_AUTO)
        return rc;
    return zcz_vote(z, zcz_stats_restart(z), z->pass->chosen, ZCZ_CALL_CHOICE);
}

int zc_zero_start(struct zc_zero *z, zc_zero_init_fn *init, void *arg)
{
    ZCZ_GUARD(z);
    bool there;
    int rc = zcz_enter(z, false);

    if (rc < 0)
        return rc;
    if (z->started)
        return zcz_refuse(z, -EBUSY, "the engine has started already");
    if (z->nunits == 0 || (!init && !z->options.resume))
        return zcz_refuse(z, -EINVAL,
                          "a start needs units, and a function that gives their values");
    rc = zcz_vote(z, zcz_account_check(z), zcz_digest(z), ZCZ_CALL_UNITS);
    if (rc == 0 && (z->options.resume || z->options.resume_if_there)) {
        rc = zcz_resume_attach(z, &there);
        z->options.resume = rc == 0 && there;
    }
    if (rc == 0)
        rc = zcz_start_store(z, init, arg);
    if (rc == 0)
        rc = start_choose(z);
    if (rc < 0)
        return rc;
    z->started = true;
    zcz_turn_clear(z);
    zcz_coll_clear(z);
    return 0;
}

int zc_zero_progress(struct zc_zero *z, uint64_t *ret_iterations, uint64_t *ret_applied)
{
    ZCZ_GUARD(z);
    int rc = zcz_enter(z, true);

    if (rc < 0)
        return rc;
    *ret_iterations = z->iterations;
    *ret_applied = z->applied;
    return 0;
}
