#include "client/zctl/doctor/machine.h"

#include <dirent.h>
#include <string.h>

#include "base/sysmem.h"
#include "base/util.h"

#define VENDOR_NVIDIA "0x10de"

/** An NVIDIA display or 3D controller, or an accelerator. */
static bool is_gpu(const char *root, const char *device)
{
    char path[PATH_MAX], vendor[16], class[16];

    (void)snprintf(path, sizeof(path), "/sys/bus/pci/devices/%.64s/vendor", device);
    if (!tree_line(root, path, vendor, sizeof(vendor)) || strcmp(vendor, VENDOR_NVIDIA) != 0)
        return false;
    (void)snprintf(path, sizeof(path), "/sys/bus/pci/devices/%.64s/class", device);
    return tree_line(root, path, class, sizeof(class)) &&
           (strncmp(class, "0x03", 4) == 0 || strncmp(class, "0x12", 4) == 0);
}

static bool gpu_on_bus(const char *root)
{
    char full[PATH_MAX];
    DIR *dir = tree_path(root, "/sys/bus/pci/devices", full) ? opendir(full) : NULL;
    const struct dirent *entry;
    bool found = false;

    while (dir && !found && (entry = readdir(dir)) != NULL)
        found = is_gpu(root, entry->d_name);
    if (dir)
        (void)closedir(dir);
    return found;
}

static void machine_memory(struct doctor_machine *m)
{
    uint64_t kib;

    if (tree_number(m->root, "/proc/meminfo", "MemTotal", &kib))
        m->memory = kib * ZB_KIB;
    if (tree_number(m->root, "/proc/meminfo", "MemAvailable", &kib))
        m->available = kib * ZB_KIB;
    if (m->daemon.answers && m->daemon.host_bytes > 0 && !m->conf_named)
        m->host_bytes = m->daemon.host_bytes;
    else if (m->conf.host_bytes != DOCTOR_AUTO)
        m->host_bytes = m->conf.host_bytes;
    else
        m->host_bytes = zb_sysmem_left(m->root) / ZB_HOST_SHARE;
}

void doctor_look(struct doctor_machine *m, const char *root, const struct doctor_given *given)
{
    memset(m, 0, sizeof(*m));
    m->root = root;
    m->began_ns = zb_now_ns();
    doctor_unit(m);
    doctor_conf(m, given);
    doctor_people(m);
    doctor_places(m);
    m->gpu_seen = tree_exists(root, "/proc/driver/nvidia/version") || gpu_on_bus(root);
    m->gpu = m->gpu_seen || m->conf.gpu_bytes > 0;
    doctor_daemons(m, given);
    machine_memory(m);
    doctor_probe(m);
}
