/*
 * What a real daemon refuses (refuse.h) for lack of room: the error message names the smallest size
 * that would work.
 */
#include "tests/integ/refuse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

/* ---- budgets */

struct budget_case {
    const char *name;
    const char *host, *ring; /* ring NULL: auto */
    const char *nvme;
    uint32_t page_elems;
    uint64_t elems; /* of each unit */
    unsigned nunits;
    enum zc_dtype dtype;
    enum zc_place param, optimizer;
    uint64_t staging, host_bytes_max;
    enum zc_place grad;
};

static const struct budget_case budget_cases[] = {
    { "gradients are too many", "2M", NULL, "512M", 4096, 1000000, 1, ZC_F32, ZC_NVME, ZC_NVME,
      4096, 0, ZC_HOST },
    { "several units", "2M", NULL, "512M", 4096, 100000, 9, ZC_F32, ZC_NVME, ZC_NVME, 4096, 0,
      ZC_HOST },
    { "bf16", "2M", NULL, "512M", 4096, 300000, 5, ZC_BF16, ZC_NVME, ZC_NVME, 65536, 0, ZC_HOST },
    { "everything in host memory", "2M", NULL, "512M", 4096, 300000, 5, ZC_BF16, ZC_HOST, ZC_HOST,
      65536, 0, ZC_HOST },
    { "parameters in host memory", "2M", NULL, "512M", 4096, 300000, 5, ZC_F32, ZC_HOST, ZC_NVME,
      65536, 0, ZC_HOST },
    { "many page buffers", "2M", NULL, "512M", 4096, 5000000, 1, ZC_F32, ZC_NVME, ZC_NVME, 4096, 0,
      ZC_HOST },
    { "pages of 64K elements", "4M", NULL, "512M", 65536, 3000000, 2, ZC_F32, ZC_NVME, ZC_NVME,
      4096, 0, ZC_HOST },
    { "buffers that are given", "3M", "1M", "512M", 4096, 1000000, 1, ZC_F32, ZC_NVME, ZC_NVME,
      4096, 0, ZC_HOST },
    { "no NVMe tier", "2M", NULL, "0", 4096, 200000, 2, ZC_F32, ZC_NVME, ZC_NVME, 4096, 0,
      ZC_HOST },
    { "a unit, and gradients may go", "2M", NULL, "512M", 4096, 1000000, 1, ZC_F32, ZC_NVME,
      ZC_NVME, 4096, 0, ZC_NVME },
    { "several units, and gradients may go", "1M", NULL, "512M", 4096, 100000, 9, ZC_F32, ZC_NVME,
      ZC_NVME, 4096, 0, ZC_NVME },
    { "bf16, and gradients may go", "1M", NULL, "512M", 4096, 300000, 5, ZC_BF16, ZC_NVME, ZC_NVME,
      65536, 0, ZC_NVME },
    { "pages of 64K elements, and gradients may go", "4M", NULL, "512M", 65536, 3000000, 2, ZC_F32,
      ZC_NVME, ZC_NVME, 4096, 0, ZC_NVME },
    { "in host memory, and gradients might go", "2M", NULL, "512M", 4096, 300000, 5, ZC_BF16,
      ZC_HOST, ZC_HOST, 65536, 0, ZC_NVME },
    { "no NVMe tier for gradients", "2M", NULL, "0", 4096, 200000, 2, ZC_F32, ZC_NVME, ZC_NVME,
      4096, 0, ZC_NVME },
};

static struct zc_unit budget_unit(const struct budget_case *c, unsigned i)
{
    static const char *const names[] = { "u0", "u1", "u2", "u3", "u4", "u5", "u6", "u7", "u8" };

    return (struct zc_unit){ i, names[i], c->elems, c->dtype, ZC_F32, false, false, NULL, 0 };
}

/* Opens the job in a daemon with this budget: the rc of open or ready, and the reason. */
static int budget_try(const struct budget_case *c, const char *host, char *text, size_t size)
{
    char page[16];
    const char *options[] = {
        "--host-bytes", host, "--nvme-bytes", c->nvme, "--page-elems", page, "--threads", "1", NULL,
        NULL,           NULL
    };
    struct zc_job_options o = { .name = "job",
                                .world = 1,
                                .staging_bytes = c->staging,
                                .offload_param = c->param,
                                .offload_optimizer = c->optimizer,
                                .offload_grad = c->grad,
                                .host_bytes_max = c->host_bytes_max,
                                .groups = 1 };
    struct zi_daemon d = { 0 };
    struct zc_unit units[9];
    struct zi_rank r;
    uint64_t used;
    int rc, status;

    (void)snprintf(page, sizeof(page), "%u", c->page_elems);
    if (c->ring) {
        options[8] = "--ring-bytes";
        options[9] = c->ring;
    }
    if (!zi_start_try(&d, options, &status)) { /* too small even to start */
        (void)snprintf(text, size, "%s", zi_log_line(&d, "host_bytes"));
        assert_int_equal(status, 1);
        zi_clean(&d);
        return -ENOSPC;
    }
    used = zi_used(&d, "host");
    for (unsigned i = 0; i < c->nunits; i++)
        units[i] = budget_unit(c, i);
    rc = zi_open(&r, &d, &o);
    if (rc == 0) {
        zi_define(&r, units, c->nunits, 1);
        rc = zi_ready(&r, 1);
    }
    (void)snprintf(text, size, "%s", zc_error(r.c));
    if (rc == 0) {
        bool goes = c->grad == ZC_NVME && c->param == ZC_NVME && strcmp(c->nvme, "0") != 0;

        assert_int_equal(r.place.host_bytes + used, zi_used(&d, "host"));
        assert_int_equal(r.place.grads_on_nvme > 0, goes);
        assert_int_equal(zi_log_line(&d, "warn grads-on-nvme") != NULL, goes);
    }
    zi_close(&r, 1);
    (void)zi_await_used(&d, used, 0); /* and nothing of the job is held */
    zi_stop(&d);
    return rc;
}

static void budget_case(const struct budget_case *c)
{
    static const char mark[] = "the smallest host_bytes that would work is ";
    char text[512], host[32];
    unsigned long long least;
    const char *at;
    int rc = budget_try(c, c->host, text, sizeof(text));

    rf_says(c->name, rc, -ENOSPC, text, "job 'job' does not fit: it needs at least ");
    at = strstr(text, mark);
    if (!at)
        fail_msg("%s: no least in '%s'", c->name, text);
    least = strtoull(at + strlen(mark), NULL, 10);
    (void)snprintf(host, sizeof(host), "%llu", least);
    rc = budget_try(c, host, text, sizeof(text));
    if (rc < 0)
        fail_msg("%s: with the least, %s: %d, '%s'", c->name, host, rc, text);
    (void)snprintf(host, sizeof(host), "%llu", least - 4096);
    rc = budget_try(c, host, text, sizeof(text));
    if (rc != -ENOSPC)
        fail_msg("%s: with less than the least, %s: %d", c->name, host, rc);
}

static void the_least_is_the_least(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(budget_cases); i++)
        budget_case(&budget_cases[i]);
}

/* A job's own limit has its own least value. */
static void the_least_of_a_job_with_a_limit(void **state)
{
    static const char mark[] = "the smallest host_bytes_max that would work is ";
    struct budget_case c = { "a limit", "64M",   NULL,    "512M", 4096,   300000, 5,
                             ZC_F32,    ZC_NVME, ZC_NVME, 65536,  ZB_MIB, ZC_HOST };
    char text[512];
    const char *at;

    (void)state;
    rf_says(c.name, budget_try(&c, c.host, text, sizeof(text)), -ENOSPC, text, "does not fit");
    at = strstr(text, mark);
    if (!at)
        fail_msg("no least in '%s'", text);
    c.host_bytes_max = strtoull(at + strlen(mark), NULL, 10);
    assert_int_equal(budget_try(&c, c.host, text, sizeof(text)), 0);
    c.host_bytes_max -= 4096;
    assert_int_equal(budget_try(&c, c.host, text, sizeof(text)), -ENOSPC);
}

/* If NVMe is lacking, the message does not ask for host memory. */
static void the_least_of_nvme(void **state)
{
    static const char mark[] = "the smallest nvme_bytes that would work is ";
    struct budget_case c = { "nvme", "16M",   NULL,    "4M",  4096, 300000, 5,
                             ZC_F32, ZC_NVME, ZC_NVME, 65536, 0,    ZC_HOST };
    char text[512], nvme[32];
    unsigned long long least;
    const char *at;

    (void)state;
    rf_says(c.name, budget_try(&c, c.host, text, sizeof(text)), -ENOSPC, text, "does not fit");
    at = strstr(text, mark);
    if (!at)
        fail_msg("no least in '%s'", text);
    least = strtoull(at + strlen(mark), NULL, 10);
    (void)snprintf(nvme, sizeof(nvme), "%llu", least);
    c.nvme = nvme;
    if (budget_try(&c, c.host, text, sizeof(text)) != 0)
        fail_msg("with the least, %s: '%s'", nvme, text);
    (void)snprintf(nvme, sizeof(nvme), "%llu", least - 4096);
    assert_int_equal(budget_try(&c, c.host, text, sizeof(text)), -ENOSPC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_least_is_the_least, zi_teardown),
        cmocka_unit_test_teardown(the_least_of_a_job_with_a_limit, zi_teardown),
        cmocka_unit_test_teardown(the_least_of_nvme, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
