/*
 * gpu_strands.h - GPU memory of parameters that is still mapped: plan/gpu_strands.c has the model.
 *
 * Loop thread only.
 */
#ifndef ZSD_GPU_STRANDS_H
#define ZSD_GPU_STRANDS_H

#include "daemon/job/job.h"
#include "kernels/gpu.h"

/** Makes a strand of the parameters that the job had on a GPU. False: no memory. */
bool zsd_strand_begin(struct zsd_job *job, uint32_t g);
/** Bytes of a GPU that strands have, without those that were logged: they will soon be free. */
uint64_t zsd_strands_returning(const struct zsd_core *core, uint32_t g);
/** Name of the job with this tag, for messages about memory that is still mapped. NULL: unknown. */
const char *zsd_strand_job(const struct zsd_core *core, uint64_t tag);
/** Formats the holders of a strand, as "pid,pid". Returns a length, as snprintf() does. */
size_t zsd_strand_text(const struct zk_gpu_strand *strand, char *text, size_t size);
void zsd_strands_free(struct zsd_core *core);

#endif
