/*
 * zn_test.h - shared by the tests of nvme/: a scratch folder, synchronous requests, and child
 * processes in which the kernel refuses a system call.
 */
#ifndef ZN_TEST_H
#define ZN_TEST_H

#include "tests/ztest.h"

#include <stdbool.h>

#include "nvme/zn.h"

#define ZN_TEST_WAIT_MS 60000 /* a wake-up that takes longer is lost */

/** A new folder under `base` (NULL: $TMPDIR or /tmp); 0 or a negative errno. */
int zn_test_dir_make(char *ret, size_t size, const char *base);

/** Removes the folder and the files in it. */
void zn_test_dir_remove(const char *dir);

/** Memory with an alignment that every engine accepts. */
void *zn_test_memory(size_t len_bytes);

/** Sleeps until the engine's wake-up, and drains it: false when none came in time. */
bool zn_test_wait(struct zn_engine *e);

/** Kicks, and reaps until nothing is in flight; a lost wake-up fails the test. */
void zn_test_drain(struct zn_engine *e);

/** One request from submission to completion: its rc. */
int zn_test_io(struct zn_engine *e, enum zn_op op, void *buf, uint32_t len_bytes,
               uint64_t off_bytes);

/** Makes a loop device for a file: its name in ret, or false with a message. It is there until
 * *ret_fd is closed. */
bool zn_test_loop_up(const char *file, char *ret, size_t size, int *ret_fd);

/** A system call that fails with an errno, whichever code makes it. */
struct zn_test_refusal {
    int nr, error;
    unsigned third; /* only if the third argument is this (for io_uring_register the second, what is
                     * registered); 0: always */
};

/** Applies from here on to this process, and cannot be undone: use it in a child only. 0 or a
 * negative errno. */
int zn_test_refuse(const struct zn_test_refusal *refusals, unsigned count);

/** Runs `run` in a child process. Returns its result (0 .. 125), or -1 when a signal killed it. It
 * must not use cmocka assertions. */
int zn_test_child(int (*run)(const void *arg), const void *arg);

#endif
