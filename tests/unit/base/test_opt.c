#include "tests/ztest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/opt.h"
#include "base/util.h"

#define WORDS_MAX 16

enum color { RED = 1, GREEN, BLUE };

struct values {
    bool keep;
    const char *text;
    char copy[8], kind[8];
    struct zb_opt_words words, pair;
    enum color color;
    uint32_t share, any32, aligned;
    uint64_t any64, bytes, rounded, size;
    double rate, flops, speed;
};

static int check_even(const char *text, struct zb_err *err)
{
    return strlen(text) % 2 == 0 ? 0 : zb_fail(err, -EINVAL, "'%s' is odd", text);
}

#define AT(member) ZB_OPT_AT(struct values, member)

static const struct zb_opt rows[] = {
    { "keep", ZB_OPT_FLAG, AT(keep), .letter = 'k', .help = "goes on afterwards" },
    { "text", ZB_OPT_TEXT, AT(text), .letter = 't', .arg = "T", .check = check_even },
    { "copy", ZB_OPT_CHARS, AT(copy), .arg = "T", .def = "", .check = check_even },
    { "kind", ZB_OPT_CHARS, AT(kind), .def = "auto", .choices = "auto uring threads" },
    { "words", ZB_OPT_WORDS, AT(words), .arg = "W...", .greedy = true },
    { "pair", ZB_OPT_WORDS, AT(pair), .arg = "W", .max = 2 },
    { "color", ZB_OPT_CHOICE, AT(color), .def = "green", .choices = "red green blue", .min = RED },
    { "share", ZB_OPT_COUNT, AT(share), .arg = "N", .def = "100", .min = 1, .max = 10000,
      .help = "of the drives", .also = "part" },
    { "any32", ZB_OPT_COUNT, AT(any32), .arg = "N", .help = "a number", .missing = "required" },
    { "any64", ZB_OPT_COUNT, AT(any64), .arg = "N", .word = "auto", .word_value = UINT64_MAX },
    { "aligned", ZB_OPT_COUNT, AT(aligned), .arg = "N", .min = 4096, .max = 1 << 20,
      .multiple = 4096 },
    { "bytes", ZB_OPT_SIZE, AT(bytes), .arg = "SIZE", .min = 1 << 20, .max = 1ull << 40,
      .zero = true, .absent = "all" },
    { "rounded", ZB_OPT_SIZE, AT(rounded), .arg = "SIZE", .round = 4096, .word = "auto" },
    { "size", ZB_OPT_SIZE, AT(size), .arg = "SIZE", .min = 4096 },
    { "rate", ZB_OPT_REAL, AT(rate), .arg = "X", .def = "1e-3", .max = 1e6 },
    { "flops", ZB_OPT_LARGE, AT(flops), .arg = "X" },
    { "speed", ZB_OPT_REAL, AT(speed), .arg = "GB/S", .min = 0.5, .max = 10, .scale = 1e9,
      .zero = true },
    { 0 },
};

/** A table for another struct, like the one that a program shares among its commands. */
static const struct zb_opt common[] = {
    { "json", ZB_OPT_FLAG, ZB_OPT_AT(struct values, keep) },
    { "keep", ZB_OPT_COUNT, ZB_OPT_AT(struct values, share) }, /* never found: rows come first */
    { 0 },
};

/** Splits at blanks; "%" stands for an empty word. */
static int words_of(const char *line, char *room, size_t size, char **argv)
{
    int n = 0;

    (void)snprintf(room, size, "%s", line);
    for (char *save, *w = strtok_r(room, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        assert_true(n < WORDS_MAX);
        argv[n++] = strcmp(w, "%") == 0 ? w + 1 : w;
    }
    return n;
}

static int parse(const char *line, struct values *v, struct zb_opts *tables, bool once,
                 int *ret_words, char **argv, struct zb_err *err)
{
    static char room[1024];
    static struct values others;

    *v = (struct values){ .any32 = 77 };
    zb_opt_defaults(rows, v);
    tables[0] = (struct zb_opts){ .rows = rows, .values = v, .once = once };
    tables[1] = (struct zb_opts){ .rows = common, .values = &others };
    return zb_opt_parse(tables, 2, words_of(line, room, sizeof(room), argv), argv, ret_words, err);
}

static void values_free(struct values *v)
{
    free(v->words.at);
    free(v->pair.at);
}

/* ---- refused words, and the messages */

static const struct {
    const char *line, *says; /* "": accepted */
} cases[] = {
    { "", "" },
    { "--nothing", "unknown option '--nothing'; try --help" },
    { "--nothing=3", "unknown option '--nothing'; try --help" },
    { "--shar 3", "unknown option '--shar'; did you mean '--share'?" },
    { "--shares 3", "unknown option '--shares'; did you mean '--share'?" },
    { "-share 3", "unknown option '-share'; did you mean '--share'?" },
    { "-x", "unknown option '-x'; try --help" },
    { "--", "unknown option '--'; try --help" },
    { "word", "unexpected argument 'word'; try --help" },
    { "%", "unexpected argument ''; try --help" },
    { "-", "unexpected argument '-'; try --help" },
    { "=5", "unexpected argument '=5'; try --help" },
    { "--json word", "unexpected argument 'word'; try --help" },
    { "--keep=yes", "--keep takes no value" },
    { "--keep=", "--keep takes no value" },
    { "-kx", "unknown option '-kx'; try --help" },
    { "-kt", "--text needs a value" },
    { "-kt ab", "" },
    { "-ktab", "" },
    { "-kk", "" },
    { "-k-", "unknown option '-k-'; try --help" },
    { "--json --keep", "" },
    { "--share", "--share needs a value" },
    { "--share --keep", "--share needs a value" },
    { "-t", "--text needs a value" },
    { "--text %", "--text must not be empty" },
    { "--text=", "--text must not be empty" },
    { "--text abc", "--text: 'abc' is odd" },
    { "--text=--ab", "" },
    { "--copy %", "" },
    { "--copy a", "--copy: 'a' is odd" },
    { "--copy abcdef", "" },
    { "--copy abcdefgh", "--copy must be at most 7 bytes long, not 8" },
    { "--kind uring", "" },
    { "--kind uri", "--kind must be auto, uring or threads, not 'uri'" },
    { "--kind %", "--kind must be auto, uring or threads, not ''" },
    { "--words", "--words needs a value" },
    { "--words a %", "--words must not be empty" },
    { "--words a b --words c", "" },
    { "--pair a b", "unexpected argument 'b'; try --help" },
    { "--pair a --pair b", "" },
    { "--pair a --pair b --pair c", "--pair may be given at most 2 times" },
    { "--color red", "" },
    { "--color Red", "--color must be red, green or blue, not 'Red'" },
    { "--share 1", "" },
    { "--share 10000", "" },
    { "--share 0", "--share must be 1 to 10000, not 0" },
    { "--share=10001", "--share must be 1 to 10000, not 10001" },
    { "--share 99999999999999999999", "--share must be 1 to 10000, not 99999999999999999999" },
    { "--share -1", "--share must be a whole number, not '-1'" },
    { "--share +1", "--share must be a whole number, not '+1'" },
    { "--share 1.5", "--share must be a whole number, not '1.5'" },
    { "--share 0x10", "--share must be a whole number, not '0x10'" },
    { "--share 1K", "--share must be a whole number, not '1K'" },
    { "--share %", "--share must be a whole number, not ''" },
    { "--any32 4294967295", "" },
    { "--any32 4294967296", "--any32 must be 0 to 4294967295, not 4294967296" },
    { "--any64 18446744073709551615", "" },
    { "--any64 18446744073709551616",
      "--any64 must be 0 to 18446744073709551615 or auto, not 18446744073709551616" },
    { "--any64 never", "--any64 must be a whole number or auto, not 'never'" },
    { "--aligned 8192", "" },
    { "--aligned 5000", "--aligned must be a multiple of 4096, not 5000" },
    { "--bytes 1M", "" },
    { "--bytes 1T", "" },
    { "--bytes 0", "" },
    { "--bytes 4096", "--bytes must be 1M to 1T or 0, not 4096" },
    { "--bytes 2T", "--bytes must be 1M to 1T or 0, not 2T" },
    { "--bytes 9999999P", "--bytes must be 1M to 1T or 0, not 9999999P" },
    { "--bytes 5Q", "--bytes must be a size such as 1.5G, not '5Q'" },
    { "--rounded auto", "" },
    { "--rounded 1X", "--rounded must be a size such as 1.5G or auto, not '1X'" },
    { "--size 1K", "--size must be 4K to 8192P, not 1K" },
    { "--size 1M", "" },
    { "--rate 0", "" },
    { "--rate -1", "--rate must be 0 to 1e+06, not -1" },
    { "--rate 1e7", "--rate must be 0 to 1e+06, not 1e7" },
    { "--rate inf", "--rate must be 0 to 1e+06, not inf" },
    { "--rate nan", "--rate must be a number, not 'nan'" },
    { "--rate 1K", "--rate must be a number, not '1K'" },
    { "--rate fast", "--rate must be a number, not 'fast'" },
    { "--rate=", "--rate must be a number, not ''" },
    { "--flops 2.5B", "" },
    { "--flops 1e400", "--flops must be at least 0, not 1e400" },
    { "--flops 3X", "--flops must be a number, with K, M, G (or B), T or P after it, not '3X'" },
    { "--flops 3KK", "--flops must be a number, with K, M, G (or B), T or P after it, not '3KK'" },
    { "--speed 0", "" },
    { "--speed 0.25", "--speed must be 0.5 to 10 or 0, not 0.25" },
};

static void refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct zb_err err = { 0 };
        struct zb_opts tables[2];
        struct values v;
        char *argv[WORDS_MAX];
        int rc = parse(cases[i].line, &v, tables, false, NULL, argv, &err);

        if (strcmp(err.text, cases[i].says) != 0 || rc != (*cases[i].says ? -EINVAL : 0) ||
            err.code != rc)
            fail_msg("'%s': got %d, '%s'", cases[i].line, rc, err.text);
        values_free(&v);
    }
}

/* ---- parsed values */

static void values_arrive(void **state)
{
    struct zb_err err = { 0 };
    struct zb_opts tables[2];
    struct values v;
    char *argv[WORDS_MAX];

    (void)state;
    assert_int_equal(parse("", &v, tables, false, NULL, argv, &err), 0);
    assert_string_equal(v.kind, "auto");
    assert_int_equal(v.color, GREEN);
    assert_int_equal(v.share, 100);
    assert_int_equal(v.any32, 77);
    assert_true(v.rate == 1e-3 && !v.keep && !v.text);
    assert_true(tables[0].given == 0 && tables[1].given == 0);

    assert_int_equal(parse("-ktab --copy=abcd --kind threads --color blue --any64 auto "
                           "--aligned 8192 --bytes 1.5G",
                           &v, tables, false, NULL, argv, &err),
                     0);
    assert_true(v.keep);
    assert_string_equal(v.text, "ab");
    assert_string_equal(v.copy, "abcd");
    assert_string_equal(v.kind, "threads");
    assert_int_equal(v.color, BLUE);
    assert_true(v.any64 == UINT64_MAX);
    assert_int_equal(v.aligned, 8192);
    assert_true(v.bytes == 3 * ZB_GIB / 2);
    assert_true(zb_opt_given(&tables[0], "keep") && zb_opt_given(&tables[0], "bytes"));
    assert_true(!zb_opt_given(&tables[0], "share") && !zb_opt_given(&tables[1], "json"));

    assert_int_equal(parse("-t cd --rounded 5000001 --rate 2 --rate 3 --flops 2.5B --speed 1.5 "
                           "--size 8192P",
                           &v, tables, false, NULL, argv, &err),
                     -EINVAL); /* above 2^63 - 1 */
    assert_string_equal(v.text, "cd");
    assert_int_equal(v.rounded, 4997120);
    assert_true(v.rate == 3 && v.flops == 2.5e9 && v.speed == 1.5e9 && v.size == 0);

    err = (struct zb_err){ 0 };
    assert_int_equal(
        parse("--words a b --pair x --words c --json", &v, tables, true, NULL, argv, &err), 0);
    assert_true(v.words.n == 3 && v.pair.n == 1);
    assert_string_equal(v.words.at[1], "b");
    assert_string_equal(v.words.at[2], "c");
    assert_true(zb_opt_given(&tables[1], "json"));
    values_free(&v);
    assert_int_equal(parse("--rate 2 --rate 3", &v, tables, true, NULL, argv, &err), -EINVAL);
    assert_string_equal(err.text, "--rate is given twice");
}

static void words_among_options(void **state)
{
    static const struct {
        const char *line, *words;
    } lines[] = {
        { "a b", "a b" },       { "a --keep b --share 3 c", "a b c" },
        { "--share 3 a", "a" }, { "a -- --keep -k --", "a --keep -k --" },
        { "- %", "- " },        { "--", "" },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(lines); i++) {
        struct zb_err err = { 0 };
        struct zb_opts tables[2];
        struct values v;
        char *argv[WORDS_MAX], all[64] = "";
        int n = -1;

        assert_int_equal(parse(lines[i].line, &v, tables, false, &n, argv, &err), 0);
        for (int k = 0; k < n; k++)
            (void)snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s%s", k > 0 ? " " : "",
                           argv[k]);
        if (strcmp(all, lines[i].words) != 0)
            fail_msg("'%s': the words are '%s'", lines[i].line, all);
    }
}

/** A value from another source, with its own name. */
static void from_a_file(void **state)
{
    struct zb_err err = { 0 };
    struct values v = { .share = 7 };

    (void)state;
    assert_null(zb_opt_find(rows, "shares", 6));
    assert_ptr_equal(zb_opt_find(rows, "share = 3", 5), &rows[7]);
    assert_ptr_equal(zb_opt_find(rows, "part", 4), &rows[7]);
    assert_null(zb_opt_find(rows, "par", 3));
    assert_int_equal(zb_opt_set(&rows[7], &v, "0", "x.conf:3: share", &err), -EINVAL);
    assert_string_equal(err.text, "x.conf:3: share must be 1 to 10000, not 0");
    assert_int_equal(v.share, 7);
    assert_int_equal(zb_opt_set(&rows[7], &v, "9", "share", NULL), 0);
    assert_int_equal(v.share, 9);
}

/** A file with options of another program. */
static void others_in_a_file(void **state)
{
    char path[] = "/tmp/zshard-opt-XXXXXX";
    int fd = mkstemp(path);
    static const char text[] = "one = 1\npart = 9 two = { \"a:b\", c }\nkeep_not = 'x y'\n";
    struct zb_err err = { 0 };
    struct values v = { .share = 7 };

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
    assert_int_equal(zb_opt_file(rows, &v, path, false, NULL, &err), -EINVAL);
    assert_non_null(strstr(err.text, ":1: unknown option 'one'"));
    assert_int_equal(v.share, 7);
    assert_int_equal(zb_opt_file(rows, &v, path, true, NULL, NULL), 0);
    assert_int_equal(v.share, 9);
    assert_int_equal(close(fd), 0);
    assert_int_equal(unlink(path), 0);
}

/* ---- help */

static void help_is_of_the_rows(void **state)
{
    static const struct zb_opt few[] = {
        { "keep", ZB_OPT_FLAG, AT(keep), .letter = 'k', .help = "goes on afterwards" },
        { "color", ZB_OPT_CHOICE, AT(color), .choices = "red green blue", .def = "green" },
        { "share", ZB_OPT_COUNT, AT(share), .arg = "N", .def = "100", .min = 1, .max = 1024,
          .word = "auto",
          .help = "of the drives, and of what else there is to be shared by several jobs" },
        { "aligned", ZB_OPT_COUNT, AT(aligned), .arg = "N", .max = 8192, .multiple = 4096,
          .missing = "required" },
        { "words", ZB_OPT_WORDS, AT(words), .arg = "W", .help = "texts", .absent = "none" },
        { 0 },
    };
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);

    (void)state;
    zb_opt_usage(out, "usage: prog do THIS", few);
    zb_opt_help(out, few);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(
        text, "usage: prog do THIS [--keep] [--color red|green|blue] [--share N] [--aligned N]\n"
              "    [--words W]...\n"
              "  -k, --keep              goes on afterwards\n"
              "  --color red|green|blue  (default: green)\n"
              "  --share N               of the drives, and of what else there is to be shared\n"
              "                          by several jobs (1 to 1024 or auto; default: 100)\n"
              "  --aligned N             (0 to 8192, a multiple of 4096; required)\n"
              "  --words W               texts (default: none)\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused),
        cmocka_unit_test(values_arrive),
        cmocka_unit_test(words_among_options),
        cmocka_unit_test(from_a_file),
        cmocka_unit_test(others_in_a_file),
        cmocka_unit_test(help_is_of_the_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
