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
 * entries between, and decides what a restart would decide: it never runs anything again. A copy is
 * taken after every SIM_SNAP_ENTRIES entries or SIM_SNAP_BYTES written, and whenever contents
 * change without being recorded (restart, poke).
 *
 * INVARIANTS
 *     S1  Contents now = durable contents + all pending changes, for each file that no stale or
 *         forgotten write has ever tainted.
 *     S2  An operation that fails for lack of memory has changed nothing (a flush: made a part
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
#include "nvme/sim/sim_device_priv.h"

/* ---- making and freeing */

struct zn_sim *sim_alloc(const struct zn_sim_options *options)
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

int sim_copy_files(struct zn_sim *to, const struct zn_sim *from, const struct sim_data *now)
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
