/*
 * zbench.c - one subcommand for each claim about speed: the list of them, and main().
 *
 * A new one is a bench_<name>.c whose struct zbench_cmd is declared in zbench.h and listed here;
 * `--json` works for all.
 */
#include "bench/zbench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

static const struct zbench_cmd *const cmds[] = {
    &zbench_io,     &zbench_fetch,    &zbench_fetch_gpu, &zbench_adam,  &zbench_catalog,
    &zbench_comm,   &zbench_commit,   &zbench_overlap,   &zbench_gpu,   &zbench_hostile,
    &zbench_node,   &zbench_plan,     &zbench_ready,     &zbench_step,  &zbench_share,
    &zbench_ortho,  &zbench_snapshot, &zbench_torch,     &zbench_train, &zbench_turn_bounds,
    &zbench_steady,
};

/** Options of all subcommands; they may also precede its name. */
struct common {
    bool json, help;
};

static const struct zb_opt common_options[] = {
    { "json", ZB_OPT_FLAG, ZB_OPT_AT(struct common, json) },
    { "help", ZB_OPT_FLAG, ZB_OPT_AT(struct common, help) },
    { 0 },
};

static void usage(void)
{
    (void)fputs("usage: zbench COMMAND [--json] [OPTIONS]\n\n", stdout);
    for (size_t i = 0; i < ZB_COUNT(cmds); i++) {
        char begin[32];

        (void)snprintf(begin, sizeof(begin), "  %s", cmds[i]->name);
        zb_opt_usage(stdout, begin, cmds[i]->options);
        (void)fputs("        ", stdout);
        zb_opt_wrap(stdout, cmds[i]->help, 8);
    }
    (void)fputs("\n--json prints one JSON object instead of a table: bench/README.md\n", stdout);
}

/** The subcommand; of several with one name, the one whose flag was given. NULL: there is none. */
static const struct zbench_cmd *cmd_find(const char *name, int argc, char **argv)
{
    const struct zbench_cmd *found = NULL;

    for (size_t i = 0; i < ZB_COUNT(cmds); i++) {
        bool chosen = !cmds[i]->flag;

        if (strcmp(cmds[i]->name, name) != 0)
            continue;
        for (int k = 0; k < argc && !chosen; k++)
            chosen = strcmp(argv[k], cmds[i]->flag) == 0;
        found = chosen ? cmds[i] : found;
    }
    return found;
}

static int cmd_run(struct zbench *z, const struct zbench_cmd *cmd, int argc, char **argv)
{
    struct common common = { .json = false };
    struct zb_opts tables[] = { { .rows = common_options, .values = &common },
                                { .rows = cmd->options, .values = calloc(1, cmd->bytes) } };
    void *bench = tables[1].values;
    int rc = bench ? 0 : zb_fail(&z->err, -ENOMEM, "%s: %m", cmd->name);

    z->bench = cmd->name;
    if (rc == 0) {
        zb_opt_defaults(cmd->options, bench);
        rc = zb_opt_parse(tables, ZB_COUNT(tables), argc, argv, NULL, &z->err);
    }
    z->json = common.json;
    if (rc == 0 && common.help)
        usage();
    else if (rc == 0)
        rc = cmd->run(z, bench);
    if (rc == 0 && !common.help && z->count == 0)
        rc = zb_fail(&z->err, -EINVAL, "%s has no such case", z->bench);
    if (rc == 0 && !common.help)
        rc = zbench_print(z);
    free(bench);
    return rc;
}

/** Removes the subcommand's name from argv: it is the first word that is not an option. */
static const char *take_name(int *argc, char **argv)
{
    int at = 1;
    char *name;

    while (at < *argc && argv[at][0] == '-')
        at++;
    if (at == *argc)
        return "";
    name = argv[at];
    memmove(&argv[at], &argv[at + 1], (size_t)(*argc - at) * sizeof(*argv));
    --*argc;
    return name;
}

int main(int argc, char **argv)
{
    struct zbench z = { 0 };
    const struct zbench_cmd *cmd;
    const char *name = take_name(&argc, argv);
    int rc = 0;

    if (strcmp(name, "help") == 0 || (!*name && argc > 1 && strcmp(argv[1], "--help") == 0)) {
        usage();
        return EXIT_SUCCESS;
    }
    cmd = cmd_find(name, argc, argv);
    rc = cmd ? cmd_run(&z, cmd, argc - 1, argv + 1)
             : zb_fail(&z.err, -EINVAL, "unknown command '%s'; try: zbench help", name);
    if (rc < 0)
        (void)fprintf(stderr, "zbench: %s\n", z.err.text);
    zbench_done(&z);
    return rc == 0 ? EXIT_SUCCESS : rc == -EINVAL ? 2 : EXIT_FAILURE;
}
