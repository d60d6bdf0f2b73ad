/*
 * probe.h - what only the kernel, a library or another program can answer.
 *
 * MODEL. Each probe runs in a child process, all at the same time, for at most PROBE_MS
 * milliseconds, and less if sockets took long (DOCTOR_MS in all). So a library that crashes, hangs or initialises a device does so elsewhere, and a
 * system call that is forbidden ends only the child. The answer is a text.
 *
 * In tests (a root that is not "") no child is started: the answers are the values of the file
 * `probes` below the root, NAME = "TEXT".
 */
#ifndef ZCTL_DOCTOR_PROBE_H
#define ZCTL_DOCTOR_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define PROBE_MS   1200
#define DOCTOR_MS  1700
#define PROBE_TEXT 2048

struct doctor_machine;

/** An answer. "": none. "!REASON": it failed. */
struct doctor_answers {
    char config[PROBE_TEXT];   /* of zshardd --check-config: "ok", or "!" and its message */
    char uring[PROBE_TEXT];    /* "ok": io_uring_setup() works */
    char data[PROBE_TEXT];     /* a line for each place: free bytes, and "direct" "buffered" "?" */
    char driver[PROBE_TEXT];   /* path of libcuda */
    char build[PROBE_TEXT];    /* the CUDA version of this build; "none" */
    char plugin[PROBE_TEXT];   /* path of zk_cuda.so */
    char cublaslt[PROBE_TEXT]; /* path */
    char nccl[PROBE_TEXT];     /* path */
    char gpus[PROBE_TEXT];     /* a line for each GPU: struct doctor_gpu */
    char late[256];            /* names of the probes that did not end in time */
};

/** Asks all probes that apply to this machine, and fills m->answers. */
void doctor_probe(struct doctor_machine *m);

/* ---- the probes that are in files of their own; each writes its answer to out */

void doctor_probe_uring(const struct doctor_machine *m, FILE *out);
void doctor_probe_data(const struct doctor_machine *m, FILE *out);
void doctor_probe_config(const struct doctor_machine *m, FILE *out);
void doctor_probe_driver(const struct doctor_machine *m, FILE *out);
void doctor_probe_plugin(const struct doctor_machine *m, FILE *out);
void doctor_probe_cublaslt(const struct doctor_machine *m, FILE *out);
void doctor_probe_nccl(const struct doctor_machine *m, FILE *out);
void doctor_probe_gpus(const struct doctor_machine *m, FILE *out);

/** One line of `gpus`: "MODE MIG INSTANCES MAJOR.MINOR BYTES". */
struct doctor_gpu {
    int mode;           /* of NVML: 0 default, 2 prohibited, 3 exclusive process; -1 unknown */
    int mig, instances; /* mig 1: on; -1: the GPU has no MIG */
    int major, minor;   /* compute capability; 0: unknown */
    unsigned long long bytes; /* memory; 0: unknown */
};

/** The i-th GPU of the answer. False: there are fewer. */
bool doctor_gpu(const struct doctor_answers *a, size_t i, struct doctor_gpu *ret);

#endif
