/*
 * log_journal.c - the native protocol of systemd's journal (systemd.io/JOURNAL_NATIVE_PROTOCOL): a
 * datagram with a line NAME=value for each field. Values are cleaned, so none has a newline.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log_priv.h"
#include "base/util.h"

#define SOCKET_PATH "/run/systemd/journal/socket"

/* Set before threads start. */
static const struct zb_log_program *journal_program;
static struct sockaddr_un journal_address;
static int journal_fd = -1;

bool zb_log_is_journal(void)
{
    const char *text = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat st;

    return text && sscanf(text, "%llu:%llu", &device, &inode) == 2 &&
           fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}

int zb_log_journal_open(const struct zb_log_program *program, struct zb_err *err)
{
    const char *path = getenv("ZSHARD_JOURNAL_SOCKET");
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd, rc;

    if (!path || !*path)
        path = SOCKET_PATH;
    if (strlen(path) >= sizeof(a.sun_path))
        return zb_fail(err, -ENAMETOOLONG, "the journal's socket %s: %m", path);
    memcpy(a.sun_path, path, strlen(path));
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return zb_fail(err, -errno, "a socket for the journal: %m");
    rc = connect(fd, (const struct sockaddr *)&a, sizeof(a)) < 0 ? -errno : 0;
    if (rc == 0) { /* not connected: the journal may be restarted */
        zb_close_fd(&fd);
        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        rc = fd < 0 ? -errno : 0;
    }
    if (rc < 0) {
        zb_close_fd(&fd);
        return zb_fail(err, rc, "the journal's socket %s: %m", path);
    }
    zb_close_fd(&journal_fd);
    journal_fd = fd;
    journal_address = a;
    journal_program = program;
    return 0;
}

static void journal_pair(struct zb_log_out *out, const char *key, const char *value)
{
    (void)zb_log_puts(out, key);
    (void)zb_log_puts(out, "=");
    (void)zb_log_puts(out, value);
    (void)zb_log_puts(out, "\n");
}

/** A pair of the line: its key in capitals, after the prefix. */
static void journal_field(struct zb_log_out *out, const struct zb_log_line *line,
                          const struct zb_log_field *f, const char *clean)
{
    (void)zb_log_puts(out, journal_program->prefix);
    for (unsigned i = 0; i < f->key_bytes; i++) {
        char c = (char)toupper((unsigned char)line->text[f->key + i]);

        (void)zb_log_put(out, &c, 1);
    }
    (void)zb_log_puts(out, "=");
    (void)zb_log_put(out, clean + f->value, f->value_bytes);
    (void)zb_log_puts(out, "\n");
}

/** The datagram. It always fits: the text twice, and less than 40 bytes more for each field. */
static void journal_fields(const struct zb_log_line *line, struct zb_log_out *out)
{
    char clean[ZB_LOG_MAX], priority[2] = { (char)('0' + zb_log_priority(line->level)) };
    const char *id = journal_program->id_of(line->event);

    out->used = 0;
    out->cut = false;
    out->limit = sizeof(out->bytes);
    journal_pair(out, "PRIORITY", priority);
    journal_pair(out, "SYSLOG_IDENTIFIER", journal_program->name);
    if (id)
        journal_pair(out, "MESSAGE_ID", id);
    (void)zb_log_puts(out, journal_program->prefix);
    journal_pair(out, "EVENT", line->event);
    (void)zb_log_puts(out, "MESSAGE=");
    (void)zb_log_put(out, clean, zb_log_clean(line, clean));
    (void)zb_log_puts(out, "\n");
    for (unsigned i = 0; i < line->nfields; i++)
        journal_field(out, line, &line->fields[i], clean);
}

bool zb_log_journal_send(const struct zb_log_line *line)
{
    struct zb_log_out out;
    ssize_t n;

    journal_fields(line, &out);
    do
        n = sendto(journal_fd, out.bytes, out.used, MSG_DONTWAIT | MSG_NOSIGNAL,
                   (const struct sockaddr *)&journal_address, sizeof(journal_address));
    while (n < 0 && errno == EINTR);
    return n >= 0;
}
