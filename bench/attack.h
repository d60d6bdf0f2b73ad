/*
 * attack.h - hostile clients that keep to the protocol, one process for each attack.
 *
 * MODEL. An attack is a row of zbench_attacks[]: a function that sends one daemon as many requests
 * as it can, forever. It runs in a child process until that is killed, and repeats requests that
 * were refused or cut off. It counts requests in memory shared with its parent.
 */
#ifndef ZBENCH_ATTACK_H
#define ZBENCH_ATTACK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "bench/child.h"

/** Counters of an attack, read by its parent. */
struct zbench_harm {
    _Atomic uint64_t done;    /* requests that were sent, or connections that were made */
    _Atomic uint64_t refused; /* refusals, as far as the attack looked */
};

struct zbench_attacker;

struct zbench_attack {
    const char *name;
    const char *counts;                     /* what `done` counts */
    bool saves;                             /* it needs a daemon with durable jobs */
    void (*run)(struct zbench_attacker *a); /* never returns */
};

extern const struct zbench_attack zbench_attacks[]; /* the last one has no name */

/** Starts it on the daemon at `socket`, and waits until it has begun. *harm is zeroed, in memory
 * shared with children. On failure nothing is left; else zbench_child_end() ends it. */
int zbench_attack_start(struct zbench_child *c, const struct zbench_attack *attack,
                        const char *socket, struct zbench_harm *harm, struct zb_err *err);

#endif
