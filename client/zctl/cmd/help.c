/*
 * help.c - help, completion and version, all generated from the commands' rows.
 */
#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "client/zctl/cmd/cmd.h"

#define AT(member) ZB_OPT_AT(struct zctl_globals, member)

const struct zb_opt zctl_options[] = {
    { "socket", ZB_OPT_TEXT, AT(socket), .letter = 's', .arg = "PATH",
      .help =
          "the daemon's socket; else $ZSHARD_SOCKET, else the first of "
          "$XDG_RUNTIME_DIR/zshard.sock and /run/zshard/zshard.sock at which a daemon answers" },
    { "wait", ZB_OPT_REAL, AT(wait_ms), .arg = "SECONDS", .max = 86400, .zero = true, .scale = 1000,
      .help = "how long to wait for a daemon that is starting", .absent = "not at all" },
    { "output", ZB_OPT_TEXT, AT(output.output), .letter = 'o', .arg = "FORM", .def = "table",
      .help = "table; json: one JSON object; list: a line for each value of a row; or columns of "
              "the table, by their names in the JSON: name,uid,host_bytes" },
    { "json", ZB_OPT_FLAG, AT(output.json), .help = "the same as --output json" },
    { "parsable", ZB_OPT_FLAG, AT(output.exact), .letter = 'p',
      .help = "exact numbers in tables: sizes in bytes, times in seconds since 1970; nothing is "
              "cut" },
    { "no-header", ZB_OPT_FLAG, AT(output.bare), .letter = 'H',
      .help = "for scripts: only rows, with one tab between columns" },
    { "help", ZB_OPT_FLAG, AT(help), .letter = 'h',
      .help = "show this help, or that of a command" },
    { "version", ZB_OPT_FLAG, AT(version),
      .help = "the version of zctl: the same as zctl version" },
    { 0 },
};

static int help_row(FILE *out, const struct zctl_cmd *c, int width)
{
    char words[64];

    (void)snprintf(words, sizeof(words), "%s%s%s", c->name, *c->args ? " " : "", c->args);
    return out ? fprintf(out, "  %-*s  %s\n", width, words, c->help) : (int)strlen(words);
}

static void help_all(const struct zctl *z)
{
    int width = 0;

    for (size_t i = 0; i < z->ncmds; i++) {
        int w = help_row(NULL, z->cmds[i], 0);

        width = w > width ? w : width;
    }
    (void)fputs("usage: zctl [OPTIONS] COMMAND [ARGUMENTS]\n"
                "\n"
                "Inspects and manages the shard daemon of this node.\n"
                "\n"
                "Commands:\n",
                z->out);
    for (size_t i = 0; i < z->ncmds; i++)
        (void)help_row(z->out, z->cmds[i], width);
    (void)fputs("\nOptions:\n", z->out);
    zb_opt_help(z->out, zctl_options);
    (void)fputs("\n"
                "zctl help COMMAND shows the options of a command; man zctl-COMMAND explains it.\n"
                "\n"
                "Exit status: 0; 2 usage; 3 the daemon is not there or was lost; 4 refused (does\n"
                "not fit, not allowed, not found); 6 stored bytes are corrupt; 7 a plan that does\n"
                "not fit; 8 a job that saved something, and is destroyed without --force,\n"
                "or the status of a daemon that is not healthy; 1 anything else.\n",
                z->out);
}

/* The names of a command's columns. */
static void help_columns(FILE *out, const struct zctl_cmd *cmd)
{
    char names[1024] = "";

    for (size_t i = 0, at = 0; i < cmd->ncolumns && at < sizeof(names); i++)
        at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", i > 0 ? ", " : "",
                               cmd->columns[i].key);
    if (!cmd->columns)
        return;
    (void)fputs("\nColumns, for -o:\n  ", out);
    zb_opt_wrap(out, names, 2);
}

int zctl_show_help(struct zctl *z, const struct zctl_cmd *cmd)
{
    char begin[64];

    if (!cmd) {
        help_all(z);
        return zctl_written(z);
    }
    (void)snprintf(begin, sizeof(begin), "usage: zctl %s%s%s", cmd->name, *cmd->args ? " " : "",
                   cmd->args);
    zb_opt_usage(z->out, begin, cmd->options);
    (void)fprintf(z->out, "\n%s\n%s", cmd->help, cmd->options ? "\n" : "");
    zb_opt_help(z->out, cmd->options);
    help_columns(z->out, cmd);
    (void)fprintf(z->out, "\nMan page: zctl-%s(1)\n", cmd->name);
    return zctl_written(z);
}

static int help(struct zctl *z, int argc, char **argv)
{
    const struct zctl_cmd *cmd = argc > 0 ? zctl_command(z, argv[0]) : NULL;

    if (argc > 0 && !cmd)
        return zctl_unknown(z, argv[0]);
    return zctl_show_help(z, cmd);
}

const struct zctl_cmd zctl_help = {
    .name = "help",
    .args = "[COMMAND]",
    .help = "list the commands, or explain one",
    .argc_min = 0,
    .argc_max = 1,
    .run = help,
};

static int version(struct zctl *z, int argc, char **argv)
{
    static const struct zctl_column columns[] = { { "version", ZCTL_TEXT, 0, ZCTL_SHOWN, NULL,
                                                    0 } };

    (void)argc;
    (void)argv;
    if (z->json)
        return zctl_print(z, columns, ZB_COUNT(columns), ZSHARD_VERSION, 1, sizeof(ZSHARD_VERSION));
    (void)fputs("zctl " ZSHARD_VERSION "\n", z->out);
    return zctl_written(z);
}

const struct zctl_cmd zctl_version = {
    .name = "version",
    .args = "",
    .help = "print the version of zctl",
    .argc_min = 0,
    .argc_max = 0,
    .run = version,
};

/* Completes a command's options and arguments: literal words ("bash", "[start|stop]") as they are,
 * "JOB" by the existing jobs, "PATH" by files. */
static void completion_row(FILE *out, const struct zctl_cmd *c)
{
    (void)fprintf(out, "    %s) words=\"", c->name);
    if (strstr(c->args, "JOB"))
        (void)fputs("$(zctl --json jobs 2>/dev/null | "
                    "sed -n 's/^ *\"name\": \"\\(.*\\)\",$/\\1/p')",
                    out);
    else if (strstr(c->args, "COMMAND"))
        (void)fputs("$commands", out);
    else if (!strstr(c->args, "PATH"))
        for (const char *at = c->args; *at; at++)
            if (*at != '[' && *at != ']')
                (void)fputc(*at == '|' ? ' ' : *at, out);
    if (strstr(c->args, "PATH"))
        (void)fputs(" $(compgen -f -- \"$current\")", out);
    for (const struct zb_opt *o = c->options; o && o->name; o++)
        (void)fprintf(out, " --%s", o->name);
    (void)fputs("\" ;;\n", out);
}

/* Completes the value of -o: a form, or columns of the command, of which there may be several. */
static void completion_columns(const struct zctl *z)
{
    (void)fputs("    if [[ $before == --output || $before =~ ^-[pH]*o$ ]]; then\n"
                "        words='json list table'\n"
                "        case $command in\n",
                z->out);
    for (size_t i = 0; i < z->ncmds; i++) {
        const struct zctl_cmd *c = z->cmds[i];

        if (!c->columns)
            continue;
        (void)fprintf(z->out, "        %s) words+='", c->name);
        for (size_t k = 0; k < c->ncolumns; k++)
            (void)fprintf(z->out, " %s", c->columns[k].key);
        (void)fputs("' ;;\n", z->out);
    }
    (void)fputs(
        "        esac\n"
        "        COMPREPLY=($(compgen -P \"${current%\"${current##*,}\"}\" -W \"$words\" -- "
        "\"${current##*,}\"))\n"
        "        return\n"
        "    fi\n",
        z->out);
}

static int completion(struct zctl *z, int argc, char **argv)
{
    (void)argc;
    if (strcmp(argv[0], "bash") != 0)
        return zb_fail(&z->err, -EINVAL, "no completion for '%s', only for bash", argv[0]);
    (void)fputs("# Completion of zctl for bash. To use it: source <(zctl completion bash)\n"
                "_zctl()\n"
                "{\n"
                "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n"
                "    local command= words= i commands='",
                z->out);
    for (size_t i = 0; i < z->ncmds; i++)
        (void)fprintf(z->out, "%s%s", i > 0 ? " " : "", z->cmds[i]->name);
    (void)fputs("'\n"
                "    COMPREPLY=()\n"
                "    case $before in\n"
                "    -s | --socket | --data | --config) COMPREPLY=($(compgen -f -- \"$current\")); "
                "return ;;\n"
                "    esac\n"
                "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
                "        case ${COMP_WORDS[i]} in\n"
                "        -o | -[pH]o | -[pH][pH]o | -s | --socket | --output | --wait) ((i++)) ;;\n"
                "        -*) ;;\n"
                "        *) command=${COMP_WORDS[i]}; break ;;\n"
                "        esac\n"
                "    done\n",
                z->out);
    completion_columns(z);
    (void)fputs(
        "    case $command in\n"
        "    '') words=\"$commands -o -p -H -s --socket --wait --json --help --version\" ;;\n",
        z->out);
    for (size_t i = 0; i < z->ncmds; i++)
        if (*z->cmds[i]->args || z->cmds[i]->options)
            completion_row(z->out, z->cmds[i]);
    (void)fputs("    esac\n"
                "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
                "}\n"
                "complete -F _zctl zctl\n",
                z->out);
    return zctl_written(z);
}

const struct zctl_cmd zctl_completion = {
    .name = "completion",
    .args = "bash",
    .help = "print completion for a shell: source <(zctl completion bash)",
    .argc_min = 1,
    .argc_max = 1,
    .run = completion,
};
