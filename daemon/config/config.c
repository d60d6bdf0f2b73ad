/*
 * config.c - the table of options, and the three sources of their values: the row's default, the
 * file (zb_opt_file()), the command line.
 *
 * NOT HERE. Values that depend on the machine ("auto" sizes), and whether a directory exists: see
 * startup.c.
 */
#include "daemon/config/config.h"

#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "daemon/os/cpus.h"
#include "daemon/os/numa.h"
#include "daemon/run/gpu_tier.h"
#include "daemon/run/quotas.h"
#include "kernels/gpu.h"
#include "kernels/zk.h"
#include "nvme/zn.h"
#include "proto/socket.h"

#define SIZE_MAX_BYTES (UINT64_C(1) << 50) /* of a tier: small enough that no sum overflows */
#define SIZE_MIN_BYTES ZB_MIB
#define PAGE_BYTES     ZB_PAGE_ALIGN
#define HELP_MAX       16384u

/* ---- the rows */

static int check_socket(const char *text, struct zb_err *err)
{
    struct sockaddr_un address;

    return zp_socket_address(text, &address, err);
}

static int check_kernels(const char *text, struct zb_err *err)
{
    const struct zk_ops *ops;

    return zk_select(text, &ops, err);
}

static int check_group(const char *text, struct zb_err *err)
{
    return getgrnam(text) ? 0 : zb_fail(err, -EINVAL, "there is no group '%s'", text);
}

static int check_paths(const char *text, struct zb_err *err)
{
    unsigned n = 1;

    for (const char *p = text; *p; p++) {
        n += *p == *ZSD_PATHS_SEPARATOR;
        if (*p == *ZSD_PATHS_SEPARATOR && (p == text || p[1] == *p || p[1] == '\0'))
            return zb_fail(err, -EINVAL, "'%s': a directory has no name", text);
    }
    return n < ZN_PATHS_MAX
               ? 0
               : zb_fail(err, -EINVAL, "%u directories: at most %u", n, ZN_PATHS_MAX - 1);
}

/* Budgets of GPUs: the number of sizes; 0: no GPU tier. */
static int gpu_bytes_parse(const char *text, uint64_t *ret, struct zb_err *err)
{
    int n = zb_sizes_parse(text, ret, ZSD_GPUS_MAX, err);

    if (n == 1 && ret[0] == 0)
        return 0;
    for (int i = 0; i < n; i++) {
        ret[i] -= ret[i] % PAGE_BYTES;
        if (ret[i] < SIZE_MIN_BYTES || ret[i] > SIZE_MAX_BYTES)
            return zb_fail(err, -EINVAL, "a GPU's budget is 1M to 1P%s, not %s",
                           n == 1 ? ", or 0" : "; a GPU without one is left out of gpus",
                           zb_size_text(ret[i]).s);
    }
    return n;
}

static int check_gpu_bytes(const char *text, struct zb_err *err)
{
    uint64_t bytes[ZSD_GPUS_MAX];
    int n = gpu_bytes_parse(text, bytes, err);

    return n < 0 ? n : 0;
}

#define AT(member) ZB_OPT_AT(struct zsd_config, member)

/* clang-format off */
static const struct zb_opt options[] = {
    { "socket", ZB_OPT_CHARS, AT(socket), .arg = "PATH", .def = "", .check = check_socket,
      .help = "The Unix socket to serve. Empty: $ZSHARD_SOCKET, else "
              "$XDG_RUNTIME_DIR/zshard.sock, else /run/zshard/zshard.sock." },
    { "data", ZB_OPT_CHARS, AT(data), .arg = "DIR", .def = "",
      .help = "Directory of the data file; created if only its last part is missing. Empty: "
              "$STATE_DIRECTORY (set by systemd), else a temporary directory in $TMPDIR or "
              "/var/tmp, which is removed at the end." },
    { "host-bytes", ZB_OPT_SIZE, AT(host_bytes), .round = PAGE_BYTES, .arg = "SIZE", .def = "auto",
      .min = SIZE_MIN_BYTES, .max = SIZE_MAX_BYTES, .word = "auto", .word_value = ZSD_AUTO,
      .help = "Budget of the host tier: arenas, staging, rings and resident pages. auto: a "
              "quarter of the memory that is available to the daemon (machine and cgroups)." },
    { "nvme-bytes", ZB_OPT_SIZE, AT(nvme_bytes), .round = PAGE_BYTES, .arg = "SIZE", .def = "auto",
      .min = SIZE_MIN_BYTES, .max = SIZE_MAX_BYTES, .zero = true,
      .word = "auto", .word_value = ZSD_AUTO,
      .help = "Size of the data file, reserved at the start. 0: no NVMe tier. auto: the size "
              "of the existing file, else 4G or half of the free space, whichever is smaller." },
    { "paths", ZB_OPT_CHARS, AT(paths), .arg = "DIR:DIR...", .def = "", .check = check_paths,
      .list = ZSD_PATHS_SEPARATOR,
      .help = "More directories with a data file of nvme_bytes each, preferably on other "
              "drives. Pages are spread over all of them by measured speed. At most 7, in any "
              "order." },
    { "gpu-bytes", ZB_OPT_CHARS, AT(gpu_bytes), .arg = "SIZE,SIZE...", .def = "0", .list = ",",
      .check = check_gpu_bytes,
      .help = "Budget of the GPU tier: GPU memory for optimizer state, which is updated there, and "
              "for parameters. One size for each GPU, or a list with a size for each of gpus, in "
              "that order. 0: no GPU is used. Without a GPU or driver the daemon exits with "
              "status 4." },
    { "gpu", ZB_OPT_CHARS, AT(gpu), .arg = "LIST", .def = "cuda", .list = ",", .also = "gpus",
      .help = "Also gpus. The GPUs of gpu_bytes, separated by commas, at most 16: all, cuda (the "
              "first one), cuda:N, N, a UUID (GPU-...) or a PCI address (0000:17:00.0). For tests, "
              "emulated:BYTES: a GPU emulated by threads; emulated*N:BYTES: so many." },
    { "io", ZB_OPT_CHARS, AT(io), .def = "auto",
      .choices = "auto uring threads fixed",
      .help = "How the data file is read and written. auto: io_uring, or threads where "
              "io_uring is not available. fixed, for benchmarks only: no data file, but memory "
              "(in addition to host_bytes) that behaves like a drive of a fixed rate; nothing "
              "is saved." },
    { "io-depth", ZB_OPT_COUNT, AT(io_depth), .arg = "N", .def = "64",
      .min = 1, .max = ZN_DEPTH_MAX,
      .help = "Requests in flight on the data file." },
    { "fixed-rate", ZB_OPT_SIZE, AT(fixed_rate), .round = PAGE_BYTES, .arg = "SIZE", .def = "1G",
      .min = SIZE_MIN_BYTES, .max = SIZE_MAX_BYTES,
      .help = "With io fixed: bytes per second, reads and writes together." },
    { "fixed-latency-us", ZB_OPT_COUNT, AT(fixed_latency_us), .arg = "US", .def = "100",
      .min = 0, .max = 1000000,
      .help = "With io fixed: minimum latency of a transfer, in microseconds." },
    { "cpus", ZB_OPT_CHARS, AT(cpus), .arg = "LIST", .def = "", .check = zsd_cpus_check,
      .help = "CPUs of the compute threads, such as 0-3,8. Empty: all that the daemon may use." },
    { "numa", ZB_OPT_CHARS, AT(numa), .arg = "NODES", .def = "auto", .check = zsd_numa_check,
      .help = "NUMA nodes for the daemon's threads and memory, such as 0-1; when they are "
              "full, other nodes are used. auto: the nodes of cpus. off: no placement." },
    { "near", ZB_OPT_CHOICE, AT(near_off), .def = "on", .choices = "on off",
      .help = "Whether the parameters and gradients of a rank with a GPU are kept in the host memory "
              "of the NUMA node of that GPU, if it is one of numa; when it is full, on other nodes. "
              "off: as numa says." },
    { "threads", ZB_OPT_COUNT, AT(threads), .arg = "N", .def = "auto", .min = 1, .max = 1024,
      .word = "auto", .word_value = 0,
      .help = "Compute threads. auto: one for each CPU of cpus." },
    { "page-elems", ZB_OPT_COUNT, AT(page_elems), .arg = "N", .def = "262144",
      .min = ZB_BLOCK_ELEMS, .max = ZB_PAGE_ELEMS_MAX, .multiple = ZB_BLOCK_ELEMS,
      .help = "Elements of a page, the unit of I/O." },
    { "ring-bytes", ZB_OPT_SIZE, AT(ring_bytes), .round = PAGE_BYTES, .arg = "SIZE", .def = "auto",
      .min = ZB_PAGE_ALIGN, .max = SIZE_MAX_BYTES, .word = "auto", .word_value = 0,
      .help = "Part of host_bytes: page buffers between the NVMe tier and the compute threads; "
              "at least one page. auto: chosen from host_bytes." },
    { "drive-errors", ZB_OPT_COUNT, AT(drive_errors), .arg = "N", .def = "10",
      .min = 1, .max = 1000000, .word = "never", .word_value = 0,
      .help = "A drive on which so many transfers fail within an hour is drained, if there is "
              "another one: nothing new is placed on it, and its pages move to others. never: it "
              "is only reported." },
    { "drive-slow", ZB_OPT_COUNT, AT(drive_slow), .arg = "PERCENT", .def = "20",
      .min = 1, .max = 90, .word = "never", .word_value = 0,
      .help = "A drive whose speed falls below this percentage of what its peers' speed suggests, "
              "for 30 seconds, is drained. never: it is not compared." },
    { "drive-stall", ZB_OPT_COUNT, AT(drive_stall_s), .arg = "SECONDS", .def = "60",
      .min = 1, .max = 86400, .word = "never", .word_value = 0,
      .help = "A drive on which no transfer ends for so long, although there are some, is reported "
              "and drained. never: it is waited for." },
    { "discard", ZB_OPT_CHOICE, AT(discard), .def = "off", .choices = "off on",
      .help = "Whether the drives are told which parts of the data files hold nothing any more "
              "(BLKDISCARD; in a file: a hole, which is allocated again). A drive that knows "
              "it copies less when it erases flash. Slowly, and beside other transfers." },
    { "clients-max", ZB_OPT_COUNT, AT(clients_max), .arg = "N", .def = "1024",
      .min = 1, .max = 65536,
      .help = "Maximum number of connections; one more is rejected with an error message. Root "
              "and the daemon's user have 4 more." },
    { "user-clients-max", ZB_OPT_COUNT, AT(user_clients_max), .arg = "N", .def = "auto",
      .min = 1, .max = 65536, .word = "auto", .word_value = 0,
      .help = "Maximum number of connections of one user, except root and the daemon's user. "
              "auto: three quarters of clients_max." },
    { "jobs-max", ZB_OPT_COUNT, AT(jobs_max), .arg = "N", .def = "64", .min = 1, .max = 4096,
      .help = "Maximum number of jobs." },
    { "user-jobs-max", ZB_OPT_COUNT, AT(user_jobs_max), .arg = "N", .def = "auto",
      .min = 1, .max = 4096, .word = "auto", .word_value = 0,
      .help = "Maximum number of jobs of one user, with the same exceptions. auto: three "
              "quarters of jobs_max." },
    { "timeout-ms", ZB_OPT_COUNT, AT(timeout_ms), .arg = "MS", .def = "60000",
      .min = 1, .max = 86400000,
      .help = "Deadline in milliseconds of requests that set none." },
    { "restart-wait", ZB_OPT_COUNT, AT(restart_wait_s), .arg = "SECONDS", .def = "600",
      .min = 0, .max = 86400,
      .help = "How long a stop waits for ranks that attach again after a restart, until they have "
              "finished their step; and the next start for those of jobs that are not durable." },
    { "stop-timeout", ZB_OPT_COUNT, AT(stop_timeout_s), .arg = "SECONDS", .def = "none",
      .min = 1, .max = 86400, .word = "none", .word_value = 0,
      .help = "How long the daemon may then take to stop; after that it exits with status 1, and steps since "
              "the last commit are lost. none: as long as operations finish." },
    { "hello-ms", ZB_OPT_COUNT, AT(hello_ms), .arg = "MS", .def = "10000",
      .min = 1, .max = 86400000,
      .help = "A client that does not send its hello within this many milliseconds is "
              "disconnected." },
    { "kernels", ZB_OPT_CHARS, AT(kernels), .arg = "NAME", .def = "auto", .check = check_kernels,
      .help = "Instruction set of the optimizer: auto (the best of this processor), ref, avx2, "
              "avx512, neon. All give the same bits." },
    { "socket-group", ZB_OPT_CHARS, AT(socket_group), .arg = "GROUP", .def = "",
      .check = check_group,
      .help = "Group whose members may connect. Empty: only the daemon's user and root." },
    { "admin-group", ZB_OPT_CHARS, AT(admin_group), .arg = "GROUP", .def = "",
      .check = check_group,
      .help = "Group whose members are administrators: they see, end and read jobs of all users. "
              "Empty: only root and the daemon's user." },
    { "root-is-admin", ZB_OPT_CHOICE, AT(root_is_user), .def = "yes", .choices = "yes no",
      .help = "Whether root is an administrator. no: it is a user like others, for daemons that "
              "containers with processes of uid 0 connect to." },
    { "user-host-bytes", ZB_OPT_SIZE, AT(user_host_bytes), .arg = "SIZE", .def = "none",
      .min = SIZE_MIN_BYTES, .max = SIZE_MAX_BYTES, .word = "none", .word_value = 0,
      .help = "Maximum of host memory that the jobs and readers of one user hold, except root and "
              "the daemon's user." },
    { "user-nvme-bytes", ZB_OPT_SIZE, AT(user_nvme_bytes), .arg = "SIZE", .def = "none",
      .min = SIZE_MIN_BYTES, .max = SIZE_MAX_BYTES, .word = "none", .word_value = 0,
      .help = "The same of NVMe, snapshots and room for the next commit included. A page that "
              "several jobs of the user share counts once." },
    { "user-gpu-bytes", ZB_OPT_SIZE, AT(user_gpu_bytes), .arg = "SIZE", .def = "none",
      .min = SIZE_MIN_BYTES, .max = SIZE_MAX_BYTES, .word = "none", .word_value = 0,
      .help = "The same of the GPU tier." },
    { "quotas", ZB_OPT_CHARS, AT(quotas), .arg = "USER LIMIT...,@GROUP...", .def = "",
      .check = zsd_quotas_check, .list = ",",
      .help = "Limits of single users, which replace those above: USER is a name or a number, "
              "LIMIT is host=SIZE, nvme=SIZE, gpu=SIZE or jobs=N, each also none. @GROUP: of each "
              "member. The user's own limit comes first, then that of the first group." },
    { "log-level", ZB_OPT_CHOICE, AT(log_level), .def = "info",
      .choices = "error warn info debug",
      .help = "Lowest level that is logged." },
    { "log-format", ZB_OPT_CHOICE, AT(log_format), .def = "auto",
      .choices = "auto text json journal",
      .help = "Format of the log. text and json: lines on standard error. journal: fields, to the "
              "systemd journal. auto: journal if standard error is the journal, else text." },
    { "slow-request-ms", ZB_OPT_COUNT, AT(slow_request_ms), .arg = "MS", .def = "none",
      .min = 1, .max = 86400000, .word = "none", .word_value = 0,
      .help = "A request that takes as long, in milliseconds, is logged (slow-request). none: no "
              "request is." },
    { 0 },
};
/* clang-format on */

/* "N:SIZE", of --shrink. */
static int shrink_parse(const char *text, uint32_t *ret_number, uint64_t *ret_bytes,
                        struct zb_err *err)
{
    const char *size = strchr(text, ':');
    char *end = NULL;
    unsigned long n = strtoul(text, &end, 10);

    if (!size || end != size || n < 1 || n > ZN_PATHS_MAX || *text < '0' || *text > '9')
        return zb_fail(err, -EINVAL, "'%s' must be N:SIZE, with a data file's number from 1 to %u",
                       text, ZN_PATHS_MAX);
    if (zb_size_parse(size + 1, ret_bytes, err) < 0)
        return -EINVAL;
    if (*ret_bytes < SIZE_MIN_BYTES || *ret_bytes > SIZE_MAX_BYTES)
        return zb_fail(err, -EINVAL, "a data file has 1M to 1P, not %s", size + 1);
    *ret_bytes -= *ret_bytes % PAGE_BYTES;
    *ret_number = (uint32_t)n;
    return 0;
}

static int check_shrink(const char *text, struct zb_err *err)
{
    uint64_t bytes;
    uint32_t n;

    return shrink_parse(text, &n, &bytes, err);
}

/** Options of the command line only. */
struct words {
    bool help, version, check, fsck, read_only, embedded;
    uint32_t ready_fd, linger_s, linger_kept_s, without, retire;
    const char *config;
    char shrink[64];
};

#define WORD(member) ZB_OPT_AT(struct words, member)

static const struct zb_opt words[] = {
    { "config", ZB_OPT_TEXT, WORD(config), .arg = "FILE",
      .help = "Read options from a file: name = value, with '_' for '-'. The command line "
              "takes precedence." },
    { "check-config", ZB_OPT_FLAG, WORD(check),
      .help = "Check the options and exit: status 0, or 2 and an error message." },
    { "fsck", ZB_OPT_FLAG, WORD(fsck),
      .help = "Check a data directory (--data, and --paths), every page and every counter, "
              "without changing anything, and exit: status 0, or 6 and a list of the damage." },
    { "retire", ZB_OPT_COUNT, WORD(retire), .arg = "N", .def = "none", .min = 1,
      .max = ZN_PATHS_MAX, .word = "none", .word_value = 0,
      .help = "Move all saved pages off data file number N to the others, remove it, and exit: "
              "status 0; 8 if there is no room, or 9 for number 1. No daemon may be running." },
    { "shrink", ZB_OPT_CHARS, WORD(shrink), .arg = "N:SIZE", .def = "", .check = check_shrink,
      .help =
          "Move what lies beyond SIZE in data file number N to free places, cut the file to SIZE, "
          "and exit: status 0, or 8 if there is no room. No daemon may be running." },
    { "without", ZB_OPT_COUNT, WORD(without), .arg = "N", .def = "none", .min = 1,
      .max = ZN_PATHS_MAX, .word = "none", .word_value = 0,
      .help = "Start without data file number N, whose drive is lost. Jobs with pages there are "
              "named in the log, and cannot be opened; the others can. It cannot be used again." },
    { "read-only", ZB_OPT_FLAG, WORD(read_only),
      .help =
          "Serve what is saved to zctl export, snapshots, df, fsck and scrub, and write nothing "
          "to the data directories (--data, and --paths). For a store that cannot be written "
          "any more. Jobs are refused." },
    { "embedded", ZB_OPT_FLAG, WORD(embedded),
      .help = "For a program that starts its own daemon (--socket): reports in one line of "
              "JSON that it is ready, or why not, and exits when it is no longer used." },
    { "ready-fd", ZB_OPT_COUNT, WORD(ready_fd), .arg = "N", .def = "1", .min = 0, .max = 65535,
      .help = "With --embedded: the open file descriptor for that line; it is closed after it." },
    { "linger", ZB_OPT_COUNT, WORD(linger_s), .arg = "SECONDS", .def = "30", .min = 0,
      .max = 31536000, .help = "With --embedded: exit this long after the last client has left." },
    { "linger-kept", ZB_OPT_COUNT, WORD(linger_kept_s), .arg = "SECONDS", .def = "600", .min = 0,
      .max = 31536000,
      .help = "The same while a kept job is in memory; never less than --linger." },
    { "help", ZB_OPT_FLAG, WORD(help), .help = "Show this text." },
    { "version", ZB_OPT_FLAG, WORD(version), .help = "Show the version." },
    { 0 },
};

const struct zb_opt *zsd_options(void)
{
    return options;
}

static void config_help(FILE *out)
{
    (void)fputs("usage: zshardd [--config FILE] [--OPTION VALUE]...\n"
                "               [--check-config | --fsck | --retire N | --shrink N:SIZE |\n"
                "                --read-only | --embedded]\n"
                "\n"
                "The daemon of zshard: owns the memory that training borrows, and runs the\n"
                "optimizer where the state lives. Without options it serves its own user, with a\n"
                "temporary data directory.\n"
                "\n",
                out);
    zb_opt_help(out, words);
    (void)fputc('\n', out);
    zb_opt_help(out, options);
    (void)fputs("\n"
                "Sizes are bytes, or have a unit: K, M, G, T (powers of 1024), as in 1.5G.\n"
                "\n"
                "Exit status: 0 ended in good order; 2 wrong options or configuration;\n"
                "3 the socket or the data directory belongs to another daemon; 4 there is no\n"
                "such GPU; 5 the data directory is another user's, or others may write to it;\n"
                "6 --fsck found damage; 7 a data file is missing;\n"
                "8 no room to retire or shrink a data file; 9 it is number 1;\n"
                "75 ended for zctl restart; 1 anything else.\n",
                out);
}

static int config_text(const struct words *w, const char **ret_text, struct zb_err *err)
{
    static char text[HELP_MAX];
    FILE *out = fmemopen(text, sizeof(text), "w");

    if (!out)
        return zb_fail(err, -errno, "the text of --help: %m");
    if (w->help)
        config_help(out);
    else
        (void)fputs("zshardd " ZSHARD_VERSION "\n", out);
    (void)fclose(out);
    *ret_text = text;
    return 1;
}

/** Checks and sets the options of an embedded daemon, which only it may have; it needs a socket. */
static int config_embedded(struct zsd_config *config, const struct words *w,
                           const struct zb_opts *line, struct zb_err *err)
{
    static const char *const own[] = { "ready-fd", "linger", "linger-kept" };
    static const char *const modes[] = { "fsck", "retire", "shrink", "read-only", "embedded" };

    for (size_t i = 0; i < ZB_COUNT(own) && !w->embedded; i++)
        if (zb_opt_given(line, own[i]))
            return zb_fail(err, -EINVAL, "--%s is an option of --embedded", own[i]);
    if (w->embedded && config->socket[0] == '\0')
        return zb_fail(err, -EINVAL, "--embedded needs --socket: a socket of its own");
    for (size_t i = 0, n = 0; i < ZB_COUNT(modes); i++)
        if (zb_opt_given(line, modes[i]) && n++ > 0)
            return zb_fail(err, -EINVAL,
                           "--%s: one of --fsck, --retire, --shrink, --read-only and --embedded",
                           modes[i]);
    if (w->read_only && config->data[0] == '\0')
        return zb_fail(err, -EINVAL, "--read-only needs --data: the data directory");
    config->read_only = w->read_only;
    config->embedded = w->embedded;
    config->without = w->without;
    config->retire = w->retire;
    if (w->shrink[0] != '\0') /* it was checked */
        (void)shrink_parse(w->shrink, &config->shrink, &config->shrink_bytes, err);
    config->ready_fd = w->ready_fd;
    config->linger_s = w->linger_s;
    config->linger_kept_s = w->linger_kept_s > w->linger_s ? w->linger_kept_s : w->linger_s;
    return 0;
}

/** Reads the budgets of GPUs, which were checked one by one, and writes them as zctl config shows
 * them. */
static int config_gpus(struct zsd_config *config, struct zb_err *err)
{
    int n = gpu_bytes_parse(config->gpu_bytes, config->gpu_budgets.bytes, err);
    struct zk_gpu_list list;

    if (n < 0)
        return n;
    config->gpu_budgets.n = (unsigned)n;
    if (n > 0)
        (void)zb_sizes_text(config->gpu_budgets.bytes, (unsigned)n, config->gpu_bytes,
                            sizeof(config->gpu_bytes));
    /* "all" is counted when the devices are opened; a list that is wrong is refused there, too */
    if (n > 1 && !strstr(config->gpu, "all") && zk_gpu_list(config->gpu, &list, NULL) == 0)
        return zsd_gpu_budgets_fit(config, list.n, err);
    return 0;
}

int zsd_config_load(struct zsd_config *config, int argc, char **argv, const char **ret_text,
                    struct zb_err *err)
{
    struct words w = { .config = NULL };
    struct zb_opts line[] = { { .rows = words, .values = &w },
                              { .rows = options, .values = config } };
    uint64_t in_file = 0;
    int rc;

    memset(config, 0, sizeof(*config));
    zb_opt_defaults(words, &w);
    zb_opt_defaults(options, config);
    rc = zb_opt_parse(line, ZB_COUNT(line), argc - 1, argv + 1, NULL, err);
    if (rc == 0 && (w.help || w.version))
        return config_text(&w, ret_text, err);
    if (rc == 0 &&
        w.config) { /* the command line takes precedence: parse it again after the file */
        memset(config, 0, sizeof(*config));
        zb_opt_defaults(options, config);
        rc = zb_opt_file(options, config, w.config, false, &in_file, err);
        if (rc == 0)
            rc = zb_opt_parse(line, ZB_COUNT(line), argc - 1, argv + 1, NULL, err);
    }
    if (rc == 0)
        rc = config_gpus(config, err);
    if (rc == 0)
        rc = config_embedded(config, &w, &line[0], err);
    if (rc < 0)
        return rc;
    config->in_file = in_file;
    config->on_line = line[1].given;
    config->file = w.config;
    config->argc = argc;
    config->argv = argv;
    return w.check ? 2 : w.fsck ? 3 : w.retire > 0 ? 4 : config->shrink > 0 ? 5 : 0;
}
