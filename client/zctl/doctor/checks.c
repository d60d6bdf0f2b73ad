#include "base/util.h"
#include "client/zctl/doctor/check.h"

static const struct doctor_check checks[] = {
    { "config", doctor_config, "Correct that line. zshardd.conf(5) lists the options." },
    { "user", doctor_user, "Run: systemd-sysusers" },
    { "data-directory", doctor_data_directory, "Name another directory with data = \"DIR\"." },
    { "unit-paths", doctor_unit_paths, "Run: systemctl edit zshardd" },
    { "file-system", doctor_file_system,
      "Set data to a directory on a local drive with ext4 or xfs." },
    { "space", doctor_space, "Lower nvme_bytes, or use another drive (data, paths)." },
    { "data-file", doctor_data_file,
      "A data file is never cut at a start: set nvme_bytes to at least its size, or make it "
      "smaller "
      "with zshardd --shrink N:SIZE." },
    { "o-direct", doctor_direct,
      "Use a file system with O_DIRECT, such as ext4 or xfs: otherwise pages pass through the page "
      "cache, which takes memory and time." },
    { "drive", doctor_drive,
      "Set data to a directory on an NVMe drive: state that is streamed moves at the speed of this "
      "one." },
    { "scheduler", doctor_scheduler, "Set the I/O scheduler to none." },
    { "memory", doctor_memory,
      "Lower host_bytes: trainers and the system need memory too. auto is a quarter of what is "
      "available." },
    { "cgroup", doctor_cgroup,
      "Raise the limit above host_bytes, or lower host_bytes: arenas are charged to the daemon, "
      "and the kernel kills it at the limit." },
    { "budgets", doctor_budgets,
      "Give each daemon a host_bytes of its own, together less than the memory; or run one daemon "
      "for all." },
    { "overcommit", doctor_overcommit,
      "Run: sysctl vm.overcommit_memory=0 (and set it in /etc/sysctl.d), or raise "
      "vm.overcommit_ratio." },
    { "memfd", doctor_memfd, "Run: sysctl vm.memfd_noexec=1 (and set it in /etc/sysctl.d)." },
    { "huge-pages", doctor_huge_pages,
      "Run: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled. I/O into huge pages takes "
      "a fraction of the CPU time." },
    { "memlock", doctor_memlock,
      "Set LimitMEMLOCK=infinity in the unit, or memlock in /etc/security/limits.conf for users "
      "who start a daemon." },
    { "nofile", doctor_nofile,
      "Raise LimitNOFILE of the unit (ulimit -n, the hard limit), or lower clients_max." },
    { "io-uring", doctor_uring,
      "Allow io_uring, or leave io = auto: threads are then used, which take more CPU time." },
    { "numa", doctor_numa, "Correct the option numa, or leave it at auto." },
    { "cpus", doctor_cpus, "Correct the option cpus, or the CPU set of the daemon." },
    { "gpu-driver", doctor_gpu_driver, "Install NVIDIA's driver and load it: modprobe nvidia." },
    { "gpu-library", doctor_gpu_library,
      "Install the driver's libcuda.so.1. In a container: start it with --gpus all, and "
      "NVIDIA_DRIVER_CAPABILITIES=compute,utility." },
    { "gpu-devices", doctor_gpu_devices,
      "Run: nvidia-modprobe -c 0. In a container: start it with --gpus all." },
    { "gpu-uvm", doctor_gpu_uvm,
      "Run as root: nvidia-modprobe -u -c 0, at each start of the machine (nvidia-persistenced "
      "does it too)." },
    { "gpu-unit", doctor_gpu_unit,
      "Run systemctl edit zshardd, and add the lines of configure.md, \"Use a GPU\": "
      "PrivateDevices=no, and DeviceAllow= for NVIDIA's devices." },
    { "gpu-mode", doctor_gpu_mode, "Run as root: nvidia-smi -c DEFAULT" },
    { "gpu-mig", doctor_gpu_mig,
      "Name an instance in CUDA_VISIBLE_DEVICES (nvidia-smi -L) for the daemon and for its "
      "trainers." },
    { "gpu-arch", doctor_gpu_arch,
      "Set gpu_bytes = 0 and train on the CPU: the kernels are for compute capability 8.0 and "
      "newer." },
    { "gpu-budget", doctor_gpu_budget, "Correct gpu and gpu_bytes." },
    { "gpu-build", doctor_gpu_build,
      "Install the CUDA toolkit (nvcc) and build with -DZSHARD_CUDA=ON, or install a package with "
      "CUDA." },
    { "gpu-plugin", doctor_gpu_plugin,
      "Install zk_cuda.so of this build in zshard/ next to libzclient.so, or name its directory "
      "with ZSHARD_PLUGINS." },
    { "cublaslt", doctor_cublaslt,
      "Only zgpt --device cuda needs it. Name the file with ZSHARD_CUBLASLT; PyTorch's is in "
      "site-packages/nvidia/cublas/lib." },
    { "nccl", doctor_nccl,
      "Ranks on several GPUs need it. Name the file with ZSHARD_NCCL_LIB; PyTorch's is in "
      "site-packages/nvidia/nccl/lib." },
    { "socket-group", doctor_socket_group,
      "Set socket_group = zshard in zshardd.conf, and restart the daemon." },
    { "group-member", doctor_group_member, "Add the user to the group." },
    { "group-session", doctor_group_session,
      "Log in again: a session has the groups that its user had when it began." },
    { "socket", doctor_socket, "See journalctl -u zshardd." },
    { "socket-stale", doctor_socket_stale,
      "See journalctl -u zshardd for the reason. The next start replaces the file." },
    { "version", doctor_version,
      "Restart the daemon, so that it runs the version that is installed." },
};

const struct doctor_check *doctor_checks(size_t *ret_n)
{
    *ret_n = ZB_COUNT(checks);
    return checks;
}

struct doctor_finding doctor_run(const struct doctor_check *check, const struct doctor_machine *m)
{
    struct doctor_finding f = { .level = DOCTOR_SKIPPED };

    check->run(m, &f);
    if (f.level < DOCTOR_ADVICE)
        f.fix[0] = '\0';
    else if (f.fix[0] == '\0')
        doctor_fix(&f, "%s", check->fix);
    return f;
}
