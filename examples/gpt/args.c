/*
 * args.c - the rows of zgpt's options, and what must hold of several of them together.
 */
#include "examples/gpt/args.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt/dev/dev.h"
#include "examples/gpt/model/gpt.h"

#define AT(member) ZB_OPT_AT(struct gpt_args, member)
#define BATCH_MAX  1048576.0
#define OFFLOADS   "none host nvme"
#define PARAMS     OFFLOADS " gpu"

static const char or_config[] = "required, or --config";

/* Choices of node-gather: "nccl" is another name of "comm". */
enum { NODE_GATHER_COMM = 0, NODE_GATHER_NCCL = 3 };

static int check_device(const char *text, struct zb_err *err)
{
    return strcmp(text, "cpu") == 0 || gpt_dev_named(text)
               ? 0
               : zb_fail(err, -EINVAL, "'%s' is not cpu, cuda[:N] or emulated[:BYTES]", text);
}

static const struct zb_opt rows[] = {
    { "steps", ZB_OPT_COUNT, AT(steps), .arg = "N",
      .help = "optimizer steps; 0 only initialises (and exports)", .max = UINT32_MAX,
      .missing = "required" },
    { "seed", ZB_OPT_COUNT, AT(seed), .arg = "S", .help = "seed of initial values and batches",
      .missing = "required" },
    { "batch", ZB_OPT_COUNT, AT(batch), .arg = "B", .help = "sequences per step, over all ranks",
      .min = 1, .max = BATCH_MAX, .missing = or_config },
    { "micro-batch", ZB_OPT_COUNT, AT(micro_batch), .arg = "M",
      .help = "sequences that a rank computes at a time", .min = 1, .max = BATCH_MAX,
      .missing = or_config },
    { "seq", ZB_OPT_COUNT, AT(seq), .arg = "T", .help = "tokens per sequence", .min = 1,
      .max = GPT_SEQ_MAX, .missing = "required" },
    { "layers", ZB_OPT_COUNT, AT(layers), .arg = "L", .help = "transformer blocks", .min = 1,
      .max = GPT_LAYERS_MAX, .missing = "required" },
    { "heads", ZB_OPT_COUNT, AT(heads), .arg = "H", .help = "attention heads per block", .min = 1,
      .max = GPT_WIDTH_MAX, .missing = "required" },
    { "width", ZB_OPT_COUNT, AT(width), .arg = "C",
      .help = "width of the residual stream; a multiple of the heads", .min = 1,
      .max = GPT_WIDTH_MAX, .missing = "required" },
    { "freeze", ZB_OPT_COUNT, AT(freeze), .arg = "N", .help = "freeze the first N blocks",
      .max = GPT_LAYERS_MAX, .def = "0" },
    { "data", ZB_OPT_WORDS, AT(data), .arg = "FILE...",
      .help = "text files, or llm.c's token files (.bin)", .greedy = true,
      .absent = "in a build, zshard's own sources" },
    { "lr", ZB_OPT_REAL, AT(lr), .arg = "X", .help = "learning rate", .max = 1e6, .def = "1e-3" },
    { "weight-decay", ZB_OPT_REAL, AT(weight_decay), .arg = "X",
      .help = "of matrices; biases and layer norms have none", .max = 1e6, .def = "0.01" },
    { "clip", ZB_OPT_REAL, AT(clip), .arg = "X",
      .help = "maximum global norm of the gradient; 0: off", .max = 1e30, .def = "1" },
    { "clip-mode", ZB_OPT_CHOICE, AT(clip_mode),
      .help = "tensor: clip each tensor against an average of its own norms; --clip is then for "
              "the warm-up",
      .choices = "global tensor none", .def = "global" },
    { "clip-ratio", ZB_OPT_REAL, AT(clip_ratio), .arg = "X",
      .help = "--clip-mode tensor: limit of a norm over its average", .max = 1e6, .def = "1.05" },
    { "clip-beta", ZB_OPT_REAL, AT(clip_beta), .arg = "X",
      .help = "--clip-mode tensor: what an average keeps of itself in a step", .max = 1,
      .def = "0.98" },
    { "clip-warmup", ZB_OPT_COUNT, AT(clip_warmup), .arg = "N",
      .help = "--clip-mode tensor: steps that are clipped globally first", .def = "100" },
    { "dtype", ZB_OPT_CHOICE, AT(dtype),
      .help = "of weights and exchanged gradients; the CPU computes in fp32",
      .choices = "fp32 bf16 fp16", .def = "fp32" },
    { "loss-scale", ZB_OPT_REAL, AT(loss_scale), .arg = "X",
      .help = "with --dtype fp16; 0: dynamic, controlled by the next five", .max = 0x1p126,
      .def = "0" },
    { "initial-scale-power", ZB_OPT_COUNT, AT(scale_power), .arg = "N",
      .help = "the first loss scale is 2^N", .max = 126, .def = "16" },
    { "loss-scale-window", ZB_OPT_COUNT, AT(scale_window), .arg = "N",
      .help = "steps without overflow after which it is doubled", .min = 1, .def = "1000" },
    { "hysteresis", ZB_OPT_COUNT, AT(hysteresis), .arg = "N",
      .help = "overflows until it is halved, counted since it was doubled", .min = 1, .def = "2" },
    { "consecutive-hysteresis", ZB_OPT_FLAG, AT(consecutive_hysteresis),
      .help = "count them since the last step without overflow" },
    { "min-loss-scale", ZB_OPT_REAL, AT(min_scale), .arg = "X",
      .help = "an overflow that would halve it below X ends the run", .max = 0x1p126, .def = "1" },
    { "optimizer", ZB_OPT_CHOICE, AT(optimizer),
      .help = "lion has betas 0.9 and 0.99, sgd momentum 0.9; muon: momentum 0.95 and nesterov, "
              "for the "
              "matrices of blocks, and adamw for the rest",
      .choices = "adamw adam lion sgd adagrad muon", .def = "adamw" },
    { "muon-scale", ZB_OPT_CHOICE, AT(muon_scale),
      .help =
          "factor of muon's learning rate: 0.2 * sqrt(max(rows, columns)), or sqrt(max(1, rows / "
          "columns))",
      .choices = "rms shape", .def = "rms" },
    { "muon-engine", ZB_OPT_CHOICE, AT(muon_engine),
      .help = "what orthogonalizes muon's matrices, offloaded: threads of the daemon, or its GPU; "
              "the same for "
              "the whole life of a job",
      .choices = "cpu gpu gpu-bf16", .def = "cpu" },
    { "moments", ZB_OPT_CHOICE, AT(moments),
      .help = "how the optimizer's moments are stored; 8bit-lo: and the low half of bf16 masters "
              "in 8 bits",
      .choices = "fp32 bf16 8bit 8bit-lo", .def = "fp32" },
    { "device", ZB_OPT_TEXT, AT(device), .arg = "NAME",
      .help = "device to compute on: cpu, cuda (of several GPUs the one of the local rank), "
              "cuda:N, or emulated[:BYTES]",
      .def = "cpu", .check = check_device },
    { "order", ZB_OPT_CHOICE, AT(order),
      .help = "order of micro-batches; vertical: all of them unit by unit",
      .choices = "horizontal vertical", .def = "horizontal" },
    { "accumulate", ZB_OPT_CHOICE, AT(accumulate),
      .help = "gradients of micro-batches; local: reduced once per step",
      .choices = "reduced local", .def = "reduced" },
    { "checkpoint", ZB_OPT_CHOICE, AT(checkpoint),
      .help = "what is kept of a block: everything, or only its input, and where",
      .choices = "auto none block host nvme", .def = "auto" },
    { "stage", ZB_OPT_CHOICE, AT(below_3),
      .help = "ZeRO stage: 1 shards optimizer state, 2 gradients too, 3 everything; 0: DDP",
      .choices = "3 2 1 0", .def = "3" },
    { "keep-gathered", ZB_OPT_FLAG, AT(keep_gathered),
      .help = "stage 3: keep what the forward pass gathers for the backward pass" },
    { "gather-alone", ZB_OPT_FLAG, AT(gather_alone),
      .help = "stage 3, offloaded, one node: each rank gathers from the daemon by itself" },
    { "node-gather", ZB_OPT_CHOICE, AT(node_gather),
      .help = "how ranks of one daemon gather: by collectives (nccl is the same), from its host "
              "memory, or the faster",
      .choices = "comm host auto nccl", .def = "comm" },
    { "quantize-gather", ZB_OPT_FLAG, AT(quantize_gather),
      .help = "stage 3: gather weights as int8; the stepped weights stay exact" },
    { "quantize-frozen", ZB_OPT_FLAG, AT(quantize_frozen),
      .help = "stage 3, with --freeze: keep frozen blocks as int8" },
    { "group", ZB_OPT_COUNT, AT(group), .arg = "N",
      .help = "stage 3: shard within groups of N ranks, replicate across them; 0: one group",
      .def = "0" },
    { "memory", ZB_OPT_SIZE, AT(memory), .arg = "SIZE",
      .help = "limit of a rank's own memory for model states and buffers; 0: none", .max = 0x1p62,
      .def = "0" },
    { "overlap", ZB_OPT_CHOICE, AT(overlap),
      .help = "what overlaps with the passes; early needs --clip 0, or --clip-mode tensor or none",
      .choices = "all none early serve", .def = "all" },
    { "grad-ring", ZB_OPT_FLAG, AT(grad_ring),
      .help = "with early steps (so without global clipping) and --offload-optimizer nvme: the "
              "daemon does not hold "
              "gradients of pages on NVMe" },
    { "grad-ring-keep", ZB_OPT_COUNT, AT(grad_ring_keep), .arg = "N", .max = 100, .def = "0",
      .help = "--grad-ring: hold those of N percent of the pages, to be stepped during the forward "
              "pass" },
    { "offload", ZB_OPT_CHOICE, AT(offload),
      .help = "lowest tier for optimizer state and parameters", .choices = OFFLOADS,
      .def = "none" },
    { "offload-optimizer", ZB_OPT_CHOICE, AT(offload_optimizer),
      .help = "the same for optimizer state only", .choices = OFFLOADS },
    { "offload-param", ZB_OPT_CHOICE, AT(offload_param),
      .help = "the same for parameters only; gpu: the daemon's GPU tier, if possible",
      .choices = PARAMS },
    { "offload-grad", ZB_OPT_CHOICE, AT(offload_grad),
      .help = "auto: spill gradients to NVMe when memory is full; host: never",
      .choices = "auto host", .def = "auto" },
    { "socket", ZB_OPT_TEXT, AT(socket), .arg = "PATH",
      .help = "the daemon's socket; of several (A,B), rank r uses number r*n/ranks",
      .absent = "$ZSHARD_SOCKET" },
    { "job", ZB_OPT_TEXT, AT(job), .arg = "NAME", .help = "name of this run in the daemon",
      .def = "zgpt" },
    { "share", ZB_OPT_COUNT, AT(share), .arg = "N",
      .help = "share of the daemon's drives and threads, relative to other jobs", .min = 1,
      .max = 10000, .def = "100" },
    { "keep", ZB_OPT_FLAG, AT(keep),
      .help = "keep the job after the run; its commits survive a daemon restart" },
    { "resume", ZB_OPT_FLAG, AT(resume),
      .help = "resume a kept job (a trainer that still runs it is disconnected)" },
    { "resume-if-there", ZB_OPT_FLAG, AT(resume_if_there),
      .help = "the same if all daemons have the job; otherwise start it" },
    { "commit-every", ZB_OPT_COUNT, AT(commit_every), .arg = "N",
      .help = "commit every N steps, with --keep; 0: only at the end", .max = UINT32_MAX,
      .def = "100" },
    { "reconnect", ZB_OPT_COUNT, AT(reconnect_s), .arg = "SECONDS",
      .help = "how long to wait for a daemon that has restarted or, with --keep, was lost; 0: not",
      .max = 1000000, .def = "120" },
    { "init", ZB_OPT_TEXT, AT(init), .arg = "PATH",
      .help = "start with all weights of a .safetensors file, or of those in a folder" },
    { "export", ZB_OPT_TEXT, AT(export), .arg = "FILE",
      .help = "write the weights to a .safetensors file at the end" },
    { "jsonl", ZB_OPT_TEXT, AT(jsonl), .arg = "FILE",
      .help = "write one JSON object per step; --resume appends" },
    { "config", ZB_OPT_TEXT, AT(config), .arg = "FILE",
      .help = "DeepSpeed's JSON file; flags take precedence over it" },
    { "help", ZB_OPT_FLAG, AT(help), .help = "show this text" },
    { "version", ZB_OPT_FLAG, AT(version), .help = "show the version" },
    { 0 },
};

bool gpt_args_given(const struct gpt_args *args, const char *flag)
{
    const struct zb_opts opts = { .rows = rows, .given = args->given };

    return zb_opt_given(&opts, flag + strlen("--"));
}

/* The more specific flag overrides --offload, in any order. */
static void offload_settle(struct gpt_args *args)
{
    if (!gpt_args_given(args, "--offload-optimizer"))
        args->offload_optimizer = args->offload;
    if (!gpt_args_given(args, "--offload-param") && gpt_args_stage(args) == 3)
        args->offload_param = args->offload; /* in other stages each rank has all parameters */
}

/* Flags for loss scaling are for fp16 only. */
static int scale_check(const struct gpt_args *args, struct zb_err *err)
{
    static const char *const flags[] = {
        "--loss-scale", "--initial-scale-power",    "--loss-scale-window",
        "--hysteresis", "--consecutive-hysteresis", "--min-loss-scale"
    };

    if (args->dtype == GPT_FP16)
        return 0;
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        if (gpt_args_given(args, flags[i]))
            return zb_fail(err, -EINVAL, "%s is of --dtype fp16: no other loss is scaled",
                           flags[i]);
    return 0;
}

/* Checks and completes the flags. */
static int args_settle(struct gpt_args *args, struct zb_err *err)
{
    if (args->help || args->version)
        return 0;
    for (const struct zb_opt *o = rows; o->name; o++)
        if (o->missing && !(args->given >> (o - rows) & 1) &&
            !(o->missing == or_config && args->config))
            return zb_fail(err, -EINVAL, "--%s %s is missing (%s); try --help", o->name, o->arg,
                           o->help);
    offload_settle(args);
    if (args->node_gather == NODE_GATHER_NCCL)
        args->node_gather = NODE_GATHER_COMM;
    return args->config ? 0 : gpt_args_check(args, err);
}

int gpt_args_check(struct gpt_args *args, struct zb_err *err)
{
    int rc = scale_check(args, err);

    if (args->device && strcmp(args->device, "cpu") == 0)
        args->device = NULL;
    if (rc != 0)
        return rc;
    if (args->offload_param != GPT_OFFLOAD_NONE && args->offload_optimizer == GPT_OFFLOAD_NONE)
        return zb_fail(err, -EINVAL,
                       "parameters are offloaded with the optimizer state, or not at all: give "
                       "--offload, or --offload-optimizer, too");
    if (args->width % args->heads != 0)
        return zb_fail(err, -EINVAL, "--width %u is not a multiple of --heads %u", args->width,
                       args->heads);
    if (args->freeze > args->layers)
        return zb_fail(err, -EINVAL, "--freeze %u is more than there are blocks: --layers %u",
                       args->freeze, args->layers);
    if (args->quantize_frozen && args->freeze == 0)
        return zb_fail(err, -EINVAL,
                       "--quantize-frozen is of frozen blocks, and there are none: give --freeze");
    if (args->quantize_frozen && gpt_args_stage(args) < 3)
        return zb_fail(err, -EINVAL, "--quantize-frozen is of --stage 3, and this is stage %u",
                       gpt_args_stage(args));
    if ((uint64_t)args->micro_batch * args->seq > GPT_ROWS_MAX)
        return zb_fail(err, -EINVAL,
                       "--micro-batch %u of --seq %u is more than %u tokens at a "
                       "time",
                       args->micro_batch, args->seq, GPT_ROWS_MAX);
    if ((args->keep || args->resume) && args->offload_optimizer == GPT_OFFLOAD_NONE)
        return zb_fail(err, -EINVAL, "%s needs the daemon: --offload host or nvme",
                       args->keep ? "--keep" : "--resume");
    if (args->resume && args->init)
        return zb_fail(err, -EINVAL, "--init begins a run, and --resume continues one");
    if (args->resume_if_there && args->offload_optimizer == GPT_OFFLOAD_NONE)
        return zb_fail(err, -EINVAL, "--resume-if-there needs the daemon: --offload host or nvme");
    args->keep = args->keep || args->resume || args->resume_if_there;
    return 0;
}

int gpt_args_parse(struct gpt_args *args, int argc, char **argv, struct zb_err *err)
{
    struct zb_opts opts = { .rows = rows, .values = args };
    int rc;

    *args = (struct gpt_args){ .help = false };
    zb_opt_defaults(rows, args);
    rc = zb_opt_parse(&opts, 1, argc, argv, NULL, err);
    args->given = opts.given;
    return rc < 0 ? rc : args_settle(args, err);
}

void gpt_args_done(struct gpt_args *args)
{
    free(args->data.at);
    args->data = (struct zb_opt_words){ .n = 0 };
}

int gpt_args_micro_steps(const struct gpt_args *args, uint32_t world, uint32_t *ret_micro_steps,
                         struct zb_err *err)
{
    uint64_t at_a_time = (uint64_t)args->micro_batch * world;

    if (args->batch % at_a_time != 0)
        return zb_fail(err, -EINVAL,
                       "--batch %u does not divide into --micro-batch %u on each of "
                       "%u ranks",
                       args->batch, args->micro_batch, world);
    *ret_micro_steps = (uint32_t)(args->batch / at_a_time);
    return 0;
}

void gpt_args_help(FILE *out)
{
    fputs("usage: zgpt --steps N --seed S --batch B --micro-batch M --seq T --layers L\n"
          "    --heads H --width C [flags]\n"
          "\n"
          "Trains a GPT under ZeRO; several ranks: mpirun -n R zgpt ...,\n"
          "or torchrun --no-python --nproc-per-node R zgpt ...\n"
          "\n",
          out);
    zb_opt_help(out, rows);
    fputs("\n"
          "SIGTERM, SIGINT: stop after the current step, commit it with --keep, and export;\n"
          "exit code 1.\n"
          "Exit codes: 0; 2 usage; 3 daemon unreachable or lost; 4 refused: it does not fit\n"
          "(also the device's memory), or what it needs is not there; 5 a peer rank was\n"
          "lost; 6 data corrupt; 1 anything else.\n",
          out);
}
