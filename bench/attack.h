/*
 * attack.h - clients that keep to the protocol and mean harm, one process for each attack.
 *
 * MODEL. An attack is a row of zbench_attacks[]: a function that asks one daemon for as much as it can,
 * without end. It runs in a child process until that is killed; what was refused or hung up on is
 * asked for again. It counts what it did in memory that it shares with its parent.
 */
#ifndef ZBENCH_ATTACK_H
#define ZBENCH_ATTACK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "bench/child.h"

/** What an attack has done, as its parent sees it. */
struct zbench_harm {
    _Atomic uint64_t done;    /* requests that were sent, or connections that were made */
    _Atomic uint64_t refused; /* of them, as far as it looked */
};

struct zbench_attacker;

struct zbench_attack {
    const char *name;
    const char *counts;                     /* what `done` counts */
    bool saves;                             /* it needs a daemon that jobs survive */
    void (*run)(struct zbench_attacker *a); /* never returns */
};

extern const struct zbench_attack zbench_attacks[]; /* the last one has no name */

/** Starts it on the daemon at `socket`, and waits until it has begun. *harm is zeros, and shared with
 *  children. On failure nothing is left; else zbench_child_end() ends it. */
int zbench_attack_start(struct zbench_child *c, const struct zbench_attack *attack,
                        const char *socket, struct zbench_harm *harm, struct zb_err *err);

#endif
