/*
 * zn_test.h - what the tests of nvme/ share: a scratch folder, requests that are waited for, and
 * children in which the kernel refuses a system call.
 */
#ifndef ZN_TEST_H
#define ZN_TEST_H

#include "tests/ztest.h"

#include <stdbool.h>

#include "nvme/zn.h"

#define ZN_TEST_WAIT_MS 60000 /* a wake-up later than this is a lost one */

/** A new folder under `base` (NULL: $TMPDIR or /tmp); 0 or a negative errno. */
int zn_test_dir_make(char *ret, size_t size, const char *base);

/** Removes the folder and the files in it. */
void zn_test_dir_remove(const char *dir);

/** Memory of any alignment that an engine asks for. */
void *zn_test_memory(size_t len_bytes);

/** Sleeps until the engine's wake-up, which it drains: false when none came in time. */
bool zn_test_wait(struct zn_engine *e);

/** Kicks, and reaps until nothing is in flight; a lost wake-up fails the test. */
void zn_test_drain(struct zn_engine *e);

/** One request from submit to done: its rc. */
int zn_test_io(struct zn_engine *e, enum zn_op op, void *buf, uint32_t len_bytes,
               uint64_t off_bytes);

/** A system call that answers with an errno, whoever makes it. */
struct zn_test_refusal {
    int nr, error;
    unsigned third; /* only when its third argument is this (of io_uring_register the second, what
                       is registered); 0: whatever it is */
};

/** From now on, for this process and for good: so in a child only. 0 or a negative errno. */
int zn_test_refuse(const struct zn_test_refusal *refusals, unsigned count);

/** Runs `run` in a child process: what it returns (0 .. 125), or -1 when it died by a signal. No
 *  cmocka assertion inside. */
int zn_test_child(int (*run)(const void *arg), const void *arg);

#endif
