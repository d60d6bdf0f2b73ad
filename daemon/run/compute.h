/*
 * compute.h - the compute pool: kernels, checksums and big copies, off the loop.
 *
 * MODEL. Worker threads take tasks from one queue, in which the jobs have their shares (fair.h);
 * the tasks of one job are in order. A task's run() runs on a worker and touches only memory that
 * the task names; its done() runs later on the loop thread, from zsd_compute_reap(). Workers set
 * rounding and denormals themselves (zk_thread_init) and keep to the CPU list.
 *
 * A task whose time grows with the size of its job (it allocates or frees memory) is slow: it runs
 * on a worker for slow tasks only, so that the pages of other jobs do not wait for it.
 *
 * The poster keeps the task, and everything that it names, alive until done().
 */
#ifndef ZSD_COMPUTE_H
#define ZSD_COMPUTE_H

#include <sched.h>

#include "base/err.h"
#include "base/util.h"
#include "daemon/run/fair.h"
#include "daemon/run/stats.h"

struct zsd_compute;

struct zsd_task {
    void (*run)(struct zsd_task *task);  /* on a worker */
    void (*done)(struct zsd_task *task); /* on the loop thread; may free the task, may post more */
    struct zsd_payer *payer;             /* the job; NULL: none */
    uint64_t bytes;                      /* that it works on */
    bool urgent, slow;
    struct zsd_turn turn; /* the pool's */
};

/** Starts `threads` workers (0: one for each CPU) on `cpus` (NULL or "": all that this process may
 * use). 0; -EINVAL the list is not a CPU list or names none that we may use, -EAGAIN, -ENOMEM:
 * err. */
int zsd_compute_new(struct zsd_compute **ret, unsigned threads, const char *cpus,
                    struct zb_err *err);
/** Starts `threads` more workers, for slow tasks; without, these run like any other. 0; -EAGAIN,
 * -ENOMEM: err, and those that run stay. */
int zsd_compute_slow(struct zsd_compute *c, unsigned threads, struct zb_err *err);
/** The same on nsets >= 1 sets of CPUs, none empty: each worker keeps to one, and as many to each
 * as it has CPUs. */
int zsd_compute_new_on(struct zsd_compute **ret, unsigned threads, const cpu_set_t *sets,
                       unsigned nsets, struct zb_err *err);
/** Runs what is queued, waits for it, runs the done()s, stops the workers. NULL is fine. */
void zsd_compute_free(struct zsd_compute *c);

/** Loop thread only. Never fails, never blocks. */
void zsd_compute_post(struct zsd_compute *c, struct zsd_task *task);
/** Runs the done() of up to max finished tasks; returns how many. When it stops at max and more
 * wait, the wake-up is set again. */
unsigned zsd_compute_reap(struct zsd_compute *c, unsigned max);
/** An eventfd, the pool's: readable when zsd_compute_reap() has work. Drain it, then reap. */
int zsd_compute_wake_fd(const struct zsd_compute *c);
/** Number of workers that are not for slow tasks only. */
unsigned zsd_compute_threads(const struct zsd_compute *c);

/** Tasks that wait for a worker, and tasks that run, now and over time. Any thread. */
void zsd_compute_load(struct zsd_compute *c, struct zsd_gauge *ret_waiting,
                      struct zsd_gauge *ret_busy);

#endif
