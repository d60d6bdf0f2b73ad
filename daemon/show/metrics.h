/*
 * metrics.h - the answer to a request `metrics`, while it is made.
 *
 * MODEL. The answer is a list of families: metrics_node.c has the table of the
 * daemon's families, metrics_jobs.c that of its jobs. A reply has as many whole families as fit; the next request
 * passes the index of the next one. So a reply is bounded, whatever the number of drives and jobs:
 * a family of jobs has the first ZSD_METRICS_JOBS that the client may see.
 *
 * Loop thread only.
 */
#ifndef ZSD_METRICS_H
#define ZSD_METRICS_H

#include "daemon/job/job.h"
#include "daemon/show/health.h"
#include "proto/shard.pb-c.h"

#define ZSD_METRICS_JOBS     16u
#define ZSD_METRICS_FAMILIES 32u
#define ZSD_METRICS_SYSTEM   7u  /* the first families, which need m->health */
#define ZSD_METRICS_LABELS   4u  /* of a sample, name and value */
#define ZSD_METRICS_FULL     96u /* samples: no further family begins */
/* one family more: of a job for each cause of waiting, or for each GPU */
#define ZSD_METRICS_SAMPLES (ZSD_METRICS_FULL + ZSD_METRICS_JOBS * ZSD_GPUS_MAX)

enum zsd_metric_type { ZSD_GAUGE = 1, ZSD_COUNTER, ZSD_HISTOGRAM, ZSD_INFO };

struct zsd_metrics;

/** The value of a counter of struct zsd_stats, for a family. */
#define ZSD_STAT(name) .stat = offsetof(struct zsd_stats, name) + 1
/** A histogram, for a family. */
#define ZSD_TIMES_OF(name) .time = ZSD_TIME_##name + 1

/** A family. Exactly one of `stat` and the functions is set. */
struct zsd_family {
    const char *name; /* without "zshard_" */
    enum zsd_metric_type type;
    const char *unit; /* "": none */
    const char *help;
    size_t stat;                                       /* offset + 1 of a counter */
    double scale;                                      /* of that counter; 0: 1 */
    void (*fill)(struct zsd_metrics *m);               /* adds its samples */
    double (*node)(const struct zsd *daemon);          /* one sample */
    double (*job)(const struct zsd_job *job);          /* one for each job */
    double (*path)(struct zsd *daemon, unsigned path); /* one for each data file */
    unsigned time;                                     /* a histogram: enum zsd_time + 1 */
};

struct zsd_metrics {
    struct zsd *daemon;
    const struct zsd_conn *conn;
    const struct zsd_health *health; /* NULL: a later part, in which no family needs it */
    /* the jobs that are shown, with their users' numbers as text */
    const struct zsd_job *jobs[ZSD_METRICS_JOBS];
    char uids[ZSD_METRICS_JOBS][12];
    unsigned njobs;
    char gpus[ZSD_GPUS_MAX][48]; /* UUIDs of the GPUs */
    char nodes[ZSD_GPUS_MAX][8]; /* the NUMA nodes that they are near */
    char paths[ZN_PATHS_MAX][208];
    double bounds[ZSD_BOUNDS];

    Zp__MetricFamily families[ZSD_METRICS_FAMILIES], *family_list[ZSD_METRICS_FAMILIES];
    char names[ZSD_METRICS_FAMILIES][48];
    unsigned nfamilies;
    Zp__MetricSample samples[ZSD_METRICS_SAMPLES], *sample_list[ZSD_METRICS_SAMPLES];
    char *labels[ZSD_METRICS_SAMPLES][2 * ZSD_METRICS_LABELS];
    unsigned nsamples;
};

/** Adds a sample to the current family, without labels. */
Zp__MetricSample *zsd_sample(struct zsd_metrics *m, double value);
/** Adds a label. The texts are not copied. */
void zsd_label(Zp__MetricSample *sample, const char *name, const char *value);
/** Adds a sample with the labels of job i of m->jobs. */
Zp__MetricSample *zsd_sample_job(struct zsd_metrics *m, unsigned i, double value);

extern const struct zsd_family zsd_node_families[], zsd_job_families[];
extern const unsigned zsd_node_nfamilies, zsd_job_nfamilies;

#endif
