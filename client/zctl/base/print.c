/*
 * print.c - rows of structs: an aligned table for people, one JSON object for programs.
 *
 * The JSON is {"schema": ZCTL_SCHEMA, "rows": [{key: value ...} ...]}: every column of every row,
 * numbers as numbers, text in full, keys in the order of the columns. Some commands add an array of
 * messages. Both outputs come from the same columns; the table leaves out ZCTL_JSON_ONLY ones.
 *
 * THE TABLE has the same columns whatever its rows contain, and is at most LINE_COLUMNS wide. If it
 * would be wider, the widest text is cut ("name-of-a-lo..."), but text in the last column continues
 * on further lines. Empty text is printed as "-". A style (zctl_style) changes this: for scripts a
 * tab between cells, nothing cut, and exact numbers; other columns; or a list, with one line for
 * each value of a row.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/size.h"
#include "base/util.h"
#include "client/zctl/base/zctl.h"

#define CELL_MAX     512
#define LINE_COLUMNS 100u /* maximum width of a table */
#define TEXT_LEAST   8u   /* a text is not cut below this width, */
#define LAST_LEAST   24u  /* nor one that continues on further lines below this one */
#define GAP          2u

/* ---- one value */

static const void *value_at(const struct zctl_column *c, const void *row)
{
    return (const char *)row + c->offset;
}

static void time_text(uint64_t unix_seconds, char *cell)
{
    time_t t = (time_t)zb_min_u64(unix_seconds, INT32_MAX);
    struct tm tm;

    if (!localtime_r(&t, &tm) || strftime(cell, CELL_MAX, "%Y-%m-%dT%H:%M:%S%z", &tm) == 0)
        (void)snprintf(cell, CELL_MAX, "%" PRIu64, unix_seconds);
}

/** For scripts: without units, rounding and names. False: the type has no such form. */
static bool value_exact(const struct zctl_column *c, const void *row, char *cell)
{
    const void *v = value_at(c, row);

    if (c->type == ZCTL_SIZE || c->type == ZCTL_TIME)
        (void)snprintf(cell, CELL_MAX, "%" PRIu64, *(const uint64_t *)v);
    else if (c->type == ZCTL_USER)
        (void)snprintf(cell, CELL_MAX, "%" PRIu32, *(const uint32_t *)v);
    else if (c->type == ZCTL_DOUBLE || (c->type == ZCTL_SHARE && *(const double *)v >= 0))
        (void)snprintf(cell, CELL_MAX, "%.6g", *(const double *)v);
    else
        return false;
    return true;
}

static void value_text(const struct zctl_column *c, const void *row, char *cell)
{
    const void *v = value_at(c, row);

    switch (c->type) {
    case ZCTL_TEXT:
        (void)snprintf(cell, CELL_MAX, "%s", *(const char *)v ? (const char *)v : "-");
        return;
    case ZCTL_U32:
        (void)snprintf(cell, CELL_MAX, "%" PRIu32, *(const uint32_t *)v);
        return;
    case ZCTL_USER:
        (void)snprintf(cell, CELL_MAX, "%s", zctl_user(*(const uint32_t *)v).name);
        return;
    case ZCTL_U64:
        (void)snprintf(cell, CELL_MAX, "%" PRIu64, *(const uint64_t *)v);
        return;
    case ZCTL_SIZE:
        (void)snprintf(cell, CELL_MAX, "%s", zb_size_text(*(const uint64_t *)v).s);
        return;
    case ZCTL_TIME:
        time_text(*(const uint64_t *)v, cell);
        return;
    case ZCTL_BOOL:
        (void)snprintf(cell, CELL_MAX, "%s", *(const bool *)v ? "yes" : "no");
        return;
    case ZCTL_DOUBLE:
        (void)snprintf(cell, CELL_MAX, "%.1f", *(const double *)v);
        return;
    case ZCTL_SHARE:
        if (*(const double *)v < 0)
            (void)snprintf(cell, CELL_MAX, "-");
        else
            (void)snprintf(cell, CELL_MAX, "%.0f%%", 100 * *(const double *)v);
        return;
    }
}

/** jansson's integers are signed; our counters do not come near their limit. */
static json_t *integer(uint64_t n)
{
    return json_integer((json_int_t)zb_min_u64(n, INT64_MAX));
}

static json_t *value_json(const struct zctl_column *c, const void *row)
{
    const void *v = value_at(c, row);

    switch (c->type) {
    case ZCTL_TEXT:
        return json_string(v);
    case ZCTL_U32:
    case ZCTL_USER:
        return integer(*(const uint32_t *)v);
    case ZCTL_U64:
    case ZCTL_SIZE:
    case ZCTL_TIME:
        return integer(*(const uint64_t *)v);
    case ZCTL_BOOL:
        return json_boolean(*(const bool *)v);
    case ZCTL_DOUBLE:
        return json_real(*(const double *)v);
    case ZCTL_SHARE:
        return *(const double *)v < 0 ? json_null() : json_real(*(const double *)v);
    }
    return NULL;
}

/* ---- the table */

struct table {
    const struct zctl_style *style;
    const struct zctl_column *columns; /* in table_print(): the chosen ones */
    size_t ncolumns, nrows, row_bytes;
    const char *rows;
    const char *key; /* of the messages in the JSON; NULL: there are none */
    const struct zc_message *messages;
    size_t nmessages;
    const char *below; /* lines for people; NULL: none */
};

/** The heading, or the key in upper case. "_bytes" is left out, since each cell has its unit. A
 *  suffix "_s" after it (per second) becomes "/S". */
static void column_heading(const struct zctl_column *c, char *cell)
{
    const char *end = c->type == ZCTL_SIZE ? strstr(c->key, "_bytes") : NULL;
    size_t len = end ? (size_t)(end - c->key) : strlen(c->key), n = 0;

    if (c->heading) {
        (void)snprintf(cell, CELL_MAX, "%s", c->heading);
        return;
    }
    for (; n < len && n + 1 < CELL_MAX; n++)
        cell[n] = (char)toupper((unsigned char)c->key[n]);
    (void)snprintf(cell + n, CELL_MAX - n, "%s", end && strcmp(end, "_bytes_s") == 0 ? "/S" : "");
}

static bool is_text(const struct zctl_column *c)
{
    return c->type == ZCTL_TEXT || c->type == ZCTL_BOOL || c->type == ZCTL_USER;
}

/** Number of characters of a UTF-8 text. */
static size_t text_columns(const char *text)
{
    size_t n = 0;

    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/** Number of bytes of its first `columns` characters. */
static size_t text_bytes(const char *text, size_t columns)
{
    const char *at = text;

    for (; *at; at++)
        if (((unsigned char)*at & 0xc0) != 0x80 && columns-- == 0)
            break;
    return (size_t)(at - text);
}

static void cell_text(const struct table *t, const struct zctl_column *c, const char *row,
                      char *cell)
{
    if (!t->style->exact || !value_exact(c, row, cell))
        value_text(c, row, cell);
}

static size_t column_width(const struct table *t, const struct zctl_column *c)
{
    char cell[CELL_MAX];
    size_t width;

    column_heading(c, cell);
    width = text_columns(cell);
    for (size_t i = 0; i < t->nrows; i++) {
        cell_text(t, c, t->rows + i * t->row_bytes, cell);
        width = zb_max_u64(width, text_columns(cell));
    }
    return c->width_max > 0 && !t->style->exact ? zb_min_u64(width, c->width_max) : width;
}

/** Reduces widths, that of the widest text first, until the columns fit a line. */
static void widths_fit(const struct table *t, size_t *widths, size_t last)
{
    size_t total = 0, least, cut;

    for (size_t c = 0; c < t->ncolumns; c++)
        total += widths[c] + (c != last ? GAP : 0);
    if (is_text(&t->columns[last]) && total > LINE_COLUMNS) { /* it continues on further lines */
        least = zb_min_u64(widths[last], LAST_LEAST);
        cut = zb_min_u64(total - LINE_COLUMNS, widths[last] - least);
        widths[last] -= cut;
        total -= cut;
    }
    while (total > LINE_COLUMNS) {
        size_t widest = t->ncolumns;

        for (size_t c = 0; c < t->ncolumns; c++)
            if (c != last && t->columns[c].type == ZCTL_TEXT && widths[c] > TEXT_LEAST &&
                (widest == t->ncolumns || widths[c] > widths[widest]))
                widest = c;
        if (widest == t->ncolumns)
            return; /* nothing is left to cut */
        widths[widest]--;
        total--;
    }
}

static void pad(FILE *out, size_t n)
{
    (void)fprintf(out, "%*s", (int)n, "");
}

/** Prints the last text of a line. Words that do not fit continue on further lines, at `indent`. */
static void last_print(FILE *out, const char *text, size_t width, size_t indent)
{
    while (text_columns(text) > width) {
        size_t fits = text_bytes(text, width), n = fits;

        while (n > 0 && text[n] != ' ')
            n--;
        n = n > 0 ? n : fits;
        (void)fprintf(out, "%.*s\n", (int)n, text);
        text += n + strspn(text + n, " ");
        pad(out, *text ? indent : 0);
        if (!*text)
            return;
    }
    (void)fprintf(out, "%s\n", text);
}

/** Text is left-aligned, numbers right-aligned. There is no padding after the last cell. */
static void cell_print(FILE *out, const struct zctl_column *c, const char *cell, size_t width)
{
    static const char dots[] = "...";
    size_t columns = text_columns(cell);

    if (columns > width) {
        (void)fprintf(out, "%.*s%s", (int)text_bytes(cell, width - strlen(dots)), cell, dots);
        columns = width;
    } else if (is_text(c)) {
        (void)fputs(cell, out);
    }
    pad(out, width - columns + (is_text(c) ? GAP : 0));
    if (!is_text(c))
        (void)fprintf(out, "%s%*s", cell, (int)GAP, "");
}

/** Prints one line; row NULL: the headings. */
static void line_print(FILE *out, const struct table *t, const char *row, const size_t *widths)
{
    size_t indent = 0, last = t->ncolumns - 1;
    char cell[CELL_MAX];

    for (size_t c = 0; c <= last; c++) {
        if (row)
            cell_text(t, &t->columns[c], row, cell);
        else
            column_heading(&t->columns[c], cell);
        if (c != last)
            cell_print(out, &t->columns[c], cell, widths[c]);
        else if (is_text(&t->columns[c]))
            last_print(out, cell, widths[c], indent);
        else
            (void)fprintf(out, "%*s\n", (int)widths[c], cell);
        indent += widths[c] + GAP;
    }
}

/** Rows in aligned columns. */
static int aligned_print(FILE *out, const struct table *t)
{
    size_t *widths = calloc(t->ncolumns, sizeof(*widths));

    if (!widths)
        return -ENOMEM;
    for (size_t c = 0; c < t->ncolumns; c++)
        widths[c] = column_width(t, &t->columns[c]);
    if (!t->style->exact)
        widths_fit(t, widths, t->ncolumns - 1);
    line_print(out, t, NULL, widths);
    for (size_t i = 0; i < t->nrows; i++)
        line_print(out, t, t->rows + i * t->row_bytes, widths);
    free(widths);
    return 0;
}

/** A cell that is one field whatever it contains. */
static void field_print(FILE *out, const struct table *t, const struct zctl_column *c,
                        const char *row, char end)
{
    char cell[CELL_MAX];

    cell_text(t, c, row, cell);
    for (char *at = cell; *at; at++)
        *at = *at == '\t' || *at == '\n' ? ' ' : *at;
    (void)fprintf(out, "%s%c", cell, end);
}

/** Rows for scripts: without headings, with a tab between cells. */
static void bare_print(FILE *out, const struct table *t)
{
    for (size_t i = 0; i < t->nrows; i++)
        for (size_t c = 0; c < t->ncolumns; c++)
            field_print(out, t, &t->columns[c], t->rows + i * t->row_bytes,
                        c + 1 < t->ncolumns ? '\t' : '\n');
}

/** Each value of a row on a line of its own, after its key. A size is also given in bytes. */
static void list_print(FILE *out, const struct table *t)
{
    size_t width = 0;
    char cell[CELL_MAX];

    for (size_t c = 0; c < t->ncolumns; c++)
        width = zb_max_u64(width, strlen(t->columns[c].key));
    for (size_t i = 0; i < t->nrows; i++) {
        const char *row = t->rows + i * t->row_bytes;

        if (i > 0)
            (void)fputc('\n', out);
        for (size_t c = 0; c < t->ncolumns; c++) {
            cell_text(t, &t->columns[c], row, cell);
            (void)fprintf(out, "%-*s  %s", (int)width, t->columns[c].key, cell);
            if (t->columns[c].type == ZCTL_SIZE && !t->style->exact)
                (void)fprintf(out, " (%" PRIu64 ")",
                              *(const uint64_t *)value_at(&t->columns[c], row));
            (void)fputc('\n', out);
        }
    }
}

/** Copies the columns that the style wants. Returns their number, or -EINVAL: one of its names is
 * none of them. */
static int columns_choose(const struct table *t, struct zctl_column *to)
{
    const char *names = t->style->columns;
    int n = 0;

    for (size_t c = 0; !names && c < t->ncolumns; c++)
        if (t->columns[c].shown == ZCTL_SHOWN || t->style->list)
            to[n++] = t->columns[c];
    for (const char *at = names ? names : ""; *at && n < (int)ZCTL_COLUMNS_MAX; n++) {
        size_t len = strcspn(at, ",");
        const struct zctl_column *c = zctl_column(t->columns, t->ncolumns, at, len);

        if (!c)
            return -EINVAL;
        to[n] = *c;
        at += len + (at[len] == ',');
    }
    return n;
}

static int table_print(FILE *out, const struct table *all)
{
    struct zctl_column chosen[ZCTL_COLUMNS_MAX];
    struct table t = *all;
    int rc = columns_choose(all, chosen);

    if (rc < 0)
        return rc;
    t.columns = chosen;
    t.ncolumns = (size_t)rc;
    rc = 0;
    if (t.style->list)
        list_print(out, &t);
    else if (t.style->bare)
        bare_print(out, &t);
    else if (t.ncolumns > 0)
        rc = aligned_print(out, &t);
    if (rc < 0 || t.style->bare)
        return rc;
    for (size_t i = 0; i < t.nmessages; i++)
        (void)fprintf(out, "%s\n", t.messages[i].text);
    if (t.below && !t.style->list && !t.style->columns)
        (void)fputs(t.below, out);
    return 0;
}

/* ---- JSON */

static json_t *row_json(const struct table *t, size_t i)
{
    json_t *object = json_object();

    for (size_t c = 0; c < t->ncolumns; c++)
        if (json_object_set_new(object, t->columns[c].key,
                                value_json(&t->columns[c], t->rows + i * t->row_bytes)) < 0) {
            json_decref(object);
            return NULL;
        }
    return object;
}

static json_t *messages_json(const struct table *t)
{
    json_t *all = json_array();

    for (size_t i = 0; i < t->nmessages; i++)
        if (json_array_append_new(all, json_string(t->messages[i].text)) < 0) {
            json_decref(all);
            return NULL;
        }
    return all;
}

static json_t *table_json(const struct table *t)
{
    json_t *rows = json_array();

    for (size_t i = 0; i < t->nrows; i++)
        if (json_array_append_new(rows, row_json(t, i)) < 0) {
            json_decref(rows);
            return NULL;
        }
    if (!t->key)
        return json_pack("{s:i, s:o}", "schema", ZCTL_SCHEMA, "rows", rows);
    return json_pack("{s:i, s:o, s:o}", "schema", ZCTL_SCHEMA, "rows", rows, t->key,
                     messages_json(t));
}

int zctl_dump(FILE *out, json_t *all, size_t flags)
{
    int rc = all ? 0 : -ENOMEM;

    if (all && (json_dumpf(all, out, flags) < 0 || fputc('\n', out) == EOF) && !ferror(out))
        rc = -ENOMEM;
    json_decref(all);
    return rc;
}

int zctl_table(FILE *out, const struct zctl_column *columns, size_t ncolumns, const void *rows,
               size_t nrows, size_t row_bytes)
{
    static const struct zctl_style plain = { .list = false };
    const struct table t = {
        &plain, columns, ncolumns, nrows, row_bytes, rows, NULL, NULL, 0, NULL
    };

    return table_print(out, &t);
}

struct json_t *zctl_row_json(const struct zctl_column *columns, size_t ncolumns, const void *row)
{
    const struct table t = { NULL, columns, ncolumns, 1, 0, row, NULL, NULL, 0, NULL };

    return row_json(&t, 0);
}

const struct zctl_column *zctl_column(const struct zctl_column *columns, size_t ncolumns,
                                      const char *name, size_t len)
{
    for (size_t i = 0; i < ncolumns; i++)
        if (strncasecmp(columns[i].key, name, len) == 0 && columns[i].key[len] == '\0')
            return &columns[i];
    return NULL;
}

/** Whether the output is a pipe that nobody reads. An earlier write may have failed: its errno is
 * lost. */
static bool reader_gone(FILE *out)
{
    struct pollfd p = { .fd = fileno(out), .events = POLLOUT };

    return p.fd >= 0 && poll(&p, 1, 0) == 1 && (p.revents & POLLERR);
}

int zctl_written(struct zctl *z)
{
    bool failed = ferror(z->out) != 0;
    int code;

    errno = 0;
    if (fflush(z->out) == 0 && !failed)
        return 0;
    code = errno;
    z->unread = code == EPIPE || reader_gone(z->out);
    errno = code;
    return zb_fail(&z->err, -EIO, "write the output: %m");
}

static int print(struct zctl *z, const struct table *t)
{
    int rc = z->json ? zctl_dump(z->out, table_json(t), JSON_INDENT(2) | JSON_REAL_PRECISION(6))
                     : table_print(z->out, t);

    if (rc == -EINVAL)
        return zb_fail(&z->err, rc, "--output '%s': not all of these are columns of this output",
                       z->style.columns);
    return rc < 0 ? zb_fail(&z->err, rc, "the output: %m") : zctl_written(z);
}

int zctl_print(struct zctl *z, const struct zctl_column *columns, size_t ncolumns, const void *rows,
               size_t nrows, size_t row_bytes)
{
    const struct table t = { &z->style, columns, ncolumns, nrows, row_bytes,
                             rows,      NULL,    NULL,     0,     NULL };

    return print(z, &t);
}

int zctl_print_more(struct zctl *z, const struct zctl_column *columns, size_t ncolumns,
                    const void *rows, size_t nrows, size_t row_bytes, const char *key,
                    const struct zc_message *messages, size_t n)
{
    const struct table t = { &z->style, columns, ncolumns, nrows, row_bytes,
                             rows,      key,     messages, n,     NULL };

    return print(z, &t);
}

int zctl_below_open(struct zctl *z, struct zctl_below *ret)
{
    ret->out = open_memstream(&ret->text, &ret->len);
    return ret->out ? 0 : zb_fail(&z->err, -ENOMEM, "the output: %m");
}

int zctl_print_below(struct zctl *z, const struct zctl_column *columns, size_t ncolumns,
                     const void *rows, size_t nrows, size_t row_bytes, struct zctl_below *below)
{
    struct table t = { &z->style, columns, ncolumns, nrows, row_bytes, rows, NULL, NULL, 0, NULL };
    int rc = fclose(below->out) == 0 ? 0 : zb_fail(&z->err, -ENOMEM, "the output: %m");

    t.below = below->text;
    if (rc == 0)
        rc = print(z, &t);
    free(below->text);
    return rc;
}
