/*
 * recent.c - the last events of the log. See recent.h.
 */
#include "daemon/run/recent.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/text.h"
#include "base/util.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the following variables */
static struct zsd_recent ring[ZSD_RECENT_MAX]; /* event n is at (n - 1) % ZSD_RECENT_MAX */
static uint64_t newest;                        /* its number; 0: there is none yet */

/** Copies bytes as text; what a cut leaves of a character is replaced. */
static void recent_text(char *to, size_t size, const char *from, size_t bytes)
{
    bytes = zb_min_u64(bytes, size - 1);
    memcpy(to, from, bytes);
    zb_text_clean(to, bytes);
    to[bytes] = '\0';
}

void zsd_recent_add(const struct zb_log_line *line)
{
    const struct zb_log_field *job = zb_log_find(line, "job"), *uid = zb_log_find(line, "uid");
    size_t begin = strlen(zb_log_level_name(line->level)) + 1 + strlen(line->event);
    struct timespec now;
    struct zsd_recent *r;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    begin = zb_min_u64(line->used, begin + 1); /* the pairs */
    (void)pthread_mutex_lock(&lock);
    r = &ring[newest++ % ZSD_RECENT_MAX];
    *r = (struct zsd_recent){ .number = newest,
                              .time_ms = (uint64_t)now.tv_sec * 1000 +
                                         (uint64_t)now.tv_nsec / 1000000,
                              .level = line->level,
                              .event = line->event,
                              .has_uid = uid && uid->number };
    if (r->has_uid) /* the line ends with a blank, or with what is no digit, or is cut */
        r->uid = (uint32_t)strtoull(line->text + uid->value, NULL, 10);
    if (job)
        recent_text(r->job, sizeof(r->job), line->text + job->value, job->value_bytes);
    recent_text(r->text, sizeof(r->text), line->text + begin, line->used - begin);
    (void)pthread_mutex_unlock(&lock);
}

bool zsd_recent_next(uint64_t after, struct zsd_recent *ret)
{
    uint64_t oldest;
    bool found;

    (void)pthread_mutex_lock(&lock);
    oldest = newest > ZSD_RECENT_MAX ? newest - ZSD_RECENT_MAX + 1 : 1;
    found = after < newest;
    if (found)
        *ret = ring[(zb_max_u64(after + 1, oldest) - 1) % ZSD_RECENT_MAX];
    (void)pthread_mutex_unlock(&lock);
    return found;
}
