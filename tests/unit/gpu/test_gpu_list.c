/*
 * test_gpu_list.c - lists of devices, and which devices their names open. The double of CUDA has
 * three devices here, if it was built.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/gpu/gpu_priv.h"

/* The names, joined by blanks. */
static const char *list_of(const char *text)
{
    static char joined[ZK_GPU_LIST_MAX * ZK_GPU_NAME_MAX];
    struct zk_gpu_list list;
    struct zb_err err = { 0 };
    size_t len = 0;

    if (zk_gpu_list(text, &list, &err) < 0)
        fail_msg("'%s': %s", text, err.text);
    joined[0] = '\0';
    for (unsigned i = 0; i < list.n; i++)
        len += (size_t)snprintf(joined + len, sizeof(joined) - len, "%s%s", i > 0 ? " " : "",
                                list.names[i]);
    return joined;
}

static void names(void **state)
{
    (void)state;
    assert_string_equal(list_of("cuda"), "cuda");
    assert_string_equal(list_of("cuda:3,cuda:0"), "cuda:3 cuda:0");
    assert_string_equal(list_of("0,12"), "cuda:0 cuda:12");
    assert_string_equal(list_of("GPU-5fd4f087-86f3,0000:17:00.0"),
                        "cuda:GPU-5fd4f087-86f3 cuda:0000:17:00.0");
    assert_string_equal(list_of("emulated"), "emulated");
    assert_string_equal(list_of("emulated:16M:::4K"), "emulated:16M:::4K");
    assert_string_equal(list_of("emulated*3:16M"), "emulated:16M emulated@1:16M emulated@2:16M");
    assert_string_equal(list_of("emulated*2,emulated:1M,emulated@7"),
                        "emulated emulated@1 emulated@2:1M emulated@7");
    assert_string_equal(list_of("emulated*4/2:1M,emulated/5,emulated@9/1"),
                        "emulated/0:1M emulated@1/0:1M emulated@2/1:1M emulated@3/1:1M "
                        "emulated@4/5 emulated@9/1");
}

static void those_that_are_none(void **state)
{
    static const char *const texts[] = { "",
                                         ",",
                                         "cuda,",
                                         "emulated*",
                                         "emulated*0",
                                         "emulated*17",
                                         "emulated*2x",
                                         "emulated*9,emulated*8",
                                         "emulated*2/",
                                         "emulated*2/0",
                                         "emulated*2/3",
                                         "emulated*2/1x",
                                         "emulated*/2" };

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct zk_gpu_list list;
        struct zb_err err = { 0 };

        if (zk_gpu_list(texts[i], &list, &err) != -EINVAL || err.text[0] == '\0')
            fail_msg("'%s' is a list", texts[i]);
    }
}

static const char *id_of(const char *name)
{
    static char id[48];
    struct zb_err err = { 0 };
    struct zk_gpu *g = NULL;

    if (zk_gpu_open(name, 0, &g, &err) < 0)
        return strcpy(id, err.code == -EINVAL ? "invalid" : "none");
    (void)snprintf(id, sizeof(id), "%s", zk_gpu_info(g)->id);
    zk_gpu_close(g);
    return id;
}

static void emulated_devices(void **state)
{
    (void)state;
    assert_string_equal(id_of("emulated"), "emulated");
    assert_string_equal(id_of("emulated@0:4M"), "emulated");
    assert_string_equal(id_of("emulated@3:4M"), "emulated-3");
    assert_string_equal(id_of("emulated@12"), "emulated-12");
    assert_string_equal(id_of("emulated@"), "invalid");
    assert_string_equal(id_of("emulated@x"), "invalid");
    assert_string_equal(id_of("emulated@1x"), "invalid");
    assert_string_equal(id_of("emulated*2"), "invalid"); /* a list */
}

static int node_of(const char *name)
{
    struct zb_err err = { 0 };
    struct zk_gpu *g = NULL;
    int node;

    if (zk_gpu_open(name, 0, &g, &err) < 0)
        return err.code;
    node = zk_gpu_info(g)->node;
    zk_gpu_close(g);
    return node;
}

/* The kernel's description of a device, as a folder of files. */
static int pci_says(const char *text)
{
    char folder[160], device[200], path[240];
    FILE *f;
    int node;

    (void)snprintf(folder, sizeof(folder), "%s/ztest-pci-%d", ztest_folder(), (int)getpid());
    (void)snprintf(device, sizeof(device), "%s/0000:17:00.0", folder);
    (void)snprintf(path, sizeof(path), "%s/numa_node", device);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(mkdir(device, 0700), 0);
    if (text) {
        f = fopen(path, "we");
        assert_non_null(f);
        assert_true(fputs(text, f) >= 0);
        assert_int_equal(fclose(f), 0);
    }
    node = zk_gpu_near_pci(folder, "0000:17:00.0");
    assert_int_equal(zk_gpu_near_pci(folder, "0000:18:00.0"), -1);
    assert_int_equal(zk_gpu_near_pci(folder, ""), -1);
    (void)unlink(path);
    assert_int_equal(rmdir(device), 0);
    assert_int_equal(rmdir(folder), 0);
    return node;
}

static void nodes(void **state)
{
    (void)state;
    assert_int_equal(node_of("emulated"), -1);
    assert_int_equal(node_of("emulated@3:4M"), -1);
    assert_int_equal(node_of("emulated/0"), 0);
    assert_int_equal(node_of("emulated@3/12:4M"), 12);
    assert_int_equal(node_of("emulated/"), -EINVAL);
    assert_int_equal(node_of("emulated/x"), -EINVAL);
    assert_int_equal(node_of("emulated/1x"), -EINVAL);
    assert_int_equal(node_of("emulated/1@3"), -EINVAL);
    assert_int_equal(pci_says("1\n"), 1);
    assert_int_equal(pci_says("0\n"), 0);
    assert_int_equal(pci_says("-1\n"), -1);
    assert_int_equal(pci_says("\n"), -1);
    assert_int_equal(pci_says("99999\n"), -1);
    assert_int_equal(pci_says(NULL), -1);
}

static const char *local_at(const char *name, unsigned place)
{
    static char local[ZK_GPU_NAME_MAX];
    struct zb_err err = { 0 };

    if (zk_gpu_local(name, place, local, &err) < 0)
        fail_msg("'%s': %s", name, err.text);
    return local;
}

static const char *local_of(const char *name)
{
    return local_at(name, 0);
}

/* Launchers say which of its machine's processes this one is. */
static void by_local_rank(void **state)
{
    static const char *const names[] = { "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                         "SLURM_LOCALID", "MPI_LOCALRANKID" };

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(unsetenv(names[i]), 0);
    assert_string_equal(local_of("cuda"), "cuda");
    assert_string_equal(local_of("emulated*4:1M"), "emulated:1M");
    assert_string_equal(local_at("emulated*4:1M", 3), "emulated@3:1M"); /* no launcher says it */
    assert_string_equal(local_at("emulated*4:1M", 6), "emulated@2:1M");
    assert_string_equal(local_at("emulated:1M", 6), "emulated:1M");
    for (unsigned i = 4; i-- > 0;) { /* those before it in the table come first */
        char number[4];

        (void)snprintf(number, sizeof(number), "%u", i + 1);
        assert_int_equal(setenv(names[i], number, 1), 0);
        (void)snprintf(number, sizeof(number), "%u", (i + 1) % 3);
        assert_string_equal(local_of("0,1,2") + strlen("cuda:"), number);
    }
    assert_int_equal(setenv("LOCAL_RANK", "5", 1), 0);
    assert_string_equal(local_of("emulated*4:1M"), "emulated@1:1M");
    assert_string_equal(local_at("emulated*4:1M", 3), "emulated@1:1M"); /* the launcher says it */
    assert_string_equal(local_of("emulated:1M"), "emulated:1M");        /* one is one */
    assert_string_equal(local_of("cuda:0"), "cuda:0");
    assert_int_equal(setenv("LOCAL_RANK", "-1", 1), 0); /* not a number: the next one counts */
    assert_string_equal(local_of("emulated*4:1M"), "emulated@2:1M");
    assert_int_equal(setenv("LOCAL_RANK", "4", 1), 0);
}

#ifdef DOUBLE
static void cuda_devices(void **state)
{
    static const char one[] = "cuda-d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1";

    (void)state;
    assert_int_equal(setenv("ZSHARD_PLUGINS", DOUBLE, 1), 0);
    assert_int_equal(setenv("CUDA_DOUBLE_DEVICES", "3", 1), 0);
    assert_string_equal(list_of("all"), "cuda:0 cuda:1 cuda:2");
    assert_string_equal(local_of("cuda"), "cuda:1"); /* the local rank is 4 */
    assert_string_equal(id_of("cuda:1"), one);
    assert_string_equal(id_of("cuda:GPU-d1d1d1d1-d1d1-d1d1-d1d1-d1d1d1d1d1d1"), one);
    assert_string_equal(id_of("cuda:GPU-D1D1D1D1-d1d1-d1d1-d1d1-d1d1d1d1d1d1"), one);
    assert_string_equal(id_of("cuda:0000:11:00.0"), one);
    assert_string_equal(id_of("cuda:0000:14:00.0"), "none");
    assert_string_equal(id_of("cuda:0001:11:00.0"), "none");
    assert_string_equal(id_of("cuda:GPU-d1d1d1d1-d1d1-d1d1-d1d1-d1d1d1d1d1"), "none"); /* a part */
    assert_string_equal(id_of("cuda:GPU-d9d9d9d9-d9d9-d9d9-d9d9-d9d9d9d9d9d9"), "none");
    assert_string_equal(id_of("cuda:3"), "none");
    assert_string_equal(id_of("cuda:one"), "invalid");
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(those_that_are_none),
        cmocka_unit_test(emulated_devices),
        cmocka_unit_test(nodes),
        cmocka_unit_test(by_local_rank),
#ifdef DOUBLE
        cmocka_unit_test(cuda_devices),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
