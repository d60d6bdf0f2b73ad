"""libzclient's structs, constants and functions as ctypes has them.

Every function of zclient.h, zc_zero.h, zc_config.h and zc_safetensors.h is in `PROTOTYPES` with the types of its
arguments, and every struct is a class of its C name; the headers say what they mean. tests/abi/bind.py holds all of
it to what the C compiler says: a header that changes without this file fails there.
"""

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_short,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

# fmt: off

NAME_MAX = 63
DIMS_MAX = 8
NORM_BYTES = 80
POINTS_MAX = 3
MESSAGE_MAX = 224

F32, BF16, F16 = 1, 2, 3
ADAMW, ADAM, LION, SGD, ADAGRAD, MUON = 1, 2, 3, 4, 5, 6
MUON_RMS, MUON_SHAPE = 0, 1
MUON_CPU, MUON_GPU, MUON_GPU_BF16 = 0, 1, 2
GROUP_FROZEN, GROUP_NONE = 65535, 65534
MOMENTS_F32, MOMENTS_BF16, MOMENTS_Q8, MOMENTS_Q8_LO = 1, 2, 3, 4
HOST, NVME, GPU = 1, 2, 3
PARAM, MASTER, EXP_AVG, EXP_AVG_SQ, GRAD = 1, 2, 3, 4, 5
POINT_MEMORY, POINT_PREPARED, POINT_COMMITTED = 1, 2, 3
COMMIT_NO, COMMIT_STEP, COMMIT_PREPARE, COMMIT_PREPARED, COMMIT_DROP = 0, 1, 2, 3, 4
SCRUB_STATUS, SCRUB_START, SCRUB_PAUSE, SCRUB_RESUME, SCRUB_STOP = 0, 1, 2, 3, 4
NOTE_MAX = 65536
ZERO_NONE, ZERO_HOST, ZERO_NVME, ZERO_GPU = 0, 1, 2, 3
NODE_GATHER_COMM, NODE_GATHER_HOST, NODE_GATHER_AUTO = 0, 1, 2
CLIP_GLOBAL, CLIP_TENSOR, CLIP_NONE = 0, 1, 2
ZERO_EARLY, ZERO_SERVE, ZERO_OVERLAP = 1, 2, 3
STAGE_DDP, STAGE_1, STAGE_2, STAGE_3 = 0, 1, 2, 3


def struct(name: str, *fields: tuple[Any, str]) -> Any:
    """A struct of the headers, by its C name: (type, names separated by blanks), ..."""
    return type(name, (Structure,), {"_fields_": [(f, t) for t, names in fields
                                                  for f in names.split()]})


# ---- zclient.h

zc_options = struct("zc_options", (c_char_p, "socket program"),
                    (c_uint32, "connect_timeout_ms quiet_timeout_ms"),
                    (c_bool, "no_wait"))
zc_server = struct("zc_server", (c_uint32, "version page_elems block_elems shards_max"),
                   (c_uint8 * 16, "instance"), (c_uint64, "pid"), (c_char * 64, "server"),
                   (c_bool, "sums"))
zc_event = struct("zc_event", (c_int, "kind"), (c_uint64, "job"), (c_uint32, "rank"), (c_int, "code"),
                  (c_char_p, "text"))
zc_job_options = struct("zc_job_options", (c_char_p, "name"), (c_uint32, "rank world"),
                        (c_bool, "keep attach"), (c_uint64, "staging_bytes"),
                        (c_int, "offload_param offload_optimizer"), (c_uint64, "host_bytes_max"),
                        (c_uint32, "groups"), (c_bool, "durable"), (c_bool, "takeover"), (c_uint64, "epoch"),
                        (c_bool, "returns"), (c_uint32, "share"), (c_bool, "early"),
                        (c_int, "optimizer moments offload_grad"), (c_bool, "writable"), (c_char_p, "device"),
                        (c_uint32, "device_node"), (c_bool, "tensor_norms grad_ring"), (c_uint32, "grad_ring_keep"),
                        (c_bool, "grad_ring_limits"), (c_int, "muon_engine"))
zc_point = struct("zc_point", (c_int, "kind"), (c_uint64, "iterations applied"))
zc_job = struct("zc_job", (c_uint64, "id iterations applied"), (c_void_p, "staging"),
                (c_uint64, "staging_bytes epoch"), (c_uint32, "world npoints"),
                (zc_point * POINTS_MAX, "points"))
zc_tensor = struct("zc_tensor", (c_char_p, "name"), (c_uint64, "first"), (c_uint32, "ndims"),
                   (c_uint64 * DIMS_MAX, "dims"), (c_uint32, "group"), (c_bool, "muon"))
zc_unit = struct("zc_unit", (c_uint32, "index"), (c_char_p, "name"), (c_uint64, "elems"),
                 (c_int, "dtype grad_dtype"), (c_bool, "frozen quantized"),
                 (POINTER(zc_tensor), "tensors"), (c_uint32, "ntensors"))
zc_range = struct("zc_range", (c_uint32, "unit"), (c_uint64, "first count"))
zc_placement = struct("zc_placement", (c_uint64, "arena_bytes ring_bytes host_bytes nvme_bytes "
                                              "iterations applied"), (c_bool, "early"),
                      (c_uint64, "grads_on_nvme"), (c_void_p, "arena"), (c_uint64, "gpu_params"),
                      (c_char * 192, "gpu_why"), (c_uint64, "own_at own_bytes"), (c_uint32, "node"),
                      (c_uint64, "grads_ringed"))
zc_gpu_memory = struct("zc_gpu_memory", (c_int, "mem_fd mark_fd"), (c_uint64, "bytes"))
zc_view = struct("zc_view", (c_void_p, "data"), (c_uint64, "bytes version offset"))
zc_push = struct("zc_push", (c_uint64, "shard step"), (c_uint32, "micro"), (c_bool, "add"),
                 (c_int, "dtype"), (c_uint64, "first count"), (c_void_p, "staged"))
zc_norm = struct("zc_norm", (c_uint8 * NORM_BYTES, "sum_of_squares"), (c_uint64, "nonfinite"))
zc_group = struct("zc_group", (c_double, "lr beta1 beta2 eps weight_decay momentum dampening lr_decay"),
                  (c_bool, "nesterov"), (c_int, "muon_scale"))
zc_job_about = struct("zc_job_about", (c_uint32, "clip_mode"), (c_double, "clip clip_ratio"),
                      (c_uint64, "clip_warm_until"), (c_int, "early"),
                      (c_uint64, "frozen_tensors frozen_bytes"))
zc_step = struct("zc_step", (c_uint64, "step"), (c_double, "scale"), (POINTER(zc_group), "groups"),
                 (c_uint32, "ngroups"), (c_int, "commit"), (c_uint32, "timeout_ms"),
                 (c_bool, "factors limits sums"))
zc_class = struct("zc_class", (zc_group, "group"), (c_double, "factor"), (c_uint64, "t"))
zc_classes = struct("zc_classes", (POINTER(zc_class), "classes"), (c_uint32, "nclasses"),
                    (POINTER(c_uint32), "class_of"), (c_uint32, "ntensors"))
zc_stepped = struct("zc_stepped", (c_uint64, "iterations applied"), (c_int, "commit_code"),
                    (c_char * MESSAGE_MAX, "commit_text"))
zc_snapshot = struct("zc_snapshot", (c_char_p, "job name"), (c_bool, "next"),
                     (c_uint32, "retain timeout_ms"))
zc_snapshot_row = struct("zc_snapshot_row",
                         (c_uint64, "iterations applied created_unix bytes own_bytes"),
                         (c_uint32, "world uid"), (c_char * (NAME_MAX + 1), "job name"))
zc_reader = struct("zc_reader", (c_uint64, "id iterations applied"),
                   (c_uint32, "units groups world"), (c_int, "optimizer moments"), (c_void_p, "staging"),
                   (c_uint64, "staging_bytes"))
zc_shard_row = struct("zc_shard_row",
                      (c_uint64, "id first count version bytes host_bytes nvme_bytes"),
                      (c_uint32, "pins rank uid"), (c_char * (NAME_MAX + 1), "job unit"),
                      (c_char * 8, "dtype tier"))
zc_job_row = struct("zc_job_row",
                    (c_uint64, "id iterations applied shards params host_bytes nvme_bytes "
                               "fetched_bytes pushed_bytes nvme_read_bytes nvme_written_bytes "
                               "committed_iterations committed_applied epoch host_state "
                               "host_state_target grads_nvme_bytes gpu_bytes"),
                    (c_uint32, "uid world attached snapshots share"), (c_bool, "keep durable committed"),
                    (c_char * (NAME_MAX + 1), "name"), (c_char * 16, "state"),
                    (c_char * 12, "optimizer"), (c_char * 8, "moments"), (c_char * 256, "error"),
                    (c_uint64, "muon_params muon_bytes"), (c_char * 80, "muon"),
                    (c_uint64, "muon_most_bytes"),
                    (c_char * 64, "clip"), (c_char * 96, "early"),
                    (c_uint64, "clip_warm_left frozen_tensors frozen_bytes"),
                    (c_uint64, "muon_gpu_bytes"), (c_char * 12, "muon_engine"),
                    (c_bool, "grad_ring"), (c_uint32, "grad_ring_keep"), (c_uint64, "grads_ringed"))
zc_tier_row = struct("zc_tier_row", (c_uint64, "budget used params grads state staging rings "
                                              "read_bytes_s write_bytes_s node_bytes spilled_bytes "
                                              "target moving device_free stranded"),
                     (c_char * 8, "name"), (c_char * 256, "detail"), (c_char * 128, "numa"),
                     (c_char * 256, "nodes stranded_by"))
zc_drive_row = struct("zc_drive_row",
                      (c_uint64, "number size_bytes held_bytes bytes_s start_bytes_s read_bytes written_bytes failed "
                                 "waits_ms"),
                      (c_char * 8, "node"), (c_char * 40, "state"), (c_char * 160, "why"), (c_char * 24, "device"),
                      (c_char * 256, "directory"), (c_uint64, "device_start_bytes discarded_bytes holed_bytes"),
                      (c_char * 160, "discard"))
zc_gauge = struct("zc_gauge", (c_uint64, "now area_ns busy_ns"))
zc_top_path = struct("zc_top_path",
                     (c_uint64, "read_bytes written_bytes transfers failed read_bytes_s "
                                "write_bytes_s depth"), (zc_gauge, "queue"))
zc_top_job = struct("zc_top_job",
                    (c_uint64, "now_ns id iterations applied host_bytes nvme_bytes fetched_bytes "
                               "pushed_bytes nvme_read_bytes nvme_written_bytes fetches hits "
                               "misses pushes pages page_ns compute_ns"),
                    (zc_gauge * 5, "stages"), (zc_gauge * 11, "waits"),
                    (zc_gauge, "drive_only asking"),
                    (c_uint32, "uid world attached late late_ranks late_rank"),
                    (c_uint64, "late_pid late_ms"), (c_char * (NAME_MAX + 1), "name"),
                    (c_char * 16, "state"))
zc_top_oldest = struct("zc_top_oldest", (c_uint64, "pid age_ms"), (c_uint32, "rank"),
                       (c_char * 32, "method"), (c_char * (NAME_MAX + 1), "job"),
                       (c_char * 64, "waits"))
zc_top = struct("zc_top", (c_uint64, "now_ns uptime_ms"),
                (c_uint32, "clients threads buffers gpu_threads ntiers npaths"),
                (zc_gauge, "computing compute_line buffers_used gpu gpu_line"), (zc_tier_row * 4, "tiers"),
                (zc_top_path * 8, "paths"), (zc_top_oldest, "oldest"))
zc_counter = struct("zc_counter", (c_uint64, "value"), (c_char * 64, "name"))
zc_reason = struct("zc_reason", (c_uint32, "level"), (c_char * 32, "id"), (c_char * 512, "text"), (c_char * 256, "fix"))
zc_health = struct("zc_health",
                   (c_uint64, "uptime_ms commit_iterations commit_ago_ms commit_us scrub_ago_ms scrub_bytes "
                              "scrub_bad_pages turn_max_us turn_p999_us"),
                   (c_uint32, "errors clients clients_max jobs saved ntiers"), (c_bool, "committed scrubbed"),
                   (c_char * (NAME_MAX + 1), "commit_job"), (c_char * 16, "scrub_state"),
                   (zc_tier_row * 4, "tiers"))
zc_message = struct("zc_message", (c_char * MESSAGE_MAX, "text"))
zc_scrub = struct("zc_scrub", (c_char * 16, "state"),
                  (c_uint64, "bytes total_bytes bad_pages elapsed_ms eta_ms rate_bytes"))
zc_fsck = struct("zc_fsck",
                 (c_uint64, "jobs versions snapshots rows pages bytes sequence problems_total"))
zc_df_row = struct("zc_df_row", (c_char * (NAME_MAX + 1), "job"),
                   (c_uint64, "committed prepared snapshots working reserved shared"),
                   (c_uint32, "uid"))
zc_quota = struct("zc_quota", (c_uint64, "host_bytes host_max nvme_bytes nvme_max gpu_bytes gpu_max"),
                  (c_uint32, "uid jobs jobs_max"), (c_bool, "own exempt set_host set_nvme set_gpu set_jobs"))
zc_setting = struct("zc_setting", (c_char * 32, "name"), (c_char * 4096, "value restart"), (c_int, "source"),
                    (c_bool, "pending"))
zc_log_level = struct("zc_log_level", (c_char * 16, "name"))
zc_log_event = struct("zc_log_event", (c_uint64, "number time_ms"), (c_uint32, "uid"), (c_bool, "has_uid lost"),
                      (c_char * 8, "level"), (c_char * 32, "event"), (c_char * (NAME_MAX + 1), "job"),
                      (c_char * 512, "text"))
zc_restart_row = struct("zc_restart_row", (c_char * (NAME_MAX + 1), "job"), (c_uint32, "uid attached"),
                        (c_char * 16, "fate"), (c_char * 64, "why"))
zc_df = struct("zc_df", (c_uint64, "total meta free catalog_bytes"))

DONE = CFUNCTYPE(None, c_void_p, c_int)
EVENT = CFUNCTYPE(None, c_void_p, POINTER(zc_event))

# ---- zc_zero.h

zc_loss_scale = struct("zc_loss_scale", (c_bool, "dynamic"), (c_double, "fixed"),
                       (c_uint32, "power window hysteresis"), (c_bool, "consecutive"),
                       (c_double, "min"))
zc_zero_options = struct("zc_zero_options", (c_void_p, "comm"), (c_char_p, "socket job"),
                         (c_bool, "keep durable"), (c_uint64, "commit_every"), (c_bool, "resume"),
                         (c_int, "offload_param offload_optimizer"),
                         (c_uint32, "micro_steps"), (c_double, "clip"), (c_int, "optimizer moments"),
                         (c_double, "beta1 beta2 eps momentum dampening lr_decay"),
                         (c_bool, "nesterov"),
                         (c_double * 64, "weight_decay"),
                         (c_uint32, "groups prefetch_units overlap share timeout_ms"), (c_char_p, "kernels device"),
                         (c_int, "offload_grad stage"), (c_uint32, "group_ranks"),
                         (c_bool, "accumulate_local vertical keep_gathered"),
                         (c_uint64, "persist_elems live_elems reuse_elems prefetch_elems "
                                    "reduce_elems"),
                         (c_bool, "reduce_waits quantize_gather"), (zc_loss_scale, "loss_scale"),
                         (c_uint64, "memory_bytes"), (c_bool, "gather_alone step_unused resume_if_there"),
                         (c_uint32, "poll_ms"),
                         (c_void_p, "alloc free memory_arg"), (c_bool, "optimizer_late"),
                         (c_void_p, "stream"), (c_uint32, "reconnect_ms"), (c_int, "node_gather clip_mode"),
                         (c_double, "clip_tensor_ratio clip_tensor_beta"), (c_uint64, "clip_tensor_warmup"),
                         (c_int, "muon_scale"), (c_bool, "grad_ring"), (c_uint32, "grad_ring_keep"),
                         (c_int, "muon_engine"), (c_bool, "announces"))
zc_zero_stepped = struct("zc_zero_stepped", (c_uint64, "iterations applied"),
                         (c_double, "grad_norm clip_scale"), (c_bool, "skipped"),
                         (c_double, "loss_scale"), (c_uint32, "left_alone"))
zc_zero_bytes = struct("zc_zero_bytes", (c_uint64, "param grad state daemon_param daemon_grad "
                                                   "daemon_state gathered reducing"))
zc_zero_stats = struct("zc_zero_stats",
                       (c_uint64, "fetched_bytes pushed_bytes nvme_read_bytes nvme_written_bytes "
                                  "host_bytes nvme_bytes gpu_bytes gather_buffer_bytes "
                                  "grad_buffer_bytes device_bytes comm_bytes comm_gather_bytes "
                                  "comm_reduce_bytes comm_across_bytes"),
                       (c_double, "stall_seconds"), (c_uint64, "grads_nvme_bytes pinned_bytes gpu_params_bytes"),
                       (c_char_p, "gpu_why"), (c_uint64, "gather_up_bytes comm_nodes_bytes"),
                       (c_int, "node_gather"), (c_char_p, "node_gather_why"),
                       (c_uint64, "gather_down_bytes"))

zc_comm = struct("zc_comm", (c_void_p, "ops"), (c_uint32, "rank world"), (c_void_p, "arg"))

zc_comm_ops = struct("zc_comm_ops", (c_char_p, "name"), (c_void_p, "all_gather exchange test close error device split "
                                                                 "name_next other"))
COMM_START = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t, POINTER(c_void_p))
COMM_TEST = CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_bool))
COMM_ERROR = CFUNCTYPE(c_char_p, c_void_p)

zc_zero_step_how = struct("zc_zero_step_how", (POINTER(zc_group), "groups"), (c_uint32, "ngroups"),
                          (POINTER(c_uint32), "group_of"), (POINTER(c_float), "factors"),
                          (c_double, "divide clip"))
zc_zero_norm = struct("zc_zero_norm", (c_double, "sum_of_squares"), (c_float, "most"), (c_uint64, "nonfinite"))

ZERO_INIT = CFUNCTYPE(c_int, c_void_p, c_uint32, c_uint64, c_uint64, POINTER(c_float))

# ---- zc_config.h

zc_lr_schedule = struct("zc_lr_schedule", (c_int, "kind"), (c_bool, "linear"),
                        (c_double, "min_lr max_lr min_ratio end_ratio"),
                        (c_uint64, "warmup_steps total_steps"))
zc_config_line = struct("zc_config_line", (c_char_p, "key value"), (c_bool, "ignored"), (c_char_p, "text"))
zc_zero_config = struct("zc_zero_config", (zc_zero_options, "options"), (c_uint32, "left"),
                        (c_uint64, "train_batch micro_batch"), (c_int, "dtype"), (c_double, "lr"),
                        (zc_lr_schedule, "schedule"), (zc_loss_scale, "loss_scale"),
                        (c_bool, "quantize_frozen checkpointing cpu_checkpointing"), (POINTER(zc_config_line), "lines"),
                        (c_size_t, "nlines"))

# ---- zc_safetensors.h

zc_st_tensor = struct("zc_st_tensor", (c_char_p, "name"), (c_int, "dtype"), (c_uint32, "ndims"),
                      (POINTER(c_uint64), "dims"), (c_uint64, "elems"))
zc_st_pair = struct("zc_st_pair", (c_char_p, "key value"))

STRUCTS = [value for name, value in sorted(globals().items())
           if name.startswith("zc_") and isinstance(value, type)]

# ---- the functions

P = POINTER
HANDLE = c_void_p
CALL = (DONE, c_void_p)
ERROR_TEXT: tuple[Any, ...] = (c_void_p, c_size_t)  # a buffer of the caller's and its length


def asynchronous(name: str, *args: Any) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """A call and its blocking form."""
    return {name: (c_int, (HANDLE, *args, *CALL)), name + "_wait": (c_int, (HANDLE, *args))}


PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "zc_open": (c_int, (P(HANDLE), P(zc_options))),
    "zc_close": (None, (HANDLE,)),
    "zc_error": (c_char_p, (HANDLE,)),
    "zc_strerror": (c_char_p, (c_int,)),
    "zc_exit_code": (c_int, (c_int,)),
    "zc_server": (P(zc_server), (HANDLE,)),
    "zc_fd": (c_int, (HANDLE,)),
    "zc_events": (c_short, (HANDLE,)),
    "zc_poll": (c_int, (HANDLE, c_int)),
    "zc_on_event": (None, (HANDLE, EVENT, c_void_p)),
    **asynchronous("zc_job_open", P(zc_job_options), P(zc_job)),
    **asynchronous("zc_unit_define", c_uint64, P(zc_unit)),
    **asynchronous("zc_register", c_uint64, P(zc_range), c_uint32, P(c_uint64)),
    **asynchronous("zc_ready", c_uint64, P(c_uint64), c_uint32, P(zc_placement)),
    **asynchronous("zc_gpu_share", c_uint64, P(zc_gpu_memory)),
    **asynchronous("zc_job_close", c_uint64),
    **asynchronous("zc_job_destroy", c_char_p),
    **asynchronous("zc_job_share", c_char_p, c_uint32),
    **asynchronous("zc_tier_set", c_char_p, c_uint64),
    **asynchronous("zc_drive_set", c_uint32, c_bool),
    **asynchronous("zc_quota_set", P(zc_quota)),
    "zc_quotas_wait": (c_int, (HANDLE, P(P(zc_quota)), P(c_size_t))),
    "zc_settings_wait": (c_int, (HANDLE, P(P(zc_setting)), P(c_size_t))),
    "zc_log_level_wait": (c_int, (HANDLE, c_char_p, P(zc_log_level))),
    "zc_log_events_wait": (c_int, (HANDLE, c_uint64, P(P(zc_log_event)), P(c_size_t))),
    "zc_restart_wait": (c_int, (HANDLE, c_bool, P(P(zc_restart_row)), P(c_size_t))),
    **asynchronous("zc_write", c_uint64, c_int, c_uint64, c_uint64, c_void_p),
    **asynchronous("zc_read", c_uint64, c_int, c_uint64, c_uint64, c_void_p),
    **asynchronous("zc_fetch", P(c_uint64), c_uint32, c_uint64, c_uint32, P(zc_view)),
    "zc_release": (c_int, (HANDLE, P(c_uint64), c_uint32)),
    **asynchronous("zc_push", P(zc_push)),
    "zc_norm_merge": (None, (P(zc_norm), P(zc_norm))),
    "zc_norm_value": (c_double, (P(zc_norm),)),
    **asynchronous("zc_norms", c_uint64, c_uint64, P(zc_norm)),
    **asynchronous("zc_tensor_norms", c_uint64, c_uint64, c_uint32, P(c_uint8)),
    **asynchronous("zc_job_about", c_uint64, P(zc_job_about)),
    **asynchronous("zc_unit_norms", c_uint64, c_uint64, c_uint32, c_uint32, P(c_uint8)),
    **asynchronous("zc_unit_sums", c_uint64, c_uint64, c_uint32, P(c_uint8), c_uint32),
    **asynchronous("zc_step_tensors", c_uint64, c_uint64, c_bool, P(c_double), c_uint32),
    "zc_limit_factor": (c_double, (c_double, c_double)),
    **asynchronous("zc_step", c_uint64, P(zc_step), P(zc_stepped)),
    **asynchronous("zc_step_begin", c_uint64, P(zc_step), c_uint32),
    **asynchronous("zc_step_classes", c_uint64, c_uint64, P(zc_classes)),
    **asynchronous("zc_job_optimizer", c_uint64, c_int, c_int),
    **asynchronous("zc_abandon", c_uint64, c_uint64),
    **asynchronous("zc_skip", c_uint64, c_uint64, c_int, c_uint32, P(zc_stepped)),
    **asynchronous("zc_commit", c_uint64, c_int, c_uint64, c_uint32, P(zc_point)),
    **asynchronous("zc_progress", c_uint64, c_uint64, c_uint64),
    **asynchronous("zc_note_put", c_uint64, c_bool, c_void_p, c_size_t),
    "zc_note_get_wait": (c_int, (HANDLE, c_uint64, c_bool, c_void_p, P(c_size_t))),
    **asynchronous("zc_snapshot", P(zc_snapshot), P(zc_snapshot_row)),
    **asynchronous("zc_rollback", c_char_p, c_char_p, P(zc_snapshot_row)),
    **asynchronous("zc_clone", c_char_p, c_char_p, c_char_p, P(zc_snapshot_row)),
    **asynchronous("zc_snapshot_destroy", c_char_p, c_char_p),
    **asynchronous("zc_reader_open", c_char_p, c_char_p, c_uint64, P(zc_reader)),
    "zc_reader_unit_wait": (c_int, (HANDLE, c_uint64, c_uint32, P(P(zc_unit)))),
    **asynchronous("zc_reader_read", c_uint64, c_uint32, c_int, c_uint64, c_uint64, c_void_p),
    **asynchronous("zc_reader_close", c_uint64),
    "zc_list_wait": (c_int, (HANDLE, c_char_p, P(P(zc_shard_row)), P(c_size_t))),
    "zc_jobs_wait": (c_int, (HANDLE, c_char_p, P(P(zc_job_row)), P(c_size_t))),
    "zc_tiers_wait": (c_int, (HANDLE, P(P(zc_tier_row)), P(c_size_t))),
    "zc_drives_wait": (c_int, (HANDLE, P(P(zc_drive_row)), P(c_size_t))),
    "zc_stat_wait": (c_int, (HANDLE, P(P(zc_counter)), P(c_size_t))),
    "zc_top_wait": (c_int, (HANDLE, c_char_p, P(zc_top), P(P(zc_top_job)), P(c_size_t))),
    "zc_health_wait": (c_int, (HANDLE, P(zc_health), P(P(zc_reason)), P(c_size_t))),
    "zc_metrics_wait": (c_int, (HANDLE, c_int, P(c_char_p), P(c_size_t))),
    "zc_snapshots_wait": (c_int, (HANDLE, c_char_p, P(P(zc_snapshot_row)), P(c_size_t))),
    "zc_scrub_wait": (c_int, (HANDLE, c_int, c_uint64, P(zc_scrub), P(P(zc_message)), P(c_size_t))),
    "zc_fsck_wait": (c_int, (HANDLE, P(zc_fsck), P(P(zc_message)), P(c_size_t))),
    "zc_df_wait": (c_int, (HANDLE, P(zc_df), P(P(zc_df_row)), P(c_size_t))),
    "zc_rows_free": (None, (c_void_p,)),
    **asynchronous("zc_ping"),
    # zc_zero.h
    "zc_comm_open": (c_int, (P(c_void_p), c_char_p, *ERROR_TEXT)),
    "zc_comm_close": (None, (c_void_p, c_bool)),
    "zc_zero_defaults": (None, (P(zc_zero_options),)),
    "zc_zero_open": (c_int, (P(HANDLE), P(zc_zero_options))),
    "zc_zero_close": (None, (HANDLE, c_bool)),
    "zc_zero_error": (c_char_p, (HANDLE,)),
    "zc_zero_add_unit": (c_int, (HANDLE, P(zc_unit))),
    "zc_zero_start": (c_int, (HANDLE, ZERO_INIT, c_void_p)),
    "zc_zero_progress": (c_int, (HANDLE, P(c_uint64), P(c_uint64))),
    "zc_zero_gather": (c_int, (HANDLE, c_uint32, P(c_void_p))),
    "zc_zero_release": (c_int, (HANDLE, c_uint32)),
    "zc_zero_grad": (c_int, (HANDLE, c_uint32, P(P(c_float)))),
    "zc_zero_reduce": (c_int, (HANDLE, c_uint32)),
    "zc_zero_step": (c_int, (HANDLE, c_double, P(zc_zero_stepped))),
    "zc_zero_loss_scale": (c_double, (HANDLE,)),
    "zc_zero_announce": (c_int, (HANDLE, c_double)),
    "zc_zero_announce_by": (c_int, (HANDLE, P(zc_zero_step_how))),
    "zc_zero_commit": (c_int, (HANDLE,)),
    "zc_zero_note_put": (c_int, (HANDLE, c_bool, c_void_p, c_size_t)),
    "zc_zero_note_get": (c_int, (HANDLE, c_bool, c_void_p, P(c_size_t))),
    "zc_zero_stream": (c_void_p, (HANDLE,)),
    "zc_zero_device": (c_char_p, (HANDLE,)),
    "zc_zero_device_bytes": (c_uint64, (HANDLE,)),
    "zc_zero_sum": (c_int, (HANDLE, P(c_double), c_uint32)),
    "zc_zero_poll": (c_int, (HANDLE,)),
    "zc_zero_read": (c_int, (HANDLE, c_uint32, c_int, c_uint64, c_uint64, P(c_float))),
    "zc_zero_bytes": (None, (HANDLE, P(zc_zero_bytes))),
    "zc_zero_stats": (c_int, (HANDLE, P(zc_zero_stats))),
    "zc_zero_micro": (c_int, (HANDLE, c_bool)),
    "zc_zero_micro_end": (c_int, (HANDLE,)),
    "zc_zero_reduce_of": (c_int, (HANDLE, c_uint32, P(c_bool), c_uint32)),
    "zc_zero_grad_add": (c_int, (HANDLE, c_uint32, c_uint64, c_uint64, c_int, c_void_p)),
    "zc_zero_abandon": (c_int, (HANDLE,)),
    "zc_zero_freeze": (c_int, (HANDLE, c_uint32, c_bool)),
    "zc_zero_step_by": (c_int, (HANDLE, P(zc_zero_step_how), P(zc_zero_stepped))),
    "zc_zero_tensor_steps": (c_int, (HANDLE, c_uint32, P(c_uint64))),
    "zc_zero_slice": (c_int, (HANDLE, c_uint32, P(c_uint64), P(c_uint64))),
    "zc_zero_park": (c_int, (HANDLE,)),
    "zc_zero_set_tensor_steps": (c_int, (HANDLE, c_uint32, P(c_uint64), c_uint32)),
    "zc_zero_norms": (c_int, (HANDLE, P(zc_zero_norm), c_uint32)),
    "zc_zero_norm": (c_int, (HANDLE, P(c_double))),
    "zc_zero_optimizer": (c_int, (HANDLE, c_int, c_int)),
    "zc_zero_gather_into": (c_int, (HANDLE, c_uint32, c_void_p)),
    "zc_zero_prefetch": (c_int, (HANDLE, c_uint32)),
    "zc_zero_read_on": (c_int, (HANDLE, c_int, c_uint32, c_int, c_uint64, c_uint64, c_int, c_void_p)),
    "zc_zero_write_on": (c_int, (HANDLE, c_int, c_uint32, c_int, c_uint64, c_uint64, c_int, c_void_p)),
    "zc_zero_interrupt": (None, (HANDLE,)),
    "zc_zero_failed": (c_bool, (HANDLE,)),
    "zc_zero_group_defaults": (None, (c_int, P(zc_group))),
    "zc_comm_from_ops": (c_int, (P(c_void_p), c_void_p, c_void_p, c_uint32, c_uint32)),
    # zc_config.h
    "zc_lr_at": (c_double, (P(zc_lr_schedule), c_double, c_uint64)),
    "zc_zero_config_load": (c_int, (P(P(zc_zero_config)), c_char_p, c_uint32, *ERROR_TEXT)),
    "zc_zero_config_parse": (c_int, (P(P(zc_zero_config)), c_char_p, c_size_t, c_uint32, *ERROR_TEXT)),
    "zc_zero_config_free": (None, (P(zc_zero_config),)),
    # zc_safetensors.h
    "zc_st_dtype_name": (c_char_p, (c_int,)),
    "zc_st_dtype_bytes": (c_size_t, (c_int,)),
    "zc_st_open": (c_int, (P(HANDLE), c_char_p, *ERROR_TEXT)),
    "zc_st_close": (None, (HANDLE,)),
    "zc_st_count": (c_size_t, (HANDLE,)),
    "zc_st_at": (P(zc_st_tensor), (HANDLE, c_size_t)),
    "zc_st_find": (P(zc_st_tensor), (HANDLE, c_char_p)),
    "zc_st_metadata": (c_char_p, (HANDLE, c_char_p)),
    "zc_st_read": (c_int, (HANDLE, P(zc_st_tensor), c_uint64, c_uint64, c_void_p, *ERROR_TEXT)),
    "zc_st_read_f32": (c_int, (HANDLE, P(zc_st_tensor), c_uint64, c_uint64, P(c_float), *ERROR_TEXT)),
    "zc_st_to_f32": (c_int, (c_int, c_void_p, c_uint64, P(c_float))),
    "zc_st_from_f32": (c_int, (c_int, P(c_float), c_uint64, c_void_p)),
    "zc_st_create": (c_int, (P(HANDLE), c_char_p, P(zc_st_tensor), c_size_t, P(zc_st_pair), c_size_t,
                             *ERROR_TEXT)),
    "zc_st_append": (c_int, (HANDLE, c_void_p, c_size_t, *ERROR_TEXT)),
    "zc_st_commit": (c_int, (HANDLE, *ERROR_TEXT)),
    "zc_st_discard": (None, (HANDLE,)),
}
