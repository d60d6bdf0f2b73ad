#include "tests/ztest.h"

#include "fork_ranks.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"

uint32_t fork_port_draw(void)
{
    static uint32_t count;

    return 10000 + ((uint32_t)getpid() * 7 + count++ * 13) % 20000;
}

void fork_env_set(const char *name, unsigned long long value)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%llu", value);
    assert_int_equal(setenv(name, text, 1), 0);
}

void fork_env_of(uint32_t rank, uint32_t world, uint32_t port)
{
    static const char *const others[] = {
        "OMPI_COMM_WORLD_SIZE", "PMIX_RANK",           "PMI_RANK",   "MPI_LOCALRANKID",
        "ZSHARD_PORT",          "TORCHELASTIC_RUN_ID", "ZSHARD_COMM"
    };

    for (size_t i = 0; i < ZB_COUNT(others); i++)
        (void)unsetenv(others[i]);
    fork_env_set("RANK", rank);
    fork_env_set("WORLD_SIZE", world);
    fork_env_set("MASTER_PORT", port - 1);
    fork_env_set("ZSHARD_MEET_SECONDS", 100);
    assert_int_equal(setenv("MASTER_ADDR", "127.0.0.1", 1), 0);
}

void fork_rank_start(fork_rank_fn *fn, uint32_t rank, uint32_t world, uint32_t port,
                     struct fork_rank *out, pid_t *ret)
{
    *ret = fork();
    assert_true(*ret >= 0);
    if (*ret > 0)
        return;
    fork_env_of(rank, world, port);
    out->rc = fn(rank, world, out->why, sizeof(out->why));
    _exit(0);
}

void fork_ranks_run(fork_rank_fn *fn, uint32_t world, struct fork_rank *ranks)
{
    pid_t pids[FORK_RANKS_MAX];

    do {
        uint32_t port = fork_port_draw();

        memset(ranks, 0, sizeof(*ranks) * world);
        for (uint32_t r = 0; r < world; r++) {
            ranks[r].rc = -ECHILD;
            fork_rank_start(fn, r, world, port, &ranks[r], &pids[r]);
        }
        for (uint32_t r = 0; r < world; r++)
            assert_int_equal(waitpid(pids[r], NULL, 0), pids[r]);
    } while (ranks[0].rc == -EADDRINUSE);
}

struct fork_rank *fork_ranks_new(void)
{
    struct fork_rank *ranks = mmap(NULL, sizeof(*ranks) * FORK_RANKS_MAX, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(ranks != MAP_FAILED);
    return ranks;
}

void fork_ranks_free(struct fork_rank *ranks)
{
    (void)munmap(ranks, sizeof(*ranks) * FORK_RANKS_MAX);
}
