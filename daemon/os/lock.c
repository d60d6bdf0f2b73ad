#include "daemon/os/lock.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <sys/file.h>

#define LOCK_STEP_MS 10u

int zsd_lock(int fd)
{
    for (unsigned waited_ms = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; waited_ms += LOCK_STEP_MS) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        if (waited_ms >= ZSD_LOCK_WAIT_MS)
            return -EBUSY;
        (void)poll(NULL, 0, (int)LOCK_STEP_MS);
    }
    return 0;
}
