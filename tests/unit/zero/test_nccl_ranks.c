/*
 * The real NCCL, between processes that share one GPU: 2 and 4 of them train as threads do with
 * collectives in host memory, bit for bit. Exits 77 with the reason if there is no GPU or no NCCL.
 *
 * NCCL is not made for ranks that share a GPU: each pretends to be on a machine of its own (before
 * version 2.30; later versions have a switch), so bytes go over sockets, slowly. Every wait is
 * limited.
 */
#include "tests/ztest.h"

#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zero/comm/nccl_priv.h"
#include "client/zero/zc_zero.h"
#include "comm_threads.h"
#include "fork_ranks.h"
#include "kernels/gpu.h"
#include "model.h"

#define SKIPPED 77

/* In a separate process: a parent that has used CUDA cannot fork. */
static bool gpu_there(void)
{
    int status = 0;
    pid_t pid = fork();

    if (pid == 0) {
        struct zk_gpu *gpu = NULL;
        struct zb_err err = { 0 };
        int rc = zk_gpu_open("cuda", 0, &gpu, &err);

        if (rc < 0)
            (void)printf("skipped: %s\n", err.text);
        (void)fflush(stdout);
        _exit(rc < 0 ? SKIPPED : 0);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

static bool nccl_there(void)
{
    const char *named = getenv("ZSHARD_NCCL_LIB");
    void *library = dlopen(named && *named ? named : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    ncclResult_t (*get)(int *) = NULL;
    int version = 0;

    if (library)
        *(void **)&get = dlsym(library, "ncclGetVersion");
    if (!get || get(&version) != ncclSuccess) {
        (void)printf("skipped: no NCCL: %s\n", library ? "it has no version" : dlerror());
        return false;
    }
    (void)printf("NCCL %d\n", version);
    if (version >= 23000)
        fork_env_set("NCCL_MULTI_RANK_GPU_ENABLE", 1);
    return true;
}

static const struct variant {
    enum zc_dtype dtype;
    enum zc_zero_stage stage;
    uint32_t group; /* ranks; 0: all */
    bool quantize;
} variants[] = {
    { ZC_F32, ZC_STAGE_3, 0, false },   { ZC_BF16, ZC_STAGE_3, 0, false },
    { ZC_BF16, ZC_STAGE_3, 0, true },   { ZC_F32, ZC_STAGE_2, 0, false },
    { ZC_F32, ZC_STAGE_DDP, 0, false }, { ZC_BF16, ZC_STAGE_DDP, 0, false },
    { ZC_BF16, ZC_STAGE_3, 2, false },
};

static struct run run_new(struct zc_comm *comm, const struct variant *v, const char *device)
{
    struct run r = { .dtype = v->dtype, .steps = 3 };

    zc_zero_defaults(&r.options);
    r.options.comm = comm;
    r.options.groups = 2;
    r.options.clip = 1;
    r.options.micro_steps = 1;
    r.options.eps = 1e-3;
    r.options.timeout_ms = 100000;
    r.options.device = device;
    r.options.stage = v->stage;
    r.options.group_ranks = v->group;
    r.options.quantize_gather = v->quantize;
    return r;
}

static void environment(uint32_t rank)
{
    char id[32];

    (void)snprintf(id, sizeof(id), "zshard-test-%u", rank);
    if (!getenv("NCCL_MULTI_RANK_GPU_ENABLE"))
        (void)setenv("NCCL_HOSTID", id, 1);
    (void)setenv("NCCL_NET", "Socket", 1);
    (void)setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    (void)setenv("NCCL_MNNVL_ENABLE", "0", 1);
}

static int train_variant(uint32_t world, const struct variant *v, struct zc_comm *comm, char *why,
                         size_t why_bytes)
{
    struct comm_group *g = comm_group_new(world, 1, 0);
    struct run mine = run_new(comm, v, "cuda"), threads[FORK_RANKS_MAX];
    int rc;

    run_train(&mine);
    (void)snprintf(why, why_bytes, "%s", mine.error);
    rc = mine.rc;
    for (uint32_t r = 0; r < world; r++)
        threads[r] = run_new(comm_group_rank(g, r), v, NULL);
    if (rc == 0)
        run_threads(threads, world);
    if (rc == 0)
        assert_runs_same("nccl", &threads[0], &mine);
    for (uint32_t r = 0; rc == 0 && r < world; r++)
        run_done(&threads[r]);
    run_done(&mine);
    comm_group_free(g);
    return rc;
}

static int train(uint32_t rank, uint32_t world, char *why, size_t why_bytes)
{
    struct zc_comm *comm;
    int rc;

    environment(rank);
    rc = zc_comm_open(&comm, "nccl", why, why_bytes);
    for (size_t i = 0; i < ZB_COUNT(variants) && rc == 0; i++) /* each has its own communicator */
        if (variants[i].group == 0 || world % variants[i].group == 0)
            rc = train_variant(world, &variants[i], comm, why, why_bytes);
    zc_comm_close(comm, rc == 0);
    return rc;
}

static void ranks_train(uint32_t world)
{
    struct fork_rank *ranks = fork_ranks_new();

    fork_ranks_run(train, world, ranks);
    for (uint32_t r = 0; r < world; r++)
        if (ranks[r].rc != 0)
            fail_msg("rank %u of %u: %d %s", r, world, ranks[r].rc, ranks[r].why);
    fork_ranks_free(ranks);
}

static void two_ranks(void **state)
{
    (void)state;
    ranks_train(2);
}

static void four_ranks(void **state)
{
    (void)state;
    ranks_train(4);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(two_ranks), cmocka_unit_test(four_ranks) };

    if (!gpu_there() || !nccl_there())
        return SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
