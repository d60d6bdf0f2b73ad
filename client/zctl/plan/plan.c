/*
 * plan.c - zctl plan: what a run will take of a node, before it is started.
 *
 * MODEL. Options make a model, a run and a node (plan.h); base/forecast.h answers, with the code by
 * which the daemon admits jobs; here it is read and shown. A plan that does not fit is shown, too:
 * with what would do, and an exit status of its own.
 */
#include <stdlib.h>

#include "base/measure.h"
#include "base/util.h"
#include "client/zctl/plan/plan.h"
#include "kernels/measure.h"

#define MEASURE_NS UINT64_C(1000000000)

#define AT(member) ZB_OPT_AT(struct zctl_plan, member)

static const struct zb_opt plan_options[] = {
    { "params", ZB_OPT_LARGE, AT(params), .arg = "N", .min = 1, .max = (double)ZB_PARAMS_MAX,
      .help = "the model: so many parameters; K, M, G (or B), T are powers of 1000" },
    { "units", ZB_OPT_COUNT, AT(units), .arg = "N", .def = "32", .min = 1, .max = ZB_UNITS_MAX,
      .help = "of it, all the same size" },
    { "layers", ZB_OPT_COUNT, AT(shape.layers), .arg = "L", .max = UINT32_MAX,
      .help = "or a GPT as zgpt trains it, with --width and --vocab" },
    { "width", ZB_OPT_COUNT, AT(shape.width), .arg = "W", .max = UINT32_MAX,
      .help = "of its residual stream" },
    { "vocab", ZB_OPT_COUNT, AT(shape.vocab), .arg = "V", .max = UINT32_MAX,
      .help = "tokens that it knows" },
    { "seq", ZB_OPT_COUNT, AT(shape.seq), .arg = "S", .def = "1024", .max = UINT32_MAX,
      .help = "positions that it knows" },
    { "index", ZB_OPT_TEXT, AT(index), .arg = "PATH",
      .help = "or safetensors: a file, an index, a folder; only headers are read" },
    { "mode", ZB_OPT_CHOICE, AT(run.mode), .choices = "ddp zero1 zero2 zero3 fsdp hybrid",
      .def = "zero3", .help = "what is cut over the ranks" },
    { "ranks", ZB_OPT_COUNT, AT(run.ranks), .arg = "N", .def = "1", .min = 1,
      .help = "over all nodes" },
    { "nodes", ZB_OPT_COUNT, AT(run.nodes), .arg = "N", .def = "1", .min = 1,
      .help = "as many ranks on each" },
    { "dtype", ZB_OPT_CHOICE, AT(dtype), .choices = "fp32 bf16 fp16", .min = ZB_F32,
      .help = "of parameters", .absent = "bf16, or that of the files" },
    { "grad-dtype", ZB_OPT_CHOICE, AT(grad_dtype), .choices = "fp32 bf16 fp16", .min = ZB_F32,
      .def = "fp32", .help = "of gradients as the daemon keeps them" },
    { "optimizer", ZB_OPT_CHOICE, AT(optimizer), .choices = "adamw adam lion sgd adagrad",
      .min = ZB_ADAMW, .def = "adamw", .help = "of the run" },
    { "moments", ZB_OPT_CHOICE, AT(moments), .choices = "fp32 bf16 8bit", .min = ZB_MOMENTS_F32,
      .def = "fp32", .help = "how the optimizer's moments are kept" },
    { "offload-param", ZB_OPT_CHOICE, AT(run.param), .choices = "host nvme", .min = ZB_OFFLOAD_HOST,
      .def = "nvme", .help = "host: always there; nvme: there where host memory does not suffice" },
    { "offload-optimizer", ZB_OPT_CHOICE, AT(run.optimizer), .choices = "host nvme",
      .min = ZB_OFFLOAD_HOST, .def = "nvme", .help = "the same for the optimizer's state" },
    { "offload-grad", ZB_OPT_CHOICE, AT(run.grad), .choices = "host auto", .min = ZB_OFFLOAD_HOST,
      .def = "auto", .help = "host: gradients in memory; auto: on NVMe where they cannot be" },
    { "durable", ZB_OPT_FLAG, AT(run.durable), .help = "steps are committed" },
    { "commit-every", ZB_OPT_COUNT, AT(run.commit_every), .arg = "N", .def = "100",
      .help = "every Nth step is committed" },
    { "early", ZB_OPT_FLAG, AT(run.early),
      .help = "steps begin under the backward pass, where there is room for it" },
    { "micro-steps", ZB_OPT_COUNT, AT(run.micro_steps), .arg = "N", .def = "1", .min = 1,
      .help = "of a step" },
    { "prefetch", ZB_OPT_COUNT, AT(run.prefetch_units), .arg = "N", .def = "1",
      .help = "units gathered ahead" },
    { "flops", ZB_OPT_LARGE, AT(run.flops), .arg = "N",
      .help = "floating-point operations per second of one rank: for the tokens that hide the "
              "drives" },
    { "step-seconds", ZB_OPT_LARGE, AT(run.seconds), .arg = "S",
      .help = "of a whole step, with its computing: for the wear of the drives" },
    { "node", ZB_OPT_TEXT, AT(node_file), .arg = "FILE",
      .help = "JSON with the options from here on, '_' for '-'; they win over it" },
    { "host-bytes", ZB_OPT_SIZE, AT(node.host_bytes), .arg = "SIZE",
      .help = "budget of a daemon; without any of these, that of this node's" },
    { "nvme-bytes", ZB_OPT_SIZE, AT(node.nvme_bytes), .arg = "SIZE",
      .help = "size of its data file" },
    { "gpu-bytes", ZB_OPT_SIZE, AT(node.gpu_bytes), .arg = "SIZE",
      .help = "of each rank's GPU: its own copies must fit" },
    { "gpu-tier-bytes", ZB_OPT_SIZE, AT(node.gpu_tier_bytes), .arg = "SIZE",
      .help = "of the daemon's GPU tier, free for this run" },
    { "page-elems", ZB_OPT_COUNT, AT(node.page_elems), .arg = "N", .help = "of the daemon",
      .absent = "262144" },
    { "ring-bytes", ZB_OPT_SIZE, AT(node.ring_bytes), .arg = "SIZE", .help = "of the daemon" },
    { "drive-read", ZB_OPT_REAL, AT(node.drive_read), .arg = "GB/S", .max = 1e9, .scale = 1e9,
      .help = "what all drives read, in 1e9 bytes per second" },
    { "drive-write", ZB_OPT_REAL, AT(node.drive_write), .arg = "GB/S", .max = 1e9, .scale = 1e9,
      .help = "what they write" },
    { "drive-endurance", ZB_OPT_REAL, AT(node.endurance), .arg = "TB", .max = 1e9, .scale = 1e12,
      .help = "that they may be written in their life, in 1e12 bytes" },
    { "mem-bw", ZB_OPT_REAL, AT(node.memory), .arg = "GB/S", .max = 1e9, .scale = 1e9,
      .help = "of memory" },
    { "cores", ZB_OPT_COUNT, AT(node.cores), .arg = "N", .help = "for the optimizer" },
    { "measure", ZB_OPT_TEXT, AT(measure), .arg = "DIR",
      .help = "measure what is not given, with a file of 512 MiB in DIR: 2 seconds" },
    { 0 },
};

/* ---- what is measured */

/* What is not known yet: memory, and the drive under `dir`. */
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

static int plan(struct zctl *z, int argc, char **argv)
{
    struct zctl_plan *p = z->opts.values;
    struct zb_forecast f;
    int rc;

    (void)argc;
    (void)argv;
    p->z = z;
    p->run.model = &p->model;
    rc = zctl_plan_model(p);
    if (rc == 0)
        rc = zb_layout_of(p->dtype ? p->dtype : ZB_BF16, p->grad_dtype, p->optimizer, p->moments,
                          false, &p->run.layout, &z->err);
    if (rc == 0)
        rc = zctl_plan_node(p);
    if (rc == 0 && p->measure)
        rc = plan_measure(p, p->measure);
    if (rc == 0)
        rc = zb_forecast(&p->run, &p->node, &f, &z->err);
    if (rc == 0)
        rc = zctl_plan_print(p, &f);
    if (rc == 0 && !f.fits) {
        z->status = ZCTL_EXIT_NO_FIT;
        rc = zb_fail(&z->err, f.why.code, "does not fit, because %s", f.why.text);
    }
    zb_model_done(&p->model);
    return rc;
}

const struct zctl_cmd zctl_plan = {
    .name = "plan",
    .args = "",
    .help = "say what a run will take of a node, and how long its steps will be",
    .argc_min = 0,
    .argc_max = 0,
    .run = plan,
    .options = plan_options,
    .bytes = sizeof(struct zctl_plan),
};
