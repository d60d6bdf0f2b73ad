/*
 * train.c - the loop: batches in, losses out, everything sharded by the engine.
 *
 * MODEL. The engine knows units of parameters, the model knows how to compute with one; this file
 * brings them together, in the order that zc_zero.h and gpt.h both ask for. A unit's weights are
 * borrowed from the engine for one pass. On the processor 16-bit weights are widened into memory of
 * ours, and given back at once; a device takes them as they are, and what is called a pass here
 * only enqueues it (passes.h): the loss of a step is asked for when the step has begun.
 *
 * ORDER. Horizontal: each micro-batch goes through all units, forward and back. Vertical: all
 * micro-batches of the step go through a unit while it is there, forward, and again on the way
 * back, so a unit is gathered and reduced once for all of them (docs/ENGINE.md). Both are the same
 * walk, over as many micro-batches at a time as `at_once` says.
 *
 * FROZEN. The first `freeze` blocks have parameters and nothing else: they are gathered like
 * others, forward and on the way back, which gives what is below them its gradient; they get none
 * themselves, and are not reduced. The embedding below them is trained, and so is all above.
 *
 * RANKS. Step s (counted from 1) has `batch` sequences. Micro-step k gives sequence
 * (k * world + rank) * micro_batch + j to a rank as its j-th. Every rank walks through the same
 * collectives: what only rank 0 does (progress, --jsonl, --export) makes no call to the engine, and
 * a failure there during the export is told at the end, so that the others are not left waiting.
 *
 * GOING ON. Nothing here has a state that the step's number does not give (note.h), so what a kept
 * run needs is its job and that number: the engine's progress. The note proves that it is this run.
 *
 * STOPPING. Each rank looks at its own flag; the flags are summed with the losses, so all ranks
 * stop behind the same step.
 */
#include "examples/gpt/train.h"

#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/zero/zc_zero.h"
#include "examples/gpt/config.h"
#include "examples/gpt/data.h"
#include "examples/gpt/model/gpt.h"
#include "examples/gpt/model/vec.h"
#include "examples/gpt/note.h"
#include "examples/gpt/passes.h"
#include "examples/gpt/stash_daemon.h"
#include "examples/gpt/weights.h"

/* torch.optim.AdamW's own values. */
#define BETA1        0.9
#define BETA2        0.999
#define LION_BETA2   0.99
#define SGD_MOMENTUM 0.9
#define EPS          1e-8

#define EXPORT_ELEMS (UINT64_C(1) << 18) /* read at a time */
#define SAY_EVERY_S  1.0

enum slot { SLOT_MAIN, SLOT_LN_F, SLOTS }; /* the head needs two units at once */

/* Bytes, the most that was seen behind each: on the device, and of the engine's buffers. */
enum phase { PHASE_FORWARD, PHASE_BACKWARD, PHASE_STEP, PHASES };

struct memory {
    uint64_t passes, engine[PHASES];
    uint64_t gathered[PHASES], reducing[PHASES];
};

struct train {
    const struct gpt_args *args; /* these: */
    struct gpt_args own;
    struct zc_zero_config *config; /* or NULL */
    const volatile sig_atomic_t *stop;
    FILE *people; /* rank 0 */
    struct gpt_err *err;

    struct zc_comm *comm;
    struct zc_zero *zero;
    struct gpt_data *data;
    struct gpt model;
    struct gpt_passes *passes;
    struct gpt_stash *stash;       /* of checkpoints, or NULL */
    struct gpt_weights *init;      /* or NULL: by the seed */
    FILE *jsonl;                   /* rank 0, or NULL */
    uint32_t *tokens;              /* of a micro-batch */
    float *wide[SLOTS];            /* 16 bits on the processor: fp32 weights */
    uint32_t micro_steps, at_once; /* in a step, and in a walk */

    struct zc_zero_stats stats; /* as of the last step */
    double first_loss, last_loss, said_at;
    uint64_t steps;   /* done, by all the runs of this job */
    uint64_t applied; /* of them, not skipped */
    uint64_t ran;     /* by this one */
    double seconds;   /* in them */
    struct memory memory;
    bool stopped;
};

/* What a step was, for people and programs. */
struct report {
    uint64_t step;
    double loss, lr, seconds, tokens_per_s, stall_s, fetched_bytes;
    struct zc_zero_stepped stepped;
    struct zc_zero_stats stats;
    struct memory memory; /* of this step */
    uint64_t nvme_read_bytes, nvme_written_bytes;
    uint64_t gather_bytes, reduce_bytes, across_bytes, other_bytes; /* sent by this rank */
};

static double now_s(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static int engine_fail(struct train *t, int rc)
{
    return rc == 0 ? 0
                   : gpt_fail(t->err, rc, "%s", t->zero ? zc_zero_error(t->zero) : zc_strerror(rc));
}

static bool is_narrow(const struct train *t)
{
    return t->args->dtype != GPT_FP32;
}

static enum zc_dtype dtype_of(const struct train *t)
{
    return t->args->dtype == GPT_BF16 ? ZC_BF16 : t->args->dtype == GPT_FP16 ? ZC_F16 : ZC_F32;
}

static const char *dtype_name(const struct train *t)
{
    return t->args->dtype == GPT_BF16 ? "bf16" : t->args->dtype == GPT_FP16 ? "fp16" : "fp32";
}

static bool unit_frozen(const struct train *t, uint32_t unit)
{
    return unit >= gpt_unit_block(0) && unit < gpt_unit_block(t->args->freeze);
}

/* ---- set up */

static int unit_declare(struct train *t, uint32_t index)
{
    const struct gpt_unit *u = &t->model.units[index];
    struct zc_tensor tensors[GPT_UNIT_TENSORS_MAX] = { { .name = NULL } };
    struct zc_unit unit = {
        .index = index,
        .name = u->name,
        .elems = u->elems,
        .dtype = dtype_of(t),
        .grad_dtype = ZC_F32,
        .frozen = unit_frozen(t, index),
        .quantized = t->args->quantize_frozen && unit_frozen(t, index),
        .tensors = tensors,
        .ntensors = u->ntensors,
    };

    for (uint32_t k = 0; k < u->ntensors; k++) {
        tensors[k] =
            (struct zc_tensor){ .name = u->tensors[k].name,
                                .first = u->tensors[k].first,
                                .ndims = u->tensors[k].ndims,
                                .group = unit.frozen ? ZC_GROUP_FROZEN : u->tensors[k].group };
        memcpy(tensors[k].dims, u->tensors[k].dims, sizeof(u->tensors[k].dims));
    }
    return engine_fail(t, zc_zero_add_unit(t->zero, &unit));
}

static int init_range(void *arg, uint32_t unit, uint64_t first, uint64_t count, float *out)
{
    struct train *t = arg;

    if (t->init)
        return gpt_weights_range(t->init, unit, first, count, out, t->err);
    gpt_init_range(&t->model, t->args->seed, unit, first, count, out);
    return 0;
}

static enum zc_zero_offload offload_of(uint32_t offload)
{
    return offload == GPT_OFFLOAD_NVME   ? ZC_ZERO_NVME
           : offload == GPT_OFFLOAD_HOST ? ZC_ZERO_HOST
           : offload == GPT_OFFLOAD_GPU  ? ZC_ZERO_GPU
                                         : ZC_ZERO_NONE;
}

static uint32_t overlap_of(uint32_t overlap)
{
    return overlap == GPT_OVERLAP_ALL     ? ZC_ZERO_OVERLAP
           : overlap == GPT_OVERLAP_EARLY ? ZC_ZERO_EARLY
           : overlap == GPT_OVERLAP_SERVE ? ZC_ZERO_SERVE
                                          : 0;
}

/* This rank's of a list with commas. *ret_copy is to be freed, and may be NULL. */
static int socket_of(struct train *t, char **ret_copy)
{
    const char *list = t->args->socket;
    uint64_t n = 1, mine;
    char *at, *end;

    *ret_copy = list ? strdup(list) : NULL;
    if (!list)
        return 0;
    if (!*ret_copy)
        return gpt_fail(t->err, -ENOMEM, "--socket: %m");
    for (const char *p = list; *p; p++)
        n += *p == ',';
    mine = t->comm->rank * n / t->comm->world;
    for (at = *ret_copy; mine > 0; mine--)
        at = strchr(at, ',') + 1;
    end = strchr(at, ',');
    if (end)
        *end = '\0';
    memmove(*ret_copy, at, strlen(at) + 1);
    return **ret_copy ? 0 : gpt_fail(t->err, -EINVAL, "--socket '%s' has an empty part", list);
}

/* The job is there: is it this run? */
static int engine_resume(struct train *t)
{
    char *note = malloc(ZC_NOTE_MAX);
    size_t bytes = 0;
    int rc = note ? 0 : gpt_fail(t->err, -ENOMEM, "a note: %m");

    if (rc == 0)
        rc = engine_fail(t, zc_zero_progress(t->zero, &t->steps, &t->applied));
    if (rc == 0 && t->steps > 0) { /* before the first step there is none, nor a need */
        rc = engine_fail(t, zc_zero_note_get(t->zero, true, note, &bytes));
        if (rc == 0)
            rc = gpt_note_check(note, bytes, t->args, gpt_data_info(t->data), t->steps, t->err);
    }
    free(note);
    return rc;
}

static int engine_start(struct train *t)
{
    int rc = zc_zero_start(t->zero, init_range, t);

    if (rc == -EINVAL && t->args->resume) /* there is such a job, and it is not ours */
        return gpt_fail(t->err, -EEXIST, "--resume: job '%s' is another run: %s", t->args->job,
                        zc_zero_error(t->zero));
    rc = engine_fail(t, rc);
    return rc == 0 && t->args->resume ? engine_resume(t) : rc;
}

static bool engine_tick(void *arg)
{
    struct train *t = arg;

    if (t->stash)
        (void)gpt_stash_poll(t->stash);
    return zc_zero_poll(t->zero) == 0; /* the next call that matters gives the same code */
}

/* A device keeps little of a block, unless it is told to; the processor keeps all. */
static bool recomputes(const struct gpt_args *a)
{
    return a->checkpoint >= GPT_CHECKPOINT_BLOCK ||
           (a->checkpoint == GPT_CHECKPOINT_AUTO && a->device);
}

static struct gpt_hold hold_of(const struct train *t)
{
    return (struct gpt_hold){ .sequences = t->args->micro_batch,
                              .micros = t->at_once,
                              .recompute = recomputes(t->args),
                              .stash = t->stash };
}

/* On a device they compute on the engine's stream: they are made behind it, and freed before. */
static int passes_new(struct train *t)
{
    const struct gpt_passes_options options = {
        .model = &t->model,
        .hold = hold_of(t),
        .dtype = t->args->dtype,
        .device = t->args->device,
        .stream = t->args->device ? zc_zero_stream(t->zero) : NULL,
        .tick = engine_tick,
        .tick_arg = t,
    };

    return gpt_passes_new(&t->passes, &options, t->err);
}

/* What no flag says: as the file does, or as we do. */
static void options_begin(const struct train *t, struct zc_zero_options *o)
{
    const struct gpt_args *a = t->args;

    zc_zero_defaults(o);
    if (t->config)
        *o = t->config->options;
    if (t->config && !(t->config->left & ZC_LEFT_OPTIMIZER) && !gpt_args_given(a, "--optimizer"))
        return;
    o->beta1 = BETA1;
    o->beta2 = a->optimizer == GPT_LION ? LION_BETA2 : BETA2;
    o->momentum = SGD_MOMENTUM;
    o->dampening = o->lr_decay = 0;
    o->nesterov = false;
    o->eps = EPS;
}

static int engine_open(struct train *t)
{
    const struct gpt_args *a = t->args;
    struct zc_zero_options options;
    char *socket;
    int rc = socket_of(t, &socket);

    options_begin(t, &options);
    options.comm = t->comm;
    options.socket = socket;
    options.job = a->job;
    options.keep = options.durable = a->keep;
    options.resume = a->resume;
    options.commit_every = a->commit_every;
    options.share = a->share;
    options.stage = (enum zc_zero_stage)gpt_args_stage(a);
    options.keep_gathered = a->keep_gathered;
    options.quantize_gather = a->quantize_gather;
    options.group_ranks = a->group;
    options.memory_bytes = a->memory;
    if (options.stage < ZC_STAGE_3) /* the flag's, and the file may say what is of stage 3 */
        options.persist_elems = options.live_elems = options.reuse_elems = 0;
    options.offload_param = offload_of(a->offload_param);
    options.offload_optimizer = offload_of(a->offload_optimizer);
    options.offload_grad = a->offload_grad == GPT_GRAD_HOST ? ZC_ZERO_HOST : ZC_ZERO_NONE;
    options.micro_steps = t->micro_steps;
    options.vertical = a->order == GPT_VERTICAL;
    options.accumulate_local = a->accumulate == GPT_LOCAL;
    options.clip = a->clip;
    options.overlap = overlap_of(a->overlap);
    options.optimizer = (enum zc_optimizer)(ZC_ADAMW + a->optimizer);
    options.moments = (enum zc_moments)(ZC_MOMENTS_F32 + a->moments);
    options.groups = GPT_GROUPS;
    options.loss_scale = (struct zc_loss_scale){ .fixed = 1 };
    if (a->dtype == GPT_FP16)
        options.loss_scale = (struct zc_loss_scale){ .dynamic = a->loss_scale == 0,
                                                     .fixed = a->loss_scale,
                                                     .power = a->scale_power,
                                                     .window = a->scale_window,
                                                     .hysteresis = a->hysteresis,
                                                     .consecutive = a->consecutive_hysteresis,
                                                     .min = a->min_scale };
    options.device = a->device;
    options.weight_decay[0] = a->weight_decay;
    options.weight_decay[1] = 0;
    if (rc == 0)
        rc = engine_fail(t, zc_zero_open(&t->zero, &options));
    free(socket);
    if (rc == 0 && a->device)
        rc = passes_new(t);
    for (uint32_t u = 0; u < t->model.nunits && rc == 0; u++)
        rc = unit_declare(t, u);
    return rc == 0 ? engine_start(t) : rc;
}

/* A file that is only written after hours should be refused now when its folder is not there. */
static int export_check(struct train *t)
{
    char *copy = strdup(t->args->export);
    const char *folder = copy ? dirname(copy) : NULL;
    int rc = 0;

    if (!folder)
        rc = gpt_fail(t->err, -ENOMEM, "'%s': %m", t->args->export);
    else if (access(folder, W_OK | X_OK) < 0)
        rc = gpt_fail(t->err, -errno, "--export '%s': its folder: %m", t->args->export);
    free(copy);
    return rc;
}

static int files_open(struct train *t)
{
    const struct gpt_args *a = t->args;

    if (t->comm->rank != 0)
        return 0;
    if (a->jsonl) {
        t->jsonl = fopen(a->jsonl, a->resume ? "ae" : "we");
        if (!t->jsonl)
            return gpt_fail(t->err, -errno, "--jsonl '%s': %m", a->jsonl);
    }
    return a->export ? export_check(t) : 0;
}

static bool stashes(const struct gpt_args *a)
{
    return a->checkpoint == GPT_CHECKPOINT_HOST || a->checkpoint == GPT_CHECKPOINT_NVME;
}

/* Before the engine: what is left of the daemon's memory is for model states. */
static int stash_open(struct train *t)
{
    struct gpt_hold hold = hold_of(t);
    struct gpt_stash_options options = {
        .job = t->args->job,
        .rank = t->comm->rank,
        .entries = gpt_hold_entries(&t->model, &hold),
        .entry_bytes = gpt_hold_entry_bytes(&t->model, &hold),
        .nvme = t->args->checkpoint == GPT_CHECKPOINT_NVME,
        .tick = engine_tick,
        .tick_arg = t,
    };
    char *socket;
    int rc = socket_of(t, &socket);

    options.socket = socket;
    if (rc == 0)
        rc = gpt_stash_open(&t->stash, &options, t->err);
    free(socket);
    return rc;
}

static int memory_take(struct train *t)
{
    const struct gpt_args *a = t->args;
    bool wide = is_narrow(t) && !a->device;
    uint64_t largest = 0;
    int rc = stashes(a) ? stash_open(t) : 0;

    if (rc == 0 && !a->device)
        rc = passes_new(t);
    if (rc != 0)
        return rc;
    for (uint32_t u = 0; u < t->model.nunits; u++)
        if (t->model.units[u].elems > largest)
            largest = t->model.units[u].elems;
    t->tokens = calloc((size_t)a->micro_batch, ((size_t)a->seq + 1) * sizeof(*t->tokens));
    if (wide) {
        t->wide[SLOT_MAIN] = calloc(largest, sizeof(float));
        t->wide[SLOT_LN_F] = calloc(2 * (size_t)a->width, sizeof(float));
    }
    if (!t->tokens || (wide && (!t->wide[SLOT_MAIN] || !t->wide[SLOT_LN_F])))
        return gpt_fail(t->err, -ENOMEM, "weights of the largest unit, %" PRIu64 " elements: %m",
                        largest);
    return 0;
}

/* GPUs of CUDA's exchange gradients and parameters among themselves, unless ZSHARD_COMM says
 * otherwise. */
static const char *comm_name(const struct gpt_args *a)
{
    const char *wanted = getenv("ZSHARD_COMM");

    return a->device && strncmp(a->device, "cuda", 4) == 0 && !(wanted && *wanted) ? "nccl"
                                                                                   : "auto";
}

static int train_build(struct train *t)
{
    const struct gpt_args *a = t->args;
    struct gpt_shape shape = {
        .layers = a->layers, .heads = a->heads, .width = a->width, .seq = a->seq
    };
    char why[sizeof(t->err->text)];
    int rc = zc_comm_open(&t->comm, comm_name(a), why, sizeof(why));

    if (rc != 0)
        return gpt_fail(t->err, rc, "%s", why);
    if (a->config)
        rc = gpt_config_apply(&t->config, &t->own, t->comm->world,
                              t->comm->rank == 0 ? t->people : NULL, t->err);
    if (rc == 0)
        rc = gpt_args_micro_steps(a, t->comm->world, &t->micro_steps, t->err);
    t->at_once = a->order == GPT_VERTICAL ? t->micro_steps : 1;
    if (rc == 0)
        rc = gpt_data_open(&t->data, a->data.at, a->data.n, a->seq + 1, t->err);
    if (rc == 0) {
        shape.vocab = gpt_data_info(t->data)->vocab;
        rc = gpt_init(&t->model, &shape, t->err);
    }
    if (rc == 0 && a->init)
        rc = gpt_weights_open(&t->init, &t->model, a->init, t->err);
    if (rc == 0)
        rc = files_open(t);
    if (rc == 0)
        rc = memory_take(t);
    return rc == 0 ? engine_open(t) : rc;
}

/* clean: every rank ends here too. */
static void train_done(struct train *t, bool clean)
{
    gpt_passes_free(t->passes);
    gpt_stash_close(t->stash);
    zc_zero_close(t->zero, clean);
    if (t->comm)
        zc_comm_close(t->comm, clean);
    if (t->jsonl)
        (void)fclose(t->jsonl);
    zc_zero_config_free(t->config);
    gpt_weights_close(t->init);
    gpt_done(&t->model);
    gpt_data_close(t->data);
    free(t->tokens);
    for (int i = 0; i < SLOTS; i++)
        free(t->wide[i]);
}

/* ---- one walk: `at_once` micro-batches, forward and back */

static bool widens(const struct train *t)
{
    return is_narrow(t) && gpt_passes_wide(t->passes);
}

/* Borrows a unit's weights, as the passes take them. Undone by unit_put(). */
static int unit_get(struct train *t, uint32_t unit, enum slot slot, const void **ret)
{
    const void *params = NULL;
    int rc = zc_zero_gather(t->zero, unit, &params);

    if (rc != 0)
        return engine_fail(t, rc);
    *ret = params;
    if (widens(t)) {
        (t->args->dtype == GPT_BF16 ? gpt_vec_widen : gpt_vec_widen_fp16)(
            params, t->wide[slot], t->model.units[unit].elems);
        *ret = t->wide[slot];
        rc = zc_zero_release(t->zero, unit);
    }
    return engine_fail(t, rc);
}

static int unit_put(struct train *t, uint32_t unit)
{
    return widens(t) ? 0 : engine_fail(t, zc_zero_release(t->zero, unit));
}

static uint64_t max_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void memory_see(struct train *t, struct memory *m, enum phase phase)
{
    uint64_t engine = t->args->device ? zc_zero_device_bytes(t->zero) : 0;

    struct zc_zero_bytes now;

    zc_zero_bytes(t->zero, &now);
    m->engine[phase] = max_of(m->engine[phase], engine);
    m->gathered[phase] = max_of(m->gathered[phase], now.gathered);
    m->reducing[phase] = max_of(m->reducing[phase], now.reducing);
    m->passes = gpt_passes_device_bytes(t->passes);
}

/* Micro-batch `micro` of the step. */
static int batch_load(struct train *t, uint64_t step, uint32_t micro)
{
    const struct gpt_args *a = t->args;
    uint64_t first = ((uint64_t)micro * t->comm->world + t->comm->rank) * a->micro_batch;

    for (uint32_t j = 0; j < a->micro_batch; j++) {
        int rc = gpt_data_sequence(t->data, a->seed, step, first + j,
                                   t->tokens + (size_t)j * (a->seq + 1), t->err);

        if (rc != 0)
            return rc;
    }
    gpt_passes_tokens(t->passes, t->tokens);
    return 0;
}

/* The passes that follow are of the next micro-batch of the walk: for (m = 0; walk(t, m); m++). */
static bool walk(struct train *t, uint32_t m)
{
    if (m == t->at_once)
        return false;
    gpt_passes_micro(t->passes, m);
    return true;
}

static int forward(struct train *t)
{
    const void *w = NULL;
    int rc = unit_get(t, gpt_unit_embed(), SLOT_MAIN, &w);

    if (rc != 0)
        return rc;
    for (uint32_t m = 0; walk(t, m); m++)
        gpt_passes_embed_forward(t->passes, w);
    rc = unit_put(t, gpt_unit_embed());
    for (uint32_t l = 0; l < t->args->layers && rc == 0; l++) {
        rc = unit_get(t, gpt_unit_block(l), SLOT_MAIN, &w);
        if (rc != 0)
            return rc;
        for (uint32_t m = 0; walk(t, m); m++)
            gpt_passes_block_forward(t->passes, l, w);
        rc = unit_put(t, gpt_unit_block(l));
    }
    return rc;
}

/* *ret_embed_grads stays ours until the embedding is reduced, at the end of the backward pass. */
static int head(struct train *t, float **ret_embed_grads)
{
    uint32_t ln_f = gpt_unit_ln_f(&t->model);
    const void *w_ln_f = NULL, *w_embed = NULL;
    float *g_ln_f = NULL;
    int rc = unit_get(t, ln_f, SLOT_LN_F, &w_ln_f);

    if (rc == 0)
        rc = unit_get(t, gpt_unit_embed(), SLOT_MAIN, &w_embed);
    if (rc == 0)
        rc = engine_fail(t, zc_zero_grad(t->zero, ln_f, &g_ln_f));
    if (rc == 0)
        rc = engine_fail(t, zc_zero_grad(t->zero, gpt_unit_embed(), ret_embed_grads));
    if (rc != 0)
        return rc;
    for (uint32_t m = 0; walk(t, m); m++)
        gpt_passes_head(t->passes, w_ln_f, w_embed, g_ln_f, *ret_embed_grads);
    rc = unit_put(t, ln_f);
    if (rc == 0)
        rc = unit_put(t, gpt_unit_embed());
    return rc == 0 ? engine_fail(t, zc_zero_reduce(t->zero, ln_f)) : rc;
}

static int block_backward(struct train *t, uint32_t layer)
{
    uint32_t unit = gpt_unit_block(layer);
    bool frozen = unit_frozen(t, unit);
    const void *w = NULL;
    float *g = NULL;
    int rc = unit_get(t, unit, SLOT_MAIN, &w);

    if (rc == 0 && !frozen)
        rc = engine_fail(t, zc_zero_grad(t->zero, unit, &g));
    if (rc != 0)
        return rc;
    for (uint32_t m = 0; walk(t, m); m++)
        gpt_passes_block_backward(t->passes, layer, w, g);
    rc = unit_put(t, unit);
    return rc == 0 && !frozen ? engine_fail(t, zc_zero_reduce(t->zero, unit)) : rc;
}

/* Micro-batches [first, first + at_once) of the step. */
static int micro_steps(struct train *t, struct report *r, uint32_t first)
{
    float *embed_grads = NULL;
    int rc = 0;

    for (uint32_t m = 0; rc == 0 && walk(t, m); m++)
        rc = batch_load(t, r->step, first + m);
    if (rc == 0)
        rc = forward(t);
    memory_see(t, &r->memory, PHASE_FORWARD);
    if (rc == 0)
        rc = head(t, &embed_grads);
    for (uint32_t l = t->args->layers; l-- > 0 && rc == 0;)
        rc = block_backward(t, l);
    if (rc != 0)
        return rc;
    for (uint32_t m = 0; walk(t, m); m++)
        gpt_passes_embed_backward(t->passes, embed_grads);
    rc = engine_fail(t, zc_zero_reduce(t->zero, gpt_unit_embed()));
    memory_see(t, &r->memory, PHASE_BACKWARD);
    if (rc == 0 && t->stash)
        rc = gpt_stash_error(t->stash, t->err);
    return rc == 0 ? gpt_passes_error(t->passes, t->err) : rc;
}

/* ---- one step */

/* What goes with the step. */
static int note_put(struct train *t, uint64_t step)
{
    char note[GPT_NOTE_BYTES];
    size_t bytes;

    if (!t->args->keep)
        return 0;
    bytes = gpt_note_write(note, t->args, gpt_data_info(t->data), step);
    return engine_fail(t, zc_zero_note_put(t->zero, true, note, bytes));
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
    rc = engine_fail(t, zc_zero_announce(t->zero, r->lr));
    for (uint32_t k = 0; k < t->micro_steps && rc == 0; k += t->at_once)
        rc = micro_steps(t, r, k);
    if (rc == 0)
        rc = note_put(t, step);
    if (rc == 0)
        rc = engine_fail(t, zc_zero_step(t->zero, r->lr, &r->stepped));
    if (rc == 0)
        t->applied = r->stepped.applied;
    if (rc == 0)
        rc = gpt_passes_loss(t->passes, &loss, t->err);
    if (rc == -ECANCELED) /* by engine_tick() */
        return engine_fail(t, zc_zero_poll(t->zero));
    memory_see(t, &r->memory, PHASE_STEP);
    if (rc == 0)
        rc = engine_fail(t, zc_zero_stats(t->zero, &t->stats));
    if (rc != 0)
        return rc;
    sums[0] = loss / t->micro_steps;
    sums[1] = *t->stop ? 1 : 0;
    sums[2] = t->stats.stall_seconds - before.stall_seconds +
              (t->stash ? gpt_stash_waited(t->stash) - waited : 0);
    sums[3] = (double)(t->stats.fetched_bytes - before.fetched_bytes);
    sums[4] = (double)t->stats.host_bytes;
    rc = engine_fail(t, zc_zero_sum(t->zero, sums, 5));
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

/* ---- telling */

struct text {
    char s[160];
};

/* A number as JSON has it: what is not finite has no form there. */
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
    return fprintf(t->jsonl,
                   ", \"state_bytes\": {\"param\": %" PRIu64 ", \"grad\": %" PRIu64
                   ", \"optimizer\": %" PRIu64 ", \"daemon_param\": %" PRIu64
                   ", \"daemon_grad\": %" PRIu64 ", \"daemon_optimizer\": %" PRIu64
                   "}, \"buffer_bytes\": {\"forward\": %" PRIu64 ", \"backward\": %" PRIu64
                   ", \"step\": %" PRIu64 "}, \"comm_bytes\": {\"gather\": %" PRIu64
                   ", \"reduce\": %" PRIu64 ", \"across\": %" PRIu64 ", \"other\": %" PRIu64 "}",
                   b.param, b.grad, b.state, b.daemon_param, b.daemon_grad, b.daemon_state,
                   m->gathered[PHASE_FORWARD] + m->reducing[PHASE_FORWARD],
                   m->gathered[PHASE_BACKWARD] + m->reducing[PHASE_BACKWARD],
                   m->gathered[PHASE_STEP] + m->reducing[PHASE_STEP], r->gather_bytes,
                   r->reduce_bytes, r->across_bytes, r->other_bytes);
}

static int jsonl_write(struct train *t, const struct report *r)
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
        return gpt_fail(t->err, -errno, "--jsonl '%s': %m", t->args->jsonl);
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

static void say_start(struct train *t)
{
    const struct gpt_args *a = t->args;
    const struct gpt_data_info *d = gpt_data_info(t->data);

    say(t,
        "zgpt: %" PRIu64
        " parameters (%s) in %u units over %u rank%s, stage %u; %u sequences of %u "
        "tokens a step, in %u micro-step%s of %u\n",
        t->model.params, dtype_name(t), t->model.nunits, t->comm->world,
        t->comm->world == 1 ? "" : "s", gpt_args_stage(a), a->batch, a->seq, t->micro_steps,
        t->micro_steps == 1 ? "" : "s", a->micro_batch);
    if (a->freeze > 0)
        say(t, "zgpt: the first %u of %u blocks are frozen%s: %" PRIu64 " parameters are trained\n",
            a->freeze, a->layers, a->quantize_frozen ? ", and kept as int8" : "",
            t->model.params - a->freeze * t->model.units[gpt_unit_block(0)].elems);
    if (a->resume)
        say(t, "zgpt: job '%s' goes on behind step %" PRIu64 "\n", a->job, t->steps);
    if (a->device)
        say(t, "zgpt: computes on '%s'\n", a->device);
    say(t, "zgpt: %" PRIu64 " tokens from %zu file%s, unigram entropy %.4f nats, vocabulary %u\n",
        d->tokens, d->files, d->files == 1 ? "" : "s", d->unigram_nats, d->vocab);
}

static void say_step(struct train *t, const struct report *r)
{
    double now = now_s();

    if (t->ran == 1 && r->stats.grads_nvme_bytes > 0)
        say(t,
            "zgpt: %s of the gradients live on NVMe: the daemon's host memory does not hold them\n",
            bytes_text(r->stats.grads_nvme_bytes).s);
    if (t->ran == 1 && r->stats.gpu_params_bytes > 0)
        say(t, "zgpt: %s of parameters live in the daemon's GPU memory\n",
            bytes_text(r->stats.gpu_params_bytes).s);
    if (t->ran == 1 && r->stats.gpu_why[0])
        say(t, "zgpt: the parameters are not in the daemon's GPU memory: %s\n", r->stats.gpu_why);
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

/* What rank 0 had allocated on the device, at most. */
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

static void say_end(struct train *t)
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
            t->stash ? "inputs of blocks were with the daemon; the rest was computed anew"
            : recomputes(t->args) ? "of each block its input; the rest was computed anew"
                                  : "all that the way back needs");
    if (t->args->device && t->ran > 0)
        say_memory(t);
    if (t->args->export)
        say(t, "zgpt: weights are in '%s'\n", t->args->export);
}

/* ---- export */

/* Rank 0 writes; the others only take part in reading. *told is rank 0's own failure: it stops
 * writing, and goes on reading with the others. */
static int export_unit(struct train *t, uint32_t unit, float *piece, struct zc_st_writer *w,
                       int *told)
{
    uint64_t elems = t->model.units[unit].elems;
    enum zc_what what = unit_frozen(t, unit) ? ZC_PARAM : ZC_MASTER;

    for (uint64_t at = 0; at < elems; at += EXPORT_ELEMS) {
        uint64_t n = elems - at < EXPORT_ELEMS ? elems - at : EXPORT_ELEMS;
        char why[sizeof(t->err->text)];
        int rc = zc_zero_read(t->zero, unit, what, at, n, piece);

        if (rc != 0)
            return engine_fail(t, rc);
        if (!w || *told != 0)
            continue;
        *told = zc_st_append(w, piece, n * sizeof(*piece), why, sizeof(why));
        if (*told != 0)
            (void)gpt_fail(t->err, *told, "--export: %s", why);
    }
    return 0;
}

/* 0; a failure of the engine; or *told, when only this rank's file failed. */
static int export(struct train *t, int *told)
{
    float *piece = malloc(EXPORT_ELEMS * sizeof(*piece));
    struct zc_st_writer *w = NULL;
    int rc = piece ? 0 : gpt_fail(t->err, -ENOMEM, "--export: %m");

    if (rc == 0 && t->comm->rank == 0)
        *told = gpt_weights_create(&w, &t->model, t->args->export, t->err);
    for (uint32_t u = 0; u < t->model.nunits && rc == 0; u++)
        rc = export_unit(t, u, piece, w, told);
    free(piece);
    if (w && rc == 0 && *told == 0) {
        char why[sizeof(t->err->text)];

        *told = zc_st_commit(w, why, sizeof(why));
        if (*told != 0)
            (void)gpt_fail(t->err, *told, "--export: %s", why);
    } else {
        zc_st_discard(w);
    }
    return rc;
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

static int train_loop(struct train *t)
{
    int rc = 0;

    while (rc == 0 && t->steps < t->args->steps && !t->stopped) {
        struct report r;

        rc = step_run(t, t->steps + 1, &r);
        if (rc != 0)
            break;
        t->steps++;
        t->ran++;
        t->first_loss = t->ran == 1 ? r.loss : t->first_loss;
        t->last_loss = r.loss;
        memory_most(&t->memory, &r.memory);
        t->seconds += r.seconds;
        say_step(t, &r);
        rc = jsonl_write(t, &r);
    }
    return rc;
}

int gpt_train(const struct gpt_args *args, const volatile sig_atomic_t *stop, FILE *people,
              struct gpt_err *err)
{
    struct train t = { .own = *args, .stop = stop, .people = people, .err = err };
    int told = 0, kept = 0, rc;

    args = t.args = &t.own;
    rc = train_build(&t);
    if (rc == 0) {
        say_start(&t);
        rc = train_loop(&t);
    }
    if (rc == 0 && args->keep) /* what it has made is exported all the same */
        kept = engine_fail(&t, zc_zero_commit(t.zero));
    if (rc == 0 && args->export)
        rc = export(&t, &told);
    if (rc == 0 && kept == 0 && told == 0)
        say_end(&t);
    train_done(&t, rc == 0);
    if (rc == 0)
        rc = kept ? kept : told;
    if (rc == 0 && t.stopped && t.steps < args->steps)
        rc = gpt_fail(err, -EINTR, "stopped by a signal behind step %" PRIu64 " of %" PRIu64 "%s",
                      t.steps, args->steps, args->keep ? ": go on with --resume" : "");
    return rc;
}
