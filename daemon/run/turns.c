/*
 * turns.c - the length of turns: see turns.h.
 */
#include "daemon/run/turns.h"

#include <string.h>
#include <time.h>

#include "daemon/run/daemon.h"
#include "daemon/run/turn.h"

/* The class of a time. Each octave 2^k <= v < 2^(k+1) has 8 classes of equal width 2^(k-3). */
static unsigned wall_class(uint64_t ns)
{
    unsigned octave = 63u - (unsigned)__builtin_clzll(ns | ZSD_WALLS_OCTAVE);
    unsigned class = octave * ZSD_WALLS_OCTAVE + (unsigned)(ns >> (octave - 3)) % ZSD_WALLS_OCTAVE;

    return class < ZSD_WALLS ? class : ZSD_WALLS - 1;
}

/* The first value above the class. */
static uint64_t wall_end(unsigned class)
{
    unsigned octave = class / ZSD_WALLS_OCTAVE;

    return (uint64_t)(ZSD_WALLS_OCTAVE + class % ZSD_WALLS_OCTAVE + 1) << (octave - 3);
}

static uint64_t cpu_now_ns(void)
{
    struct timespec t = { 0 };

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void zsd_turn_part(struct zsd_turns *t)
{
    t->spent = false;
    t->check = t->work + ZSD_TURN_PART;
    t->began_ns = t->limit_ns > 0 ? cpu_now_ns() : 0;
}

void zsd_turn_check(struct zsd_turns *t)
{
    t->check = t->work + ZSD_TURN_PART;
    t->spent = cpu_now_ns() - t->began_ns >= t->limit_ns;
}

void zsd_turn_worked(struct zsd *daemon)
{
    struct zsd_turns *t = &daemon->turns;
    struct zsd_stats *s = &daemon->stats;
    uint64_t work = t->work + t->beyond;

    s->turn_max_work = zb_max_u64(s->turn_max_work, work);
    t->recent_work = zb_max_u64(t->recent_work, work);
    t->work = t->beyond = 0;
    t->works = false;
    zsd_turn_part(t);
}

void zsd_turn_over(struct zsd *daemon, uint64_t idle_ns)
{
    struct zsd_turns *t = &daemon->turns;
    struct zsd_stats *s = &daemon->stats;
    uint64_t cpu_ns = cpu_now_ns(), wall_ns = zb_now_ns();

    if (t->cpu_ns > 0) { /* the time before the first turn's end includes the start */
        uint64_t took_ns = wall_ns - t->wall_ns, waited_ns = idle_ns - t->idle_ns;
        uint64_t turn_ns = took_ns > waited_ns ? took_ns - waited_ns : 0;
        unsigned class = wall_class(turn_ns);

        s->turns++;
        s->turn_max_ns = zb_max_u64(s->turn_max_ns, cpu_ns - t->cpu_ns);
        t->recent_ns = zb_max_u64(t->recent_ns, cpu_ns - t->cpu_ns);
        t->counts[class]++;
        t->recent[class]++;
        zsd_histogram_add(&daemon->times[ZSD_TIME_TURN_CPU], cpu_ns - t->cpu_ns);
        zsd_histogram_add(&daemon->times[ZSD_TIME_TURN_WALL], turn_ns);
    }
    t->cpu_ns = cpu_ns;
    t->wall_ns = wall_ns;
    t->idle_ns = idle_ns;
}

static uint64_t walls_quantile(const uint64_t counts[ZSD_WALLS], unsigned of_1000)
{
    uint64_t all = 0, want, have = 0;

    for (unsigned i = 0; i < ZSD_WALLS; i++)
        all += counts[i];
    want = zb_div_up(all * of_1000, 1000);
    for (unsigned i = 0; i < ZSD_WALLS && all > 0; i++) {
        have += counts[i];
        if (have >= want)
            return wall_end(i);
    }
    return 0;
}

uint64_t zsd_turns_quantile(const struct zsd_turns *t, unsigned of_1000)
{
    return walls_quantile(t->counts, of_1000);
}

void zsd_turns_tell(struct zsd *daemon)
{
    struct zsd_turns *t = &daemon->turns;
    struct zsd_stats *s = &daemon->stats;

    s->turn_p999_ns = zsd_turns_quantile(t, 999);
    s->turn_recent_work = t->recent_work;
    s->turn_recent_ns = t->recent_ns;
    s->turn_recent_p999_ns = walls_quantile(t->recent, 999);
    t->recent_work = t->recent_ns = 0;
    memset(t->recent, 0, sizeof(t->recent));
}
