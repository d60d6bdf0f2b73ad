#include "client/zero/store/limbo.h"

#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/util.h"

#define LIMBO_BYTES (2 * ZB_MIB)

static bool limbo_fill(int fd)
{
    void *at = mmap(NULL, LIMBO_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED)
        return false;
    memset(at, 0xff, LIMBO_BYTES);
    (void)munmap(at, LIMBO_BYTES);
    return true;
}

static bool limbo_lay(int fd, char *at, size_t bytes)
{
    for (size_t done = 0; done < bytes; done += LIMBO_BYTES)
        if (mmap(at + done, zb_min_u64(LIMBO_BYTES, bytes - done), PROT_READ,
                 MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
            return false;
    return true;
}

void *zcz_limbo_map(size_t bytes)
{
    int fd = memfd_create("zshard-limbo", MFD_CLOEXEC);
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    bool whole = fd >= 0 && at != MAP_FAILED && ftruncate(fd, LIMBO_BYTES) == 0 && limbo_fill(fd) &&
                 limbo_lay(fd, at, bytes);

    if (fd >= 0)
        (void)close(fd);
    if (whole)
        return at;
    if (at != MAP_FAILED)
        (void)munmap(at, bytes);
    return NULL;
}

void zcz_limbo_unmap(void *at, size_t bytes)
{
    if (at)
        (void)munmap(at, bytes);
}
