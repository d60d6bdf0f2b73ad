/*
 * config_read.c - reads a DeepSpeed file by the rows of its keys. Every key must have a row, and
 * every value the row's type; otherwise the file is rejected with the key's path. A null value
 * counts as a missing key. Every value may be "auto". Each key that is present becomes a line. Rows
 * with the same place (`at`) are names of one value, and must agree.
 */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/array.h"
#include "base/near.h"
#include "base/util.h"
#include "client/zero/config/config_priv.h"

#define PATH_MAX_BYTES  128
#define VALUE_MAX_BYTES 40

struct path {
    char s[PATH_MAX_BYTES];
};

static struct path path_join(const char *path, const char *key)
{
    struct path p;

    (void)snprintf(p.s, sizeof(p.s), "%s%s%.60s", path, *path ? "." : "", key);
    return p;
}

/* ---- lines */

/* Returns the value as JSON, truncated. The caller frees it. NULL: no memory. */
static char *value_text(const json_t *value)
{
    char *all = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)), *text;

    if (!all || strlen(all) < VALUE_MAX_BYTES)
        return all;
    text = strndup(all, VALUE_MAX_BYTES - 4);
    free(all);
    if (!text)
        return NULL;
    all = malloc(VALUE_MAX_BYTES);
    if (all)
        (void)snprintf(all, VALUE_MAX_BYTES, "%s...", text);
    free(text);
    return all;
}

static int line_add(struct zcz_read *r, const char *path, const json_t *value, bool ignored,
                    const char *text, struct zb_err *err)
{
    struct zc_config_line *l;

    if (zb_grow(&r->lines, &r->room, r->nlines, 1) < 0)
        return zb_fail(err, -ENOMEM, "a line for '%s': %m", path);
    l = &r->lines[r->nlines++];
    *l = (struct zc_config_line){
        .key = strdup(path), .value = value_text(value), .ignored = ignored, .text = strdup(text)
    };
    return l->key && l->value && l->text ? 0 : zb_fail(err, -ENOMEM, "a line for '%s': %m", path);
}

static int line_change(struct zcz_read *r, const char *key, bool ignored, const char *because)
{
    for (size_t i = 0; i < r->nlines; i++) {
        struct zc_config_line *l = &r->lines[i];
        char *text;

        if (strcmp(l->key, key) != 0)
            continue;
        text = strdup(because);
        if (!text)
            return -ENOMEM;
        free((void *)(uintptr_t)l->text);
        l->text = text;
        l->ignored = ignored;
    }
    return 0;
}

int zcz_config_ignore(struct zcz_read *r, const char *key, const char *because)
{
    return line_change(r, key, true, because);
}

int zcz_config_warn(struct zcz_read *r, const char *key, const char *text)
{
    return line_change(r, key, false, text);
}

/* ---- values */

static const char *const kinds[] = {
    [ZCZ_GROUP] = "an object",
    [ZCZ_BOOL] = "true or false",
    [ZCZ_COUNT] = "a whole number",
    [ZCZ_REAL] = "a number",
    [ZCZ_WORD] = "a word",
    [ZCZ_TEXT] = "a text",
    [ZCZ_PAIR] = "two numbers in [ ]",
    [ZCZ_ANY] = "a value",
    [ZCZ_TRUE] = "true or false",
    [ZCZ_NEVER] = "false",
};

static int wrong_type(const struct zcz_row *row, const char *path, const json_t *value,
                      struct zb_err *err)
{
    char *text = value_text(value);

    (void)zb_fail(err, -EINVAL, "%s: is %s, and must be %s", path, text ? text : "?",
                  kinds[row->kind]);
    free(text);
    return -EINVAL;
}

static int number(const struct zcz_row *row, const char *path, const json_t *value, double *ret,
                  struct zb_err *err)
{
    double x = json_number_value(value);

    if (!json_is_number(value))
        return wrong_type(row, path, value, err);
    if (row->kind == ZCZ_COUNT && x != floor(x))
        return wrong_type(row, path, value, err);
    if (x < row->min || x > row->max)
        return zb_fail(err, -EINVAL, "%s: is %.10g, and must be from %.10g to %.10g", path, x,
                       row->min, row->max);
    *ret = x;
    return 0;
}

/* The index of a text in the row's words, or -1. */
static int word_find(const struct zcz_row *row, const char *text)
{
    const char *at = row->words;

    for (int i = 0; at && *at; i++) {
        size_t n = strcspn(at, " ");

        if (strlen(text) == n && strncasecmp(at, text, n) == 0)
            return i;
        at += n + strspn(at + n, " ");
    }
    return -1;
}

static int word(const struct zcz_row *row, const char *path, const json_t *value, double *ret,
                struct zb_err *err)
{
    const char *text = json_string_value(value);
    int found;

    if (!text)
        return wrong_type(row, path, value, err);
    found = word_find(row, text);
    *ret = found;
    if (found >= 0)
        return 0;
    return zb_fail(err, -EINVAL, "%s: is '%.40s', and must be one of: %s", path, text, row->words);
}

static int pair(struct zcz_read *r, const struct zcz_row *row, const char *path,
                const json_t *value, struct zb_err *err)
{
    int rc = 0;

    if (json_array_size(value) != 2)
        return wrong_type(row, path, value, err);
    for (size_t i = 0; i < 2 && rc == 0; i++) {
        struct zcz_value *v = &r->v[row->at + i];

        v->how = ZCZ_SAID;
        rc = json_is_number(json_array_get(value, i))
                 ? number(row, path, json_array_get(value, i), &v->x, err)
                 : wrong_type(row, path, value, err);
    }
    return rc;
}

/* Whether something in it is enabled: true, or an object with "enabled", at any depth. */
static bool switched_on(const json_t *value)
{
    const char *key;
    json_t *below;

    if (json_is_number(value))
        return json_number_value(value) > 1;
    if (!json_is_object(value))
        return json_is_true(value);
    if (json_is_true(json_object_get(value, "enabled")))
        return true;
    json_object_foreach((json_t *)(uintptr_t)value, key,
                        below) if (json_is_object(below) && switched_on(below)) return true;
    return false;
}

static bool refused(const struct zcz_row *row, const json_t *value, double x)
{
    switch (row->kind) {
    case ZCZ_WORD:
        return x > 0;
    case ZCZ_TRUE:
        return !json_is_true(value);
    case ZCZ_NEVER:
        return !json_is_false(value);
    default:
        return switched_on(value);
    }
}

/* "auto", unless that is one of the row's own words. */
static bool is_auto(const struct zcz_row *row, const json_t *value)
{
    const char *text = json_string_value(value);

    return text && strcmp(text, "auto") == 0 && word_find(row, text) < 0;
}

static int group(struct zcz_read *r, const struct zcz_row *rows, const char *path,
                 const json_t *object, struct zb_err *err);

static int value_read(struct zcz_read *r, const struct zcz_row *row, const char *path,
                      const json_t *value, struct zb_err *err)
{
    struct zcz_value *v = &r->v[row->at];
    int rc = 0;

    v->how = ZCZ_SAID;
    switch (row->kind) {
    case ZCZ_BOOL:
    case ZCZ_TRUE:
        v->x = json_is_true(value);
        rc = json_is_boolean(value) ? 0 : wrong_type(row, path, value, err);
        break;
    case ZCZ_COUNT:
    case ZCZ_REAL:
        rc = number(row, path, value, &v->x, err);
        break;
    case ZCZ_WORD:
        rc = word(row, path, value, &v->x, err);
        break;
    case ZCZ_TEXT:
        rc = json_is_string(value) ? 0 : wrong_type(row, path, value, err);
        break;
    case ZCZ_PAIR:
        rc = pair(r, row, path, value, err);
        break;
    case ZCZ_GROUP:
    case ZCZ_ANY:
    case ZCZ_NEVER:
        break;
    }
    if (rc == 0 && row->refused && refused(row, value, v->x))
        rc = zb_fail(err, -EINVAL, "%s: %s", path, row->refused);
    return rc;
}

/* Checks that this key, the last of the lines, has the same value as its other name, if that is
 * present. */
static int agrees(struct zcz_read *r, const struct zcz_row *row, const struct zcz_value *before,
                  struct zb_err *err)
{
    struct zcz_value *v = &r->v[row->at];
    const struct zc_config_line *l = r->lines + r->nlines - 1, *other = r->lines + before->line;

    v->line = r->nlines - 1;
    if (row->at == ZCZ_NOWHERE || before->how == ZCZ_ABSENT)
        return 0;
    if (before->how == v->how && (v->how == ZCZ_AUTO || before->x == v->x))
        return 0;
    return zb_fail(err, -EINVAL, "%s: is %s, and %s, another name of it, is %s", l->key, l->value,
                   other->key, other->value);
}

static int key_read(struct zcz_read *r, const struct zcz_row *row, const char *path,
                    const json_t *value, struct zb_err *err)
{
    const char *text = row->does ? row->does : row->because ? row->because : "it is off";
    struct zcz_value before = r->v[row->at];
    int rc = 0;

    if (row->kind == ZCZ_GROUP && json_is_object(value))
        return group(r, row->rows, path, value, err);
    if (row->kind == ZCZ_GROUP)
        return wrong_type(row, path, value, err);
    if (is_auto(row, value)) {
        r->v[row->at].how = ZCZ_AUTO;
        if (row->kind == ZCZ_PAIR)
            r->v[row->at + 1].how = ZCZ_AUTO;
        if (row->does)
            text = row->autos ? row->autos : "DeepSpeed's default";
    } else {
        rc = value_read(r, row, path, value, err);
    }
    if (rc == 0)
        rc = line_add(r, path, value, !row->does, text, err);
    return rc < 0 ? rc : agrees(r, row, &before, err);
}

/* Fails with an unknown key. Suggests a similar one, if there is one. */
static int unknown(const struct zcz_row *rows, const char *path, const char *key,
                   struct zb_err *err)
{
    struct zb_near near = zb_near(key, strlen(key));

    for (const struct zcz_row *row = rows; row->key; row++)
        zb_near_try(&near, row->key);
    return near.found
               ? zb_fail(err, -EINVAL, "%s: no such key; did you mean '%s'?", path, near.found)
               : zb_fail(err, -EINVAL, "%s: no such key", path);
}

static int group(struct zcz_read *r, const struct zcz_row *rows, const char *path,
                 const json_t *object, struct zb_err *err)
{
    const char *key;
    json_t *value;
    int rc = 0;

    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        const struct zcz_row *row = rows;
        struct path p = path_join(path, key);

        while (row->key && strcmp(row->key, key) != 0)
            row++;
        if (!row->key)
            return unknown(rows, p.s, key, err);
        if (!json_is_null(value))
            rc = key_read(r, row, p.s, value, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int zcz_config_only(const struct zcz_read *r, const struct zcz_row *rows, const char *path,
                    uint32_t type, const char *name, struct zb_err *err)
{
    for (const struct zcz_row *row = rows; row->key; row++)
        if (row->only && !(row->only & 1u << type) && r->v[row->at].how != ZCZ_ABSENT)
            return zb_fail(err, -EINVAL, "%s.%s: %s has none", path, row->key, name);
    return 0;
}

static bool has_object(const json_t *file, const char *key)
{
    return json_is_object(json_object_get(file, key));
}

/* Frees `file`. NULL: why it could not be parsed. */
static int read_json(struct zcz_read *r, const char *name, json_t *file, const json_error_t *why,
                     struct zb_err *err)
{
    int rc;

    if (!file)
        return zb_fail(err, -EINVAL, "'%s', line %d: not JSON: %.100s", name, why->line, why->text);
    r->optimizer = has_object(file, "optimizer");
    r->scheduler = has_object(file, "scheduler");
    r->checkpointing = has_object(file, "activation_checkpointing");
    if (json_is_object(file))
        rc = group(r, zcz_config_rows, "", file, err);
    else
        rc = zb_fail(err, -EINVAL, "'%s': not a JSON object", name);
    json_decref(file);
    return rc;
}

int zcz_config_read(struct zcz_read *r, const char *path, struct zb_err *err)
{
    json_error_t why = { 0 };
    json_t *file;
    FILE *f = fopen(path, "re");

    *r = (struct zcz_read){ .lines = NULL };
    if (!f)
        return zb_fail(err, -errno, "'%s': %m", path);
    file = json_loadf(f, JSON_REJECT_DUPLICATES, &why);
    (void)fclose(f);
    return read_json(r, path, file, &why, err);
}

int zcz_config_read_text(struct zcz_read *r, const char *text, size_t bytes, struct zb_err *err)
{
    json_error_t why = { 0 };

    *r = (struct zcz_read){ .lines = NULL };
    return read_json(r, "the configuration", json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why),
                     &why, err);
}

void zcz_config_read_done(struct zcz_read *r)
{
    for (size_t i = 0; i < r->nlines; i++) {
        free((void *)(uintptr_t)r->lines[i].key);
        free((void *)(uintptr_t)r->lines[i].value);
        free((void *)(uintptr_t)r->lines[i].text);
    }
    free(r->lines);
    *r = (struct zcz_read){ .lines = NULL };
}
