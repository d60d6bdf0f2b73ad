/*
 * lock.h - one daemon at a time: the lock on the data directory and beside the socket.
 */
#ifndef ZSD_LOCK_H
#define ZSD_LOCK_H

#define ZSD_LOCK_WAIT_MS 1000u

/**
 * Takes an exclusive flock() on fd. A killed daemon holds its locks until its memory is given back
 * (30 to 65 ms for each GiB), so this waits up to ZSD_LOCK_WAIT_MS: for the start of a program.
 *
 * @return 0; -EBUSY somebody else holds it; another negative errno
 */
int zsd_lock(int fd);

#endif
