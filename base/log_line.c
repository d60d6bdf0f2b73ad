/*
 * log_line.c - a line of the log in parts: its text, and where the pairs are in it.
 *
 * The format says where a key, a value or a quote begins, never the bytes of a value. So text from
 * outside cannot add pairs.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/log_priv.h"
#include "base/text.h"
#include "base/util.h"

static const struct {
    const char *name;
    int priority; /* syslog's */
} levels[] = {
    [ZB_LOG_ERROR] = { "error", 3 },
    [ZB_LOG_WARN] = { "warn", 4 },
    [ZB_LOG_INFO] = { "info", 6 },
    [ZB_LOG_DEBUG] = { "debug", 7 },
};

const char *zb_log_level_name(enum zb_log_level level)
{
    return levels[level].name;
}

int zb_log_priority(enum zb_log_level level)
{
    return levels[level].priority;
}

int zb_log_level_parse(const char *text, enum zb_log_level *ret)
{
    for (size_t i = 0; i < ZB_COUNT(levels); i++)
        if (strcmp(text, levels[i].name) == 0) {
            *ret = (enum zb_log_level)i;
            return 0;
        }
    return -EINVAL;
}

static void line_put(struct zb_log_line *line, const char *bytes, size_t n)
{
    n = zb_min_u64(n, sizeof(line->text) - 1 - line->used);
    memcpy(line->text + line->used, bytes, n);
    line->used += n;
}

void zb_log_begin(struct zb_log_line *line, enum zb_log_level level, const char *event)
{
    const char *name = zb_log_level_name(level);

    line->level = level;
    line->event = event;
    line->used = 0;
    line->nfields = 0;
    line_put(line, name, strlen(name));
    line_put(line, " ", 1);
    line_put(line, event, strlen(event));
}

/** Where the walk over a format is. */
struct walk {
    struct zb_log_line *line;
    struct zb_log_field field;
    bool in_value, quoted;
};

static void walk_field_begin(struct walk *w)
{
    line_put(w->line, " ", 1);
    w->field = (struct zb_log_field){ .key = (uint16_t)w->line->used };
    w->in_value = w->quoted = false;
}

static void walk_value_begin(struct walk *w)
{
    w->field.key_bytes = (uint16_t)(w->line->used - w->field.key);
    line_put(w->line, "=", 1);
    w->field.value = (uint16_t)w->line->used;
    w->in_value = true;
}

/** A value ends: with its quote, or with the pair. */
static void walk_value_end(struct walk *w)
{
    struct zb_log_line *line = w->line;

    bool cut = w->field.number && line->used == sizeof(line->text) - 1;

    w->field.value_bytes = (uint16_t)(line->used - w->field.value);
    if (w->field.key_bytes > 0 && line->nfields < ZB_LOG_FIELDS_MAX && !cut)
        line->fields[line->nfields++] = w->field;
    w->in_value = false;
}

/** A character of the format that is no conversion. */
static void walk_char(struct walk *w, char c)
{
    bool begins = w->in_value && w->line->used == w->field.value;

    if (c == ' ' && !w->quoted) {
        if (w->in_value)
            walk_value_end(w);
        walk_field_begin(w);
    } else if (c == '=' && !w->in_value) {
        walk_value_begin(w);
    } else if (c == '"' && w->quoted) {
        walk_value_end(w);
        w->quoted = false;
        line_put(w->line, "\"", 1);
    } else if (c == '"' && begins) {
        line_put(w->line, "\"", 1);
        w->field.value = (uint16_t)w->line->used;
        w->quoted = true;
    } else {
        w->field.number = false;
        line_put(w->line, &c, 1);
    }
}

/** Prints an integer. Returns the length of its conversion, or 0: it is none of log.h. */
static size_t walk_number(char *text, size_t size, const char *at, va_list *ap)
{
    if (strncmp(at, "llu", 3) == 0)
        (void)snprintf(text, size, "%llu", va_arg(*ap, unsigned long long));
    else if (strncmp(at, "lld", 3) == 0)
        (void)snprintf(text, size, "%lld", va_arg(*ap, long long));
    else if (strncmp(at, "lu", 2) == 0)
        (void)snprintf(text, size, "%lu", va_arg(*ap, unsigned long));
    else if (strncmp(at, "ld", 2) == 0)
        (void)snprintf(text, size, "%ld", va_arg(*ap, long));
    else if (strncmp(at, "zu", 2) == 0)
        (void)snprintf(text, size, "%zu", va_arg(*ap, size_t));
    else if (*at == 'u')
        (void)snprintf(text, size, "%u", va_arg(*ap, unsigned));
    else if (*at == 'd')
        (void)snprintf(text, size, "%d", va_arg(*ap, int));
    else
        return 0;
    return strspn(at, "lz") + 1;
}

void zb_log_vadd(struct zb_log_line *line, const char *fmt, va_list arguments)
{
    struct walk w = { .line = line };
    char number[32];
    va_list ap;

    va_copy(ap, arguments);
    if (*fmt)
        walk_field_begin(&w);
    for (const char *at = fmt; *at; at++) {
        size_t n;

        if (*at != '%') {
            walk_char(&w, *at);
        } else if (at[1] == 's') {
            const char *text = va_arg(ap, const char *);

            w.field.number = false;
            line_put(line, text, strlen(text));
            at++;
        } else if ((n = walk_number(number, sizeof(number), at + 1, &ap)) > 0) {
            w.field.number = line->used == w.field.value && !w.quoted;
            line_put(line, number, strlen(number));
            at += n;
        } else { /* a mistake of the caller (the test `log` finds it): the rest as it is */
            line_put(line, at, strlen(at));
            break;
        }
    }
    if (w.in_value)
        walk_value_end(&w);
    va_end(ap);
}

void zb_log_add(struct zb_log_line *line, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    zb_log_vadd(line, fmt, ap);
    va_end(ap);
}

const struct zb_log_field *zb_log_find(const struct zb_log_line *line, const char *key)
{
    for (unsigned i = 0; i < line->nfields; i++)
        if (line->fields[i].key_bytes == strlen(key) &&
            memcmp(line->text + line->fields[i].key, key, strlen(key)) == 0)
            return &line->fields[i];
    return NULL;
}

size_t zb_log_time(char *text, size_t size)
{
    struct timespec ts;
    struct tm tm;
    int n;

    (void)clock_gettime(CLOCK_REALTIME, &ts);
    (void)gmtime_r(&ts.tv_sec, &tm);
    n = snprintf(text, size, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ", tm.tm_year + 1900,
                 tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, ts.tv_nsec / 1000000);
    return n > 0 ? (size_t)n : 0;
}

size_t zb_log_clean(const struct zb_log_line *line, char text[static ZB_LOG_MAX])
{
    memcpy(text, line->text, line->used);
    zb_text_clean(text, line->used);
    return line->used;
}

bool zb_log_put(struct zb_log_out *out, const char *bytes, size_t n)
{
    if (out->cut || n > out->limit - out->used) {
        out->cut = true;
        return false;
    }
    memcpy(out->bytes + out->used, bytes, n);
    out->used += n;
    return true;
}

bool zb_log_puts(struct zb_log_out *out, const char *text)
{
    return zb_log_put(out, text, strlen(text));
}
