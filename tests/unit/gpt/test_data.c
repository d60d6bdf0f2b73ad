#include "tests/ztest.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "examples/gpt/data.h"
#include "tests/folder.h"

static void file_write(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* A token file with n tokens of value first, first + 1, ..., and `count` in its header. */
static void bin_write(const char *path, int32_t magic, int32_t version, int32_t count,
                      uint16_t first, size_t n)
{
    size_t bytes = 1024 + 2 * n;
    unsigned char *b = calloc(1, bytes);
    int32_t header[3] = { magic, version, count };

    memcpy(b, header, sizeof(header));
    for (size_t i = 0; i < n; i++) {
        uint16_t token = (uint16_t)(first + i);

        memcpy(b + 1024 + 2 * i, &token, 2);
    }
    file_write(path, b, bytes);
    free(b);
}

static void files_make(void)
{
    unsigned char zeros[1023] = { 0 };

    file_write("a.txt", "hello, ", 7);
    file_write("b.txt", "world", 5);
    file_write("empty.txt", "", 0);
    file_write("bytes.txt", "\x00\xff\x80", 3);
    bin_write("ten.bin", 20240520, 1, 10, 100, 10);
    bin_write("five.bin", 20240520, 1, 5, 50252, 5); /* up to the end of the vocabulary */
    bin_write("none.bin", 20240520, 1, 0, 0, 0);
    bin_write("magic.bin", 20240521, 1, 10, 100, 10);
    bin_write("version.bin", 20240520, 7, 10, 100, 10);
    bin_write("cut.bin", 20240520, 1, 10, 100, 9);
    bin_write("long.bin", 20240520, 1, 10, 100, 11);
    bin_write("negative.bin", 20240520, 1, -1, 100, 0);
    bin_write("vocabulary.bin", 20240520, 1, 10, 50250, 10);
    file_write("header.bin", zeros, sizeof(zeros));
    file_write("zero.bin", "", 0);
    assert_int_equal(mkdir("folder", 0777), 0);
    assert_int_equal(mkfifo("fifo.txt", 0666), 0);
    assert_int_equal(close(open("huge.txt", O_WRONLY | O_CREAT, 0666)), 0);
    assert_int_equal(truncate("huge.txt", (off_t)GPT_TEXT_BYTES_MAX + 1), 0); /* a sparse file */
}

static const struct {
    const char *name;
    const char *paths[3];
    uint32_t window;
    int rc;
    const char *says;
    uint32_t vocab;
    uint64_t tokens;
} cases[] = {
    { "one text", { "a.txt" }, 3, 0, "", 256, 7 },
    { "texts in order", { "b.txt", "a.txt", "b.txt" }, 3, 0, "", 256, 17 },
    { "an empty one among them", { "empty.txt", "a.txt" }, 3, 0, "", 256, 7 },
    { "just one window", { "a.txt" }, 7, 0, "", 256, 7 },
    { "tokens", { "ten.bin" }, 3, 0, "", 50257, 10 },
    { "tokens of two files", { "ten.bin", "five.bin" }, 12, 0, "", 50257, 15 },
    { "an empty token file among them", { "none.bin", "ten.bin" }, 3, 0, "", 50257, 10 },
    { "less than a window", { "a.txt" }, 8, -EINVAL, "has 7 tokens, but a sequence of 7", 0, 0 },
    { "nothing", { "empty.txt" }, 2, -EINVAL, "has 0 tokens", 0, 0 },
    { "no tokens", { "none.bin" }, 2, -EINVAL, "has 0 tokens", 0, 0 },
    { "both kinds", { "a.txt", "ten.bin" }, 3, -EINVAL, "text and tokens do not mix", 0, 0 },
    { "not there", { "nowhere.txt" }, 3, -ENOENT, "'nowhere.txt': No such file", 0, 0 },
    { "not there, tokens", { "nowhere.bin" }, 3, -ENOENT, "'nowhere.bin': No such file", 0, 0 },
    { "second not there", { "a.txt", "b\n.txt" }, 3, -ENOENT, "'b?.txt': No such file", 0, 0 },
    { "a folder", { "folder" }, 3, -EINVAL, "'folder' is not a regular file", 0, 0 },
    { "a fifo", { "fifo.txt" }, 3, -EINVAL, "'fifo.txt' is not a regular file", 0, 0 },
    { "too much text", { "a.txt", "huge.txt" }, 3, -EINVAL, "longer than 1073741824 bytes", 0, 0 },
    { "wrong magic", { "magic.bin" }, 3, -EBADMSG, "begins with 20240521", 0, 0 },
    { "wrong version", { "version.bin" }, 3, -EBADMSG, "has version 7", 0, 0 },
    { "cut", { "cut.bin" }, 3, -EBADMSG, "has 1042 bytes, but its header specifies 10", 0, 0 },
    { "too long",
      { "long.bin" },
      3,
      -EBADMSG,
      "has 1046 bytes, but its header specifies 10",
      0,
      0 },
    { "negative count", { "negative.bin" }, 3, -EBADMSG, "its header specifies -1", 0, 0 },
    { "half a header", { "ten.bin", "header.bin" }, 3, -EBADMSG, "has 1023 bytes, less", 0, 0 },
    { "an empty file", { "zero.bin" }, 3, -EBADMSG, "has 0 bytes, less than a header", 0, 0 },
    { "a token above the vocabulary",
      { "vocabulary.bin" },
      3,
      -EBADMSG,
      "has token 50257 at 7; the vocabulary is 50257",
      0,
      0 },
};

static void open_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t n = 0;
        struct gpt_data *d = NULL;
        struct zb_err err = { 0 };
        int rc;

        while (n < 3 && cases[i].paths[n])
            n++;
        rc = gpt_data_open(&d, cases[i].paths, n, cases[i].window, &err);
        if (rc != cases[i].rc || (rc != 0) != (d == NULL) || !strstr(err.text, cases[i].says))
            fail_msg("%s: %d '%s'", cases[i].name, rc, err.text);
        if (d && (gpt_data_info(d)->vocab != cases[i].vocab ||
                  gpt_data_info(d)->tokens != cases[i].tokens || gpt_data_info(d)->files != n))
            fail_msg("%s: vocabulary %u, %llu tokens", cases[i].name, gpt_data_info(d)->vocab,
                     (unsigned long long)gpt_data_info(d)->tokens);
        gpt_data_close(d);
    }
}

static struct gpt_data *data_open(const char *a, const char *b, uint32_t window)
{
    const char *paths[] = { a, b };
    struct gpt_data *d = NULL;
    struct zb_err err = { 0 };

    if (gpt_data_open(&d, paths, b ? 2 : 1, window, &err) != 0)
        fail_msg("%s", err.text);
    return d;
}

static void entropy(void **state)
{
    struct gpt_data *d;

    (void)state;
    file_write("four.txt", "abcdabcd", 8);
    d = data_open("four.txt", NULL, 2);
    assert_true(fabs(gpt_data_info(d)->unigram_nats - log(4)) < 1e-12);
    gpt_data_close(d);
    file_write("one.txt", "aaaa", 4);
    d = data_open("one.txt", NULL, 2);
    assert_true(gpt_data_info(d)->unigram_nats == 0);
    gpt_data_close(d);
    d = data_open("ten.bin", NULL, 2);
    assert_true(fabs(gpt_data_info(d)->unigram_nats - log(10)) < 1e-12);
    gpt_data_close(d);
}

/* Every window holds the tokens at its offset, also across file bounds. */
static void windows(void **state)
{
    static const struct {
        const char *a, *b;
        uint32_t tokens[17], n;
    } rows[] = {
        { "a.txt", "b.txt", { 'h', 'e', 'l', 'l', 'o', ',', ' ', 'w', 'o', 'r', 'l', 'd' }, 12 },
        { "bytes.txt", NULL, { 0x00, 0xff, 0x80 }, 3 },
        { "ten.bin",
          "five.bin",
          { 100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 50252, 50253, 50254, 50255, 50256 },
          15 },
    };

    (void)state;
    for (size_t k = 0; k < sizeof(rows) / sizeof(rows[0]); k++)
        for (uint32_t window = 2; window <= rows[k].n; window++) {
            struct gpt_data *d = data_open(rows[k].a, rows[k].b, window);
            uint32_t places = rows[k].n - window + 1;
            bool seen[17] = { false };

            for (uint64_t i = 0; i < 40 * places; i++) {
                uint64_t at = gpt_data_offset(d, 3, i % 7, i);
                uint32_t got[17];
                struct zb_err err = { 0 };

                assert_true(at < places);
                seen[at] = true;
                assert_int_equal(gpt_data_sequence(d, 3, i % 7, i, got, &err), 0);
                assert_memory_equal(got, rows[k].tokens + at, window * sizeof(*got));
            }
            for (uint32_t at = 0; at < places; at++)
                assert_true(seen[at]);
            gpt_data_close(d);
        }
}

static void offsets_are_pure(void **state)
{
    struct gpt_data *d = data_open("ten.bin", "five.bin", 2), *e;
    unsigned differ[3] = { 0 };

    (void)state;
    e = data_open("five.bin", "ten.bin", 2);
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t at = gpt_data_offset(d, 5, 6, i);

        assert_int_equal(at, gpt_data_offset(e, 5, 6, i)); /* depends only on the sizes */
        differ[0] += at != gpt_data_offset(d, 6, 6, i);
        differ[1] += at != gpt_data_offset(d, 5, 7, i);
        differ[2] += at != gpt_data_offset(d, 5, 6, i + 1);
    }
    for (int k = 0; k < 3; k++)
        assert_true(differ[k] > 800); /* 1 of 14 agrees by chance */
    gpt_data_close(d);
    gpt_data_close(e);
}

static void files_that_change(void **state)
{
    struct zb_err err = { 0 };
    struct gpt_data *d;
    uint32_t got[10];

    (void)state;
    bin_write("change.bin", 20240520, 1, 10, 100, 10);
    d = data_open("change.bin", NULL, 10);
    bin_write("change.bin", 20240520, 1, 10, 60000, 10);
    assert_int_equal(gpt_data_sequence(d, 1, 1, 1, got, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "token 60000"));
    assert_int_equal(truncate("change.bin", 1030), 0);
    err = (struct zb_err){ 0 };
    assert_int_equal(gpt_data_sequence(d, 1, 1, 1, got, &err), -EIO);
    assert_non_null(strstr(err.text, "could not be read"));
    gpt_data_close(d);
}

static void sources(void **state)
{
    static const char *const wanted[] = { "tree/B.h", "tree/a.c", "tree/sub/deep/x.py",
                                          "tree/sub.md", "tree/sub0.txt" };
    static const char *const not_wanted[] = { "tree/a.o",         "tree/build/a.c",
                                              "tree/build-x/a.c", "tree/out/a.c",
                                              "tree/.git/a.c",    "tree/sub/.cache/a.md" };
    static const char *const folders[] = { "tree",       "tree/sub",       "tree/sub/deep",
                                           "tree/build", "tree/build-x",   "tree/out",
                                           "tree/.git",  "tree/sub/.cache" };
    struct gpt_paths paths = { 0 };
    struct zb_err err = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
        assert_int_equal(mkdir(folders[i], 0777), 0);
    assert_int_equal(gpt_data_sources("tree", &paths, &err), -ENOENT);
    assert_non_null(strstr(err.text, "no source files under 'tree'"));
    for (size_t i = 0; i < sizeof(not_wanted) / sizeof(not_wanted[0]); i++)
        file_write(not_wanted[i], "x", 1);
    err = (struct zb_err){ 0 };
    assert_int_equal(gpt_data_sources("tree", &paths, &err), -ENOENT);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        file_write(wanted[i], "x", 1);
    assert_int_equal(symlink("a.c", "tree/link.c"), 0); /* not followed */
    err = (struct zb_err){ 0 };
    assert_int_equal(gpt_data_sources("tree", &paths, &err), 0);
    assert_int_equal(paths.n, sizeof(wanted) / sizeof(wanted[0]));
    for (size_t i = 0; i + 1 < paths.n; i++)
        assert_true(strcmp(paths.path[i], paths.path[i + 1]) < 0);
    for (size_t i = 0; i < paths.n; i++) {
        size_t k = 0;

        while (k < paths.n && strcmp(paths.path[i], wanted[k]) != 0)
            k++;
        assert_true(k < paths.n);
    }
    gpt_paths_done(&paths);
    err = (struct zb_err){ 0 };
    assert_int_equal(gpt_data_sources("nowhere", &paths, &err), -ENOENT);
    assert_non_null(strstr(err.text, "'nowhere'"));
}

static void own_sources(void **state)
{
    struct gpt_data *d = NULL;
    struct zb_err err = { 0 };

    (void)state;
    if (gpt_data_open(&d, NULL, 0, 129, &err) != 0)
        fail_msg("%s", err.text);
    assert_true(gpt_data_info(d)->files > 10);
    assert_true(gpt_data_info(d)->unigram_nats > 2 && gpt_data_info(d)->unigram_nats < 5);
    gpt_data_close(d);
}

static void all_files(void **state)
{
    (void)state;
    files_make();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_files),        cmocka_unit_test(open_table),
        cmocka_unit_test(entropy),          cmocka_unit_test(windows),
        cmocka_unit_test(offsets_are_pure), cmocka_unit_test(files_that_change),
        cmocka_unit_test(sources),          cmocka_unit_test(own_sources),
    };

    return cmocka_run_group_tests(tests, folder_enter, folder_leave);
}
