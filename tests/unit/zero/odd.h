/*
 * odd.h - a small trainer in which one rank may, in one step, make other calls than the rest.
 *
 * Four units have the same length, so that only the order tells them apart; a fifth is longer. Each
 * unit's parameters start with its number, so a trainer that gets another unit's parameters
 * notices.
 */
#ifndef ODD_H
#define ODD_H

#include "client/zero/zc_zero.h"

#define ODD_UNITS 5u
#define ODD_STEPS 4u

enum odd_call {
    ODD_NONE,
    ODD_GATHERS,    /* 'fc2' before 'fc1', in the forward pass */
    ODD_REDUCES,    /* 'fc1' before 'fc2', in the backward pass */
    ODD_LENGTH,     /* 'out' instead of 'fc2', which comes in its place */
    ODD_LEFT_OUT,   /* no 'fc2' in the forward pass */
    ODD_READ,       /* reads 'fc2' instead of 'fc1' */
    ODD_READ_RANGE, /* reads the second half of 'fc1' instead of the first */
    ODD_SUM,        /* sums two numbers instead of one */
    ODD_SUM_TWICE,  /* sums once more, while the others step */
    ODD_CALLS
};

struct odd {
    /* in */
    struct zc_zero_options options; /* comm and everything else */
    enum zc_dtype dtype;
    enum odd_call call;
    uint32_t rank; /* the rank that makes the call, */
    uint64_t step; /* and the step; from 1 */
    bool no_sums;  /* only steps, gathers and reductions */
    /* out */
    int rc; /* the first failure */
    char error[512];
    uint64_t failed_in; /* the step in progress at that time */
    uint64_t applied;   /* steps for which every call returned 0 */
    bool wrong;         /* a gather returned another unit's parameters */
    double ended_s;
};

/** Opens an engine, trains, and closes it. */
void odd_train(struct odd *o);

#endif
