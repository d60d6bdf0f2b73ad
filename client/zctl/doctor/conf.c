/*
 * conf.c - the options of the daemon that the checks need.
 *
 * The file is read with the daemon's parser (zb_opt_file()). The rows here are those that doctor
 * needs, without their limits: `zshardd --check-config`, which is one of the probes, checks all.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/opt.h"
#include "base/size.h"
#include "base/util.h"
#include "client/zctl/doctor/machine.h"

#define CONF_INSTALLED "/etc/zshard/zshardd.conf"
#define AT(member)     ZB_OPT_AT(struct doctor_conf, member)

/* clang-format off */
static const struct zb_opt rows[] = {
    { "socket", ZB_OPT_CHARS, AT(socket), .def = "" },
    { "socket-group", ZB_OPT_CHARS, AT(socket_group), .def = "" },
    { "data", ZB_OPT_CHARS, AT(data), .def = "" },
    { "paths", ZB_OPT_CHARS, AT(paths), .def = "", .list = ":" },
    { "gpu", ZB_OPT_CHARS, AT(gpu), .def = "cuda", .list = ",", .also = "gpus" },
    { "io", ZB_OPT_CHARS, AT(io), .def = "auto" },
    { "cpus", ZB_OPT_CHARS, AT(cpus), .def = "" },
    { "numa", ZB_OPT_CHARS, AT(numa), .def = "auto" },
    { "host-bytes", ZB_OPT_SIZE, AT(host_bytes), .def = "auto", .word = "auto",
      .word_value = DOCTOR_AUTO },
    { "nvme-bytes", ZB_OPT_SIZE, AT(nvme_bytes), .def = "auto", .word = "auto",
      .word_value = DOCTOR_AUTO },
    { "gpu-bytes", ZB_OPT_CHARS, AT(gpu_sizes), .def = "0", .list = "," },
    { "clients-max", ZB_OPT_COUNT, AT(clients_max), .def = "1024" },
    { 0 },
};
/* clang-format on */

bool doctor_conf_host(const char *path, uint64_t *ret)
{
    struct doctor_conf conf;

    zb_opt_defaults(rows, &conf);
    if (zb_opt_file(rows, &conf, path, true, NULL, NULL) < 0)
        return false;
    *ret = conf.host_bytes;
    return true;
}

/** Which file: the one that was named, that of the unit, or the installed one. */
static void conf_choose(struct doctor_machine *m, const char *named)
{
    const char *path = named;

    if (!path && m->unit.config[0] != '\0')
        path = m->unit.config;
    if (!path && tree_exists(m->root, CONF_INSTALLED))
        path = CONF_INSTALLED;
    (void)snprintf(m->conf_path, sizeof(m->conf_path), "%s", path ? path : "");
}

/** The largest budget of a GPU; 0: none, or not a list of sizes. */
static uint64_t gpu_most(const char *text)
{
    uint64_t sizes[DOCTOR_GPUS_MAX], most = 0;
    int n = zb_sizes_parse(text, sizes, DOCTOR_GPUS_MAX, NULL);

    for (int i = 0; i < n; i++)
        most = zb_max_u64(most, sizes[i]);
    return most;
}

void doctor_conf(struct doctor_machine *m, const struct doctor_given *given)
{
    char full[PATH_MAX];

    zb_opt_defaults(rows, &m->conf);
    conf_choose(m, given->config);
    m->conf_named = given->config || given->data;
    m->service = m->unit.path[0] != '\0' &&
                 (!given->config || strcmp(given->config, m->unit.config) == 0);
    if (m->conf_path[0] != '\0' && tree_path(m->root, m->conf_path, full) &&
        zb_opt_file(rows, &m->conf, full, true, NULL, &m->conf_err) < 0)
        zb_opt_defaults(rows, &m->conf);
    m->conf.gpu_bytes = gpu_most(m->conf.gpu_sizes);
    if (given->data)
        (void)snprintf(m->conf.data, sizeof(m->conf.data), "%s", given->data);
}
