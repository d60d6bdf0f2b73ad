/*
 * files.h - the descriptors of this process.
 */
#ifndef ZSD_FILES_H
#define ZSD_FILES_H

#include <stdint.h>

/** Number of open descriptors; 0: not known. Reads a directory of /proc, so call it from a compute
 * thread. */
uint64_t zsd_files_open(void);
/** The limit of descriptors; 0: not known. */
uint64_t zsd_files_max(void);

#endif
