#include "daemon/stats.h"

const char *const zsd_stats_names[ZSD_STATS_COUNT] = {
#define ZSD_STATS_NAME(name) #name,
    ZSD_STATS(ZSD_STATS_NAME)
#undef ZSD_STATS_NAME
};
