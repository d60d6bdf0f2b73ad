/*
 * lock.h - one daemon at a time: the locks on the data directory and next to the socket.
 */
#ifndef ZSD_LOCK_H
#define ZSD_LOCK_H

#define ZSD_LOCK_WAIT_MS 1000u

/**
 * Takes an exclusive flock() on fd. A killed daemon holds its locks until its memory is freed (30
 * to 65 ms per GiB), so this waits up to ZSD_LOCK_WAIT_MS. It blocks: only at the start.
 *
 * @return 0; -EBUSY another process holds it; another negative errno
 */
int zsd_lock(int fd);

#endif
