/*
 * unit.c - the installed systemd unit of the daemon, with its drop-ins.
 *
 * Only the assignments of `keys` are read. A later one replaces an earlier one, or is appended to
 * it in a list; an empty one clears it. Specifiers and templates are not expanded.
 */
#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "client/zctl/doctor/machine.h"

#define UNIT       "zshardd.service"
#define DROPS_MAX  64u
#define AT(member) offsetof(struct doctor_unit, member), sizeof(((struct doctor_unit *)0)->member)

/* In the order of systemd's preference. */
static const char *const folders[] = {
    "/etc/systemd/system",     "/run/systemd/system", "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system", "/lib/systemd/system",
};

static const struct {
    const char *name;
    size_t at, bytes;
    bool list;
} keys[] = {
    { "ExecStart", AT(exec), false },
    { "User", AT(user), false },
    { "StateDirectory", AT(state), false },
    { "LimitMEMLOCK", AT(memlock), false },
    { "LimitNOFILE", AT(nofile), false },
    { "MemoryMax", AT(memory_max), false },
    { "PrivateDevices", AT(private_devices), false },
    { "ProtectSystem", AT(protect_system), false },
    { "ReadWritePaths", AT(writable), true },
    { "DeviceAllow", AT(devices), true },
};

static void unit_set(struct doctor_unit *u, const char *name, const char *value)
{
    for (size_t i = 0; i < ZB_COUNT(keys); i++) {
        char *at = (char *)u + keys[i].at;
        size_t len = keys[i].list && *value ? strlen(at) : 0;

        if (strcmp(keys[i].name, name) == 0)
            (void)snprintf(at + len, keys[i].bytes - len, "%s%s", len > 0 ? " " : "", value);
    }
}

/** Removes blanks at the end of a text, and returns what follows those at its beginning. */
static char *trimmed(char *text)
{
    size_t len = strlen(text);

    while (len > 0 && isspace((unsigned char)text[len - 1]))
        text[--len] = '\0';
    return text + strspn(text, " \t");
}

static bool unit_read(struct doctor_machine *m, const char *path)
{
    FILE *f = tree_open(m->root, path);
    char line[TREE_LINE];

    while (f && fgets(line, sizeof(line), f)) {
        char *name = trimmed(line), *equals = strchr(name, '=');

        if (!equals || *name == '#' || *name == ';')
            continue;
        *equals = '\0';
        unit_set(&m->unit, trimmed(name), trimmed(equals + 1));
    }
    if (f)
        (void)fclose(f);
    return f != NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/** The names of the drop-ins of one folder, sorted; each is to be freed. */
static size_t drop_names(const struct doctor_machine *m, const char *folder, char **names)
{
    char full[PATH_MAX];
    DIR *dir = tree_path(m->root, folder, full) ? opendir(full) : NULL;
    const struct dirent *entry;
    size_t n = 0;

    while (dir && n < DROPS_MAX && (entry = readdir(dir)) != NULL) {
        size_t len = strlen(entry->d_name);

        if (len > 5 && strcmp(entry->d_name + len - 5, ".conf") == 0 &&
            (names[n] = strdup(entry->d_name)) != NULL)
            n++;
    }
    if (dir)
        (void)closedir(dir);
    qsort(names, n, sizeof(*names), by_name);
    return n;
}

static void unit_drops(struct doctor_machine *m, const char *folder)
{
    char drops[PATH_MAX], path[2 * PATH_MAX], *names[DROPS_MAX];
    size_t n;

    (void)snprintf(drops, sizeof(drops), "%s/" UNIT ".d", folder);
    n = drop_names(m, drops, names);
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", drops, names[i]);
        (void)unit_read(m, path);
        free(names[i]);
    }
}

/** The path after "--config" in ExecStart. */
static void unit_config(struct doctor_unit *u)
{
    const char *at = strstr(u->exec, "--config");

    if (!at)
        return;
    at += strlen("--config");
    at += strspn(at, " =");
    (void)snprintf(u->config, sizeof(u->config), "%.*s", (int)strcspn(at, " "), at);
}

void doctor_unit(struct doctor_machine *m)
{
    char path[PATH_MAX];

    for (size_t i = 0; i < ZB_COUNT(folders) && m->unit.path[0] == '\0'; i++) {
        (void)snprintf(path, sizeof(path), "%s/" UNIT, folders[i]);
        if (unit_read(m, path))
            (void)snprintf(m->unit.path, sizeof(m->unit.path), "%s", path);
    }
    if (m->unit.path[0] == '\0')
        return;
    for (size_t i = ZB_COUNT(folders); i-- > 0;) /* those of /etc are last, and win */
        unit_drops(m, folders[i]);
    unit_config(&m->unit);
}
