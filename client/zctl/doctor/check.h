/*
 * check.h - the checks: one table, and functions of the view of the machine (machine.h).
 *
 * LEVELS. FAILED: the daemon will not start or will be killed, loses what it saved, or something
 * that was asked for cannot work. ADVICE: it works, and slower or less well than it could. SKIPPED:
 * the check does not apply here, or nothing could be found out. Only FAILED makes the exit status
 * 1.
 */
#ifndef ZCTL_DOCTOR_CHECK_H
#define ZCTL_DOCTOR_CHECK_H

#include "client/zctl/doctor/machine.h"

enum doctor_level { DOCTOR_OK, DOCTOR_SKIPPED, DOCTOR_ADVICE, DOCTOR_FAILED };

/** What a check found. `fix` is "" unless there is something to do. */
struct doctor_finding {
    enum doctor_level level;
    char found[400], fix[480];
};

/** Pure: reads the view and files below its root. It records one finding, the worst. */
typedef void doctor_check_fn(const struct doctor_machine *m, struct doctor_finding *f);

struct doctor_check {
    const char *name;
    doctor_check_fn *run;
    const char *fix; /* of a finding that has no other */
};

/** The table, in the order of the output. */
const struct doctor_check *doctor_checks(size_t *ret_n);
/** Runs one check. */
struct doctor_finding doctor_run(const struct doctor_check *check, const struct doctor_machine *m);

/** Record what was found, and what to do about it (in place of the row's text). */
void doctor_found(struct doctor_finding *f, enum doctor_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void doctor_fix(struct doctor_finding *f, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* check_access.c: the configuration, users, the socket */
doctor_check_fn doctor_config, doctor_user, doctor_socket_group, doctor_group_member,
    doctor_group_session, doctor_socket, doctor_socket_stale, doctor_version;
/* check_memory.c */
doctor_check_fn doctor_memory, doctor_cgroup, doctor_budgets, doctor_overcommit, doctor_memfd,
    doctor_huge_pages;
/* check_limits.c: of processes, CPUs and nodes */
doctor_check_fn doctor_memlock, doctor_nofile, doctor_numa, doctor_cpus, doctor_uring;
/* check_data.c: directories, file systems, drives */
doctor_check_fn doctor_data_directory, doctor_unit_paths, doctor_file_system, doctor_space,
    doctor_data_file, doctor_direct, doctor_drive, doctor_scheduler;
/* check_gpu.c: devices and their driver; check_cuda.c: this build, and libraries */
doctor_check_fn doctor_gpu_driver, doctor_gpu_devices, doctor_gpu_uvm, doctor_gpu_mode,
    doctor_gpu_mig, doctor_gpu_arch, doctor_gpu_budget, doctor_gpu_unit;
doctor_check_fn doctor_gpu_library, doctor_gpu_build, doctor_gpu_plugin, doctor_cublaslt,
    doctor_nccl;
/** False: *f says that there is no GPU. */
bool doctor_has_gpu(const struct doctor_machine *m, struct doctor_finding *f);

#endif
