/*
 * train_open.c - opens what a run needs, in the order in which memory is taken: communication,
 * data, the model, files, activations, the engine; and closes all of it.
 */
#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/gpt/note.h"
#include "examples/gpt/train_priv.h"

/* torch.optim's own values. */
#define BETA1         0.9
#define BETA2         0.999
#define LION_BETA2    0.99
#define SGD_MOMENTUM  0.9
#define MUON_MOMENTUM 0.95
#define EPS           1e-8
#define ADAGRAD_EPS   1e-10

static enum zc_dtype dtype_of(const struct train *t)
{
    return t->args->dtype == GPT_BF16 ? ZC_BF16 : t->args->dtype == GPT_FP16 ? ZC_F16 : ZC_F32;
}

/* Whether Muon steps a tensor: the matrices of blocks, not the embeddings. */
static bool tensor_muon(const struct train *t, uint32_t unit, uint32_t tensor)
{
    return t->args->optimizer == GPT_MUON && unit > 0 && !gpt_unit_frozen(t, unit) &&
           t->model.units[unit].tensors[tensor].ndims == 2;
}

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
        .frozen = gpt_unit_frozen(t, index),
        .quantized = t->args->quantize_frozen && gpt_unit_frozen(t, index),
        .tensors = tensors,
        .ntensors = u->ntensors,
    };

    for (uint32_t k = 0; k < u->ntensors; k++) {
        tensors[k] =
            (struct zc_tensor){ .name = u->tensors[k].name,
                                .first = u->tensors[k].first,
                                .ndims = u->tensors[k].ndims,
                                .group = unit.frozen ? ZC_GROUP_FROZEN : u->tensors[k].group,
                                .muon = tensor_muon(t, index, k) };
        memcpy(tensors[k].dims, u->tensors[k].dims, sizeof(u->tensors[k].dims));
    }
    return gpt_engine_fail(t, zc_zero_add_unit(t->zero, &unit));
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

/* This rank's socket from a comma-separated list. Free *ret_copy, which may be NULL. */
static int socket_of(struct train *t, char **ret_copy)
{
    const char *list = t->args->socket;
    uint64_t n = 1, mine;
    char *at, *end;

    *ret_copy = list ? strdup(list) : NULL;
    if (!list)
        return 0;
    if (!*ret_copy)
        return zb_fail(t->err, -ENOMEM, "--socket: %m");
    for (const char *p = list; *p; p++)
        n += *p == ',';
    mine = t->comm->rank * n / t->comm->world;
    for (at = *ret_copy; mine > 0; mine--)
        at = strchr(at, ',') + 1;
    end = strchr(at, ',');
    if (end)
        *end = '\0';
    memmove(*ret_copy, at, strlen(at) + 1);
    return **ret_copy ? 0 : zb_fail(t->err, -EINVAL, "--socket '%s' has an empty part", list);
}

/* The job exists: checks that it belongs to this run. */
static int engine_resume(struct train *t)
{
    char *note = malloc(ZC_NOTE_MAX);
    size_t bytes = 0;
    int rc = note ? 0 : zb_fail(t->err, -ENOMEM, "a note: %m");

    if (rc == 0)
        rc = gpt_engine_fail(t, zc_zero_progress(t->zero, &t->steps, &t->applied));
    if (rc == 0 && t->steps > 0) { /* before the first step there is none, nor a need */
        rc = gpt_engine_fail(t, zc_zero_note_get(t->zero, true, note, &bytes));
        if (rc == 0)
            rc = gpt_note_check(note, bytes, t->args, gpt_data_info(t->data), t->steps, t->err);
    }
    free(note);
    return rc;
}

/* Compares arguments that the engine does not see. Each rank has its own command line; with
 * different values the ranks would train a wrong model without an error. */
static int engine_agree(struct train *t)
{
    enum { SEED, SEED_HIGH, DATA, DATA_HIGH, STEPS, BATCH, INIT, VALUES };
    static const char *const names[VALUES] = {
        "--seed",
        "--seed",
        "the contents of the files of --data",
        "the contents of the files of --data",
        "--steps",
        "--batch",
        "--init",
    };
    const struct gpt_args *a = t->args;
    uint64_t hash = gpt_data_info(t->data)->hash;
    const double mine[VALUES] = {
        [SEED] = (uint32_t)a->seed, [SEED_HIGH] = (uint32_t)(a->seed >> 32),
        [DATA] = (uint32_t)hash,    [DATA_HIGH] = (uint32_t)(hash >> 32),
        [STEPS] = (double)a->steps, [BATCH] = a->batch,
        [INIT] = a->init != NULL,
    };
    double sums[VALUES], differ[VALUES];
    int rc;

    if (t->comm->world == 1)
        return 0;
    memcpy(sums, mine, sizeof(sums));
    rc = gpt_engine_fail(t, zc_zero_sum(t->zero, sums, VALUES));
    for (int i = 0; i < VALUES && rc == 0; i++) /* whole numbers below 2^53: sums are exact */
        differ[i] = sums[i] != mine[i] * t->comm->world;
    if (rc == 0)
        rc = gpt_engine_fail(t, zc_zero_sum(t->zero, differ, VALUES));
    for (int i = 0; i < VALUES && rc == 0; i++)
        if (differ[i] > 0)
            rc = zb_fail(t->err, -EINVAL, "%s: not the same on all ranks", names[i]);
    return rc;
}

static int engine_start(struct train *t)
{
    int rc = zc_zero_start(t->zero, init_range, t);

    if (rc == -EINVAL && t->args->resume) /* there is such a job, and it is not ours */
        return zb_fail(t->err, -EEXIST, "--resume: job '%s' is another run: %s", t->args->job,
                       zc_zero_error(t->zero));
    rc = gpt_engine_fail(t, rc);
    if (rc == 0)
        rc = engine_agree(t);
    return rc == 0 && (t->args->resume || t->args->resume_if_there) ? engine_resume(t) : rc;
}

static bool engine_tick(void *arg)
{
    struct train *t = arg;

    if (t->stash)
        (void)gpt_stash_poll(t->stash);
    return zc_zero_poll(t->zero) == 0; /* the next call that matters gives the same code */
}

static struct gpt_hold hold_of(const struct train *t)
{
    return (struct gpt_hold){ .sequences = t->args->micro_batch,
                              .micros = t->at_once,
                              .recompute = recomputes(t->args),
                              .stash = t->stash };
}

/* On a device, passes use the engine's stream: they are made after the engine, and freed first. */
static int passes_new(struct train *t)
{
    const struct gpt_passes_options options = {
        .model = &t->model,
        .hold = hold_of(t),
        .dtype = t->args->dtype,
        .device = t->args->device ? zc_zero_device(t->zero) : NULL,
        .stream = t->args->device ? zc_zero_stream(t->zero) : NULL,
        .tick = engine_tick,
        .tick_arg = t,
    };

    return gpt_passes_new(&t->passes, &options, t->err);
}

/* Options without a flag: from the file, or our defaults. */
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
    if (a->optimizer == GPT_MUON) {
        o->momentum = MUON_MOMENTUM;
        o->nesterov = true;
    }
    o->eps = a->optimizer == GPT_ADAGRAD ? ADAGRAD_EPS : EPS;
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
    options.resume_if_there = a->resume_if_there;
    options.commit_every = a->commit_every;
    options.reconnect_ms = a->reconnect_s * 1000;
    options.share = a->share;
    options.stage = (enum zc_zero_stage)gpt_args_stage(a);
    options.keep_gathered = a->keep_gathered;
    options.gather_alone = a->gather_alone;
    options.node_gather = (enum zc_node_gather)a->node_gather;
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
    options.clip_mode = (enum zc_clip_mode)a->clip_mode;
    options.clip_tensor_ratio = a->clip_ratio;
    options.clip_tensor_beta = a->clip_beta;
    options.clip_tensor_warmup = a->clip_warmup;
    options.overlap = overlap_of(a->overlap);
    options.grad_ring = a->grad_ring;
    options.grad_ring_keep = a->grad_ring_keep;
    options.optimizer = (enum zc_optimizer)(ZC_ADAMW + a->optimizer);
    options.moments = (enum zc_moments)(ZC_MOMENTS_F32 + a->moments);
    options.muon_scale = (enum zc_muon_scale)a->muon_scale;
    options.muon_engine = (enum zc_muon_engine)a->muon_engine;
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
        rc = gpt_engine_fail(t, zc_zero_open(&t->zero, &options));
    free(socket);
    if (rc == 0 && a->device)
        rc = passes_new(t);
    for (uint32_t u = 0; u < t->model.nunits && rc == 0; u++)
        rc = unit_declare(t, u);
    return rc == 0 ? engine_start(t) : rc;
}

/* The export is written at the end of the run. A missing folder should be reported at its start. */
static int export_check(struct train *t)
{
    char *copy = strdup(t->args->export);
    const char *folder = copy ? dirname(copy) : NULL;
    int rc = 0;

    if (!folder)
        rc = zb_fail(t->err, -ENOMEM, "'%s': %m", t->args->export);
    else if (access(folder, W_OK | X_OK) < 0)
        rc = zb_fail(t->err, -errno, "--export '%s': its folder: %m", t->args->export);
    free(copy);
    return rc;
}

static int files_open(struct train *t)
{
    const struct gpt_args *a = t->args;

    if (t->comm->rank != 0)
        return 0;
    if (a->jsonl) {
        t->jsonl = fopen(a->jsonl, a->resume || a->resume_if_there ? "ae" : "we");
        if (!t->jsonl)
            return zb_fail(t->err, -errno, "--jsonl '%s': %m", a->jsonl);
    }
    return a->export ? export_check(t) : 0;
}

static bool stashes(const struct gpt_args *a)
{
    return a->checkpoint == GPT_CHECKPOINT_HOST || a->checkpoint == GPT_CHECKPOINT_NVME;
}

/* Opened before the engine: model states get the rest of the daemon's memory. */
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
    uint64_t largest = 0,
             small = 13 * (uint64_t)a->width; /* vectors of a block; or the last norm */
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
        t->wide[SLOT_SMALL] = calloc(small, sizeof(float));
    }
    if (!t->tokens || (wide && (!t->wide[SLOT_MAIN] || !t->wide[SLOT_SMALL])))
        return zb_fail(t->err, -ENOMEM, "weights of the largest unit, %" PRIu64 " elements: %m",
                       largest);
    return 0;
}

/* The default of ZSHARD_COMM: NCCL between CUDA GPUs. */
static const char *comm_name(const struct gpt_args *a)
{
    const char *wanted = getenv("ZSHARD_COMM");

    return a->device && strncmp(a->device, "cuda", 4) == 0 && !(wanted && *wanted) ? "nccl"
                                                                                   : "auto";
}

int gpt_train_open(struct train *t)
{
    const struct gpt_args *a = t->args;
    struct gpt_shape shape = {
        .layers = a->layers, .heads = a->heads, .width = a->width, .seq = a->seq
    };
    char why[sizeof(t->err->text)];
    int rc = zc_comm_open(&t->comm, comm_name(a), why, sizeof(why));

    if (rc != 0)
        return zb_fail(t->err, rc, "%s", why);
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
        shape.split = a->optimizer == GPT_MUON; /* then matrices have one moment only */
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

void gpt_train_close(struct train *t, bool clean)
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
