/*
 * calls.c - which collectives this rank makes, and whether the others make the same.
 *
 * MODEL. Each collective has a name, a number made of the kind of call, the unit and the step. A
 * name is assigned together with the place in the order (coll.c), so names follow from the
 * trainer's calls alone. They are compared in two ways:
 *
 *     the backend   at each collective in host memory, if its messages carry names
 *                   (zc_comm_ops.name_next). For other backends, coll.c makes a small all-gather of
 *                   names before each collective
 *     the seal      a count and a hash of all names so far: 16 bytes of each rank, sent with every
 *                   vote, sum and step. It covers NCCL's collectives, which carry no names
 *
 * Different seals do not break collectives: all ranks detect them in the same one. They then
 * exchange the last ZCZ_CALLS_MAX names, and the first difference becomes the error message. After
 * a failure between devices, ranks try the same over host memory.
 *
 *     bits 0 to 25   the unit; all ones: none
 *     26 to 41       a detail of the call: how many values are added, what is read
 *     42 to 57       the step, without its upper bits
 *     58 to 63       enum zcz_call
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/zero/core/zero.h"

#define UNIT_BITS   26
#define DETAIL_BITS 16
#define STEP_BITS   16
#define UNIT_NONE   ((UINT64_C(1) << UNIT_BITS) - 1)
#define NAP_US      100u

/* Used as "nothing moved ... it is at NOUN UNIT" and "rank 1 VERB 'UNIT'". */
static const struct {
    const char *noun, *verb;
} calls[] = {
    [ZCZ_CALL_GATHER] = { "the gather of", "gathers" },
    [ZCZ_CALL_REDUCE] = { "the exchange of gradients of", "reduces" },
    [ZCZ_CALL_PARTS] = { "the exchange between replicas of", "reduces over the replicas" },
    [ZCZ_CALL_SUMS] = { "the gather of gradients of", "gathers the gradients of" },
    [ZCZ_CALL_READ] = { "a read of", "reads" },
    [ZCZ_CALL_WRITE] = { "a write of elements of", "writes elements of" },
    [ZCZ_CALL_SUM] = { "a sum over the ranks", "adds up values" },
    [ZCZ_CALL_NORMS] = { "the norms of tensors", "asks for norms of tensors" },
    [ZCZ_CALL_UNIT_SUMS] = { "the norms of the tensors of", "adds up the norms of" },
    [ZCZ_CALL_STEP] = { "the norms of the ranks", "steps" },
    [ZCZ_CALL_COMMIT] = { "the vote on a commit", "votes on a commit" },
    [ZCZ_CALL_OPTIMIZER] = { "the optimizer", "sets the optimizer" },
    [ZCZ_CALL_COUNTS] = { "the step counts of tensors", "sets step counts of tensors" },
    [ZCZ_CALL_FREEZE] = { "the freezing of a unit", "freezes a unit, or unfreezes one" },
    [ZCZ_CALL_PLACES] = { "the places of the ranks", "opens an engine" },
    [ZCZ_CALL_OPTIONS] = { "the options of the engine", "opens an engine" },
    [ZCZ_CALL_ABANDON] = { "the end of a step that is abandoned", "abandons a step" },
    [ZCZ_CALL_DEVICES] = { "collectives between devices", "opens a device" },
    [ZCZ_CALL_MEET] = { "the introduction of the ranks", "introduces itself" },
    [ZCZ_CALL_UNITS] = { "the units", "starts with its units" },
    [ZCZ_CALL_ATTACH] = { "attaching", "attaches" },
    [ZCZ_CALL_POINTS] = { "what the nodes have of the job", "resumes" },
    [ZCZ_CALL_JOIN] = { "joining", "joins" },
    [ZCZ_CALL_SLICES] = { "the names of the slices", "names its slices" },
    [ZCZ_CALL_RUN] = { "the run that each node has this job of", "compares runs" },
    [ZCZ_CALL_AGAIN] = { "attaching again", "attaches again" },
    [ZCZ_CALL_CHOICE] = { "the choice of a way to gather", "measures gathers" },
    [ZCZ_CALL_START] = { "the start of the engine", "starts" },
    [ZCZ_CALL_COMPARE] = { "a comparison of calls", "waits for a collective between devices" },
};

_Static_assert(ZB_COUNT(calls) <= 1u << (64 - UNIT_BITS - DETAIL_BITS - STEP_BITS), "bits");

const char *zcz_call_noun(enum zcz_call call)
{
    return calls[call].noun;
}

/* ---- names */

static uint64_t bits(uint64_t name, unsigned from, unsigned n)
{
    return name >> from & ((UINT64_C(1) << n) - 1);
}

static uint64_t name_make(const struct zc_zero *z, enum zcz_call call, uint32_t unit,
                          uint16_t detail)
{
    uint64_t u = unit == ZCZ_NO_UNIT ? UNIT_NONE : unit & UNIT_NONE;
    uint64_t step = (z->iterations + 1) & ((1u << STEP_BITS) - 1);

    return (uint64_t)call << (UNIT_BITS + DETAIL_BITS + STEP_BITS) |
           step << (UNIT_BITS + DETAIL_BITS) | (uint64_t)detail << UNIT_BITS | u;
}

static enum zcz_call name_call(uint64_t name)
{
    return (enum zcz_call)(name >> (UNIT_BITS + DETAIL_BITS + STEP_BITS));
}

static uint16_t name_detail(uint64_t name)
{
    return (uint16_t)bits(name, UNIT_BITS, DETAIL_BITS);
}

/* The upper bits are restored by assuming a step near this rank's. */
static uint64_t name_step(const struct zc_zero *z, uint64_t name)
{
    uint64_t here = z->iterations + 1;
    int16_t apart = (int16_t)(bits(name, UNIT_BITS + DETAIL_BITS, STEP_BITS) - here);

    return here + (uint64_t)(int64_t)apart;
}

uint64_t zcz_calls_add(struct zc_zero *z, enum zcz_call call, uint32_t unit, uint16_t detail)
{
    struct zcz_calls *c = &z->calls;
    uint64_t name = name_make(z, call, unit, detail);

    c->names[c->seal.count++ % ZCZ_CALLS_MAX] = name;
    c->seal.hash = (c->seal.hash ^ name) * UINT64_C(0x9e3779b97f4a7c15);
    c->seal.hash ^= c->seal.hash >> 29;
    return name;
}

/* ---- the error message */

/* "gathers 'fc1'" */
static void name_text(const struct zc_zero *z, uint64_t name, char *text, size_t bytes)
{
    enum zcz_call call = name_call(name);
    uint64_t unit = bits(name, 0, UNIT_BITS);

    if ((size_t)call >= ZB_COUNT(calls))
        (void)snprintf(text, bytes, "makes an unknown call");
    else if (call == ZCZ_CALL_SUM)
        (void)snprintf(text, bytes, "adds up %u value%s", name_detail(name),
                       name_detail(name) == 1 ? "" : "s");
    else if (unit < z->nunits)
        (void)snprintf(text, bytes, "%s '%s'", calls[call].verb, z->units[unit].def.name);
    else
        (void)snprintf(text, bytes, "%s", calls[call].verb);
}

/* What two ranks call in the same place; `low` is the lower rank. */
struct pair {
    uint32_t low, high;
    uint64_t low_name, high_name;
};

static int calls_fail(struct zc_zero *z, const struct pair *p)
{
    char low[ZC_NAME_MAX + 64], high[ZC_NAME_MAX + 64];
    unsigned long long low_step = name_step(z, p->low_name), high_step = name_step(z, p->high_name);

    name_text(z, p->low_name, low, sizeof(low));
    name_text(z, p->high_name, high, sizeof(high));
    if (low_step != high_step)
        return zcz_fail(z, -EINVAL, "rank %u %s (step %llu) where rank %u %s (step %llu)", p->high,
                        high, high_step, p->low, low, low_step);
    if (strcmp(low, high) == 0)
        return zcz_fail(z, -EINVAL, "rank %u %s with other arguments than rank %u (step %llu)",
                        p->high, high, p->low, low_step);
    return zcz_fail(z, -EINVAL, "rank %u %s where rank %u %s (step %llu)", p->high, high, p->low,
                    low, low_step);
}

int zcz_calls_fail(struct zc_zero *z, uint64_t mine, uint32_t rank, uint64_t theirs)
{
    struct pair p = rank < z->rank ? (struct pair){ rank, z->rank, theirs, mine }
                                   : (struct pair){ z->rank, rank, mine, theirs };

    return calls_fail(z, &p);
}

int zcz_calls_refused(struct zc_zero *z, struct zc_comm *comm)
{
    struct zc_comm_other o;

    if (!comm->ops->other || !comm->ops->other(comm, &o))
        return 0;
    return zcz_calls_fail(z, o.mine, o.rank, o.theirs);
}

/* ---- all calls of all ranks */

/* Finds the first difference between the names of two ranks, as far back as both have them. */
static bool calls_differ(const struct zcz_calls *a, const struct zcz_calls *b, uint64_t *ret_at)
{
    uint64_t most = zb_max_u64(a->seal.count, b->seal.count);
    uint64_t at = most > ZCZ_CALLS_MAX ? most - ZCZ_CALLS_MAX : 0;
    uint64_t end = zb_min_u64(a->seal.count, b->seal.count);

    while (at < end && a->names[at % ZCZ_CALLS_MAX] == b->names[at % ZCZ_CALLS_MAX])
        at++;
    *ret_at = at;
    return at < end;
}

static int calls_judge(struct zc_zero *z, const struct zcz_calls *all)
{
    for (uint32_t r = 1; r < z->world; r++) {
        const struct zcz_calls *a = &all[0], *b = &all[r];
        uint64_t at;

        if (calls_differ(a, b, &at)) {
            const struct pair p = { 0, r, a->names[at % ZCZ_CALLS_MAX],
                                    b->names[at % ZCZ_CALLS_MAX] };

            return calls_fail(z, &p);
        }
        if (a->seal.count != b->seal.count || a->seal.hash != b->seal.hash)
            return zcz_fail(z, -EINVAL,
                            "rank %u has made %llu collectives and rank 0 %llu, not the same ones, "
                            "and the first difference is not among the last %u (step %llu)",
                            r, (unsigned long long)b->seal.count, (unsigned long long)a->seal.count,
                            ZCZ_CALLS_MAX, (unsigned long long)z->iterations + 1);
    }
    return 0;
}

/* Exchanges every rank's calls over host memory. Makes no turns: the engine may have failed. */
static int calls_show(struct zc_zero *z, uint32_t patience_ms, struct zcz_buf *b)
{
    const struct zc_comm_ops *ops = z->comm->ops;
    struct zcz_calls *mine = (struct zcz_calls *)b->data + z->rank;
    uint64_t until = zb_now_ns() + (uint64_t)patience_ms * 1000000;
    struct zc_comm_op *op;
    bool done = false;
    int rc;

    *mine = z->calls;
    if (ops->name_next)
        ops->name_next(z->comm, name_make(z, ZCZ_CALL_COMPARE, ZCZ_NO_UNIT, 0));
    rc = ops->all_gather(z->comm, mine, b->data, sizeof(*mine), &op);
    while (rc == 0 && (rc = ops->test(z->comm, op, &done)) == 0 && !done) {
        if (zb_now_ns() > until)
            rc = -ETIMEDOUT;
        (void)usleep(NAP_US);
    }
    return rc;
}

int zcz_calls_compare(struct zc_zero *z, uint32_t patience_ms)
{
    struct zcz_buf *b;
    int rc;

    if (z->world == 1 || z->failed)
        return 0;
    b = zcz_buf_get(&z->small, sizeof(struct zcz_calls) * z->world);
    if (!b)
        return 0;
    rc = calls_show(z, patience_ms, b);
    if (rc < 0) { /* the buffer stays in use: it may still be written */
        z->comm_broken = true;
        return rc == -EINVAL ? zcz_calls_refused(z, z->comm) : 0;
    }
    rc = calls_judge(z, b->data);
    zcz_buf_put(&z->small, b);
    return rc;
}

/* ---- the seal */

static size_t sealed_bytes(size_t bytes)
{
    return zb_round_up(bytes, sizeof(uint64_t));
}

size_t zcz_sealed_bytes(size_t bytes)
{
    return sealed_bytes(bytes) + sizeof(struct zcz_seal);
}

void zcz_seal(const struct zc_zero *z, void *slice, size_t bytes)
{
    memcpy((char *)slice + sealed_bytes(bytes), &z->calls.seal, sizeof(z->calls.seal));
}

int zcz_unseal(struct zc_zero *z, void *slices, size_t bytes)
{
    const size_t stride = zcz_sealed_bytes(bytes);
    char *all = slices, *mine = all + z->rank * stride + sealed_bytes(bytes);
    int rc;

    for (uint32_t r = 0; r < z->world; r++)
        if (memcmp(all + r * stride + sealed_bytes(bytes), mine, sizeof(struct zcz_seal)) != 0) {
            rc = zcz_calls_compare(z, z->turns.patience_ms);
            return rc < 0 ? rc
                          : zcz_fail(z, -EINVAL, "rank %u does not make the same collectives", r);
        }
    for (uint32_t r = 1; r < z->world; r++)
        memmove(all + r * bytes, all + r * stride, bytes);
    return 0;
}
