/* df.h - how much of the data files each job uses: show/df.c. */
#ifndef ZSD_DF_H
#define ZSD_DF_H

#include "daemon/run/core.h"

/** Call at the end of the core, when no task runs: rejects waiting requests, and frees the last
 * result, which is kept for later pages of its list. */
void zsd_df_free(struct zsd_core *core);

#endif
