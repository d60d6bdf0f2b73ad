/*
 * daemons.c - daemons that run: which one answers, and what all of them promise.
 *
 * SOCKETS. Clients look at --socket, else $ZSHARD_SOCKET, else $XDG_RUNTIME_DIR/zshard.sock and
 * /run/zshard/zshard.sock. Here each place is tried alone, so that there is an answer for each. The
 * last two are tried also if a socket was named, to tell that the daemon is elsewhere.
 *
 * PROCESSES. Processes named zshardd, with the budget of their command line or of the file that it
 * names.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "base/util.h"
#include "client/zctl/doctor/machine.h"

#define PROGRAM       "zshardd"
#define SOCKET_SYSTEM "/run/zshard/zshard.sock"
#define CONNECT_MS    250u

/* ---- sockets */

static void socket_add(struct doctor_machine *m, const char *path, bool by_name)
{
    struct doctor_socket *s = &m->sockets[m->nsockets];

    for (size_t i = 0; i < m->nsockets; i++)
        if (strcmp(m->sockets[i].path, path) == 0)
            return;
    if (m->nsockets == DOCTOR_SOCKETS_MAX)
        return;
    m->nsockets++;
    (void)snprintf(s->path, sizeof(s->path), "%s", path);
    s->by_name = by_name;
}

static void sockets_find(struct doctor_machine *m, const char *given)
{
    const char *named = getenv("ZSHARD_SOCKET"), *session = getenv("XDG_RUNTIME_DIR");
    char path[PATH_MAX];

    named = given ? given : named;
    if (named && *named)
        socket_add(m, named, true);
    if (session && *session) {
        (void)snprintf(path, sizeof(path), "%s/zshard.sock", session);
        socket_add(m, path, false);
    }
    socket_add(m, SOCKET_SYSTEM, false);
}

static void daemon_budget(struct doctor_machine *m, struct zc_client *c)
{
    struct zc_tier_row *rows = NULL;
    size_t n = 0;

    if (zc_tiers_wait(c, &rows, &n) == 0)
        for (size_t i = 0; i < n; i++)
            if (strcmp(rows[i].name, "host") == 0)
                m->daemon.host_bytes = rows[i].budget;
    zc_rows_free(rows);
}

/** The process of the daemon, if it is one that we see. */
static uint32_t daemon_process(const struct doctor_machine *m, uint64_t pid)
{
    char path[64], name[64];

    (void)snprintf(path, sizeof(path), "/proc/%llu/comm", (unsigned long long)pid);
    return tree_line(m->root, path, name, sizeof(name)) && strcmp(name, PROGRAM) == 0
               ? (uint32_t)pid
               : 0;
}

static void socket_try(struct doctor_machine *m, struct doctor_socket *s)
{
    char full[PATH_MAX];
    struct zc_options options = {
        .socket = full,
        .program = "zctl doctor",
        .connect_timeout_ms = CONNECT_MS,
        .quiet_timeout_ms = CONNECT_MS,
        .no_wait = true,
    };
    struct zc_client *c = NULL;
    struct stat st;

    s->file = tree_stat(m->root, s->path, &st);
    s->uid = s->file ? st.st_uid : 0;
    if (!tree_path(m->root, s->path, full)) {
        s->rc = -EINVAL;
        return;
    }
    s->rc = zc_open(&c, &options);
    if (s->rc < 0)
        (void)snprintf(s->text, sizeof(s->text), "%.255s", c ? zc_error(c) : "no memory");
    else
        (void)snprintf(s->text, sizeof(s->text), "%s", zc_server(c)->server);
    if (s->rc == 0 && !m->daemon.answers) {
        m->daemon.answers = true;
        (void)snprintf(m->daemon.server, sizeof(m->daemon.server), "%s", zc_server(c)->server);
        m->daemon.pid = daemon_process(m, zc_server(c)->pid);
        daemon_budget(m, c);
    }
    zc_close(c);
}

/* ---- processes */

/** The value of an option on a command line of words that end with NUL; NULL: it is not there. */
static const char *word_value(const char *words, size_t bytes, const char *option)
{
    size_t len = strlen(option);

    for (size_t at = 0; at < bytes; at += strlen(words + at) + 1) {
        const char *word = words + at;

        if (strncmp(word, option, len) != 0)
            continue;
        if (word[len] == '=')
            return word + len + 1;
        if (word[len] == '\0' && at + len + 1 < bytes)
            return word + len + 1;
    }
    return NULL;
}

static void process_budget(const struct doctor_machine *m, struct doctor_process *p)
{
    char path[64], words[TREE_LINE], full[PATH_MAX];
    uint64_t host_bytes = DOCTOR_AUTO;
    const char *value, *file;
    FILE *f;
    size_t n;

    (void)snprintf(path, sizeof(path), "/proc/%u/cmdline", p->pid);
    f = tree_open(m->root, path);
    n = f ? fread(words, 1, sizeof(words) - 1, f) : 0;
    words[n] = '\0';
    if (f)
        (void)fclose(f);
    value = word_value(words, n, "--host-bytes");
    file = word_value(words, n, "--config");
    if (value)
        (void)zb_size_parse(value, &host_bytes, NULL); /* unchanged if it is "auto" */
    else if (file && tree_path(m->root, file, full))
        (void)doctor_conf_host(full, &host_bytes);
    p->configured = file && strcmp(file, m->conf_path) == 0;
    p->automatic = host_bytes == DOCTOR_AUTO;
    p->host_bytes = p->automatic ? 0 : host_bytes;
    if (p->pid == m->daemon.pid && m->daemon.host_bytes > 0)
        p->host_bytes = m->daemon.host_bytes;
}

static void processes_find(struct doctor_machine *m)
{
    char full[PATH_MAX];
    DIR *dir = tree_path(m->root, "/proc", full) ? opendir(full) : NULL;
    const struct dirent *entry;

    while (dir && m->nprocesses < DOCTOR_DAEMONS_MAX && (entry = readdir(dir)) != NULL) {
        uint32_t pid = isdigit((unsigned char)entry->d_name[0])
                           ? daemon_process(m, strtoull(entry->d_name, NULL, 10))
                           : 0;

        if (pid == 0)
            continue;
        m->processes[m->nprocesses].pid = pid;
        process_budget(m, &m->processes[m->nprocesses]);
        m->nprocesses++;
    }
    if (dir)
        (void)closedir(dir);
}

void doctor_daemons(struct doctor_machine *m, const struct doctor_given *given)
{
    sockets_find(m, given->socket);
    for (size_t i = 0; i < m->nsockets; i++)
        socket_try(m, &m->sockets[i]);
    processes_find(m);
}
