#include "daemon/config/embedded.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "base/util.h"

#define WRITE_MS 5000 /* limit for a program that does not read the line */

int zsd_embedded_fd(int argc, char **argv)
{
    static const char name[] = "--ready-fd";
    const char *text = NULL;
    bool embedded = false;
    char *end;
    long fd;

    for (int i = 1; i < argc; i++) {
        embedded |= strcmp(argv[i], "--embedded") == 0;
        if (strcmp(argv[i], name) == 0 && i + 1 < argc)
            text = argv[i + 1];
        else if (strncmp(argv[i], name, sizeof(name) - 1) == 0 && argv[i][sizeof(name) - 1] == '=')
            text = argv[i] + sizeof(name);
    }
    if (!embedded || !text)
        return embedded ? STDOUT_FILENO : -1;
    fd = strtol(text, &end, 10);
    return end != text && *end == '\0' && fd >= 0 && fd <= 65535 ? (int)fd : -1;
}

static void put_text(FILE *out, const char *name, const char *text)
{
    const char *p = text;

    (void)fprintf(out, "\"%s\":\"", name);
    while (*p) {
        uint32_t code = 0;
        size_t n = zb_text_char(p, ZB_TEXT_CHAR_MAX, &code);

        if (n == 0)
            (void)fputs("\\ufffd", out);
        else if (code < 0x20 || code == 0x7f)
            (void)fprintf(out, "\\u%04x", (unsigned)code);
        else if (*p == '"' || *p == '\\')
            (void)fprintf(out, "\\%c", *p);
        else
            (void)fwrite(p, 1, n, out);
        p += n ? n : 1;
    }
    (void)fputc('"', out);
}

static void write_all(int fd, const char *bytes, size_t len)
{
    struct pollfd p = { .fd = fd, .events = POLLOUT };

    while (len > 0) {
        ssize_t n = write(fd, bytes, len);

        if (n > 0) {
            bytes += n;
            len -= (size_t)n;
        } else if (n < 0 && errno != EINTR && (errno != EAGAIN || poll(&p, 1, WRITE_MS) <= 0)) {
            return;
        }
    }
}

/** Sends the line and closes the descriptor. Standard output must stay open, so it is redirected to
 * /dev/null instead. */
static void say(int fd, FILE *out, char **line, size_t *len)
{
    int null = -1;

    if (fclose(out) == 0)
        write_all(fd, *line, *len);
    free(*line);
    if (fd > STDERR_FILENO)
        zb_close_fd(&fd);
    else if (fd == STDOUT_FILENO && (null = open("/dev/null", O_WRONLY | O_CLOEXEC)) >= 0)
        (void)dup2(null, fd);
    zb_close_fd(&null);
}

void zsd_embedded_ready(const struct zsd *daemon)
{
    const struct zsd_config *c = &daemon->config;
    char *line = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&line, &len);

    if (!out)
        return;
    (void)fputs("{\"ready\":true,", out);
    put_text(out, "socket", c->socket);
    (void)fputc(',', out);
    put_text(out, "data", c->data);
    (void)fprintf(out, ",\"pid\":%ld,\"host_bytes\":%llu,\"nvme_bytes\":%llu}\n", (long)getpid(),
                  (unsigned long long)c->host_bytes, (unsigned long long)c->nvme_bytes);
    say((int)c->ready_fd, out, &line, &len);
}

void zsd_embedded_refused(int fd, int status, const char *why)
{
    char *line = NULL;
    size_t len = 0;
    FILE *out = fd >= 0 ? open_memstream(&line, &len) : NULL;

    if (!out)
        return;
    (void)fputs("{\"ready\":false,", out);
    put_text(out, "error", why);
    (void)fprintf(out, ",\"status\":%d}\n", status);
    say(fd, out, &line, &len);
}
