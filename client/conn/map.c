/*
 * map.c - memory shared with the daemon.
 *
 * A descriptor is checked before it is mapped: it must have the announced length, and be sealed
 * against shrinking. Otherwise a faulty daemon could truncate mapped memory, and the trainer would
 * die of SIGBUS.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "client/conn/conn.h"

static int map_check(struct zc_client *c, const char *name, int fd, uint64_t bytes)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || !(seals & F_SEAL_SHRINK))
        return zc_fail(c, -EPROTO, "the %s arena is not sealed against shrinking", name);
    if (fstat(fd, &st) < 0 || st.st_size < 0 || (uint64_t)st.st_size != bytes)
        return zc_fail(c, -EPROTO, "the %s arena has %lld bytes, not %llu as announced", name,
                       (long long)st.st_size, (unsigned long long)bytes);
    return 0;
}

int zc_map_open(struct zc_client *c, struct zc_map *map, const char *name, int fd, uint64_t bytes,
                bool writable)
{
    void *base = NULL;
    int rc;

    if (map->held)
        return zc_fail(c, -EPROTO, "a second %s arena", name);
    rc = map_check(c, name, fd, bytes);
    if (rc < 0)
        return rc;
    if (bytes > 0)
        base = mmap(NULL, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        rc = -errno;
        return zc_fail(c, rc, "map the %s arena of %llu bytes: %s; close the handle", name,
                       (unsigned long long)bytes, strerror(-rc));
    }
    *map = (struct zc_map){ .base = base, .bytes = bytes, .held = true };
    return 0;
}

void zc_map_close(struct zc_map *map)
{
    if (map->base)
        (void)munmap(map->base, map->bytes);
    *map = (struct zc_map){ 0 };
}
