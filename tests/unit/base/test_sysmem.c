#include "tests/ztest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sysmem.h"
#include "base/util.h"

#define FILES_MAX 10

#define MEMINFO                                                                          \
    {                                                                                    \
        "/proc/meminfo", "MemTotal: 9000000 kB\nMemFree: 1 kB\nMemAvailable:  8192 kB\n" \
    }
#define MOUNT2(root, point)                                                        \
    {                                                                              \
        "/proc/self/mountinfo",                                                    \
            "1 0 8:1 / / rw - ext4 /dev/sda rw\n"                                  \
            "9 1 0:5 " root " " point " rw,nosuid shared:4 - cgroup2 cgroup2 rw\n" \
    }

/* A machine: its files, and its available memory. */
static const struct {
    const char *name;
    struct {
        const char *path, *text;
    } files[FILES_MAX];
    uint64_t left, limit; /* limit 0: none */
} machines[] = {
    { "no cgroups", { MEMINFO }, 8 * ZB_MIB, 0 },
    { "a root cgroup without files",
      { MEMINFO, { "/proc/self/cgroup", "0::/\n" }, MOUNT2("/", "/sys/fs/cgroup") },
      8 * ZB_MIB,
      0 },
    { "version 2, no limit",
      { MEMINFO,
        { "/proc/self/cgroup", "0::/a\n" },
        MOUNT2("/", "/cg"),
        { "/cg/a/memory.max", "max\n" },
        { "/cg/a/memory.current", "99999999\n" } },
      8 * ZB_MIB,
      0 },
    { "version 2, a limit",
      { MEMINFO,
        { "/proc/self/cgroup", "0::/a\n" },
        MOUNT2("/", "/cg"),
        { "/cg/a/memory.max", "4194304\n" },
        { "/cg/a/memory.current", "1048576\n" } },
      3 * ZB_MIB,
      4 * ZB_MIB },
    { "version 2, file cache does not count",
      { MEMINFO,
        { "/proc/self/cgroup", "0::/a\n" },
        MOUNT2("/", "/cg"),
        { "/cg/a/memory.max", "4194304\n" },
        { "/cg/a/memory.current", "3145728\n" },
        { "/cg/a/memory.stat",
          "anon 5\nfile 2097152\ninactive_file2 1\ninactive_file 1048576\n" } },
      2 * ZB_MIB,
      4 * ZB_MIB },
    { "version 2, more used than allowed",
      { MEMINFO,
        { "/proc/self/cgroup", "0::/a\n" },
        MOUNT2("/", "/cg"),
        { "/cg/a/memory.max", "4194304\n" },
        { "/cg/a/memory.current", "5000000\n" } },
      0,
      4 * ZB_MIB },
    { "version 2, memory.high is lower",
      { MEMINFO,
        { "/proc/self/cgroup", "0::/a\n" },
        MOUNT2("/", "/cg"),
        { "/cg/a/memory.max", "4194304\n" },
        { "/cg/a/memory.high", "2097152\n" },
        { "/cg/a/memory.current", "0\n" } },
      2 * ZB_MIB,
      4 * ZB_MIB },
    { "version 2, the limit is a parent's",
      { MEMINFO,
        { "/proc/self/cgroup", "0::/a/b/c\n" },
        MOUNT2("/", "/cg"),
        { "/cg/a/memory.max", "4194304\n" },
        { "/cg/a/memory.current", "1048576\n" },
        { "/cg/a/b/c/memory.max", "max\n" } },
      3 * ZB_MIB,
      4 * ZB_MIB },
    { "version 2, at the mount point itself",
      { MEMINFO,
        { "/proc/self/cgroup", "0::/\n" },
        MOUNT2("/", "/cg"),
        { "/cg/memory.max", "1048576\n" },
        { "/memory.max", "1\n" } },
      1 * ZB_MIB,
      1 * ZB_MIB },
    { "a container that sees its own part only",
      { MEMINFO,
        { "/proc/self/cgroup", "0::/docker/x/y\n" },
        MOUNT2("/docker/x", "/cg"),
        { "/cg/y/memory.max", "2097152\n" },
        { "/cg/memory.max", "3145728\n" },
        { "/cg/docker/x/y/memory.max", "1\n" } },
      2 * ZB_MIB,
      2 * ZB_MIB },
    { "a container that sees another part",
      { MEMINFO,
        { "/proc/self/cgroup", "0::/else/where\n" },
        { "/cg/else/where/memory.max", "1\n" },
        MOUNT2("/docker/x", "/cg"),
        { "/cg/memory.max", "3145728\n" } },
      3 * ZB_MIB,
      3 * ZB_MIB },
    { "version 1",
      { MEMINFO,
        { "/proc/self/cgroup", "12:cpu,cpuacct:/other\n4:memory:/job/1\n1:name=systemd:/job\n" },
        { "/proc/self/mountinfo", "5 1 0:1 / /cg/cpu rw shared:1 - cgroup cgroup rw,cpu,cpuacct\n"
                                  "6 1 0:2 / /cg/memory rw shared:2 - cgroup cgroup rw,memory\n" },
        { "/cg/memory/job/memory.limit_in_bytes", "6291456\n" },
        { "/cg/memory/job/memory.usage_in_bytes", "4194304\n" },
        { "/cg/memory/job/memory.stat", "inactive_file 4194304\ntotal_inactive_file 1048576\n" },
        { "/cg/memory/job/1/memory.limit_in_bytes", "9223372036854771712\n" },
        { "/cg/cpu/other/memory.limit_in_bytes", "1\n" } },
      3 * ZB_MIB,
      6 * ZB_MIB },
    { "both versions: version 1 has the memory",
      { MEMINFO,
        { "/proc/self/cgroup", "4:cpuset,memory:/a\n0::/b\n" },
        { "/proc/self/mountinfo", "6 1 0:2 / /cg1 rw - cgroup cgroup rw,cpuset,memory\n"
                                  "7 1 0:3 / /cg2 rw - cgroup2 cgroup2 rw\n" },
        { "/cg1/a/memory.limit_in_bytes", "1048576\n" },
        { "/cg1/a/memory.usage_in_bytes", "4096\n" } },
      ZB_MIB - 4096,
      1 * ZB_MIB },
    { "a limit without a usage",
      { MEMINFO,
        { "/proc/self/cgroup", "0::/a\n" },
        MOUNT2("/", "/cg"),
        { "/cg/a/memory.max", "4194304\n" } },
      4 * ZB_MIB,
      4 * ZB_MIB },
    { "lines that are none",
      { MEMINFO,
        { "/proc/self/cgroup", "\nx\n1:\n0::/a" },
        { "/proc/self/mountinfo", "\n - \n1 2 3 - cgroup2\n1 0 0:5 / /cg rw - cgroup2 x rw\n" },
        { "/cg/a/memory.max", "" } },
      8 * ZB_MIB,
      0 },
};

static char root[] = "/tmp/zshard-sysmem-XXXXXX";

static void put(const char *path, const char *text)
{
    char full[512];
    FILE *f;

    (void)snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        (void)mkdir(full, 0700);
        *p = '/';
    }
    f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void table(void **state)
{
    char command[64];

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(machines); i++) {
        uint64_t left, limit;

        assert_non_null(mkdtemp(root));
        for (size_t k = 0; k < FILES_MAX && machines[i].files[k].path; k++)
            put(machines[i].files[k].path, machines[i].files[k].text);
        left = zb_sysmem_left(root);
        limit = zb_sysmem_limit(root, 0);
        if (left != machines[i].left)
            fail_msg("%s: %llu", machines[i].name, (unsigned long long)left);
        if (limit != (machines[i].limit ? machines[i].limit : UINT64_MAX))
            fail_msg("%s: limit %llu", machines[i].name, (unsigned long long)limit);
        (void)snprintf(command, sizeof(command), "rm -r %s", root);
        assert_int_equal(system(command), 0);
        (void)strcpy(root + strlen(root) - 6, "XXXXXX");
    }
}

static void this_machine(void **state)
{
    uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

    (void)state;
    assert_true(zb_sysmem_left("") > 0);
    assert_true(zb_sysmem_left("") < total);
    assert_true(zb_sysmem_left("/no/such/root") == total); /* nothing else is known */
    assert_true(zb_sysmem_limit("", (int)getpid()) == zb_sysmem_limit("", 0));
    assert_true(zb_sysmem_limit("/no/such/root", 0) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),
        cmocka_unit_test(this_machine),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
