#include "daemon/run/stats.h"

const char *const zsd_stats_names[ZSD_STATS_COUNT] = {
#define ZSD_STATS_NAME(name) #name,
    ZSD_STATS(ZSD_STATS_NAME)
#undef ZSD_STATS_NAME
};

void zsd_stage_move(struct zsd_job_stats *s, enum zsd_stage from, enum zsd_stage to,
                    uint64_t now_ns)
{
    const struct zsd_gauge *g = s->stages;

    if (from != ZSD_STAGE_NONE)
        zsd_gauge_dec(&s->stages[from], now_ns);
    if (to != ZSD_STAGE_NONE)
        zsd_gauge_inc(&s->stages[to], now_ns);
    zsd_gauge_set(&s->drive_only,
                  g[ZSD_STAGE_COMPUTE].now + g[ZSD_STAGE_GPU].now == 0 &&
                      g[ZSD_STAGE_READ].now + g[ZSD_STAGE_WRITE].now > 0,
                  now_ns);
}

void zsd_wait_move(struct zsd_job_stats *s, enum zsd_wait from, enum zsd_wait to, uint64_t now_ns)
{
    if (from != ZSD_WAIT_NONE)
        zsd_gauge_dec(&s->waits[from], now_ns);
    if (to != ZSD_WAIT_NONE)
        zsd_gauge_inc(&s->waits[to], now_ns);
}

void zsd_job_stats_at(struct zsd_job_stats *s, uint64_t now_ns)
{
    for (unsigned i = 0; i < ZSD_STAGES; i++)
        zsd_gauge_at(&s->stages[i], now_ns);
    for (unsigned i = 0; i < ZSD_WAITS; i++)
        zsd_gauge_at(&s->waits[i], now_ns);
    zsd_gauge_at(&s->drive_only, now_ns);
    zsd_gauge_at(&s->asking, now_ns);
}
