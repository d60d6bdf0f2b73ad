#include "tests/ztest.h"

#include <stdio.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "daemon/os/slice.h"

static bool kernel_has_slices(void)
{
    struct utsname u;
    unsigned major = 0, minor = 0;

    return uname(&u) == 0 && sscanf(u.release, "%u.%u", &major, &minor) == 2 &&
           (major > 6 || (major == 6 && minor >= 12));
}

/** The kernel has the value, and nothing else of the thread has changed. */
static void set_and_read(void **state)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } before = { 0 }, after = { 0 };

    (void)state;
    assert_int_equal(syscall(SYS_sched_getattr, 0, &before, sizeof(before), 0), 0);
    assert_int_equal(zsd_slice_set(200000), 0);
    assert_int_equal(syscall(SYS_sched_getattr, 0, &after, sizeof(after), 0), 0);
    if (kernel_has_slices())
        assert_int_equal(after.runtime, 200000);
    after.runtime = before.runtime;
    assert_memory_equal(&before, &after, sizeof(before));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(set_and_read) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
