#include "daemon/os/files.h"

#include <dirent.h>
#include <sys/resource.h>

uint64_t zsd_files_open(void)
{
    DIR *dir = opendir("/proc/self/fd");
    uint64_t n = 0;

    if (!dir)
        return 0;
    while (readdir(dir))
        n++;
    (void)closedir(dir);
    return n - 3; /* ".", "..", and that of the directory */
}

uint64_t zsd_files_max(void)
{
    struct rlimit r;

    return getrlimit(RLIMIT_NOFILE, &r) == 0 ? (uint64_t)r.rlim_cur : 0;
}
