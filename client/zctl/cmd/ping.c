/*
 * ping.c - zctl ping: identifies the daemon, and measures how fast it answers.
 */
#include <string.h>

#include "base/util.h"
#include "client/zctl/cmd/cmd.h"

#define PINGS 16u /* the fastest counts: the others waited for a processor */

struct ping_row {
    char server[sizeof(((struct zc_server *)0)->server)];
    uint64_t pid;
    uint32_t protocol, page_elems, block_elems;
    double round_trip_us;
};

static const struct zctl_column columns[] = {
    { "server", ZCTL_TEXT, offsetof(struct ping_row, server), ZCTL_SHOWN, NULL, 0 },
    { "pid", ZCTL_U64, offsetof(struct ping_row, pid), ZCTL_SHOWN, NULL, 0 },
    { "protocol", ZCTL_U32, offsetof(struct ping_row, protocol), ZCTL_SHOWN, NULL, 0 },
    { "page_elems", ZCTL_U32, offsetof(struct ping_row, page_elems), ZCTL_SHOWN, NULL, 0 },
    { "block_elems", ZCTL_U32, offsetof(struct ping_row, block_elems), ZCTL_JSON_ONLY, NULL, 0 },
    { "round_trip_us", ZCTL_DOUBLE, offsetof(struct ping_row, round_trip_us), ZCTL_SHOWN, NULL, 0 },
};

static int ping(struct zctl *z, int argc, char **argv)
{
    struct ping_row row = { 0 };
    const struct zc_server *server;
    uint64_t best_ns = UINT64_MAX;
    int rc = zctl_connect(z);

    (void)argc;
    (void)argv;
    for (unsigned i = 0; i < PINGS && rc == 0; i++) {
        uint64_t from_ns = zb_now_ns();

        rc = zctl_failed(z, zc_ping_wait(z->client));
        best_ns = zb_min_u64(best_ns, zb_now_ns() - from_ns);
    }
    if (rc < 0)
        return rc;
    server = zc_server(z->client);
    memcpy(row.server, server->server, sizeof(row.server));
    row.pid = server->pid;
    row.protocol = server->version;
    row.page_elems = server->page_elems;
    row.block_elems = server->block_elems;
    row.round_trip_us = (double)best_ns / 1e3;
    return zctl_print(z, columns, ZB_COUNT(columns), &row, 1, sizeof(row));
}

const struct zctl_cmd zctl_ping = {
    .name = "ping",
    .args = "",
    .help = "show the daemon's version, process and response time",
    .argc_min = 0,
    .argc_max = 0,
    .run = ping,
    ZCTL_COLUMNS(columns),
};
