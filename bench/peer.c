#include "bench/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Its output has ended: waits for the process, and reports how it ended. */
static int peer_ended(struct zbench *z, struct zbench_peer *p)
{
    int status = 0;

    (void)fclose(p->in);
    p->in = NULL;
    while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR)
        ;
    p->pid = 0;
    return WIFSIGNALED(status)
               ? zb_fail(&z->err, -EPIPE, "the peer has ended by signal %d", WTERMSIG(status))
               : zb_fail(&z->err, -EPIPE, "the peer has ended with status %d", WEXITSTATUS(status));
}

static int peer_line(struct zbench *z, struct zbench_peer *p, char *line, size_t size)
{
    if (!fgets(line, (int)size, p->out))
        return peer_ended(z, p);
    line[strcspn(line, "\n")] = '\0';
    return 0;
}

int zbench_peer_start(struct zbench *z, struct zbench_peer *p, const char *command)
{
    char line[1024];
    int to[2], from[2], used = 0;
    int rc;

    if (pipe2(to, O_CLOEXEC) < 0)
        return zb_fail(&z->err, -errno, "a pipe to the peer: %m");
    if (pipe2(from, O_CLOEXEC) < 0) {
        rc = zb_fail(&z->err, -errno, "a pipe from the peer: %m");
        (void)close(to[0]);
        (void)close(to[1]);
        return rc;
    }
    p->pid = fork();
    if (p->pid == 0) {
        if (dup2(to[0], STDIN_FILENO) >= 0 && dup2(from[1], STDOUT_FILENO) >= 0)
            (void)execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    (void)close(to[0]);
    (void)close(from[1]);
    p->in = fdopen(to[1], "w");
    p->out = fdopen(from[0], "r");
    if (p->pid < 0 || !p->in || !p->out)
        return zb_fail(&z->err, -EAGAIN, "start the peer: %m");
    rc = peer_line(z, p, line, sizeof(line));
    if (rc < 0)
        return rc;
    if (sscanf(line, "ready %31s %n", p->name, &used) != 1)
        return zb_fail(&z->err, -EPROTO, "the peer is not ready: %s", line);
    zbench_note(z, "peer: %s", line + used);
    return 0;
}

int zbench_peer_ask(struct zbench *z, struct zbench_peer *p, const char *question, char *answer,
                    size_t size)
{
    (void)fprintf(p->in, "%s\n", question);
    (void)fflush(p->in);
    return peer_line(z, p, answer, size);
}

void zbench_peer_end(struct zbench_peer *p)
{
    if (p->in)
        (void)fclose(p->in);
    if (p->out)
        (void)fclose(p->out);
    while (p->pid > 0 && waitpid(p->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    *p = (struct zbench_peer){ 0 };
}
