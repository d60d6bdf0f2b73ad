/*
 * folder.h - a temporary folder for a test. It is removed with everything that the test leaves in
 * it.
 */
#ifndef FOLDER_H
#define FOLDER_H

#include "tests/ztest.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static inline int folder_remove_one(const char *path, const struct stat *st, int kind,
                                    struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

/** Removes the folder and everything in it: 0, or nonzero on failure. */
static inline int folder_remove(const char *path)
{
    return nftw(path, folder_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inline char *folder_own(void)
{
    static char path[48];

    if (!path[0])
        (void)snprintf(path, sizeof(path), "%s/ztest-XXXXXX", ztest_folder());
    return path;
}

/** Group setup for cmocka: makes a folder and changes into it. */
static inline int folder_enter(void **state)
{
    (void)state;
    return mkdtemp(folder_own()) ? chdir(folder_own()) : -1;
}

/** Group teardown: leaves the folder and removes it. */
static inline int folder_leave(void **state)
{
    (void)state;
    return chdir("/") || folder_remove(folder_own());
}

#endif
