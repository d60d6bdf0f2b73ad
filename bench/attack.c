/*
 * attack.c - the attacks of `zbench hostile`, one function each: see attack.h.
 *
 * Each attack once slowed another job or made the daemon grow without bound, or closely resembles
 * one that did. A client that reads and trains as fast as it can is not an attacker: it gets its
 * share of the drive (bench_share.c).
 */
#include "bench/attack.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "bench/job.h"
#include "bench/raw.h"
#include "client/zclient.h"

#define ATTACK_CONNS   64u  /* of a flood */
#define ATTACK_HELLOS  200u /* connections that never complete a hello */
#define ATTACK_LEAVERS 8u   /* connections that leave their descriptors unread */
#define ATTACK_READERS 32u
#define ATTACK_HOLDERS 3u /* jobs whose definitions use up the daemon's limit */
#define ATTACK_IDS     1024u
#define ATTACK_TENSORS (1u << 17)
#define ATTACK_ELEMS   4096u /* of a unit that is trained */
#define ATTACK_BLOCK   UINT64_C(4096)
#define ATTACK_RANGES  (UINT64_C(1) << 18)
#define ATTACK_WINDOW  16u /* requests in a row; if the attack reads, also the most unanswered */
#define ATTACK_PAUSE   1   /* ms between attempts */

struct zbench_attacker {
    const char *socket;
    struct zbench_harm *harm;
    int fd; /* for telling the parent that the attack has begun; -1: told */
};

static void attack_pause(void)
{
    (void)poll(NULL, 0, ATTACK_PAUSE);
}

/* Counts n requests. The first ones tell the parent that the attack has begun. */
static void attack_did(struct zbench_attacker *a, uint64_t n)
{
    atomic_fetch_add(&a->harm->done, n);
    if (n > 0 && a->fd >= 0) {
        if (write(a->fd, "", 1) != 1)
            _exit(EXIT_FAILURE);
        a->fd = -1; /* not closed: its hangup tells the parent that we have ended */
    }
}

static void attack_answered(struct zbench_attacker *a, int rc)
{
    atomic_fetch_add(&a->harm->refused, rc < 0);
    attack_did(a, 1);
}

/* ---- floods: connections that repeat one request as fast as the daemon accepts it */

struct flood {
    unsigned conns, method;
    const ProtobufCMessage *message;
    bool reads; /* else answers are left unread */
};

static void flood_one(struct zbench_attacker *a, const struct flood *f, struct zbench_raw *r)
{
    unsigned refused = 0;
    int rc = 0;

    if (!r->stream && zbench_raw_open(r, a->socket, true) < 0)
        return;
    for (unsigned i = 0; i < ATTACK_WINDOW && (!f->reads || r->unanswered < ATTACK_WINDOW); i++) {
        rc = zbench_raw_send(r, f->method, f->message);
        if (rc < 0)
            break;
        attack_did(a, 1);
    }
    if (rc < 0 && rc != -EAGAIN)
        zbench_raw_close(r);
    else if (f->reads && zbench_raw_read(r, &refused) < 0)
        zbench_raw_close(r);
    atomic_fetch_add(&a->harm->refused, refused);
}

static void flood(struct zbench_attacker *a, const struct flood *f)
{
    static struct zbench_raw conns[ATTACK_CONNS];

    for (;;) {
        uint64_t before = atomic_load(&a->harm->done);

        for (unsigned i = 0; i < f->conns; i++)
            flood_one(a, f, &conns[i]);
        if (atomic_load(&a->harm->done) != before)
            continue;
        zbench_raw_poll(conns, f->conns, f->reads, 10);
        /* All are full of unread answers: closing them makes the daemon free the answers. */
        if (!f->reads)
            for (unsigned i = 0; i < f->conns; i++)
                zbench_raw_close(&conns[i]);
    }
}

static void releases(struct zbench_attacker *a)
{
    static uint64_t ids[ATTACK_IDS];
    Zp__Release q = ZP__RELEASE__INIT;

    for (uint64_t i = 0; i < ATTACK_IDS; i++)
        ids[i] = UINT64_MAX - i;
    q.n_shards = ATTACK_IDS;
    q.shards = ids;
    flood(a, &(struct flood){ .conns = 4, .method = ZP_RELEASE, .message = &q.base });
}

static void answers(struct zbench_attacker *a)
{
    Zp__Empty q = ZP__EMPTY__INIT;

    flood(a, &(struct flood){ .conns = ATTACK_CONNS, .method = ZP_STAT, .message = &q.base });
}

static void scans(struct zbench_attacker *a)
{
    Zp__Empty q = ZP__EMPTY__INIT;

    flood(a, &(struct flood){
                 .conns = ATTACK_CONNS, .method = ZP_FSCK, .message = &q.base, .reads = true });
}

/* ---- the other attacks */

static void hellos(struct zbench_attacker *a)
{
    static struct zbench_raw conns[ATTACK_HELLOS];

    for (;;) {
        for (unsigned i = 0; i < ATTACK_HELLOS; i++) {
            zbench_raw_close(&conns[i]);
            if (zbench_raw_open(&conns[i], a->socket, false) < 0)
                continue;
            attack_answered(a, write(zp_stream_fd(conns[i].stream), "Z", 1) == 1 ? 0 : -EPIPE);
        }
        attack_pause();
    }
}

/* Returns *c, reconnected if its connection was lost. */
static struct zc_client *attack_client(struct zbench_attacker *a, struct zc_client **c)
{
    while (!*c || zc_fd(*c) < 0 || zc_events(*c) == 0) {
        zc_close(*c);
        *c = NULL;
        if (zc_open(c, &(struct zc_options){ .socket = a->socket, .program = "zbench" }) < 0)
            attack_pause();
    }
    return *c;
}

static const struct zc_job_options attack_job = { .world = 1, .groups = 1, .staging_bytes = 65536 };

/* Opens a job, new or existing, and makes it ready. */
static int attack_train(struct zc_client *c, const char *name, bool durable, struct zc_job *ret)
{
    struct zc_job_options o = attack_job;
    const struct zc_range range = { .count = ATTACK_ELEMS };
    struct zc_placement placement;
    uint64_t shard;
    int rc;

    o.name = name;
    o.keep = true;
    o.durable = durable;
    rc = zc_job_open_wait(c, &o, ret);
    if (rc == -EEXIST) {
        o.attach = true;
        rc = zc_job_open_wait(c, &o, ret);
    }
    if (rc == 0)
        rc = zbench_unit(c, ret->id, 0, ATTACK_ELEMS, ZC_F32);
    if (rc == 0)
        rc = zc_register_wait(c, ret->id, &range, 1, &shard);
    if (rc == 0)
        rc = zc_ready_wait(c, ret->id, NULL, 0, &placement);
    if (rc == 0 && !o.attach) {
        memset(ret->staging, 0, ret->staging_bytes);
        rc = zc_write_wait(c, shard, ZC_MASTER, 0, ATTACK_ELEMS, ret->staging);
    }
    return rc;
}

/* Joins and leaves kept jobs, and never reads the descriptors. */
static void descriptors(struct zbench_attacker *a)
{
    static struct zbench_raw conns[ATTACK_LEAVERS];
    static char names[ATTACK_LEAVERS][16];
    uint64_t ids[ATTACK_LEAVERS] = { 0 };

    for (unsigned i = 0; i < ATTACK_LEAVERS; i++) {
        struct zc_client *c = NULL;
        struct zc_job job = { 0 };

        (void)snprintf(names[i], sizeof(names[i]), "leaver%u", i);
        if (attack_train(attack_client(a, &c), names[i], false, &job) == 0)
            ids[i] = job.id;
        zc_close(c);
    }
    for (;;) {
        uint64_t before = atomic_load(&a->harm->done);

        for (unsigned i = 0; i < ATTACK_LEAVERS; i++) {
            struct zbench_raw *r = &conns[i];
            Zp__JobOpen open = ZP__JOB_OPEN__INIT;
            Zp__JobRef close = ZP__JOB_REF__INIT;
            int rc = 0;

            open.name = names[i];
            open.keep = open.attach = true;
            open.world = open.groups = open.optimizer = 1;
            open.offload_param = open.offload_optimizer = ZC_NVME;
            open.staging_bytes = attack_job.staging_bytes;
            close.job = ids[i];
            if (!r->stream && zbench_raw_open(r, a->socket, true) < 0)
                continue;
            for (unsigned k = 0; k < ATTACK_WINDOW && rc == 0; k++) {
                rc = zbench_raw_send(r, ZP_JOB_OPEN, &open.base);
                if (rc == 0)
                    rc = zbench_raw_send(r, ZP_JOB_CLOSE, &close.base);
                attack_did(a, rc == 0);
            }
            if (rc < 0 && rc != -EAGAIN)
                zbench_raw_close(r);
        }
        if (atomic_load(&a->harm->done) != before)
            continue;
        zbench_raw_poll(conns, ATTACK_LEAVERS, false, 10);
        for (unsigned i = 0; i < ATTACK_LEAVERS; i++)
            zbench_raw_close(&conns[i]);
    }
}

/* Registers ranges of one unit, the last one first, up to the limit. */
static void registrations(struct zbench_attacker *a)
{
    static struct zc_range ranges[ATTACK_IDS];
    static uint64_t ids[ATTACK_IDS];
    struct zc_client *c = NULL;

    for (;;) {
        struct zc_job_options o = attack_job;
        struct zc_job job;
        uint64_t left = ATTACK_RANGES;
        int rc;

        o.name = "descending";
        rc = zc_job_open_wait(attack_client(a, &c), &o, &job);
        if (rc == 0)
            rc = zbench_unit(c, job.id, 0, ATTACK_RANGES * ATTACK_BLOCK, ZC_F32);
        while (rc == 0 && left > 0) {
            for (unsigned i = 0; i < ATTACK_IDS; i++)
                ranges[i] =
                    (struct zc_range){ .first = --left * ATTACK_BLOCK, .count = ATTACK_BLOCK };
            rc = zc_register_wait(c, job.id, ranges, ATTACK_IDS, ids);
            attack_answered(a, rc);
        }
        zc_close(c);
        c = NULL;
    }
}

/* Defines units of ATTACK_TENSORS tensors until the daemon refuses; then reopens the next job. */
static void definitions(struct zbench_attacker *a)
{
    struct zc_tensor *tensors = calloc(ATTACK_TENSORS, sizeof(*tensors));
    struct zc_client *c[ATTACK_HOLDERS] = { NULL };

    if (!tensors)
        _exit(EXIT_FAILURE);
    for (uint32_t i = 0; i < ATTACK_TENSORS; i++)
        tensors[i] = (struct zc_tensor){ .name = "t", .first = i, .ndims = 1, .dims = { 1 } };
    for (unsigned at = 0;; at = (at + 1) % ATTACK_HOLDERS) {
        struct zc_unit unit = { .name = "u",
                                .elems = ATTACK_TENSORS,
                                .dtype = ZC_F32,
                                .grad_dtype = ZC_F32,
                                .tensors = tensors,
                                .ntensors = ATTACK_TENSORS };
        struct zc_job_options o = attack_job;
        struct zc_job job;
        char name[24];
        int rc;

        (void)snprintf(name, sizeof(name), "holder%u", at);
        o.name = name;
        zc_close(c[at]);
        c[at] = NULL;
        rc = zc_job_open_wait(attack_client(a, &c[at]), &o, &job);
        for (; rc == 0; unit.index++) {
            rc = zc_unit_define_wait(c[at], job.id, &unit);
            attack_answered(a, rc);
        }
    }
}

/* Puts the largest notes, and skips a step, which stores them. */
static void notes(struct zbench_attacker *a)
{
    static uint8_t note[ZC_NOTE_MAX];
    struct zc_client *c = NULL;

    for (;;) {
        struct zc_job job;
        int rc = attack_train(attack_client(a, &c), "notes", false, &job);

        for (uint64_t step = job.iterations + 1; rc == 0; step++) {
            struct zc_stepped stepped;

            memset(note, (int)step & 0xff, sizeof(note));
            rc = zc_note_put_wait(c, job.id, true, note, sizeof(note));
            if (rc == 0)
                rc = zc_note_put_wait(c, job.id, false, note, sizeof(note));
            if (rc == 0)
                rc = zc_skip_wait(c, job.id, step, ZC_COMMIT_NO, 0, &stepped);
            attack_answered(a, rc);
        }
        zc_close(c);
        c = NULL;
        attack_pause();
    }
}

/* Makes a job with a commit. */
static int attack_saved(struct zbench_attacker *a, const char *name)
{
    struct zc_client *c = NULL;
    struct zc_stepped stepped;
    struct zc_job job;
    int rc = attack_train(attack_client(a, &c), name, true, &job);

    if (rc == 0)
        rc = zc_skip_wait(c, job.id, job.iterations + 1, ZC_COMMIT_STEP, 0, &stepped);
    zc_close(c);
    return rc;
}

/* Many readers of a commit that open, query and close, and read no page. */
static void readers(struct zbench_attacker *a)
{
    struct zc_client *c[ATTACK_READERS] = { NULL };
    struct zc_reader open[ATTACK_READERS] = { { 0 } };

    while (attack_saved(a, "read") < 0)
        attack_pause();
    for (unsigned i = 0;; i = (i + 1) % ATTACK_READERS) {
        struct zc_unit *unit = NULL;
        int rc = 0;

        if (open[i].id > 0)
            rc = zc_reader_close_wait(attack_client(a, &c[i]), open[i].id);
        open[i].id = 0;
        rc = zc_reader_open_wait(attack_client(a, &c[i]), "read", NULL, 1 << 20, &open[i]);
        if (rc == 0 && zc_reader_unit_wait(c[i], open[i].id, 0, &unit) == 0)
            zc_rows_free(unit);
        attack_answered(a, rc);
    }
}

/* Takes snapshots of one commit under new names; each is a change of the catalog. */
static void snapshots(struct zbench_attacker *a)
{
    struct zc_client *c = NULL;

    while (attack_saved(a, "kept") < 0)
        attack_pause();
    for (uint64_t i = 0;; i++) {
        struct zc_snapshot s = { .job = "kept", .retain = 8 };
        struct zc_snapshot_row row;
        char name[32];

        (void)snprintf(name, sizeof(name), "s%llu-%d", (unsigned long long)i, (int)getpid());
        s.name = name;
        attack_answered(a, zc_snapshot_wait(attack_client(a, &c), &s, &row));
    }
}

const struct zbench_attack zbench_attacks[] = {
    { "releases", "frames of 1,024 unknown ids", false, releases },
    { "answers", "requests whose answers are never read", false, answers },
    { "descriptors", "descriptors that are never received", false, descriptors },
    { "scans", "fscks", false, scans },
    { "hellos", "connections that send one byte", false, hellos },
    { "registrations", "requests of 1,024 ranges, descending", false, registrations },
    { "definitions", "units of 131,072 tensors", false, definitions },
    { "notes", "pairs of notes of 64 KiB", false, notes },
    { "readers", "readers", true, readers },
    { "snapshots", "snapshots", true, snapshots },
    { .name = NULL },
};

/* ---- the child */

struct attack_start {
    const struct zbench_attack *attack;
    struct zbench_attacker attacker;
};

static void attack_main(int fd, void *arg)
{
    struct attack_start *s = arg;

    s->attacker.fd = fd;
    s->attack->run(&s->attacker);
}

int zbench_attack_start(struct zbench_child *c, const struct zbench_attack *attack,
                        const char *socket, struct zbench_harm *harm, struct zb_err *err)
{
    struct attack_start s = { .attack = attack, .attacker = { .socket = socket, .harm = harm } };
    int rc = zbench_child_start(c, attack_main, &s, err);
    char byte;

    if (rc < 0)
        return rc;
    if (read(c->fd, &byte, 1) == 1)
        return 0;
    zbench_child_end(c);
    return zb_fail(err, -EPIPE, "the attack '%s' did not begin", attack->name);
}
