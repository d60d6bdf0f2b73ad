/*
 * The TCP backend, between processes (fork_ranks.h): the contract, training that agrees bit for bit
 * with threads, and every way in which ranks fail to meet.
 */
#include "tests/ztest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "comm_threads.h"
#include "conformance.h"
#include "fork_ranks.h"
#include "model.h"
#include "odd.h"

struct env {
    const char *name, *value; /* value NULL: unset */
};

/* ---- the contract */

static int keep_contract(uint32_t rank, uint32_t world, char *why, size_t why_bytes)
{
    struct zc_comm *comm;
    int rc = zc_comm_open(&comm, "auto", why, why_bytes);

    if (rc < 0)
        return rc;
    if (strcmp(comm->ops->name, "tcp") != 0 || comm->rank != rank || comm->world != world)
        return -EINVAL;
    rc = comm_conformance(comm, why, why_bytes);
    zc_comm_close(comm, true);
    return rc;
}

static void keeps_the_contract(void **state)
{
    struct fork_rank *ranks = fork_ranks_new();

    (void)state;
    for (uint32_t world = 1; world <= FORK_RANKS_MAX; world++) {
        fork_ranks_run(keep_contract, world, ranks);
        for (uint32_t r = 0; r < world; r++)
            if (ranks[r].rc != 0)
                fail_msg("rank %u of %u: %d %s", r, world, ranks[r].rc, ranks[r].why);
    }
    fork_ranks_free(ranks);
}

/* ---- a fork */

/* In a child: nothing of the parent's can be used. Returns its exit status. */
static int in_a_child(struct zc_comm *comm)
{
    char send = 1, recv[FORK_RANKS_MAX];
    struct zc_comm_op *op;

    if (comm->ops->all_gather(comm, &send, recv, 1, &op) != -EPERM ||
        !strstr(comm->ops->error(comm), "is a child process"))
        return 1;
    zc_comm_close(comm, true);
    return 0;
}

/* Rank 1 dies, but its child does not; rank 0 waits for rank 1. */
static int die_with_a_child(uint32_t rank, uint32_t world, char *why, size_t why_bytes)
{
    struct zc_comm *comm;
    struct zc_comm_op *op;
    char send = 1, recv[FORK_RANKS_MAX];
    bool done = false;
    pid_t pid;
    int status, rc = zc_comm_open(&comm, "tcp", why, why_bytes);

    (void)world;
    if (rc < 0)
        return rc;
    if (rank == 1) {
        pid = fork();
        if (pid == 0)
            _exit(in_a_child(comm));
        if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
            return -EPERM;
        pid = fork();
        if (pid == 0) {
            (void)close(STDOUT_FILENO); /* so that its output is not waited for */
            (void)close(STDERR_FILENO);
            (void)sleep(60);
            _exit(0);
        }
        return 0; /* the process ends */
    }
    rc = comm->ops->all_gather(comm, &send, recv, 1, &op);
    for (unsigned n = 0; n < 3000 && rc == 0 && !done; n++) {
        (void)usleep(10000);
        rc = comm->ops->test(comm, op, &done);
    }
    (void)snprintf(why, why_bytes, "%s", comm->ops->error(comm));
    zc_comm_close(comm, false);
    return rc == -EOWNERDEAD ? 0 : -ETIMEDOUT;
}

static void a_rank_with_a_child(void **state)
{
    struct fork_rank *ranks = fork_ranks_new();

    (void)state;
    fork_ranks_run(die_with_a_child, 2, ranks);
    for (uint32_t r = 0; r < 2; r++)
        if (ranks[r].rc != 0)
            fail_msg("rank %u: %d %s", r, ranks[r].rc, ranks[r].why);
    fork_ranks_free(ranks);
}

/* ---- training */

static struct run run_new(struct zc_comm *comm)
{
    struct run r = { .dtype = ZC_BF16, .steps = 3 };

    zc_zero_defaults(&r.options);
    r.options.comm = comm;
    r.options.groups = 2;
    r.options.clip = 1;
    r.options.micro_steps = 2;
    r.options.eps = 1e-3;
    r.options.timeout_ms = 100000;
    return r;
}

/* Trains over TCP, and again with threads as ranks. */
static int train(uint32_t rank, uint32_t world, char *why, size_t why_bytes)
{
    struct comm_group *g = comm_group_new(world, 1, 0);
    struct run mine, threads[FORK_RANKS_MAX];
    struct zc_comm *comm;
    int rc = zc_comm_open(&comm, "tcp", why, why_bytes);

    (void)rank;
    if (rc < 0)
        return rc;
    mine = run_new(comm);
    run_train(&mine);
    zc_comm_close(comm, mine.rc == 0);
    (void)snprintf(why, why_bytes, "%s", mine.error);
    if (mine.rc != 0)
        return mine.rc;
    for (uint32_t r = 0; r < world; r++)
        threads[r] = run_new(comm_group_rank(g, r));
    run_threads(threads, world);
    assert_runs_same("tcp", &threads[0], &mine);
    for (uint32_t r = 0; r < world; r++)
        run_done(&threads[r]);
    run_done(&mine);
    comm_group_free(g);
    return 0;
}

static void agrees_with_threads(void **state)
{
    struct fork_rank *ranks = fork_ranks_new();

    (void)state;
    for (uint32_t world = 2; world <= 3; world++) {
        fork_ranks_run(train, world, ranks);
        for (uint32_t r = 0; r < world; r++)
            if (ranks[r].rc != 0)
                fail_msg("rank %u of %u: %d %s", r, world, ranks[r].rc, ranks[r].why);
    }
    fork_ranks_free(ranks);
}

/* ---- a peer that leaves, and one that makes other calls */

static int wait_for(struct zc_comm *comm, struct zc_comm_op *op)
{
    bool done = false;
    int rc = 0;

    while (rc == 0 && !done) {
        rc = comm->ops->test(comm, op, &done);
        (void)usleep(100);
    }
    return rc;
}

static int leave_or_differ(uint32_t rank, bool leave, char *why, size_t why_bytes)
{
    static char from[1 << 23], to[3 << 23];
    struct zc_comm *comm;
    struct zc_comm_op *op;
    int rc = zc_comm_open(&comm, "tcp", why, why_bytes);

    if (rc < 0 || (leave && rank == 1)) /* this closes its connections */
        return rc;
    if (rank == 2) /* the others have left by then, in the middle of their slices */
        (void)usleep(1500000);
    rc = comm->ops->all_gather(comm, from, to, rank == 1 ? 4096 : sizeof(from), &op);
    if (rc == 0)
        rc = wait_for(comm, op);
    (void)snprintf(why, why_bytes, "%s", comm->ops->error(comm));
    zc_comm_close(comm, false);
    return rc;
}

static int leave(uint32_t rank, uint32_t world, char *why, size_t why_bytes)
{
    (void)world;
    return leave_or_differ(rank, true, why, why_bytes);
}

static int differ(uint32_t rank, uint32_t world, char *why, size_t why_bytes)
{
    (void)world;
    return leave_or_differ(rank, false, why, why_bytes);
}

static int given_up[2]; /* a pipe: rank 0 has given up */

/* Rank 2 stays connected, and does not split. */
static int split_without_2(uint32_t rank, uint32_t world, char *why, size_t why_bytes)
{
    struct zc_comm *comm, *group;
    char byte = 0;
    int rc;

    (void)world;
    if (rank == 0)
        fork_env_set("ZSHARD_MEET_SECONDS", 5);
    rc = zc_comm_open(&comm, "tcp", why, why_bytes);
    if (rc == 0 && rank < 2) {
        rc = comm->ops->split(comm, 0, &group);
        (void)snprintf(why, why_bytes, "%s", comm->ops->error(comm));
    }
    if (rank == 0)
        (void)!write(given_up[1], &byte, 1); /* also without a comm */
    if (rank == 2)
        (void)!read(given_up[0], &byte, 1);
    zc_comm_close(comm, false);
    return rc;
}

static void a_peer_that_does_not_split_is_named(void **state)
{
    struct fork_rank *ranks = fork_ranks_new();

    (void)state;
    assert_int_equal(pipe(given_up), 0);
    fork_ranks_run(split_without_2, 3, ranks);
    if (ranks[0].rc != -ETIMEDOUT || !strstr(ranks[0].why, "rank 2 (127.0.0.1:") ||
        !strstr(ranks[0].why, "did not connect to the split into groups within 5 s"))
        fail_msg("%d %s", ranks[0].rc, ranks[0].why);
    if (ranks[1].rc != -EOWNERDEAD) /* both have left */
        fail_msg("%d %s", ranks[1].rc, ranks[1].why);
    (void)close(given_up[0]);
    (void)close(given_up[1]);
    fork_ranks_free(ranks);
}

static void a_peer_that_leaves_is_named(void **state)
{
    struct fork_rank *ranks = fork_ranks_new();

    (void)state;
    fork_ranks_run(leave, 2, ranks);
    if (ranks[0].rc != -EOWNERDEAD)
        fail_msg("%d %s", ranks[0].rc, ranks[0].why);
    assert_non_null(strstr(ranks[0].why, "rank 1 (127.0.0.1:"));
    fork_ranks_free(ranks);
}

static void other_calls_are_told(void **state)
{
    struct fork_rank *ranks = fork_ranks_new();

    (void)state;
    for (uint32_t world = 2; world <= 3; world++) {
        fork_ranks_run(differ, world, ranks);
        for (uint32_t r = 0; r < world; r++)
            if (ranks[r].rc != -EINVAL || !strstr(ranks[r].why, "do not make the same calls"))
                fail_msg("rank %u of %u: %d %s", r, world, ranks[r].rc, ranks[r].why);
    }
    fork_ranks_free(ranks);
}

static struct odd odd_of; /* what the ranks do */

static int train_odd(uint32_t rank, uint32_t world, char *why, size_t why_bytes)
{
    struct odd o = odd_of;
    int rc = zc_comm_open(&o.options.comm, "tcp", why, why_bytes);

    (void)rank;
    (void)world;
    if (rc < 0)
        return rc;
    odd_train(&o);
    (void)snprintf(why, why_bytes, "%s", o.error);
    zc_comm_close(o.options.comm, o.rc == 0);
    return o.rc == -EINVAL && (o.failed_in != 2 || o.applied != 1 || o.wrong) ? -EPROTO : o.rc;
}

/* Every rank is told, although each leaves at once. test_calls.c has more calls and modes. */
static void ranks_that_train_otherwise_are_told(void **state)
{
    static const struct {
        enum odd_call call;
        enum zc_zero_stage stage;
        uint32_t group;
        const char *says; /* rank 0's message */
    } cases[] = {
        { ODD_GATHERS, ZC_STAGE_3, 0, "rank 1 gathers 'fc2' where rank 0 gathers 'fc1' (step 2)" },
        { ODD_GATHERS, ZC_STAGE_1, 0, "rank 1 gathers 'fc2' where rank 0 gathers 'fc1' (step 2)" },
        { ODD_LENGTH, ZC_STAGE_3, 0, "rank 1 gathers 'out' where rank 0 gathers 'fc2' (step 2)" },
        { ODD_LEFT_OUT, ZC_STAGE_2, 0, "rank 1 gathers 'fc3' where rank 0 gathers 'fc2' (step 2)" },
        { ODD_REDUCES, ZC_STAGE_DDP, 0,
          "rank 1 reduces 'fc1' where rank 0 reduces 'fc2' (step 2)" },
        { ODD_READ, ZC_STAGE_3, 0, "rank 1 reads 'fc2' where rank 0 reads 'fc1' (step 2)" },
        { ODD_SUM_TWICE, ZC_STAGE_3, 0, "rank 1 adds up 1 value where rank 0 steps (step 2)" },
        { ODD_GATHERS, ZC_STAGE_3, 2, "rank 1 gathers 'fc2' where rank 0 gathers 'fc1' (step 2)" },
    };
    struct fork_rank *ranks = fork_ranks_new();

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases) * 2; i++) {
        uint32_t group = cases[i / 2].group, world = group ? 4 : 2 + i % 2;

        odd_of = (struct odd){ .dtype = ZC_F32, .call = cases[i / 2].call, .rank = 1, .step = 2 };
        zc_zero_defaults(&odd_of.options);
        odd_of.options.stage = cases[i / 2].stage;
        odd_of.options.group_ranks = group;
        odd_of.options.prefetch_units = 0;
        fork_ranks_run(train_odd, world, ranks);
        for (uint32_t r = 0; r < (group ? group : world); r++)
            if (ranks[r].rc != -EINVAL || !strstr(ranks[r].why, "rank 1 ") ||
                (r == 0 && strcmp(ranks[0].why, cases[i / 2].says) != 0))
                fail_msg("case %zu, rank %u of %u: %d %s", i, r, world, ranks[r].rc, ranks[r].why);
        for (uint32_t r = group; r < world && group; r++)
            assert_true(ranks[r].rc == -EOWNERDEAD || ranks[r].rc == -EINVAL);
    }
    fork_ranks_free(ranks);
}

/* ---- meetings that fail */

static int open_only(uint32_t rank, uint32_t world, char *why, size_t why_bytes)
{
    struct zc_comm *comm;
    int rc = zc_comm_open(&comm, "tcp", why, why_bytes);

    (void)rank;
    (void)world;
    zc_comm_close(comm, false);
    return rc;
}

static int open_or_stay_away(uint32_t rank, uint32_t world, char *why, size_t why_bytes)
{
    fork_env_set("ZSHARD_MEET_SECONDS", 5);
    return rank == 2 ? 0 : open_only(rank, world, why, why_bytes);
}

static int open_of_other_worlds(uint32_t rank, uint32_t world, char *why, size_t why_bytes)
{
    fork_env_set("WORLD_SIZE", world + rank);
    return open_only(rank, world, why, why_bytes);
}

static int open_as_the_same(uint32_t rank, uint32_t world, char *why, size_t why_bytes)
{
    fork_env_set("RANK", rank == 0 ? 0 : 1);
    return open_only(rank, world, why, why_bytes);
}

static void meetings_that_fail(void **state)
{
    static const struct {
        const char *name;
        fork_rank_fn *fn;
        uint32_t world;
        int rc; /* of rank 0, and of ranks that it tells */
        const char *says;
    } cases[] = {
        { "one stays away", open_or_stay_away, 3, -EOWNERDEAD, "are missing: 2" },
        { "worlds differ", open_of_other_worlds, 2, -EPROTO, "rank 0 expects 2" },
        { "two are one", open_as_the_same, 3, -EPROTO, "two processes claim to be rank 1" },
    };
    struct fork_rank *ranks = fork_ranks_new();

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        bool told = false;

        fork_ranks_run(cases[i].fn, cases[i].world, ranks);
        if (ranks[0].rc != cases[i].rc || !strstr(ranks[0].why, cases[i].says))
            fail_msg("%s: %d %s", cases[i].name, ranks[0].rc, ranks[0].why);
        /* rank 0 tells the others, if they have sent hello by then */
        for (uint32_t r = 1; r < cases[i].world; r++)
            told = told || (ranks[r].rc == cases[i].rc && strstr(ranks[r].why, cases[i].says) &&
                            strstr(ranks[r].why, "rank 0 gave up: "));
        if (!told)
            fail_msg("%s: nobody was told why: %s", cases[i].name, ranks[1].why);
    }
    fork_ranks_free(ranks);
}

static void environments_that_are_none(void **state)
{
    static const struct {
        struct env env;
        const char *says;
    } cases[] = {
        { { "RANK", NULL }, "RANK is not set" },
        { { "RANK", "2" }, "RANK is '2': must be a number from 0 to 1" },
        { { "RANK", "-1" }, "RANK is '-1'" },
        { { "RANK", "1x" }, "RANK is '1x'" },
        { { "WORLD_SIZE", "0" }, "WORLD_SIZE is '0'" },
        { { "WORLD_SIZE", "99999" }, "WORLD_SIZE is '99999'" },
        { { "MASTER_PORT", "65535" }, "MASTER_PORT is '65535'" },
        { { "MASTER_PORT", NULL }, "MASTER_PORT is not set" },
        { { "ZSHARD_PORT", "0" }, "ZSHARD_PORT is '0'" },
        { { "ZSHARD_MEET_SECONDS", "soon" }, "ZSHARD_MEET_SECONDS is 'soon'" },
        { { "MASTER_ADDR", NULL }, "MASTER_ADDR is not set" },
        { { "MASTER_ADDR", "not an address" }, "MASTER_ADDR 'not an address'" },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct zc_comm *comm;
        char why[512] = "";
        int rc;

        fork_env_of(0, 2, 20000);
        if (cases[i].env.value)
            assert_int_equal(setenv(cases[i].env.name, cases[i].env.value, 1), 0);
        else
            assert_int_equal(unsetenv(cases[i].env.name), 0);
        rc = zc_comm_open(&comm, "tcp", why, sizeof(why));
        if (rc != -EINVAL || comm || !strstr(why, cases[i].says))
            fail_msg("%s: %d %s", cases[i].says, rc, why);
    }
    fork_env_of(0, 2, 20000);
    (void)unsetenv("RANK");
    (void)unsetenv("WORLD_SIZE");
    (void)unsetenv("MASTER_ADDR");
    (void)unsetenv("MASTER_PORT");
}

/* ---- foreign connections */

static void meets_among_strangers(void **state)
{
    static const char *const words[] = {
        "GET / HTTP/1.0\r\n\r\n and more than a hello has, whatever it is, to be sure of that",
        "",
    };
    struct fork_rank *ranks = fork_ranks_new();
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    pid_t pids[2];
    int fds[ZB_COUNT(words)];

    (void)state;
    do {
        uint32_t port = fork_port_draw();

        memset(ranks, 0, sizeof(*ranks) * 2);
        ranks[0].rc = ranks[1].rc = -ECHILD;
        fork_rank_start(keep_contract, 0, 2, port, &ranks[0], &pids[0]);
        at.sin_port = htons((uint16_t)port);
        for (size_t i = 0; i < ZB_COUNT(words); i++) {
            fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            assert_true(fds[i] >= 0);
            /* until rank 0 listens, or has ended because the port is in use */
            while (connect(fds[i], (struct sockaddr *)&at, sizeof(at)) < 0 &&
                   waitpid(pids[0], NULL, WNOHANG | WNOWAIT) == 0)
                (void)usleep(10000);
            (void)!send(fds[i], words[i], strlen(words[i]), MSG_NOSIGNAL);
        }
        (void)close(fds[1]); /* the first one stays connected, and sends nothing more */
        fork_rank_start(keep_contract, 1, 2, port, &ranks[1], &pids[1]);
        for (uint32_t r = 0; r < 2; r++)
            assert_int_equal(waitpid(pids[r], NULL, 0), pids[r]);
        (void)close(fds[0]);
    } while (ranks[0].rc == -EADDRINUSE);
    for (uint32_t r = 0; r < 2; r++)
        if (ranks[r].rc != 0)
            fail_msg("rank %u: %d %s", r, ranks[r].rc, ranks[r].why);
    fork_ranks_free(ranks);
}

static void a_port_in_use_is_said(void **state)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof(at);
    struct zc_comm *comm;
    char why[512] = "";
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    fork_env_of(0, 2, 20000);
    fork_env_set("ZSHARD_PORT", ntohs(at.sin_port)); /* instead of MASTER_PORT + 1 */
    assert_int_equal(zc_comm_open(&comm, "tcp", why, sizeof(why)), -EADDRINUSE);
    assert_non_null(strstr(why, "rank 0 cannot listen at 127.0.0.1:"));
    (void)close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_the_contract),
        cmocka_unit_test(a_rank_with_a_child),
        cmocka_unit_test(agrees_with_threads),
        cmocka_unit_test(a_peer_that_leaves_is_named),
        cmocka_unit_test(other_calls_are_told),
        cmocka_unit_test(ranks_that_train_otherwise_are_told),
        cmocka_unit_test(meetings_that_fail),
        cmocka_unit_test(environments_that_are_none),
        cmocka_unit_test(meets_among_strangers),
        cmocka_unit_test(a_port_in_use_is_said),
        cmocka_unit_test(a_peer_that_does_not_split_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
