/*
 * sim.c - the simulated device: operations and their numbers, faults, power, recordings.
 *
 * MODEL. The device is a state (sim_state.c: durable contents, and changes that are not), what a
 * read sees now, and a count of operations. Everything that reaches it goes through sim_do(), one
 * operation at a time: it gets its number, then the faults that strike it, and what is left of it
 * happens. So the number, the seed and the requests alone decide what happens.
 *
 *     ALIVE ---> DEAD      ZN_FAULT_DEAD, or the operation that zn_sim_cut() named: it and all
 *                          later ones fail; of itself, only its change is with those that the
 *                          restart decides about
 *     DEAD ---> ALIVE      zn_sim_restart()
 *
 * A RECORDING is a list of entries (the changes and flushes, by operation) and now and then a copy
 * of the state. zn_sim_cut_at() copies the last such state before the operation, applies the few
 * entries between, and decides what a restart would decide: it never runs anything again. A copy
 * is taken after every SIM_SNAP_ENTRIES entries or SIM_SNAP_BYTES written, and whenever contents
 * change behind the recording's back (restart, poke).
 *
 * INVARIANTS
 *     S1  Contents now = durable contents + all pending changes, for each file that no stale or
 *         forgotten write has ever tainted.
 *     S2  An operation that fails for want of memory has changed nothing (a flush: made a part
 *         durable, which it may).
 *     S3  What sim_do() does to the state, the entries do to a copy of it.
 *
 * THE CACHE holds at most SIM_CACHE_BYTES; when there are more, all of it is written back.
 *
 * THREADS. One lock, held for one operation. Chunks and changes are shared with other devices,
 * which is why they count their references atomically.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "nvme/sim/sim_priv.h"

#define SIM_SNAP_ENTRIES 16u
#define SIM_SNAP_BYTES   (UINT64_C(128) << 10)
#define SIM_MISPLACE     UINT64_C(4096)

/* What the seed is mixed with, so that no two purposes draw the same numbers. */
enum sim_purpose { DRAW_RANDOM = 1, DRAW_FAULT, DRAW_FORGET, DRAW_SETTLE };

struct sim_file {
    char *name;
    bool tainted;     /* S1 */
    uint32_t births;  /* of the name, those that failed too */
    const void *user; /* who has it for itself */
};

struct sim_rule {
    enum zn_fault fault;
    uint64_t op;
    bool forever, spent;
};

enum sim_entry_kind { SIM_ENTRY_CHANGE, SIM_ENTRY_FLUSH, SIM_ENTRY_NAMES, SIM_ENTRY_FORGET };

struct sim_entry {
    uint64_t op;
    enum sim_entry_kind kind;
    unsigned file;
    struct sim_change *change;
};

struct sim_snap {
    uint64_t op;  /* the state before this operation */
    size_t entry; /* the first entry that is not in it */
    struct sim_state state;
};

struct zn_sim {
    pthread_mutex_t lock;
    struct zn_sim_options options;
    uint64_t ops, draws, struck;
    unsigned users;

    struct sim_file *files;
    struct sim_data *now; /* what reads see, by file */
    unsigned nfiles;
    struct sim_state state;

    struct sim_rule *rules;
    unsigned nrules;

    bool dead;
    uint64_t dead_op;
    bool cut;
    uint64_t cut_op;
    uint32_t cut_variant;

    struct sim_entry *entries;
    size_t nentries, entries_room;
    struct sim_snap *snaps;
    size_t nsnaps, snaps_room;
    uint64_t unsnapped_bytes;

    uint64_t free_ns; /* when the transfers that are under way are over */
    struct sim_vfs *vfs;
};

static void sim_lock(const struct zn_sim *s)
{
    pthread_mutex_lock((pthread_mutex_t *)&s->lock);
}

static void sim_unlock(const struct zn_sim *s)
{
    pthread_mutex_unlock((pthread_mutex_t *)&s->lock);
}

/* Room for one more in an array that doubles. */
static int sim_grow(void **array, size_t n, size_t *room, size_t each)
{
    size_t want = *room > 0 ? 2 * *room : 16;
    void *grown;

    if (n < *room)
        return 0;
    grown = realloc(*array, want * each);
    if (!grown)
        return -ENOMEM;
    *array = grown;
    *room = want;
    return 0;
}

/* ---- recording */

/* Without memory there is none: the next one comes, and until then cuts cost more. */
static int sim_snap(struct zn_sim *s)
{
    struct sim_snap *snap;

    if (!s->options.record)
        return 0;
    if (sim_grow((void **)&s->snaps, s->nsnaps, &s->snaps_room, sizeof(*s->snaps)) < 0)
        return -ENOMEM;
    snap = &s->snaps[s->nsnaps];
    *snap = (struct sim_snap){ .op = s->ops, .entry = s->nentries };
    if (sim_state_copy(&snap->state, &s->state) < 0) {
        sim_state_done(&snap->state);
        return -ENOMEM;
    }
    s->nsnaps++;
    s->unsnapped_bytes = 0;
    return 0;
}

static int sim_record_room(struct zn_sim *s)
{
    return s->options.record
               ? sim_grow((void **)&s->entries, s->nentries, &s->entries_room, sizeof(*s->entries))
               : 0;
}

/* After sim_record_room(). */
static void sim_record(struct zn_sim *s, enum sim_entry_kind kind, unsigned file,
                       struct sim_change *change)
{
    if (!s->options.record)
        return;
    s->entries[s->nentries++] = (struct sim_entry){
        .op = s->ops - 1,
        .kind = kind,
        .file = file,
        .change = change ? sim_change_ref(change) : NULL,
    };
    s->unsnapped_bytes += change ? change->len : 0;
}

static void sim_snap_due(struct zn_sim *s)
{
    size_t last = s->nsnaps > 0 ? s->snaps[s->nsnaps - 1].entry : 0;

    if (s->nentries - last >= SIM_SNAP_ENTRIES || s->unsnapped_bytes >= SIM_SNAP_BYTES)
        (void)sim_snap(s);
}

/* ---- making and freeing */

static struct zn_sim *sim_alloc(const struct zn_sim_options *options)
{
    struct zn_sim *s = calloc(1, sizeof(*s));

    if (s) {
        pthread_mutex_init(&s->lock, NULL); /* cannot fail on Linux */
        s->options = *options;
    }
    return s;
}

int zn_sim_new(struct zn_sim **ret, const struct zn_sim_options *options, struct zb_err *err)
{
    struct zn_sim *s = sim_alloc(options);

    if (!s || sim_snap(s) < 0) {
        zn_sim_free(s);
        return zb_fail(err, -ENOMEM, "a simulated device: %m");
    }
    *ret = s;
    return 0;
}

void zn_sim_free(struct zn_sim *s)
{
    if (!s)
        return;
    assert(s->users == 0);
    sim_vfs_free(s->vfs);
    for (unsigned i = 0; i < s->nfiles; i++) {
        free(s->files[i].name);
        sim_data_done(&s->now[i]);
    }
    for (size_t i = 0; i < s->nentries; i++)
        sim_change_unref(s->entries[i].change);
    for (size_t i = 0; i < s->nsnaps; i++)
        sim_state_done(&s->snaps[i].state);
    sim_state_done(&s->state);
    free(s->files);
    free(s->now);
    free(s->rules);
    free(s->entries);
    free(s->snaps);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* The files' names, with contents as `now` says. */
static int sim_copy_files(struct zn_sim *to, const struct zn_sim *from, const struct sim_data *now)
{
    to->files = calloc(from->nfiles + 1, sizeof(*to->files));
    to->now = calloc(from->nfiles + 1, sizeof(*to->now));
    if (!to->files || !to->now)
        return -ENOMEM;
    for (; to->nfiles < from->nfiles; to->nfiles++) {
        unsigned i = to->nfiles;

        to->files[i].name = strdup(from->files[i].name);
        to->files[i].births = from->files[i].births;
        to->files[i].tainted = from->files[i].tainted;
        if (!to->files[i].name || sim_data_copy(&to->now[i], &now[i]) < 0) {
            free(to->files[i].name);
            return -ENOMEM;
        }
    }
    return 0;
}

int zn_sim_copy(struct zn_sim **ret, const struct zn_sim *s, struct zb_err *err)
{
    struct zn_sim *copy;
    int rc = -ENOMEM;

    sim_lock(s);
    copy = sim_alloc(&s->options);
    if (copy) {
        copy->ops = s->ops;
        copy->draws = s->draws;
        rc = sim_copy_files(copy, s, s->now);
    }
    if (rc == 0)
        rc = sim_state_copy(&copy->state, &s->state);
    if (rc == 0)
        rc = sim_snap(copy);
    sim_unlock(s);
    if (rc < 0) {
        zn_sim_free(copy);
        return zb_fail(err, rc, "a copy of a simulated device: %m");
    }
    *ret = copy;
    return 0;
}

/* ---- files */

static int sim_find(const struct zn_sim *s, const char *name)
{
    for (unsigned i = 0; i < s->nfiles; i++) {
        if (strcmp(s->files[i].name, name) == 0)
            return (int)i;
    }
    return -ENOENT;
}

static int sim_add_file(struct zn_sim *s, const char *name)
{
    struct sim_file *files;
    struct sim_data *now;

    if (s->nfiles == SIM_FILES_MAX)
        return -ENFILE;
    files = realloc(s->files, (s->nfiles + 1) * sizeof(*files));
    if (!files)
        return -ENOMEM;
    s->files = files;
    now = realloc(s->now, (s->nfiles + 1) * sizeof(*now));
    if (!now)
        return -ENOMEM;
    s->now = now;
    files[s->nfiles] = (struct sim_file){ .name = strdup(name) };
    now[s->nfiles] = (struct sim_data){ 0 };
    if (!files[s->nfiles].name || sim_state_room(&s->state, s->nfiles) < 0) {
        free(files[s->nfiles].name);
        return -ENOMEM;
    }
    return (int)s->nfiles++;
}

int sim_file(struct zn_sim *s, const char *name)
{
    int file;

    sim_lock(s);
    file = sim_find(s, name);
    if (file < 0)
        file = sim_add_file(s, name);
    sim_unlock(s);
    return file;
}

bool sim_file_exists(struct zn_sim *s, unsigned file, uint64_t *ret_size)
{
    bool exists;

    sim_lock(s);
    exists = s->now[file].exists;
    *ret_size = s->now[file].size;
    sim_unlock(s);
    return exists;
}

bool sim_file_take(struct zn_sim *s, unsigned file, const void *user)
{
    bool free_for_us;

    sim_lock(s);
    free_for_us = !s->files[file].user || s->files[file].user == user;
    if (free_for_us)
        s->files[file].user = user;
    sim_unlock(s);
    return free_for_us;
}

void sim_file_drop(struct zn_sim *s, unsigned file, const void *user)
{
    sim_lock(s);
    if (s->files[file].user == user)
        s->files[file].user = NULL;
    sim_unlock(s);
}

bool sim_file_taken(struct zn_sim *s, unsigned file, const void *user)
{
    bool taken;

    sim_lock(s);
    taken = s->files[file].user && s->files[file].user != user;
    sim_unlock(s);
    return taken;
}

void sim_user(struct zn_sim *s, int add)
{
    sim_lock(s);
    s->users += (unsigned)add;
    sim_unlock(s);
}

/* ---- faults */

static const char *const fault_names[] = {
    [ZN_FAULT_EIO] = "eio",           [ZN_FAULT_ENOSPC] = "enospc", [ZN_FAULT_SHORT] = "short",
    [ZN_FAULT_FLUSH] = "flush",       [ZN_FAULT_LOST] = "lost",     [ZN_FAULT_STALE] = "stale",
    [ZN_FAULT_MISPLACE] = "misplace", [ZN_FAULT_FLIP] = "flip",     [ZN_FAULT_DELAY] = "delay",
    [ZN_FAULT_DEAD] = "dead",
};
_Static_assert(ZB_COUNT(fault_names) == ZN_FAULTS, "a name for each");

const char *zn_fault_name(enum zn_fault f)
{
    return (unsigned)f < ZN_FAULTS ? fault_names[f] : "none";
}

int zn_sim_fault(struct zn_sim *s, enum zn_fault fault, uint64_t op, bool forever)
{
    struct sim_rule *rules;

    if ((unsigned)fault >= ZN_FAULTS)
        return -EINVAL;
    sim_lock(s);
    rules = realloc(s->rules, (s->nrules + 1) * sizeof(*rules));
    if (rules) {
        s->rules = rules;
        s->rules[s->nrules++] = (struct sim_rule){ .fault = fault, .op = op, .forever = forever };
    }
    sim_unlock(s);
    return rules ? 0 : -ENOMEM;
}

void zn_sim_faults_clear(struct zn_sim *s)
{
    sim_lock(s);
    s->nrules = 0;
    sim_unlock(s);
}

uint64_t zn_sim_struck(const struct zn_sim *s)
{
    uint64_t struck;

    sim_lock(s);
    struck = s->struck;
    sim_unlock(s);
    return struck;
}

/* An operation on its way through the faults. */
struct sim_doing {
    struct sim_op *op;
    uint64_t n;   /* its number */
    uint64_t off; /* where it goes */
    size_t len;   /* what it moves */
    int rc;       /* it fails, and has no effect */
    bool lost, stale, forget, flip;
    uint64_t flip_at; /* the bit */
};

/* Places of SIM_MISPLACE in which a write of this length fits. */
static uint64_t sim_places(const struct zn_sim *s, const struct sim_doing *d)
{
    uint64_t size = s->now[d->op->file].size;

    return size < d->len ? 0 : (size - d->len) / SIM_MISPLACE + 1;
}

static bool sim_applies(const struct zn_sim *s, const struct sim_doing *d, enum zn_fault fault)
{
    const struct sim_op *op = d->op;
    bool transfer = op->kind == SIM_READ || op->kind == SIM_WRITE;

    switch (fault) {
    case ZN_FAULT_EIO:
    case ZN_FAULT_DEAD:
        return true;
    case ZN_FAULT_ENOSPC:
        return op->kind == SIM_WRITE || (op->kind == SIM_RESIZE && op->off > s->now[op->file].size);
    case ZN_FAULT_SHORT:
        return transfer && d->len > SIM_SECTOR;
    case ZN_FAULT_FLUSH:
        return op->kind == SIM_FLUSH || op->kind == SIM_FLUSH_NAMES;
    case ZN_FAULT_LOST:
    case ZN_FAULT_STALE:
        return op->kind == SIM_WRITE;
    case ZN_FAULT_MISPLACE:
        return op->kind == SIM_WRITE && sim_places(s, d) > (d->off % SIM_MISPLACE == 0 ? 1 : 0);
    case ZN_FAULT_FLIP:
        return transfer && d->len > 0;
    case ZN_FAULT_DELAY:
        return op->engine;
    case ZN_FAULTS:
        break;
    }
    return false;
}

static void sim_strike(struct zn_sim *s, struct sim_doing *d, enum zn_fault fault)
{
    uint64_t seed = sim_mix(sim_mix(s->options.seed, DRAW_FAULT), d->n * ZN_FAULTS + fault);

    s->struck++;
    switch (fault) {
    case ZN_FAULT_EIO:
        d->rc = -EIO;
        break;
    case ZN_FAULT_ENOSPC:
        d->rc = -ENOSPC;
        break;
    case ZN_FAULT_SHORT:
        d->len = (size_t)(SIM_SECTOR * (1 + sim_draw(&seed) % ((d->len - 1) / SIM_SECTOR)));
        break;
    case ZN_FAULT_FLUSH:
        d->forget = d->op->kind == SIM_FLUSH;
        d->rc = -EIO;
        break;
    case ZN_FAULT_LOST:
        d->lost = true;
        break;
    case ZN_FAULT_STALE:
        d->stale = true;
        break;
    case ZN_FAULT_MISPLACE: {
        uint64_t places = sim_places(s, d), at = sim_draw(&seed) % places;

        if (at * SIM_MISPLACE == d->off)
            at = (at + 1) % places;
        d->off = at * SIM_MISPLACE;
        break;
    }
    case ZN_FAULT_FLIP:
        d->flip = true;
        d->flip_at = sim_draw(&seed) % (8 * (uint64_t)d->len);
        break;
    case ZN_FAULT_DELAY:
        d->op->ret_late = true;
        break;
    case ZN_FAULT_DEAD:
        s->dead = true;
        s->dead_op = d->n;
        break;
    case ZN_FAULTS:
        break;
    }
}

static void sim_strike_all(struct zn_sim *s, struct sim_doing *d)
{
    for (unsigned i = 0; i < s->nrules && d->rc == 0; i++) {
        struct sim_rule *r = &s->rules[i];

        if (r->spent || d->n < r->op || !sim_applies(s, d, r->fault))
            continue;
        r->spent = !r->forever;
        sim_strike(s, d, r->fault);
    }
}

/* ---- operations */

static void sim_flip(unsigned char *bytes, uint64_t bit)
{
    bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
}

/* The cache is full: all of it becomes durable. For want of memory it stays for a while. */
static void sim_write_back(struct sim_state *st, const struct sim_file *files,
                           const struct sim_data *now)
{
    if (st->pending_bytes <= SIM_CACHE_BYTES)
        return;
    for (unsigned i = 0; i < st->nfiles; i++)
        (void)sim_state_flush(st, i, now && !files[i].tainted ? &now[i] : NULL);
}

/* A change: into what reads see, the cache and the recording; of the operation that the power cut
 * hit, only into the cache. */
static int sim_change(struct zn_sim *s, const struct sim_doing *d, struct sim_change *c)
{
    struct sim_data *now = &s->now[c->file];
    int rc = sim_record_room(s);

    if (rc == 0)
        rc = sim_state_room(&s->state, c->file);
    if (rc == 0 && !s->dead)
        rc = sim_change_apply(c, now); /* a write that fails has made room only: S2 */
    if (rc < 0) {
        sim_change_unref(c);
        return rc;
    }
    s->files[c->file].tainted = s->files[c->file].tainted || c->stale;
    sim_state_add(&s->state, c);
    if (s->dead)
        return -EIO;
    sim_record(s, SIM_ENTRY_CHANGE, c->file, c);
    sim_write_back(&s->state, s->files, s->now);
    return d->op->kind == SIM_WRITE ? (int)d->len : 0;
}

static ssize_t sim_do_read(struct zn_sim *s, struct sim_doing *d)
{
    const struct sim_data *now = &s->now[d->op->file];

    if (!now->exists)
        return -ENOENT;
    if (s->dead)
        return -EIO;
    if (s->options.discard) {
        if (!d->op->engine)
            memset(d->op->buf, 0, d->len);
        return (ssize_t)d->len;
    }
    sim_data_get(now, d->off, d->op->buf, d->len);
    if (d->flip)
        sim_flip(d->op->buf, d->flip_at);
    return (ssize_t)d->len;
}

static ssize_t sim_do_write(struct zn_sim *s, struct sim_doing *d)
{
    struct sim_data *now = &s->now[d->op->file];
    struct sim_change *c;

    if (!now->exists)
        return -ENOENT;
    if (d->off > SIM_SIZE_MAX || d->len > SIM_SIZE_MAX - d->off)
        return -EFBIG;
    if (d->lost)
        return s->dead ? -EIO : (ssize_t)d->len;
    if (s->options.discard) {
        if (!s->dead)
            now->size = zb_max_u64(now->size, d->off + d->len);
        return s->dead ? -EIO : (ssize_t)d->len;
    }
    c = sim_change_new(SIM_CHANGE_WRITE, d->op->file, now->born, d->off, d->op->bytes, d->len);
    if (!c)
        return -ENOMEM;
    c->stale = d->stale;
    if (d->flip)
        sim_flip(c->bytes, d->flip_at);
    return sim_change(s, d, c);
}

static ssize_t sim_do_meta(struct zn_sim *s, struct sim_doing *d)
{
    static const enum sim_change_kind kinds[] = {
        [SIM_RESIZE] = SIM_CHANGE_RESIZE,
        [SIM_CREATE] = SIM_CHANGE_CREATE,
        [SIM_DELETE] = SIM_CHANGE_DELETE,
    };
    enum sim_kind kind = d->op->kind;
    unsigned file = d->op->file;
    struct sim_change *c;

    if (s->now[file].exists == (kind == SIM_CREATE))
        return kind == SIM_CREATE ? -EEXIST : -ENOENT;
    if (kind == SIM_RESIZE && d->off > SIM_SIZE_MAX)
        return -EFBIG;
    if (kind == SIM_CREATE)
        s->files[file].births++;
    c = sim_change_new(kinds[kind], file,
                       kind == SIM_CREATE ? s->files[file].births : s->now[file].born, d->off, NULL,
                       0);
    return c ? sim_change(s, d, c) : -ENOMEM;
}

static ssize_t sim_do_flush(struct zn_sim *s, struct sim_doing *d)
{
    unsigned file = d->op->file;
    int rc;

    if (s->dead)
        return -EIO;
    rc = sim_record_room(s);
    if (rc == 0 && d->op->kind == SIM_FLUSH_NAMES)
        sim_state_flush_names(&s->state);
    else if (rc == 0)
        rc = sim_state_flush(&s->state, file, s->files[file].tainted ? NULL : &s->now[file]);
    if (rc == 0)
        sim_record(s, d->op->kind == SIM_FLUSH ? SIM_ENTRY_FLUSH : SIM_ENTRY_NAMES, file, NULL);
    return rc;
}

static uint64_t sim_forget_seed(const struct zn_sim *s, uint64_t op)
{
    return sim_mix(sim_mix(s->options.seed, DRAW_FORGET), op);
}

static void sim_forget(struct zn_sim *s, const struct sim_doing *d)
{
    if (s->dead || sim_record_room(s) < 0)
        return;
    sim_state_forget(&s->state, d->op->file, sim_forget_seed(s, d->n));
    s->files[d->op->file].tainted = true;
    sim_record(s, SIM_ENTRY_FORGET, d->op->file, NULL);
}

ssize_t sim_do(struct zn_sim *s, struct sim_op *op)
{
    struct sim_doing d = { .op = op, .off = op->off, .len = op->len };
    ssize_t rc = 0;

    sim_lock(s);
    d.n = s->ops++;
    op->ret_late = false;
    if (op->kind == SIM_READ) {
        uint64_t size = s->now[op->file].size;

        d.len = (size_t)(d.off < size ? zb_min_u64(d.len, size - d.off) : 0);
    }
    if (s->dead) {
        rc = -EIO;
    } else {
        sim_strike_all(s, &d);
        if (s->cut && d.n >= s->cut_op && !s->dead) {
            s->dead = true;
            s->dead_op = d.n;
        }
        rc = d.rc;
        if (d.forget)
            sim_forget(s, &d);
    }
    if (rc == 0 && (!s->dead || s->dead_op == d.n)) {
        switch (op->kind) {
        case SIM_READ:
            rc = sim_do_read(s, &d);
            break;
        case SIM_WRITE:
            rc = sim_do_write(s, &d);
            break;
        case SIM_FLUSH:
        case SIM_FLUSH_NAMES:
            rc = sim_do_flush(s, &d);
            break;
        case SIM_RESIZE:
        case SIM_CREATE:
        case SIM_DELETE:
            rc = sim_do_meta(s, &d);
            break;
        }
    }
    sim_snap_due(s);
    sim_unlock(s);
    return rc;
}

/* ---- power */

void zn_sim_cut(struct zn_sim *s, uint64_t op, uint32_t variant)
{
    sim_lock(s);
    s->cut = true;
    s->cut_op = op;
    s->cut_variant = variant;
    sim_unlock(s);
}

static uint64_t sim_settle_seed(const struct zn_sim *s, uint64_t op)
{
    return sim_mix(sim_mix(s->options.seed, DRAW_SETTLE), op);
}

/* What is durable is all that there is. */
static int sim_forget_now(struct zn_sim *s)
{
    for (unsigned i = 0; i < s->nfiles; i++) {
        struct sim_data copy;

        if (sim_data_copy(&copy, &s->state.files[i]) < 0)
            return -ENOMEM;
        sim_data_done(&s->now[i]);
        s->now[i] = copy;
        s->files[i].tainted = false;
    }
    return 0;
}

int zn_sim_restart(struct zn_sim *s)
{
    int rc = 0;

    sim_lock(s);
    assert(s->users == 0);
    if (!s->options.discard)
        rc = sim_state_settle(&s->state, sim_settle_seed(s, s->dead ? s->dead_op : s->ops),
                              s->cut_variant);
    if (rc == 0 && !s->options.discard)
        rc = sim_forget_now(s);
    if (rc == 0)
        rc = sim_snap(s);
    s->dead = s->cut = false;
    s->cut_variant = 0;
    s->nrules = 0;
    sim_unlock(s);
    return rc;
}

/* ---- from a recording */

/* The last copy of the state at or before an operation. */
static const struct sim_snap *sim_snap_before(const struct zn_sim *s, uint64_t op)
{
    size_t low = 0, high = s->nsnaps;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (s->snaps[mid].op <= op)
            low = mid + 1;
        else
            high = mid;
    }
    return low > 0 ? &s->snaps[low - 1] : NULL;
}

/* S3: what the operations before `op` did; of itself, its change. */
static int sim_replay(struct sim_state *st, const struct zn_sim *s, size_t first, uint64_t op)
{
    int rc = 0;

    for (size_t i = first; rc == 0 && i < s->nentries && s->entries[i].op <= op; i++) {
        const struct sim_entry *e = &s->entries[i];

        switch (e->kind) {
        case SIM_ENTRY_CHANGE:
            rc = sim_state_room(st, e->file);
            if (rc == 0) {
                sim_state_add(st, sim_change_ref(e->change));
                if (e->op < op)
                    sim_write_back(st, NULL, NULL);
            }
            break;
        case SIM_ENTRY_FLUSH:
            if (e->op < op)
                rc = sim_state_flush(st, e->file, NULL);
            break;
        case SIM_ENTRY_NAMES:
            if (e->op < op)
                sim_state_flush_names(st);
            break;
        case SIM_ENTRY_FORGET:
            if (e->op < op)
                sim_state_forget(st, e->file, sim_forget_seed(s, e->op));
            break;
        }
    }
    return rc;
}

static int sim_build_cut(struct zn_sim *to, const struct zn_sim *s, const struct sim_snap *snap,
                         uint64_t op, uint32_t variant)
{
    int rc = sim_state_copy(&to->state, &snap->state);

    if (rc == 0)
        rc = sim_replay(&to->state, s, snap->entry, op);
    if (rc == 0)
        rc = sim_state_settle(&to->state, sim_settle_seed(s, op), variant);
    if (rc == 0 && s->nfiles > 0)
        rc = sim_state_room(&to->state, s->nfiles - 1);
    if (rc == 0)
        rc = sim_copy_files(to, s, to->state.files);
    for (unsigned i = 0; rc == 0 && i < to->nfiles; i++)
        to->files[i].tainted = false;
    to->ops = op + 1;
    to->draws = op;
    return rc < 0 ? rc : sim_snap(to);
}

int zn_sim_cut_at(struct zn_sim **ret, const struct zn_sim *s, uint64_t op, uint32_t variant,
                  struct zb_err *err)
{
    const struct sim_snap *snap;
    struct zn_sim *cut;
    int rc;

    sim_lock(s);
    snap = op <= s->ops ? sim_snap_before(s, op) : NULL;
    if (!snap) {
        sim_unlock(s);
        return zb_fail(err, -EINVAL, "operation %llu of a simulated device was not recorded",
                       (unsigned long long)op);
    }
    cut = sim_alloc(&s->options);
    rc = cut ? sim_build_cut(cut, s, snap, op, variant) : -ENOMEM;
    sim_unlock(s);
    if (rc < 0) {
        zn_sim_free(cut);
        return zb_fail(err, rc, "a simulated device after a power cut: %m");
    }
    *ret = cut;
    return 0;
}

/* ---- what others ask */

uint64_t zn_sim_ops(const struct zn_sim *s)
{
    uint64_t ops;

    sim_lock(s);
    ops = s->ops;
    sim_unlock(s);
    return ops;
}

uint64_t sim_random(struct zn_sim *s)
{
    uint64_t drawn;

    sim_lock(s);
    drawn = sim_mix(sim_mix(s->options.seed, DRAW_RANDOM), s->draws++);
    sim_unlock(s);
    return drawn;
}

const struct zn_sim_options *sim_options(const struct zn_sim *s)
{
    return &s->options;
}

uint64_t sim_due_ns(struct zn_sim *s, size_t len)
{
    uint64_t now_ns = zb_now_ns(), due_ns;

    sim_lock(s);
    s->free_ns = zb_max_u64(s->free_ns, now_ns) +
                 (uint64_t)((double)len * 1e9 / (double)s->options.rate_bytes);
    due_ns = zb_max_u64(s->free_ns, now_ns + s->options.latency_ns);
    sim_unlock(s);
    return due_ns;
}

int64_t zn_sim_size(const struct zn_sim *s, const char *name)
{
    int64_t size = -ENOENT;
    int file;

    sim_lock(s);
    file = sim_find(s, name);
    if (file >= 0 && s->now[file].exists)
        size = (int64_t)s->now[file].size;
    sim_unlock(s);
    return size;
}

/* The file of a name, when the range is inside it. */
static int sim_range(const struct zn_sim *s, const char *name, uint64_t off, size_t len)
{
    int file = sim_find(s, name);

    if (file < 0 || !s->now[file].exists)
        return -ENOENT;
    return zb_range_inside(off, len, s->now[file].size) ? file : -ERANGE;
}

int zn_sim_peek(const struct zn_sim *s, const char *name, uint64_t off, void *bytes, size_t len)
{
    int file;

    sim_lock(s);
    file = sim_range(s, name, off, len);
    if (file >= 0)
        sim_data_get(&s->now[file], off, bytes, len);
    sim_unlock(s);
    return file < 0 ? file : 0;
}

int zn_sim_poke(struct zn_sim *s, const char *name, uint64_t off, const void *bytes, size_t len)
{
    int file, rc;

    sim_lock(s);
    rc = file = sim_range(s, name, off, len);
    if (file >= 0)
        rc = sim_state_flush(&s->state, (unsigned)file,
                             s->files[file].tainted ? NULL : &s->now[file]);
    if (rc == 0)
        rc = sim_data_own(&s->now[file], off, len);
    if (rc == 0)
        rc = sim_data_own(&s->state.files[file], off, len);
    if (rc == 0) {
        sim_data_put(&s->now[file], off, bytes, len);
        sim_data_put(&s->state.files[file], off, bytes, len);
        rc = sim_snap(s);
    }
    sim_unlock(s);
    return rc;
}

int zn_sim_vfs(struct zn_sim *s, const char **ret_name, struct zb_err *err)
{
    int rc = 0;

    if (!s->vfs)
        rc = sim_vfs_new(&s->vfs, s, err);
    if (rc == 0)
        *ret_name = sim_vfs_name(s->vfs);
    return rc;
}
