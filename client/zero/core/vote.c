/*
 * vote.c - values that every rank sends to all others: shares, and votes, which are shares of
 * statuses.
 *
 * Each slice of a share is sealed with its rank's calls so far (calls.c). So ranks that make
 * different calls are detected wherever ranks share anything.
 */
#include <errno.h>
#include <string.h>

#include "client/zero/core/zero.h"

/* ---- shares */

int zcz_share_begin(struct zc_zero *z, const void *mine, size_t bytes, enum zcz_call call,
                    uint16_t detail, struct zcz_buf **ret)
{
    size_t sealed = zcz_sealed_bytes(bytes);
    struct zcz_buf *b = zcz_buf_get(&z->small, sealed * z->world);
    char *place;

    if (!b)
        return zcz_fail(z, -ENOMEM, "%s: no memory for %zu bytes", zcz_call_noun(call),
                        sealed * z->world);
    place = (char *)b->data + sealed * z->rank;
    memcpy(place, mine, bytes);
    zcz_coll_queue(z, &z->shares.coll, z->comm, call, ZCZ_NO_UNIT, detail);
    zcz_seal(z, place, bytes);
    zcz_coll_arm(&z->shares.coll, place, b->data, sealed);
    z->shares.buf = *ret = b;
    z->shares.bytes = bytes;
    return 0;
}

int zcz_share_wait(struct zc_zero *z)
{
    struct zcz_wait w = { .what = zcz_call_noun(z->shares.coll.call) };
    int rc = zcz_turn(z, 0);

    while (rc == 0 && !z->shares.coll.done)
        rc = zcz_wait(z, &w);
    if (rc == 0 && z->shares.buf) {
        rc = zcz_unseal(z, z->shares.buf->data, z->shares.bytes);
        z->shares.buf = NULL;
    }
    return rc;
}

int zcz_share(struct zc_zero *z, const void *mine, size_t bytes, enum zcz_call call,
              uint16_t detail, struct zcz_buf **ret)
{
    int rc = zcz_share_begin(z, mine, bytes, call, detail, ret);

    return rc < 0 ? rc : zcz_share_wait(z); /* on failure the buffer stays in use: it may still be
                                          written */
}

int zcz_all_gather(struct zc_zero *z, struct zc_comm *comm, enum zcz_call call, uint32_t unit,
                   uint16_t detail, const void *mine, void *all, size_t bytes, const char *what)
{
    struct zcz_wait w = { .what = what };
    int rc;

    zcz_coll_queue(z, &z->shares.coll, comm, call, unit, detail);
    zcz_coll_arm(&z->shares.coll, mine, all, bytes);
    rc = zcz_turn(z, 0);
    while (rc == 0 && !z->shares.coll.done)
        rc = zcz_wait(z, &w);
    return rc;
}

/* ---- votes */

struct vote {
    int32_t rc;
    uint32_t same;
    char text[sizeof(((struct zb_err *)0)->text)];
};

/* The engine has failed. For a while it still sends its reason to the others and receives theirs.
 * Returns whether that succeeded. */
static bool vote_farewell(struct zc_zero *z)
{
    struct zb_err error = z->error;
    uint32_t patience_ms = z->turns.patience_ms;
    int failed = z->failed, rc;

    if (z->comm_broken)
        return false;
    z->failed = 0;
    z->turns.store_gone = true;
    z->turns.patience_ms = z->placing ? ZCZ_REASON_MS : ZCZ_FAREWELL_MS;
    z->turns.moved_ns = zb_now_ns();
    rc = zcz_share_wait(z);
    z->turns.patience_ms = patience_ms;
    z->failed = failed;
    z->error = error;
    return rc == 0;
}

/* What differs, for people: what is compared is a checksum. */
static const char *vote_hint(enum zcz_call what)
{
    switch (what) {
    case ZCZ_CALL_UNITS:
        return ": their models differ, or how they are cut into units";
    case ZCZ_CALL_OPTIONS:
        return ": the kind of optimizer, the stage, the job's name or another option differs";
    default:
        return "";
    }
}

/* The first rank that reports a failure, or a different value, becomes the reason of the failure.
 * -EOWNERDEAD counts last: such a rank only heard of the failure from the daemon. */
static int vote_count(struct zc_zero *z, const struct vote *votes, enum zcz_call what)
{
    for (uint32_t r = 0; r < z->world; r++)
        if (votes[r].rc < 0 && votes[r].rc != -EOWNERDEAD)
            return zcz_fail(z, votes[r].rc, "rank %u: %.*s", r, (int)sizeof(votes[r].text) - 1,
                            votes[r].text);
    for (uint32_t r = 0; r < z->world; r++)
        if (votes[r].rc < 0)
            return zcz_fail(z, votes[r].rc, "%.*s", (int)sizeof(votes[r].text) - 1, votes[r].text);
    for (uint32_t r = 0; r < z->world; r++)
        if (votes[r].same != votes[0].same)
            return zcz_fail(z, -EINVAL, "%s: rank %u and rank 0 have different values%s",
                            zcz_call_noun(what), r, vote_hint(what));
    return 0;
}

int zcz_vote(struct zc_zero *z, int my_rc, uint32_t same, enum zcz_call what)
{
    struct vote mine = { .rc = my_rc, .same = same };
    struct zcz_buf *buf;
    int rc;

    if (z->failed && z->placing)
        return z->failed;
    if (my_rc < 0)
        memcpy(mine.text, z->error.text, sizeof(mine.text));
    rc = zcz_share_begin(z, &mine, sizeof(mine), what, 0, &buf);
    if (rc < 0)
        return rc;
    rc = zcz_share_wait(z);
    if (rc < 0 && !vote_farewell(z))
        return rc; /* buf stays in use: it may still be written */
    if (rc == 0 && my_rc < 0) {
        rc = zcz_fail(z, my_rc, "%s", mine.text);
    } else if (rc == 0) {
        rc = vote_count(z, buf->data, what);
    } else if (rc == -EOWNERDEAD) { /* the rank that left may have said why */
        struct zb_err lost = z->error;

        z->failed = 0;
        if (vote_count(z, buf->data, what) == 0)
            (void)zcz_fail(z, rc, "%s", lost.text);
        rc = z->failed;
    }
    zcz_buf_put(&z->small, buf);
    return rc;
}

int zcz_vote_any(struct zc_zero *z, uint32_t *value, enum zcz_call what)
{
    const uint32_t *all;
    struct zcz_buf *buf;
    int rc = zcz_share(z, value, sizeof(*value), what, 1, &buf);

    if (rc < 0)
        return rc;
    all = buf->data;
    for (uint32_t r = 0; r < z->world; r++)
        *value |= all[r];
    zcz_buf_put(&z->small, buf);
    return 0;
}
