/*
 * scrub.c - reads and verifies every page of every saved version in the background, at a given
 * rate.
 *
 * MODEL. A run reads the rows of all versions that exist when it is started, each once. It begins
 * by marking and counting them, some each turn. It does not hold them: rows that a job drops during
 * the run are skipped, and rows that it commits belong to the next run. One page is in progress at
 * a time.
 *
 *     LIST ---> WAIT ---> BUFFER ---> READ ---> WAIT ...
 *
 *     LIST    marks rows (row->scrub), and then answers the request that started the run
 *     WAIT    waits until the bucket has bytes: zsd_scrub_tick() fills it
 *     BUFFER  waits for a page buffer, in the same queue as the jobs' pages
 *     READ    reads and verifies the page (store/rowio.c)
 *
 *     idle (no run) ---> running <--> paused
 *                           |            |
 *                           +------------+---> stopped, done
 *
 * RATE. A token bucket, in bytes. A page may be read while the bucket is not empty, so the bucket
 * is overdrawn by at most one page. If no rate is given, the first pages are read without waiting
 * for tokens, and the rate becomes a tenth of their throughput.
 *
 * INVARIANTS
 *
 *     C1  The structs of a version and of its rows stay allocated from the start until its rows are
 *         finished (zsd_version_look()).
 *     C2  bytes <= total_bytes; both count a page once. Skipped pages are taken off total_bytes.
 */
#include "daemon/show/scrub.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/map.h"
#include "daemon/show/requests.h"
#include "daemon/show/scans.h"
#include "daemon/show/scrub_rows.h"
#include "daemon/store/rowio.h"
#include "daemon/store/store.h"
#include "proto/codec.h"
#include "proto/shard.pb-c.h"

#define BAD_MAX     16u           /* bad pages with a message; all are counted */
#define PROBE_BYTES (16 * ZB_MIB) /* read to measure the throughput */
#define RATE_MIN    ZB_MIB        /* per second: at a lower rate, a run never ends */
#define BURST_NS    100000000u    /* a tick fills the bucket for at most this time */

enum scrub_state { SCRUB_RUNNING, SCRUB_PAUSED, SCRUB_DONE, SCRUB_STOPPED };
enum scrub_page { PAGE_LIST, PAGE_WAIT, PAGE_BUFFER, PAGE_READ };
enum scrub_found { FOUND_PAGE, FOUND_NONE, FOUND_LATER /* the turn is full */ };

struct zsd_scrub {
    struct zsd_core *core;
    enum scrub_state state;
    enum scrub_page page;   /* written by scrub_run() and its callbacks only */
    struct zsd_req *starts; /* LIST: the request that started it, not answered yet; or NULL */
    struct zsd_scrub_rows rows;
    struct zb_map seen; /* generations of pages that were read and have several holders */

    uint32_t at_page; /* page of the current row that is next, or in progress */
    enum zsd_saved_plane at_plane;
    void *buffer, *scratch;
    struct zsd_work work;
    struct zsd_claim claim; /* for the buffer; the house pays */
    struct zsd_row_read read;

    uint64_t rate; /* bytes per second; 0: not known yet */
    bool probing;
    int64_t tokens;
    uint64_t filled_ns; /* when the bucket was filled last */
    uint64_t probed_ns, probed_bytes, page_ns;

    uint64_t bytes, total_bytes, bad_pages;
    uint64_t began_ns;
    uint64_t ran_ns, since_ns; /* time in RUNNING before since_ns; when state was entered */
    char *bad[BAD_MAX];
};

static void scrub_answer(struct zsd_req *req, bool names);

/* ---- time */

static uint64_t scrub_elapsed_ns(const struct zsd_scrub *s)
{
    return s->ran_ns + (s->state == SCRUB_RUNNING ? zb_now_ns() - s->since_ns : 0);
}

static void scrub_to(struct zsd_scrub *s, enum scrub_state state)
{
    s->ran_ns = scrub_elapsed_ns(s);
    s->state = state;
    s->since_ns = zb_now_ns();
    s->tokens = 0;
    s->filled_ns = s->since_ns;
}

/* Ends the run. No page may be in progress. */
static void scrub_over(struct zsd_scrub *s)
{
    if (s->state == SCRUB_DONE)
        s->core->scans->scrubbed = (struct zsd_scrubbed){ .began_ns = s->began_ns,
                                                          .ended_ns = zb_now_ns(),
                                                          .unix_s = (uint64_t)time(NULL),
                                                          .bytes = s->bytes,
                                                          .bad_pages = s->bad_pages };
    zsd_scrub_rows_drop(&s->rows);
    zb_map_done(&s->seen);
    zb_log(s->bad_pages > 0 ? ZB_LOG_ERROR : ZB_LOG_INFO,
           s->state == SCRUB_DONE ? "scrub-done" : "scrub-stopped",
           "bytes=%llu bad_pages=%llu ms=%llu", (unsigned long long)s->bytes,
           (unsigned long long)s->bad_pages, (unsigned long long)(s->ran_ns / 1000000));
}

/* ---- pages */

/* Goes on to the next page of the plane, then to the next plane, then to the next row. */
static void scrub_next(struct zsd_scrub *s)
{
    const struct zsd_row *r = zsd_scrub_row(&s->rows);

    if (++s->at_page < r->npages)
        return;
    s->at_page = 0;
    if (++s->at_plane < ZSD_SAVED_PLANES)
        return;
    s->at_plane = 0;
    zsd_scrub_row_over(&s->rows);
}

/* Bytes of the row from the current page on. */
static uint64_t row_rest(const struct zsd_scrub *s, const struct zsd_row *r)
{
    uint64_t sum = 0;

    for (enum zsd_saved_plane p = s->at_plane; p < ZSD_SAVED_PLANES; p++) {
        uint64_t first = p == s->at_plane ? (uint64_t)s->at_page * r->page_elems : 0;

        sum += zb_plane_bytes(r->planes[p].block_bytes, r->page_elems, r->count - first);
    }
    return sum;
}

/* Whether this page was read already, for another row that has it. */
static bool scrub_saw(const struct zsd_scrub *s, const struct zsd_extent *e)
{
    return zb_map_find(&s->seen, e->generation) != NULL;
}

/* True: the current page must be read. False: it was skipped, and another page is current. */
static bool scrub_look(struct zsd_scrub *s, struct zsd_row *r)
{
    const struct zsd_row_plane *plane = &r->planes[s->at_plane];

    if (r->scrub != s->rows.mark) { /* read for an earlier version, or never marked */
        zsd_scrub_row_over(&s->rows);
        return false;
    }
    if (r->refs == 0) { /* dropped */
        s->total_bytes -= row_rest(s, r);
        s->at_plane = ZSD_SAVED_PLANES - 1;
        s->at_page = r->npages - 1;
    } else if (plane->block_bytes == 0) {
        s->at_page = r->npages - 1;
    } else {
        if (!scrub_saw(s, &plane->extents[s->at_page]))
            return true;
        s->total_bytes -= zsd_row_page_bytes(r, s->at_plane, s->at_page);
    }
    scrub_next(s);
    return false;
}

/* Finds the next page that must be read. */
static enum scrub_found scrub_find(struct zsd_scrub *s)
{
    uint64_t most = zsd_turn_left(s->core), left = most;
    enum scrub_found found = FOUND_LATER;

    for (; found == FOUND_LATER && left > 0; left--) {
        struct zsd_row *r = zsd_scrub_row(&s->rows);

        if (!r)
            found = FOUND_NONE;
        else if (scrub_look(s, r))
            found = FOUND_PAGE;
    }
    zsd_turn_count(s->core, most - left);
    return found;
}

static void scrub_bad(struct zsd_scrub *s, const struct zb_err *err)
{
    s->core->daemon->stats.scrub_bad_pages++;
    if (s->bad_pages++ < BAD_MAX)
        s->bad[s->bad_pages - 1] = strdup(err->text); /* NULL: only the log has it */
    zb_log(ZB_LOG_ERROR, "scrub-bad", "why=\"%s\"", err->text);
}

static void scrub_probed(struct zsd_scrub *s, uint64_t bytes)
{
    s->probed_ns += zb_now_ns() - s->page_ns;
    s->probed_bytes += bytes;
    if (s->probed_bytes < PROBE_BYTES)
        return;
    s->probing = false;
    s->rate = zb_max_u64(
        RATE_MIN, (uint64_t)((double)s->probed_bytes * 1e8 / (double)zb_max_u64(s->probed_ns, 1)));
    s->tokens = 0;
    s->filled_ns = zb_now_ns();
}

static void scrub_on_read(struct zsd_row_read *read, const struct zb_err *err)
{
    struct zsd_scrub *s = zb_container_of(read, struct zsd_scrub, read);
    uint64_t bytes = zsd_row_page_bytes(read->row, read->plane, read->page);

    if (read->row->refs == 0) { /* dropped meanwhile: the result means nothing */
        s->total_bytes -= bytes;
    } else {
        s->bytes += bytes;
        s->core->daemon->stats.scrub_bytes += bytes;
        if (err)
            scrub_bad(s, err);
    }
    if (s->probing)
        scrub_probed(s, bytes);
    free(s->scratch);
    s->scratch = NULL;
    zsd_buffer_put(s->core, s->buffer);
    s->buffer = NULL;
    scrub_next(s);
    s->page = PAGE_WAIT;
    zsd_defer(s->core, &s->work);
}

/* Starts the read of the current page. False: no memory for a page that was saved with a larger
 * page_elems. */
static bool scrub_read(struct zsd_scrub *s)
{
    struct zsd_row *r = zsd_scrub_row(&s->rows);
    uint32_t bytes = zsd_row_page_bytes(r, s->at_plane, s->at_page);
    void *to = zsd_row_room(s->core, s->buffer, bytes, &s->scratch);

    if (!to)
        return false;
    s->read = (struct zsd_row_read){ .core = s->core,
                                     .row = r,
                                     .plane = s->at_plane,
                                     .page = s->at_page,
                                     .buf = to,
                                     .done = scrub_on_read };
    if (zsd_extent_refs(s->core, r->planes[s->at_plane].extents[s->at_page].at) > 1)
        (void)zb_map_put(&s->seen, zsd_row_page_id(r, s->at_plane, s->at_page).generation,
                         1); /* on failure, a page may be read twice */
    s->tokens -= bytes;
    s->page_ns = zb_now_ns();
    zsd_row_read_start(&s->read, zsd_scrub_job(&s->rows));
    return true;
}

/* In PAGE_BUFFER, once it has the buffer: starts the read, or gives the buffer back. */
static void scrub_buffered(struct zsd_scrub *s)
{
    enum scrub_found found = FOUND_NONE;

    /* meanwhile the page may have been dropped, and the run paused or stopped */
    if (s->state == SCRUB_RUNNING)
        found = scrub_find(s);
    if (found == FOUND_PAGE && scrub_read(s)) {
        s->page = PAGE_READ;
        return;
    }
    zsd_buffer_put(s->core, s->buffer);
    s->buffer = NULL;
    s->page = PAGE_WAIT;
    if (found != FOUND_PAGE) /* else there was no memory: the next tick tries again */
        zsd_defer(s->core, &s->work);
}

/* Marks the next rows. True: all are marked. */
static bool scrub_list(struct zsd_scrub *s)
{
    bool all = zsd_scrub_rows_mark(&s->rows, s->core);

    s->total_bytes = s->rows.bytes;
    return all;
}

/* All rows are marked, or the run ends before that: answers the request that started it. */
static void scrub_listed(struct zsd_scrub *s)
{
    struct zsd_req *starts = s->starts;

    s->page = PAGE_WAIT;
    s->starts = NULL;
    zb_log(ZB_LOG_INFO, "scrub-start", "rows=%llu bytes=%llu rate=%llu",
           (unsigned long long)s->rows.nrows, (unsigned long long)s->total_bytes,
           (unsigned long long)s->rate);
    if (starts)
        scrub_answer(starts, true);
}

static void scrub_run(struct zsd_scrub *s)
{
    enum scrub_found found;

    for (;;) {
        switch (s->page) {
        case PAGE_LIST:
            if (!scrub_list(s)) {
                zsd_defer(s->core, &s->work);
                return;
            }
            scrub_listed(s);
            break;
        case PAGE_WAIT:
            if (s->state == SCRUB_STOPPED && s->rows.versions)
                scrub_over(s);
            if (s->state != SCRUB_RUNNING || s->core->draining)
                return;
            found = scrub_find(s);
            if (found == FOUND_LATER)
                zsd_defer(s->core, &s->work);
            if (found == FOUND_NONE) {
                scrub_to(s, SCRUB_DONE);
                scrub_over(s);
            }
            if (found != FOUND_PAGE || (!s->probing && s->tokens <= 0))
                return; /* without tokens: zsd_scrub_tick() resumes */
            s->page = PAGE_BUFFER;
            break;
        case PAGE_BUFFER:
            s->buffer = zsd_buffer_get(s->core, &s->claim);
            if (s->buffer) /* else it is queued: scrub_on_work() resumes */
                scrub_buffered(s);
            return;
        case PAGE_READ:
            return; /* scrub_on_read() resumes */
        }
    }
}

static void scrub_on_work(struct zsd_work *work)
{
    scrub_run(zb_container_of(work, struct zsd_scrub, work));
}

void zsd_scrub_tick(struct zsd_core *core, uint64_t now_ns)
{
    struct zsd_scrub *s = core->scrub;
    uint64_t passed_ns;

    if (!s || s->state != SCRUB_RUNNING || s->page != PAGE_WAIT || core->draining)
        return;
    passed_ns = now_ns > s->filled_ns ? now_ns - s->filled_ns : 0;
    s->filled_ns = now_ns;
    passed_ns = zb_min_u64(passed_ns, BURST_NS);
    if (s->tokens <= 0)
        s->tokens += (int64_t)((double)s->rate * (double)passed_ns / 1e9);
    zsd_defer(core, &s->work);
}

bool zsd_scrub_running(const struct zsd_core *core)
{
    return core->scrub && core->scrub->state == SCRUB_RUNNING;
}

const char *zsd_scrub_state(const struct zsd_core *core)
{
    static const char *const states[] = { [SCRUB_RUNNING] = "running",
                                          [SCRUB_PAUSED] = "paused",
                                          [SCRUB_DONE] = "done",
                                          [SCRUB_STOPPED] = "stopped" };

    return core->scrub ? states[core->scrub->state] : "idle";
}

uint64_t zsd_scrub_bad(const struct zsd_core *core)
{
    return core->scrub ? core->scrub->bad_pages : 0;
}

/* ---- requests */

void zsd_scrub_end(struct zsd_core *core)
{
    struct zsd_scrub *s = core->scrub;

    if (!s || (s->state != SCRUB_RUNNING && s->state != SCRUB_PAUSED))
        return;
    scrub_to(s, SCRUB_STOPPED);
    if (s->page == PAGE_LIST) {
        zb_list_remove(&s->work.node);
        scrub_listed(s);
    }
    if (s->page == PAGE_WAIT)
        scrub_over(s);
}

void zsd_scrub_free(struct zsd_core *core)
{
    struct zsd_scrub *s = core->scrub;

    if (!s)
        return;
    assert(!s->buffer && s->page != PAGE_READ && !s->starts);
    zb_list_remove(&s->work.node);
    zsd_scrub_rows_drop(&s->rows);
    zb_map_done(&s->seen);
    for (unsigned i = 0; i < BAD_MAX; i++)
        free(s->bad[i]);
    free(s);
    core->scrub = NULL;
}

static int scrub_start(struct zsd_core *core, uint64_t rate, struct zb_err *err)
{
    struct zsd_scrub *s = core->scrub;

    if (!core->store)
        return zb_fail(err, -ENOENT, "this daemon has no data files: there is nothing to scrub");
    if (s && (s->state == SCRUB_RUNNING || s->state == SCRUB_PAUSED || s->page != PAGE_WAIT))
        return zb_fail(err, -EBUSY, "a scrub is running already");
    zsd_scrub_free(core);
    s = calloc(1, sizeof(*s));
    if (!s)
        return zb_fail(err, -ENOMEM, "a scrub: %m");
    core->scrub = s;
    s->core = core;
    s->began_ns = zb_now_ns();
    s->work.run = scrub_on_work;
    s->claim = (struct zsd_claim){ .bytes = core->disk->buffer_bytes, .work = &s->work };
    zb_list_init(&s->work.node);
    s->state = SCRUB_STOPPED;
    if (zsd_scrub_rows_make(&s->rows, core) < 0) {
        zsd_scrub_free(core);
        return zb_fail(err, -ENOMEM, "the list of pages to scrub: %m");
    }
    s->rate = rate;
    s->probing = rate == 0;
    scrub_to(s, SCRUB_RUNNING);
    if (scrub_list(s))
        scrub_listed(s);
    zsd_defer(core, &s->work);
    return 0;
}

/* Actions, as in the message. */
enum { SCRUB_STATUS, SCRUB_START, SCRUB_PAUSE, SCRUB_GO_ON, SCRUB_STOP };

static int scrub_act(struct zsd_core *core, const Zp__Scrub *q, struct zb_err *err)
{
    struct zsd_scrub *s = core->scrub;

    if (q->rate_bytes > 0 && (q->rate_bytes < RATE_MIN || q->rate_bytes > INT64_MAX))
        return zb_fail(err, -EINVAL, "a rate of %llu bytes a second: at least %llu",
                       (unsigned long long)q->rate_bytes, (unsigned long long)RATE_MIN);
    switch (q->action) {
    case SCRUB_STATUS:
        return 0;
    case SCRUB_START:
        return scrub_start(core, q->rate_bytes, err);
    case SCRUB_PAUSE:
        if (!s || s->state != SCRUB_RUNNING)
            return zb_fail(err, -EINVAL, "no scrub is running");
        scrub_to(s, SCRUB_PAUSED);
        return 0;
    case SCRUB_GO_ON:
        if (!s || s->state != SCRUB_PAUSED)
            return zb_fail(err, -EINVAL, "no scrub is paused");
        scrub_to(s, SCRUB_RUNNING);
        if (q->rate_bytes > 0) {
            s->rate = q->rate_bytes;
            s->probing = false;
        }
        zsd_defer(core, &s->work);
        return 0;
    case SCRUB_STOP:
        if (!s || (s->state != SCRUB_RUNNING && s->state != SCRUB_PAUSED))
            return zb_fail(err, -EINVAL, "no scrub is running");
        zsd_scrub_end(core);
        return 0;
    default:
        return zb_fail(err, -EINVAL, "action %u: from 0 to 4", q->action);
    }
}

static void scrub_report(const struct zsd_scrub *s, bool names, Zp__ScrubReply *reply)
{
    uint64_t elapsed_ns = scrub_elapsed_ns(s);

    reply->state = zp_str(zsd_scrub_state(s->core));
    reply->bytes = s->bytes;
    reply->total_bytes = s->total_bytes;
    reply->bad_pages = s->bad_pages;
    reply->elapsed_ms = elapsed_ns / 1000000;
    if (s->bytes > 0 && s->state == SCRUB_RUNNING)
        reply->eta_ms = (uint64_t)((double)(s->total_bytes - s->bytes) / (double)s->bytes *
                                   (double)elapsed_ns / 1e6);
    reply->rate_bytes = s->rate;
    for (unsigned i = 0; i < BAD_MAX && names; i++)
        if (s->bad[i])
            reply->bad[reply->n_bad++] = s->bad[i];
}

static void scrub_answer(struct zsd_req *req, bool names)
{
    const struct zsd_scrub *s = req->daemon->core->scrub;
    Zp__ScrubReply reply = ZP__SCRUB_REPLY__INIT;
    char idle[] = "idle", *bad[BAD_MAX];

    reply.state = idle;
    reply.bad = bad;
    if (s)
        scrub_report(s, names, &reply);
    zsd_reply(req, &reply.base, -1);
}

ZSD_REQUEST(zsd_scrub, Scrub)
{
    struct zsd_core *core = req->daemon->core;
    bool may = zsd_admin(req->conn);
    struct zb_err err = { 0 };

    /* a scrub takes bandwidth from all users, and names their jobs */
    if (q->action != SCRUB_STATUS && !may)
        (void)zb_fail(&err, -EPERM, "only an administrator may start or stop a scrub");
    if (err.code != 0 || scrub_act(core, q, &err) < 0)
        zsd_reply_err(req, &err);
    else if (q->action == SCRUB_START && core->scrub->page == PAGE_LIST)
        core->scrub->starts = req;
    else
        scrub_answer(req, may);
}
