/*
 * export and import, with a fake daemon that keeps planes. An exported job is imported, and
 * exported again it gives the same file. Errors in files are refused by name before the daemon is
 * asked. A failed command leaves nothing.
 */
#include "tests/ztest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zc_safetensors.h"
#include "client/zctl/zctl_main.h"
#include "tests/unit/client/fake.h"

#define WORDS_MAX 16
#define TEXT(s)   ((char *)(uintptr_t)(s))
#define SHORT     5000u
#define LONG      1100001u /* elements: more than one piece */

/* ---- a job in memory */

static struct tensor {
    const char *name;
    uint64_t first, ndims, dims[2];
    uint32_t group;
} embed[] = { { "wte.weight", 0, 2, { 70, 100 }, 0 }, { "wpe.weight", 8192, 2, { 30, 51 }, 1 } },
  head[] = { { "ln.weight", 3, 1, { SHORT - 3, 0 }, ZC_GROUP_FROZEN } },
  tables[] = { { "scale", 0, 0, { 0, 0 }, 0 }, { "table", 4, 2, { 3, 5 }, 0 } };

static struct unit {
    const char *name;
    uint64_t elems;
    uint32_t dtype, grad_dtype;
    bool frozen, quantized;
    const struct tensor *tensors;
    uint32_t ntensors;
} units[] = {
    { "embed", 10001, 2, 1, false, false, embed, 2 },
    { "head", SHORT, 1, 1, false, false, head, 1 },
    { "tables", 19, 2, 1, true, true, tables, 2 },
};

#define UNITS ZB_COUNT(units)

/** Sets the length of unit "head". */
static void head_is(uint64_t elems)
{
    units[1].elems = elems;
    head[0].dims[0] = elems - 3;
}

struct planes {
    float *of[UNITS][3]; /* master, exp_avg, exp_avg_sq: elems, padded to a block */
    uint64_t iterations, applied;
};

struct store {
    struct planes a, b; /* of job "a", which exists; of "b", which is imported */
    uint8_t *staging;
    uint64_t staging_bytes;
    bool committed, destroyed;
    /* the nth frame of a method is refused with code */
    unsigned method, nth;
    int code;
    int signal;          /* or this signal is raised */
    bool stuck;          /* a job cannot be destroyed */
    uint64_t free_bytes; /* for a reader's staging; 0: enough */
};

static uint64_t padded(uint32_t unit)
{
    return zb_round_up(units[unit].elems, FAKE_BLOCK);
}

static void planes_new(struct planes *p, bool filled)
{
    uint32_t random = 1;

    for (uint32_t u = 0; u < UNITS; u++)
        for (uint32_t k = 0; k < 3; k++) {
            p->of[u][k] = calloc(padded(u), sizeof(float));
            assert_non_null(p->of[u][k]);
        }
    for (uint32_t u = 0; filled && u < UNITS; u++)
        for (uint32_t t = 0; t < units[u].ntensors; t++) {
            const struct tensor *x = &units[u].tensors[t];
            uint64_t n = (x->ndims > 0 ? x->dims[0] : 1) * (x->ndims > 1 ? x->dims[1] : 1);

            for (uint64_t i = x->first; i < x->first + n; i++)
                for (uint32_t k = 0; k < (units[u].frozen ? 1 : 3); k++) {
                    random = random * 1664525u + 1013904223u;
                    p->of[u][k][i] = (float)(random >> 8) / 8388608.0f - 1;
                    if (units[u].frozen) /* small integers, which bf16 holds exactly */
                        p->of[u][k][i] = (float)(random >> 28);
                }
        }
}

static void planes_free(struct planes *p)
{
    for (uint32_t u = 0; u < UNITS; u++)
        for (uint32_t k = 0; k < 3; k++)
            free(p->of[u][k]);
}

/** Rounds like the daemon's kernels: ties away from zero. */
static uint16_t param_bf16(float master)
{
    uint32_t bits;

    memcpy(&bits, &master, sizeof(bits));
    return (uint16_t)((bits + 0x8000u) >> 16);
}

/* ---- the fake daemon */

static void reply_memory(struct fake *f, const struct zp_frame *frame, const ProtobufCMessage *m,
                         uint64_t bytes)
{
    struct store *s = f->arg;
    int fd = fake_memfd(bytes, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);

    if (s->staging)
        (void)munmap(s->staging, s->staging_bytes);
    s->staging = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    s->staging_bytes = bytes;
    if (s->staging == MAP_FAILED)
        abort();
    fake_reply(f, frame, m, fd);
    zb_close_fd(&fd);
}

static void serve_unit(struct fake *f, const struct zp_frame *frame, const Zp__ReaderUnit *q)
{
    const struct unit *u = &units[q->unit];
    Zp__ReaderUnitReply m = ZP__READER_UNIT_REPLY__INIT;
    Zp__Tensor t = ZP__TENSOR__INIT, *list[1] = { &t };

    m.name = TEXT(u->name);
    m.elems = u->elems;
    m.dtype = u->dtype;
    m.grad_dtype = u->grad_dtype;
    m.frozen = u->frozen;
    m.quantized = u->quantized;
    t.name = TEXT(u->tensors[q->cursor].name); /* one by one */
    t.first = u->tensors[q->cursor].first;
    t.dims = (uint64_t *)(uintptr_t)u->tensors[q->cursor].dims;
    t.n_dims = u->tensors[q->cursor].ndims;
    t.group = u->tensors[q->cursor].group;
    m.tensors = list;
    m.n_tensors = 1;
    m.cursor = q->cursor + 1 < u->ntensors ? q->cursor + 1 : 0;
    fake_reply(f, frame, &m.base, -1);
}

static void serve_read(struct fake *f, const struct zp_frame *frame, const Zp__ReaderRead *q,
                       const struct planes *p)
{
    struct store *s = f->arg;
    const float *plane;
    void *to = s->staging + q->staging;

    if (q->unit >= UNITS || q->what < 1 || q->what > 4 || q->staging % 64 != 0 ||
        !zb_range_inside(q->first, q->count, units[q->unit].elems) ||
        !zb_range_inside(q->staging, q->count * 4, s->staging_bytes) ||
        (units[q->unit].frozen && q->what != 1)) {
        fake_refuse(f, frame, -EINVAL, "a read that is wrong");
        return;
    }
    plane = p->of[q->unit][q->what <= 2 ? 0 : q->what - 2] + q->first;
    if (q->what == 1 && units[q->unit].dtype == 2)
        for (uint64_t i = 0; i < q->count; i++)
            ((uint16_t *)to)[i] = param_bf16(plane[i]);
    else
        memcpy(to, plane, q->count * sizeof(float));
    fake_reply(f, frame, NULL, -1);
}

static void serve_write(struct fake *f, const struct zp_frame *frame, const Zp__Write *q)
{
    struct store *s = f->arg;
    uint64_t unit = q->shard - 100;

    if (unit >= UNITS || q->what < 2 || q->what > 4 || q->first % FAKE_PAGE != 0 ||
        !zb_range_inside(q->first, q->count, padded((uint32_t)unit)) ||
        (q->count % FAKE_PAGE != 0 && q->first + q->count != padded((uint32_t)unit)) ||
        !zb_range_inside(q->staging, q->count * 4, s->staging_bytes) ||
        (units[unit].frozen && q->what != 2)) {
        fake_refuse(f, frame, -EINVAL, "a write that is wrong");
        return;
    }
    memcpy(s->b.of[unit][q->what - 2] + q->first, s->staging + q->staging, q->count * 4);
    fake_reply(f, frame, NULL, -1);
}

static void serve_register(struct fake *f, const struct zp_frame *frame, const Zp__ShardRegister *q)
{
    Zp__ShardRegisterReply m = ZP__SHARD_REGISTER_REPLY__INIT;
    uint64_t id = 100 + q->ranges[0]->unit;

    m.n_shards = 1;
    m.shards = &id;
    if (q->n_ranges != 1 || q->ranges[0]->first != 0 ||
        q->ranges[0]->count != padded(q->ranges[0]->unit))
        fake_refuse(f, frame, -EINVAL, "a range that is wrong");
    else
        fake_reply(f, frame, &m.base, -1);
}

/** Whether the unit is the same as ours. */
static bool unit_same(const Zp__UnitDefine *q)
{
    const struct unit *u = &units[q->unit];
    bool same = strcmp(q->name, u->name) == 0 && q->elems == u->elems && q->dtype == u->dtype &&
                q->grad_dtype == u->grad_dtype && q->frozen == u->frozen &&
                q->quantized == u->quantized && q->last && q->n_tensors == u->ntensors;

    for (uint32_t i = 0; same && i < u->ntensors; i++) {
        const struct tensor *t = &u->tensors[i];

        same = strcmp(q->tensors[i]->name, t->name) == 0 && q->tensors[i]->first == t->first &&
               q->tensors[i]->group == t->group && q->tensors[i]->n_dims == t->ndims;
        for (uint32_t k = 0; same && k < t->ndims; k++)
            same = q->tensors[i]->dims[k] == t->dims[k];
    }
    return same;
}

static bool serve_job(struct fake *f, const struct zp_frame *frame, const ProtobufCMessage *m)
{
    struct store *s = f->arg;
    Zp__JobOpenReply open = ZP__JOB_OPEN_REPLY__INIT;
    const Zp__JobOpen *q = (const Zp__JobOpen *)m;

    switch (frame->method) {
    case ZP_JOB_OPEN:
        if (strcmp(q->name, "b") != 0 || q->world != 1 || !q->keep || !q->durable || q->attach ||
            q->groups != 2) {
            fake_refuse(f, frame, -EINVAL, "a job that is wrong");
            return true;
        }
        open.job = FAKE_JOB;
        open.staging_bytes = q->staging_bytes;
        reply_memory(f, frame, &open.base, q->staging_bytes);
        return true;
    case ZP_UNIT_DEFINE:
        if (unit_same((const Zp__UnitDefine *)m))
            return false;
        fake_refuse(f, frame, -EINVAL, "a unit that is wrong");
        return true;
    case ZP_SHARD_REGISTER:
        serve_register(f, frame, (const Zp__ShardRegister *)m);
        return true;
    case ZP_WRITE:
        serve_write(f, frame, (const Zp__Write *)m);
        return true;
    case ZP_PROGRESS:
        s->b.iterations = ((const Zp__Progress *)m)->iterations;
        s->b.applied = ((const Zp__Progress *)m)->applied;
        return false;
    case ZP_COMMIT:
        s->committed = ((const Zp__Commit *)m)->what == 1 &&
                       ((const Zp__Commit *)m)->iterations == s->b.iterations;
        return false;
    case ZP_JOB_DESTROY:
        if (s->stuck) {
            fake_refuse(f, frame, -EBUSY, "somebody holds it");
            return true;
        }
        s->destroyed = strcmp(((const Zp__JobName *)m)->name, "b") == 0;
        return false;
    default:
        return false;
    }
}

static bool store_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    static const struct planes *reading;
    struct store *s = f->arg;
    Zp__ReaderOpenReply reader = ZP__READER_OPEN_REPLY__INIT;
    const ProtobufCMessage *m;

    if (frame->method == s->method && fake_count(f, s->method) == s->nth) {
        if (s->signal)
            (void)kill(getpid(), s->signal);
        else
            fake_refuse(f, frame, s->code, "as the test wants it");
        if (!s->signal)
            return true;
    }
    if (zp_decode(f->arena, zp_method_info(frame->method)->request, body, frame->body_bytes, &m,
                  NULL) < 0)
        abort();
    switch (frame->method) {
    case ZP_READER_OPEN:
        if (s->free_bytes > 0 && ((const Zp__ReaderOpen *)m)->staging_bytes > s->free_bytes) {
            fake_refuse(f, frame, -ENOSPC, "there is little left");
            return true;
        }
        reading = strcmp(((const Zp__ReaderOpen *)m)->job, "a") == 0 ? &s->a : &s->b;
        reader.reader = FAKE_READER;
        reader.iterations = reading->iterations;
        reader.applied = reading->applied;
        reader.units = UNITS;
        reader.groups = 2;
        reader.world = 1;
        reader.optimizer = ZC_ADAMW;
        reader.moments = ZC_MOMENTS_F32;
        reader.staging_bytes = ((const Zp__ReaderOpen *)m)->staging_bytes;
        reply_memory(f, frame, &reader.base, reader.staging_bytes);
        return true;
    case ZP_READER_UNIT:
        serve_unit(f, frame, (const Zp__ReaderUnit *)m);
        return true;
    case ZP_READER_READ:
        serve_read(f, frame, (const Zp__ReaderRead *)m, reading);
        return true;
    default:
        return serve_job(f, frame, m);
    }
}

/* ---- a test's folder, daemon and store */

struct fixture {
    struct store store;
    struct fake fake;
};

static char folder[] = "/tmp/zctl-files-XXXXXX";

static int folder_make(void **state)
{
    (void)state;
    return mkdtemp(folder) ? chdir(folder) : -1;
}

/** Removes what is in the folder; one level deep. */
static void folder_clear(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;

    assert_non_null(d);
    while ((e = readdir(d)) != NULL) {
        char name[600];

        if (e->d_name[0] == '.')
            continue;
        (void)snprintf(name, sizeof(name), "%s/%s", path, e->d_name);
        if (unlink(name) < 0) {
            folder_clear(name);
            assert_int_equal(rmdir(name), 0);
        }
    }
    (void)closedir(d);
}

static int folder_remove(void **state)
{
    (void)state;
    folder_clear(folder);
    return chdir("/") || rmdir(folder);
}

/** The number of names, leftovers included. */
static unsigned folder_count(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;
    unsigned n = 0;

    if (!d)
        return 0;
    while ((e = readdir(d)) != NULL)
        n += e->d_name[0] != '.';
    (void)closedir(d);
    return n;
}

static struct fixture *fixture_open(void)
{
    struct fixture *x = calloc(1, sizeof(*x));

    assert_non_null(x);
    planes_new(&x->store.a, true);
    planes_new(&x->store.b, false);
    x->store.a.iterations = 12;
    x->store.a.applied = 11;
    x->fake.hang_up_at = FAKE_ANY_FRAME;
    x->fake.fn = store_fn;
    x->fake.arg = &x->store;
    fake_start(&x->fake);
    return x;
}

static void fixture_close(struct fixture *x)
{
    fake_done(&x->fake);
    if (x->store.staging)
        (void)munmap(x->store.staging, x->store.staging_bytes);
    planes_free(&x->store.a);
    planes_free(&x->store.b);
    free(x);
}

/** Runs a line; returns its exit status, and in `said` all of its output. */
static int zctl(struct fixture *x, const char *line, char *said, size_t size)
{
    char copy[512], *words[WORDS_MAX] = { TEXT("zctl"), TEXT("--socket"), x->fake.path };
    FILE *out = fmemopen(said, size, "w");
    int n = 3, status;

    (void)snprintf(copy, sizeof(copy), "%s", line);
    for (char *at = copy, *word; n < WORDS_MAX && (word = strsep(&at, " ")) != NULL;)
        words[n++] = word;
    status = zctl_main(n, words, out, out);
    (void)fclose(out);
    return status;
}

static void expect(struct fixture *x, const char *line, int status, const char *says)
{
    char said[1024] = "";
    int rc = zctl(x, line, said, sizeof(said));

    if (rc != status || !strstr(said, says))
        fail_msg("zctl %s: status %d, '%s', and not %d, '%s'", line, rc, said, status, says);
}

static bool same_file(const char *a, const char *b)
{
    char line[256];

    (void)snprintf(line, sizeof(line), "cmp -s %s %s", a, b);
    return system(line) == 0;
}

/* ---- there and back */

static void assert_planes_same(const struct fixture *x, bool state)
{
    for (uint32_t u = 0; u < UNITS; u++) {
        for (uint64_t i = 0; i < padded(u); i++)
            if (units[u].dtype == 2 && !state) /* only what parameters preserve */
                assert_int_equal(param_bf16(x->store.a.of[u][0][i]),
                                 param_bf16(x->store.b.of[u][0][i]));
            else if (x->store.a.of[u][0][i] != x->store.b.of[u][0][i])
                fail_msg("unit %u, master %llu", u, (unsigned long long)i);
        for (uint32_t k = 1; k < 3; k++)
            if (state)
                assert_memory_equal(x->store.a.of[u][k], x->store.b.of[u][k], padded(u) * 4);
    }
    assert_int_equal(x->store.b.iterations, 12);
    assert_int_equal(x->store.b.applied, 11);
}

static void there_and_back(void **state)
{
    static const struct {
        const char *options;
        bool optimizer;
        unsigned files; /* including the index */
    } rows[] = {
        { "", false, 1 },
        { " --optimizer", true, 1 },
        { " --optimizer --dtype fp32", true, 1 },
        { " --optimizer --dtype fp16", true, 1 },
        { " --dtype fp32", true, 1 }, /* every master, but no moments */
        { " --shard-bytes 16K", false, 4 + 1 },
        { " --optimizer --shard-bytes 5M", true, 3 + 1 },
    };

    (void)state;
    head_is(LONG);
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        struct fixture *x = fixture_open();
        char line[256];

        (void)snprintf(line, sizeof(line), "export a one%s", rows[i].options);
        expect(x, line, 0, "12");
        if (folder_count("one") != rows[i].files)
            fail_msg("%s: %u files", line, folder_count("one"));
        expect(x, "import b one", 0, "12");
        assert_true(x->store.committed && !x->store.destroyed);
        if (strcmp(rows[i].options, " --dtype fp32") != 0)
            assert_planes_same(x, rows[i].optimizer);
        (void)snprintf(line, sizeof(line), "export b two%s", rows[i].options);
        expect(x, line, 0, "12");
        if (system("diff -r one two") != 0)
            fail_msg("'%s' makes other files", rows[i].options);
        fixture_close(x);
        folder_clear(folder);
    }
    head_is(SHORT);
}

/** Exports to one file of a given name; the file must have the job's values. */
static void one_file(void **state)
{
    static const struct {
        const char *name;
        enum zc_st_dtype dtype;
        uint64_t elems;
    } want[] = {
        { "ln.weight", ZC_ST_F32, SHORT - 3 }, { "wte.weight", ZC_ST_BF16, 7000 },
        { "wpe.weight", ZC_ST_BF16, 1530 },    { "scale", ZC_ST_BF16, 1 },
        { "table", ZC_ST_BF16, 15 },
    };
    struct fixture *x = fixture_open();
    struct zc_st_file *f = NULL;
    uint16_t got[15];

    (void)state;
    expect(x, "export a x.safetensors", 0, "36.2 KiB");
    assert_int_equal(zc_st_open(&f, "x.safetensors", NULL, 0), 0);
    assert_int_equal(zc_st_count(f), ZB_COUNT(want));
    for (size_t i = 0; i < ZB_COUNT(want); i++) { /* in this order: wide types first */
        assert_string_equal(zc_st_at(f, i)->name, want[i].name);
        assert_int_equal(zc_st_at(f, i)->dtype, want[i].dtype);
        assert_int_equal(zc_st_at(f, i)->elems, want[i].elems);
    }
    assert_string_equal(zc_st_metadata(f, "format"), "pt");
    assert_string_equal(zc_st_metadata(f, "zshard.iterations"), "12");
    assert_int_equal(zc_st_read(f, zc_st_find(f, "table"), 0, 15, got, NULL, 0), 0);
    for (uint32_t i = 0; i < 15; i++)
        assert_int_equal(got[i], param_bf16(x->store.a.of[2][0][4 + i]));
    zc_st_close(f);

    expect(x, "import b x.safetensors", 0, "no"); /* without the optimizer's state */
    expect(x, "export a x.safetensors", 4, "already exists");
    assert_int_equal(rename("x.safetensors", "y"), 0);
    expect(x, "export a x.safetensors", 0, "");
    assert_true(same_file("x.safetensors", "y"));
    expect(x, "import b y", 0, "");
    expect(x, "export a x.safetensors --dtype f32", 2, "--dtype must be param, fp32, bf16 or fp16");
    expect(x, "export a@ z", 2, "is neither JOB");
    expect(x, "export a nowhere/deep/z", 4, "nowhere/deep/z");
    x->store.a.of[0][0][5] = 70000;
    expect(x, "export a z --dtype fp16", 1, "tensor 'wte.weight' has a number that F16");
    assert_int_equal(access("z", F_OK), -1);
    fixture_close(x);
    folder_clear(folder);
}

/* ---- errors in files */

/** Copies one file's tensors to another file, with the changes of a row. */
struct change {
    const char *drop;              /* leave out this tensor */
    const char *add;               /* add an empty one of this name */
    const char *flat;              /* change the shape of this one */
    const char *wide;              /* change this one to F64 (its bytes mean nothing) */
    const char *drop_meta;         /* leave out this key, */
    const char *meta, *meta_value; /* or give this one another value */
};

static const char *const meta_keys[] = { "format",         "zshard.format", "zshard.iterations",
                                         "zshard.applied", "zshard.groups", "zshard.units" };

static void copy_changed(const char *from, const char *to, const struct change *c)
{
    struct zc_st_tensor list[32];
    struct zc_st_pair pairs[8];
    uint64_t flat[32][1], zero[1] = { 0 };
    struct zc_st_file *f = NULL;
    struct zc_st_writer *w = NULL;
    size_t n = 0, npairs = 0;
    char *bytes = calloc(SHORT + 7000, 8);

    assert_int_equal(zc_st_open(&f, from, NULL, 0), 0);
    for (size_t i = 0; i < zc_st_count(f); i++) {
        list[n] = *zc_st_at(f, i);
        if (c->drop && strcmp(list[n].name, c->drop) == 0)
            continue;
        if (c->flat && strcmp(list[n].name, c->flat) == 0) {
            flat[n][0] = list[n].elems;
            list[n].dims = flat[n];
            list[n].ndims = 1;
        }
        if (c->wide && strcmp(list[n].name, c->wide) == 0)
            list[n].dtype = ZC_ST_F64;
        n++;
    }
    if (c->add)
        list[n++] =
            (struct zc_st_tensor){ .name = c->add, .dtype = ZC_ST_F32, .ndims = 1, .dims = zero };
    for (size_t i = 0; i < ZB_COUNT(meta_keys); i++) {
        const char *value = zc_st_metadata(f, meta_keys[i]);

        if (c->meta && strcmp(meta_keys[i], c->meta) == 0)
            value = c->meta_value;
        if (value && !(c->drop_meta && strcmp(meta_keys[i], c->drop_meta) == 0))
            pairs[npairs++] = (struct zc_st_pair){ meta_keys[i], value };
    }
    assert_int_equal(zc_st_create(&w, to, list, n, pairs, npairs, NULL, 0), 0);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(
            zc_st_append(w, bytes, list[i].elems * zc_st_dtype_bytes(list[i].dtype), NULL, 0), 0);
    assert_int_equal(zc_st_commit(w, NULL, 0), 0);
    zc_st_close(f);
    free(bytes);
}

static const struct {
    const char *name;
    struct change change;
    int status;
    const char *says;
} wrong_cases[] = {
    { "nothing", { .drop = NULL }, 0, "" },
    { "a tensor is missing", { .drop = "wpe.weight" }, 4, "no tensor 'wpe.weight'" },
    { "a moment is missing",
      { .drop = "ln.weight.exp_avg_sq" },
      4,
      "no tensor 'ln.weight.exp_avg_sq'" },
    { "the first moment is missing",
      { .drop = "wte.weight.exp_avg" },
      2,
      "the files have tensor 'ln.weight.exp_avg', which is in no unit" },
    { "a master is missing", { .drop = "wte.weight.master" }, 4, "no tensor 'wte.weight.master'" },
    { "one too many",
      { .add = "h.9.attn.bias" },
      2,
      "have tensor 'h.9.attn.bias', which is in no unit" },
    { "a moment of what is frozen", { .add = "scale.exp_avg" }, 2, "have tensor 'scale.exp_avg'" },
    { "another shape, of a moment",
      { .flat = "wte.weight.exp_avg" },
      2,
      "tensor 'wte.weight.exp_avg' has another shape" },
    { "F64", { .wide = "ln.weight" }, 4, "tensor 'ln.weight' is of F64" },
    { "F64, a moment", { .wide = "ln.weight.exp_avg" }, 4, "is of F64: F32 is needed" },
    { "no units", { .drop_meta = "zshard.units" }, 2, "with --like JOB" },
    { "no format", { .drop_meta = "zshard.format" }, 6, "have no zshard.format" },
    { "another format", { .meta = "zshard.format", .meta_value = "2" }, 4, "have format 2" },
    { "no groups", { .drop_meta = "zshard.groups" }, 6, "have no zshard.groups" },
    { "no steps", { .drop_meta = "zshard.applied" }, 6, "have no zshard.applied" },
    { "more applied than asked for",
      { .meta = "zshard.applied", .meta_value = "13" },
      6,
      "zshard.applied is '13'" },
    { "negative", { .meta = "zshard.iterations", .meta_value = "-1" }, 6, "is '-1'" },
    { "beyond 63 bits",
      { .meta = "zshard.iterations", .meta_value = "9223372036854775808" },
      6,
      "is '9223372036854775808'" },
    { "units that are no JSON",
      { .meta = "zshard.units", .meta_value = "[" },
      6,
      "zshard.units is not what zctl writes" },
    { "units that are an object", { .meta = "zshard.units", .meta_value = "{}" }, 6, "no units" },
    { "no unit", { .meta = "zshard.units", .meta_value = "[]" }, 6, "no units" },
    { "a unit that is a number",
      { .meta = "zshard.units", .meta_value = "[1]" },
      6,
      "a unit without tensors" },
    { "a unit without a name",
      { .meta = "zshard.units",
        .meta_value = "[{\"elems\":1,\"dtype\":\"fp32\",\"grad_dtype\":\"fp32\",\"frozen\":false,"
                      "\"tensors\":[]}]" },
      6,
      "lacks its name" },
    { "a unit of another dtype",
      { .meta = "zshard.units",
        .meta_value = "[{\"name\":\"u\",\"elems\":1,\"dtype\":\"fp8\",\"grad_dtype\":\"fp32\","
                      "\"frozen\":false,\"tensors\":[]}]" },
      6,
      "lacks its name" },
    { "a unit that is quantized, and not frozen",
      { .meta = "zshard.units",
        .meta_value = "[{\"name\":\"u\",\"elems\":1,\"dtype\":\"fp32\",\"grad_dtype\":\"fp32\","
                      "\"frozen\":false,\"quantized\":true,\"tensors\":[]}]" },
      6,
      "zshard.units[0].quantized is true, and the unit is not frozen" },
    { "a unit that is quantized by a number",
      { .meta = "zshard.units",
        .meta_value = "[{\"name\":\"u\",\"elems\":1,\"dtype\":\"fp32\",\"grad_dtype\":\"fp32\","
                      "\"frozen\":true,\"quantized\":1,\"tensors\":[]}]" },
      6,
      "zshard.units[0].quantized is not a boolean" },
    { "a tensor without a group",
      { .meta = "zshard.units",
        .meta_value = "[{\"name\":\"u\",\"elems\":1,\"dtype\":\"fp32\",\"grad_dtype\":\"fp32\","
                      "\"frozen\":false,\"tensors\":[{\"name\":\"scale\",\"first\":0}]}]" },
      6,
      "lacks its name, first or group" },
    { "a tensor outside of its unit",
      { .meta = "zshard.units",
        .meta_value = "[{\"name\":\"u\",\"elems\":1,\"dtype\":\"fp32\",\"grad_dtype\":\"fp32\","
                      "\"frozen\":true,\"tensors\":[{\"name\":\"table\",\"first\":0,"
                      "\"group\":0}]}]" },
      2,
      "does not fit into unit 'u'" },
};

static void wrong_files(void **state)
{
    struct fixture *x = fixture_open();

    (void)state;
    expect(x, "export a good.safetensors --optimizer", 0, "");
    for (size_t i = 0; i < ZB_COUNT(wrong_cases); i++) {
        char said[1024] = "";
        uint32_t before = fake_count(&x->fake, 0);
        int status;

        copy_changed("good.safetensors", "bad", &wrong_cases[i].change);
        status = zctl(x, "import b bad", said, sizeof(said));
        if (status != wrong_cases[i].status || !strstr(said, wrong_cases[i].says))
            fail_msg("%s: status %d, '%s'", wrong_cases[i].name, status, said);
        if (status != 0) /* refused before any request */
            assert_int_equal(fake_count(&x->fake, 0), before);
    }
    fixture_close(x);
    folder_clear(folder);
}

/** Files from other programs: the units are those of an existing job. */
static void like_another_job(void **state)
{
    static const struct {
        const char *name;
        struct change change;
        int status;
        const char *says;
    } rows[] = {
        { "no units", { .drop_meta = "zshard.units" }, 0, "12" },
        { "another shape",
          { .drop_meta = "zshard.units", .flat = "wte.weight" },
          2,
          "tensor 'wte.weight' has another shape" },
        { "one too many", { .drop_meta = "zshard.units", .add = "x" }, 2, "have tensor 'x'" },
        { "moments of no step", { .drop_meta = "zshard.iterations" }, 2, "but no number of steps" },
    };
    struct fixture *x = fixture_open();
    const struct change plain = { .drop_meta = "zshard.iterations" };

    (void)state;
    expect(x, "export a good.safetensors --optimizer", 0, "");
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        copy_changed("good.safetensors", "bad", &rows[i].change);
        expect(x, "import b bad --like a", rows[i].status, rows[i].says);
    }
    folder_clear(folder);
    expect(x, "export a good.safetensors", 0, "");
    copy_changed("good.safetensors", "bad", &plain);
    expect(x, "import b bad --like a", 0, "b ");
    assert_int_equal(x->store.b.iterations, 0);
    fixture_close(x);
    folder_clear(folder);
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void wrong_sets(void **state)
{
    struct fixture *x = fixture_open();
    const char index[] = "m/model.safetensors.index.json";
    char first[] = "m/model-00001-of-00004.safetensors";
    char line[256];

    (void)state;
    expect(x, "export a m --shard-bytes 16K", 0, "");
    expect(x, "import b m/model.safetensors.index.json", 0, "");
    (void)snprintf(line, sizeof(line),
                   "import b %s m/model-00002-of-00004.safetensors "
                   "m/model-00003-of-00004.safetensors "
                   "m/model-00004-of-00004.safetensors",
                   first);
    expect(x, line, 0, "");
    (void)snprintf(line, sizeof(line), "import b %s m", first);
    expect(x, line, 6, "is in two files");
    (void)snprintf(line, sizeof(line), "import b %s", first);
    expect(x, line, 4, "no tensor '");
    expect(x, "export a m", 4, "already exists");

    assert_int_equal(unlink("m/model-00002-of-00004.safetensors"), 0);
    expect(x, "import b m", 4, "model-00002-of-00004.safetensors");
    write_text(index, "{\"weight_map\":{\"a\":\"../x\"}}");
    expect(x, "import b m", 6, "names '../x', which is not a file in the same folder");
    write_text(index, "{\"weight_map\":{\"a\":7}}");
    expect(x, "import b m", 6, "names no file for tensor 'a'");
    write_text(index, "{\"weight_map\":{\"a\":\"\"}}");
    expect(x, "import b m", 6, "names ''");
    write_text(index, "{\"weight_map\":{}}");
    expect(x, "import b m", 6, "has no weight_map");
    write_text(index, "{");
    expect(x, "import b m", 6, index);
    write_text(index, "{\"weight_map\":{\"a\":\"model-00001-of-00004.safetensors\"}}");
    expect(x, "import b m", 6, "does not list");
    write_text(index, "{\"weight_map\":{\"wte.weight\":\"model-00001-of-00004.safetensors\","
                      "\"a\":\"model-00001-of-00004.safetensors\"}}");
    expect(x, "import b m", 6, "names 2 tensors, and the files have 1");
    assert_int_equal(unlink(index), 0);
    expect(x, "import b m", 4, "m/model.safetensors");
    expect(x, "import b nothing", 4, "nothing");
    fixture_close(x);
    folder_clear(folder);
}

/* ---- failures leave nothing */

static void failures(void **state)
{
    static const struct {
        const char *name, *line;
        unsigned method, nth;
        int signal, status;
        const char *says;
    } rows[] = {
        { "the first read", "export a m --shard-bytes 16K", ZP_READER_READ, 1, 0, 6, "as the" },
        { "a later one", "export a m --shard-bytes 16K", ZP_READER_READ, 4, 0, 6, "as the test" },
        { "the last one", "export a x.safetensors", ZP_READER_READ, 5, 0, 6, "as the test" },
        { "no reader", "export a m", ZP_READER_OPEN, 1, 0, 6, "as the test" },
        { "no unit", "export a m", ZP_READER_UNIT, 3, 0, 6, "as the test" },
        { "SIGTERM", "export a m --shard-bytes 16K", ZP_READER_READ, 4, SIGTERM, 1,
          "ended by signal 15" },
        { "SIGINT", "export a x.safetensors", ZP_READER_READ, 2, SIGINT, 1, "ended by signal 2" },
        { "no job", "import b good.safetensors", ZP_JOB_OPEN, 1, 0, 6, "as the test" },
        { "no unit there", "import b good.safetensors", ZP_UNIT_DEFINE, 2, 0, 6, "as the test" },
        { "no shard", "import b good.safetensors", ZP_SHARD_REGISTER, 3, 0, 6, "as the test" },
        { "not ready", "import b good.safetensors", ZP_READY, 1, 0, 6, "as the test" },
        { "the first write", "import b good.safetensors", ZP_WRITE, 1, 0, 6, "as the test" },
        { "a later write", "import b good.safetensors", ZP_WRITE, 5, 0, 6, "as the test" },
        { "the last write", "import b good.safetensors", ZP_WRITE, 7, 0, 6, "as the test" },
        { "no progress", "import b good.safetensors", ZP_PROGRESS, 1, 0, 6, "as the test" },
        { "no commit", "import b good.safetensors", ZP_COMMIT, 1, 0, 6, "as the test" },
        { "SIGHUP", "import b good.safetensors", ZP_WRITE, 3, SIGHUP, 1, "ended by signal 1" },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        struct fixture *x = fixture_open();
        bool import = rows[i].line[0] == 'i';

        expect(x, "export a good.safetensors --optimizer", 0, "");
        assert_int_equal(folder_count("."), 1);
        x->store.method = rows[i].method;
        x->store.nth = rows[i].nth + (import ? 0 : fake_count(&x->fake, rows[i].method));
        x->store.code = -EBADMSG;
        x->store.signal = rows[i].signal;
        expect(x, rows[i].line, rows[i].status, rows[i].says);
        if (folder_count(".") != 1)
            fail_msg("%s: %u names are there", rows[i].name, folder_count("."));
        if (import && rows[i].method != ZP_JOB_OPEN && !x->store.destroyed)
            fail_msg("%s: the job is there", rows[i].name);
        fixture_close(x);
        folder_clear(folder);
    }
}

/** If the daemon has little memory left, pieces are small, but the file is the same. */
static void little_memory(void **state)
{
    struct fixture *x;

    (void)state;
    head_is(LONG);
    x = fixture_open();
    expect(x, "export a one --optimizer", 0, "");
    x->store.free_bytes = 150000;
    expect(x, "export a two --optimizer", 0, "");
    assert_int_equal(system("diff -r one two"), 0);
    x->store.free_bytes = 100000;
    expect(x, "export a three", 4, "there is little left");
    fixture_close(x);
    head_is(SHORT);
    folder_clear(folder);
}

/** If a failure cannot be undone, that is reported. */
static void a_job_is_left_over(void **state)
{
    struct fixture *x = fixture_open();

    (void)state;
    expect(x, "export a x.safetensors", 0, "");
    x->store.method = ZP_COMMIT;
    x->store.nth = 1;
    x->store.code = -ENOSPC;
    x->store.stuck = true;
    expect(x, "import b x.safetensors", 4,
           "as the test wants it; and job 'b' could not be removed: somebody holds it");
    fixture_close(x);
    folder_clear(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),     cmocka_unit_test(one_file),
        cmocka_unit_test(wrong_files),        cmocka_unit_test(wrong_sets),
        cmocka_unit_test(like_another_job),   cmocka_unit_test(failures),
        cmocka_unit_test(a_job_is_left_over), cmocka_unit_test(little_memory),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
