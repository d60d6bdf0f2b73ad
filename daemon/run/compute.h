/*
 * compute.h - the compute pool: threads for kernels, checksums and large copies.
 *
 * MODEL. Worker threads take tasks from one queue, which is shared by the jobs' shares (fair.h);
 * the tasks of one job are taken in order. A task's run() runs on a worker and touches only memory
 * that the task names. Its done() runs later on the loop thread, from zsd_compute_reap(). Workers
 * set rounding and denormals themselves (zk_thread_init) and stay on the CPUs of the list.
 *
 * A task whose time grows with the size of its job (it allocates or frees memory) is slow. It runs
 * on a worker for slow tasks only, so that pages of other jobs do not wait for it.
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
    uint64_t bytes;                      /* size of the task: its price in the queue */
    bool urgent, slow;
    struct zsd_turn turn; /* owned by the pool */
};

/** Starts `threads` workers (0: one for each CPU) on `cpus` (NULL or "": all that this process may
 * use). 0; -EINVAL the list is not a CPU list or names none that we may use, -EAGAIN, -ENOMEM:
 * err. */
int zsd_compute_new(struct zsd_compute **ret, unsigned threads, const char *cpus,
                    struct zb_err *err);
/** Starts `threads` more workers, for slow tasks. Without them slow tasks run like any other. 0;
 * -EAGAIN, -ENOMEM: err, and the workers that were started stay. */
int zsd_compute_slow(struct zsd_compute *c, unsigned threads, struct zb_err *err);
/** As zsd_compute_new(), on nsets >= 1 sets of CPUs, none empty. Each worker stays on one set;
 * workers are distributed in proportion to the CPUs of the sets. */
int zsd_compute_new_on(struct zsd_compute **ret, unsigned threads, const cpu_set_t *sets,
                       unsigned nsets, struct zb_err *err);
/** Finishes all queued tasks and their done()s, then stops the workers. NULL is fine. */
void zsd_compute_free(struct zsd_compute *c);

/** Queues a task. Loop thread only. Never fails, never blocks. */
void zsd_compute_post(struct zsd_compute *c, struct zsd_task *task);
/** Runs the done() of up to max finished tasks; returns how many. If more are left, the eventfd
 * becomes readable again. */
unsigned zsd_compute_reap(struct zsd_compute *c, unsigned max);
/** The pool's eventfd: readable when zsd_compute_reap() has work. Drain it, then reap. */
int zsd_compute_wake_fd(const struct zsd_compute *c);
/** Number of workers that are not for slow tasks only. */
unsigned zsd_compute_threads(const struct zsd_compute *c);

/** Gauges of tasks that wait for a worker, and of tasks that run. Any thread. */
void zsd_compute_load(struct zsd_compute *c, struct zsd_gauge *ret_waiting,
                      struct zsd_gauge *ret_busy);

#endif
