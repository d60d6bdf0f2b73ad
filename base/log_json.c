/*
 * log_json.c - a line of the log as JSON. Values keep their bytes: control characters are escaped,
 * and bytes that are not UTF-8 become U+FFFD. What does not fit is cut, which "cut" tells.
 */
#include <stdio.h>
#include <string.h>

#include "base/log_priv.h"
#include "base/text.h"

#define CUT ",\"cut\":true" /* there is always room for it */

/** One character, escaped if necessary. Returns its length in the text. */
static size_t json_char(struct zb_log_out *out, const char *text, size_t bytes)
{
    uint32_t code = 0;
    size_t n = zb_text_char(text, bytes, &code);
    char escaped[8];

    if (n == 0) {
        (void)zb_log_puts(out, "\\ufffd");
        return 1;
    }
    if (code == '"' || code == '\\') {
        (void)snprintf(escaped, sizeof(escaped), "\\%c", (char)code);
        (void)zb_log_puts(out, escaped);
    } else if (zb_text_is_control(code)) {
        (void)snprintf(escaped, sizeof(escaped), "\\u%04x", (unsigned)code);
        (void)zb_log_puts(out, escaped);
    } else {
        (void)zb_log_put(out, text, n);
    }
    return n;
}

/** The string ends where the room does: its closing quote always fits. */
static void json_string(struct zb_log_out *out, const char *text, size_t bytes)
{
    if (!zb_log_puts(out, "\""))
        return;
    out->limit--;
    for (size_t i = 0; i < bytes && !out->cut;)
        i += json_char(out, text + i, bytes - i);
    out->limit++;
    out->bytes[out->used++] = '"';
}

/** ,"key": - or nothing, if there is no room for it and for an empty string. */
static void json_key(struct zb_log_out *out, const char *key, size_t bytes)
{
    if (bytes + 6 > out->limit - out->used) {
        out->cut = true;
        return;
    }
    (void)zb_log_puts(out, ",\"");
    (void)zb_log_put(out, key, bytes);
    (void)zb_log_puts(out, "\":");
}

static void json_pair(struct zb_log_out *out, const char *key, const char *value)
{
    json_key(out, key, strlen(key));
    json_string(out, value, strlen(value));
}

static void json_field(struct zb_log_out *out, const struct zb_log_line *line,
                       const struct zb_log_field *f)
{
    if (f->number && f->value_bytes + f->key_bytes + 4u > out->limit - out->used)
        out->cut = true;
    json_key(out, line->text + f->key, f->key_bytes);
    if (f->number)
        (void)zb_log_put(out, line->text + f->value, f->value_bytes);
    else
        json_string(out, line->text + f->value, f->value_bytes);
}

void zb_log_json(const struct zb_log_line *line, struct zb_log_out *out)
{
    char text[ZB_LOG_MAX];

    out->used = 0;
    out->cut = false;
    out->limit = sizeof(out->bytes) - strlen(CUT "}\n");
    (void)zb_log_puts(out, "{\"time\":\"");
    (void)zb_log_time(text, sizeof(text));
    (void)zb_log_puts(out, text);
    (void)zb_log_puts(out, "\"");
    json_pair(out, "level", zb_log_level_name(line->level));
    json_pair(out, "event", line->event);
    for (unsigned i = 0; i < line->nfields && !out->cut; i++)
        json_field(out, line, &line->fields[i]);
    if (!out->cut) {
        size_t bytes = zb_log_clean(line, text);

        json_key(out, "message", strlen("message"));
        json_string(out, text, bytes);
    }
    out->limit = sizeof(out->bytes);
    if (out->cut || line->used == sizeof(line->text) - 1) {
        out->cut = false;
        (void)zb_log_puts(out, CUT);
    }
    (void)zb_log_puts(out, "}\n");
}
