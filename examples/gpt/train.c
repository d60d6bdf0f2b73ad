/*
 * train.c - the training loop over the engine.
 *
 * MODEL. The engine handles units of parameters, the model computes with one unit at a time. This
 * file connects them, in the order that zc_zero.h and gpt.h both require. A unit's weights are
 * borrowed from the engine for one pass. On the processor, 16-bit weights are converted to fp32 in
 * a buffer of ours, and released at once. A device uses them directly, and calls to passes only
 * enqueue work (passes.h); the loss of a step is read after the step has begun.
 *
 * ORDER. Horizontal: each micro-batch goes through all units, forward and backward. Vertical: while
 * a unit is gathered, all micro-batches of the step go through it, forward and again backward. So a
 * unit is gathered and reduced once for all of them (docs/ENGINE.md). Both are the same walk, over
 * `at_once` micro-batches at a time.
 *
 * FROZEN. The first `freeze` blocks have only parameters. They are gathered like others, also in
 * the backward pass, since the embedding below them needs its gradient. They get no gradient
 * themselves, and are not reduced. The embedding and all units above the blocks are trained.
 *
 * RANKS. Step s (counted from 1) has `batch` sequences. Micro-step k gives sequence
 * (k * world + rank) * micro_batch + j to a rank as its j-th. Every rank makes the same collective
 * calls. Work of rank 0 alone (progress, --jsonl, --export) makes none. If it fails during the
 * export, the failure is reported at the end, so that the other ranks are not left waiting.
 *
 * RESUME. All state here follows from the step's number (note.h). So a kept run needs only its job
 * and that number, which the engine has. The note proves that the job belongs to this run.
 *
 * RESTART. If the daemon is lost, the step returns ZC_ROLLED_BACK, and the loop continues from the
 * step that the next daemon has. If it restarts in good order, nothing shows here.
 *
 * STOPPING. Each rank checks its own flag. The flags are summed with the losses, so all ranks stop
 * after the same step.
 */
#include <errno.h>
#include <inttypes.h>

#include "examples/gpt/note.h"
#include "examples/gpt/train_priv.h"

/* ---- one step */

/* What goes with the step. */
static int note_put(struct train *t, uint64_t step)
{
    char note[GPT_NOTE_BYTES];
    size_t bytes;

    if (!t->args->keep)
        return 0;
    bytes = gpt_note_write(note, t->args, gpt_data_info(t->data), step);
    return gpt_engine_fail(t, zc_zero_note_put(t->zero, true, note, bytes));
}

/* Of the next step. */
static double rate(const struct train *t)
{
    return t->config ? zc_lr_at(&t->config->schedule, t->args->lr, t->applied) : t->args->lr;
}

static int step_run(struct train *t, uint64_t step, struct report *r)
{
    double begin = now_s(), loss = 0.0, sums[5];
    double waited = t->stash ? gpt_stash_waited(t->stash) : 0;
    struct zc_zero_stats before = t->stats;
    int rc = 0;

    *r = (struct report){ .step = step };
    gpt_passes_scale(t->passes, zc_zero_loss_scale(t->zero));
    r->lr = rate(t);
    rc = gpt_engine_fail(t, zc_zero_announce(t->zero, r->lr));
    for (uint32_t k = 0; k < t->micro_steps && rc == 0; k += t->at_once)
        rc = gpt_walk(t, r, k);
    if (rc == 0)
        rc = note_put(t, step);
    if (rc == 0)
        rc = gpt_engine_fail(t, zc_zero_step(t->zero, r->lr, &r->stepped));
    if (rc == 0)
        t->applied = r->stepped.applied;
    if (rc == 0)
        rc = gpt_passes_loss(t->passes, &loss, t->err);
    if (rc == -ECANCELED) /* by engine_tick() */
        return gpt_engine_fail(t, zc_zero_poll(t->zero));
    gpt_memory_see(t, &r->memory, PHASE_STEP);
    if (rc == 0)
        rc = gpt_engine_fail(t, zc_zero_stats(t->zero, &t->stats));
    if (rc != 0)
        return rc;
    sums[0] = loss / t->micro_steps;
    sums[1] = *t->stop ? 1 : 0;
    sums[2] = t->stats.stall_seconds - before.stall_seconds +
              (t->stash ? gpt_stash_waited(t->stash) - waited : 0);
    sums[3] = (double)(t->stats.fetched_bytes - before.fetched_bytes);
    sums[4] = (double)t->stats.host_bytes;
    rc = gpt_engine_fail(t, zc_zero_sum(t->zero, sums, 5));
    if (rc != 0)
        return rc;
    t->stopped = sums[1] > 0;
    r->loss = sums[0] / t->comm->world;
    r->stall_s = sums[2] / t->comm->world;
    r->fetched_bytes = sums[3];
    r->stats = t->stats;
    if (t->args->offload_optimizer ==
        GPT_OFFLOAD_NONE) /* each rank's own; the daemon's are the job's */
        r->stats.host_bytes = (uint64_t)sums[4];
    r->gather_bytes = t->stats.comm_gather_bytes - before.comm_gather_bytes;
    r->gather_nodes_bytes = t->stats.comm_nodes_bytes - before.comm_nodes_bytes;
    r->gather_up_bytes = t->stats.gather_up_bytes - before.gather_up_bytes;
    r->gather_down_bytes = t->stats.gather_down_bytes - before.gather_down_bytes;
    r->reduce_bytes = t->stats.comm_reduce_bytes - before.comm_reduce_bytes;
    r->across_bytes = t->stats.comm_across_bytes - before.comm_across_bytes;
    r->other_bytes = t->stats.comm_bytes - before.comm_bytes - r->gather_bytes - r->reduce_bytes -
                     r->across_bytes;
    r->nvme_read_bytes = t->stats.nvme_read_bytes - before.nvme_read_bytes;
    r->nvme_written_bytes = t->stats.nvme_written_bytes - before.nvme_written_bytes;
    r->seconds = now_s() - begin;
    r->tokens_per_s = (double)t->args->batch * t->args->seq / r->seconds;
    return 0;
}

/* ---- the run */

static void memory_most(struct memory *most, const struct memory *now)
{
    most->passes = now->passes;
    for (int i = 0; i < PHASES; i++) {
        most->engine[i] = max_of(most->engine[i], now->engine[i]);
        most->gathered[i] = max_of(most->gathered[i], now->gathered[i]);
        most->reducing[i] = max_of(most->reducing[i], now->reducing[i]);
    }
}

/* The daemon was lost: continues from the step that the job is at. */
static int train_again(struct train *t)
{
    uint64_t before = t->steps;
    double lost;
    int rc = gpt_passes_loss(t->passes, &lost, t->err); /* of what was computed since */

    *t->err = (struct zb_err){ 0 };
    if (rc < 0)
        return rc;
    rc = gpt_engine_fail(t, zc_zero_progress(t->zero, &t->steps, &t->applied));
    if (rc == 0)
        gpt_say_again(t, before);
    return rc;
}

static int train_loop(struct train *t)
{
    int rc = 0;

    while (rc == 0 && t->steps < t->args->steps && !t->stopped) {
        struct report r;

        rc = step_run(t, t->steps + 1, &r);
        if (rc == ZC_ROLLED_BACK) {
            rc = train_again(t);
            continue;
        }
        if (rc != 0)
            break;
        t->steps++;
        t->ran++;
        t->first_loss = t->ran == 1 ? r.loss : t->first_loss;
        t->last_loss = r.loss;
        memory_most(&t->memory, &r.memory);
        t->seconds += r.seconds;
        gpt_say_step(t, &r);
        rc = gpt_jsonl_write(t, &r);
    }
    return rc;
}

int gpt_train(const struct gpt_args *args, const volatile sig_atomic_t *stop, FILE *people,
              struct zb_err *err)
{
    struct train t = { .own = *args, .stop = stop, .people = people, .err = err };
    int told = 0, kept = 0, rc;

    args = t.args = &t.own;
    rc = gpt_train_open(&t);
    if (rc == 0) {
        gpt_say_start(&t);
        rc = train_loop(&t);
    }
    while (rc == 0 && args->keep) { /* if that fails, what it has made is exported all the same */
        kept = gpt_engine_fail(&t, zc_zero_commit(t.zero));
        if (kept != ZC_ROLLED_BACK)
            break;
        kept = 0;
        rc = train_again(&t);
        if (rc == 0)
            rc = train_loop(&t);
    }
    if (rc == 0 && args->export)
        rc = gpt_export(&t, &told);
    if (rc == 0 && kept == 0 && told == 0)
        gpt_say_end(&t);
    gpt_train_close(&t, rc == 0);
    if (rc == 0)
        rc = kept ? kept : told;
    if (rc == 0 && t.stopped && t.steps < args->steps)
        rc = zb_fail(err, -EINTR, "stopped by a signal after step %" PRIu64 " of %" PRIu64 "%s",
                     t.steps, args->steps, args->keep ? ": continue with --resume" : "");
    return rc;
}
