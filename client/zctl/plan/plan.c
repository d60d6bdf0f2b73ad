/*
 * plan.c - zctl plan: what a run will take of a node, before it is started.
 *
 * MODEL. Options describe a model, a run and a node (plan.h). base/forecast.h computes the plan,
 * with the same code as the daemon's admission. A plan that does not fit is shown, too, with a
 * budget that would suffice and an exit status of its own. base/iteration.h computes the time of an
 * iteration, if the rates that it needs are given; scale.c does both for growing numbers of nodes.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/measure.h"
#include "base/util.h"
#include "client/zctl/plan/plan.h"
#include "kernels/measure.h"

#define MEASURE_NS UINT64_C(1000000000)

#define AT(member) ZB_OPT_AT(struct zctl_plan, member)
#define RATE       .arg = "GB/S", .min = 1e-6, .max = 1e9, .scale = 1e9

static const struct zb_opt plan_options[] = {
    { "params", ZB_OPT_LARGE, AT(params), .arg = "N", .min = 1, .max = (double)ZB_PARAMS_MAX,
      .help = "number of parameters of the model; K, M, G (or B), T are powers of 1000" },
    { "units", ZB_OPT_COUNT, AT(units), .arg = "N", .def = "32", .min = 1, .max = ZB_UNITS_MAX,
      .help = "split it into N equal units" },
    { "layers", ZB_OPT_COUNT, AT(shape.layers), .arg = "L", .max = UINT32_MAX,
      .help = "or a GPT as zgpt trains it, with --width and --vocab" },
    { "width", ZB_OPT_COUNT, AT(shape.width), .arg = "W", .max = UINT32_MAX,
      .help = "width of its residual stream" },
    { "vocab", ZB_OPT_COUNT, AT(shape.vocab), .arg = "V", .max = UINT32_MAX,
      .help = "size of its vocabulary" },
    { "seq", ZB_OPT_COUNT, AT(shape.seq), .arg = "S", .def = "1024", .max = UINT32_MAX,
      .help = "its maximum sequence length" },
    { "index", ZB_OPT_TEXT, AT(index), .arg = "PATH",
      .help = "or safetensors: a file, an index, a folder; only headers are read" },
    { "mode", ZB_OPT_CHOICE, AT(run.mode), .choices = "ddp zero1 zero2 zero3 fsdp hybrid",
      .def = "zero3", .help = "what is partitioned over the ranks" },
    { "ranks", ZB_OPT_COUNT, AT(run.ranks), .arg = "N", .def = "1", .min = 1,
      .help = "ranks on all nodes together" },
    { "nodes", ZB_OPT_COUNT, AT(run.nodes), .arg = "N", .def = "1", .min = 1,
      .help = "nodes, with equal numbers of ranks" },
    { "dtype", ZB_OPT_CHOICE, AT(dtype), .choices = "fp32 bf16 fp16", .min = ZB_F32,
      .help = "dtype of parameters", .absent = "bf16, or that of the files" },
    { "grad-dtype", ZB_OPT_CHOICE, AT(grad_dtype), .choices = "fp32 bf16 fp16", .min = ZB_F32,
      .def = "fp32", .help = "dtype of gradients in the daemon" },
    { "optimizer", ZB_OPT_CHOICE, AT(optimizer), .choices = "adamw adam lion sgd adagrad muon",
      .min = ZB_ADAMW, .def = "adamw",
      .help = "optimizer of the run; muon: with the shape of a GPT, as zgpt steps it" },
    { "muon-engine", ZB_OPT_CHOICE, AT(run.muon_engine), .choices = "cpu gpu gpu-bf16",
      .def = "cpu", .help = "what orthogonalizes the matrices of muon" },
    { "moments", ZB_OPT_CHOICE, AT(moments), .choices = "fp32 bf16 8bit 8bit-lo",
      .min = ZB_MOMENTS_F32, .def = "fp32", .help = "how the optimizer's moments are stored" },
    { "offload-param", ZB_OPT_CHOICE, AT(run.param), .choices = "host nvme gpu",
      .min = ZB_OFFLOAD_HOST, .def = "nvme",
      .help = "lowest tier for parameters; nvme: only when host memory is full; gpu: on the "
              "daemon's GPU tiers if all fit, else as nvme" },
    { "offload-optimizer", ZB_OPT_CHOICE, AT(run.optimizer), .choices = "none host nvme",
      .min = ZB_OFFLOAD_NONE, .def = "nvme",
      .help = "the same for optimizer state; none: all states stay on the ranks' GPUs" },
    { "offload-grad", ZB_OPT_CHOICE, AT(run.grad), .choices = "host auto", .min = ZB_OFFLOAD_HOST,
      .def = "auto", .help = "auto: spill gradients to NVMe when memory is full; host: never" },
    { "durable", ZB_OPT_FLAG, AT(run.durable), .help = "the run commits steps" },
    { "commit-every", ZB_OPT_COUNT, AT(run.commit_every), .arg = "N", .def = "100",
      .help = "commit every N steps" },
    { "early", ZB_OPT_FLAG, AT(run.early),
      .help = "steps start during the backward pass, where there is room for it" },
    { "clip-mode", ZB_OPT_CHOICE, AT(clip_mode), .choices = "none tensor global", .def = "none",
      .help = "how gradients are clipped; global: steps cannot start during the backward pass; "
              "tensor, with --grad-ring: memory for the gradients of two units" },
    { "grad-ring", ZB_OPT_FLAG, AT(run.grad_ring),
      .help = "with --early: gradients of pages whose state is streamed are not held" },
    { "grad-ring-keep", ZB_OPT_COUNT, AT(run.ring_keep), .arg = "N", .def = "0", .max = 100,
      .help = "--grad-ring: hold those of N percent of the pages" },
    { "micro-steps", ZB_OPT_COUNT, AT(run.micro_steps), .arg = "N", .def = "1", .min = 1,
      .help = "micro-steps per step" },
    { "prefetch", ZB_OPT_COUNT, AT(run.prefetch_units), .arg = "N", .def = "1",
      .help = "units gathered ahead" },
    { "flops", ZB_OPT_LARGE, AT(run.flops), .arg = "N",
      .help = "floating-point operations per second of one rank: for the tokens that hide the "
              "drives, and with --tokens for the time of an iteration" },
    { "tokens", ZB_OPT_COUNT, AT(run.tokens), .arg = "N", .min = 1,
      .help = "tokens of a rank in a micro-step: for the time of an iteration" },
    { "comm", ZB_OPT_CHOICE, AT(run.comm), .choices = "nccl host ring", .def = "nccl",
      .help = "how ranks exchange: nccl, host (MPI or TCP), or ring (not in this engine)" },
    { "device", ZB_OPT_CHOICE, AT(device), .choices = "cpu gpu", .min = ZCTL_PLAN_DEVICE_CPU,
      .help = "where ranks compute; gpu: rank r of a node on GPU r modulo --gpus, as with zgpt "
              "--device; cpu: the daemon gives each rank a GPU for its state",
      .absent = "gpu with --offload-param gpu, else cpu" },
    { "node-gather", ZB_OPT_CHOICE, AT(run.node_gather), .choices = "comm host auto nccl",
      .def = "comm",
      .help = "how ranks of a node gather: by collectives, from the daemon's memory, or the "
              "faster (without --tokens: comm); nccl: the same as comm" },
    { "gather-alone", ZB_OPT_FLAG, AT(run.gather_alone),
      .help = "ranks of one node read each other's parameters in host memory" },
    { "scale", ZB_OPT_TEXT, AT(scale), .arg = "MODES",
      .help = "a table for 1, 2, 4 ... --nodes nodes and these modes, separated by commas" },
    { "svg", ZB_OPT_TEXT, AT(svg), .arg = "FILE",
      .help = "with --scale and --tokens: also draw it, as SVG" },
    { "step-seconds", ZB_OPT_LARGE, AT(run.seconds), .arg = "S",
      .help = "duration of a whole step, with computing: for the wear of the drives" },
    { "node", ZB_OPT_TEXT, AT(node_file), .arg = "FILE",
      .help = "JSON file with the options from here on; keys use '_' for '-'; options override "
              "the file" },
    { "host-bytes", ZB_OPT_SIZE, AT(node.host_bytes), .arg = "SIZE",
      .help = "host budget; default: ask the local daemon" },
    { "nvme-bytes", ZB_OPT_SIZE, AT(node.nvme_bytes), .arg = "SIZE",
      .help = "size of its data file" },
    { "gpu-bytes", ZB_OPT_SIZE, AT(node.gpu_bytes), .arg = "SIZE",
      .help = "memory of each rank's GPU: the rank's own copies must fit" },
    { "gpu-tier-bytes", ZB_OPT_CHARS, AT(gpu_tier_bytes), .arg = "SIZE,SIZE...",
      .help = "free bytes of the daemon's GPU tier: one size for each GPU, or one for all",
      .absent = "those of the local daemon if it is asked, else 0" },
    { "gpus", ZB_OPT_COUNT, AT(node.gpus), .arg = "N", .min = 1, .max = ZB_GPUS_MAX,
      .help = "GPUs of the node, and its ranks, if --ranks is not given" },
    { "drives", ZB_OPT_COUNT, AT(node.drives), .arg = "N", .min = 1, .max = ZB_DRIVES_MAX,
      .help = "equal drives; --nvme-bytes and the --drive options are then of one of them" },
    { "page-elems", ZB_OPT_COUNT, AT(node.page_elems), .arg = "N",
      .help = "page size of the daemon", .absent = "262144" },
    { "ring-bytes", ZB_OPT_SIZE, AT(node.ring_bytes), .arg = "SIZE",
      .help = "ring_bytes of the daemon" },
    { "drive-read", ZB_OPT_REAL, AT(node.drive_read), .arg = "GB/S", .max = 1e9, .scale = 1e9,
      .help = "read bandwidth of all drives, or with --drives of one, in 1e9 bytes per second" },
    { "drive-write", ZB_OPT_REAL, AT(node.drive_write), .arg = "GB/S", .max = 1e9, .scale = 1e9,
      .help = "their write bandwidth" },
    { "drive-endurance", ZB_OPT_REAL, AT(node.endurance), .arg = "TB", .max = 1e9, .scale = 1e12,
      .help = "bytes that may be written in their life, in 1e12 bytes" },
    { "link", ZB_OPT_REAL, AT(node.link), RATE,
      .help = "between host memory and each GPU, in one direction" },
    { "gpu-link", ZB_OPT_REAL, AT(node.gpu_link), RATE,
      .help = "from each GPU to the others of its node, in one direction" },
    { "gpu-mem-bw", ZB_OPT_REAL, AT(node.gpu_memory), RATE,
      .help = "bandwidth of each GPU's memory" },
    { "network", ZB_OPT_REAL, AT(node.network), RATE,
      .help = "from the node to the others, in one direction" },
    { "latency", ZB_OPT_REAL, AT(node.latency), .arg = "US", .max = 1e9, .scale = 1e-6,
      .help = "microseconds of each message of a collective" },
    { "mem-bw", ZB_OPT_REAL, AT(node.memory), .arg = "GB/S", .max = 1e9, .scale = 1e9,
      .help = "bandwidth of memory" },
    { "cores", ZB_OPT_COUNT, AT(node.cores), .arg = "N", .help = "cores for the optimizer" },
    { "measure", ZB_OPT_TEXT, AT(measure), .arg = "DIR",
      .help = "measure what is not given, with a file of 512 MiB in DIR: 2 seconds" },
    { 0 },
};

/* ---- what is measured */

/* Measures values that are not given: for memory, and for the drive under `dir`. */
static int plan_measure(struct zctl_plan *p, const char *dir)
{
    struct zb_node *node = &p->node;
    struct zb_err *err = &p->z->err;
    double drive = 0;
    int rc = 0, fd;

    if (node->memory <= 0)
        rc = zk_measure_steps(&p->run.layout, node->cores, &node->memory, err);
    if (rc < 0 || (node->drive_read > 0 && node->drive_write > 0))
        return rc;
    fd = zb_measure_open(dir, err);
    if (fd < 0)
        return fd;
    rc = zb_measure_drive(fd, zb_layout_page(&p->run.layout, ZB_STATE, node->page_elems),
                          MEASURE_NS, &drive, err);
    zb_close_fd(&fd);
    node->drive_read = node->drive_read > 0 ? node->drive_read : drive;
    node->drive_write = node->drive_write > 0 ? node->drive_write : drive;
    return rc;
}

/* ---- the command */

/* Options that need others. */
static int plan_check(struct zctl_plan *p)
{
    if (p->run.early && p->clip_mode == ZCTL_PLAN_CLIP_GLOBAL)
        return zb_fail(&p->z->err, -EINVAL,
                       "--early: with global clipping a step starts when the last gradient is "
                       "known; --clip-mode tensor or none");
    p->run.ring_limits = p->run.grad_ring && p->clip_mode == ZCTL_PLAN_CLIP_TENSOR;
    if (p->run.tokens > 0 && p->run.flops <= 0)
        return zb_fail(&p->z->err, -EINVAL, "--tokens needs --flops");
    if (p->svg && !(p->scale && p->run.tokens > 0))
        return zb_fail(&p->z->err, -EINVAL, "--svg needs --scale and --tokens");
    return 0;
}

/* A rank for each GPU that an option or a file gives, if the number of ranks is not given. */
static int plan_ranks(struct zctl_plan *p)
{
    bool given = p->node_file || zb_opt_given(&p->z->opts, "gpus");

    if (p->node.gpus == 0 || !given || zb_opt_given(&p->z->opts, "ranks"))
        return 0;
    if (p->run.nodes > ZB_RANKS_MAX / p->node.gpus)
        return zb_fail(&p->z->err, -EINVAL, "%u nodes of %u GPUs: at most %u ranks", p->run.nodes,
                       p->node.gpus, ZB_RANKS_MAX);
    p->run.ranks = p->run.nodes * p->node.gpus;
    return 0;
}

/* One run: its forecast, and the time of an iteration if it was asked for. */
static int plan_one(struct zctl_plan *p)
{
    struct zctl *z = p->z;
    struct zb_iteration it;
    struct zctl_links links;
    struct zb_forecast f;
    bool timed;
    int rc = zctl_plan_run(p, &f, &it, &timed);

    if (rc == 0)
        rc = zctl_plan_links(p, &f, &links);
    if (rc == 0)
        rc = zctl_plan_print(p, &f, timed ? &it : NULL, &links);
    if (rc == 0 && !f.fits) {
        z->status = ZCTL_EXIT_NO_FIT;
        rc = zb_fail(&z->err, f.why.code, "does not fit, because %s", f.why.text);
    }
    return rc;
}

/* With Muon, units of matrices have its layout, all others AdamW's. */
static int plan_layout(struct zctl_plan *p)
{
    enum zb_dtype dtype = p->dtype ? p->dtype : ZB_BF16;
    bool muon = p->optimizer == ZB_MUON;
    int rc;

    if (muon && (p->model.nmatrices == 0 || p->run.nodes > 1))
        return zb_fail(&p->z->err, -EINVAL,
                       "--optimizer muon needs the shape of a GPT (--layers and --width), for the "
                       "sizes of its matrices, and one node");
    if (!muon && p->run.muon_engine != ZB_MUON_CPU)
        return zb_fail(&p->z->err, -EINVAL, "--muon-engine is for --optimizer muon");
    p->run.muon = muon;
    rc = zb_layout_of(dtype, p->grad_dtype, muon ? ZB_ADAMW : p->optimizer, p->moments, false,
                      &p->run.layout, &p->z->err);
    return rc < 0 ? rc
                  : zb_layout_of(dtype, p->grad_dtype, p->optimizer, p->moments, false,
                                 &p->run.matrices, &p->z->err);
}

static int plan(struct zctl *z, int argc, char **argv)
{
    struct zctl_plan *p = z->opts.values;
    int rc;

    (void)argc;
    (void)argv;
    p->z = z;
    p->run.model = &p->model;
    p->run.computes_on = p->device == ZCTL_PLAN_DEVICE_GPU ||
                         (p->device == ZCTL_PLAN_DEVICE_AUTO && p->run.param == ZB_OFFLOAD_GPU);
    if (p->run.node_gather > ZB_GATHER_AUTO) /* "nccl" */
        p->run.node_gather = ZB_GATHER_COMM;
    rc = plan_check(p);
    if (rc == 0)
        rc = zctl_plan_model(p);
    if (rc == 0)
        rc = plan_layout(p);
    if (rc == 0)
        rc = zctl_plan_node(p);
    if (rc == 0)
        rc = plan_ranks(p);
    if (rc == 0 && p->measure)
        rc = plan_measure(p, p->measure);
    if (rc == 0)
        rc = p->scale ? zctl_scale(p) : plan_one(p);
    zb_model_done(&p->model);
    return rc;
}

const struct zctl_cmd zctl_plan = {
    .name = "plan",
    .args = "",
    .help = "predict the memory, step time and drive wear of a run",
    .argc_min = 0,
    .argc_max = 0,
    .run = plan,
    .options = plan_options,
    .bytes = sizeof(struct zctl_plan),
};
