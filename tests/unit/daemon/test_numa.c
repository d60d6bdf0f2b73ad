/* Nodes and their CPUs on synthetic hwloc topologies, and real memory on the real node 0. */
#include "tests/ztest.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/util.h"
#include "daemon/os/arena.h"
#include "daemon/os/numa.h"

#define BYTES (8 * ZB_MIB)

/* linux/mempolicy.h, which not every system has installed */
#define POLICY_DEFAULT        0
#define POLICY_PREFERRED      1
#define POLICY_PREFERRED_MANY 5

static const struct {
    const char *name, *machine, *option, *cpus;
    int rc;
    const char *says; /* the result, or the error message */
    unsigned nsets;
} cases[] = {
    { "one node", "node:1 pu:2", "auto", "", 0, "one node", 0 },
    { "one node by name", "node:1 pu:2", "0", "", 0, "node 0, preferred; spills", 1 },
    { "two nodes", "node:2 pu:1", "auto", "0-1", 0, "nodes 0-1, interleaved; spills", 2 },
    { "the node of the CPUs", "node:2 pu:1", "auto", "1", 0, "node 1, preferred; spills", 1 },
    { "one of two", "node:2 pu:1", "0", "0-1", 0, "node 0, preferred; spills", 1 },
    { "memory without CPUs", "node:4 pu:1", "0,3", "0", 0, "nodes 0,3, interleaved; spills", 1 },
    { "auto leaves memory without CPUs", "node:4 pu:1", "auto", "0-1", 0, "nodes 0-1", 2 },
    { "CPUs on no chosen node", "node:4 pu:1", "3", "0", -EINVAL, "may use no CPU of these nodes",
      0 },
    { "no such node", "node:2 pu:1", "0-2", "", -EINVAL, "this process may only use nodes 0-1", 0 },
    { "no list", "node:2 pu:1", "one", "", -EINVAL, "neither off, auto nor a list", 0 },
    { "no such CPU", "node:2 pu:1", "auto", "x", -EINVAL, "not a CPU list", 0 },
};

static void nodes_are_chosen(void **state)
{
    cpu_set_t ours;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof(ours), &ours), 0);
    if (!CPU_ISSET(0, &ours) || !CPU_ISSET(1, &ours))
        ztest_skip("processors 0 and 1 are not ours");
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct zsd_numa *n = (void *)&ours;
        struct zb_err err = { 0 };
        const cpu_set_t *sets;
        unsigned nsets;
        int rc;

        assert_int_equal(setenv("HWLOC_SYNTHETIC", cases[i].machine, 1), 0);
        rc = zsd_numa_open(&n, cases[i].option, cases[i].cpus, &err);
        sets = zsd_numa_cpus(n, &nsets);
        if (rc != cases[i].rc || nsets != cases[i].nsets || (rc < 0) != !n ||
            !strstr(rc < 0 ? err.text : zsd_numa_text(n), cases[i].says))
            fail_msg("%s: %d, %u sets, '%s', '%s'", cases[i].name, rc, nsets, zsd_numa_text(n),
                     err.text);
        for (unsigned k = 0; k < nsets; k++)
            assert_int_equal(CPU_COUNT(&sets[k]), strcmp(cases[i].machine, "node:1 pu:2") ? 1 : 2);
        zsd_numa_close(n);
    }
    assert_int_equal(unsetenv("HWLOC_SYNTHETIC"), 0);
}

static void off_is_nothing(void **state)
{
    struct zsd_numa *n = (void *)state;
    unsigned nsets = 7;

    assert_int_equal(zsd_numa_open(&n, "off", "", NULL), 0);
    assert_null(n);
    assert_null(zsd_numa_cpus(n, &nsets));
    assert_int_equal(nsets, 0);
    assert_string_equal(zsd_numa_text(n), "off");
    zsd_numa_close(n);
}

static int policy(void)
{
    int mode = -1;

    assert_int_equal(syscall(SYS_get_mempolicy, &mode, NULL, 0UL, NULL, 0UL), 0);
    return mode;
}

static void *policy_of_thread(void *arg)
{
    *(int *)arg = policy();
    return NULL;
}

/** Memory is counted on the node where it is; a thread with the policy places its memory there,
 * too. */
static void memory_is_on_node_0(void **state)
{
    uint8_t *memory = zsd_private_new(BYTES), *arena;
    struct zsd_arena a;
    struct zsd_numa_area areas[3];
    struct zsd_numa_use use;
    struct zsd_numa *n = NULL;
    struct zb_err err = { 0 };
    char text[256], want[64];
    pthread_t thread;
    int mode = 0, rc = zsd_numa_open(&n, "0", "", &err);

    (void)state;
    assert_non_null(memory);
    if (rc == -EPERM || rc == -ENOSYS) /* a container that refuses it */
        ztest_skip("memory cannot be bound to a node here");
    if (rc < 0)
        fail_msg("%s", err.text);
    assert_true(policy() == POLICY_PREFERRED || policy() == POLICY_PREFERRED_MANY);
    assert_int_equal(pthread_create(&thread, NULL, policy_of_thread, &mode), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(mode, policy());

    assert_int_equal(zsd_arena_open(&a, "test", BYTES, true, &err), 0);
    arena = a.base;
    areas[0] = (struct zsd_numa_area){ memory, BYTES };
    areas[1] = (struct zsd_numa_area){ arena, BYTES };
    areas[2] = (struct zsd_numa_area){ NULL, 0 };
    zsd_numa_survey(n, areas, 3, &use);
    assert_int_equal(use.on[0], BYTES); /* the arena's, which is there from the beginning */
    memset(memory, 1, BYTES);
    zsd_numa_survey(n, areas, 3, &use);
    assert_int_equal(use.on[0], 2 * BYTES);
    assert_int_equal(use.chosen, 2 * BYTES);
    assert_int_equal(use.spilled, 0);
    zsd_numa_use_text(n, &use, text, sizeof(text));
    (void)snprintf(want, sizeof(want), "0:%llu", (unsigned long long)(2 * BYTES));
    assert_memory_equal(text, want, strlen(want));
    zsd_arena_close(&a);
    zsd_numa_survey(n, areas, 3, &use); /* one area is gone */
    assert_int_equal(use.on[0], BYTES);
    zsd_numa_close(n);
    assert_int_equal(policy(), POLICY_DEFAULT);
    zsd_private_free(memory, BYTES);
}

/** Memory that is not on its requested node counts as spilled: here, with a synthetic node. */
static void what_is_elsewhere_is_spilled(void **state)
{
    uint8_t *memory = zsd_private_new(BYTES);
    struct zsd_numa_area area = { memory, BYTES };
    struct zsd_numa_use use;
    struct zsd_numa *n = NULL;
    struct zb_err err = { 0 };
    cpu_set_t ours;

    (void)state;
    assert_non_null(memory);
    memset(memory, 1, BYTES);
    assert_int_equal(sched_getaffinity(0, sizeof(ours), &ours), 0);
    if (!CPU_ISSET(1, &ours))
        ztest_skip("processor 1 is not ours");
    assert_int_equal(setenv("HWLOC_SYNTHETIC", "node:2 pu:1", 1), 0);
    if (zsd_numa_open(&n, "1", "", &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(unsetenv("HWLOC_SYNTHETIC"), 0);
    zsd_numa_survey(n, &area, 1, &use);
    if (use.on[1] == 0)
        assert_int_equal(use.spilled, BYTES);
    assert_int_equal(use.chosen + use.spilled, BYTES);
    zsd_numa_close(n);
    zsd_private_free(memory, BYTES);
}

/** A large area is counted by samples; the result covers all of it. */
static void samples_count_for_what_is_between(void **state)
{
    uint64_t bytes = 600 * ZB_MIB + 4096 * 3;
    uint8_t *memory = zsd_private_new(bytes);
    struct zsd_numa_area area = { memory, bytes };
    struct zsd_numa_use use;
    struct zsd_numa *n = NULL;
    uint64_t sum = 0;

    (void)state;
    assert_non_null(memory);
    if (zsd_numa_open(&n, "auto", "", NULL) < 0)
        ztest_skip("NUMA cannot be opened here");
    memset(memory, 1, bytes / 2);
    zsd_numa_survey(n, &area, 1, &use);
    for (unsigned i = 0; i < ZSD_NODES_MAX; i++)
        sum += use.on[i];
    assert_in_range(sum, bytes / 2, bytes / 2 + 4 * ZB_MIB);
    assert_int_equal(use.chosen + use.spilled, sum);
    zsd_numa_close(n);
    zsd_private_free(memory, bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_are_chosen),
        cmocka_unit_test(off_is_nothing),
        cmocka_unit_test(memory_is_on_node_0),
        cmocka_unit_test(what_is_elsewhere_is_spilled),
        cmocka_unit_test(samples_count_for_what_is_between),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
