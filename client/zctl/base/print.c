/*
 * print.c - rows of structs: an aligned table for people, one JSON object for programs.
 *
 * The JSON is {"schema": ZCTL_SCHEMA, "rows": [{key: value ...} ...]}: every column of every row,
 * numbers as numbers, keys in the order of the columns; behind them, with some commands, an array
 * of sentences. The table leaves out what programs only want. Both come from the same columns, so
 * neither can lack what the other has.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/size.h"
#include "base/util.h"
#include "client/zctl/base/zctl.h"

#define CELL_MAX 512

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

static void value_text(const struct zctl_column *c, const void *row, char *cell)
{
    const void *v = value_at(c, row);

    switch (c->type) {
    case ZCTL_TEXT:
        (void)snprintf(cell, CELL_MAX, "%s", (const char *)v);
        return;
    case ZCTL_U32:
        (void)snprintf(cell, CELL_MAX, "%" PRIu32, *(const uint32_t *)v);
        return;
    case ZCTL_U64:
        (void)snprintf(cell, CELL_MAX, "%" PRIu64, *(const uint64_t *)v);
        return;
    case ZCTL_SIZE:
        (void)snprintf(cell, CELL_MAX, "%s", zb_size_text(*(const uint64_t *)v).s);
        return;
    case ZCTL_KIB:
        (void)snprintf(cell, CELL_MAX, "%.*f", *(const uint64_t *)v % 1024 != 0,
                       (double)*(const uint64_t *)v / 1024);
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

/** JSON's integers are signed here: nothing that we count comes near the end of them. */
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
        return integer(*(const uint32_t *)v);
    case ZCTL_U64:
    case ZCTL_SIZE:
    case ZCTL_KIB:
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

/** Something that is not nothing: "", 0 or no. */
static bool value_set(const struct zctl_column *c, const void *row)
{
    const void *v = value_at(c, row);

    switch (c->type) {
    case ZCTL_TEXT:
        return *(const char *)v != '\0';
    case ZCTL_U32:
        return *(const uint32_t *)v != 0;
    case ZCTL_U64:
    case ZCTL_SIZE:
    case ZCTL_KIB:
    case ZCTL_TIME:
        return *(const uint64_t *)v != 0;
    case ZCTL_BOOL:
        return *(const bool *)v;
    case ZCTL_DOUBLE:
    case ZCTL_SHARE:
        return *(const double *)v != 0;
    }
    return true;
}

/* ---- the table */

struct table {
    const struct zctl_column *columns;
    size_t ncolumns, nrows, row_bytes;
    const char *rows;
    const char *key; /* of the sentences; NULL: there is no such thing */
    const struct zc_sentence *sentences;
    size_t nsentences;
};

static bool column_shown(const struct table *t, const struct zctl_column *c)
{
    if (c->shown != ZCTL_WHEN_SET)
        return c->shown == ZCTL_SHOWN;
    for (size_t i = 0; i < t->nrows; i++)
        if (value_set(c, t->rows + i * t->row_bytes))
            return true;
    return false;
}

/** The key in upper case; "_bytes" says nothing where the unit stands in every cell, and is wrong
 *  where the cells are KiB. What is behind it stays: "_s", a second, as "/S". */
static void column_heading(const struct zctl_column *c, char *cell)
{
    const char *end = c->type == ZCTL_SIZE || c->type == ZCTL_KIB ? strstr(c->key, "_bytes") : NULL;
    size_t len = end ? (size_t)(end - c->key) : strlen(c->key), n = 0;

    for (; n < len && n + 1 < CELL_MAX; n++)
        cell[n] = (char)toupper((unsigned char)c->key[n]);
    (void)snprintf(cell + n, CELL_MAX - n, "%s",
                   c->type == ZCTL_KIB                   ? "_KIB"
                   : end && strcmp(end, "_bytes_s") == 0 ? "/S"
                                                         : "");
}

static size_t column_width(const struct table *t, const struct zctl_column *c)
{
    char cell[CELL_MAX];
    size_t width;

    column_heading(c, cell);
    width = strlen(cell);
    for (size_t i = 0; i < t->nrows; i++) {
        value_text(c, t->rows + i * t->row_bytes, cell);
        width = strlen(cell) > width ? strlen(cell) : width;
    }
    return width;
}

/** Text to the left, numbers to the right; nothing behind the last cell of a line. */
static void cell_print(FILE *out, const struct zctl_column *c, const char *cell, size_t width,
                       bool last)
{
    if (c->type != ZCTL_TEXT && c->type != ZCTL_BOOL)
        (void)fprintf(out, "%*s", (int)width, cell);
    else if (last)
        (void)fputs(cell, out);
    else
        (void)fprintf(out, "%-*s", (int)width, cell);
    (void)fputs(last ? "\n" : "  ", out);
}

static int table_print(FILE *out, const struct table *t)
{
    size_t *widths = calloc(t->ncolumns, sizeof(*widths)); /* 0: not shown */
    size_t last = 0;
    char cell[CELL_MAX];

    if (!widths)
        return -ENOMEM;
    for (size_t c = 0; c < t->ncolumns; c++) {
        if (!column_shown(t, &t->columns[c]))
            continue;
        widths[c] = column_width(t, &t->columns[c]);
        last = c;
    }
    for (size_t c = 0; c < t->ncolumns; c++) {
        column_heading(&t->columns[c], cell);
        if (widths[c] > 0)
            cell_print(out, &t->columns[c], cell, widths[c], c == last);
    }
    for (size_t i = 0; i < t->nrows; i++)
        for (size_t c = 0; c < t->ncolumns; c++) {
            if (widths[c] == 0)
                continue;
            value_text(&t->columns[c], t->rows + i * t->row_bytes, cell);
            cell_print(out, &t->columns[c], cell, widths[c], c == last);
        }
    for (size_t i = 0; i < t->nsentences; i++)
        (void)fprintf(out, "%s\n", t->sentences[i].text);
    free(widths);
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

static json_t *sentences_json(const struct table *t)
{
    json_t *all = json_array();

    for (size_t i = 0; i < t->nsentences; i++)
        if (json_array_append_new(all, json_string(t->sentences[i].text)) < 0) {
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
                     sentences_json(t));
}

static int json_print(FILE *out, const struct table *t)
{
    json_t *all = table_json(t);
    int rc = all ? 0 : -ENOMEM;

    if (rc == 0 && (json_dumpf(all, out, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) < 0 ||
                    fputc('\n', out) == EOF))
        rc = -EIO;
    json_decref(all);
    return rc;
}

int zctl_table(FILE *out, const struct zctl_column *columns, size_t ncolumns, const void *rows,
               size_t nrows, size_t row_bytes)
{
    const struct table t = { columns, ncolumns, nrows, row_bytes, rows, NULL, NULL, 0 };

    return table_print(out, &t);
}

struct json_t *zctl_row_json(const struct zctl_column *columns, size_t ncolumns, const void *row)
{
    const struct table t = { columns, ncolumns, 1, 0, row, NULL, NULL, 0 };

    return row_json(&t, 0);
}

int zctl_print(struct zctl *z, const struct zctl_column *columns, size_t ncolumns, const void *rows,
               size_t nrows, size_t row_bytes)
{
    return zctl_print_more(z, columns, ncolumns, rows, nrows, row_bytes, NULL, NULL, 0);
}

int zctl_print_more(struct zctl *z, const struct zctl_column *columns, size_t ncolumns,
                    const void *rows, size_t nrows, size_t row_bytes, const char *key,
                    const struct zc_sentence *sentences, size_t n)
{
    const struct table t = { columns, ncolumns, nrows, row_bytes, rows, key, sentences, n };
    int rc = z->json ? json_print(z->out, &t) : table_print(z->out, &t);

    if (rc == 0 && (fflush(z->out) != 0 || ferror(z->out)))
        rc = -EIO;
    return rc < 0 ? zb_fail(&z->err, rc, "write the output: %m") : 0;
}
