/*
 * hold.c - jobs for scripts to inspect, on a daemon, held until standard input ends.
 *
 *     hold SOCKET NAME UNITS           one job; its first shard is pinned; it is left at the end
 *     hold SOCKET NAME UNITS JOBS      JOBS kept jobs, NAME-0 ...; each is left at once
 *     hold SOCKET NAME UNITS JOBS durable
 *
 * Prints "held" when all of them are there.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/zclient.h"

#define ELEMS 12000u /* three blocks */

static void check(struct zc_client *c, int rc, const char *what)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "hold: %s: %d, %s\n", what, rc, c ? zc_error(c) : "");
    exit(1);
}

static struct zc_client *hold(const char *socket, const char *name, unsigned units, bool keep,
                              bool durable)
{
    const struct zc_options options = { .socket = socket, .program = "hold" };
    const struct zc_job_options o = { .name = name,
                                      .world = 1,
                                      .keep = keep,
                                      .durable = durable,
                                      .groups = 1,
                                      .staging_bytes = 65536 };
    struct zc_client *c = NULL;
    struct zc_placement place;
    struct zc_view view;
    struct zc_job job;
    uint64_t first = 0;

    check(c, zc_open(&c, &options), "open");
    check(c, zc_job_open_wait(c, &o, &job), "job");
    for (unsigned u = 0; u < units; u++) {
        char unit_name[16];
        const struct zc_tensor whole = { .name = unit_name, .ndims = 1, .dims = { ELEMS } };
        struct zc_unit unit = { .index = u,
                                .name = unit_name,
                                .elems = ELEMS,
                                .dtype = u % 2 ? ZC_BF16 : ZC_F32,
                                .grad_dtype = ZC_F32,
                                .tensors = &whole,
                                .ntensors = 1 };
        struct zc_range range = { u, 0, 12288 };
        uint64_t id;

        (void)snprintf(unit_name, sizeof(unit_name), "unit-%u", u);
        check(c, zc_unit_define_wait(c, job.id, &unit), "unit");
        check(c, zc_register_wait(c, job.id, &range, 1, &id), "shard");
        first = u == 0 ? id : first;
    }
    check(c, zc_ready_wait(c, job.id, NULL, 0, &place), "ready");
    memset(job.staging, 0, 49152);
    check(c, zc_write_wait(c, first, ZC_MASTER, 0, 12288, job.staging), "write");
    check(c, zc_fetch_wait(c, &first, 1, 0, 0, &view), "fetch");
    if (keep)
        check(c, zc_job_close_wait(c, job.id), "close");
    return c;
}

int main(int argc, char **argv)
{
    struct zc_client *c = NULL;
    unsigned units, jobs;

    if (argc < 4 || argc > 6)
        return 2;
    units = (unsigned)strtoul(argv[3], NULL, 10);
    jobs = argc >= 5 ? (unsigned)strtoul(argv[4], NULL, 10) : 0;
    for (unsigned i = 0; i < jobs; i++) {
        char name[64];

        (void)snprintf(name, sizeof(name), "%s-%u", argv[2], i);
        zc_close(hold(argv[1], name, units, true, argc == 6));
    }
    if (jobs == 0)
        c = hold(argv[1], argv[2], units, false, false);
    (void)puts("held");
    (void)fflush(stdout);
    while (c && getchar() != EOF)
        ;
    zc_close(c);
    return 0;
}
