/*
 * places.c - the directories of the data files, their file systems and drives.
 *
 * A path on a remote file system is not touched: a server that is gone would stop us. Its type is
 * found by name, in /proc/self/mountinfo.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zctl/doctor/machine.h"

#define DATA_FILE "pages.zsd"

static const char *const remote[] = {
    "nfs",         "nfs4",      "cifs",         "smb3", "9p",         "ceph",           "lustre",
    "gpfs",        "beegfs",    "glusterfs",    "afs",  "fuse.sshfs", "fuse.glusterfs", "fuse.ceph",
    "fuse.beegfs", "fuse.s3fs", "fuse.juicefs",
};

/** "\040" stands for a blank. */
static void mount_decode(char *text)
{
    char *to = text;

    for (const char *from = text; *from; to++)
        if (from[0] == '\\' && isdigit((unsigned char)from[1]) && isdigit((unsigned char)from[2]) &&
            isdigit((unsigned char)from[3])) {
            *to = (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0'));
            from += 4;
        } else {
            *to = *from++;
        }
    *to = '\0';
}

/** Whether `path` is `above`, or below it. */
static bool path_below(const char *path, const char *above)
{
    size_t len = strcmp(above, "/") == 0 ? 0 : strlen(above);

    return strncmp(path, above, len) == 0 && (path[len] == '/' || path[len] == '\0' || len == 0);
}

struct mount {
    char point[TREE_LINE], type[64], options[512], device[32], source[TREE_LINE];
};

/** "36 25 259:2 /root /point rw,nosuid shared:1 - ext4 /dev/nvme0n1p2 rw": proc(5). */
static bool mount_parse(const char *line, struct mount *ret)
{
    const char *dash = strstr(line, " - ");

    if (!dash ||
        sscanf(line, "%*s %*s %31s %*s %4095s %511s", ret->device, ret->point, ret->options) != 3 ||
        sscanf(dash, " - %63s %4095s", ret->type, ret->source) != 2)
        return false;
    mount_decode(ret->point);
    return true;
}

/** The file system of a path: of those above it, the longest, and of equal ones the last. */
static bool mount_find(const char *root, const char *path, struct mount *ret)
{
    FILE *f = tree_open(root, "/proc/self/mountinfo");
    char line[2 * TREE_LINE];
    struct mount now;
    size_t longest = 0;
    bool found = false;

    while (f && fgets(line, sizeof(line), f)) {
        if (!mount_parse(line, &now) || !path_below(path, now.point) || strlen(now.point) < longest)
            continue;
        longest = strlen(now.point);
        *ret = now;
        found = true;
    }
    if (f)
        (void)fclose(f);
    return found;
}

/** Goes up to a directory that exists. */
static void place_there(const char *root, struct doctor_place *p)
{
    char *slash;

    (void)snprintf(p->there, sizeof(p->there), "%s", p->path);
    p->exists = tree_stat(root, p->path, &p->st);
    while (!tree_stat(root, p->there, &p->st) && (slash = strrchr(p->there, '/')) != NULL) {
        slash[slash == p->there] = '\0';
        if (slash == p->there)
            break;
    }
    if (!p->exists)
        (void)tree_stat(root, p->there, &p->st);
}

/** The folder of a device in /sys, with its queue: of a partition, that of its drive. */
static bool drive_folder(const char *root, const struct mount *mount, char ret[PATH_MAX])
{
    const char *name = strrchr(mount->source, '/');
    char queue[2 * PATH_MAX];

    if (strncmp(mount->device, "0:", 2) != 0)
        (void)snprintf(ret, PATH_MAX, "/sys/dev/block/%s", mount->device);
    else if (strncmp(mount->source, "/dev/", 5) == 0)
        (void)snprintf(ret, PATH_MAX, "/sys/class/block/%s", name + 1);
    else
        return false;
    (void)snprintf(queue, sizeof(queue), "%s/queue/rotational", ret);
    if (tree_exists(root, queue))
        return true;
    (void)snprintf(queue, sizeof(queue), "%s/../queue/rotational", ret);
    (void)strncat(ret, "/..", PATH_MAX - strlen(ret) - 1);
    return tree_exists(root, queue);
}

static void place_drive(const char *root, const struct mount *mount, struct doctor_place *p)
{
    char folder[PATH_MAX], path[2 * PATH_MAX], full[PATH_MAX], real[PATH_MAX];
    uint64_t rotates;

    if (!drive_folder(root, mount, folder))
        return;
    (void)snprintf(path, sizeof(path), "%s/queue/rotational", folder);
    if (tree_number(root, path, NULL, &rotates))
        p->rotates = rotates != 0;
    (void)snprintf(path, sizeof(path), "%s/queue/scheduler", folder);
    (void)tree_line(root, path, p->scheduler, sizeof(p->scheduler));
    if (tree_path(root, folder, full) && realpath(full, real))
        (void)snprintf(p->drive, sizeof(p->drive), "%.63s", strrchr(real, '/') + 1);
}

static void place_network(struct doctor_place *p)
{
    for (size_t i = 0; i < ZB_COUNT(remote); i++)
        p->network = p->network || strcmp(p->type, remote[i]) == 0;
}

static void place_mount(struct doctor_place *p, const struct mount *mount)
{
    (void)snprintf(p->mount, sizeof(p->mount), "%s", mount->point);
    memcpy(p->type, mount->type, sizeof(p->type));
    memcpy(p->options, mount->options, sizeof(p->options));
    place_network(p);
}

static void place_look(const char *root, struct doctor_place *p)
{
    struct mount mount = { .type = "" };
    char file[PATH_MAX + sizeof(DATA_FILE)], real[PATH_MAX];
    struct stat st;

    p->rotates = -1;
    p->free_bytes = UINT64_MAX;
    if (mount_find(root, p->path, &mount))
        place_mount(p, &mount);
    if (p->network)
        return;
    place_there(root, p);
    if (*root == '\0' && realpath(p->there, real) && mount_find(root, real, &mount))
        place_mount(p, &mount); /* the path may have symbolic links */
    if (p->network)
        return;
    place_drive(root, &mount, p);
    (void)snprintf(file, sizeof(file), "%s/" DATA_FILE, p->path);
    p->file = tree_stat(root, file, &st);
    p->file_bytes = p->file ? (uint64_t)st.st_size : 0;
}

static struct doctor_place *place_add(struct doctor_machine *m, const char *path, size_t len)
{
    struct doctor_place *p = &m->places[m->nplaces];

    if (m->nplaces == DOCTOR_PLACES_MAX || len == 0)
        return NULL;
    m->nplaces++;
    (void)snprintf(p->path, sizeof(p->path), "%.*s", (int)len, path);
    for (len = strlen(p->path); len > 1 && p->path[len - 1] == '/'; len--)
        p->path[len - 1] = '\0';
    return p;
}

/** The directory of `data`: the rule of daemon/disk/datadir.h, for the service or this session. */
static void place_first(struct doctor_machine *m)
{
    const char *tmp = getenv("TMPDIR");
    char state[PATH_MAX];
    struct doctor_place *p;

    if (m->conf.data[0] != '\0') {
        (void)place_add(m, m->conf.data, strlen(m->conf.data));
    } else if (m->service && m->unit.state[0] != '\0') {
        (void)snprintf(state, sizeof(state), "/var/lib/%.*s", (int)strcspn(m->unit.state, " "),
                       m->unit.state);
        (void)place_add(m, state, strlen(state));
    } else {
        tmp = tmp && *tmp && !m->service ? tmp : "/var/tmp";
        p = place_add(m, tmp, strlen(tmp));
        if (p)
            p->temporary = true;
    }
}

void doctor_places(struct doctor_machine *m)
{
    place_first(m);
    for (const char *at = m->conf.paths; *at; at += *at == ':') {
        size_t len = strcspn(at, ":");

        (void)place_add(m, at, len);
        at += len;
    }
    for (size_t i = 0; i < m->nplaces; i++)
        place_look(m->root, &m->places[i]);
}
