/*
 * slow_calls.c - for LD_PRELOAD: each write of a page, and each chmod(), takes ZSHARD_SLOW_MS
 * milliseconds longer, as long as the file ZSHARD_SLOW_FILE exists. Only positioned writes, as the
 * thread pool makes them (--io threads): the catalog is as fast as ever.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

static void slow(void)
{
    const char *file = getenv("ZSHARD_SLOW_FILE"), *ms = getenv("ZSHARD_SLOW_MS");

    if (file && ms && access(file, F_OK) == 0)
        (void)usleep((useconds_t)atoi(ms) * 1000);
}

SHOWN ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t at)
{
    static ssize_t (*next)(int, const void *, size_t, off64_t);

    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "pwrite64");
    slow();
    return next(fd, data, bytes, at);
}

SHOWN ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
    return pwrite64(fd, data, bytes, at);
}

SHOWN ssize_t pwritev64(int fd, const struct iovec *iov, int n, off64_t at)
{
    static ssize_t (*next)(int, const struct iovec *, int, off64_t);

    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "pwritev64");
    slow();
    return next(fd, iov, n, at);
}

SHOWN ssize_t pwritev(int fd, const struct iovec *iov, int n, off_t at)
{
    return pwritev64(fd, iov, n, at);
}

SHOWN int chmod(const char *path, mode_t mode)
{
    static int (*next)(const char *, mode_t);

    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "chmod");
    slow();
    return next(path, mode);
}
