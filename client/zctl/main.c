/*
 * main.c - zctl: the list of commands, the command line, exit status.
 *
 * A new command is a struct zctl_cmd in its room, and a name here. Help, the argument check and
 * completion are derived from it.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "client/zctl/cmd/cmd.h"
#include "client/zctl/doctor/doctor.h"
#include "client/zctl/plan/plan.h"
#include "client/zctl/top/top.h"
#include "client/zctl/zctl_main.h"

static const struct zctl_cmd *const cmds[] = {
    &zctl_clone,     &zctl_completion, &zctl_config,   &zctl_destroy, &zctl_df,    &zctl_doctor,
    &zctl_drive,     &zctl_events,     &zctl_export,   &zctl_fsck,    &zctl_help,  &zctl_import,
    &zctl_jobs,      &zctl_log_level,  &zctl_ls,       &zctl_metrics, &zctl_ping,  &zctl_plan,
    &zctl_quota,     &zctl_restart,    &zctl_rollback, &zctl_scrub,   &zctl_share, &zctl_snapshot,
    &zctl_snapshots, &zctl_stat,       &zctl_status,   &zctl_tier,    &zctl_tiers, &zctl_top,
    &zctl_version,
};

const struct zctl_cmd *const *zctl_commands(size_t *ret_count)
{
    *ret_count = ZB_COUNT(cmds);
    return cmds;
}

/** Whether a word is a common option whose value is the next word: "-o", "-Hpo", "--socket". */
static bool is_before_value(const char *word)
{
    const char *last = word + 1 + (word[0] ? strspn(word + 1, "hpH") : 0);

    if (word[0] == '-' && word[1] != '-')
        return (last[0] == 's' || last[0] == 'o') && !last[1];
    return strcmp(word, "--socket") == 0 || strcmp(word, "--output") == 0 ||
           strcmp(word, "--wait") == 0;
}

/** The command of a line: the first word that names one. NULL: there is none. *ret_word is the
 * first word, NULL if there is none. */
static const struct zctl_cmd *line_command(const struct zctl *z, int argc, char **argv,
                                           const char **ret_word)
{
    *ret_word = NULL;
    for (int i = 1; i < argc; i++) {
        if (is_before_value(argv[i])) {
            i++;
            continue;
        }
        if (zctl_command(z, argv[i]))
            return zctl_command(z, argv[i]);
        if (!*ret_word && argv[i][0] != '-')
            *ret_word = argv[i];
    }
    return NULL;
}

/** Parses the common options and those of cmd. The words are left at argv[0 .. *ret_words). */
static int line_read(struct zctl *z, const struct zctl_cmd *cmd, int argc, char **argv,
                     struct zctl_globals *globals, int *ret_words)
{
    struct zb_opts tables[] = { { .rows = zctl_options, .values = globals }, { .once = true } };
    int rc;

    zb_opt_defaults(zctl_options, globals);
    if (cmd && cmd->options) {
        tables[1].rows = cmd->options;
        tables[1].values = calloc(1, cmd->bytes);
        if (!tables[1].values)
            return zb_fail(&z->err, -ENOMEM, "%s: %m", cmd->name);
        zb_opt_defaults(cmd->options, tables[1].values);
    }
    rc = zb_opt_parse(tables, ZB_COUNT(tables), argc, argv, ret_words, &z->err);
    z->opts = tables[1];
    z->socket = globals->socket;
    z->wait_ms = (uint32_t)globals->wait_ms;
    return rc < 0 ? rc : zctl_output(z, cmd, &globals->output);
}

static int dispatch(struct zctl *z, const struct zctl_cmd *cmd, int argc, char **argv)
{
    if (argc == 0)
        return zb_fail(&z->err, -EINVAL, "no command is given; try: zctl help");
    if (!cmd || strcmp(argv[0], cmd->name) != 0)
        return zctl_unknown(z, argv[0]);
    if (argc - 1 < cmd->argc_min || argc - 1 > cmd->argc_max)
        return zb_fail(&z->err, -EINVAL, "usage: zctl %s%s%s", cmd->name, *cmd->args ? " " : "",
                       cmd->args);
    return cmd->run(z, argc - 1, argv + 1);
}

int zctl_main(int argc, char **argv, FILE *out, FILE *err)
{
    struct zctl z = { .cmds = cmds, .ncmds = ZB_COUNT(cmds), .out = out };
    const char *word;
    const struct zctl_cmd *cmd = line_command(&z, argc, argv, &word);
    struct zctl_globals globals = { .socket = NULL };
    int words = 0;
    int rc = line_read(&z, cmd, argc - 1, argv + 1, &globals, &words);

    if (rc == -EINVAL && !cmd && word)
        rc = zctl_unknown(&z, word); /* rather than its options */
    else if (rc == 0 && globals.help)
        rc = zctl_show_help(&z, cmd);
    else if (rc == 0 && globals.version)
        rc = zctl_version.run(&z, 0, NULL);
    else if (rc == 0)
        rc = dispatch(&z, cmd, words, argv + 1);
    if (rc < 0 && !z.unread)
        (void)fprintf(err, "zctl: %s\n", z.err.text);
    zc_close(z.client);
    free(z.opts.values);
    return z.status != 0 ? z.status : zc_exit_code(rc);
}

int main(int argc, char **argv)
{
    (void)signal(SIGPIPE, SIG_IGN); /* `zctl ls | head`: a failed write, not a signal */
    return zctl_main(argc, argv, stdout, stderr);
}
