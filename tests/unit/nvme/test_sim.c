/*
 * The simulated device works as described, and repeatably; and SQLite on it keeps its promises,
 * wherever the power fails.
 *
 *     ZSHARD_SIM_VARIANTS   variants of damage at each power cut under SQLite (default 16; with a
 *                           sanitizer 4)
 */
#include "zn_test.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/crc.h"
#include "nvme/engine_priv.h"
#include "nvme/sim/sim_priv.h"
#include "nvme/sim/zn_sim.h"
#include "tests/alloc_fail.h"

#define FILE_BYTES (ZN_DATA_START + (UINT64_C(1) << 20))
#define AT         (ZN_DATA_START + UINT64_C(65536))

enum { LEN = 8192 };

static struct zn_sim *sim_new(uint64_t seed, bool record)
{
    struct zn_sim_options o = { .seed = seed, .record = record };
    struct zb_err err = { 0 };
    struct zn_sim *s;

    if (zn_sim_new(&s, &o, &err) < 0)
        fail_msg("%s", err.text);
    return s;
}

static struct zn_engine *sim_engine(struct zn_sim *s)
{
    struct zb_err err = { 0 };
    struct zn_engine *e;

    if (zn_sim_engine(&e, s, "data", FILE_BYTES, 0, &err) < 0)
        fail_msg("%s", err.text);
    return e;
}

static void fill(unsigned char *bytes, size_t len_bytes, uint64_t seed)
{
    for (size_t i = 0; i < len_bytes; i += 8) {
        uint64_t v = ztest_random(&seed);

        memcpy(bytes + i, &v, 8);
    }
}

/* ---- faults, one by one */

enum what { OLD, NEW, MIXED }; /* the bytes before, the bytes written, neither */

static enum what what_is(const unsigned char *got, const unsigned char *old,
                         const unsigned char *new)
{
    return memcmp(got, old, LEN) == 0 ? OLD : memcmp(got, new, LEN) == 0 ? NEW : MIXED;
}

static const struct {
    const char *name;
    enum zn_fault fault;
    enum zn_op op;
    int rc;
    bool strikes;
    enum what now, after; /* the file's contents now; and after a flush and a restart */
} fault_cases[] = {
    { "eio, write", ZN_FAULT_EIO, ZN_WRITE, -EIO, true, OLD, OLD },
    { "eio, read", ZN_FAULT_EIO, ZN_READ, -EIO, true, OLD, OLD },
    { "eio, flush", ZN_FAULT_EIO, ZN_FLUSH, -EIO, true, OLD, OLD },
    { "enospc, write", ZN_FAULT_ENOSPC, ZN_WRITE, -ENOSPC, true, OLD, OLD },
    { "enospc, read", ZN_FAULT_ENOSPC, ZN_READ, 0, false, OLD, OLD },
    { "short, write", ZN_FAULT_SHORT, ZN_WRITE, 0, true, NEW, NEW },
    { "short, read", ZN_FAULT_SHORT, ZN_READ, 0, true, OLD, OLD },
    { "flush, flush", ZN_FAULT_FLUSH, ZN_FLUSH, -EIO, true, OLD, OLD },
    { "flush, write", ZN_FAULT_FLUSH, ZN_WRITE, 0, false, NEW, NEW },
    { "lost, write", ZN_FAULT_LOST, ZN_WRITE, 0, true, OLD, OLD },
    { "lost, read", ZN_FAULT_LOST, ZN_READ, 0, false, OLD, OLD },
    { "misplace, write", ZN_FAULT_MISPLACE, ZN_WRITE, 0, true, OLD, OLD },
    { "stale, write", ZN_FAULT_STALE, ZN_WRITE, 0, true, NEW, OLD },
    { "flip, write", ZN_FAULT_FLIP, ZN_WRITE, 0, true, MIXED, MIXED },
    { "flip, read", ZN_FAULT_FLIP, ZN_READ, 0, true, OLD, OLD },
    { "delay, write", ZN_FAULT_DELAY, ZN_WRITE, 0, true, NEW, NEW },
    { "dead, write", ZN_FAULT_DEAD, ZN_WRITE, -EIO, true, OLD, OLD },
    { "dead, read", ZN_FAULT_DEAD, ZN_READ, -EIO, true, OLD, OLD },
    { "edquot, write", ZN_FAULT_EDQUOT, ZN_WRITE, -EDQUOT, true, OLD, OLD },
    { "edquot, read", ZN_FAULT_EDQUOT, ZN_READ, 0, false, OLD, OLD },
};

/* The number of different bits. */
static unsigned bits_between(const unsigned char *a, const unsigned char *b)
{
    unsigned bits = 0;

    for (unsigned i = 0; i < LEN; i++)
        bits += (unsigned)__builtin_popcount(a[i] ^ b[i]);
    return bits;
}

/* The offset of these bytes in the file; 0: they are not there. */
static uint64_t place_of(struct zn_sim *s, const unsigned char *bytes)
{
    static unsigned char got[LEN];

    for (uint64_t off = 0; off + LEN <= FILE_BYTES; off += 4096) {
        assert_int_equal(zn_sim_peek(s, "data", off, got, LEN), 0);
        if (memcmp(got, bytes, LEN) == 0)
            return off + 1;
    }
    return 0;
}

static void fault_run(size_t i, bool forever)
{
    static unsigned char old[LEN], new[LEN], got[LEN];
    unsigned char *buf = zn_test_memory(LEN);
    struct zn_sim *s = sim_new(i, false);
    struct zn_engine *e = sim_engine(s);
    const char *name = fault_cases[i].name;
    enum zn_fault fault = fault_cases[i].fault;
    enum zn_op op = fault_cases[i].op;
    int rc;

    fill(old, LEN, 1);
    fill(new, LEN, 2);
    memcpy(buf, old, LEN);
    assert_int_equal(zn_test_io(e, ZN_WRITE, buf, LEN, AT), 0);
    assert_int_equal(zn_test_io(e, ZN_FLUSH, NULL, 0, 0), 0);
    assert_int_equal(zn_sim_struck(s), 0);
    assert_int_equal(zn_sim_fault(s, fault, zn_sim_ops(s) + 1, forever), 0);
    assert_int_equal(zn_test_io(e, ZN_READ, buf, LEN, AT), 0); /* before its operation: no effect */
    assert_memory_equal(buf, old, LEN);
    memcpy(buf, op == ZN_READ ? old : new, LEN);
    rc = zn_test_io(e, op, buf, LEN, AT);
    if (rc != fault_cases[i].rc || (zn_sim_struck(s) > 0) != fault_cases[i].strikes)
        fail_msg("%s: %d, struck %u", name, rc, (unsigned)zn_sim_struck(s));
    if (op == ZN_READ && rc == 0 && bits_between(buf, old) != (fault == ZN_FAULT_FLIP ? 1 : 0))
        fail_msg("%s: what was read", name);
    assert_int_equal(zn_sim_peek(s, "data", AT, got, LEN), 0);
    if (what_is(got, old, new) != fault_cases[i].now)
        fail_msg("%s: what the file holds", name);
    if (fault_cases[i].now == MIXED)
        assert_int_equal(bits_between(got, new), 1);
    if (fault == ZN_FAULT_MISPLACE && (place_of(s, new) - 1) % 4096 != 0)
        fail_msg("%s: nowhere", name);
    if (fault == ZN_FAULT_SHORT)
        assert_true(zn_stats(e).short_transfers >= 1);
    rc = zn_test_io(e, ZN_READ, buf, LEN, AT);
    if (fault == ZN_FAULT_DEAD || (forever && fault == ZN_FAULT_EIO))
        assert_int_equal(rc, -EIO);
    else if (!forever)
        assert_int_equal(rc, 0); /* a fault that occurs once */
    if (fault != ZN_FAULT_STALE) /* its own flush makes nothing durable, then or later */
        zn_sim_faults_clear(s);
    (void)zn_test_io(e, ZN_WRITE, buf, LEN, AT + LEN); /* a neighbour does not make it durable */
    rc = zn_test_io(e, ZN_FLUSH, NULL, 0, 0);
    assert_int_equal(rc, fault == ZN_FAULT_DEAD ? -EIO : 0);
    zn_close(e);
    assert_int_equal(zn_sim_restart(s), 0);
    assert_int_equal(zn_sim_peek(s, "data", AT, got, LEN), 0);
    if (what_is(got, old, new) != fault_cases[i].after)
        fail_msg("%s: what the file holds after the restart", name);
    e = sim_engine(s); /* the device works again */
    assert_int_equal(zn_test_io(e, ZN_READ, buf, LEN, AT), 0);
    assert_memory_equal(buf, got, LEN);
    zn_close(e);
    zn_sim_free(s);
    free(buf);
}

static void sim_faults(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(fault_cases); i++) {
        fault_run(i, false);
        fault_run(i, true);
    }
    for (unsigned f = 0; f < ZN_FAULTS; f++) {
        assert_non_null(zn_fault_name((enum zn_fault)f));
        for (unsigned g = 0; g < f; g++)
            assert_string_not_equal(zn_fault_name((enum zn_fault)f),
                                    zn_fault_name((enum zn_fault)g));
    }
}

/* ---- what a flush covers, and what a power cut leaves */

/* Which of the files have their bytes, as bits. */
static unsigned files_there(struct zn_sim *s)
{
    static const char *const names[] = { "a", "b" };
    unsigned char got[LEN], want[LEN];
    unsigned there = 0;

    for (unsigned i = 0; i < ZB_COUNT(names); i++) {
        fill(want, LEN, i + 1);
        if (zn_sim_peek(s, names[i], 0, got, LEN) == 0 && memcmp(got, want, LEN) == 0)
            there |= 1u << i;
    }
    return there;
}

static void op(struct zn_sim *s, enum sim_kind kind, unsigned file, uint64_t off, const void *bytes,
               size_t len)
{
    struct sim_op o = { .kind = kind, .file = file, .off = off, .bytes = bytes, .len = len };
    ssize_t rc = sim_do(s, &o);

    assert_int_equal(rc, kind == SIM_WRITE ? len : 0);
}

/* A flush covers one file, including its creation and its length. */
static void sim_flush_of_a_file(void **state)
{
    (void)state;
    for (unsigned flushed = 0; flushed < 4; flushed++) {
        struct zn_sim *s = sim_new(3, false);
        unsigned char bytes[LEN];
        unsigned files[2];

        for (unsigned i = 0; i < 2; i++) {
            files[i] = (unsigned)sim_file(s, i == 0 ? "a" : "b");
            op(s, SIM_CREATE, files[i], 0, NULL, 0);
            fill(bytes, LEN, i + 1);
            op(s, SIM_WRITE, files[i], 0, bytes, LEN);
        }
        for (unsigned i = 0; i < 2; i++) {
            if (flushed & 1u << i)
                op(s, SIM_FLUSH, files[i], 0, NULL, 0);
        }
        assert_int_equal(files_there(s), 3);
        zn_sim_cut(s, 0, 0);
        assert_int_equal(zn_sim_restart(s), 0);
        assert_int_equal(files_there(s), flushed);
        for (unsigned i = 0; i < 2; i++)
            assert_int_equal(zn_sim_size(s, i == 0 ? "a" : "b"), flushed & 1u << i ? LEN : -ENOENT);
        zn_sim_free(s);
    }
}

/* A deletion is not durable before a flush, and the bytes of a new file never get into the old
 * one. */
static void sim_names(void **state)
{
    unsigned seen = 0;

    (void)state;
    for (uint32_t variant = 0; variant < 200; variant++) {
        struct zn_sim *s = sim_new(4, false);
        unsigned file = (unsigned)sim_file(s, "journal");
        unsigned char old[LEN], new[LEN], got[LEN];
        int64_t size;

        fill(old, LEN, 1);
        fill(new, LEN, 2);
        op(s, SIM_CREATE, file, 0, NULL, 0);
        op(s, SIM_WRITE, file, 0, old, LEN);
        op(s, SIM_FLUSH, file, 0, NULL, 0);
        op(s, SIM_DELETE, file, 0, NULL, 0);
        op(s, SIM_CREATE, file, 0, NULL, 0);
        op(s, SIM_WRITE, file, 0, new, LEN);
        zn_sim_cut(s, zn_sim_ops(s), variant);
        assert_int_equal(zn_sim_restart(s), 0);
        size = zn_sim_size(s, "journal");
        if (size == LEN && zn_sim_peek(s, "journal", 0, got, LEN) == 0) {
            if (memcmp(got, old, LEN) == 0) {
                seen |= 1; /* the deletion was lost, and the new file with it */
            } else {
                seen |= memcmp(got, new, LEN) == 0 ? 2 : 4;
                for (unsigned i = 0; i < LEN; i++) /* torn: zeros where nothing was written */
                    assert_true(got[i] == new[i] || got[i] == 0);
            }
        } else {
            seen |= size == -ENOENT ? 8 : 16;
        }
        if (variant == 0)
            assert_int_equal(seen, 1);
        if (variant == 1)
            assert_int_equal(seen, 1 | 2);
        zn_sim_free(s);
    }
    assert_int_equal(seen, 31);
}

/* A write that was never flushed does not reach a new file of the same name, although the deletion
 * between them was. */
static void sim_names_again(void **state)
{
    struct zn_sim *s = sim_new(5, false);
    unsigned file = (unsigned)sim_file(s, "a");
    unsigned char old[LEN], new[LEN], got[LEN];

    (void)state;
    fill(old, LEN, 1);
    fill(new, LEN, 2);
    op(s, SIM_CREATE, file, 0, NULL, 0);
    op(s, SIM_WRITE, file, LEN, old, LEN);
    op(s, SIM_DELETE, file, 0, NULL, 0);
    op(s, SIM_CREATE, file, 0, NULL, 0);
    op(s, SIM_FLUSH_NAMES, file, 0, NULL, 0);
    op(s, SIM_WRITE, file, 0, new, LEN);
    op(s, SIM_FLUSH, file, 0, NULL, 0);
    zn_sim_cut(s, zn_sim_ops(s), 0);
    assert_int_equal(zn_sim_restart(s), 0);
    assert_int_equal(zn_sim_size(s, "a"), LEN);
    assert_int_equal(zn_sim_peek(s, "a", 0, got, LEN), 0);
    assert_memory_equal(got, new, LEN);
    zn_sim_free(s);
}

enum { WRITES = 24, SECTORS = LEN / 512 };

/* Which sectors of each write are there; 0xffff: all of them. */
static void cut_run(uint64_t seed, uint32_t variant, unsigned sectors[WRITES])
{
    struct zn_sim *s = sim_new(seed, false);
    unsigned file = (unsigned)sim_file(s, "a");
    unsigned char bytes[LEN];

    fill(bytes, LEN, 5);
    op(s, SIM_CREATE, file, 0, NULL, 0);
    op(s, SIM_RESIZE, file, WRITES * LEN, NULL, 0);
    op(s, SIM_FLUSH, file, 0, NULL, 0);
    for (unsigned i = 0; i < WRITES - 1; i++)
        op(s, SIM_WRITE, file, (uint64_t)i * LEN, bytes, LEN);
    zn_sim_cut(s, zn_sim_ops(s), variant);
    {
        struct sim_op last = {
            .kind = SIM_WRITE, .file = file, .off = (WRITES - 1) * LEN, .bytes = bytes, .len = LEN
        };

        assert_int_equal(sim_do(s, &last), -EIO);
        assert_int_equal(sim_do(s, &last), -EIO); /* no effect of this one */
    }
    assert_int_equal(zn_sim_restart(s), 0);
    for (unsigned i = 0; i < WRITES; i++) {
        static const unsigned char zeros[512];
        unsigned char got[LEN];

        assert_int_equal(zn_sim_peek(s, "a", (uint64_t)i * LEN, got, LEN), 0);
        sectors[i] = 0;
        for (unsigned j = 0; j < SECTORS; j++) {
            const unsigned char *sector = got + (size_t)j * 512;

            if (memcmp(sector, bytes + (size_t)j * 512, 512) == 0)
                sectors[i] |= 1u << j;
            else
                assert_memory_equal(sector, zeros, 512); /* whole sectors, or nothing */
        }
    }
    zn_sim_free(s);
}

static void sim_cut_variants(void **state)
{
    const unsigned all = (1u << SECTORS) - 1;
    unsigned torn = 0, last_torn = 0, holes = 0, prefixes = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        unsigned got[WRITES];

        cut_run(seed, 0, got);
        for (unsigned i = 0; i < WRITES; i++)
            assert_int_equal(got[i], 0);
        cut_run(seed, 1, got);
        for (unsigned i = 0; i < WRITES; i++)
            assert_int_equal(got[i], all);
        cut_run(seed, 2, got);
        for (unsigned i = 0; i < WRITES; i++) {
            assert_true(got[i] == 0 || got[i] == all);
            assert_true(i == 0 || got[i] <= got[i - 1]);
            prefixes |= got[i] > 0 ? 1u << i : 0;
        }
        cut_run(seed, 3 + (uint32_t)seed, got);
        for (unsigned i = 0; i < WRITES; i++) {
            bool is_torn = got[i] != 0 && got[i] != all;

            torn += is_torn;
            last_torn += is_torn && i == WRITES - 1;
            holes += i > 0 && got[i] == all && got[i - 1] == 0;
        }
    }
    assert_true(torn > 50 && last_torn > 0 && holes > 50 && prefixes > 1);
}

static uint32_t sim_hash(const struct zn_sim *s)
{
    static const char *const names[] = { "data", "db", "db-journal", "db-wal", "other" };
    static unsigned char bytes[2 * FILE_BYTES];
    uint32_t crc = 0;

    for (unsigned i = 0; i < ZB_COUNT(names); i++) {
        int64_t size = zn_sim_size(s, names[i]);

        crc = zb_crc32c(crc, &size, sizeof(size));
        if (size <= 0)
            continue;
        assert_true((size_t)size <= sizeof(bytes));
        assert_int_equal(zn_sim_peek(s, names[i], 0, bytes, (size_t)size), 0);
        crc = zb_crc32c(crc, bytes, (size_t)size);
    }
    return crc;
}

/* A failed flush: some writes never become durable, and later flushes report success. */
static void sim_flush_forgets(void **state)
{
    unsigned there = 0, lost = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct zn_sim *s = sim_new(seed, true), *made;
        unsigned file = (unsigned)sim_file(s, "other");
        struct sim_op flush = { .kind = SIM_FLUSH, .file = file };
        unsigned char bytes[LEN], got[LEN];

        fill(bytes, LEN, 6);
        op(s, SIM_CREATE, file, 0, NULL, 0);
        op(s, SIM_FLUSH, file, 0, NULL, 0);
        for (unsigned i = 0; i < 10; i++)
            op(s, SIM_WRITE, file, (uint64_t)i * LEN, bytes, LEN);
        assert_int_equal(zn_sim_fault(s, ZN_FAULT_FLUSH, 0, false), 0);
        assert_int_equal(sim_do(s, &flush), -EIO);
        if (seed % 2 == 0)
            assert_int_equal(sim_do(s, &flush), 0);
        for (unsigned i = 0; i < 10; i++) { /* the cache still has them */
            assert_int_equal(zn_sim_peek(s, "other", (uint64_t)i * LEN, got, LEN), 0);
            assert_memory_equal(got, bytes, LEN);
        }
        assert_int_equal(zn_sim_cut_at(&made, s, zn_sim_ops(s), 1, NULL), 0);
        zn_sim_cut(s, 0, 1);
        assert_int_equal(zn_sim_restart(s), 0);
        assert_int_equal(sim_hash(made), sim_hash(s));
        zn_sim_free(made);
        for (unsigned i = 0; i < 10; i++) {
            bool is = zn_sim_peek(s, "other", (uint64_t)i * LEN, got, LEN) == 0 &&
                      memcmp(got, bytes, LEN) == 0;

            there += is;
            lost += !is;
        }
        zn_sim_free(s);
    }
    assert_true(there > 50 && lost > 50);
}

/* ---- repeatability */

static int sql(sqlite3 *db, const char *text)
{
    return sqlite3_exec(db, text, NULL, NULL, NULL);
}

/* The completions, in order, with their results. */
struct trace {
    uint32_t crc;
    unsigned failed;
};

struct traced {
    struct zn_io io;
    struct trace *trace;
    uint32_t number;
};

static void traced_done(struct zn_io *io, int rc)
{
    struct traced *t = zb_container_of(io, struct traced, io);
    uint32_t what[2] = { t->number, (uint32_t)rc };

    t->trace->crc = zb_crc32c(t->trace->crc, what, sizeof(what));
    t->trace->failed += rc != 0;
}

enum { WORK_IOS = 8, WORK_ROUNDS = 6 };

static void work_engine(struct zn_sim *s, struct trace *trace, uint64_t seed)
{
    unsigned char *bufs = zn_test_memory((size_t)WORK_IOS * LEN);
    struct traced t[WORK_IOS];
    struct zn_engine *e;

    if (zn_sim_engine(&e, s, "data", FILE_BYTES, 0, NULL) < 0) {
        free(bufs);
        return;
    }
    for (unsigned round = 0; round < WORK_ROUNDS; round++) {
        for (unsigned i = 0; i < WORK_IOS; i++) {
            uint64_t drawn = ztest_random(&seed);

            t[i] = (struct traced){ .io = { .op = drawn % 8 == 0   ? ZN_READ
                                                  : drawn % 8 == 1 ? ZN_FLUSH
                                                                   : ZN_WRITE,
                                            .buf = bufs + (size_t)i * LEN,
                                            .len_bytes = 512 * (1 + drawn / 8 % SECTORS),
                                            .off_bytes = ZN_DATA_START + 512 * (drawn / 256 % 500),
                                            .done = traced_done },
                                    .trace = trace,
                                    .number = i };
            fill(t[i].io.buf, LEN, drawn);
            assert_int_equal(zn_submit(e, &t[i].io), 0);
        }
        zn_test_drain(e);
    }
    zn_close(e);
    free(bufs);
}

static void work_sql(struct zn_sim *s, const char *journal)
{
    const char *vfs;
    sqlite3 *db;

    assert_int_equal(zn_sim_vfs(s, &vfs, NULL), 0);
    if (sqlite3_open_v2("db", &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, vfs) == SQLITE_OK) {
        (void)sql(db, "PRAGMA locking_mode=EXCLUSIVE");
        (void)sql(db, journal);
        (void)sql(db, "CREATE TABLE t(v)");
        for (int i = 0; i < 3; i++)
            (void)sql(db, "INSERT INTO t VALUES(zeroblob(3000))");
    }
    (void)sqlite3_close(db);
}

static struct trace work(struct zn_sim *s)
{
    struct trace trace = { 0 };

    work_engine(s, &trace, 7);
    work_sql(s, "PRAGMA journal_mode=DELETE");
    work_engine(s, &trace, 8);
    work_sql(s, "PRAGMA journal_mode=WAL");
    return trace;
}

static void sim_same_again(void **state)
{
    uint32_t others = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 8; seed++) {
        struct trace traces[2];
        uint32_t hashes[2];
        uint64_t ops[2];

        for (unsigned i = 0; i < 2; i++) {
            struct zn_sim *s = sim_new(seed, false);

            if (seed >= 4) { /* random faults, too */
                assert_int_equal(zn_sim_fault(s, ZN_FAULT_SHORT, 20, true), 0);
                assert_int_equal(zn_sim_fault(s, ZN_FAULT_FLIP, 50, false), 0);
                assert_int_equal(zn_sim_fault(s, ZN_FAULT_MISPLACE, 60, false), 0);
                assert_int_equal(zn_sim_fault(s, ZN_FAULT_FLUSH, 70, false), 0);
                assert_int_equal(zn_sim_fault(s, ZN_FAULT_DELAY, 30, true), 0);
            }
            traces[i] = work(s);
            ops[i] = zn_sim_ops(s);
            assert_int_equal(zn_sim_restart(s), 0);
            hashes[i] = sim_hash(s);
            zn_sim_free(s);
        }
        assert_int_equal(traces[0].crc, traces[1].crc);
        assert_int_equal(hashes[0], hashes[1]);
        assert_int_equal(ops[0], ops[1]);
        assert_true(traces[0].crc != others); /* another seed gives another order */
        others = traces[0].crc;
    }
}

/* ---- recordings */

static const uint32_t cut_variants[] = { 0, 1, 2, 3, 11 };

/* A device made from the recording at an operation equals one whose power failed there. */
static void sim_cut_at_is_a_cut(void **state)
{
    struct zn_sim *recorded = sim_new(9, true);
    uint32_t before;
    uint64_t ops;

    (void)state;
    (void)work(recorded);
    ops = zn_sim_ops(recorded);
    before = sim_hash(recorded);
    assert_true(ops > 200);
    for (uint64_t n = 0; n <= ops; n++) {
        for (unsigned v = 0; v < ZB_COUNT(cut_variants); v++) {
            struct zn_sim *real = sim_new(9, false), *made, *copy;
            uint32_t want;

            zn_sim_cut(real, n, cut_variants[v]);
            (void)work(real);
            assert_int_equal(zn_sim_copy(&copy, real, NULL), 0);
            assert_int_equal(zn_sim_restart(real), 0);
            want = sim_hash(real);
            assert_int_equal(zn_sim_cut_at(&made, recorded, n, cut_variants[v], NULL), 0);
            if (sim_hash(made) != want)
                fail_msg("operation %u of %u, variant %u", (unsigned)n, (unsigned)ops,
                         cut_variants[v]);
            assert_true(zn_sim_ops(made) == n + 1);
            zn_sim_free(made);
            zn_sim_free(real);
            zn_sim_free(copy);
        }
    }
    assert_int_equal(sim_hash(recorded), before);
    zn_sim_free(recorded);
}

/* ---- order */

enum { ORDER_IOS = 8 };

struct ordered {
    struct zn_io io;
    unsigned place, *next;
};

static void ordered_done(struct zn_io *io, int rc)
{
    struct ordered *o = zb_container_of(io, struct ordered, io);

    assert_int_equal(rc, 0);
    o->place = (*o->next)++;
}

/* Eight reads at a time: records their order of completion; returns the largest number that one
 * zn_reap() handled. */
static unsigned order_run(const struct zn_sim_options *options, bool late,
                          unsigned places[ORDER_IOS])
{
    unsigned char *buf = zn_test_memory((size_t)ORDER_IOS * 512);
    struct ordered o[ORDER_IOS];
    unsigned next = 0, most = 0;
    struct zn_engine *e;
    struct zn_sim *s;

    assert_int_equal(zn_sim_new(&s, options, NULL), 0);
    e = sim_engine(s);
    if (late)
        assert_int_equal(zn_sim_fault(s, ZN_FAULT_DELAY, zn_sim_ops(s), false), 0);
    for (unsigned i = 0; i < ORDER_IOS; i++) {
        o[i] = (struct ordered){ .io = { .op = ZN_READ,
                                         .buf = buf + (size_t)i * 512,
                                         .len_bytes = 512,
                                         .off_bytes = ZN_DATA_START,
                                         .done = ordered_done },
                                 .next = &next };
        assert_int_equal(zn_submit(e, &o[i].io), 0);
    }
    zn_kick(e);
    while (next < ORDER_IOS) {
        unsigned n;

        assert_true(zn_test_wait(e)); /* the rest was announced */
        n = zn_reap(e, 64);
        most = n > most ? n : most;
    }
    for (unsigned i = 0; i < ORDER_IOS; i++)
        places[i] = o[i].place;
    zn_close(e);
    zn_sim_free(s);
    free(buf);
    return most;
}

static void sim_order(void **state)
{
    unsigned plain[ORDER_IOS], again[ORDER_IOS], late[ORDER_IOS], different = 0, batches = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct zn_sim_options o = { .seed = seed };
        unsigned first = 0;

        batches |= 1u << order_run(&o, false, plain);
        (void)order_run(&o, false, again);
        assert_memory_equal(plain, again, sizeof(plain));
        (void)order_run(&o, true, late);
        while (plain[first] != 0)
            first++;
        assert_int_equal(late[first], ORDER_IOS - 1); /* the first is reported last */
        for (unsigned i = 0; i < ORDER_IOS; i++)
            different += plain[i] != i;
        o.batch = 3;
        assert_int_equal(order_run(&o, false, again), 3);
    }
    assert_true(different > 60);
    assert_true((batches & (batches - 1)) != 0); /* batches vary in size */
}

/* ---- the clock */

struct paced {
    struct zn_io io;
    struct zn_engine *e;
    unsigned *left;
};

static void paced_done(struct zn_io *io, int rc)
{
    struct paced *p = zb_container_of(io, struct paced, io);

    assert_int_equal(rc, 0);
    if (*p->left > 0 && --*p->left > 0)
        (void)zn_submit(p->e, io);
}

static const struct {
    const char *name;
    uint64_t rate_bytes, latency_ns;
    unsigned engines, depth, len_bytes, count; /* requests of each engine beyond the first depth */
    double want_s;
} paced_cases[] = {
    { "1 GB/s", 1000000000, 80000, 1, 16, 1 << 20, 300, 0.3303 },
    { "10 GB/s", 10000000000, 80000, 1, 32, 4 << 20, 250, 0.11786 },
    { "1 GB/s for two", 1000000000, 0, 2, 8, 1 << 20, 100, 0.2244 },
    { "by latency", 1000000000, 10000000, 1, 1, 4096, 20, 0.2 },
};

/* Measures the seconds that it takes. */
static double paced_run(size_t c)
{
    struct zn_sim_options o = { .rate_bytes = paced_cases[c].rate_bytes,
                                .latency_ns = paced_cases[c].latency_ns,
                                .discard = true };
    unsigned depth = paced_cases[c].depth, engines = paced_cases[c].engines, left[2], busy;
    size_t len = paced_cases[c].len_bytes;
    unsigned char *buf = zn_test_memory(len);
    struct zn_engine *e[2];
    struct paced p[2][32];
    struct zn_sim *s;
    uint64_t begin_ns;
    double took_s;

    assert_int_equal(zn_sim_new(&s, &o, NULL), 0);
    for (unsigned j = 0; j < engines; j++) {
        assert_int_equal(
            zn_sim_engine(&e[j], s, j == 0 ? "data" : "other", UINT64_C(1) << 40, 0, NULL), 0);
        left[j] = paced_cases[c].count;
    }
    memset(buf, 0x5a, len);
    begin_ns = zb_now_ns();
    for (unsigned j = 0; j < engines; j++) {
        for (unsigned i = 0; i < depth; i++) {
            p[j][i] = (struct paced){ .io = { .op = i % 2 ? ZN_READ : ZN_WRITE,
                                              .buf = buf,
                                              .len_bytes = (uint32_t)len,
                                              .off_bytes = ZN_DATA_START + i * len,
                                              .done = paced_done },
                                      .e = e[j],
                                      .left = &left[j] };
            assert_int_equal(zn_submit(e[j], &p[j][i].io), 0);
        }
        zn_kick(e[j]);
    }
    do {
        struct pollfd fds[2];

        busy = 0;
        for (unsigned j = 0; j < engines; j++)
            fds[j] = (struct pollfd){ .fd = zn_wake_fd(e[j]), .events = POLLIN };
        assert_true(poll(fds, engines, ZN_TEST_WAIT_MS) > 0);
        for (unsigned j = 0; j < engines; j++) {
            eventfd_t n;

            if (fds[j].revents)
                (void)eventfd_read(fds[j].fd, &n);
            (void)zn_reap(e[j], 64);
            zn_kick(e[j]);
            busy += zn_stats(e[j]).inflight;
        }
    } while (busy > 0);
    took_s = (double)(zb_now_ns() - begin_ns) / 1e9;
    assert_int_equal(buf[0], 0x5a); /* nothing was transferred */
    for (unsigned j = 0; j < engines; j++)
        zn_close(e[j]);
    zn_sim_free(s);
    free(buf);
    return took_s;
}

#define PACED_LATE 3.0

/* The rate itself: the times at which requests are due, which no load of the machine changes. */
static void sim_due_times(void **state)
{
    (void)state;
    for (size_t c = 0; c < ZB_COUNT(paced_cases); c++) {
        struct zn_sim_options o = { .rate_bytes = paced_cases[c].rate_bytes,
                                    .latency_ns = paced_cases[c].latency_ns };
        uint64_t len = paced_cases[c].len_bytes, first_ns, due_ns = 0;
        uint64_t each_ns = len * 1000000000 / o.rate_bytes;
        unsigned n = 64;
        struct zn_sim *s;

        assert_int_equal(zn_sim_new(&s, &o, NULL), 0);
        first_ns = zb_now_ns();
        for (unsigned i = 0; i < n; i++) {
            uint64_t before_ns = zb_now_ns(), was_ns = due_ns;

            due_ns = sim_due_ns(s, len);
            assert_true(due_ns >= before_ns + zb_max_u64(o.latency_ns, each_ns));
            assert_true(due_ns >= was_ns);           /* first in, first out */
            if (was_ns > zb_now_ns() + o.latency_ns) /* the device was busy all the time */
                assert_int_equal(due_ns - was_ns, each_ns);
        }
        assert_true(due_ns >= first_ns + (n - 1) * each_ns);
        assert_true(due_ns <= zb_now_ns() + n * each_ns + o.latency_ns); /* it starts at once */
        zn_sim_free(s);
    }
}

/* The engine keeps these times: never early, and late only by the wake-ups of a busy machine, which
 * a test cannot bound closely. */
static void sim_fixed_rate(void **state)
{
    (void)state;
    for (size_t c = 0; c < ZB_COUNT(paced_cases); c++) {
        double want_s = paced_cases[c].want_s, best = 0;
        double most_s = want_s * PACED_LATE;

        for (int tries = 0; tries < 10 && (best == 0 || best > most_s); tries++) {
            double took_s = paced_run(c);

            assert_true(took_s > 0.99 * want_s);
            best = best == 0 || took_s < best ? took_s : best;
        }
        print_message("%s: %.4f of the configured rate\n", paced_cases[c].name, want_s / best);
        if (best > most_s)
            fail_msg("%s: %.4f s instead of %.4f", paced_cases[c].name, best, want_s);
    }
}

/* ---- refusals */

static void sim_refusals(void **state)
{
    struct zn_sim *s = sim_new(1, true), *copy;
    struct zn_engine *e = sim_engine(s), *second = NULL;
    struct zb_err err = { 0 };
    unsigned char byte = 7;
    uint8_t uuid[16];

    (void)state;
    memcpy(uuid, e->file.super.uuid, sizeof(uuid));
    assert_int_equal(zn_sim_engine(&second, s, "data", FILE_BYTES, 0, &err), -EBUSY);
    assert_string_equal(err.text, "simulated file 'data' is in use by another engine");
    zn_close(e);
    assert_int_equal(zn_sim_engine(&e, s, "data", FILE_BYTES - 4096, 0, NULL), -EINVAL);
    assert_int_equal(zn_sim_engine(&e, s, "data", FILE_BYTES + 4096, 0, NULL), 0); /* grows */
    assert_memory_equal(e->file.super.uuid, uuid, sizeof(uuid));
    zn_close(e);
    assert_int_equal(zn_sim_size(s, "data"), FILE_BYTES + 4096);
    assert_int_equal(zn_sim_size(s, "none"), -ENOENT);
    assert_int_equal(zn_sim_peek(s, "none", 0, &byte, 1), -ENOENT);
    assert_int_equal(zn_sim_poke(s, "none", 0, &byte, 1), -ENOENT);
    assert_int_equal(zn_sim_peek(s, "data", FILE_BYTES + 4096, &byte, 1), -ERANGE);
    assert_int_equal(zn_sim_poke(s, "data", UINT64_MAX, &byte, 1), -ERANGE);
    assert_int_equal(zn_sim_fault(s, ZN_FAULTS, 0, false), -EINVAL);
    assert_int_equal(zn_sim_cut_at(&copy, s, zn_sim_ops(s) + 1, 0, NULL), -EINVAL);
    assert_int_equal(zn_sim_poke(s, "data", 4, "?", 1), 0); /* the damage is also in copies */
    assert_int_equal(zn_sim_cut_at(&copy, s, zn_sim_ops(s), 0, NULL), 0);
    assert_int_equal(zn_sim_engine(&e, copy, "data", FILE_BYTES + 4096, 0, NULL), -EMEDIUMTYPE);
    zn_sim_free(copy);
    zn_sim_free(s);
    s = sim_new(1, false);
    assert_int_equal(zn_sim_cut_at(&copy, s, 0, 0, &err), -EINVAL); /* it was not recorded */
    zn_sim_free(s);
    zn_sim_free(NULL);
}

/* A copy is independent of the original. */
static void sim_copies(void **state)
{
    struct zn_sim *s = sim_new(2, false), *copy;
    unsigned file = (unsigned)sim_file(s, "a");
    unsigned char one[LEN], two[LEN], got[LEN];

    (void)state;
    fill(one, LEN, 1);
    fill(two, LEN, 2);
    op(s, SIM_CREATE, file, 0, NULL, 0);
    op(s, SIM_WRITE, file, 0, one, LEN);
    op(s, SIM_FLUSH, file, 0, NULL, 0);
    op(s, SIM_WRITE, file, LEN, one, LEN);
    assert_int_equal(zn_sim_copy(&copy, s, NULL), 0);
    op(s, SIM_WRITE, file, 0, two, LEN);
    assert_int_equal(zn_sim_peek(copy, "a", 0, got, LEN), 0);
    assert_memory_equal(got, one, LEN);
    assert_int_equal(zn_sim_peek(copy, "a", LEN, got, LEN), 0);
    assert_memory_equal(got, one, LEN);
    zn_sim_cut(copy, 0, 0); /* its cache was copied as a cache */
    assert_int_equal(zn_sim_restart(copy), 0);
    assert_int_equal(zn_sim_size(copy, "a"), LEN);
    assert_int_equal(zn_sim_size(s, "a"), 2 * LEN);
    zn_sim_free(s);
    assert_int_equal(zn_sim_peek(copy, "a", 0, got, LEN), 0);
    assert_memory_equal(got, one, LEN);
    zn_sim_free(copy);
}

/* ---- several threads on one device */

enum { CROWD = 3, CROWD_ROUNDS = 100 };

struct crowd {
    struct zn_sim *s;
    unsigned number;
    int rc;
};

/* Has an engine of its own, and makes copies of the device while the others write. */
static void *crowd_thread(void *arg)
{
    struct crowd *c = arg;
    char name[8] = { (char)('0' + c->number), 0 };
    unsigned char *buf = malloc(LEN + 4096);
    unsigned char *at = (unsigned char *)zb_round_up((uintptr_t)buf, 4096);
    struct zn_engine *e;

    c->rc = zn_sim_engine(&e, c->s, name, FILE_BYTES, 0, NULL);
    for (unsigned i = 0; c->rc == 0 && i < CROWD_ROUNDS; i++) {
        struct trace trace = { 0 };
        struct traced t = { .io = { .op = i % 5 == 4 ? ZN_FLUSH : ZN_WRITE,
                                    .buf = at,
                                    .len_bytes = LEN,
                                    .off_bytes = AT + (uint64_t)i * LEN % 65536,
                                    .done = traced_done },
                            .trace = &trace };
        struct zn_sim *copy;

        fill(at, LEN, i);
        c->rc = zn_submit(e, &t.io);
        while (c->rc == 0 && zn_stats(e).inflight > 0) {
            zn_kick(e);
            (void)zn_reap(e, 1);
        }
        if (c->rc == 0)
            c->rc = trace.failed ? -EIO : zn_sim_cut_at(&copy, c->s, i, i, NULL);
        if (c->rc == 0)
            zn_sim_free(copy);
    }
    if (c->rc == 0)
        zn_close(e);
    free(buf);
    return NULL;
}

static void sim_threads(void **state)
{
    struct zn_sim *s = sim_new(5, true);
    struct crowd c[CROWD];
    pthread_t threads[CROWD];

    (void)state;
    for (unsigned i = 0; i < CROWD; i++) {
        c[i] = (struct crowd){ .s = s, .number = i };
        assert_int_equal(pthread_create(&threads[i], NULL, crowd_thread, &c[i]), 0);
    }
    for (unsigned i = 0; i < CROWD; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(c[i].rc, 0);
    }
    zn_sim_free(s);
}

/* ---- the cost of a campaign */

/* A few MiB in two files, a few hundred operations, and one device for each operation. */
static void sim_cut_cost(void **state)
{
    enum { PAGE = 16384, PAGES = 192, ROUNDS = 10, EACH = 24 };
    static unsigned char bytes[PAGE];
    struct zn_sim *s = sim_new(6, true);
    unsigned files[2] = { (unsigned)sim_file(s, "a"), (unsigned)sim_file(s, "b") };
    uint64_t seed = 1, begin_ns, count = 0;
    double us;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        op(s, SIM_CREATE, files[i], 0, NULL, 0);
        for (unsigned page = 0; page < PAGES; page++) {
            fill(bytes, PAGE, page);
            op(s, SIM_WRITE, files[i], (uint64_t)page * PAGE, bytes, PAGE);
        }
        op(s, SIM_FLUSH, files[i], 0, NULL, 0);
    }
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < EACH; i++)
            op(s, SIM_WRITE, files[i % 2], ztest_random(&seed) % PAGES * PAGE, bytes, PAGE);
        op(s, SIM_FLUSH, files[0], 0, NULL, 0);
        op(s, SIM_FLUSH, files[1], 0, NULL, 0);
    }
    begin_ns = zb_now_ns();
    for (uint64_t n = 2 * (PAGES + 2); n < zn_sim_ops(s); n++) {
        for (uint32_t v = 0; v < 8; v++) {
            struct zn_sim *cut;

            assert_int_equal(zn_sim_cut_at(&cut, s, n, v, NULL), 0);
            zn_sim_free(cut);
            count++;
        }
    }
    us = (double)(zb_now_ns() - begin_ns) / 1e3 / (double)count;
    print_message("%.0f us for a device after a power cut\n", us);
    assert_true(us < 10000);
    zn_sim_free(s);
}

/* ---- a full cache, and allocation failures */

static void sim_full_cache(void **state)
{
    enum { BIG = 16 << 20 };
    const unsigned enough = (unsigned)(SIM_CACHE_BYTES / BIG) + 1;
    unsigned char *bytes = zn_test_memory(BIG), got;
    struct zn_sim *s = sim_new(1, false);
    unsigned file = (unsigned)sim_file(s, "a");

    (void)state;
    op(s, SIM_CREATE, file, 0, NULL, 0);
    for (unsigned i = 1; i <= enough + 1; i++) {
        memset(bytes, (int)i, BIG);
        op(s, SIM_WRITE, file, 0, bytes, BIG);
    }
    zn_sim_cut(s, 0, 0);
    assert_int_equal(zn_sim_restart(s), 0);
    assert_int_equal(zn_sim_peek(s, "a", BIG - 1, &got, 1), 0);
    assert_int_equal(got, enough); /* this one was too many: everything before was written back */
    zn_sim_free(s);
    free(bytes);
}

enum { MODEL = 5 * 16384 };

/* The expected contents of a file. */
struct model {
    bool exists;
    size_t size;
    unsigned char bytes[MODEL];
};

/* One random operation; a failed one has no effect. Returns true if there was memory for it. */
static bool model_step(struct zn_sim *s, unsigned file, struct model *m, uint64_t drawn)
{
    static unsigned char bytes[MODEL];
    struct sim_op o = { .kind = SIM_WRITE, .file = file, .bytes = bytes };
    size_t from;
    ssize_t rc;

    fill(bytes, sizeof(bytes), drawn);
    o.off = drawn / 16 % (MODEL - 40000);
    o.len = 1 + drawn / 4096 % 40000;
    if (!m->exists || drawn % 16 == 0)
        o.kind = m->exists ? SIM_DELETE : SIM_CREATE;
    else if (drawn % 16 < 3)
        o.kind = SIM_RESIZE;
    else if (drawn % 16 < 6)
        o.kind = SIM_FLUSH;
    rc = sim_do(s, &o);
    if (rc == -ENOMEM)
        return false;
    assert_int_equal(rc, o.kind == SIM_WRITE ? o.len : 0);
    from = m->size;
    if (o.kind == SIM_WRITE) {
        memcpy(m->bytes + o.off, bytes, o.len);
        m->size = zb_max_u64(m->size, o.off + o.len);
    } else if (o.kind == SIM_RESIZE) {
        m->size = o.off;
        if (o.off < from)
            memset(m->bytes + o.off, 0, from - o.off);
    } else if (o.kind == SIM_CREATE || o.kind == SIM_DELETE) {
        memset(m, 0, sizeof(*m));
        m->exists = o.kind == SIM_CREATE;
    }
    return true;
}

static void model_check(const struct zn_sim *s, const struct model *m)
{
    static unsigned char got[MODEL];

    assert_int_equal(zn_sim_size(s, "a"), m->exists ? (int64_t)m->size : -ENOENT);
    if (m->exists && m->size > 0) {
        assert_int_equal(zn_sim_peek(s, "a", 0, got, m->size), 0);
        assert_memory_equal(got, m->bytes, m->size);
    }
}

/* The nth allocation fails, for every n: every acknowledged operation is in effect, durable and
 * recorded. */
static void sim_every_allocation(void **state)
{
    bool failed = true;
    unsigned nth = 1;

    (void)state;
    for (; failed; nth++) {
        struct zn_sim *s = sim_new(nth, true), *cut = NULL, *copy = NULL;
        int file = sim_file(s, "a");
        struct model m = { 0 };
        uint64_t seed = 5;
        int rc;

        alloc_fail(nth, 1);
        for (unsigned i = 0; i < 60; i++)
            (void)model_step(s, (unsigned)file, &m, ztest_random(&seed));
        model_check(s, &m);
        rc = zn_sim_cut_at(&cut, s, zn_sim_ops(s), 1, NULL);
        if (rc == 0)
            model_check(cut, &m);
        assert_true(rc == 0 || rc == -ENOMEM);
        rc = zn_sim_copy(&copy, s, NULL);
        if (rc == 0)
            model_check(copy, &m);
        assert_true(rc == 0 || rc == -ENOMEM);
        failed = alloc_failed();
        zn_sim_free(cut);
        zn_sim_free(copy);
        zn_sim_cut(s, 0, 1);
        assert_int_equal(zn_sim_restart(s), 0);
        model_check(s, &m);
        zn_sim_free(s);
    }
    assert_true(nth > 100);
}

/* ---- SQLite */

enum { TXNS = 200, BROKEN = -2 };

struct bank {
    uint64_t acked[TXNS + 1]; /* the number of operations when transaction i was acknowledged */
};

/* How SQLite is configured to keep what it acknowledged. */
static const struct bank_mode {
    const char *name, *pragmas;
    int txns;
} bank_modes[] = {
    { "WAL", "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL", TXNS },
    { "journal", "PRAGMA journal_mode=DELETE; PRAGMA synchronous=EXTRA", 30 },
};
static const struct bank_mode *bank_mode = &bank_modes[0];

static sqlite3 *bank_open(struct zn_sim *s)
{
    const char *vfs;
    sqlite3 *db;

    assert_int_equal(zn_sim_vfs(s, &vfs, NULL), 0);
    if (sqlite3_open_v2("db", &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, vfs) != SQLITE_OK ||
        sql(db, "PRAGMA locking_mode=EXCLUSIVE") != SQLITE_OK ||
        sql(db, bank_mode->pragmas) != SQLITE_OK) {
        (void)sqlite3_close(db);
        return NULL;
    }
    return db;
}

/* Each transaction adds a row and counts it. Returns how many were acknowledged; -1: not even the
 * tables. */
static int bank_run(struct zn_sim *s, struct bank *b, int txns)
{
    sqlite3 *db = bank_open(s);
    int told = -1, rc = SQLITE_CANTOPEN;

    if (db)
        rc = sql(db,
                 "PRAGMA wal_autocheckpoint=40; BEGIN; CREATE TABLE t(i INTEGER PRIMARY KEY, v);"
                 "CREATE TABLE c(n); INSERT INTO c VALUES(0); COMMIT");
    while (rc == SQLITE_OK) {
        char text[200];

        b->acked[++told] = zn_sim_ops(s);
        if (told == txns)
            break;
        (void)snprintf(text, sizeof(text),
                       "BEGIN; INSERT INTO t VALUES(%d, zeroblob(%d)); UPDATE c SET n=%d; COMMIT",
                       told + 1, (told + 1) * 7 % 900, told + 1);
        rc = sql(db, text);
    }
    (void)sqlite3_close(db);
    return told;
}

static int bank_row(void *arg, int n, char **values, char **names)
{
    int *got = arg;

    (void)names;
    for (int i = 0; i < n; i++)
        got[i] = values[i] ? atoi(values[i]) : 0;
    return 0;
}

/* The number of transactions in the database: a complete prefix, with no part of another. -1: it
 * has no tables; BROKEN: anything else. */
static int bank_count(struct zn_sim *s)
{
    sqlite3 *db = bank_open(s);
    int got[4] = { BROKEN, BROKEN, BROKEN, BROKEN }, rc;

    if (!db)
        return BROKEN;
    rc = sqlite3_exec(db,
                      "SELECT count(*), max(i), (SELECT n FROM c), sum(length(v)=i*7%900) FROM t",
                      bank_row, got, NULL);
    if (rc == SQLITE_ERROR && strstr(sqlite3_errmsg(db), "no such table"))
        got[0] = got[1] = got[2] = got[3] = -1;
    else if (rc != SQLITE_OK)
        got[0] = BROKEN;
    (void)sqlite3_close(db);
    return got[0] == got[1] && got[0] == got[2] && got[0] == got[3] ? got[0] : BROKEN;
}

static void bank_cut_everywhere(void)
{
    const char *wanted = getenv("ZSHARD_SIM_VARIANTS"), *slow = getenv("ZSHARD_SANITIZE");
    uint32_t variants = wanted ? (uint32_t)atoi(wanted) : slow && slow[0] ? 4 : 16;
    struct zn_sim *recorded = sim_new(21, true);
    struct bank b;
    int acked = -1, txns = bank_mode->txns;
    uint64_t cuts = 0;

    assert_int_equal(bank_run(recorded, &b, txns), txns);
    for (uint64_t n = 0; n <= zn_sim_ops(recorded); n++) {
        while (acked < txns && b.acked[acked + 1] <= n)
            acked++;
        for (uint32_t v = 0; v < variants; v++) {
            struct zn_sim *s;
            int got;

            assert_int_equal(zn_sim_cut_at(&s, recorded, n, v, NULL), 0);
            got = bank_count(s);
            if (got < acked || got > acked + 1)
                fail_msg("operation %u, variant %u: %d transactions of %d", (unsigned)n, v, got,
                         acked);
            zn_sim_free(s);
            cuts++;
        }
    }
    print_message("%s: %u power cuts\n", bank_mode->name, (unsigned)cuts);
    zn_sim_free(recorded);
}

static void sim_sqlite(void **state)
{
    (void)state;
    for (size_t i = ZB_COUNT(bank_modes); i-- > 0;) {
        bank_mode = &bank_modes[i];
        bank_cut_everywhere();
    }
}

/* A process that has a database open has it exclusively. */
static void sim_sqlite_lock(void **state)
{
    struct zn_sim *s = sim_new(1, false);
    sqlite3 *first = bank_open(s), *second;
    const char *vfs;

    (void)state;
    assert_non_null(first);
    assert_int_equal(sql(first, "CREATE TABLE t(i)"), SQLITE_OK);
    assert_int_equal(zn_sim_vfs(s, &vfs, NULL), 0);
    assert_int_equal(sqlite3_open_v2("db", &second, SQLITE_OPEN_READWRITE, vfs), SQLITE_OK);
    assert_int_equal(sql(second, "SELECT * FROM t"), SQLITE_BUSY);
    assert_int_equal(sqlite3_close(first), SQLITE_OK);
    assert_int_equal(sql(second, "PRAGMA locking_mode=EXCLUSIVE"), SQLITE_OK);
    assert_int_equal(sql(second, "INSERT INTO t VALUES(1)"), SQLITE_OK);
    assert_int_equal(sqlite3_close(second), SQLITE_OK);
    assert_int_equal(sqlite3_open_v2("none", &second, SQLITE_OPEN_READWRITE, vfs), SQLITE_CANTOPEN);
    assert_int_equal(sqlite3_close(second), SQLITE_OK);
    zn_sim_free(s);
}

/* Temporary files come and go, more of them than there are names. */
static void sim_sqlite_temporary(void **state)
{
    struct zn_sim *s = sim_new(1, false);
    sqlite3 *db = bank_open(s);
    uint64_t before = zn_sim_ops(s);

    (void)state;
    assert_non_null(db);
    assert_int_equal(sql(db, "PRAGMA temp_store=FILE"), SQLITE_OK);
    for (unsigned i = 0; i < SIM_FILES_MAX + 1; i++) {
        assert_int_equal(sql(db, "CREATE TEMP TABLE t(v); INSERT INTO t VALUES(zeroblob(100000));"
                                 "PRAGMA temp.cache_spill=1; DROP TABLE t"),
                         SQLITE_OK);
        assert_int_equal(sqlite3_close(db), SQLITE_OK);
        db = bank_open(s);
        assert_non_null(db);
        assert_int_equal(sql(db, "PRAGMA temp_store=FILE; PRAGMA cache_size=1"), SQLITE_OK);
    }
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    assert_int_equal(zn_sim_size(s, "temporary-0"), -ENOENT); /* but there was one: */
    assert_true(zn_sim_ops(s) > before + SIM_FILES_MAX);
    zn_sim_free(s);
}

/* A power cut during recovery from a power cut. */
static void sim_cut_twice(void **state)
{
    struct zn_sim *recorded = sim_new(22, true);
    struct bank b;
    unsigned cuts = 0;

    (void)state;
    assert_int_equal(bank_run(recorded, &b, 30), 30);
    for (uint64_t n = b.acked[5]; n < b.acked[30]; n += 7) {
        struct zn_sim *first;
        int before;

        assert_int_equal(zn_sim_cut_at(&first, recorded, n, (uint32_t)n, NULL), 0);
        before = bank_count(first); /* recovers, and is recorded, too */
        for (uint64_t m = n + 1; m <= zn_sim_ops(first); m++, cuts++) {
            struct zn_sim *second;

            assert_int_equal(zn_sim_cut_at(&second, first, m, (uint32_t)m, NULL), 0);
            if (bank_count(second) != before)
                fail_msg("operation %u after a cut at %u", (unsigned)m, (unsigned)n);
            zn_sim_free(second);
        }
        zn_sim_free(first);
    }
    assert_true(cuts > 200);
    zn_sim_free(recorded);
}

/* One failure at any place: SQLite reports it, or it is healed; what was acknowledged is there
 * afterwards. */
static void sim_sqlite_faults(void **state)
{
    static const enum zn_fault faults[] = { ZN_FAULT_EIO, ZN_FAULT_ENOSPC, ZN_FAULT_SHORT,
                                            ZN_FAULT_FLUSH };
    enum { SOME = 40 };

    (void)state;
    for (size_t f = 0; f < ZB_COUNT(faults); f++) {
        uint64_t failed = 0, n = 0;

        for (bool struck = true; struck; n++) {
            struct zn_sim *s = sim_new(n, false);
            struct bank b;
            int told, got;

            assert_int_equal(zn_sim_fault(s, faults[f], n, false), 0);
            told = bank_run(s, &b, SOME);
            failed += told < SOME;
            struck = zn_sim_struck(s) > 0;
            zn_sim_cut(s, 0, 0);
            assert_int_equal(zn_sim_restart(s), 0);
            got = bank_count(s);
            if (got < told || got > told + 1)
                fail_msg("%s at %u: %d transactions of %d", zn_fault_name(faults[f]), (unsigned)n,
                         got, told);
            zn_sim_free(s);
        }
        print_message("%s: %u of %u runs failed\n", zn_fault_name(faults[f]), (unsigned)failed,
                      (unsigned)n);
        assert_true(n > 100);
        assert_true(faults[f] == ZN_FAULT_SHORT ? failed == 0 : failed > 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sim_faults),
        cmocka_unit_test(sim_flush_of_a_file),
        cmocka_unit_test(sim_names),
        cmocka_unit_test(sim_names_again),
        cmocka_unit_test(sim_cut_variants),
        cmocka_unit_test(sim_flush_forgets),
        cmocka_unit_test(sim_same_again),
        cmocka_unit_test(sim_cut_at_is_a_cut),
        cmocka_unit_test(sim_order),
        cmocka_unit_test(sim_due_times),
        cmocka_unit_test(sim_fixed_rate),
        cmocka_unit_test(sim_refusals),
        cmocka_unit_test(sim_copies),
        cmocka_unit_test(sim_threads),
        cmocka_unit_test(sim_cut_cost),
        cmocka_unit_test(sim_full_cache),
        cmocka_unit_test(sim_every_allocation),
        cmocka_unit_test(sim_sqlite),
        cmocka_unit_test(sim_sqlite_lock),
        cmocka_unit_test(sim_sqlite_temporary),
        cmocka_unit_test(sim_cut_twice),
        cmocka_unit_test(sim_sqlite_faults),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
