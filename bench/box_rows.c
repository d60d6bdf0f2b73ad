/*
 * box_rows.c - `zbench comm`, its rows on a simulated node: gathers from host memory that the ranks
 * share (node_gather), against an all-gather through host memory.
 *
 * MODEL. R GPUs gather a model of P bytes, unit by unit. Bytes are those that the engine counts
 * (tests/unit/zero/test_node_gather.c, test_nccl.c):
 *
 *     shared      P into each GPU, R P out of host memory
 *     all-gather  P/R into each GPU from its slice, and (R - 1) P/R in each direction of its link:
 *                 (2 R - 1) P through host memory
 *
 * `auto` gathers the largest unit in both ways, as the engine does at the start, and all units in
 * the way that was faster. Its row compares that with the better of both.
 */
#include "bench/box_rows.h"

#include <errno.h>
#include <math.h>

#include "base/util.h"
#include "bench/box.h"

#define BOX_BLOCKS    24u /* equal units, and one of BOX_EMBEDDING times their size */
#define BOX_EMBEDDING 4u
#define BOX_ROUNDS    6u    /* all equal: nothing is measured */
#define BOX_BLOCK     100e6 /* bytes of one */

typedef void box_way_fn(struct zbench_box *box, double bytes);

static struct zbench_box box_model(const struct zbench_box *like, box_way_fn *way)
{
    struct zbench_box box = *like;

    way(&box, BOX_BLOCK * BOX_EMBEDDING);
    for (uint32_t u = 0; u < BOX_BLOCKS; u++)
        way(&box, BOX_BLOCK);
    return box;
}

static struct zbench_box box_auto(const struct zbench_box *like)
{
    struct zbench_box shared = *like, ring = *like;

    zbench_box_shared(&shared, BOX_BLOCK * BOX_EMBEDDING);
    zbench_box_ring(&ring, BOX_BLOCK * BOX_EMBEDDING);
    return box_model(like, shared.seconds <= ring.seconds ? zbench_box_shared : zbench_box_ring);
}

static int box_check(struct zbench *z, const struct zbench_box *box, const char *what,
                     double formula)
{
    return fabs(box->host_bytes - formula) <= 1e-6 * formula
               ? 0
               : zb_fail(&z->err, -EBADMSG,
                         "%s: %.0f bytes through host memory, and the formula says %.0f", what,
                         box->host_bytes, formula);
}

static int box_add(struct zbench *z, const struct zbench_row *row, double value, double reference)
{
    double values[BOX_ROUNDS], references[BOX_ROUNDS];

    for (uint32_t i = 0; i < BOX_ROUNDS; i++) {
        values[i] = value;
        references[i] = reference;
    }
    return zbench_add(z, row, values, references, BOX_ROUNDS);
}

static int box_row(struct zbench *z, const struct zbench_box *like)
{
    double bytes = BOX_BLOCK * (BOX_EMBEDDING + BOX_BLOCKS), R = like->gpus;
    struct zbench_box shared = box_model(like, zbench_box_shared);
    struct zbench_box ring = box_model(like, zbench_box_ring), chosen = box_auto(like);
    const char *memory = like->host > 0 ? "box" : "box-unlimited";
    struct zbench_row row =
        zbench_row("GB/s", false, "all-gather", "comm/%s/%u/shared/all-gather", memory, like->gpus);
    double ours = bytes / shared.seconds / 1e9, theirs = bytes / ring.seconds / 1e9, best;
    int rc = box_check(z, &shared, "shared", R * bytes);

    if (rc == 0)
        rc = box_check(z, &ring, "all-gather", (2 * R - 1) * bytes);
    if (rc == 0)
        rc = box_add(z, &row, ours, theirs);
    if (rc < 0)
        return rc;
    zbench_note(z,
                "%s: %u GPUs: shared %.2f GB through host memory, into each GPU %.2f; all-gather "
                "%.2f, %.2f in and %.2f out",
                memory, like->gpus, shared.host_bytes / 1e9, shared.down / R / 1e9,
                ring.host_bytes / 1e9, ring.down / R / 1e9, ring.up / R / 1e9);
    best = fmax(ours, theirs);
    ours = bytes / chosen.seconds / 1e9;
    row = zbench_row("GB/s", false, "better", "comm/%s/%u/auto/better", memory, like->gpus);
    return box_add(z, &row, ours, best);
}

int zbench_box_rows(struct zbench *z, double link, double host)
{
    static const uint32_t gpus[] = { 2, 4, 8 };
    int rc = 0;

    zbench_note(z,
                "box: simulated; duplex links of %.1f GB/s each, a host memory of %.1f GB/s; "
                "box-unlimited: the same links",
                link / 1e9, host / 1e9);
    for (size_t i = 0; i < 2 * ZB_COUNT(gpus) && rc == 0; i++) {
        struct zbench_box box = { .gpus = gpus[i % ZB_COUNT(gpus)],
                                  .link = link,
                                  .host = i < ZB_COUNT(gpus) ? host : 0 };

        rc = box_row(z, &box);
    }
    return rc;
}
