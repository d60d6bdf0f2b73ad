/*
 * scale.c - the same run on 1, 2, 4 ... nodes, in several modes: what it takes, and how fast it is.
 *
 * MODEL. Each row is a plan of its own, with as many ranks on each node as the run asks for. The
 * loss compares the operations per second of a rank with those on the fewest nodes that fit, in the
 * same mode. The node is the same in all rows; other jobs' use is counted on each.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "base/util.h"
#include "client/zctl/plan/plan.h"

#define NODES_MAX 18u /* numbers of nodes: the powers of two up to ZB_RANKS_MAX, and one more */
#define TERA      1e12

/* ---- what is asked for */

/* Parses "zero3,ddp". Returns the number of modes, or -EINVAL. */
static int scale_modes(struct zctl_plan *p, enum zb_mode modes[ZB_MODES])
{
    int n = 0;

    for (const char *at = p->scale; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        size_t len = strcspn(at, ",");
        enum zb_mode m = 0;

        while (m < ZB_MODES &&
               (strlen(zb_mode_name(m)) != len || strncmp(zb_mode_name(m), at, len) != 0))
            m++;
        if (m == ZB_MODES)
            return zb_fail(&p->z->err, -EINVAL,
                           "--scale: '%.*s' is not a mode: ddp, zero1, zero2, zero3, fsdp or "
                           "hybrid, separated by commas",
                           (int)len, at);
        for (int i = 0; i < n; i++)
            if (modes[i] == m)
                return zb_fail(&p->z->err, -EINVAL, "--scale: %s is given twice", zb_mode_name(m));
        modes[n++] = m;
    }
    return n;
}

/* The powers of two below the run's nodes, and that number. */
static size_t scale_nodes(const struct zctl_plan *p, uint32_t nodes[NODES_MAX])
{
    size_t n = 0;

    for (uint32_t k = 1; k < p->run.nodes && n < NODES_MAX - 1; k *= 2)
        nodes[n++] = k;
    nodes[n++] = p->run.nodes;
    return n;
}

/* ---- rows */

static int scale_row(struct zctl_plan *p, struct zctl_scale_row *row)
{
    const struct zb_run whole = p->run;
    struct zb_forecast f;
    int rc;

    p->run.mode = row->mode;
    p->run.nodes = row->nodes;
    p->run.ranks = row->ranks;
    rc = zctl_plan_run(p, &f, &row->it, &row->timed);
    p->run = whole;
    if (rc < 0)
        return rc;
    row->fits = f.fits;
    row->why = f.why;
    row->rank_bytes = f.gather_bytes + f.grad_bytes;
    for (enum zb_plane plane = 0; plane < ZB_PLANES; plane++)
        row->rank_bytes += f.own[plane];
    row->host_bytes = f.host_used;
    row->nvme_bytes = f.nvme_used;
    return 0;
}

/* Rows of one mode. */
static int scale_mode(struct zctl_plan *p, enum zb_mode mode, const uint32_t *nodes, size_t n,
                      struct zctl_scale_row *rows)
{
    uint32_t each = p->run.ranks / p->run.nodes;
    double most = 0;
    int rc = 0;

    for (size_t i = 0; i < n && rc == 0; i++) {
        rows[i] =
            (struct zctl_scale_row){ .mode = mode, .nodes = nodes[i], .ranks = nodes[i] * each };
        rc = scale_row(p, &rows[i]);
        if (rc == 0 && rows[i].timed) {
            most = most > 0 ? most : rows[i].it.flops;
            rows[i].loss = 1 - rows[i].it.flops / most;
        }
    }
    return rc;
}

/* ---- JSON */

static json_t *row_json(const struct zctl_scale_row *r)
{
    return json_pack("{s:s, s:I, s:I, s:b, s:s, s:I, s:I, s:I, s:o, s:o}", "mode",
                     zb_mode_name(r->mode), "nodes", (json_int_t)r->nodes, "ranks",
                     (json_int_t)r->ranks, "fits", (int)r->fits, "why", r->why.text, "rank_bytes",
                     (json_int_t)r->rank_bytes, "host_bytes", (json_int_t)r->host_bytes,
                     "nvme_bytes", (json_int_t)r->nvme_bytes, "iteration",
                     zctl_iteration_json(r->timed ? &r->it : NULL), "loss",
                     r->timed ? json_real(r->loss) : json_null());
}

static int scale_json(struct zctl_plan *p, const struct zctl_scale_row *rows, size_t n)
{
    json_t *list = json_array(), *all;
    int rc;

    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(list, row_json(&rows[i]));
    all = json_pack("{s:i, s:I, s:I, s:o}", "schema", ZCTL_SCHEMA, "params",
                    (json_int_t)p->model.params, "tokens", (json_int_t)p->run.tokens, "rows", list);
    rc = zctl_dump(p->z->out, all, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    return rc < 0 ? zb_fail(&p->z->err, rc, "the output: %m") : zctl_written(p->z);
}

/* ---- people */

static int scale_people(struct zctl_plan *p, const struct zctl_scale_row *rows, size_t n)
{
    FILE *out = p->z->out;

    (void)fprintf(out, "%-7s %6s %6s %11s %11s %11s %9s %7s %7s  %s\n", "MODE", "NODES", "RANKS",
                  "RANK", "HOST", "NVME", "SECONDS", "TFLOP/S", "LOSS", "BOUND");
    for (size_t i = 0; i < n; i++) {
        const struct zctl_scale_row *r = &rows[i];

        (void)fprintf(out, "%-7s %6u %6u %11s", zb_mode_name(r->mode), r->nodes, r->ranks,
                      zb_size_text(r->rank_bytes).s);
        if (!r->fits) {
            (void)fprintf(out, " %11s %11s %9s %7s %7s  %s\n", "-", "-", "-", "-", "-",
                          "does not fit");
            continue;
        }
        (void)fprintf(out, " %11s %11s", zb_size_text(r->host_bytes).s,
                      zb_size_text(r->nvme_bytes).s);
        if (r->timed)
            (void)fprintf(out, " %9.4f %7.1f %6.1f%%  %s\n", r->it.seconds, r->it.flops / TERA,
                          100 * r->loss, zb_part_name(r->it.bound));
        else
            (void)fprintf(out, " %9s %7s %7s  %s\n", "-", "-", "-", "-");
    }
    return zctl_written(p->z);
}

/* ---- the whole output */

int zctl_scale(struct zctl_plan *p)
{
    enum zb_mode modes[ZB_MODES];
    uint32_t nodes[NODES_MAX];
    struct zctl_scale_row *rows;
    size_t each, n;
    int nmodes = scale_modes(p, modes), rc = 0;

    if (nmodes < 0)
        return nmodes;
    if (p->run.ranks > ZB_RANKS_MAX || p->run.ranks % p->run.nodes != 0)
        return zb_fail(&p->z->err, -EINVAL, "%u ranks on %u nodes: as many on each, and at most %u",
                       p->run.ranks, p->run.nodes, ZB_RANKS_MAX);
    each = scale_nodes(p, nodes);
    n = each * (size_t)nmodes;
    rows = calloc(n, sizeof(*rows));
    if (!rows)
        return zb_fail(&p->z->err, -ENOMEM, "a table of %zu rows: %m", n);
    for (int m = 0; m < nmodes && rc == 0; m++)
        rc = scale_mode(p, modes[m], nodes, each, &rows[(size_t)m * each]);
    if (rc == 0 && p->svg)
        rc = zctl_picture(p, p->svg, rows, n);
    if (rc == 0)
        rc = p->z->json ? scale_json(p, rows, n) : scale_people(p, rows, n);
    free(rows);
    return rc;
}
