/*
 * metrics_sample.c - adds samples and labels to an answer: see metrics.h.
 */
#include <assert.h>

#include "daemon/show/metrics.h"
#include "proto/codec.h"

Zp__MetricSample *zsd_sample(struct zsd_metrics *m, double value)
{
    Zp__MetricFamily *family = &m->families[m->nfamilies];
    Zp__MetricSample *s = &m->samples[m->nsamples];

    assert(m->nsamples < ZSD_METRICS_SAMPLES);
    zp__metric_sample__init(s);
    s->labels = m->labels[m->nsamples];
    s->value = value;
    if (family->n_samples == 0)
        family->samples = &m->sample_list[m->nsamples];
    m->sample_list[m->nsamples++] = s;
    family->n_samples++;
    return s;
}

void zsd_label(Zp__MetricSample *sample, const char *name, const char *value)
{
    assert(sample->n_labels < 2 * (size_t)ZSD_METRICS_LABELS);
    sample->labels[sample->n_labels++] = zp_str(name);
    sample->labels[sample->n_labels++] = zp_str(value);
}

Zp__MetricSample *zsd_sample_job(struct zsd_metrics *m, unsigned i, double value)
{
    Zp__MetricSample *s = zsd_sample(m, value);

    zsd_label(s, "job", m->jobs[i]->name);
    zsd_label(s, "uid", m->uids[i]);
    return s;
}
