/*
 * test_plugin.c - CUDA's plugin when it is missing, of another build, or broken; and one that
 * works. None of them needs CUDA: they are fakes.
 */
#include "tests/ztest.h"

#include <errno.h>

#include "kernels/gpu.h"
#include "kernels/gpu_own.h"

static void plugins_at(const char *folder)
{
    assert_int_equal(setenv("ZSHARD_PLUGINS", folder, 1), 0);
}

static void those_that_are_none(void **state)
{
    static const struct {
        const char *folder, *says;
    } rows[] = {
        { "/nowhere", "'/nowhere/zk_cuda.so' does not exist (ZSHARD_PLUGINS)" },
        { FAKES "/broken", "'zk_cuda.so' cannot be loaded: " FAKES "/broken/zk_cuda.so: " },
        { FAKES "/none", "none/zk_cuda.so' is not a plugin of zshard" },
        { FAKES "/other",
          "other/zk_cuda.so' is of another build of zshard (0.0.9-0123456789abcdef" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct zb_err err = { 0 };
        struct zk_gpu *g = NULL;
        int rc;

        plugins_at(rows[i].folder);
        rc = zk_gpu_open("cuda", 0, &g, &err);
        if (g || rc != -ENODEV || strncmp(err.text, "no GPU: ", 8) != 0 ||
            !strstr(err.text, rows[i].says))
            fail_msg("'%s': %d, %s", rows[i].folder, rc, err.text);
    }
}

static void one_of_this_build(void **state)
{
    int (*seven)(void) = NULL;
    struct zb_err err = { 0 };
    struct zk_gpu *g = NULL;
    void *found;

    (void)state;
    plugins_at(FAKES "/good");
    if (zk_gpu_open("cuda:3", 4096, &g, &err) != 0)
        fail_msg("%s", err.text);
    assert_string_equal(zk_gpu_info(g)->backend, "cuda");
    assert_string_equal(zk_gpu_info(g)->name, "fake 3");
    assert_int_equal(zk_gpu_info(g)->limit_bytes, 4096);
    assert_null(zk_gpu_symbol(g, "fake_eight"));
    found = zk_gpu_symbol(g, "fake_seven");
    assert_non_null(found);
    memcpy(&seven, &found, sizeof(found));
    assert_int_equal(seven(), 7);
    zk_gpu_close(g);
}

/* CUDA's own plugin, if this build has it: whatever the machine lacks, the plugin is found. */
static void the_real_one(void **state)
{
    struct zb_err err = { 0 };
    struct zk_gpu *g = NULL;

    (void)state;
    if (REAL[0] == '\0')
        ztest_skip("the plugin of CUDA is not built");
    plugins_at(REAL);
    if (zk_gpu_open("cuda", 0, &g, &err) != 0 &&
        (err.code != -ENODEV || strncmp(err.text, "no GPU: ", 8) != 0 ||
         strstr(err.text, "zk_cuda.so")))
        fail_msg("%s", err.text);
    if (g)
        assert_non_null(zk_gpu_symbol(g, "gpt_kern_cuda"));
    zk_gpu_close(g);
}

/* The emulated GPU needs no plugin, and looks for none. */
static void the_emulated_one(void **state)
{
    struct zb_err err = { 0 };
    struct zk_gpu *g = NULL;

    (void)state;
    plugins_at("/nowhere");
    if (zk_gpu_open("emulated:4M", 0, &g, &err) != 0)
        fail_msg("%s", err.text);
    assert_null(zk_gpu_symbol(g, "fake_seven"));
    zk_gpu_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_that_are_none),
        cmocka_unit_test(one_of_this_build),
        cmocka_unit_test(the_real_one),
        cmocka_unit_test(the_emulated_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
