/*
 * main.c - zctl: the rows of commands, options, exit status.
 *
 * A new command is a row here and a function in a file of cmd/. Help, arity and completion read the
 * rows.
 */
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "base/util.h"
#include "client/zctl/base/zctl.h"

static const struct zctl_option config_options[] = {
    { "ranks", "N", "of the run: batches must divide into them" },
    { 0 },
};

static const struct zctl_option export_options[] = {
    { "dtype", "param|fp32|bf16|fp16", "of the parameters; param, their own, loses nothing" },
    { "optimizer", NULL, "with the optimizer's moments and fp32 masters" },
    { "shard-bytes", "SIZE", "more than this becomes several files with an index; 5G" },
    { 0 },
};

static const struct zctl_option fsck_options[] = {
    { "data", "DIR", "check the data folder of a daemon that does not run, with zshardd --fsck" },
    { 0 },
};

static const struct zctl_option import_options[] = {
    { "like", "JOB[@SNAPSHOT]", "of the same units as this one, whoever wrote the files" },
    { 0 },
};

static const struct zctl_option plan_options[] = {
    { "params", "N", "the model: so many parameters; K, M, G (or B), T are powers of 1000" },
    { "units", "N", "of it, all alike (32)" },
    { "layers", "L", "or a GPT as zgpt trains it, with --width and --vocab" },
    { "width", "W", "of its residual stream" },
    { "vocab", "V", "tokens that it knows" },
    { "seq", "S", "positions that it knows (1024)" },
    { "index", "PATH", "or safetensors: a file, an index, a folder; only headers are read" },
    { "mode", "NAME", "ddp, zero1, zero2, zero3, fsdp or hybrid (zero3)" },
    { "ranks", "N", "over all nodes (1)" },
    { "nodes", "N", "as many ranks on each (1)" },
    { "dtype", "NAME", "of parameters: bf16, fp16 or fp32 (bf16, or that of the files)" },
    { "grad-dtype", "NAME", "of gradients as the daemon keeps them (fp32)" },
    { "optimizer", "NAME", "adamw, adam, lion, sgd or adagrad (adamw)" },
    { "moments", "NAME", "how its moments are kept: fp32, bf16 or 8bit (fp32)" },
    { "offload-param", "TIER", "host: always there; nvme: there where host memory lacks (nvme)" },
    { "offload-optimizer", "TIER", "likewise the optimizer's state (nvme)" },
    { "offload-grad", "WHERE",
      "host: gradients in memory; auto: on NVMe where they cannot be (auto)" },
    { "durable", NULL, "steps are committed" },
    { "commit-every", "N", "each so manieth (100)" },
    { "early", NULL, "steps begin under the backward pass, where there is room for it" },
    { "micro-steps", "N", "of a step (1)" },
    { "prefetch", "N", "units gathered ahead (1)" },
    { "flops", "N", "a second of one rank: for the tokens that hide the drives" },
    { "step-seconds", "S", "of a whole step, with its computing: for the wear of the drives" },
    { "node", "FILE", "JSON with the options from here on, '_' for '-'; they win over it" },
    { "host-bytes", "SIZE", "budget of a daemon; without any of these, that of this node's" },
    { "nvme-bytes", "SIZE", "size of its data file" },
    { "gpu-bytes", "SIZE", "of each rank's GPU: its own copies must fit" },
    { "gpu-tier-bytes", "SIZE", "of the daemon's GPU tier, free for this run" },
    { "page-elems", "N", "of the daemon (262144)" },
    { "ring-bytes", "SIZE", "of the daemon" },
    { "drive-read", "GB/S", "what all drives read, in 1e9 bytes a second" },
    { "drive-write", "GB/S", "what they write" },
    { "drive-endurance", "TB", "that they may be written in their life, in 1e12 bytes" },
    { "mem-bw", "GB/S", "of memory" },
    { "cores", "N", "for the optimizer" },
    { "measure", "DIR", "measure what is not given, with a file of 512 MiB in DIR: 2 seconds" },
    { 0 },
};

static const struct zctl_option scrub_options[] = {
    { "rate", "SIZE", "bytes a second (start, resume); else a tenth of what the drives do" },
    { 0 },
};

static const struct zctl_option snapshot_options[] = {
    { "next", NULL, "of the next commit, which is waited for" },
    { "retain", "N", "then destroy the job's oldest snapshots until N are left" },
    { "timeout", "SECONDS", "how long to wait for the next commit; else as the daemon is set" },
    { 0 },
};

static const struct zctl_option top_options[] = {
    { "count", "N", "end after so many intervals" },
    { "interval", "SECONDS", "between two looks, 0.1 to 3600; 1" },
    { "json", NULL, "one JSON object for each interval, a line each" },
    { "once", NULL, "one interval, as tables: the same as --count 1" },
    { 0 },
};

static const struct zctl_cmd cmds[] = {
    { "clone", "JOB[@SNAPSHOT] NAME", "make a new job out of what is saved; it costs what changes",
      2, 2, zctl_clone, NULL },
    { "completion", "bash", "print completion for a shell: source <(zctl completion bash)", 1, 1,
      zctl_completion, NULL },
    { "config", "check FILE", "say what becomes of each key of a DeepSpeed file, or which is wrong",
      2, 2, zctl_config, config_options },
    { "destroy", "JOB[@SNAPSHOT]",
      "end a kept job that nobody is attached to, or a snapshot, and free its bytes", 1, 1,
      zctl_destroy, NULL },
    { "df", "", "show what the bytes of the data files are used for", 0, 0, zctl_df, NULL },
    { "export", "JOB[@SNAPSHOT] PATH", "write safetensors: to a folder, or to NAME.safetensors", 2,
      2, zctl_export, export_options },
    { "fsck", "", "compare every counter of the store with its catalog", 0, 0, zctl_fsck,
      fsck_options },
    { "help", "[COMMAND]", "say what there is, or how a command is used", 0, 1, zctl_help, NULL },
    { "import", "NAME PATH...", "make a new job out of safetensors: files, a folder, an index", 2,
      INT_MAX, zctl_import, import_options },
    { "jobs", "[JOB]", "list jobs: state, ranks, steps, bytes", 0, 1, zctl_jobs, NULL },
    { "ls", "[JOB]", "list shards: where they are, their version, who pins them", 0, 1, zctl_ls,
      NULL },
    { "ping", "", "ask the daemon who it is, and how fast it answers", 0, 0, zctl_ping, NULL },
    { "plan", "", "say what a run will take of a node, and how long its steps will be", 0, 0,
      zctl_plan, plan_options },
    { "rollback", "JOB SNAPSHOT", "let a job go on from a snapshot, and forget what is newer", 2, 2,
      zctl_rollback, NULL },
    { "scrub", "[status|start|pause|resume|stop]",
      "read and verify all that is saved, in the background", 0, 1, zctl_scrub, scrub_options },
    { "share", "JOB N", "change a job's share of drives and compute threads: 1 to 10000; 100", 2, 2,
      zctl_share, NULL },
    { "snapshot", "JOB [NAME]", "give the newest commit a name, so that it stays", 1, 2,
      zctl_snapshot, snapshot_options },
    { "snapshots", "[JOB]", "list snapshots: steps, time, bytes", 0, 1, zctl_snapshots, NULL },
    { "stat", "", "list the daemon's counters", 0, 0, zctl_stat, NULL },
    { "tier", "set TIER SIZE", "change the budget of host or gpu; jobs move state as they step", 3,
      3, zctl_tier, NULL },
    { "tiers", "", "show each tier's budget and what it is used for", 0, 0, zctl_tiers, NULL },
    { "top", "[JOB]",
      "say what bounds the node now, and show rates, queues and who waits; q ends it", 0, 1,
      zctl_top, top_options },
    { "version", "", "print the version of zctl", 0, 0, zctl_version, NULL },
};

const struct zctl_cmd *zctl_commands(size_t *ret_count)
{
    *ret_count = ZB_COUNT(cmds);
    return cmds;
}

const struct zctl_cmd *zctl_command(const char *name)
{
    for (size_t i = 0; i < ZB_COUNT(cmds); i++)
        if (strcmp(cmds[i].name, name) == 0)
            return &cmds[i];
    return NULL;
}

/* ---- options: --socket, -o and --help are everybody's; the others are in the rows */

#define OF_COMMAND 256 /* what getopt_long() says of the nth option of commands: this + n */

/** The command that a line is probably of: the first word that is one. NULL: none is. */
static const struct zctl_cmd *command_guess(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "-s") == 0 || strcmp(argv[i], "-o") == 0 ||
            strcmp(argv[i], "--socket") == 0 || strcmp(argv[i], "--output") == 0)
            i++;
        else if (zctl_command(argv[i]))
            return zctl_command(argv[i]);
    return NULL;
}

static void options_add(const struct zctl_option *o, const struct zctl_option *ret[], size_t *n)
{
    for (; o && o->name; o++) {
        size_t k = 0;

        while (k < *n && strcmp(ret[k]->name, o->name) != 0)
            k++;
        assert(k < ZCTL_OPTIONS_MAX);
        if (k == *n)
            ret[(*n)++] = o;
    }
}

/** Every option of a command, once: whether one has a value, the command that is meant says. */
static size_t command_options(const struct zctl_option *ret[ZCTL_OPTIONS_MAX],
                              const struct zctl_cmd *meant)
{
    size_t n = 0;

    if (meant)
        options_add(meant->options, ret, &n);
    for (size_t i = 0; i < ZB_COUNT(cmds); i++)
        options_add(cmds[i].options, ret, &n);
    return n;
}

static int option_given(struct zctl *z, const struct zctl_option *o)
{
    if (zctl_option(z, o->name))
        return zb_fail(&z->err, -EINVAL, "option '--%s' is given twice", o->name);
    z->given[z->ngiven].name = o->name;
    z->given[z->ngiven++].value = o->value ? optarg : "";
    return 0;
}

static int option(struct zctl *z, int letter, char **argv, const struct zctl_option *const *all,
                  bool *ret_help)
{
    if (letter >= OF_COMMAND)
        return option_given(z, all[letter - OF_COMMAND]);
    switch (letter) {
    case 's':
        z->socket = optarg;
        return 0;
    case 'o':
        z->json = strcmp(optarg, "json") == 0;
        if (z->json || strcmp(optarg, "table") == 0)
            return 0;
        return zb_fail(&z->err, -EINVAL, "-o is json or table, not '%s'", optarg);
    case 'h':
        *ret_help = true;
        return 0;
    }
    if (optopt >= OF_COMMAND || (optopt && strchr("soh", optopt)))
        return zb_fail(&z->err, -EINVAL, "option '%s' %s; try: zctl help", argv[optind - 1],
                       letter == ':' ? "lacks its value" : "takes no value");
    if (optopt)
        return zb_fail(&z->err, -EINVAL, "no option '-%c'; try: zctl help", optopt);
    return zb_fail(&z->err, -EINVAL, "no option '%s'; try: zctl help", argv[optind - 1]);
}

/** Options may stand anywhere; argv is sorted for it. 0, and the words begin at optind. */
static int options(struct zctl *z, int argc, char **argv, bool *ret_help)
{
    struct option longs[ZCTL_OPTIONS_MAX + 4] = {
        { "socket", required_argument, NULL, 's' },
        { "output", required_argument, NULL, 'o' },
        { "help", no_argument, NULL, 'h' },
    };
    const struct zctl_option *all[ZCTL_OPTIONS_MAX];
    size_t n = command_options(all, command_guess(argc, argv));
    int letter, rc = 0;

    for (size_t i = 0; i < n; i++)
        longs[3 + i] = (struct option){ .name = all[i]->name,
                                        .has_arg = all[i]->value ? required_argument : no_argument,
                                        .val = OF_COMMAND + (int)i };
    optind = 0; /* begin again, whoever used it before */
    while (rc == 0 && (letter = getopt_long(argc, argv, ":s:o:h", longs, NULL)) != -1)
        rc = option(z, letter, argv, all, ret_help);
    return rc;
}

const char *zctl_option(const struct zctl *z, const char *name)
{
    for (size_t i = 0; i < z->ngiven; i++)
        if (strcmp(z->given[i].name, name) == 0)
            return z->given[i].value;
    return NULL;
}

int zctl_option_number(struct zctl *z, const char *name, uint64_t max, uint64_t *ret)
{
    const char *text = zctl_option(z, name);
    unsigned long long n;
    char *end;

    if (!text)
        return 0;
    errno = 0;
    n = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno || n > max)
        return zb_fail(&z->err, -EINVAL, "--%s is a number from 0 to %llu, not '%s'", name,
                       (unsigned long long)max, text);
    *ret = n;
    return 0;
}

int zctl_option_size(struct zctl *z, const char *name, uint64_t *ret)
{
    const char *text = zctl_option(z, name);
    struct zb_err why = { 0 };

    if (!text || zb_size_parse(text, ret, &why) == 0)
        return 0;
    return zb_fail(&z->err, -EINVAL, "--%s: %s", name, why.text);
}

static bool command_knows(const struct zctl_cmd *c, const char *name)
{
    for (const struct zctl_option *o = c->options; o && o->name; o++)
        if (strcmp(o->name, name) == 0)
            return true;
    return false;
}

/* ---- the program */

static int dispatch(struct zctl *z, int argc, char **argv)
{
    const struct zctl_cmd *c;

    if (argc == 0)
        return zb_fail(&z->err, -EINVAL, "which command? Try: zctl help");
    c = zctl_command(argv[0]);
    if (!c)
        return zb_fail(&z->err, -EINVAL, "no command '%s'; try: zctl help", argv[0]);
    if (argc - 1 < c->argc_min || argc - 1 > c->argc_max)
        return zb_fail(&z->err, -EINVAL, "usage: zctl %s%s%s", c->name, *c->args ? " " : "",
                       c->args);
    for (size_t i = 0; i < z->ngiven; i++)
        if (!command_knows(c, z->given[i].name))
            return zb_fail(&z->err, -EINVAL, "%s has no option '--%s'; try: zctl help %s", c->name,
                           z->given[i].name, c->name);
    return c->run(z, argc - 1, argv + 1);
}

int zctl_main(int argc, char **argv, FILE *out, FILE *err)
{
    struct zctl z = { .out = out };
    bool help = false;
    int rc = options(&z, argc, argv, &help);

    if (rc == 0 && help)
        rc = zctl_help(&z, optind < argc, argv + optind);
    else if (rc == 0)
        rc = dispatch(&z, argc - optind, argv + optind);
    if (rc < 0)
        (void)fprintf(err, "zctl: %s\n", z.err.text);
    zc_close(z.client);
    return z.status != 0 ? z.status : zc_exit_code(rc);
}

int main(int argc, char **argv)
{
    (void)signal(SIGPIPE, SIG_IGN); /* `zctl ls | head`: a failed write, not a signal */
    return zctl_main(argc, argv, stdout, stderr);
}
