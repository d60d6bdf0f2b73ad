/*
 * opt_file.c - a file of options: a sequence of NAME = VALUE.
 *
 * SYNTAX. A value is a word, or a text in double or single quotes, in which a backslash escapes the
 * next character. The value of an option with `list` may be a list: { VALUE, VALUE ... }. Blanks
 * and newlines only separate tokens. Comments: # or // to the end of the line, and those of C.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/near.h"
#include "base/opt.h"
#include "base/size.h"
#include "base/util.h"

#define FILE_BYTES_MAX ZB_MIB
#define TEXT_BYTES     4096 /* of one value, a whole list included */
#define SIGNS          "={},"

/** Kinds of a token: a character of SIGNS, or one of these; a negative errno is a failure. */
enum { TOKEN_END = 0, TOKEN_TEXT = 't' };

struct file {
    const struct zb_opt *rows;
    const char *path;
    const char *at; /* in its text */
    unsigned line;
    unsigned given[ZB_OPT_ROWS_MAX]; /* the line on which an option was given; 0: not yet */
    char token[TEXT_BYTES];          /* of TOKEN_TEXT */
    void *values;
    bool others; /* options without a row are skipped */
    struct zb_err *err;
};

/* ---- tokens */

/** The end of the comment that begins at p; p: there is none; NULL: it never ends. */
static const char *comment_end(const char *p)
{
    const char *end;

    if (p[0] == '#' || (p[0] == '/' && p[1] == '/'))
        return strchrnul(p, '\n');
    if (p[0] != '/' || p[1] != '*')
        return p;
    end = strstr(p + 2, "*/");
    return end ? end + 2 : NULL;
}

/** Skips blanks and comments. */
static int file_skip(struct file *f)
{
    for (;;) {
        const char *end = isspace((unsigned char)*f->at) ? f->at + 1 : comment_end(f->at);

        if (!end)
            return zb_fail(f->err, -EINVAL, "%s:%u: a comment that never ends", f->path, f->line);
        if (end == f->at)
            return 0;
        for (; f->at < end; f->at++)
            f->line += *f->at == '\n';
    }
}

static int token_put(struct file *f, size_t *n, char c)
{
    if (*n + 1 == sizeof(f->token))
        return zb_fail(f->err, -EINVAL, "%s:%u: a text of more than %zu bytes", f->path, f->line,
                       sizeof(f->token) - 1);
    f->token[(*n)++] = c;
    f->token[*n] = '\0';
    return TOKEN_TEXT;
}

static int token_quoted(struct file *f)
{
    char quote = *f->at++;
    int rc = TOKEN_TEXT;

    for (size_t n = 0; rc > 0 && *f->at != quote; f->at++) {
        f->at += f->at[0] == '\\' && f->at[1];
        if (!*f->at)
            return zb_fail(f->err, -EINVAL, "%s:%u: a quote that never ends", f->path, f->line);
        f->line += *f->at == '\n';
        rc = token_put(f, &n, *f->at);
    }
    f->at += rc > 0;
    return rc;
}

static int token_next(struct file *f)
{
    int rc = file_skip(f);

    f->token[0] = '\0';
    if (rc < 0 || !*f->at)
        return rc;
    if (strchr(SIGNS, *f->at))
        return *f->at++;
    if (*f->at == '"' || *f->at == '\'')
        return token_quoted(f);
    rc = TOKEN_TEXT;
    for (size_t n = 0; rc > 0 && *f->at && !isspace((unsigned char)*f->at) &&
                       !strchr(SIGNS "\"'", *f->at) && comment_end(f->at) == f->at;
         f->at++)
        rc = token_put(f, &n, *f->at);
    return rc;
}

/* ---- options */

/** Reads a list, after its opening brace, and joins its texts with `separator`. */
static int file_list(struct file *f, const char *name, const char *separator)
{
    char all[sizeof(f->token)] = "";
    int t = token_next(f);

    while (t == TOKEN_TEXT) {
        size_t len = strlen(all);

        if (!*f->token || strpbrk(f->token, separator))
            return zb_fail(f->err, -EINVAL, "%s:%u: %s: '%s' cannot be in a list", f->path, f->line,
                           name, f->token);
        if ((size_t)snprintf(all + len, sizeof(all) - len, "%s%s", len ? separator : "",
                             f->token) >= sizeof(all) - len)
            return zb_fail(f->err, -EINVAL, "%s:%u: %s: the list is too long", f->path, f->line,
                           name);
        t = token_next(f);
        if (t == ',')
            t = token_next(f);
        else if (t == TOKEN_TEXT)
            break;
    }
    memcpy(f->token, all, sizeof(all));
    if (t < 0)
        return t;
    return t == '}' ? TOKEN_TEXT
                    : zb_fail(f->err, -EINVAL, "%s:%u: %s: a list is { TEXT, TEXT ... }", f->path,
                              f->line, name);
}

/** The row of a name from the file, which has '_' for '-'; NULL: there is none. */
static const struct zb_opt *file_find(const struct zb_opt *rows, const char *token)
{
    char name[64];

    if (strlen(token) >= sizeof(name) || strchr(token, '-'))
        return NULL;
    for (size_t i = 0; i <= strlen(token); i++)
        name[i] = token[i] == '_' ? '-' : token[i];
    return zb_opt_find(rows, name, strlen(name));
}

/** Fails with an unknown option. Suggests a similar one, as a file names it, if there is one. */
static int file_unknown(const struct file *f)
{
    struct zb_near near = zb_near(f->token, strlen(f->token));
    char name[64];

    for (size_t i = 0; i < zb_opt_count(f->rows); i++)
        zb_near_try(&near, f->rows[i].name);
    if (!near.found)
        return zb_fail(f->err, -EINVAL, "%s:%u: unknown option '%s'", f->path, f->line, f->token);
    (void)snprintf(name, sizeof(name), "%s", near.found);
    for (char *at = name; *at; at++)
        *at = *at == '-' ? '_' : *at;
    return zb_fail(f->err, -EINVAL, "%s:%u: unknown option '%s'; did you mean '%s'?", f->path,
                   f->line, f->token, name);
}

/** Reads the value of `name`, after its name, into f->token. */
static int file_value(struct file *f, const char *name, const char *separator)
{
    int t = token_next(f);

    if (t >= 0 && t != '=')
        return zb_fail(f->err, -EINVAL, "%s:%u: %s has no '=' after it", f->path, f->line, name);
    if (t >= 0)
        t = token_next(f);
    if (t == '{' && separator)
        t = file_list(f, name, separator);
    if (t < 0 || t == TOKEN_TEXT)
        return t;
    return zb_fail(f->err, -EINVAL, "%s:%u: %s needs a value%s", f->path, f->line, name,
                   t == '{' ? ", not a list" : "");
}

/** Reads the rest of an option, after its name. */
static int file_option(struct file *f)
{
    const struct zb_opt *o = file_find(f->rows, f->token);
    unsigned *given = o ? &f->given[o - f->rows] : NULL;
    char name[64], where[PATH_MAX + 96];
    int t;

    if (!o && !f->others)
        return file_unknown(f);
    if (o && *given)
        return zb_fail(f->err, -EINVAL, "%s:%u: %s is given twice: first on line %u", f->path,
                       f->line, f->token, *given);
    if (o)
        *given = f->line;
    (void)snprintf(name, sizeof(name), "%.63s", f->token);
    t = file_value(f, name, o ? o->list : "\n");
    if (t < 0)
        return t;
    (void)snprintf(where, sizeof(where), "%s:%u: %s", f->path, f->line, name);
    return o ? zb_opt_set(o, f->values, f->token, where, f->err) : 0;
}

static int file_parse(struct file *f)
{
    int rc = 0, t;

    while (rc == 0 && (t = token_next(f)) != TOKEN_END)
        rc = t < 0             ? t
             : t == TOKEN_TEXT ? file_option(f)
                               : zb_fail(f->err, -EINVAL, "%s:%u: '%c' where an option should be",
                                         f->path, f->line, t);
    return rc;
}

/** Reads a whole regular file of limited size, and appends a NUL. */
static int file_read(const char *path, char **ret_text, struct zb_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    ssize_t n = 0;
    int rc = 0;

    if (fd < 0)
        return zb_fail(err, -errno, "configuration '%s': %m", path);
    if (fstat(fd, &st) < 0)
        rc = zb_fail(err, -errno, "configuration '%s': %m", path);
    else if (!S_ISREG(st.st_mode))
        rc = zb_fail(err, -EINVAL, "configuration '%s' is not a regular file", path);
    else if ((uint64_t)st.st_size > FILE_BYTES_MAX)
        rc = zb_fail(err, -EINVAL, "configuration '%s' is %s long; at most %s are read", path,
                     zb_size_text((uint64_t)st.st_size).s, zb_size_text(FILE_BYTES_MAX).s);
    else if ((*ret_text = calloc(1, (size_t)st.st_size + 1)) == NULL)
        rc = zb_fail(err, -ENOMEM, "configuration '%s': %m", path);
    else if ((n = read(fd, *ret_text, (size_t)st.st_size)) < 0)
        rc = zb_fail(err, -errno, "configuration '%s': %m", path);
    zb_close_fd(&fd);
    if (rc == 0 && memchr(*ret_text, '\0', (size_t)n))
        rc = zb_fail(err, -EINVAL, "configuration '%s' contains a NUL byte: it is not a text file",
                     path);
    return rc;
}

int zb_opt_file(const struct zb_opt *rows, void *values, const char *path, bool others,
                uint64_t *ret_given, struct zb_err *err)
{
    struct file f = {
        .rows = rows, .path = path, .line = 1, .values = values, .others = others, .err = err
    };
    char *text = NULL;
    int rc = file_read(path, &text, err);

    if (ret_given)
        *ret_given = 0;
    f.at = text;
    if (rc == 0)
        rc = file_parse(&f);
    for (size_t i = 0; rc == 0 && ret_given && i < ZB_OPT_ROWS_MAX; i++)
        *ret_given |= f.given[i] ? UINT64_C(1) << i : 0;
    free(text);
    return rc;
}
