/* df.h - how much of the data files each job uses: show/df.c. */
#ifndef ZSD_DF_H
#define ZSD_DF_H

#include "daemon/run/core.h"

/** The core ends, and no task runs any more: whoever waits is refused, and the last answer, which was
 * kept for its pages, goes. */
void zsd_df_free(struct zsd_core *core);

#endif
