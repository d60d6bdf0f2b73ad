/*
 * zfuzz.h - the interface of a fuzz target.
 */
#ifndef ZFUZZ_H
#define ZFUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define ZFUZZ_INPUT_MAX 4096u

/** Runs one input; returns 0. Aborts if an error occurs that no input may cause. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/** Writes the ith good input, from 0. Returns its length, at most `room`, or 0: there are no
 * more. */
size_t zfuzz_seed(unsigned i, uint8_t *out, size_t room);

/** A condition that must hold for every input. */
#define zfuzz_require(truth)                                                      \
    do {                                                                          \
        if (!(truth)) {                                                           \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #truth); \
            abort();                                                              \
        }                                                                         \
    } while (0)

#endif
