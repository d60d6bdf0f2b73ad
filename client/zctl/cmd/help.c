/*
 * help.c - help, completion and version: what zctl says of itself, all from the rows.
 */
#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "client/zctl/base/zctl.h"

static const char usage_tail[] =
    "\n"
    "Options:\n"
    "  -s, --socket PATH    the daemon's socket; else $ZSHARD_SOCKET, else\n"
    "                       $XDG_RUNTIME_DIR/zshard.sock, else /run/zshard/zshard.sock\n"
    "  -o json|table        one JSON object for programs, or columns for people (default)\n"
    "  -h, --help           this\n"
    "\n"
    "Exit status: 0; 2 usage; 3 the daemon is not there or was lost; 4 refused (does not fit,\n"
    "not allowed, not found); 6 stored bytes are corrupt; 7 a plan that does not fit; 1 anything\n"
    "else.\n";

static int help_row(FILE *out, const struct zctl_cmd *c, int width)
{
    char words[64];

    (void)snprintf(words, sizeof(words), "%s%s%s", c->name, *c->args ? " " : "", c->args);
    return out ? fprintf(out, "  %-*s  %s\n", width, words, c->help) : (int)strlen(words);
}

void zctl_print_help(FILE *out)
{
    size_t n;
    const struct zctl_cmd *rows = zctl_commands(&n);
    int width = 0;

    for (size_t i = 0; i < n; i++) {
        int w = help_row(NULL, &rows[i], 0);

        width = w > width ? w : width;
    }
    (void)fputs("usage: zctl [OPTIONS] COMMAND [ARGUMENTS]\n"
                "\n"
                "Looks inside the shard daemon of this node, and after what it keeps.\n"
                "\n"
                "Commands:\n",
                out);
    for (size_t i = 0; i < n; i++)
        (void)help_row(out, &rows[i], width);
    (void)fputs(usage_tail, out);
}

static int written(struct zctl *z)
{
    return fflush(z->out) != 0 || ferror(z->out) ? zb_fail(&z->err, -EIO, "write the output: %m")
                                                 : 0;
}

static void help_option(FILE *out, const struct zctl_option *o)
{
    char words[64];

    (void)snprintf(words, sizeof(words), "--%s%s%s", o->name, o->value ? " " : "",
                   o->value ? o->value : "");
    (void)fprintf(out, "  %-20s %s\n", words, o->help);
}

int zctl_help(struct zctl *z, int argc, char **argv)
{
    const struct zctl_cmd *c;

    if (argc == 0) {
        zctl_print_help(z->out);
        return written(z);
    }
    c = zctl_command(argv[0]);
    if (!c)
        return zb_fail(&z->err, -EINVAL, "no command '%s'; try: zctl help", argv[0]);
    (void)fprintf(z->out, "usage: zctl %s%s%s", c->name, *c->args ? " " : "", c->args);
    for (const struct zctl_option *o = c->options; o && o->name; o++)
        (void)fprintf(z->out, " [--%s%s%s]", o->name, o->value ? " " : "",
                      o->value ? o->value : "");
    (void)fprintf(z->out, "\n\n%s\n%s", c->help, c->options ? "\n" : "");
    for (const struct zctl_option *o = c->options; o && o->name; o++)
        help_option(z->out, o);
    return written(z);
}

int zctl_version(struct zctl *z, int argc, char **argv)
{
    static const struct zctl_column columns[] = { { "version", ZCTL_TEXT, 0, ZCTL_SHOWN } };

    (void)argc;
    (void)argv;
    if (z->json)
        return zctl_print(z, columns, ZB_COUNT(columns), ZSHARD_VERSION, 1, sizeof(ZSHARD_VERSION));
    (void)fputs("zctl " ZSHARD_VERSION "\n", z->out);
    return written(z);
}

/* The words of a row's args that are written as they stand, and its options: of "bash" bash, of
 * "[start|stop]" both, of "[JOB]" the jobs that there are, of "PATH" files. */
static void completion_row(FILE *out, const struct zctl_cmd *c)
{
    (void)fprintf(out, "    %s) words=\"", c->name);
    if (strstr(c->args, "JOB"))
        (void)fputs("$(zctl jobs 2>/dev/null | awk 'NR > 1 { print $1 }')", out);
    else if (strstr(c->args, "COMMAND"))
        (void)fputs("$commands", out);
    else if (!strstr(c->args, "PATH"))
        for (const char *at = c->args; *at; at++)
            if (*at != '[' && *at != ']')
                (void)fputc(*at == '|' ? ' ' : *at, out);
    if (strstr(c->args, "PATH"))
        (void)fputs(" $(compgen -f -- \"$current\")", out);
    for (const struct zctl_option *o = c->options; o && o->name; o++)
        (void)fprintf(out, " --%s", o->name);
    (void)fputs("\" ;;\n", out);
}

int zctl_completion(struct zctl *z, int argc, char **argv)
{
    size_t n;
    const struct zctl_cmd *rows = zctl_commands(&n);

    (void)argc;
    if (strcmp(argv[0], "bash") != 0)
        return zb_fail(&z->err, -EINVAL, "no completion for '%s', only for bash", argv[0]);
    (void)fputs("# Completion of zctl for bash. To use it: source <(zctl completion bash)\n"
                "_zctl()\n"
                "{\n"
                "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n"
                "    local command= words= i commands='",
                z->out);
    for (size_t i = 0; i < n; i++)
        (void)fprintf(z->out, "%s%s", i > 0 ? " " : "", rows[i].name);
    (void)fputs("'\n"
                "    COMPREPLY=()\n"
                "    case $before in\n"
                "    -o) COMPREPLY=($(compgen -W 'json table' -- \"$current\")); return ;;\n"
                "    -s | --socket | --data) COMPREPLY=($(compgen -f -- \"$current\")); return ;;\n"
                "    esac\n"
                "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
                "        case ${COMP_WORDS[i]} in\n"
                "        -o | -s | --socket) ((i++)) ;;\n"
                "        -*) ;;\n"
                "        *) command=${COMP_WORDS[i]}; break ;;\n"
                "        esac\n"
                "    done\n"
                "    case $command in\n"
                "    '') words=\"$commands -o -s --socket --help\" ;;\n",
                z->out);
    for (size_t i = 0; i < n; i++)
        if (*rows[i].args || rows[i].options)
            completion_row(z->out, &rows[i]);
    (void)fputs("    esac\n"
                "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
                "}\n"
                "complete -F _zctl zctl\n",
                z->out);
    return written(z);
}
