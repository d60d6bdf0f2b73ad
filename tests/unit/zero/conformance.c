#include "tests/ztest.h"

#include "conformance.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/util.h"

#define IN_FLIGHT 6
#define TESTS_MAX 2000000

static const size_t sizes[] = { 1, 7, 64, 999, 1000, 1001, 2000, 4096, 123457, 1 << 20 };
static const size_t sparse[] = { 1, 7, 64, 999, 1000, 1001, 2000, 4096, 12345, 1 << 16 };

enum kind { GATHER, GATHER_IN_PLACE, EXCHANGE };

struct coll {
    enum kind kind;
    size_t bytes;
    unsigned char *send, *recv, *send_base;
    struct zc_comm_op *op;
    bool done;
};

/* The byte at `at` that rank `from` sends to rank `to` in collective `number`. */
static unsigned char byte_of(uint32_t number, uint32_t from, uint32_t to, size_t at)
{
    return (unsigned char)(number * 31 + from * 57 + to * 101 + at * 7 + (at >> 8) + (at >> 16));
}

static int start(struct zc_comm *comm, struct coll *c, uint32_t number)
{
    uint32_t parts = c->kind == EXCHANGE ? comm->world : 1;

    c->recv = malloc(c->bytes * comm->world);
    c->send_base = malloc(c->bytes * parts);
    assert(c->recv && c->send_base);
    memset(c->recv, 0x5a, c->bytes * comm->world);
    c->send = c->kind == GATHER_IN_PLACE ? c->recv + comm->rank * c->bytes : c->send_base;
    for (uint32_t p = 0; p < parts; p++)
        for (size_t i = 0; i < c->bytes; i++)
            c->send[p * c->bytes + i] = byte_of(number, comm->rank, c->kind == EXCHANGE ? p : 0, i);
    return c->kind == EXCHANGE ? comm->ops->exchange(comm, c->send, c->recv, c->bytes, &c->op)
                               : comm->ops->all_gather(comm, c->send, c->recv, c->bytes, &c->op);
}

static int check(const struct zc_comm *comm, const struct coll *c, uint32_t number)
{
    for (uint32_t s = 0; s < comm->world; s++)
        for (size_t i = 0; i < c->bytes; i++)
            if (c->recv[s * c->bytes + i] !=
                byte_of(number, s, c->kind == EXCHANGE ? comm->rank : 0, i))
                return -1;
    return 0;
}

/* Several in flight, tested in a random order that differs between ranks. */
static int round_of(struct zc_comm *comm, size_t first, uint64_t *seed, char *why, size_t why_bytes)
{
    struct coll colls[IN_FLIGHT] = { { 0 } };
    uint32_t left = IN_FLIGHT, tests = 0;
    int rc = 0;

    for (uint32_t n = 0; n < IN_FLIGHT && rc == 0; n++) {
        colls[n].kind = (enum kind)((first + n) % 3);
        colls[n].bytes = (ztest_stride(2) > 1 ? sparse : sizes)[(first + n * n) % ZB_COUNT(sizes)];
        rc = start(comm, &colls[n], n);
    }
    while (rc == 0 && left > 0 && tests++ < TESTS_MAX) {
        struct timespec nap = { .tv_nsec = 20000 };
        uint32_t n = (uint32_t)(ztest_random(seed) % IN_FLIGHT);

        if (tests % 64 == 0)
            (void)nanosleep(&nap, NULL);
        if (colls[n].done)
            continue;
        rc = comm->ops->test(comm, colls[n].op, &colls[n].done);
        if (rc == 0 && colls[n].done) {
            left--;
            if (check(comm, &colls[n], n) < 0) {
                (void)snprintf(why, why_bytes,
                               "rank %u: wrong bytes of collective %u, kind %d, %zu", comm->rank, n,
                               (int)colls[n].kind, colls[n].bytes);
                return -1;
            }
        }
    }
    for (uint32_t n = 0; n < IN_FLIGHT; n++) {
        free(colls[n].recv);
        free(colls[n].send_base);
    }
    if (rc == 0 && left == 0)
        return 0;
    (void)snprintf(why, why_bytes, "rank %u: rc %d, %u of %d never done: %s", comm->rank, rc, left,
                   IN_FLIGHT, comm->ops->error ? comm->ops->error(comm) : "");
    return -1;
}

static int conformance(struct zc_comm *comm, char *why, size_t why_bytes)
{
    uint64_t seed = comm->rank + 1;

    if (!comm->ops->name || comm->rank >= comm->world) {
        (void)snprintf(why, why_bytes, "rank %u of %u", comm->rank, comm->world);
        return -1;
    }
    for (size_t first = 0; first < ZB_COUNT(sizes); first++)
        if (round_of(comm, first, &seed, why, why_bytes) < 0)
            return -1;
    return 0;
}

/* Groups of ranks keep the contract, at the same time as other groups and as all ranks. */
static int split_conformance(struct zc_comm *comm, char *why, size_t why_bytes)
{
    struct zc_comm *parts[2] = { NULL, NULL };
    uint32_t colours[2] = { comm->rank / 2, comm->rank % 2 };
    int rc = 0;

    for (uint32_t i = 0; i < 2 && rc == 0; i++)
        rc = comm->ops->split(comm, colours[i], &parts[i]);
    if (rc != 0) {
        (void)snprintf(why, why_bytes, "rank %u: split: %d", comm->rank, rc);
        return -1;
    }
    if (parts[0]->rank != comm->rank % 2 || parts[1]->rank != comm->rank / 2 ||
        parts[1]->world != (comm->world + 1 - comm->rank % 2) / 2) {
        (void)snprintf(why, why_bytes, "rank %u is %u of %u and %u of %u", comm->rank,
                       parts[0]->rank, parts[0]->world, parts[1]->rank, parts[1]->world);
        rc = -1;
    }
    for (uint32_t i = 0; i < 2 && rc == 0; i++)
        rc = conformance(parts[i], why, why_bytes);
    if (rc == 0)
        rc = conformance(comm, why, why_bytes);
    for (uint32_t i = 0; i < 2; i++)
        parts[i]->ops->close(parts[i], true);
    return rc;
}

int comm_conformance(struct zc_comm *comm, char *why, size_t why_bytes)
{
    int rc = conformance(comm, why, why_bytes);

    return rc == 0 && comm->ops->split ? split_conformance(comm, why, why_bytes) : rc;
}
