/*
 * check_gpu.c - NVIDIA GPUs: their driver, their devices, and how they are set.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "base/util.h"
#include "client/zctl/doctor/check.h"

#define DRIVER     "/proc/driver/nvidia/version"
#define MODE_NEVER 2
#define MODE_ONE   3

bool doctor_has_gpu(const struct doctor_machine *m, struct doctor_finding *f)
{
    if (!m->gpu)
        doctor_found(f, DOCTOR_SKIPPED, "no NVIDIA GPU");
    return m->gpu;
}

/** The driver's version: "580.95.05", after words that differ. False: it is not loaded. */
static bool driver_version(const struct doctor_machine *m, char *ret, size_t bytes)
{
    char line[TREE_LINE];

    if (!tree_line(m->root, DRIVER, line, sizeof(line)))
        return false;
    for (const char *word = line; *word; word += strspn(word, " ")) {
        size_t len = strcspn(word, " ");

        if (isdigit((unsigned char)*word) && memchr(word, '.', len)) {
            (void)snprintf(ret, bytes, "%.*s", (int)len, word);
            return true;
        }
        word += len;
    }
    return false;
}

/** The oldest driver for a version of CUDA; 0: any. */
static int driver_least(const char *cuda)
{
    int major = atoi(cuda);

    return major >= 13 ? 580 : major == 12 ? 525 : 0;
}

void doctor_gpu_driver(const struct doctor_machine *m, struct doctor_finding *f)
{
    char version[64];
    int least = driver_least(m->answers.build);

    if (!doctor_has_gpu(m, f))
        return;
    if (!driver_version(m, version, sizeof(version))) {
        doctor_found(f, DOCTOR_FAILED, "%s, and no NVIDIA driver is loaded",
                     m->gpu_seen ? "there is an NVIDIA GPU" : "gpu_bytes is set");
        if (!m->gpu_seen)
            doctor_fix(f, "Set gpu_bytes = 0, or install a GPU and its driver.");
    } else if (atoi(version) < least) {
        doctor_found(f, DOCTOR_FAILED, "driver %s, and this build has CUDA %s, which needs %d",
                     version, m->answers.build, least);
        doctor_fix(f, "Install driver %d or newer, or build zshard with an older CUDA toolkit.",
                   least);
    } else {
        doctor_found(f, DOCTOR_OK, "driver %s", version);
    }
}

void doctor_gpu_library(const struct doctor_machine *m, struct doctor_finding *f)
{
    const char *path = m->answers.driver, *name = strstr(path, "libcuda.so.");
    char version[64];

    if (!doctor_has_gpu(m, f))
        return;
    if (!driver_version(m, version, sizeof(version)) || *path == '\0') {
        doctor_found(f, DOCTOR_SKIPPED, "the driver or its library is not known");
    } else if (*path == '!') {
        doctor_found(f, DOCTOR_FAILED, "%.200s", path + 1);
    } else if (name && strchr(name + 11, '.') && !strstr(path, "/compat/") &&
               strcmp(name + 11, version) != 0) {
        doctor_found(f, DOCTOR_FAILED, "libcuda is of driver %s, and driver %s is loaded",
                     name + 11, version);
        doctor_fix(
            f, "The driver was upgraded and not loaded again. Restart the machine, or unload the "
               "modules nvidia* and load them again.");
    } else {
        doctor_found(f, DOCTOR_OK, "%.200s", path);
    }
}

/* ---- device files */

/** Whether the daemon (for the GPU tier) and this session may use a device. False: *f says who
 * may not. */
static bool device_may(const struct doctor_machine *m, const char *path, struct doctor_finding *f)
{
    const struct doctor_person *people[] = { &m->session,
                                             m->conf.gpu_bytes > 0 ? &m->daemon_user : NULL };
    struct stat st;

    if (!tree_stat(m->root, path, &st)) {
        doctor_found(f, DOCTOR_FAILED, "%s is missing", path);
        return false;
    }
    for (size_t i = 0; i < ZB_COUNT(people); i++)
        if (people[i] && people[i]->known && !doctor_person_may(people[i], &st, 06)) {
            doctor_found(f, DOCTOR_FAILED, "user '%s' may not read and write %s (mode %04o)",
                         people[i]->name, path, st.st_mode & 07777);
            doctor_fix(
                f,
                "Run as root: chmod 0666 %s (NVreg_DeviceFileMode of the module nvidia sets it "
                "for good), or add the user to its group.",
                path);
            return false;
        }
    return true;
}

void doctor_gpu_devices(const struct doctor_machine *m, struct doctor_finding *f)
{
    char path[64], version[64];
    size_t n = 0;

    if (!doctor_has_gpu(m, f))
        return;
    if (!driver_version(m, version, sizeof(version))) {
        doctor_found(f, DOCTOR_SKIPPED, "the driver is not loaded");
        return;
    }
    if (!device_may(m, "/dev/nvidiactl", f))
        return;
    for (size_t i = 0; i < 64; i++) {
        (void)snprintf(path, sizeof(path), "/dev/nvidia%zu", i);
        if (!tree_exists(m->root, path))
            continue;
        if (!device_may(m, path, f))
            return;
        n++;
    }
    doctor_found(f, n > 0 ? DOCTOR_OK : DOCTOR_FAILED,
                 n > 0 ? "%zu GPUs" : "no /dev/nvidia0 ... : %zu", n);
}

void doctor_gpu_uvm(const struct doctor_machine *m, struct doctor_finding *f)
{
    if (!doctor_has_gpu(m, f))
        return;
    if (!tree_exists(m->root, DRIVER))
        doctor_found(f, DOCTOR_SKIPPED, "the driver is not loaded");
    else if (device_may(m, "/dev/nvidia-uvm", f))
        doctor_found(f, DOCTOR_OK, "/dev/nvidia-uvm");
}

void doctor_gpu_unit(const struct doctor_machine *m, struct doctor_finding *f)
{
    const char *hidden = m->unit.private_devices;

    if (!m->service || m->conf.gpu_bytes == 0)
        doctor_found(f, DOCTOR_SKIPPED, "no GPU tier in the service");
    else if (strcmp(hidden, "yes") == 0 || strcmp(hidden, "true") == 0 || strcmp(hidden, "1") == 0)
        doctor_found(f, DOCTOR_FAILED,
                     "gpu_bytes is set, and the unit hides devices (PrivateDevices=yes)");
    else if (!strstr(m->unit.devices, "nvidia"))
        doctor_found(f, DOCTOR_FAILED,
                     "gpu_bytes is set, and the unit allows no NVIDIA device (DeviceAllow=)");
    else
        doctor_found(f, DOCTOR_OK, "the unit allows NVIDIA's devices");
}

/* ---- what NVML reports */

/** Runs `look` over the GPUs, until one is not well. */
static void each_gpu(const struct doctor_machine *m, struct doctor_finding *f,
                     void (*look)(const struct doctor_machine *m, size_t i,
                                  const struct doctor_gpu *g, struct doctor_finding *f))
{
    struct doctor_gpu g;

    if (!doctor_has_gpu(m, f))
        return;
    if (!doctor_gpu(&m->answers, 0, &g))
        doctor_found(f, DOCTOR_SKIPPED, "not known: %.200s",
                     m->answers.gpus[0] == '!' ? m->answers.gpus + 1
                                               : "NVML did not answer in time");
    for (size_t i = 0; f->level < DOCTOR_ADVICE && doctor_gpu(&m->answers, i, &g); i++)
        look(m, i, &g, f);
}

static void mode_look(const struct doctor_machine *m, size_t i, const struct doctor_gpu *g,
                      struct doctor_finding *f)
{
    if (g->mode == MODE_NEVER)
        doctor_found(f, DOCTOR_FAILED, "GPU %zu is in mode PROHIBITED: no process may use it", i);
    else if (g->mode != MODE_ONE)
        doctor_found(f, DOCTOR_OK, "DEFAULT");
    else if (m->conf.gpu_bytes > 0)
        doctor_found(f, DOCTOR_FAILED,
                     "GPU %zu is in mode EXCLUSIVE_PROCESS: the daemon's tier keeps trainers out",
                     i);
    else
        doctor_found(f, DOCTOR_ADVICE,
                     "GPU %zu is in mode EXCLUSIVE_PROCESS: one rank for each, and no GPU tier", i);
}

void doctor_gpu_mode(const struct doctor_machine *m, struct doctor_finding *f)
{
    each_gpu(m, f, mode_look);
}

static void mig_look(const struct doctor_machine *m, size_t i, const struct doctor_gpu *g,
                     struct doctor_finding *f)
{
    (void)m;
    if (g->mig != 1) {
        doctor_found(f, DOCTOR_OK, "off");
    } else if (g->instances == 0) {
        doctor_found(f, DOCTOR_FAILED, "GPU %zu has MIG on and no instance: CUDA finds no device",
                     i);
        doctor_fix(
            f,
            "Run as root: nvidia-smi mig -cgi PROFILE -C (nvidia-smi mig -lgip lists profiles), "
            "or turn MIG off: nvidia-smi -i %zu -mig 0",
            i);
    } else {
        doctor_found(f, DOCTOR_ADVICE, "GPU %zu has MIG on: a process uses one of its %d instances",
                     i, g->instances);
    }
}

void doctor_gpu_mig(const struct doctor_machine *m, struct doctor_finding *f)
{
    each_gpu(m, f, mig_look);
}

static void arch_look(const struct doctor_machine *m, size_t i, const struct doctor_gpu *g,
                      struct doctor_finding *f)
{
    (void)m;
    if (g->major > 0 && g->major < 8)
        doctor_found(f, DOCTOR_FAILED, "GPU %zu has compute capability %d.%d", i, g->major,
                     g->minor);
    else
        doctor_found(f, DOCTOR_OK, "compute capability %d.%d", g->major, g->minor);
}

void doctor_gpu_arch(const struct doctor_machine *m, struct doctor_finding *f)
{
    each_gpu(m, f, arch_look);
}

static void budget_look(const struct doctor_machine *m, size_t i, uint64_t bytes,
                        struct doctor_finding *f)
{
    struct doctor_gpu g;

    if (!doctor_gpu(&m->answers, i, &g))
        doctor_found(f, DOCTOR_FAILED, "gpu = %s, and the last GPU comes before GPU %zu",
                     m->conf.gpu, i);
    else if (g.bytes > 0 && bytes > g.bytes)
        doctor_found(f, DOCTOR_FAILED, "gpu_bytes is %s, and GPU %zu has %s", zb_size_text(bytes).s,
                     i, zb_size_text(g.bytes).s);
    else
        doctor_found(f, DOCTOR_OK, "%s of %s", zb_size_text(bytes).s, zb_size_text(g.bytes).s);
}

/* The number of the device that a word of `gpu` names; SIZE_MAX: it has another name. */
static size_t gpu_number(const char *word)
{
    const char *number = strncmp(word, "cuda", 4) == 0 ? word + 4 + (word[4] == ':') : word;
    char *end;
    unsigned long n = strtoul(number, &end, 10);

    return *end == '\0' || *end == ',' ? n : SIZE_MAX;
}

void doctor_gpu_budget(const struct doctor_machine *m, struct doctor_finding *f)
{
    bool all = strcmp(m->conf.gpu, "all") == 0;
    uint64_t sizes[DOCTOR_GPUS_MAX];
    int n = zb_sizes_parse(m->conf.gpu_sizes, sizes, DOCTOR_GPUS_MAX, NULL);
    const char *word = m->conf.gpu;
    struct doctor_gpu g;
    size_t i = 0;

    if (m->conf.gpu_bytes == 0 || strncmp(word, "emulated", 8) == 0) {
        doctor_found(f, DOCTOR_SKIPPED, "no GPU tier");
        return;
    }
    if (!doctor_gpu(&m->answers, 0, &g)) {
        doctor_found(f, DOCTOR_SKIPPED, "the GPUs are not known");
        return;
    }
    for (bool more = true; more && i < DOCTOR_GPUS_MAX && f->level < DOCTOR_ADVICE; i++) {
        size_t number = all ? i : gpu_number(word);

        if (number == SIZE_MAX)
            doctor_found(f, DOCTOR_SKIPPED, "not known: gpu = %s", m->conf.gpu);
        else
            budget_look(m, number, sizes[n > 1 ? zb_min_u64(i, (uint64_t)n - 1) : 0], f);
        word += strcspn(word, ",");
        more = all ? doctor_gpu(&m->answers, i + 1, &g) : *word++ == ',';
    }
    if (n > 1 && i != (size_t)n && f->level < DOCTOR_ADVICE)
        doctor_found(f, DOCTOR_FAILED, "gpu_bytes has %d sizes, and gpus = %s are %zu GPUs", n,
                     m->conf.gpu, i);
}
