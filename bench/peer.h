/*
 * peer.h - another program that does the same work, for benches that compare with it
 * (bench/peers/). It is a child that answers each line on its standard input with a line on its
 * standard output, and begins with "ready NAME WHAT...". The caller ignores SIGPIPE.
 */
#ifndef ZBENCH_PEER_H
#define ZBENCH_PEER_H

#include <stdio.h>
#include <sys/types.h>

#include "bench/zbench.h"

struct zbench_peer {
    FILE *in, *out;
    pid_t pid;
    char name[32];
};

/** Runs `command` in a shell and waits until it is ready; its description of itself is noted. Call
 * zbench_peer_end() even after a failure. */
int zbench_peer_start(struct zbench *z, struct zbench_peer *p, const char *command);
/** Sends a line and waits for the answer, which comes without its newline. */
int zbench_peer_ask(struct zbench *z, struct zbench_peer *p, const char *question, char *answer,
                    size_t size);
/** Closes its standard input and waits for its end. A zeroed one is fine. */
void zbench_peer_end(struct zbench_peer *p);

#endif
