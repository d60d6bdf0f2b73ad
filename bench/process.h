/*
 * process.h - runs programs from the folder of this one. A zshardd for benches has a temporary
 * socket and data directory, which are removed however this process ends.
 */
#ifndef ZBENCH_PROCESS_H
#define ZBENCH_PROCESS_H

#include <stdarg.h>
#include <sys/types.h>

#include "base/err.h"

struct zbench_daemon {
    pid_t pid;     /* 0: not started */
    pid_t keeper;  /* removes the directory if this process cannot; 0: not started */
    int keeper_fd; /* open as long as this process lives; -1: none */
    int out;       /* its standard output; -1: none */
    char dir[128]; /* "": not made */
    char socket[160];
};

#define ZBENCH_NO_DAEMON ((struct zbench_daemon){ .keeper_fd = -1, .out = -1 })

/** Makes a directory in `parent` and starts a daemon with the words of `fmt`, which a space
 * separates, after --socket and --data; waits until it is ready. Call zbench_daemon_end() even
 * after a failure. */
int zbench_daemon_start(struct zbench_daemon *d, const char *parent, struct zb_err *err,
                        const char *fmt, ...) __attribute__((format(printf, 4, 5)));
int zbench_daemon_vstart(struct zbench_daemon *d, const char *parent, struct zb_err *err,
                         const char *fmt, va_list ap) __attribute__((format(printf, 4, 0)));
/** Stops the daemon cleanly, and starts it again on the same data. */
int zbench_daemon_again(struct zbench_daemon *d, struct zb_err *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/** The two halves of it: its start, and its stop, which keeps the directory. */
int zbench_daemon_run(struct zbench_daemon *d, const char *words, struct zb_err *err);
void zbench_daemon_stop(struct zbench_daemon *d);
/** Stops the daemon cleanly and removes its directory. */
void zbench_daemon_end(struct zbench_daemon *d);

/** Runs a program that lies beside this one, and waits for its end; what it prints to standard
 * output is dropped. Its words are `words` (NULL-terminated), and those of `fmt`, which a space
 * separates. -ECHILD: it did not end with 0. */
int zbench_run(const char *name, const char *const *words, struct zb_err *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
