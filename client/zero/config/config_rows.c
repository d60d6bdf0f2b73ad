/*
 * config_rows.c - the keys of a DeepSpeed file, with their types and effects.
 * docs/CONFIG.md describes them for users; a test checks that it has every key.
 */
#include <math.h>

#include "base/util.h"
#include "client/zero/config/config_priv.h"
#include "kernels/zk.h"

#define ELEMS_MAX 1e18 /* for all counts of elements */
#define STEPS_MAX 4294967295.0
#define END         \
    {               \
        .key = NULL \
    }

#define ACTS(name, what, to, text)                                \
    {                                                             \
        .key = (name), .kind = (what), .at = (to), .does = (text) \
    }
#define ACTS_FROM(name, what, to, least, most, text)                                             \
    {                                                                                            \
        .key = (name), .kind = (what), .at = (to), .min = (least), .max = (most), .does = (text) \
    }
#define GROUP_OF(name, below)                             \
    {                                                     \
        .key = (name), .kind = ZCZ_GROUP, .rows = (below) \
    }
#define IGNORED(name, what, text)                                                           \
    {                                                                                       \
        .key = (name), .kind = (what), .min = -INFINITY, .max = INFINITY, .because = (text) \
    }
#define REFUSED(name, what, text)                                                           \
    {                                                                                       \
        .key = (name), .kind = (what), .min = -INFINITY, .max = INFINITY, .refused = (text) \
    }

#define OF_DAEMON   "the daemon places bytes and does the I/O: zshardd.conf"
#define OF_UNITS    "units are gathered and reduced as declared"
#define OF_LOG      "it controls DeepSpeed's own logging"
#define OF_PYTHON   "it controls DeepSpeed's Python modules"
#define OF_AVERAGE  "gradients are added in fp32 and averaged once, in the step"
#define OF_SAVE     "commits, snapshots and exports save complete states (docs/DURABILITY.md)"
#define LEFT        "left to the trainer"
#define OTHER_MODEL "it would change the training result, and is not supported"

/* ---- optimizer */

#define BIT(n)   (1u << (n))
#define ADAMS    (BIT(ZCZ_ADAM) | BIT(ZCZ_ADAMW))
#define OF_ADAMS (ADAMS | BIT(ZCZ_LION) | BIT(ZCZ_MUON))
#define ONE_RATE "matrices and all other tensors have the same learning rate: give lr"

static const struct zcz_row adam_rows[] = {
    { "lr", ZCZ_REAL, ZCZ_LR, 0, ZK_PARAM_MAX, NULL, NULL, "the learning rate", NULL, NULL, LEFT,
      0 },
    { "betas", ZCZ_PAIR, ZCZ_BETA1, 0, 1, NULL, NULL, "beta1 and beta2", NULL, NULL, NULL,
      OF_ADAMS },
    { "eps", ZCZ_REAL, ZCZ_EPS, 0, 1, NULL, NULL, "eps", NULL, NULL, NULL,
      ADAMS | BIT(ZCZ_ADAGRAD) | BIT(ZCZ_MUON) },
    { "weight_decay", ZCZ_REAL, ZCZ_WEIGHT_DECAY, 0, ZK_PARAM_MAX, NULL, NULL,
      "weight decay, for the parameters that the trainer decays", NULL, NULL, LEFT, 0 },
    { "adam_w_mode", ZCZ_BOOL, ZCZ_ADAM_W_MODE, 0, 0, NULL, NULL,
      "true, DeepSpeed's default: Adam is AdamW", NULL, NULL, NULL, ADAMS },
    { "torch_adam", ZCZ_BOOL, ZCZ_TORCH_ADAM, 0, 0, NULL, NULL,
      "PyTorch's default of weight_decay; the arithmetic is the same", NULL, NULL, NULL, ADAMS },
    { "momentum", ZCZ_REAL, ZCZ_MOMENTUM, 0, 1, NULL, NULL, "momentum", NULL, NULL, NULL,
      BIT(ZCZ_SGD) | BIT(ZCZ_MUON) },
    { "dampening", ZCZ_REAL, ZCZ_DAMPENING, 0, 1, NULL, NULL, "dampening", NULL, NULL, NULL,
      BIT(ZCZ_SGD) },
    { "nesterov", ZCZ_BOOL, ZCZ_NESTEROV, 0, 0, NULL, NULL, "nesterov", NULL, NULL, NULL,
      BIT(ZCZ_SGD) },
    { "lr_decay", ZCZ_REAL, ZCZ_LR_DECAY, 0, 1, NULL, NULL, "decay of the learning rate", NULL,
      NULL, NULL, BIT(ZCZ_ADAGRAD) },
    REFUSED("muon_lr", ZCZ_NEVER, ONE_RATE),
    REFUSED("adam_lr", ZCZ_NEVER, ONE_RATE),
    REFUSED("amsgrad", ZCZ_BOOL, OTHER_MODEL),
    REFUSED("maximize", ZCZ_BOOL, OTHER_MODEL),
    { .key = "bias_correction",
      .kind = ZCZ_TRUE,
      .because = "moments always have bias correction",
      .refused = OTHER_MODEL },
    IGNORED("fused", ZCZ_BOOL, "the step is always one pass"),
    IGNORED("foreach", ZCZ_BOOL, "the step is always one pass"),
    IGNORED("fp32_optimizer_states", ZCZ_BOOL,
            "moments are fp32, unless zshard.moments or the trainer chooses a smaller type"),
    IGNORED("set_grad_none", ZCZ_BOOL, "the engine owns the gradients"),
    IGNORED("freeze_step", ZCZ_COUNT, "it is for one-bit optimizers"),
    END,
};

const struct zcz_row zcz_optimizer_rows[] = {
    { .key = "type",
      .kind = ZCZ_WORD,
      .at = ZCZ_OPT_TYPE,
      .words = "Adam AdamW Lion SGD Adagrad Muon",
      .does = "the optimizer, with PyTorch's semantics (docs/OPTIMIZERS.md)",
      .autos = LEFT },
    GROUP_OF("params", adam_rows),
    IGNORED("legacy_fusion", ZCZ_BOOL, "the step is always one pass"),
    END,
};

/* ---- scheduler */

#define WARM   BIT(ZC_LR_WARMUP - 1)
#define DECAY  BIT(ZC_LR_WARMUP_DECAY - 1)
#define COSINE BIT(ZC_LR_WARMUP_COSINE - 1)

static const struct zcz_row schedule_rows[] = {
    { "warmup_min_lr", ZCZ_REAL, ZCZ_WARMUP_MIN_LR, 0, ZK_PARAM_MAX, NULL, NULL,
      "initial value of the warm-up", NULL, NULL, NULL, WARM | DECAY },
    { "warmup_max_lr", ZCZ_REAL, ZCZ_WARMUP_MAX_LR, 0, ZK_PARAM_MAX, NULL, NULL,
      "final value of the warm-up", NULL, NULL, "the optimizer's learning rate", WARM | DECAY },
    { "warmup_num_steps", ZCZ_COUNT, ZCZ_WARMUP_STEPS, 0, STEPS_MAX, NULL, NULL,
      "steps of the warm-up, at least 2", NULL, NULL, "2, for Hugging Face's 0", 0 },
    { "warmup_type", ZCZ_WORD, ZCZ_WARMUP_TYPE, 0, 0, "log linear", NULL, "shape of the warm-up",
      NULL, NULL, NULL, 0 },
    { "total_num_steps", ZCZ_COUNT, ZCZ_TOTAL_STEPS, 1, STEPS_MAX, NULL, NULL,
      "steps until the decay has ended", NULL, NULL, LEFT, DECAY | COSINE },
    { "warmup_min_ratio", ZCZ_REAL, ZCZ_WARMUP_MIN_RATIO, 0, 1, NULL, NULL,
      "initial value, as a fraction of the learning rate", NULL, NULL, NULL, COSINE },
    { "cos_min_ratio", ZCZ_REAL, ZCZ_COS_MIN_RATIO, 0, 1, NULL, NULL,
      "final value, as a fraction of the learning rate", NULL, NULL, NULL, COSINE },
    IGNORED("last_batch_iteration", ZCZ_COUNT, "the job counts the applied steps"),
    END,
};

const struct zcz_row zcz_scheduler_rows[] = {
    { .key = "type",
      .kind = ZCZ_WORD,
      .at = ZCZ_SCHED_TYPE,
      .words = "WarmupLR WarmupDecayLR WarmupCosineLR",
      .does = "the learning rate of each step, by DeepSpeed's formula" },
    GROUP_OF("params", schedule_rows),
    END,
};

/* ---- zero_optimization */

static const struct zcz_row offload_param_rows[] = {
    { .key = "device",
      .kind = ZCZ_WORD,
      .at = ZCZ_PARAM_DEVICE,
      .words = "none cpu nvme",
      .does = "lowest tier for parameters" },
    IGNORED("nvme_path", ZCZ_TEXT, OF_DAEMON " (paths)"),
    IGNORED("buffer_count", ZCZ_COUNT, OF_DAEMON " (ring_bytes)"),
    IGNORED("buffer_size", ZCZ_COUNT, OF_DAEMON " (ring_bytes)"),
    IGNORED("max_in_cpu", ZCZ_COUNT, OF_DAEMON " (host_bytes)"),
    IGNORED("pin_memory", ZCZ_BOOL,
            "memory that a device copies is pinned, if the driver allows it"),
    END,
};

static const struct zcz_row offload_optimizer_rows[] = {
    { .key = "device",
      .kind = ZCZ_WORD,
      .at = ZCZ_OPT_DEVICE,
      .words = "none cpu nvme",
      .does = "lowest tier for optimizer state" },
    IGNORED("nvme_path", ZCZ_TEXT, OF_DAEMON " (paths)"),
    IGNORED("buffer_count", ZCZ_COUNT, OF_DAEMON " (ring_bytes)"),
    IGNORED("pin_memory", ZCZ_BOOL,
            "memory that a device copies is pinned, if the driver allows it"),
    IGNORED("pipeline_read", ZCZ_BOOL, "reads, updates and writes always overlap"),
    IGNORED("pipeline_write", ZCZ_BOOL, "reads, updates and writes always overlap"),
    IGNORED("fast_init", ZCZ_BOOL, "initial values are written in pieces anyway"),
    IGNORED("ratio", ZCZ_REAL, OF_DAEMON " (host_bytes, gpu_bytes)"),
    IGNORED("super_offload", ZCZ_BOOL,
            "steps can begin while gradients arrive, anyway (docs/OVERLAP.md)"),
    IGNORED("cpuadam_cores_perc", ZCZ_REAL, OF_DAEMON " (threads)"),
    END,
};

static const struct zcz_row zero_rows[] = {
    ACTS_FROM("stage", ZCZ_COUNT, ZCZ_STAGE, 0, 3, "which model states are partitioned"),
    ACTS("overlap_comm", ZCZ_BOOL, ZCZ_OVERLAP_COMM, "false: wait for each reduction"),
    { "reduce_bucket_size", ZCZ_COUNT, ZCZ_REDUCE_BUCKET, 0, ELEMS_MAX, NULL, NULL,
      "limit of the gradients in flight, in elements", NULL, NULL, "two units", 0 },
    { "stage3_prefetch_bucket_size", ZCZ_COUNT, ZCZ_PREFETCH_BUCKET, 0, ELEMS_MAX, NULL, NULL,
      "elements that are gathered ahead", NULL, NULL, "one unit", 0 },
    { "stage3_param_persistence_threshold", ZCZ_COUNT, ZCZ_PERSISTENCE, 0, ELEMS_MAX, NULL, NULL,
      "units (DeepSpeed: parameters) up to this size stay gathered", NULL, NULL, "no unit stays",
      0 },
    ACTS_FROM("stage3_max_live_parameters", ZCZ_COUNT, ZCZ_MAX_LIVE, 0, ELEMS_MAX,
              "limit of the elements gathered at the same time, if possible"),
    ACTS_FROM("stage3_max_reuse_distance", ZCZ_COUNT, ZCZ_MAX_REUSE, 0, ELEMS_MAX,
              "units used again within this many elements stay gathered"),
    { "prefetch_bucket_size", ZCZ_COUNT, ZCZ_PREFETCH_BUCKET, 0, ELEMS_MAX, NULL, NULL,
      "elements that are gathered ahead", NULL, NULL, "one unit", 0 },
    { "param_persistence_threshold", ZCZ_COUNT, ZCZ_PERSISTENCE, 0, ELEMS_MAX, NULL, NULL,
      "units (DeepSpeed: parameters) up to this size stay gathered", NULL, NULL, "no unit stays",
      0 },
    ACTS_FROM("max_live_parameters", ZCZ_COUNT, ZCZ_MAX_LIVE, 0, ELEMS_MAX,
              "limit of the elements gathered at the same time, if possible"),
    ACTS_FROM("max_reuse_distance", ZCZ_COUNT, ZCZ_MAX_REUSE, 0, ELEMS_MAX,
              "units used again within this many elements stay gathered"),
    ACTS_FROM(
        "zero_hpz_partition_size", ZCZ_COUNT, ZCZ_HPZ, 0, 1e6,
        "all states are partitioned within groups of this many ranks (DeepSpeed: a second copy of "
        "parameters is)"),
    ACTS_FROM("mics_shard_size", ZCZ_COUNT, ZCZ_MICS, -1, 1e6,
              "states are partitioned within groups of this many ranks"),
    ACTS("zero_quantized_weights", ZCZ_BOOL, ZCZ_QUANTIZED_WEIGHTS,
         "parameters travel as int8 with a scale for each block"),
    ACTS("zero_quantized_nontrainable_weights", ZCZ_BOOL, ZCZ_QUANTIZED_FROZEN,
         "for the trainer: frozen units are stored as int8 with a scale for each block"),
    GROUP_OF("offload_param", offload_param_rows),
    GROUP_OF("offload_optimizer", offload_optimizer_rows),
    ACTS("cpu_offload", ZCZ_BOOL, ZCZ_CPU_OFFLOAD, "the old form of offload_optimizer"),
    ACTS("cpu_offload_param", ZCZ_BOOL, ZCZ_CPU_OFFLOAD_PARAM, "the old form of offload_param"),
    IGNORED("cpu_offload_use_pin_memory", ZCZ_BOOL,
            "memory that a device copies is pinned, if the driver allows it"),
    IGNORED("allgather_partitions", ZCZ_BOOL, OF_UNITS),
    IGNORED("allgather_bucket_size", ZCZ_COUNT, OF_UNITS),
    IGNORED("reduce_scatter", ZCZ_BOOL, "slices are exchanged, and added in rank order"),
    IGNORED("use_multi_rank_bucket_allreduce", ZCZ_BOOL,
            "slices are exchanged, and added in rank order"),
    IGNORED("contiguous_gradients", ZCZ_BOOL, "a unit's gradient is one buffer"),
    IGNORED("round_robin_gradients", ZCZ_BOOL, "every rank has a slice of each unit"),
    IGNORED("sub_group_size", ZCZ_COUNT, "steps work page by page (page_elems of the daemon)"),
    IGNORED("stage3_gather_16bit_weights_on_model_save", ZCZ_BOOL, OF_SAVE),
    IGNORED("stage3_gather_fp16_weights_on_model_save", ZCZ_BOOL, OF_SAVE),
    IGNORED("gather_16bit_weights_on_model_save", ZCZ_BOOL, OF_SAVE),
    IGNORED("stage3_model_persistence_threshold", ZCZ_COUNT,
            "stage3_max_live_parameters limits the units that stay"),
    IGNORED("model_persistence_threshold", ZCZ_COUNT,
            "stage3_max_live_parameters limits the units that stay"),
    IGNORED("stage3_module_granularity_threshold", ZCZ_COUNT, OF_UNITS),
    IGNORED("stage3_use_all_reduce_for_fetch_params", ZCZ_BOOL, OF_UNITS),
    IGNORED("stage3_allgather_sequential", ZCZ_BOOL, OF_UNITS),
    IGNORED("stage3_partition_stream_chunk_size", ZCZ_COUNT,
            "no rank ever holds a whole unit when it starts"),
    IGNORED("zero_quantized_gradients", ZCZ_BOOL,
            "gradients are exchanged in the dtype of the parameters"),
    IGNORED("zeropp_loco_param", ZCZ_ANY, "gradients are exchanged in the dtype of the parameters"),
    IGNORED("mics_hierarchical_params_gather", ZCZ_BOOL, "a gather is one collective"),
    IGNORED("load_from_fp32_weights", ZCZ_BOOL, OF_SAVE),
    IGNORED("elastic_checkpoint", ZCZ_BOOL, "a job can resume with any number of ranks"),
    IGNORED("pipeline_loading_checkpoint", ZCZ_BOOL, OF_SAVE),
    IGNORED("ignore_unused_parameters", ZCZ_BOOL, "the trainer reduces every unit"),
    IGNORED("legacy_stage1", ZCZ_BOOL, OF_PYTHON),
    IGNORED("memory_efficient_linear", ZCZ_BOOL, OF_PYTHON),
    IGNORED("override_module_apply", ZCZ_BOOL, OF_PYTHON),
    IGNORED("leaf_module", ZCZ_ANY, OF_UNITS),
    IGNORED("log_trace_cache_warnings", ZCZ_BOOL, OF_LOG),
    IGNORED("enable_sanity_checks", ZCZ_BOOL, "wrong input is always rejected"),
    IGNORED("compute_grad_norm", ZCZ_BOOL, "the norm is computed when gradients are added"),
    IGNORED("save_muon_momentum_buffer_in_memory", ZCZ_BOOL,
            "the momentum is where all state of the optimizer is"),
    REFUSED("zenflow", ZCZ_ANY, OTHER_MODEL),
    END,
};

/* ---- the rest */

static const struct zcz_row fp16_rows[] = {
    { "enabled", ZCZ_BOOL, ZCZ_FP16, 0, 0, NULL, NULL, "parameters and gradients are fp16", NULL,
      NULL, LEFT, 0 },
    ACTS_FROM("loss_scale", ZCZ_REAL, ZCZ_LOSS_SCALE, 0, 0x1p126, "fixed loss scale; 0: dynamic"),
    ACTS_FROM("initial_scale_power", ZCZ_COUNT, ZCZ_SCALE_POWER, 0, 126,
              "the first loss scale is 2 to this power"),
    ACTS_FROM("loss_scale_window", ZCZ_COUNT, ZCZ_SCALE_WINDOW, 1, STEPS_MAX,
              "steps without overflow until it is doubled"),
    ACTS_FROM("hysteresis", ZCZ_COUNT, ZCZ_HYSTERESIS, 1, STEPS_MAX,
              "overflows until it is halved"),
    ACTS("consecutive_hysteresis", ZCZ_BOOL, ZCZ_CONSECUTIVE,
         "a step without overflow refills the hysteresis"),
    ACTS_FROM("min_loss_scale", ZCZ_REAL, ZCZ_MIN_SCALE, 0x1p-126, 0x1p126,
              "an overflow that would halve it below this ends the run"),
    IGNORED("auto_cast", ZCZ_BOOL, "the trainer casts what it computes with"),
    REFUSED("fp16_master_weights_and_grads", ZCZ_BOOL, "masters are fp32"),
    END,
};

static const struct zcz_row bf16_rows[] = {
    { "enabled", ZCZ_BOOL, ZCZ_BF16, 0, 0, NULL, NULL, "parameters and gradients are bf16", NULL,
      NULL, LEFT, 0 },
    IGNORED("immediate_grad_update", ZCZ_BOOL, "gradients are added as they arrive"),
    IGNORED("check_grad_overflow", ZCZ_BOOL,
            "a step with a gradient that is not finite is always skipped"),
    IGNORED("check_overflow", ZCZ_BOOL,
            "a step with a gradient that is not finite is always skipped"),
    REFUSED("bf16_master_weights_and_grads", ZCZ_BOOL, "masters are fp32"),
    REFUSED("bf16_optimizer_states", ZCZ_BOOL,
            "moments in bf16 are zshard.moments (zgpt --moments)"),
    END,
};

static const struct zcz_row data_types_rows[] = {
    { .key = "grad_accum_dtype",
      .kind = ZCZ_WORD,
      .at = ZCZ_GRAD_DTYPE,
      .words = "fp32 fp16 bf16",
      .does = "gradients of micro-steps are added in fp32" },
    REFUSED("param_dtype", ZCZ_NEVER, "fp16 and bf16 determine the dtype of parameters"),
    IGNORED("buffer_dtype", ZCZ_TEXT, OF_PYTHON),
    IGNORED("keep_in_fp32_modules", ZCZ_ANY, OF_PYTHON),
    END,
};

static const struct zcz_row checkpointing_rows[] = {
    IGNORED("partition_activations", ZCZ_BOOL,
            "no activation exists on two ranks, so there is nothing to partition"),
    ACTS("cpu_checkpointing", ZCZ_BOOL, ZCZ_CPU_CHECKPOINTING, "for the trainer"),
    IGNORED("number_checkpoints", ZCZ_COUNT, "one checkpoint is kept for each block"),
    IGNORED("contiguous_memory_optimization", ZCZ_BOOL, "activations are one block of memory"),
    IGNORED("synchronize_checkpoint_boundary", ZCZ_BOOL, OF_PYTHON),
    IGNORED("profile", ZCZ_BOOL, OF_LOG),
    END,
};

static const struct zcz_row aio_rows[] = {
    IGNORED("block_size", ZCZ_COUNT, OF_DAEMON " (page_elems)"),
    IGNORED("queue_depth", ZCZ_COUNT, OF_DAEMON),
    IGNORED("intra_op_parallelism", ZCZ_COUNT, OF_DAEMON),
    IGNORED("thread_count", ZCZ_COUNT, OF_DAEMON),
    IGNORED("single_submit", ZCZ_BOOL, OF_DAEMON),
    IGNORED("overlap_events", ZCZ_BOOL, OF_DAEMON),
    IGNORED("use_gds", ZCZ_BOOL, OF_DAEMON),
    END,
};

/* Keys of ours. DeepSpeed ignores the block. */
static const struct zcz_row zshard_rows[] = {
    { .key = "clip_mode",
      .kind = ZCZ_WORD,
      .at = ZCZ_CLIP_MODE,
      .words = "global tensor none",
      .does = "how gradients are clipped (docs/ENGINE.md)" },
    ACTS_FROM("clip_tensor_ratio", ZCZ_REAL, ZCZ_CLIP_RATIO, 0, 1e6,
              "clipping by tensor: limit of a norm over its average"),
    ACTS_FROM("clip_tensor_beta", ZCZ_REAL, ZCZ_CLIP_BETA, 0, 1,
              "clipping by tensor: what an average keeps of itself in a step"),
    ACTS_FROM("clip_tensor_warmup", ZCZ_COUNT, ZCZ_CLIP_WARMUP, 0, STEPS_MAX,
              "clipping by tensor: steps that are clipped globally first"),
    { .key = "moments",
      .kind = ZCZ_WORD,
      .at = ZCZ_MOMENTS,
      .words = "fp32 bf16 8bit 8bit-lo",
      .does = "how the optimizer's moments are stored (docs/OPTIMIZERS.md)" },
    { .key = "muon_engine",
      .kind = ZCZ_WORD,
      .at = ZCZ_MUON_ENGINE,
      .words = "cpu gpu gpu-bf16",
      .does = "what orthogonalizes the matrices of Muon (docs/OPTIMIZERS.md)" },
    ACTS("grad_ring", ZCZ_BOOL, ZCZ_GRAD_RING,
         "gradients of pages whose state is on NVMe are not held (docs/OVERLAP.md)"),
    ACTS_FROM("grad_ring_keep", ZCZ_COUNT, ZCZ_GRAD_RING_KEEP, 0, 100,
              "grad_ring: percent of these pages whose gradients are held nevertheless"),
    { .key = "node_gather",
      .kind = ZCZ_WORD,
      .at = ZCZ_NODE_GATHER,
      .words = "comm host auto",
      .does = "how the ranks of a node gather parameters from each other (docs/ENGINE.md)" },
    END,
};

const struct zcz_row zcz_config_rows[] = {
    { "train_batch_size", ZCZ_COUNT, ZCZ_TRAIN_BATCH, 1, STEPS_MAX, NULL, NULL,
      "samples of a step, over all ranks", NULL, NULL, LEFT, 0 },
    { "train_micro_batch_size_per_gpu", ZCZ_COUNT, ZCZ_MICRO_BATCH, 1, STEPS_MAX, NULL, NULL,
      "samples that a rank computes at a time", NULL, NULL, LEFT, 0 },
    { "gradient_accumulation_steps", ZCZ_COUNT, ZCZ_ACCUMULATION, 1, STEPS_MAX, NULL, NULL,
      "micro-steps of a step", NULL, NULL, LEFT, 0 },
    { "gradient_clipping", ZCZ_REAL, ZCZ_CLIP, 0, 1e30, NULL, NULL,
      "limit of the gradient's global norm; 0: off", NULL, NULL, LEFT, 0 },
    { .key = "communication_data_type",
      .kind = ZCZ_WORD,
      .at = ZCZ_COMM_DTYPE,
      .words = "fp32 fp16 bf16",
      .does = "gradients are exchanged in the dtype of the parameters" },
    GROUP_OF("optimizer", zcz_optimizer_rows),
    GROUP_OF("scheduler", zcz_scheduler_rows),
    GROUP_OF("fp16", fp16_rows),
    GROUP_OF("bf16", bf16_rows),
    GROUP_OF("bfloat16", bf16_rows),
    GROUP_OF("zero_optimization", zero_rows),
    GROUP_OF("data_types", data_types_rows),
    GROUP_OF("activation_checkpointing", checkpointing_rows),
    GROUP_OF("aio", aio_rows),
    GROUP_OF("zshard", zshard_rows),
    IGNORED("steps_per_print", ZCZ_COUNT, OF_LOG),
    IGNORED("wall_clock_breakdown", ZCZ_BOOL, OF_LOG),
    IGNORED("memory_breakdown", ZCZ_BOOL, OF_LOG),
    IGNORED("dump_state", ZCZ_BOOL, OF_LOG),
    IGNORED("log_level", ZCZ_ANY, OF_LOG),
    IGNORED("timers", ZCZ_ANY, OF_LOG),
    IGNORED("comms_logger", ZCZ_ANY, OF_LOG),
    IGNORED("flops_profiler", ZCZ_ANY, OF_LOG),
    IGNORED("tensorboard", ZCZ_ANY, OF_LOG),
    IGNORED("wandb", ZCZ_ANY, OF_LOG),
    IGNORED("comet", ZCZ_ANY, OF_LOG),
    IGNORED("csv_monitor", ZCZ_ANY, OF_LOG),
    IGNORED("monitor_config", ZCZ_ANY, OF_LOG),
    IGNORED("prescale_gradients", ZCZ_BOOL, OF_AVERAGE),
    IGNORED("gradient_predivide_factor", ZCZ_REAL, OF_AVERAGE),
    IGNORED("sparse_gradients", ZCZ_BOOL, "gradients are exchanged dense, with the same result"),
    IGNORED("disable_allgather", ZCZ_BOOL, OF_UNITS),
    IGNORED("seq_parallel_communication_data_type", ZCZ_TEXT,
            "sequences are not split across ranks"),
    IGNORED("zero_allow_untested_optimizer", ZCZ_BOOL, "only built-in optimizers exist"),
    IGNORED("zero_force_ds_cpu_optimizer", ZCZ_BOOL,
            "the arithmetic of the step is the same everywhere"),
    IGNORED("disable_python_gc", ZCZ_BOOL, OF_PYTHON),
    IGNORED("dataloader_drop_last", ZCZ_BOOL, "the trainer reads its data"),
    IGNORED("vocabulary_size", ZCZ_COUNT, "the trainer knows its model"),
    IGNORED("managed_gradient_accumulation", ZCZ_BOOL, "the engine counts micro-steps"),
    IGNORED("use_data_before_expert_parallelism", ZCZ_BOOL, "there is no expert parallelism"),
    IGNORED("checkpoint", ZCZ_ANY, OF_SAVE),
    IGNORED("load_universal_checkpoint", ZCZ_BOOL, OF_SAVE),
    IGNORED("nebula", ZCZ_ANY, OF_SAVE),
    IGNORED("datastates_ckpt", ZCZ_ANY, OF_SAVE),
    IGNORED("compile", ZCZ_ANY, OF_PYTHON),
    IGNORED("graph_harvesting", ZCZ_BOOL, OF_PYTHON),
    IGNORED("autotuning", ZCZ_ANY, "it is for DeepSpeed's launcher; use zctl plan"),
    IGNORED("hybrid_engine", ZCZ_ANY, "it is for inference"),
    IGNORED("pipeline", ZCZ_ANY, "there is no pipeline parallelism"),
    { .key = "gradient_allreduce_op",
      .kind = ZCZ_WORD,
      .words = "mean sum",
      .refused = "gradients are averaged",
      .because = OF_AVERAGE },
    REFUSED("amp", ZCZ_ANY, "Apex is not supported; use fp16 or bf16"),
    REFUSED("torch_autocast", ZCZ_ANY, "not supported; use fp16 or bf16"),
    REFUSED("elasticity", ZCZ_ANY,
            "it would change the batch; a job can resume with any number of ranks anyway"),
    REFUSED("sequence_parallel_size", ZCZ_ANY, "sequences are not split across ranks"),
    REFUSED("tensor_parallel", ZCZ_ANY, "matrices are not split across ranks"),
    REFUSED("expert_parallel", ZCZ_ANY, "there is no expert parallelism"),
    REFUSED("curriculum_learning", ZCZ_ANY, OTHER_MODEL),
    REFUSED("data_efficiency", ZCZ_ANY, OTHER_MODEL),
    REFUSED("compression_training", ZCZ_ANY, OTHER_MODEL),
    REFUSED("sparse_attention", ZCZ_NEVER, OTHER_MODEL),
    REFUSED("progressive_layer_drop", ZCZ_ANY, OTHER_MODEL),
    REFUSED("eigenvalue", ZCZ_ANY, OTHER_MODEL),
    REFUSED("quantize_training", ZCZ_ANY, OTHER_MODEL),
    REFUSED("weight_quantization", ZCZ_NEVER, OTHER_MODEL),
    END,
};
