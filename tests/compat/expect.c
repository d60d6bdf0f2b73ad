#include "tests/compat/compat.h"

#include <inttypes.h>
#include <stdio.h>

#define LINES_MAX  4096u
#define TEXT_BYTES 1024u

struct line {
    char *key, *value;
    bool seen;
};

static struct line lines[LINES_MAX];
static unsigned nlines;
static bool recording;

static void line_add(const char *key, const char *value, bool seen)
{
    struct line *l = &lines[nlines];

    assert_true(nlines < LINES_MAX);
    l->key = strdup(key);
    l->value = strdup(value);
    l->seen = seen;
    assert_true(l->key && l->value);
    nlines++;
}

static struct line *line_find(const char *key)
{
    for (unsigned i = 0; i < nlines; i++)
        if (strcmp(lines[i].key, key) == 0)
            return &lines[i];
    return NULL;
}

void co_expect_record(void)
{
    recording = true;
}

void co_expect_load(const char *path)
{
    FILE *f = fopen(path, "r");
    char text[TEXT_BYTES];

    if (!f)
        fail_msg("%s: it is not there", path);
    while (fgets(text, sizeof(text), f)) {
        char *value = strstr(text, ": ");

        assert_non_null(value);
        *value = '\0';
        value += 2;
        value[strcspn(value, "\n")] = '\0';
        assert_null(line_find(text));
        line_add(text, value, false);
    }
    (void)fclose(f);
}

static void see(const char *key, const char *value)
{
    struct line *l = line_find(key);

    assert_null(strchr(key, ':'));
    if (!l && recording)
        line_add(key, value, true);
    else if (!l)
        fail_msg("'%s' was not recorded; it is '%s'", key, value);
    else if (strcmp(l->value, value) != 0)
        fail_msg("'%s' is '%s', and was '%s'", key, value, l->value);
    else
        l->seen = true;
}

void co_see(const char *value, const char *key, ...)
{
    char text[TEXT_BYTES];
    va_list args;

    va_start(args, key);
    (void)vsnprintf(text, sizeof(text), key, args);
    va_end(args);
    see(text, value);
}

/* FNV-1a: of this test alone, so that nothing else can change it. */
static uint64_t hash(const uint8_t *bytes, size_t len)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < len; i++)
        h = (h ^ bytes[i]) * UINT64_C(0x100000001b3);
    return h;
}

void co_see_bytes(const void *bytes, size_t len, const char *key, ...)
{
    char text[TEXT_BYTES], value[48];
    va_list args;

    va_start(args, key);
    (void)vsnprintf(text, sizeof(text), key, args);
    va_end(args);
    (void)snprintf(value, sizeof(value), "%zu bytes %016" PRIx64, len, hash(bytes, len));
    see(text, value);
}

void co_expect_all_seen(void)
{
    unsigned unseen = 0;

    for (unsigned i = 0; i < nlines; i++)
        if (!lines[i].seen) {
            print_message("never seen: '%s'\n", lines[i].key);
            unseen++;
        }
    assert_true(nlines > 0);
    assert_int_equal(unseen, 0);
}

void co_expect_write(const char *path)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    for (unsigned i = 0; i < nlines; i++)
        (void)fprintf(f, "%s: %s\n", lines[i].key, lines[i].value);
    assert_int_equal(fclose(f), 0);
}

void co_expect_free(void)
{
    for (unsigned i = 0; i < nlines; i++) {
        free(lines[i].key);
        free(lines[i].value);
    }
    nlines = 0;
}
