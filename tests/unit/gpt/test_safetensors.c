#include "tests/ztest.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "client/zc_safetensors.h"
#include "tests/folder.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void file_write(const char *path, uint64_t header_bytes, const char *header,
                       size_t data_bytes)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(&header_bytes, 8, 1, f), 1);
    assert_int_equal(fwrite(header, 1, strlen(header), f), strlen(header));
    for (size_t i = 0; i < data_bytes; i++)
        assert_int_equal(fputc((int)(i & 0xff), f), (int)(i & 0xff));
    assert_int_equal(fclose(f), 0);
}

#define T(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct {
    const char *name, *header;
    size_t data_bytes;
    int rc;
    const char *says;
} cases
    [] = {
        { "nothing in it", "{}", 0, 0, "" },
        { "one tensor", "{" T("a", "F32", "[2,3]", "[0,24]") "}", 24, 0, "" },
        { "padded with spaces", "{" T("a", "F32", "[1]", "[0,4]") "}      ", 4, 0, "" },
        { "a scalar", "{" T("a", "F32", "[]", "[0,4]") "}", 4, 0, "" },
        { "an empty tensor", "{" T("a", "F32", "[0,7]", "[0,0]") "}", 0, 0, "" },
        { "an empty one between others",
          "{" T("a", "U8", "[3]", "[0,3]") "," T("b", "U8", "[3]", "[3,6]") "," T("e", "U8", "[0]",
                                                                                  "[3,3]") "}",
          6, 0, "" },
        { "any order of names",
          "{" T("b", "U8", "[3]", "[5,8]") "," T("a", "U8", "[5]", "[0,5]") "}", 8, 0, "" },
        { "metadata", "{\"__metadata__\":{\"k\":\"v\"}," T("a", "U8", "[1]", "[0,1]") "}", 1, 0,
          "" },
        { "empty metadata", "{\"__metadata__\":{}}", 0, 0, "" },
        { "every dtype",
          "{" T("a", "BOOL", "[1]", "[0,1]") "," T("b", "U8", "[1]", "[1,2]") "," T(
              "c",
              "I8", "[1]", "[2,3]") "," T("d", "F8_E5M2", "[1]",
                                          "[3,4]") "," T("e", "F8_E4M3", "[1]",
                                                         "[4,5]") "," T("f", "F8_E8M0",
                                                                        "[1]", "[5,6]") "," T("g", "I16", "[1]", "[6,8]") "," T("h", "U16", "[1]", "[8,10]") "," T("i", "F16", "[1]", "[10,12]") "," T("j", "BF16", "[1]", "[12,14]") "," T("k", "I32", "[1]", "[14,18]") "," T("l",
                                                                                                                                                                                                                                                                                "U32",
                                                                                                                                                                                                                                                                                "[1]",
                                                                                                                                                                                                                                                                                "[18,22]") "," T("m",
                                                                                                                                                                                                                                                                                                 "F32",
                                                                                                                                                                                                                                                                                                 "[1]",
                                                                                                                                                                                                                                                                                                 "[22,26]") "," T("n",
                                                                                                                                                                                                                                                                                                                  "F64",
                                                                                                                                                                                                                                                                                                                  "[1]", "[26,34]") "," T("o", "I64", "[1]", "[34,42]") "," T("p",
                                                                                                                                                                                                                                                                                                                                                                              "U64",
                                                                                                                                                                                                                                                                                                                                                                              "[1]",
                                                                                                                                                                                                                                                                                                                                                                              "[42,50]") "," T("q",
                                                                                                                                                                                                                                                                                                                                                                                               "C64",
                                                                                                                                                                                                                                                                                                                                                                                               "[1]",
                                                                                                                                                                                                                                                                                                                                                                                               "[50,58]") "}",
          58, 0, "" },

        { "an empty header", "", 0, -EBADMSG, "not a JSON object" },
        { "an array", "[]", 0, -EBADMSG, "not a JSON object" },
        { "a space first", " {}", 0, -EBADMSG, "not a JSON object" },
        { "a byte order mark", "\xef\xbb\xbf{}", 0, -EBADMSG, "not a JSON object" },
        { "not JSON", "{nonsense}", 0, -EBADMSG, "the header, at byte" },
        { "JSON that ends early", "{\"a\":", 0, -EBADMSG, "the header, at byte" },
        { "something behind it", "{}x", 0, -EBADMSG, "the header, at byte" },
        { "not UTF-8", "{\"\xff\":1}", 0, -EBADMSG, "the header, at byte" },
        { "a name twice", "{" T("a", "U8", "[1]", "[0,1]") "," T("a", "U8", "[1]", "[1,2]") "}", 2,
          -EBADMSG, "the header, at byte" },
        { "a tensor that is a number", "{\"a\":1}", 0, -EBADMSG, "must have dtype, shape" },
        { "no dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, -EBADMSG,
          "must have dtype" },
        { "no shape", "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, -EBADMSG,
          "must have" },
        { "no offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, -EBADMSG,
          "must have dtype" },
        { "one thing more",
          "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1, -EBADMSG,
          "nothing else" },
        { "an unknown dtype", "{" T("a", "F31", "[1]", "[0,4]") "}", 4, -EBADMSG,
          "has unknown dtype 'F31'" },
        { "a dtype that is a number", "{\"a\":{\"dtype\":5,\"shape\":[1],\"data_offsets\":[0,4]}}",
          4, -EBADMSG, "not a string" },
        { "a shape that is a number", "{" T("a", "U8", "1", "[0,1]") "}", 1, -EBADMSG,
          "has no shape" },
        { "a negative size", "{" T("a", "U8", "[-1]", "[0,1]") "}", 1, -EBADMSG, "not a number" },
        { "a size with a point", "{" T("a", "U8", "[1.0]", "[0,1]") "}", 1, -EBADMSG,
          "not a number" },
        { "a size beyond 64 bits", "{" T("a", "U8", "[99999999999999999999]", "[0,1]") "}", 1,
          -EBADMSG, "the header, at byte" },
        { "a shape that overflows", "{" T("a", "U8", "[4294967296,4294967296,2]", "[0,0]") "}", 0,
          -EBADMSG, "overflows" },
        { "bytes that overflow", "{" T("a", "F32", "[4611686018427387904]", "[0,0]") "}", 0,
          -EBADMSG, "does not match" },
        { "one offset", "{" T("a", "U8", "[1]", "[0]") "}", 1, -EBADMSG, "not a range" },
        { "three offsets", "{" T("a", "U8", "[1]", "[0,1,2]") "}", 1, -EBADMSG, "not a range" },
        { "offsets that are no array", "{" T("a", "U8", "[1]", "7") "}", 1, -EBADMSG,
          "not a range" },
        { "offsets that are words", "{" T("a", "U8", "[1]", "[\"0\",\"1\"]") "}", 1, -EBADMSG,
          "not a ran" },
        { "offsets backwards", "{" T("a", "U8", "[1]", "[1,0]") "}", 1, -EBADMSG, "not a range" },
        { "a negative offset", "{" T("a", "U8", "[1]", "[-1,0]") "}", 1, -EBADMSG, "not a range" },
        { "less than the shape", "{" T("a", "F32", "[2]", "[0,4]") "}", 4, -EBADMSG,
          "has 4 bytes" },
        { "more than the shape", "{" T("a", "F32", "[1]", "[0,8]") "}", 8, -EBADMSG,
          "has 8 bytes" },
        { "a hole before", "{" T("a", "U8", "[1]", "[1,2]") "}", 2, -EBADMSG, "begins at 1" },
        { "a hole between", "{" T("a", "U8", "[1]", "[0,1]") "," T("b", "U8", "[1]", "[2,3]") "}",
          3, -EBADMSG, "begins at 2, and the one before it ends at 1" },
        { "an overlap", "{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[1,3]") "}", 3,
          -EBADMSG, "begins at 1, and the one before it ends at 2" },
        { "data behind", "{" T("a", "U8", "[1]", "[0,1]") "}", 2, -EBADMSG,
          "the file has 2 bytes" },
        { "data missing", "{" T("a", "U8", "[3]", "[0,3]") "}", 2, -EBADMSG,
          "the file has 2 bytes" },
        { "metadata that is a word", "{\"__metadata__\":\"x\"}", 0, -EBADMSG, "is not an object" },
        { "metadata with a number", "{\"__metadata__\":{\"k\":1}}", 0, -EBADMSG, "not a string" },
        { "metadata with an object", "{\"__metadata__\":{\"k\":{}}}", 0, -EBADMSG, "not a string" },
    };

static void header_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct zc_st_file *f = NULL;
        char error[256] = "";
        int rc;

        file_write("x", strlen(cases[i].header), cases[i].header, cases[i].data_bytes);
        rc = zc_st_open(&f, "x", error, sizeof(error));
        if (rc != cases[i].rc || (rc != 0) != (f == NULL) || !strstr(error, cases[i].says) ||
            (rc != 0 && !strstr(error, "'x' is not a valid safetensors file: ")))
            fail_msg("%s: %d '%s'", cases[i].name, rc, error);
        zc_st_close(f);
    }
}

static void length_table(void **state)
{
    static const struct {
        const char *name;
        uint64_t length;
        const char *header;
        const char *says;
    } rows[] = {
        { "one byte more than there is", 3, "{}", "truncated inside its header of 3 bytes" },
        { "above the limit", ZC_ST_HEADER_MAX + 1, "{}", "above the format's limit" },
        { "the largest number", UINT64_MAX, "{}", "above the format's limit" },
        { "one byte less", 1, "{}", "the header, at byte" },
    };
    struct zc_st_file *f = NULL;
    char error[256];

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        file_write("x", rows[i].length, rows[i].header, 0);
        if (zc_st_open(&f, "x", error, sizeof(error)) != -EBADMSG || !strstr(error, rows[i].says))
            fail_msg("%s: '%s'", rows[i].name, error);
    }
    for (off_t bytes = 0; bytes < 8; bytes++) {
        assert_int_equal(truncate("x", bytes), 0);
        assert_int_equal(zc_st_open(&f, "x", error, sizeof(error)), -EBADMSG);
        assert_non_null(strstr(error, "the file is truncated"));
    }
    assert_int_equal(zc_st_open(&f, "nowhere", error, sizeof(error)), -ENOENT);
    assert_string_equal(error, "'nowhere': No such file or directory");
    assert_int_equal(zc_st_open(&f, folder_own(), NULL, 0), -EINVAL);
    assert_int_equal(zc_st_open(&f, folder_own(), error, 8),
                     -EINVAL); /* the error message is truncated, with a terminating 0 */
    assert_int_equal(strlen(error), 7);
    assert_null(f);
}

static void looking_in(void **state)
{
    struct zc_st_file *f = NULL;
    const struct zc_st_tensor *t;
    const char *header =
        "{" T("b", "U8", "[3]", "[8,11]") ",\"__metadata__\":{\"format\":\"pt\"}," T(
            "a", "U16", "[2,2]", "[0,8]") "}";
    uint8_t bytes[8];

    (void)state;
    file_write("x", strlen(header), header, 11);
    assert_int_equal(zc_st_open(&f, "x", NULL, 0), 0);
    assert_int_equal(zc_st_count(f), 2);
    assert_string_equal(zc_st_at(f, 0)->name, "a"); /* in order of the data */
    assert_string_equal(zc_st_at(f, 1)->name, "b");
    assert_null(zc_st_at(f, 2));
    assert_null(zc_st_find(f, "c"));
    assert_null(zc_st_find(f, "__metadata__"));
    assert_string_equal(zc_st_metadata(f, "format"), "pt");
    assert_null(zc_st_metadata(f, "other"));
    t = zc_st_find(f, "a");
    assert_ptr_equal(t, zc_st_at(f, 0));
    assert_int_equal(t->dtype, ZC_ST_U16);
    assert_int_equal(t->ndims, 2);
    assert_int_equal(t->dims[0], 2);
    assert_int_equal(t->dims[1], 2);
    assert_int_equal(t->elems, 4);
    assert_int_equal(zc_st_read(f, t, 1, 2, bytes, NULL, 0), 0);
    assert_memory_equal(bytes, "\x02\x03\x04\x05", 4);
    assert_int_equal(zc_st_read(f, zc_st_find(f, "b"), 0, 3, bytes, NULL, 0), 0);
    assert_memory_equal(bytes, "\x08\x09\x0a", 3);
    assert_int_equal(zc_st_read(f, t, 4, 0, bytes, NULL, 0), 0);
    assert_int_equal(zc_st_read(f, t, 4, 1, bytes, NULL, 0), -ERANGE);
    assert_int_equal(zc_st_read(f, t, 5, 0, bytes, NULL, 0), -ERANGE);
    assert_int_equal(zc_st_read(f, t, 1, UINT64_MAX, bytes, NULL, 0), -ERANGE);
    {
        char error[256];
        float x;

        assert_int_equal(zc_st_read_f32(f, t, 0, 1, &x, error, sizeof(error)), -ENOTSUP);
        assert_non_null(strstr(error, "'a' is of U16"));
        assert_int_equal(truncate("x", 8 + (off_t)strlen(header) + 4), 0);
        assert_int_equal(zc_st_read(f, t, 0, 4, bytes, error, sizeof(error)), -EIO);
        assert_non_null(strstr(error, "'a'"));
    }
    zc_st_close(f);
    zc_st_close(NULL);
    assert_string_equal(zc_st_dtype_name(ZC_ST_BF16), "BF16");
    assert_null(zc_st_dtype_name((enum zc_st_dtype)99));
    for (int d = ZC_F32; d <= ZC_F16; d++) { /* values for parameters, not files */
        assert_null(zc_st_dtype_name((enum zc_st_dtype)d));
        assert_int_equal(zc_st_dtype_bytes((enum zc_st_dtype)d), 0);
    }
    assert_int_equal(zc_st_dtype_bytes((enum zc_st_dtype)99), 0);
}

/* ---- round trips */

#define VALUES 10000

static float values[VALUES];

static void values_make(void)
{
    uint64_t seed = 1;

    for (size_t i = 0; i < VALUES; i++)
        values[i] = (float)((double)(int64_t)ztest_random(&seed) * 0x1p-60);
}

static void round_trip(void **state)
{
    static const uint64_t dims[3][2] = { { 100, 99 }, { 100, 0 }, { 0, 5 } };
    static const struct zc_st_tensor tensors[] = {
        { .name = "z.first", .dtype = ZC_ST_F32, .ndims = 2, .dims = dims[0] },
        { .name = "a.\"second\" \xc3\xa4", .dtype = ZC_ST_F32, .ndims = 1, .dims = dims[1] },
        { .name = "empty", .dtype = ZC_ST_I64, .ndims = 2, .dims = dims[2] },
    };
    static const struct zc_st_pair meta[] = { { "format", "pt" }, { "why", "a test" } };
    uint64_t seed = 2;
    static float got[VALUES];

    (void)state;
    values_make();
    for (int round = 0; round < 20; round++) { /* pieces of any length, down to single bytes */
        size_t most = round == 0 ? sizeof(values) : round < 3 ? 3 : 40000;
        struct zc_st_writer *w = NULL;
        struct zc_st_file *f = NULL;
        uint64_t header = 0;
        int fd;

        assert_int_equal(zc_st_create(&w, "y", tensors, 3, meta, 2, NULL, 0), 0);
        for (size_t at = 0; at < sizeof(values);) {
            size_t n = round == 0 ? most : ztest_random(&seed) % (most + 1);

            n = n < sizeof(values) - at ? n : sizeof(values) - at;
            assert_int_equal(zc_st_append(w, (char *)values + at, n, NULL, 0), 0);
            at += n;
        }
        assert_int_equal(zc_st_commit(w, NULL, 0), 0);
        fd = open("y", O_RDONLY);
        assert_int_equal(read(fd, &header, 8), 8);
        assert_int_equal(header % 8, 0);
        (void)close(fd);
        assert_int_equal(zc_st_open(&f, "y", NULL, 0), 0);
        assert_int_equal(zc_st_count(f), 3);
        assert_int_equal(zc_st_read_f32(f, zc_st_find(f, "z.first"), 0, 9900, got, NULL, 0), 0);
        assert_memory_equal(got, values, 9900 * sizeof(float));
        assert_int_equal(zc_st_read_f32(f, zc_st_find(f, tensors[1].name), 7, 93, got, NULL, 0), 0);
        assert_memory_equal(got, values + 9907, 93 * sizeof(float));
        assert_string_equal(zc_st_metadata(f, "why"), "a test");
        zc_st_close(f);
    }
}

/* Every fp16 and every bf16 pattern is converted to the float with its value. */
static void conversions(void **state)
{
    static const uint64_t dims[1] = { 65536 };
    static const struct zc_st_tensor tensors[] = {
        { .name = "h", .dtype = ZC_ST_F16, .ndims = 1, .dims = dims },
        { .name = "b", .dtype = ZC_ST_BF16, .ndims = 1, .dims = dims },
    };
    static uint16_t patterns[65536];
    static float got[65536];
    struct zc_st_writer *w = NULL;
    struct zc_st_file *f = NULL;

    (void)state;
    for (uint32_t i = 0; i < 65536; i++)
        patterns[i] = (uint16_t)i;
    assert_int_equal(zc_st_create(&w, "y", tensors, 2, NULL, 0, NULL, 0), 0);
    assert_int_equal(zc_st_append(w, patterns, sizeof(patterns), NULL, 0), 0);
    assert_int_equal(zc_st_append(w, patterns, sizeof(patterns), NULL, 0), 0);
    assert_int_equal(zc_st_commit(w, NULL, 0), 0);
    assert_int_equal(zc_st_open(&f, "y", NULL, 0), 0);
    assert_null(zc_st_metadata(f, "format"));
    assert_int_equal(zc_st_read_f32(f, zc_st_find(f, "h"), 0, 65536, got, NULL, 0), 0);
    for (uint32_t i = 0; i < 65536; i++) {
        int exponent = (int)(i >> 10 & 31), fraction = (int)(i & 1023);
        double want = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);

        if (exponent == 31)
            want = fraction ? NAN : INFINITY;
        want = i & 0x8000 ? -want : want;
        if (isnan(want) ? !isnan(got[i]) : got[i] != want || !signbit(got[i]) != !signbit(want))
            fail_msg("half %04x: %g, want %g", i, got[i], want);
    }
    assert_int_equal(zc_st_read_f32(f, zc_st_find(f, "b"), 3, 65533, got, NULL, 0), 0);
    for (uint32_t i = 3; i < 65536; i++) {
        uint32_t bits;

        memcpy(&bits, &got[i - 3], 4);
        assert_int_equal(bits, i << 16);
    }
    got[0] = 77.0f;
    assert_int_equal(zc_st_read_f32(f, zc_st_find(f, "b"), 1, 65536, got, NULL, 0), -ERANGE);
    assert_true(got[0] == 77.0f);
    zc_st_close(f);
}

static float to_f32(enum zc_st_dtype dtype, uint16_t pattern)
{
    float f;

    assert_int_equal(zc_st_to_f32(dtype, &pattern, 1, &f), 0);
    return f;
}

/** The rounded value of f; *ret_rc is the result code. */
static uint16_t from_f32(enum zc_st_dtype dtype, float f, int *ret_rc)
{
    uint16_t pattern = 0;

    *ret_rc = zc_st_from_f32(dtype, &f, 1, &pattern);
    return pattern;
}

/* Every pattern is preserved; a value between two of them goes to the nearer one, or on a tie to
 * the even one. */
static void rounding(void **state)
{
    static const enum zc_st_dtype dtypes[] = { ZC_ST_F16, ZC_ST_BF16 };
    float same[3] = { 1, 2, 3 }, got[3];

    (void)state;
    for (size_t d = 0; d < COUNT(dtypes); d++) {
        uint32_t infinity = dtypes[d] == ZC_ST_F16 ? 0x7c00 : 0x7f80;

        for (uint32_t i = 0; i < 65536; i++) {
            uint32_t size = i & 0x7fff;
            float f = to_f32(dtypes[d], (uint16_t)i), above, middle;
            int rc;
            uint16_t back = from_f32(dtypes[d], f, &rc);

            assert_int_equal(rc, 0);
            if (size > infinity ? !isnan(to_f32(dtypes[d], back)) : back != i)
                fail_msg("dtype %d: %04x came back as %04x", dtypes[d], i, back);
            if (size >= infinity)
                continue;
            above = size + 1 == infinity ? ldexpf(1, dtypes[d] == ZC_ST_F16 ? 16 : 127)
                                         : fabsf(to_f32(dtypes[d], (uint16_t)(size + 1)));
            if (size + 1 == infinity && dtypes[d] == ZC_ST_BF16)
                continue; /* 2^128 is not a float */
            middle = copysignf((float)(((double)fabsf(f) + (double)above) / 2), f);
            if (size + 1 < infinity || i % 2 == 0) {
                back = from_f32(dtypes[d], middle, &rc);
                assert_int_equal(back, i + (i & 1));
            }
            back = from_f32(dtypes[d], nextafterf(middle, 0), &rc);
            assert_true(rc == 0 && back == i);
            back = from_f32(dtypes[d], nextafterf(middle, copysignf(INFINITY, f)), &rc);
            assert_int_equal(back, i + 1);
            assert_int_equal(rc, size + 1 == infinity ? -ERANGE : 0);
        }
    }
    assert_int_equal(zc_st_from_f32(ZC_ST_F32, same, 3, got), 0);
    assert_memory_equal(same, got, sizeof(got));
    assert_int_equal(zc_st_to_f32(ZC_ST_F32, same, 3, got), 0);
    assert_int_equal(zc_st_from_f32(ZC_ST_F64, same, 3, got), -ENOTSUP);
    assert_int_equal(zc_st_to_f32(ZC_ST_I32, same, 3, got), -ENOTSUP);
}

/* ---- a failed write leaves nothing, and an existing file unchanged */

static size_t files_beside(void)
{
    glob_t g;
    size_t n = glob("*.tmp-*", 0, NULL, &g) == 0 ? g.gl_pathc : 0;

    globfree(&g);
    return n;
}

static void create_table(void **state)
{
    static const uint64_t one[1] = { 1 }, big[2] = { UINT64_C(1) << 40, UINT64_C(1) << 40 };
    static const uint64_t half[1] = { UINT64_C(1) << 62 };
    static const struct {
        const char *name, *path;
        struct zc_st_tensor tensors[2];
        struct zc_st_pair meta;
        int rc;
        const char *says;
    } rows[] = {
        { "a name twice",
          "new",
          { { "a", ZC_ST_U8, 1, one, 0 }, { "a", ZC_ST_U8, 1, one, 0 } },
          { "k", "v" },
          -EINVAL,
          "called 'a' twice" },
        { "the metadata's name",
          "new",
          { { "a", ZC_ST_U8, 1, one, 0 }, { "__metadata__", ZC_ST_U8, 1, one, 0 } },
          { "k", "v" },
          -EINVAL,
          "called '__metadata__'" },
        { "no dtype",
          "new",
          { { "a", (enum zc_st_dtype)(int)ZC_BF16, 1, one, 0 }, { "b", ZC_ST_U8, 1, one, 0 } },
          { "k", "v" },
          -EINVAL,
          "'a' has no such dtype" },
        { "a name that is not UTF-8",
          "new",
          { { "\xff", ZC_ST_U8, 1, one, 0 }, { "b", ZC_ST_U8, 1, one, 0 } },
          { "k", "v" },
          -EINVAL,
          "not UTF-8" },
        { "metadata that is not UTF-8",
          "new",
          { { "a", ZC_ST_U8, 1, one, 0 }, { "b", ZC_ST_U8, 1, one, 0 } },
          { "k", "\xff" },
          -EINVAL,
          "metadata 'k' is not UTF-8" },
        { "a shape that overflows",
          "new",
          { { "a", ZC_ST_U8, 2, big, 0 }, { "b", ZC_ST_U8, 1, one, 0 } },
          { "k", "v" },
          -EINVAL,
          "'a' overflows" },
        { "a sum that overflows",
          "new",
          { { "a", ZC_ST_U8, 1, half, 0 }, { "b", ZC_ST_U16, 1, half, 0 } },
          { "k", "v" },
          -EINVAL,
          "'b' overflows" },
        { "a folder that is not there",
          "nowhere/new",
          { { "a", ZC_ST_U8, 1, one, 0 }, { "b", ZC_ST_U8, 1, one, 0 } },
          { "k", "v" },
          -ENOENT,
          "'nowhere/new': No such file" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct zc_st_writer *w = NULL;
        char error[256] = "";
        int rc = zc_st_create(&w, rows[i].path, rows[i].tensors, 2, &rows[i].meta, 1, error,
                              sizeof(error));

        if (rc != rows[i].rc || w || !strstr(error, rows[i].says))
            fail_msg("%s: %d '%s'", rows[i].name, rc, error);
        assert_int_equal(files_beside(), 0);
        assert_int_equal(access("new", F_OK), -1);
    }
}

static void long_header(void **state)
{
    static char name[1 << 20];
    static struct zc_st_tensor tensors[100];
    static char names[100][sizeof(name)];
    const uint64_t one[1] = { 1 };
    struct zc_st_writer *w = NULL;
    char error[256];

    (void)state;
    memset(name, 'x', sizeof(name) - 1);
    for (size_t i = 0; i < COUNT(tensors); i++) {
        memcpy(names[i], name, sizeof(name));
        names[i][0] = (char)('0' + i / 10);
        names[i][1] = (char)('0' + i % 10);
        tensors[i] = (struct zc_st_tensor){ names[i], ZC_ST_U8, 1, one, 0 };
    }
    assert_int_equal(
        zc_st_create(&w, "new", tensors, COUNT(tensors), NULL, 0, error, sizeof(error)), -EMSGSIZE);
    assert_non_null(strstr(error, "above the format's limit"));
    assert_int_equal(files_beside(), 0);
}

static void old_file_stays(void **state)
{
    static const uint64_t dims[1] = { 1 << 20 };
    static const struct zc_st_tensor tensor = { "a", ZC_ST_U8, 1, dims, 0 };
    static char zeros[1 << 20];
    struct rlimit unlimited, limit;
    struct zc_st_writer *w = NULL;
    char error[256];
    char old[4] = "";
    FILE *f;
    int rc;

    (void)state;
    f = fopen("old", "w");
    assert_int_equal(fwrite("old", 1, 3, f), 3);
    assert_int_equal(fclose(f), 0);

    assert_int_equal(zc_st_create(&w, "old", &tensor, 1, NULL, 0, NULL, 0), 0);
    assert_int_equal(zc_st_append(w, zeros, sizeof(zeros), NULL, 0), 0);
    assert_int_equal(zc_st_append(w, zeros, 1, error, sizeof(error)), -ERANGE);
    assert_non_null(strstr(error, "room for 0"));
    assert_int_equal(files_beside(), 1);
    zc_st_discard(w);
    assert_int_equal(files_beside(), 0);

    assert_int_equal(zc_st_create(&w, "old", &tensor, 1, NULL, 0, NULL, 0), 0);
    assert_int_equal(zc_st_append(w, zeros, sizeof(zeros) - 1, NULL, 0), 0);
    assert_int_equal(zc_st_commit(w, error, sizeof(error)), -ENODATA);
    assert_non_null(strstr(error, "1 bytes of the tensors were never written"));
    assert_int_equal(files_beside(), 0);

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &unlimited), 0); /* a device that becomes full */
    limit = unlimited;
    limit.rlim_cur = 65536;
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    rc = zc_st_create(&w, "old", &tensor, 1, NULL, 0, NULL, 0);
    assert_int_equal(rc, 0);
    rc = zc_st_append(w, zeros, sizeof(zeros), error, sizeof(error));
    if (rc == 0) {
        rc = zc_st_commit(w, error, sizeof(error));
    } else {
        zc_st_discard(w);
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &unlimited), 0);
    assert_int_equal(rc, -EFBIG);
    assert_non_null(strstr(error, "'old': File too large"));
    assert_int_equal(files_beside(), 0);

    f = fopen("old", "r");
    assert_int_equal(fread(old, 1, 4, f), 3);
    (void)fclose(f);
    assert_string_equal(old, "old");
    zc_st_discard(NULL);
}

/* A temporary file may be left over from a process that was killed. */
static void left_over_name(void **state)
{
    static const uint64_t dims[1] = { 1 };
    static const struct zc_st_tensor tensor = { "a", ZC_ST_U8, 1, dims, 0 };
    struct zc_st_writer *w = NULL;
    char name[64];

    (void)state;
    (void)snprintf(name, sizeof(name), "z.tmp-%ld.0", (long)getpid());
    assert_int_equal(close(open(name, O_WRONLY | O_CREAT, 0666)), 0);
    assert_int_equal(zc_st_create(&w, "z", &tensor, 1, NULL, 0, NULL, 0), 0);
    assert_int_equal(zc_st_append(w, "x", 1, NULL, 0), 0);
    assert_int_equal(zc_st_commit(w, NULL, 0), 0);
    assert_int_equal(access(name, F_OK), 0);
    assert_int_equal(unlink(name), 0);
}

/* ---- the reference library */

static void python_agrees(void **state)
{
    static const uint64_t matrix[2] = { 2, 3 }, vector[1] = { 5 };
    static const struct zc_st_tensor tensors[] = {
        { "m", ZC_ST_F32, 2, matrix, 0 },
        { "h", ZC_ST_F16, 1, vector, 0 },
        { "s", ZC_ST_F32, 0, NULL, 0 },
    };
    static const float m[6] = { 0, 1, 2, 3, 4, 5.5f }, s = -1;
    static const uint16_t h[5] = { 0x3c00, 0x4000, 0x4200, 0xbc00, 0x0001 };
    struct zc_st_pair meta = { "format", "pt" };
    struct zc_st_writer *w = NULL;
    struct zc_st_file *f = NULL;
    float got[6];

    (void)state;
    if (system("python3 -c 'import safetensors.numpy' 2>/dev/null") != 0) {
        ztest_skip("Python has no safetensors and numpy here");
    }
    assert_int_equal(zc_st_create(&w, "ours", tensors, 3, &meta, 1, NULL, 0), 0);
    assert_int_equal(zc_st_append(w, m, sizeof(m), NULL, 0), 0);
    assert_int_equal(zc_st_append(w, h, sizeof(h), NULL, 0), 0);
    assert_int_equal(zc_st_append(w, &s, sizeof(s), NULL, 0), 0);
    assert_int_equal(zc_st_commit(w, NULL, 0), 0);
    assert_int_equal(
        system("python3 -c \"\n"
               "import numpy as np, safetensors, safetensors.numpy as st\n"
               "t = st.load_file('ours')\n"
               "assert sorted(t) == ['h', 'm', 's'], t\n"
               "assert t['m'].dtype == np.float32 and t['m'].shape == (2, 3)\n"
               "assert t['m'].tolist() == [[0, 1, 2], [3, 4, 5.5]]\n"
               "assert t['h'].dtype == np.float16\n"
               "assert t['h'].tolist() == [1, 2, 3, -1, 2.0 ** -24]\n"
               "assert t['s'].shape == () and t['s'] == -1\n"
               "assert safetensors.safe_open('ours', 'np').metadata() == {'format': 'pt'}\n"
               "st.save_file({'q': np.arange(6, dtype=np.float32).reshape(3, 2),\n"
               "              'b': np.ones(3, dtype=np.int8)}, 'theirs', {'k': 'v'})\n"
               "\""),
        0);
    assert_int_equal(zc_st_open(&f, "theirs", NULL, 0), 0);
    assert_int_equal(zc_st_count(f), 2);
    assert_string_equal(zc_st_metadata(f, "k"), "v");
    assert_int_equal(zc_st_read_f32(f, zc_st_find(f, "q"), 0, 6, got, NULL, 0), 0);
    for (int i = 0; i < 6; i++)
        assert_true(got[i] == (float)i);
    zc_st_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_table),   cmocka_unit_test(length_table),
        cmocka_unit_test(looking_in),     cmocka_unit_test(round_trip),
        cmocka_unit_test(conversions),    cmocka_unit_test(rounding),
        cmocka_unit_test(create_table),   cmocka_unit_test(long_header),
        cmocka_unit_test(old_file_stays), cmocka_unit_test(left_over_name),
        cmocka_unit_test(python_agrees),
    };

    return cmocka_run_group_tests(tests, folder_enter, folder_leave);
}
