/*
 * main.c - zctl: the rows of commands, options, exit status.
 *
 * A new command is a row here and a function in a cmd_*.c. Help, arity and completion read the
 * rows.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <string.h>

#include "base/util.h"
#include "client/zctl/zctl.h"

static const struct zctl_cmd cmds[] = {
    { "completion", "bash", "print completion for a shell: source <(zctl completion bash)", 1, 1,
      zctl_completion },
    { "destroy", "JOB", "end a kept job that nobody is attached to, and free its bytes", 1, 1,
      zctl_destroy },
    { "help", "[COMMAND]", "say what there is, or how a command is used", 0, 1, zctl_help },
    { "jobs", "[JOB]", "list jobs: state, ranks, steps, bytes", 0, 1, zctl_jobs },
    { "ls", "[JOB]", "list shards: where they are, their version, who pins them", 0, 1, zctl_ls },
    { "ping", "", "ask the daemon who it is, and how fast it answers", 0, 0, zctl_ping },
    { "stat", "", "list the daemon's counters", 0, 0, zctl_stat },
    { "tiers", "", "show each tier's budget and what it is used for", 0, 0, zctl_tiers },
    { "version", "", "print the version of zctl", 0, 0, zctl_version },
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
    return c->run(z, argc - 1, argv + 1);
}

static int option(struct zctl *z, int letter, char **argv, bool *ret_help)
{
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
    if (optopt && strchr("soh", optopt))
        return zb_fail(&z->err, -EINVAL, "option '%s' %s; try: zctl help", argv[optind - 1],
                       letter == ':' ? "lacks its value" : "takes no value");
    if (optopt)
        return zb_fail(&z->err, -EINVAL, "no option '-%c'; try: zctl help", optopt);
    return zb_fail(&z->err, -EINVAL, "no option '%s'; try: zctl help", argv[optind - 1]);
}

/** Options may stand anywhere; argv is sorted for it. 0, and the words begin at optind. */
static int options(struct zctl *z, int argc, char **argv, bool *ret_help)
{
    static const struct option longs[] = {
        { "socket", required_argument, NULL, 's' },
        { "output", required_argument, NULL, 'o' },
        { "help", no_argument, NULL, 'h' },
        { 0 },
    };
    int letter, rc = 0;

    optind = 0; /* begin again, whoever used it before */
    while (rc == 0 && (letter = getopt_long(argc, argv, ":s:o:h", longs, NULL)) != -1)
        rc = option(z, letter, argv, ret_help);
    return rc;
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
    return zc_exit_code(rc);
}

int main(int argc, char **argv)
{
    (void)signal(SIGPIPE, SIG_IGN); /* `zctl ls | head`: a failed write, not a signal */
    return zctl_main(argc, argv, stdout, stderr);
}
