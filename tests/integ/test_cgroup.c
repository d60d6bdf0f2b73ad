/*
 * The daemon stays within its memory. It runs in a cgroup limited to its budget plus its allowance
 * outside of the budget (15 %, or 128 MiB if that is more). A training job uses all of the budget,
 * attacks follow one after another (bench/attack.h), and nothing may be killed. Trainer and
 * attackers are outside of the cgroup. ZSHARD_LIMIT=BYTES is another limit, to see the test fail.
 */
#include "tests/integ/cgroup.h"
#include "tests/integ/zinteg.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/size.h"
#include "base/util.h"
#include "bench/attack.h"

#define HOST      (UINT64_C(128) << 20)
#define RING      (UINT64_C(16) << 20)
#define LEFT      (UINT64_C(8) << 20)   /* part of the budget, for the attackers' jobs */
#define BESIDE    (UINT64_C(128) << 20) /* the allowance: more than 15 % */
#define ELEMS     (UINT64_C(1) << 20)
#define UNITS     8u
#define STAGING   (4u << 20)
#define ATTACK_MS 200u /* of each attack, at least, and this many steps: */
#define STEPS     2u

static const char *const options[] = {
    "--host-bytes", "128M",        "--nvme-bytes", "1G", "--page-elems", "65536", "--ring-bytes",
    "16M",          "--log-level", "error",        NULL
};

static float value(uint64_t element)
{
    return (float)(element % 97) / 97;
}

static void train(struct zi_rank *r, uint64_t *step)
{
    static const struct zc_group groups[] = {
        { .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8 }
    };
    const struct zc_step s = { .step = ++*step,
                               .scale = 1,
                               .groups = groups,
                               .ngroups = 1,
                               .commit = *step % 4 == 1 ? ZC_COMMIT_STEP : ZC_COMMIT_NO,
                               .timeout_ms = ZI_FETCH_MS };
    struct zc_stepped stepped = { 0 };

    for (unsigned u = 0; u < UNITS; u++)
        zi_push_all(r, u, *step, value);
    if (zc_step_wait(r->c, r->job.id, &s, &stepped) < 0 || stepped.commit_code < 0)
        fail_msg("step %llu: %s%s", (unsigned long long)*step, zc_error(r->c), stepped.commit_text);
}

static void job_open(struct zi_rank *r, const struct zi_daemon *d)
{
    static struct zc_unit units[UNITS];
    static char names[UNITS][8];
    const struct zc_job_options o = { .name = "job",
                                      .world = 1,
                                      .keep = true,
                                      .durable = true,
                                      .staging_bytes = STAGING,
                                      .groups = 1,
                                      .host_bytes_max = HOST - RING - LEFT };

    for (uint32_t u = 0; u < UNITS; u++) {
        (void)snprintf(names[u], sizeof(names[u]), "u%u", u);
        units[u] = (struct zc_unit){
            .index = u, .name = names[u], .elems = ELEMS, .dtype = ZC_BF16, .grad_dtype = ZC_F32
        };
    }
    zi_job(r, 1, d, &o, units, UNITS);
    for (unsigned u = 0; u < UNITS; u++)
        zi_write_all(r, u, value);
}

static struct cg_memory cg; /* of the running test */

static uint64_t limit(void)
{
    const char *bytes = getenv("ZSHARD_LIMIT");

    return bytes ? strtoull(bytes, NULL, 10) : HOST + BESIDE;
}

static int teardown(void **state)
{
    int rc = zi_teardown(state);

    cg_memory_close(&cg);
    return rc;
}

static void nothing_is_killed(void **state)
{
    struct zbench_harm *harm =
        mmap(NULL, sizeof(*harm), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    struct zi_rank r;
    uint64_t step = 0;
    char why[256];

    (void)state;
    assert_true(harm != MAP_FAILED);
    if (!cg_memory_open(&cg, limit(), why, sizeof(why)))
        ztest_skip("%s", why);
    d.cgroup_procs = cg.procs;
    zi_start(&d, options);
    c = zi_client(&d);
    job_open(&r, &d);
    assert_true(zi_tier(c, "host").used > HOST / 8 * 7);
    for (const struct zbench_attack *a = zbench_attacks; a->name; a++) {
        struct zbench_child child = ZBENCH_NO_CHILD;
        uint64_t until_ns = zb_now_ns() + ATTACK_MS * UINT64_C(1000000), most = 0;
        struct zb_err err = { 0 };

        if (zbench_attack_start(&child, a, d.socket, harm, &err) < 0)
            fail_msg("%s", err.text);
        for (unsigned i = 0; i < STEPS || zb_now_ns() < until_ns; i++) {
            train(&r, &step);
            most = zb_max_u64(most, cg_memory_unfiled(&cg));
        }
        print_message("%s: %s without files, of %s; at the limit %llu times; %s\n", a->name,
                      zb_size_text(most).s, zb_size_text(limit()).s,
                      (unsigned long long)cg_memory_at_limit(&cg), zi_tier(c, "host").detail);
        zbench_child_end(&child);
        if (cg_memory_kills(&cg) > 0)
            fail_msg("%s: the daemon was killed for memory", a->name);
        assert_in_range(most, 1, limit());
    }
    zi_close(&r, 1);
    zc_close(c);
    zi_stop(&d);
    print_message("cgroup v%u: limit %" PRIu64 " bytes, peak with page cache %" PRIu64
                  ", killed %" PRIu64 "\n",
                  cg.version, limit(), cg_memory_peak(&cg), cg_memory_kills(&cg));
    assert_int_equal(cg_memory_kills(&cg), 0);
    (void)munmap(harm, sizeof(*harm));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(nothing_is_killed, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
