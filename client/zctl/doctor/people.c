/*
 * people.c - users and groups: of this session, of the daemon, and in the database.
 *
 * The session's are read from /proc/self/status. The database is that of the C library, or in tests
 * the files below the root.
 */
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zctl/doctor/machine.h"

/** A line of /etc/passwd, in tests, of a user with this name (or NULL, this uid). */
static bool file_user(const char *root, const char *name, uint32_t uid, struct doctor_person *ret)
{
    FILE *f = tree_open(root, "/etc/passwd");
    const struct passwd *p;
    bool found = false;

    while (f && !found && (p = fgetpwent(f)) != NULL) {
        found = name ? strcmp(p->pw_name, name) == 0 : p->pw_uid == uid;
        if (found) {
            (void)snprintf(ret->name, sizeof(ret->name), "%s", p->pw_name);
            ret->uid = p->pw_uid;
            ret->gid = p->pw_gid;
        }
    }
    if (f)
        (void)fclose(f);
    return found;
}

static bool user_find(const char *root, const char *name, uint32_t uid, struct doctor_person *ret)
{
    const struct passwd *p;

    if (*root)
        return file_user(root, name, uid, ret);
    p = name ? getpwnam(name) : getpwuid(uid);
    if (!p)
        return false;
    (void)snprintf(ret->name, sizeof(ret->name), "%s", p->pw_name);
    ret->uid = p->pw_uid;
    ret->gid = p->pw_gid;
    return true;
}

static void person_add(struct doctor_person *p, uint32_t gid)
{
    if (!doctor_person_in(p, gid) && p->ngroups < DOCTOR_GROUPS_MAX)
        p->groups[p->ngroups++] = gid;
}

static bool group_lists(const struct group *g, const char *name)
{
    for (char *const *member = g->gr_mem; *member; member++)
        if (strcmp(*member, name) == 0)
            return true;
    return false;
}

/** Adds the groups of a user in the database. */
static void person_groups(const char *root, struct doctor_person *p)
{
    gid_t all[DOCTOR_GROUPS_MAX];
    int n = (int)ZB_COUNT(all);
    FILE *f = *root ? tree_open(root, "/etc/group") : NULL;
    const struct group *g;

    person_add(p, p->gid);
    if (*root) {
        while (f && (g = fgetgrent(f)) != NULL)
            if (group_lists(g, p->name))
                person_add(p, g->gr_gid);
        if (f)
            (void)fclose(f);
        return;
    }
    if (getgrouplist(p->name, p->gid, all, &n) < 0)
        n = (int)ZB_COUNT(all); /* there are more: these were filled in */
    for (int i = 0; i < n; i++)
        person_add(p, all[i]);
}

bool doctor_person(const char *root, const char *name, struct doctor_person *ret)
{
    struct doctor_person p = { .known = true };

    if (!user_find(root, name, 0, &p))
        return false;
    person_groups(root, &p);
    *ret = p;
    return true;
}

bool doctor_group(const char *root, const char *group, const struct doctor_person *user,
                  uint32_t *ret_gid, bool *ret_member)
{
    FILE *f = *root ? tree_open(root, "/etc/group") : NULL;
    const struct group *g = NULL;
    struct doctor_person in_database = *user;

    if (!*root)
        g = getgrnam(group);
    while (f && (g = fgetgrent(f)) != NULL && strcmp(g->gr_name, group) != 0)
        ;
    if (g) {
        *ret_gid = g->gr_gid;
        *ret_member = group_lists(g, user->name);
    }
    if (f)
        (void)fclose(f);
    if (!g)
        return false;
    if (!*ret_member) { /* a primary group, or a database that does not list members */
        in_database.ngroups = 0;
        if (user->name[0] != '\0')
            person_groups(root, &in_database);
        *ret_member = doctor_person_in(&in_database, *ret_gid);
    }
    return true;
}

bool doctor_person_in(const struct doctor_person *p, uint32_t gid)
{
    for (size_t i = 0; i < p->ngroups; i++)
        if (p->groups[i] == gid)
            return true;
    return false;
}

bool doctor_person_may(const struct doctor_person *p, const struct stat *st, mode_t rights)
{
    if (p->uid == 0)
        return true;
    if (p->uid == st->st_uid)
        return (st->st_mode >> 6 & rights) == rights;
    if (p->gid == st->st_gid || doctor_person_in(p, st->st_gid))
        return (st->st_mode >> 3 & rights) == rights;
    return (st->st_mode & rights) == rights;
}

/** The ids of a process. False: it cannot be seen. */
static bool process_person(const char *root, const char *path, struct doctor_person *ret)
{
    struct doctor_person p = { .known = true };
    char text[TREE_LINE], *at, *end;

    if (!tree_value(root, path, "Uid", text, sizeof(text)) || sscanf(text, "%*u %u", &p.uid) != 1 ||
        !tree_value(root, path, "Gid", text, sizeof(text)) || sscanf(text, "%*u %u", &p.gid) != 1)
        return false;
    person_add(&p, p.gid);
    if (tree_value(root, path, "Groups", text, sizeof(text)))
        for (at = text; at += strspn(at, " \t"), *at; at = end) {
            uint32_t gid = (uint32_t)strtoul(at, &end, 10);

            if (end == at)
                break;
            person_add(&p, gid);
        }
    *ret = p;
    return true;
}

void doctor_people(struct doctor_machine *m)
{
    struct doctor_person named = { .name = "" };

    if (!process_person(m->root, "/proc/self/status", &m->session)) {
        m->session = (struct doctor_person){ .known = true, .uid = geteuid(), .gid = getegid() };
        person_add(&m->session, m->session.gid);
    }
    if (user_find(m->root, NULL, m->session.uid, &named))
        memcpy(m->session.name, named.name, sizeof(m->session.name));
    m->daemon_user = m->session;
    if (!m->service || m->unit.user[0] == '\0')
        return;
    m->daemon_user = (struct doctor_person){ .known = false };
    (void)doctor_person(m->root, m->unit.user, &m->daemon_user);
    memcpy(m->daemon_user.name, m->unit.user, sizeof(m->daemon_user.name));
}
