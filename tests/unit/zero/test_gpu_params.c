/*
 * The engine with its parameters in GPU memory of a real daemon: each rank maps them and copies
 * from there, alone or as one of several that gather between devices. The bits must be those of a
 * run without a daemon. Without NCCL, slices are copied to host memory and gathered there. Where
 * parameters cannot be there, the run continues, and reports the reason.
 *
 * The GPU is an emulated one, or the one that ZSHARD_GPU names; with the latter each rank is alone.
 * Otherwise ranks are threads with a connection each, joined by a fake libnccl (fake_nccl.h).
 */
#include "tests/ztest.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zero/comm/comm_priv.h"
#include "comm_threads.h"
#include "fake_nccl.h"
#include "model.h"
#include "real_daemon.h"

#define RANKS_MAX 3

static const char *gpu_name(void)
{
    const char *name = getenv("ZSHARD_GPU");

    return name && *name ? name : "emulated";
}

static bool emulated(void)
{
    return strcmp(gpu_name(), "emulated") == 0;
}

static void daemon_start(struct real_daemon *d, const char *host_bytes, const char *gpu_bytes)
{
    real_daemon_start(d, "--host-bytes", host_bytes, "--gpu", gpu_name(), "--gpu-bytes", gpu_bytes);
}

/* ---- runs */

struct setting {
    const char *name;
    uint32_t world;
    enum zc_dtype dtype;
    double clip;
    uint32_t overlap;
    enum zc_zero_offload optimizer;
    const char *host_bytes, *gpu_bytes;
    enum {
        DEVICES,
        HOST,
        CODES
    } gathers; /* between devices; in host memory, as they are or coded */
};

struct member {
    struct run run;
    struct zc_comm *comm;
    bool nccl;
    pthread_t thread;
};

struct party {
    struct member members[RANKS_MAX];
    struct comm_group *group;
    uint32_t world;
};

static void *member_run(void *arg)
{
    struct member *m = arg;
    struct zb_err err = { 0 };

    m->run.rc = m->nccl ? zc_nccl_open(&m->comm, m->comm, &err) : 0;
    if (m->run.rc != 0) {
        (void)snprintf(m->run.error, sizeof(m->run.error), "%s", err.text);
        model_values_new(&m->run.values);
        return NULL;
    }
    m->run.options.comm = m->comm;
    run_train(&m->run);
    if (m->nccl)
        zc_comm_close(m->comm, m->run.rc == 0);
    return NULL;
}

/* device NULL: on the processor; d NULL: without a daemon. */
static void party_run(struct party *p, const struct setting *s, const struct real_daemon *d,
                      const char *device, bool nccl)
{
    memset(p, 0, sizeof(*p));
    p->world = s->world;
    p->group = comm_group_new(s->world, 5, 2);
    for (uint32_t r = 0; r < s->world; r++) {
        struct member *m = &p->members[r];
        struct zc_zero_options *o = &m->run.options;

        m->nccl = nccl;
        m->comm = comm_group_rank(p->group, r);
        m->run.dtype = s->dtype;
        m->run.quantized = s->dtype == ZC_BF16; /* frozen units: pages of codes have gaps */
        m->run.steps = 8;
        m->run.poison_step = 4;
        m->run.evaluate = true;
        m->run.announce = true;
        m->run.abort = p->group;
        zc_zero_defaults(o);
        o->groups = 2;
        o->weight_decay[0] = 0.1;
        o->eps = 1e-3;
        o->clip = s->clip;
        o->micro_steps = 2;
        o->prefetch_units = 2;
        o->overlap = s->overlap;
        o->timeout_ms = 100000;
        o->device = device;
        o->quantize_gather = s->gathers == CODES;
        if (d) {
            o->socket = d->socket;
            o->offload_param = ZC_ZERO_GPU;
            o->offload_optimizer = s->optimizer;
        }
    }
    for (uint32_t r = 0; r < s->world; r++)
        assert_int_equal(pthread_create(&p->members[r].thread, NULL, member_run, &p->members[r]),
                         0);
    for (uint32_t r = 0; r < s->world; r++)
        (void)pthread_join(p->members[r].thread, NULL);
}

static void party_done(struct party *p)
{
    for (uint32_t r = 0; r < p->world; r++)
        run_done(&p->members[r].run);
    comm_group_free(p->group);
}

static void assert_same(const char *name, const struct party *a, const struct party *b)
{
    for (uint32_t r = 0; r < a->world; r++) {
        const struct run *x = &a->members[r].run, *y = &b->members[r].run;

        if (x->rc != 0 || y->rc != 0)
            fail_msg("%s, rank %u: %s; %s", name, r, x->error, y->error);
        assert_runs_same(name, x, y);
    }
}

/* ---- the tests */

static void the_bits_are_those_of_any_place(void **state)
{
    static const struct setting settings[] = {
        { "alone", 1, ZC_BF16, 1, ZC_ZERO_OVERLAP, ZC_ZERO_HOST, "64M", "16M", DEVICES },
        { "alone, streamed, early", 1, ZC_BF16, 0, ZC_ZERO_OVERLAP, ZC_ZERO_NVME, "2M", "6M",
          DEVICES },
        { "alone, fp32, early", 1, ZC_F32, 0, ZC_ZERO_OVERLAP, ZC_ZERO_NVME, "3M", "6M", DEVICES },
        { "alone, nothing overlaps", 1, ZC_F16, 1, 0, ZC_ZERO_NVME, "2M", "16M", DEVICES },
        { "two", 2, ZC_BF16, 1, ZC_ZERO_OVERLAP, ZC_ZERO_HOST, "64M", "16M", DEVICES },
        { "two, streamed, early", 2, ZC_F32, 0, ZC_ZERO_OVERLAP, ZC_ZERO_NVME, "3M", "6M",
          DEVICES },
        { "three, fp16", 3, ZC_F16, 1, ZC_ZERO_SERVE, ZC_ZERO_NVME, "3M", "16M", DEVICES },
        { "two, through host memory", 2, ZC_BF16, 1, ZC_ZERO_OVERLAP, ZC_ZERO_HOST, "64M", "16M",
          HOST },
        { "three, through host memory, early", 3, ZC_F32, 0, ZC_ZERO_OVERLAP, ZC_ZERO_NVME, "3M",
          "16M", HOST },
    };
    static const char *const devices[] = { "emulated", "emulated:256M:60" };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(settings); i++) {
        const struct setting *s = &settings[i];
        struct party none, p;
        struct real_daemon d;

        if (s->world > 1 && !emulated())
            continue;
        party_run(&none, s, NULL, NULL, false);
        daemon_start(&d, s->host_bytes, s->gpu_bytes);
        party_run(&p, s, &d, emulated() ? devices[i % ZB_COUNT(devices)] : gpu_name(),
                  s->world > 1 && s->gathers == DEVICES);
        assert_same(s->name, &none, &p);
        for (uint32_t r = 0; r < s->world; r++) {
            const struct zc_zero_stats *stats = &p.members[r].run.stats;

            if (stats->gpu_params_bytes == 0)
                fail_msg("%s: %s", s->name, stats->gpu_why);
            assert_true((stats->gather_buffer_bytes > 0) == (s->gathers == HOST));
            assert_true((stats->gather_down_bytes > 0) == (s->gathers == HOST));
            assert_true((stats->gather_up_bytes > 0) == (s->gathers == HOST));
        }
        real_daemon_stop(&d);
        party_done(&none);
        party_done(&p);
    }
}

/* If parameters cannot be on the GPU, the run keeps them elsewhere, and reports the reason. */
static void elsewhere(void **state)
{
    static const struct {
        struct setting setting;
        const char *device;
        bool nccl;
        const char *why;
    } cases[] = {
        { { "no device", 1, ZC_BF16, 1, ZC_ZERO_OVERLAP, ZC_ZERO_NVME, "64M", "16M", DEVICES },
          NULL,
          false,
          "on the processor" },
        { { "codes made in host memory", 2, ZC_F32, 1, ZC_ZERO_OVERLAP, ZC_ZERO_NVME, "64M", "16M",
            CODES },
          "emulated",
          false,
          "slices are quantized in host memory" },
        { { "no room", 1, ZC_F32, 1, ZC_ZERO_OVERLAP, ZC_ZERO_NVME, "64M", "3M", DEVICES },
          "emulated",
          false,
          "the smallest gpu_bytes" },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        const struct setting *s = &cases[i].setting;
        const struct zc_zero_stats *stats;
        struct party none, p;
        struct real_daemon d;

        if (s->world > 1 && !emulated())
            continue;
        party_run(&none, s, NULL, NULL, false);
        daemon_start(&d, s->host_bytes, s->gpu_bytes);
        party_run(&p, s, &d, cases[i].device ? gpu_name() : NULL, cases[i].nccl);
        assert_same(s->name, &none, &p);
        stats = &p.members[0].run.stats;
        assert_int_equal(stats->gpu_params_bytes, 0);
        if (!strstr(p.members[0].run.gpu_why, cases[i].why))
            fail_msg("%s: '%s'", s->name, p.members[0].run.gpu_why);
        real_daemon_stop(&d);
        party_done(&none);
        party_done(&p);
    }
}

/* A device that cannot map the daemon's memory: the run ends with an error message. */
static void cannot_be_mapped(void **state)
{
    static const struct setting alone = { "alone",      1,     ZC_BF16, 1,      ZC_ZERO_OVERLAP,
                                          ZC_ZERO_NVME, "64M", "16M",   DEVICES };
    struct party p;
    struct real_daemon d;

    (void)state;
    if (!emulated())
        ztest_skip("the emulated GPU alone fails on request");
    daemon_start(&d, alone.host_bytes, alone.gpu_bytes);
    party_run(&p, &alone, &d, "emulated:256M:::32M", false);
    assert_int_equal(p.members[0].run.rc, -EINVAL);
    if (!strstr(p.members[0].run.error, "cannot map the parameters"))
        fail_msg("'%s'", p.members[0].run.error);
    party_done(&p);
    party_run(&p, &alone, &d, "emulated", false); /* nothing was left behind */
    assert_int_equal(p.members[0].run.rc, 0);
    assert_true(p.members[0].run.stats.gpu_params_bytes > 0);
    party_done(&p);
    real_daemon_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_any_place),
        cmocka_unit_test(elsewhere),
        cmocka_unit_test(cannot_be_mapped),
    };

    if (setenv("ZSHARD_NCCL_LIB", FAKE_NCCL, 1) < 0)
        return 1;
    return cmocka_run_group_tests(tests, real_daemon_setup, real_daemon_teardown);
}
