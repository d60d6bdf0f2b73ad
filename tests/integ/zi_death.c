/* What dies in a test of a job of two ranks, and comes back. */
#include "tests/integ/zinteg.h"

#include <errno.h>

/* A rank attaches again. */
static void back(struct zi_daemon *d, struct zi_rank *r, struct zc_job_options *o,
                 const struct zc_unit *units, unsigned nunits)
{
    int rc;

    o->attach = true;
    while ((rc = zi_open(r, d, o)) == -EBUSY) /* the death is not noticed yet */
        zc_close(r->c);
    assert_int_equal(rc, 0);
    zi_define(r, units, nunits, 2);
}

void zi_death(struct zi_daemon *d, struct zi_rank r[2], struct zc_job_options *o,
              const struct zc_unit *units, unsigned nunits, enum zi_dies dies,
              const char *const *options)
{
    unsigned first = dies == ZI_ONE_RANK;

    if (dies == ZI_DAEMON)
        zi_kill(d);
    for (unsigned i = first; i < 2; i++)
        zc_close(r[i].c);
    if (dies == ZI_DAEMON)
        zi_start_again(d, options);
    while (dies == ZI_ONE_RANK && r[0].peer_lost == 0)
        zi_pump(r, 1, 10);
    for (o->rank = first; o->rank < 2; o->rank++)
        back(d, &r[o->rank], o, units, nunits);
    if (dies == ZI_ONE_RANK)
        assert_int_equal(zc_ready_wait(r[1].c, r[1].job.id, NULL, ZI_WAIT_MS, &r[1].place), 0);
    else
        assert_int_equal(zi_ready(r, 2), 0);
}
