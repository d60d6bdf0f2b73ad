/*
 * real_daemon.h - a zshardd of the test's own, on a socket and a data folder in a temporary folder.
 *
 * It has 64 MiB of NVMe and pages of one block, so that a small model has many. A test that fails
 * leaves none running.
 */
#ifndef REAL_DAEMON_H
#define REAL_DAEMON_H

#include <stdbool.h>
#include <sys/types.h>

struct real_daemon {
    pid_t pid;
    char socket[96], data[96];
};

/** Starts it with more arguments (the macro appends the NULL), or fails the test. */
#define real_daemon_start(d, ...) real_daemon_new((d), (const char *const[]){ __VA_ARGS__, NULL })
void real_daemon_new(struct real_daemon *d, const char *const *args);
/** Starts it again after its death, with the same socket and data folder. */
#define real_daemon_again(d, ...) \
    real_daemon_resume((d), (const char *const[]){ __VA_ARGS__, NULL })
void real_daemon_resume(struct real_daemon *d, const char *const *args);

/** Ends it with SIGTERM; its exit status must be 0. */
void real_daemon_stop(struct real_daemon *d);
/** Waits for the end of one that was sent SIGTERM: the same. */
void real_daemon_ended(struct real_daemon *d);
void real_daemon_kill(struct real_daemon *d);

/** Group setup and teardown for cmocka: makes and removes the folder of all daemons. */
int real_daemon_setup(void **state);
int real_daemon_teardown(void **state);

#endif
