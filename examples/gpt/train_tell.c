/*
 * train_tell.c - output of rank 0: lines for people, and --jsonl for programs.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>

#include "examples/gpt/train_priv.h"

#define SAY_EVERY_S 1.0

static const char *dtype_name(const struct train *t)
{
    return t->args->dtype == GPT_BF16 ? "bf16" : t->args->dtype == GPT_FP16 ? "fp16" : "fp32";
}

struct text {
    char s[160];
};

/* A number as JSON, which has no form for infinity and NaN. */
static struct text json_number(double x)
{
    struct text text;

    (void)snprintf(text.s, sizeof(text.s), isfinite(x) ? "%.9g" : "null", x);
    return text;
}

static struct text bytes_text(uint64_t bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    double x = (double)bytes;
    struct text text;
    size_t u = 0;

    for (; x >= 1024 && u + 1 < sizeof(units) / sizeof(units[0]); u++)
        x /= 1024;
    (void)snprintf(text.s, sizeof(text.s), u ? "%.1f %s" : "%.0f %s", x, units[u]);
    return text;
}

/* Of rank 0, with a comma before it; nothing on the processor. */
static struct text json_device(const struct train *t, const struct memory *m)
{
    struct text text = { "" };

    if (t->args->device)
        (void)snprintf(text.s, sizeof(text.s),
                       ", \"device_bytes\": {\"forward\": %" PRIu64 ", \"backward\": %" PRIu64
                       ", \"step\": %" PRIu64 "}",
                       m->passes + m->engine[PHASE_FORWARD], m->passes + m->engine[PHASE_BACKWARD],
                       m->passes + m->engine[PHASE_STEP]);
    return text;
}

/* Model states of rank 0, buffers of the engine behind each phase, and what it sent. */
static int json_states(struct train *t, const struct report *r)
{
    const struct memory *m = &r->memory;
    struct zc_zero_bytes b;

    zc_zero_bytes(t->zero, &b);
    return fprintf(
        t->jsonl,
        ", \"state_bytes\": {\"param\": %" PRIu64 ", \"grad\": %" PRIu64 ", \"optimizer\": %" PRIu64
        ", \"daemon_param\": %" PRIu64 ", \"daemon_grad\": %" PRIu64
        ", \"daemon_optimizer\": %" PRIu64 "}, \"buffer_bytes\": {\"forward\": %" PRIu64
        ", \"backward\": %" PRIu64 ", \"step\": %" PRIu64 "}, \"gather_up_bytes\": %" PRIu64
        ", \"gather_down_bytes\": %" PRIu64 ", \"gather_nodes_bytes\": %" PRIu64
        ", \"comm_bytes\": {\"gather\": %" PRIu64 ", \"reduce\": %" PRIu64 ", \"across\": %" PRIu64
        ", \"other\": %" PRIu64 "}",
        b.param, b.grad, b.state, b.daemon_param, b.daemon_grad, b.daemon_state,
        m->gathered[PHASE_FORWARD] + m->reducing[PHASE_FORWARD],
        m->gathered[PHASE_BACKWARD] + m->reducing[PHASE_BACKWARD],
        m->gathered[PHASE_STEP] + m->reducing[PHASE_STEP], r->gather_up_bytes, r->gather_down_bytes,
        r->gather_nodes_bytes, r->gather_bytes, r->reduce_bytes, r->across_bytes, r->other_bytes);
}

int gpt_jsonl_write(struct train *t, const struct report *r)
{
    if (!t->jsonl)
        return 0;
    errno = EIO;
    if (fprintf(t->jsonl,
                "{\"step\": %" PRIu64 ", \"loss\": %s, \"grad_norm\": %s, \"lr\": %s, "
                "\"loss_scale\": %s, \"skipped\": %s, "
                "\"tokens_per_s\": %s, \"stall_s\": %s, \"fetched_bytes\": %.0f, "
                "\"nvme_read_bytes\": %" PRIu64 ", \"nvme_written_bytes\": %" PRIu64 ", "
                "\"activation_bytes\": %" PRIu64 ", "
                "\"tier_bytes\": {\"host\": %" PRIu64 ", \"nvme\": %" PRIu64 ", \"gpu\": %" PRIu64
                "}%s",
                r->step, json_number(r->loss).s, json_number(r->stepped.grad_norm).s,
                json_number(r->lr).s, json_number(r->stepped.loss_scale).s,
                r->stepped.skipped ? "true" : "false", json_number(r->tokens_per_s).s,
                json_number(r->stall_s).s, r->fetched_bytes, r->nvme_read_bytes,
                r->nvme_written_bytes, gpt_passes_activation_bytes(t->passes), r->stats.host_bytes,
                r->stats.nvme_bytes, r->stats.gpu_bytes, json_device(t, &r->memory).s) < 0 ||
        json_states(t, r) < 0 || fputs("}\n", t->jsonl) < 0 || fflush(t->jsonl) != 0)
        return zb_fail(t->err, -errno, "--jsonl '%s': %m", t->args->jsonl);
    return 0;
}

__attribute__((format(printf, 2, 3))) static void say(struct train *t, const char *fmt, ...)
{
    va_list ap;

    if (t->comm->rank != 0)
        return;
    va_start(ap, fmt);
    (void)vfprintf(t->people, fmt, ap);
    va_end(ap);
    (void)fflush(t->people);
}

static uint64_t frozen_elems(const struct train *t)
{
    uint64_t elems = 0;

    for (uint32_t u = 0; u < t->model.nunits; u++)
        elems += gpt_unit_frozen(t, u) ? t->model.units[u].elems : 0;
    return elems;
}

void gpt_say_start(struct train *t)
{
    const struct gpt_args *a = t->args;
    const struct gpt_data_info *d = gpt_data_info(t->data);

    say(t,
        "zgpt: %" PRIu64
        " parameters (%s) in %u units over %u rank%s, stage %u; %u sequences of %u "
        "tokens per step, in %u micro-step%s of %u\n",
        t->model.params, dtype_name(t), t->model.nunits, t->comm->world,
        t->comm->world == 1 ? "" : "s", gpt_args_stage(a), a->batch, a->seq, t->micro_steps,
        t->micro_steps == 1 ? "" : "s", a->micro_batch);
    if (a->freeze > 0)
        say(t, "zgpt: the first %u of %u blocks are frozen%s; %" PRIu64 " parameters are trained\n",
            a->freeze, a->layers, a->quantize_frozen ? ", and kept as int8" : "",
            t->model.params - frozen_elems(t));
    if (a->resume || (a->resume_if_there && t->steps > 0))
        say(t, "zgpt: job '%s' resumes after step %" PRIu64 "\n", a->job, t->steps);
    if (a->device)
        say(t, "zgpt: computes on '%s'\n", a->device);
    say(t, "zgpt: %" PRIu64 " tokens from %zu file%s, unigram entropy %.4f nats, vocabulary %u\n",
        d->tokens, d->files, d->files == 1 ? "" : "s", d->unigram_nats, d->vocab);
}

void gpt_say_step(struct train *t, const struct report *r)
{
    double now = now_s();

    if (t->ran == 1 && r->stats.grads_nvme_bytes > 0)
        say(t,
            "zgpt: %s of the gradients are on NVMe, because they do not fit into the daemon's host "
            "memory\n",
            bytes_text(r->stats.grads_nvme_bytes).s);
    if (t->ran == 1 && r->stats.gpu_params_bytes > 0)
        say(t, "zgpt: %s of parameters are in the daemon's GPU memory\n",
            bytes_text(r->stats.gpu_params_bytes).s);
    if (t->ran == 1 && r->stats.gpu_why[0])
        say(t, "zgpt: the parameters are not in the daemon's GPU memory: %s\n", r->stats.gpu_why);
    if (t->ran == 1 && t->args->node_gather != ZC_NODE_GATHER_COMM)
        say(t, "zgpt: parameters are gathered %s%s%s\n",
            r->stats.node_gather == ZC_NODE_GATHER_HOST ? "from the daemon's host memory"
                                                        : "by collectives",
            r->stats.node_gather_why[0] ? ": " : "", r->stats.node_gather_why);
    if (t->ran != 1 && r->step != t->args->steps && !t->stopped && now - t->said_at < SAY_EVERY_S)
        return;
    t->said_at = now;
    say(t,
        "step %" PRIu64 "/%" PRIu64 "  loss %.4f  norm %.3g%s  %.0f tokens/s  stall %.0f %%  host "
        "%s  nvme %s (read %s, written %s)\n",
        r->step, t->args->steps, r->loss, r->stepped.grad_norm,
        r->stepped.skipped ? " (skipped)" : "", r->tokens_per_s, 100 * r->stall_s / r->seconds,
        bytes_text(r->stats.host_bytes).s, bytes_text(r->stats.nvme_bytes).s,
        bytes_text(r->nvme_read_bytes).s, bytes_text(r->nvme_written_bytes).s);
}

/* Maximum memory that rank 0 had allocated on the device. */
static void say_memory(struct train *t)
{
    static const char *const names[PHASES] = { "forward", "backward", "step" };
    const struct memory *m = &t->memory;

    say(t, "zgpt: device memory  %12s %12s %12s\n", "passes", "engine", "together");
    for (int i = 0; i < PHASES; i++)
        say(t, "zgpt:   %-16s   %12s %12s %12s\n", names[i], bytes_text(m->passes).s,
            bytes_text(m->engine[i]).s, bytes_text(m->passes + m->engine[i]).s);
    say(t, "zgpt: host memory pinned for it: %s\n", bytes_text(t->stats.pinned_bytes).s);
}

void gpt_say_again(struct train *t, uint64_t before)
{
    say(t,
        "zgpt: the daemon was lost after step %" PRIu64
        ", and another one has the job: continues after step %" PRIu64 "\n",
        before, t->steps);
}

void gpt_say_end(struct train *t)
{
    if (t->ran > 0)
        say(t,
            "zgpt: loss %.4f at the start, %.4f at the end (unigram entropy %.4f); %.0f "
            "tokens/s\n",
            t->first_loss, t->last_loss, gpt_data_info(t->data)->unigram_nats,
            (double)t->ran * t->args->batch * t->args->seq / t->seconds);
    if (t->ran > 0)
        say(t, "zgpt: activations took %s: %s\n",
            bytes_text(gpt_passes_activation_bytes(t->passes)).s,
            t->stash ? "inputs of blocks were stored in the daemon; the rest was recomputed"
            : recomputes(t->args) ? "the input of each block; the rest was recomputed"
                                  : "everything that the backward pass needs");
    if (t->args->device && t->ran > 0)
        say_memory(t);
    if (t->args->export)
        say(t, "zgpt: weights are in '%s'\n", t->args->export);
}
