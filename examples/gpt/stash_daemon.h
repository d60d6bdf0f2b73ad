/*
 * stash_daemon.h - a stash in the daemon: host memory, or NVMe.
 */
#ifndef GPT_STASH_DAEMON_H
#define GPT_STASH_DAEMON_H

#include "base/err.h"
#include "examples/gpt/model/stash.h"

struct gpt_stash_options {
    const char *socket;   /* NULL: as libzclient does */
    const char *job;      /* the stash has a job of its own, whose name is made from this name, */
    uint32_t rank;        /* this rank */
    uint32_t entries;     /* and this process's number */
    uint64_t entry_bytes; /* of fp32 */
    bool nvme;            /* entries are on NVMe; host memory is used only for transfers */
    bool (*tick)(void *arg); /* called while a call waits; false: give up */
    void *tick_arg;
};

/** 0; errors of zc_open(), zc_job_open() and zc_ready(); -ENOMEM. */
int gpt_stash_open(struct gpt_stash **ret, const struct gpt_stash_options *options,
                   struct zb_err *err);
/** Makes progress without waiting. False: the stash has failed. */
bool gpt_stash_poll(struct gpt_stash *s);
/** 0, or the failure; -ECANCELED: the tick gave up, and there is no error message. */
int gpt_stash_error(const struct gpt_stash *s, struct zb_err *err);
/** Total time that make and take have waited, in seconds. */
double gpt_stash_waited(const struct gpt_stash *s);
/** Call it when no device copies any more. NULL is allowed. */
void gpt_stash_close(struct gpt_stash *s);

#endif
