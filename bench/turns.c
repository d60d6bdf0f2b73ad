#include "bench/turns.h"

#include <assert.h>
#include <string.h>

static unsigned turns_of(const char *order, char letter)
{
    unsigned n = 0;

    for (const char *p = order; *p; p++)
        n += *p == letter;
    return n;
}

int zbench_turns(struct zbench_series *ret, const char *order, unsigned values, unsigned rounds,
                 zbench_slice_fn *slice, void *bench)
{
    assert(values <= ZBENCH_VALUES_MAX && rounds <= ZBENCH_ROUNDS_MAX);
    memset(ret, 0, sizeof(*ret));
    for (unsigned round = 0; round < rounds; round++)
        for (const char *turn = order; *turn; turn++) {
            unsigned who = (unsigned)(*turn - 'A');
            double got[ZBENCH_VALUES_MAX] = { 0 };
            int rc;

            assert(who < ZBENCH_WHO_MAX);
            rc = slice(bench, who, got);
            if (rc < 0)
                return rc;
            for (unsigned v = 0; v < values; v++)
                ret->of[who][v][round] += got[v] / turns_of(order, *turn);
        }
    return 0;
}

int zbench_compare(struct zbench *z, const struct zbench_row *named, const char *order,
                   unsigned rounds, zbench_slice_fn *slice, void *bench)
{
    struct zbench_series s;
    int rc = zbench_turns(&s, order, 1, rounds, slice, bench);

    return rc < 0 ? rc : zbench_add(z, named, s.of[0][0], s.of[1][0], rounds);
}
