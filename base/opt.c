#include "base/opt.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/near.h"
#include "base/size.h"
#include "base/util.h"

#define LINE_COLUMNS 80u
#define HELP_COLUMN  26u /* where an option's description begins */
#define USAGE_INDENT 4u  /* of all lines but the first */

/* ---- rows */

size_t zb_opt_count(const struct zb_opt *rows)
{
    size_t n = 0;

    while (rows && rows[n].name)
        n++;
    assert(n <= ZB_OPT_ROWS_MAX);
    return n;
}

static bool name_is(const char *name, const char *text, size_t len)
{
    return name && strncmp(name, text, len) == 0 && name[len] == '\0';
}

const struct zb_opt *zb_opt_find(const struct zb_opt *rows, const char *name, size_t len)
{
    for (size_t i = 0, n = zb_opt_count(rows); i < n; i++)
        if (name_is(rows[i].name, name, len) || name_is(rows[i].also, name, len))
            return &rows[i];
    return NULL;
}

bool zb_opt_given(const struct zb_opts *opts, const char *name)
{
    const struct zb_opt *o = zb_opt_find(opts->rows, name, strlen(name));

    assert(o);
    return opts->given >> (o - opts->rows) & 1;
}

void zb_opt_defaults(const struct zb_opt *rows, void *values)
{
    for (size_t i = 0, n = zb_opt_count(rows); i < n; i++)
        if (rows[i].def) {
            int rc = zb_opt_set(&rows[i], values, rows[i].def, rows[i].name, NULL);

            assert(rc == 0);
        }
}

/* ---- descriptions of the allowed values */

struct text {
    char s[256];
};

static void text_add(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void text_add(struct text *t, const char *fmt, ...)
{
    size_t len = strlen(t->s);
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(t->s + len, sizeof(t->s) - len, fmt, ap);
    va_end(ap);
}

/** Finds the next word of `choices`, and moves *at to its end. Returns its length; 0: no more
 * words. */
static size_t choice_next(const char **at, const char **ret_word)
{
    *ret_word = *at + strspn(*at, " ");
    *at = *ret_word + strcspn(*ret_word, " ");
    return (size_t)(*at - *ret_word);
}

/** "fp32, bf16 or fp16", "fp32|bf16|fp16". */
static struct text choices_text(const struct zb_opt *o, const char *between, const char *last)
{
    struct text t = { "" };
    const char *at = o->choices, *word;

    for (size_t len; (len = choice_next(&at, &word)) > 0;)
        text_add(&t, "%s%.*s", word == o->choices ? "" : *at ? between : last, (int)len, word);
    return t;
}

static double limit_max(const struct zb_opt *o)
{
    if (o->max > 0)
        return o->max;
    if (o->type != ZB_OPT_COUNT && o->type != ZB_OPT_SIZE)
        return HUGE_VAL;
    if (o->size == sizeof(uint32_t))
        return UINT32_MAX;
    return o->type == ZB_OPT_SIZE ? 0x1p63 : 0x1p64;
}

static void limit_add(struct text *t, const struct zb_opt *o, double limit)
{
    uint64_t n = limit < 0x1p64 ? (uint64_t)limit : UINT64_MAX;

    if (o->type == ZB_OPT_SIZE)
        text_add(t, "%s", zb_size_exact(n).s);
    else if (o->type == ZB_OPT_COUNT)
        text_add(t, "%llu", (unsigned long long)n);
    else
        text_add(t, "%g", limit);
}

/** "1 to 1024 or auto". */
static struct text limits_text(const struct zb_opt *o)
{
    double max = limit_max(o);
    struct text t = { "" };

    text_add(&t, "%s", isinf(max) ? "at least " : "");
    limit_add(&t, o, o->min);
    if (!isinf(max)) {
        text_add(&t, " to ");
        limit_add(&t, o, max);
    }
    text_add(&t, "%s%s%s", o->zero ? " or 0" : "", o->word ? " or " : "", o->word ? o->word : "");
    return t;
}

/* ---- values */

static bool choice_find(const struct zb_opt *o, const char *text, uint32_t *ret)
{
    const char *at = o->choices, *word;
    uint32_t i = 0;

    for (size_t len; (len = choice_next(&at, &word)) > 0; i++)
        if (strlen(text) == len && memcmp(word, text, len) == 0) {
            *ret = (uint32_t)o->min + i;
            return true;
        }
    return false;
}

/** The word of a choice. */
static struct text choice_text(const struct zb_opt *o, uint32_t value)
{
    struct text t = { "" };
    const char *at = o->choices, *word;
    uint32_t i = (uint32_t)o->min;

    for (size_t len; (len = choice_next(&at, &word)) > 0; i++)
        if (i == value)
            text_add(&t, "%.*s", (int)len, word);
    return t;
}

static int refuse_choice(const struct zb_opt *o, const char *text, const char *name,
                         struct zb_err *err)
{
    return zb_fail(err, -EINVAL, "%s must be %s, not '%s'", name, choices_text(o, ", ", " or ").s,
                   text);
}

static int refuse_limits(const struct zb_opt *o, const char *text, const char *name,
                         struct zb_err *err)
{
    return zb_fail(err, -EINVAL, "%s must be %s, not %s", name, limits_text(o).s, text);
}

static int refuse_kind(const struct zb_opt *o, const char *text, const char *name,
                       struct zb_err *err)
{
    static const char *const kinds[] = {
        [ZB_OPT_COUNT] = "a whole number",
        [ZB_OPT_SIZE] = "a size such as 1.5G",
        [ZB_OPT_REAL] = "a number",
        [ZB_OPT_LARGE] = "a number, with K, M, G (or B), T or P after it",
    };

    return zb_fail(err, -EINVAL, "%s must be %s%s%s, not '%s'", name, kinds[o->type],
                   o->word ? " or " : "", o->word ? o->word : "", text);
}

static int value_chars(const struct zb_opt *o, char *member, const char *text, const char *name,
                       struct zb_err *err)
{
    struct zb_err why = { 0 };
    uint32_t choice;

    if (o->choices && !choice_find(o, text, &choice))
        return refuse_choice(o, text, name, err);
    if (!*text && (!o->def || *o->def))
        return zb_fail(err, -EINVAL, "%s must not be empty", name);
    if (o->check && *text && o->check(text, &why) < 0)
        return zb_fail(err, -EINVAL, "%s: %s", name, why.text);
    if (strlen(text) >= o->size)
        return zb_fail(err, -EINVAL, "%s must be at most %zu bytes long, not %zu", name,
                       o->size - 1, strlen(text));
    memcpy(member, text, strlen(text) + 1);
    return 0;
}

static int value_text(const struct zb_opt *o, const char **member, const char *text,
                      const char *name, struct zb_err *err)
{
    struct zb_err why = { 0 };

    if (!*text)
        return zb_fail(err, -EINVAL, "%s must not be empty", name);
    if (o->check && o->check(text, &why) < 0)
        return zb_fail(err, -EINVAL, "%s: %s", name, why.text);
    *member = text;
    return 0;
}

static int value_words(const struct zb_opt *o, struct zb_opt_words *words, const char *text,
                       const char *name, struct zb_err *err)
{
    const char **at;
    int rc;

    if (o->max > 0 && (double)words->n >= o->max)
        return zb_fail(err, -EINVAL, "%s may be given at most %.0f times", name, o->max);
    at = realloc(words->at, (words->n + 1) * sizeof(*at));
    if (!at)
        return zb_fail(err, -ENOMEM, "%s: %m", name);
    words->at = at;
    rc = value_text(o, &at[words->n], text, name, err);
    words->n += rc == 0;
    return rc;
}

/** Decimal digits only: 0, -EINVAL, or -ERANGE above 64 bits. */
static int digits_parse(const char *text, uint64_t *ret)
{
    int rc = *text ? 0 : -EINVAL;

    *ret = 0;
    for (const char *p = text; *p; p++) {
        if (!isdigit((unsigned char)*p))
            return -EINVAL;
        if (!zb_mul_fits(*ret, 10, ret) || !zb_add_fits(*ret, (uint64_t)(*p - '0'), ret))
            rc = -ERANGE;
    }
    return rc;
}

static void whole_store(const struct zb_opt *o, void *member, uint64_t n)
{
    if (o->size == sizeof(uint32_t))
        *(uint32_t *)member = (uint32_t)n;
    else
        *(uint64_t *)member = n;
}

static int value_whole(const struct zb_opt *o, void *member, const char *text, const char *name,
                       struct zb_err *err)
{
    uint64_t n;
    int rc;

    assert(o->size == sizeof(uint32_t) || o->size == sizeof(uint64_t));
    if (o->word && strcmp(text, o->word) == 0) {
        whole_store(o, member, o->word_value);
        return 0;
    }
    rc = o->type == ZB_OPT_SIZE ? zb_size_parse(text, &n, NULL) : digits_parse(text, &n);
    if (rc == -EINVAL)
        return refuse_kind(o, text, name, err);
    if (rc < 0 || (double)n > limit_max(o) || ((double)n < o->min && !(n == 0 && o->zero)))
        return refuse_limits(o, text, name, err);
    if (o->multiple && n % o->multiple != 0)
        return zb_fail(err, -EINVAL, "%s must be a multiple of %llu, not %s", name,
                       (unsigned long long)o->multiple, text);
    whole_store(o, member, o->round ? n - n % o->round : n);
    return 0;
}

static void whole_text(const struct zb_opt *o, const void *member, char *text, size_t size)
{
    uint64_t n;

    if (o->size == sizeof(uint32_t))
        n = *(const uint32_t *)member;
    else
        n = *(const uint64_t *)member;
    if (o->word && n == o->word_value) {
        (void)snprintf(text, size, "%s", o->word);
        return;
    }
    if (o->type == ZB_OPT_SIZE)
        (void)snprintf(text, size, "%s", zb_size_exact(n).s);
    else
        (void)snprintf(text, size, "%llu", (unsigned long long)n);
}

/** The factor of a number's suffix; 0: not a suffix. */
static double large_unit(const char *end)
{
    static const struct {
        char letter;
        double factor;
    } units[] = { { 'K', 1e3 }, { 'M', 1e6 },  { 'G', 1e9 },
                  { 'B', 1e9 }, { 'T', 1e12 }, { 'P', 1e15 } };

    if (!*end)
        return 1;
    for (size_t i = 0; i < ZB_COUNT(units); i++)
        if (toupper((unsigned char)*end) == units[i].letter && !end[1])
            return units[i].factor;
    return 0;
}

static int value_real(const struct zb_opt *o, double *member, const char *text, const char *name,
                      struct zb_err *err)
{
    char *end;
    double x = strtod(text, &end);

    if (end == text || isspace((unsigned char)*text) || isnan(x))
        return refuse_kind(o, text, name, err);
    x *= o->type == ZB_OPT_LARGE ? large_unit(end) : 1;
    if (*end && (o->type != ZB_OPT_LARGE || large_unit(end) == 0))
        return refuse_kind(o, text, name, err);
    if (isinf(x) || x > limit_max(o) || (x < o->min && !(x == 0 && o->zero)))
        return refuse_limits(o, text, name, err);
    *member = o->scale > 0 ? x * o->scale : x;
    return 0;
}

int zb_opt_set(const struct zb_opt *o, void *values, const char *text, const char *name,
               struct zb_err *err)
{
    void *member = (char *)values + o->at;
    uint32_t choice;

    switch (o->type) {
    case ZB_OPT_FLAG:
        *(bool *)member = true;
        return 0;
    case ZB_OPT_TEXT:
        return value_text(o, member, text, name, err);
    case ZB_OPT_CHARS:
        return value_chars(o, member, text, name, err);
    case ZB_OPT_WORDS:
        return value_words(o, member, text, name, err);
    case ZB_OPT_CHOICE:
        assert(o->size == sizeof(choice));
        if (!choice_find(o, text, &choice))
            return refuse_choice(o, text, name, err);
        memcpy(member, &choice, sizeof(choice));
        return 0;
    case ZB_OPT_COUNT:
    case ZB_OPT_SIZE:
        return value_whole(o, member, text, name, err);
    case ZB_OPT_REAL:
    case ZB_OPT_LARGE:
        return value_real(o, member, text, name, err);
    }
    return -EINVAL; /* not reached: all types are handled above */
}

bool zb_opt_text(const struct zb_opt *o, const void *values, char *text, size_t size)
{
    const void *member = (const char *)values + o->at;
    char number[32];
    const char *from = number;
    struct text word;

    assert(o->type == ZB_OPT_CHARS || o->type == ZB_OPT_CHOICE || o->type == ZB_OPT_COUNT ||
           o->type == ZB_OPT_SIZE);
    if (o->type == ZB_OPT_CHARS) {
        from = member;
    } else if (o->type == ZB_OPT_CHOICE) {
        word = choice_text(o, *(const uint32_t *)member);
        from = word.s;
    } else {
        whole_text(o, member, number, sizeof(number));
    }
    return (size_t)snprintf(text, size, "%s", from) < size;
}

/* ---- the command line */

struct line {
    struct zb_opts *tables;
    size_t ntables;
    int argc, i;
    char **argv;
    int *words; /* NULL: no words are accepted */
    bool ended; /* by "--" */
    struct zb_err *err;
};

/** Finds the row of a word that begins with a dash, or of its letter `at`, and its table.
 * *ret_value: the value joined to it. */
static const struct zb_opt *line_find(const struct line *l, const char *word, const char *at,
                                      struct zb_opts **ret_table, const char **ret_value)
{
    bool is_long = word[1] == '-';
    size_t len = strcspn(word, "=");

    for (size_t t = 0; t < l->ntables; t++) {
        const struct zb_opt *rows = l->tables[t].rows, *o = NULL;

        if (is_long)
            o = zb_opt_find(rows, word + 2, len - 2);
        for (size_t k = 0; !is_long && !o && k < zb_opt_count(rows); k++)
            o = rows[k].letter == *at ? &rows[k] : NULL;
        *ret_table = &l->tables[t];
        *ret_value = is_long ? word[len] ? word + len + 1 : NULL : at[1] ? at + 1 : NULL;
        if (o)
            return o;
    }
    return NULL;
}

/** Fails with an unknown option. Suggests a similar one, if there is one. */
static int line_unknown(const struct line *l, const char *word)
{
    int len = (int)strcspn(word, "="), dashes = (int)strspn(word, "-");
    struct zb_near near = zb_near(word + dashes, (size_t)(len > dashes + 1 ? len - dashes : 0));

    for (size_t t = 0; t < l->ntables; t++)
        for (size_t k = 0; k < zb_opt_count(l->tables[t].rows); k++)
            zb_near_try(&near, l->tables[t].rows[k].name);
    if (near.found)
        return zb_fail(l->err, -EINVAL, "unknown option '%.*s'; did you mean '--%s'?", len, word,
                       near.found);
    return zb_fail(l->err, -EINVAL, "unknown option '%.*s'; try --help", len, word);
}

/** Reads an option: the word, or its letter *at. *at is then the next letter, NULL: none. */
static int line_option(struct line *l, const char *word, const char **at)
{
    struct zb_opts *table = NULL;
    const char *value = NULL;
    const struct zb_opt *o = line_find(l, word, *at, &table, &value);
    char name[80];
    uint64_t bit;
    int rc;

    if (!o)
        return line_unknown(l, word);
    (void)snprintf(name, sizeof(name), "--%s", o->name);
    *at = o->type == ZB_OPT_FLAG && word[1] != '-' ? value : NULL;
    if (o->type == ZB_OPT_FLAG && value && !*at)
        return zb_fail(l->err, -EINVAL, "%s takes no value", name);
    if (o->type != ZB_OPT_FLAG && !value) {
        if (l->i == l->argc || strncmp(l->argv[l->i], "--", 2) == 0)
            return zb_fail(l->err, -EINVAL, "%s needs a value", name);
        value = l->argv[l->i++];
    }
    bit = UINT64_C(1) << (o - table->rows);
    if (table->once && table->given & bit && o->type != ZB_OPT_WORDS)
        return zb_fail(l->err, -EINVAL, "%s is given twice", name);
    table->given |= bit;
    rc = zb_opt_set(o, table->values, value, name, l->err);
    while (rc == 0 && o->greedy && l->i < l->argc && strncmp(l->argv[l->i], "--", 2) != 0)
        rc = zb_opt_set(o, table->values, l->argv[l->i++], name, l->err);
    return rc;
}

int zb_opt_parse(struct zb_opts *tables, size_t ntables, int argc, char **argv, int *ret_words,
                 struct zb_err *err)
{
    struct line l = { tables, ntables, argc, 0, argv, ret_words, false, err };
    int words = 0, rc = 0;

    while (rc == 0 && l.i < argc) {
        char *word = argv[l.i++];

        if (!l.ended && ret_words && strcmp(word, "--") == 0)
            l.ended = true;
        else if (!l.ended && word[0] == '-' && word[1])
            for (const char *at = word + 1; rc == 0 && at;)
                rc = line_option(&l, word, &at);
        else if (ret_words)
            argv[words++] = word;
        else
            rc = zb_fail(err, -EINVAL, "unexpected argument '%s'; try --help", word);
    }
    if (ret_words)
        *ret_words = words;
    return rc;
}

/* ---- help */

/** Wrapped output: the state of the current line. */
struct lines {
    FILE *out;
    size_t column, indent; /* of all lines but the first */
    bool begun;            /* this line already has a word */
};

/** Writes a word, after a blank or on a new line. */
static void lines_word(struct lines *l, const char *word, size_t len)
{
    if (l->begun && l->column + 1 + len > LINE_COLUMNS) {
        (void)fprintf(l->out, "\n%*s", (int)l->indent, "");
        l->column = l->indent;
    } else if (l->begun) {
        (void)fputc(' ', l->out);
        l->column++;
    }
    (void)fwrite(word, 1, len, l->out);
    l->column += len;
    l->begun = true;
}

void zb_opt_wrap(FILE *out, const char *text, size_t indent)
{
    struct lines l = { .out = out, .column = indent, .indent = indent };

    for (const char *at = text, *word; *at;) {
        size_t len = choice_next(&at, &word);

        if (len > 0)
            lines_word(&l, word, len);
    }
    (void)fputc('\n', out);
}

static struct text arg_text(const struct zb_opt *o)
{
    struct text t = { "" };

    if (!o->arg && o->choices)
        return choices_text(o, "|", "|");
    text_add(&t, "%s", o->arg ? o->arg : "");
    return t;
}

void zb_opt_usage(FILE *out, const char *begin, const struct zb_opt *rows)
{
    struct lines l = { .out = out, .indent = USAGE_INDENT };
    struct text t;

    lines_word(&l, begin, strlen(begin));
    for (size_t i = 0, n = zb_opt_count(rows); i < n; i++) {
        t = (struct text){ "" };
        text_add(&t, "[--%s%s%s]%s", rows[i].name, rows[i].type == ZB_OPT_FLAG ? "" : " ",
                 arg_text(&rows[i]).s,
                 rows[i].type == ZB_OPT_WORDS && !rows[i].greedy ? "..." : "");
        lines_word(&l, t.s, strlen(t.s));
    }
    (void)fputc('\n', out);
}

/** The note after a row's help: "1 to 1024; default: 64". */
static struct text note_text(const struct zb_opt *o)
{
    const char *const notes[] = { o->missing, o->def && *o->def ? o->def : o->absent };
    struct text t = { "" };

    if (o->type == ZB_OPT_COUNT && o->max > 0 && o->max < UINT32_MAX)
        text_add(&t, "%s", limits_text(o).s);
    if (o->multiple)
        text_add(&t, "%sa multiple of %llu", *t.s ? ", " : "", (unsigned long long)o->multiple);
    for (size_t i = 0; i < ZB_COUNT(notes); i++)
        if (notes[i])
            text_add(&t, "%s%s%s", *t.s ? "; " : "", i == 1 ? "default: " : "", notes[i]);
    return t;
}

void zb_opt_help(FILE *out, const struct zb_opt *rows)
{
    for (size_t i = 0, n = zb_opt_count(rows); i < n; i++) {
        const struct zb_opt *o = &rows[i];
        struct text left = { "  " }, note = note_text(o);
        char right[1024];

        if (o->letter)
            text_add(&left, "-%c, ", o->letter);
        text_add(&left, "--%s%s%s", o->name, o->type == ZB_OPT_FLAG ? "" : " ", arg_text(o).s);
        (void)snprintf(right, sizeof(right), "%s%s%s%s", o->help ? o->help : "",
                       *note.s ? " (" : "", note.s, *note.s ? ")" : "");
        if (strlen(left.s) + 2 > HELP_COLUMN)
            (void)fprintf(out, "%s\n%*s", left.s, (int)HELP_COLUMN, "");
        else
            (void)fprintf(out, "%-*s", (int)HELP_COLUMN, left.s);
        zb_opt_wrap(out, right, HELP_COLUMN);
    }
}
