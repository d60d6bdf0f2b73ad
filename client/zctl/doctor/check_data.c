/*
 * check_data.c - the directories of the data files, their file systems and drives.
 *
 * Each check looks at every place (data, then paths) and reports the first that is wrong.
 */
#include <string.h>

#include "base/size.h"
#include "base/util.h"
#include "client/zctl/doctor/check.h"

#define NVME_AUTO      (4 * ZB_GIB) /* as daemon/disk/datadir.c */
#define NVME_BYTES_MIN ZB_MIB

/** Runs a check over the places until one is not well. */
static void each_place(const struct doctor_machine *m, struct doctor_finding *f,
                       void (*look)(const struct doctor_machine *m, const struct doctor_place *p,
                                    struct doctor_finding *f))
{
    for (size_t i = 0; i < m->nplaces && f->level < DOCTOR_ADVICE; i++)
        look(m, &m->places[i], f);
}

/** Whether there is a data file to look at. False: *f says why not. */
static bool has_data(const struct doctor_machine *m, struct doctor_finding *f)
{
    if (m->conf.nvme_bytes == 0)
        doctor_found(f, DOCTOR_SKIPPED, "nvme_bytes is 0: no data file");
    else if (strcmp(m->conf.io, "fixed") == 0)
        doctor_found(f, DOCTOR_SKIPPED, "io = fixed: no data file");
    else
        return true;
    return false;
}

/** The directory that systemd makes for the unit, and gives to its user. */
static bool is_state(const struct doctor_machine *m, const struct doctor_place *p)
{
    char state[PATH_MAX];

    (void)snprintf(state, sizeof(state), "/var/lib/%.*s", (int)strcspn(m->unit.state, " "),
                   m->unit.state);
    return m->service && m->unit.state[0] != '\0' && strcmp(p->path, state) == 0;
}

/* ---- the directory */

/** Before the fix of a directory: on the system's own file system it may be what an unmounted drive hides. */
static const char *mount_first(const struct doctor_place *p)
{
    return strcmp(p->mount, "/") == 0 ? "If a drive belongs there, mount it first. " : "";
}

/** One that exists: the rule of zsd_datadir_trusted(), and whether the daemon can use it. */
static void directory_owner(const struct doctor_machine *m, const struct doctor_place *p,
                            struct doctor_finding *f)
{
    const struct doctor_person *user = &m->daemon_user;
    bool others = (p->st.st_mode & S_IWOTH) ||
                  ((p->st.st_mode & S_IWGRP) && p->st.st_gid != user->gid);

    if (user->known && p->st.st_uid != 0 && p->st.st_uid != user->uid) {
        doctor_found(f, DOCTOR_FAILED, "'%.200s' belongs to user %u, and the daemon runs as '%s'",
                     p->path, p->st.st_uid, user->name);
        doctor_fix(f, "%sRun as root: chown %s '%.300s'", mount_first(p), user->name, p->path);
    } else if (others) {
        doctor_found(f, DOCTOR_FAILED,
                     "'%.200s' has mode %04o: other users could replace what is saved", p->path,
                     p->st.st_mode & 07777);
        doctor_fix(f, "Run: chmod go-w '%.300s'", p->path);
    } else if (user->known && !doctor_person_may(user, &p->st, 07)) {
        doctor_found(f, DOCTOR_FAILED, "user '%s' may not write to '%.200s'", user->name, p->path);
        doctor_fix(f, "%sRun as root: chown %s '%.300s'", mount_first(p), user->name, p->path);
    } else {
        doctor_found(f, DOCTOR_OK, "'%.300s'", p->path);
    }
}

static void directory_look(const struct doctor_machine *m, const struct doctor_place *p,
                           struct doctor_finding *f)
{
    const char *slash = strrchr(p->path, '/');
    size_t parent = slash > p->path ? (size_t)(slash - p->path) : 1;
    bool parent_there = strlen(p->there) == parent && strncmp(p->there, p->path, parent) == 0;

    if (p->path[0] != '/') {
        doctor_found(f, DOCTOR_FAILED, "'%.200s' is relative to the directory of the daemon",
                     p->path);
        doctor_fix(f, "Name the directory with its full path.");
    } else if (p->network) {
        doctor_found(f, DOCTOR_SKIPPED, "'%.200s' is on a remote file system", p->path);
    } else if (is_state(m, p)) {
        doctor_found(f, DOCTOR_OK, "'%.200s': systemd makes it, for the service", p->path);
    } else if (p->exists && !S_ISDIR(p->st.st_mode)) {
        doctor_found(f, DOCTOR_FAILED, "'%.200s' is not a directory", p->path);
    } else if (p->temporary && p->exists) {
        doctor_found(f, DOCTOR_OK, "a temporary one in '%.200s'", p->path);
    } else if (p->exists) {
        directory_owner(m, p, f);
    } else if (!parent_there) {
        doctor_found(f, DOCTOR_FAILED,
                     "'%.200s' does not exist, and neither does the directory above it", p->path);
        doctor_fix(f, "%sRun as root: install -d -m 0700 -o %s '%.300s'", mount_first(p),
                   m->daemon_user.name, p->path);
    } else if (m->daemon_user.known && !doctor_person_may(&m->daemon_user, &p->st, 03)) {
        doctor_found(f, DOCTOR_FAILED, "'%.200s' does not exist, and user '%s' may not make it",
                     p->path, m->daemon_user.name);
        doctor_fix(f, "%sRun as root: install -d -m 0700 -o %s '%.300s'", mount_first(p),
                   m->daemon_user.name, p->path);
    } else {
        doctor_found(f, DOCTOR_OK, "'%.200s' will be made", p->path);
    }
}

void doctor_data_directory(const struct doctor_machine *m, struct doctor_finding *f)
{
    each_place(m, f, directory_look);
}

/** Whether a path is one of a list with blanks, or below one. */
static bool path_listed(const char *list, const char *path)
{
    for (const char *at = list; *at;) {
        const char *word = at + strspn(at, " -+"); /* systemd's prefixes */
        size_t len = strcspn(word, " ");

        while (len > 1 && word[len - 1] == '/')
            len--;
        if (len > 0 && strncmp(path, word, len) == 0 && (path[len] == '/' || path[len] == '\0'))
            return true;
        at = word + strcspn(word, " ");
    }
    return false;
}

/** Whether the unit may write to a directory. */
static bool unit_writes(const struct doctor_machine *m, const struct doctor_place *p)
{
    return is_state(m, p) || path_listed(m->unit.writable, p->path) ||
           (p->temporary && strcmp(p->path, "/var/tmp") == 0);
}

/** The first directory that the unit may not write to, and one line for the unit that allows all of them. */
static void unit_paths_look(const struct doctor_machine *m, struct doctor_finding *f)
{
    char list[sizeof(f->fix)] = "";
    size_t used = 0;

    doctor_found(f, DOCTOR_OK, "the unit may write to every data directory");
    for (size_t i = 0; i < m->nplaces; i++) {
        const struct doctor_place *p = &m->places[i];

        if (unit_writes(m, p))
            continue;
        if (f->level == DOCTOR_OK)
            doctor_found(f, DOCTOR_FAILED,
                         "the unit may not write to '%.200s' (ProtectSystem=strict)", p->path);
        if (used < sizeof(list))
            used += (size_t)snprintf(list + used, sizeof(list) - used, " %.300s", p->path);
    }
    if (list[0])
        doctor_fix(f, "Run systemctl edit zshardd, and add below [Service]: ReadWritePaths=%s",
                   list + 1);
}

void doctor_unit_paths(const struct doctor_machine *m, struct doctor_finding *f)
{
    if (!m->service || strcmp(m->unit.protect_system, "strict") != 0)
        doctor_found(f, DOCTOR_SKIPPED, "no unit restricts where a daemon writes");
    else
        unit_paths_look(m, f);
}

/* ---- the file system */

/** Whether one of the words of a list with commas is `word`. */
static bool option_has(const char *list, const char *word)
{
    size_t len = strlen(word);

    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, word, len) == 0 && (at[len] == ',' || at[len] == '\0'))
            return true;
    return false;
}

static void file_system_look(const struct doctor_machine *m, const struct doctor_place *p,
                             struct doctor_finding *f)
{
    (void)m;
    if (p->type[0] == '\0') {
        doctor_found(f, DOCTOR_SKIPPED, "the file system of '%.200s' is not known", p->path);
    } else if (p->network) {
        doctor_found(f, DOCTOR_FAILED, "'%.200s' is on %s: a remote file system", p->path, p->type);
    } else if (strcmp(p->type, "tmpfs") == 0 || strcmp(p->type, "ramfs") == 0) {
        doctor_found(f, DOCTOR_FAILED,
                     "'%.200s' is on %s: a data file there takes the memory that it should save",
                     p->path, p->type);
    } else if (option_has(p->options, "ro")) {
        doctor_found(f, DOCTOR_FAILED, "'%.200s' is on a file system that is mounted read-only",
                     p->path);
        doctor_fix(f,
                   "Run as root: mount -o remount,rw '%.300s' (dmesg tells whether an error made "
                   "it read-only)",
                   p->mount);
    } else if (strcmp(p->type, "overlay") == 0) {
        doctor_found(f, p->temporary ? DOCTOR_ADVICE : DOCTOR_FAILED,
                     "'%.200s' is on overlay: it is lost with its container, and slow", p->path);
        doctor_fix(f, "Mount a directory of a local drive into the container, and set data to it.");
    } else if (strcmp(p->type, "btrfs") == 0 || strcmp(p->type, "zfs") == 0) {
        doctor_found(f, DOCTOR_ADVICE, "'%.200s' is on %s, which writes each page to a new place",
                     p->path, p->type);
    } else {
        doctor_found(f, DOCTOR_OK, "%s", p->type);
    }
}

void doctor_file_system(const struct doctor_machine *m, struct doctor_finding *f)
{
    if (has_data(m, f))
        each_place(m, f, file_system_look);
}

/** Bytes that a data file of this place would take in addition to what is there. */
static uint64_t place_needs(const struct doctor_machine *m, const struct doctor_place *p)
{
    if (m->conf.nvme_bytes != DOCTOR_AUTO)
        return m->conf.nvme_bytes - zb_min_u64(m->conf.nvme_bytes, p->file_bytes);
    return p->file_bytes > 0 ? 0 : zb_min_u64(NVME_AUTO, p->free_bytes / 2);
}

/** That of all data files on the same file system. */
static uint64_t mount_needs(const struct doctor_machine *m, const struct doctor_place *p)
{
    uint64_t all = 0;

    for (size_t i = 0; i < m->nplaces; i++)
        if (strcmp(m->places[i].mount, p->mount) == 0)
            all += place_needs(m, &m->places[i]);
    return all;
}

static void space_look(const struct doctor_machine *m, const struct doctor_place *p,
                       struct doctor_finding *f)
{
    uint64_t needs = mount_needs(m, p);

    if (p->free_bytes == UINT64_MAX)
        doctor_found(f, DOCTOR_SKIPPED, "the free space of '%.200s' is not known", p->path);
    else if (m->conf.nvme_bytes == DOCTOR_AUTO && p->file_bytes == 0 && needs < NVME_BYTES_MIN)
        doctor_found(f, DOCTOR_FAILED, "the file system of '%.200s' is full", p->path);
    else if (needs > p->free_bytes)
        doctor_found(f, DOCTOR_FAILED, "nvme_bytes needs %s more at '%.200s', where %s is free",
                     zb_size_text(needs).s, p->path, zb_size_text(p->free_bytes).s);
    else
        doctor_found(f, DOCTOR_OK, "%s free, %s needed", zb_size_text(p->free_bytes).s,
                     zb_size_text(needs).s);
}

void doctor_space(const struct doctor_machine *m, struct doctor_finding *f)
{
    if (has_data(m, f))
        each_place(m, f, space_look);
}

static void data_file_look(const struct doctor_machine *m, const struct doctor_place *p,
                           struct doctor_finding *f)
{
    if (!p->file)
        doctor_found(f, DOCTOR_OK, "none yet");
    else if (m->conf.nvme_bytes != DOCTOR_AUTO && p->file_bytes > m->conf.nvme_bytes)
        doctor_found(f, DOCTOR_FAILED, "the data file in '%.200s' has %s, and nvme_bytes is %s",
                     p->path, zb_size_text(p->file_bytes).s, zb_size_text(m->conf.nvme_bytes).s);
    else
        doctor_found(f, DOCTOR_OK, "%s", zb_size_text(p->file_bytes).s);
}

void doctor_data_file(const struct doctor_machine *m, struct doctor_finding *f)
{
    if (has_data(m, f))
        each_place(m, f, data_file_look);
}

static void direct_look(const struct doctor_machine *m, const struct doctor_place *p,
                        struct doctor_finding *f)
{
    (void)m;
    if (p->direct == DIRECT_UNKNOWN)
        doctor_found(f, DOCTOR_SKIPPED, "this user cannot try it in '%.200s'", p->there);
    else if (p->direct == DIRECT_NO)
        doctor_found(f, DOCTOR_ADVICE, "'%.200s' (%s) has no O_DIRECT", p->path, p->type);
    else
        doctor_found(f, DOCTOR_OK, "works");
}

void doctor_direct(const struct doctor_machine *m, struct doctor_finding *f)
{
    if (has_data(m, f))
        each_place(m, f, direct_look);
}

/* ---- the drive */

static void drive_look(const struct doctor_machine *m, const struct doctor_place *p,
                       struct doctor_finding *f)
{
    (void)m;
    if (p->drive[0] == '\0' || p->rotates < 0)
        doctor_found(f, DOCTOR_SKIPPED, "the drive of '%.200s' is not known", p->path);
    else if (p->rotates)
        doctor_found(f, DOCTOR_ADVICE,
                     "'%.200s' is on %s, which the kernel takes for a rotating disk", p->path,
                     p->drive);
    else
        doctor_found(f, DOCTOR_OK, "%s", p->drive);
}

void doctor_drive(const struct doctor_machine *m, struct doctor_finding *f)
{
    if (has_data(m, f))
        each_place(m, f, drive_look);
}

/** NVMe drives order requests themselves: "[none] mq-deadline kyber bfq". */
static void scheduler_look(const struct doctor_machine *m, const struct doctor_place *p,
                           struct doctor_finding *f)
{
    (void)m;
    if (strncmp(p->drive, "nvme", 4) != 0 || p->scheduler[0] == '\0') {
        doctor_found(f, DOCTOR_SKIPPED, "no NVMe drive, or its scheduler is not known");
    } else if (strstr(p->scheduler, "[none]")) {
        doctor_found(f, DOCTOR_OK, "none");
    } else {
        doctor_found(f, DOCTOR_ADVICE, "%s has an I/O scheduler: %s", p->drive, p->scheduler);
        doctor_fix(f, "Run as root: echo none > /sys/block/%s/queue/scheduler", p->drive);
    }
}

void doctor_scheduler(const struct doctor_machine *m, struct doctor_finding *f)
{
    if (has_data(m, f))
        each_place(m, f, scheduler_look);
}
