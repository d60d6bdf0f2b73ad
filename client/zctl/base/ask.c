/*
 * ask.c - a question to the person at the terminal.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "client/zctl/base/zctl.h"

/** Reads a line. True: it is y or yes. */
static bool is_yes(FILE *in)
{
    char line[16] = "";

    if (!fgets(line, sizeof(line), in))
        return false;
    line[strcspn(line, "\n")] = '\0';
    return strcmp(line, "y") == 0 || strcmp(line, "yes") == 0;
}

bool zctl_asks(void)
{
    return isatty(STDIN_FILENO) != 0;
}

int zctl_ask(struct zctl *z, const char *format, ...)
{
    char name[64];
    va_list args;
    FILE *terminal;
    bool yes;

    if (!zctl_asks())
        return 0;
    /* not to the output, which may be a file */
    terminal = ttyname_r(STDIN_FILENO, name, sizeof(name)) == 0 ? fopen(name, "r+e") : NULL;
    if (!terminal)
        return zb_fail(&z->err, -EINTR, "the terminal: %m; --yes asks no question");
    va_start(args, format);
    (void)vfprintf(terminal, format, args);
    va_end(args);
    (void)fputs(" [y/N] ", terminal);
    (void)fflush(terminal);
    yes = is_yes(stdin);
    (void)fclose(terminal);
    return yes ? 0 : zb_fail(&z->err, -EINTR, "the answer was not yes: nothing was changed");
}
