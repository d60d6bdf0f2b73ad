#include "client/zctl/doctor/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/opt.h"
#include "base/util.h"
#include "client/zctl/doctor/machine.h"

#define ANSWERS    "/probes" /* below the root, in tests */
#define AT(member) ZB_OPT_AT(struct doctor_answers, member)

/** Probes that ask a GPU, or what it needs, are left out where there is none. */
static const struct {
    struct zb_opt answer;
    void (*run)(const struct doctor_machine *m, FILE *out); /* NULL: known when this was built */
    bool gpu;
} probes[] = {
    { { "config", ZB_OPT_CHARS, AT(config), .def = "" }, doctor_probe_config, false },
    { { "uring", ZB_OPT_CHARS, AT(uring), .def = "" }, doctor_probe_uring, false },
    { { "data", ZB_OPT_CHARS, AT(data), .def = "" }, doctor_probe_data, false },
    { { "build", ZB_OPT_CHARS, AT(build), .def = "" }, NULL, false },
    { { "driver", ZB_OPT_CHARS, AT(driver), .def = "" }, doctor_probe_driver, true },
    { { "plugin", ZB_OPT_CHARS, AT(plugin), .def = "" }, doctor_probe_plugin, true },
    { { "cublaslt", ZB_OPT_CHARS, AT(cublaslt), .def = "" }, doctor_probe_cublaslt, true },
    { { "nccl", ZB_OPT_CHARS, AT(nccl), .def = "" }, doctor_probe_nccl, true },
    { { "gpus", ZB_OPT_CHARS, AT(gpus), .def = "" }, doctor_probe_gpus, true },
};

#define PROBES ZB_COUNT(probes)

struct child {
    pid_t pid; /* 0: none */
    int fd;
    size_t len; /* of its answer so far */
};

/** In the child. Never returns. */
static void child_run(const struct doctor_machine *m, size_t i, int fd)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    FILE *out = fdopen(fd, "w");

    if (null >= 0) { /* a library may print what it likes */
        (void)dup2(null, STDIN_FILENO);
        (void)dup2(null, STDOUT_FILENO);
        (void)dup2(null, STDERR_FILENO);
    }
    if (out) {
        probes[i].run(m, out);
        (void)fflush(out);
    }
    _exit(0);
}

static void child_start(const struct doctor_machine *m, size_t i, struct child *c)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) < 0)
        return;
    c->pid = fork();
    if (c->pid == 0)
        child_run(m, i, fds[1]);
    (void)close(fds[1]);
    c->fd = fds[0];
    if (c->pid < 0)
        zb_close_fd(&c->fd);
    c->pid = c->pid < 0 ? 0 : c->pid;
}

/** Reads what has arrived. False: that was the end. */
static bool child_read(struct child *c, char *answer)
{
    ssize_t n = read(c->fd, answer + c->len, PROBE_TEXT - 1 - c->len);

    if (n < 0 && errno == EINTR)
        return true;
    if (n > 0)
        c->len += (size_t)n;
    answer[c->len] = '\0';
    return n > 0;
}

/** An answer without the end of its last line; "!..." if the child was ended by a signal. */
static void child_end(struct child *c, char *answer)
{
    int status = 0;

    zb_close_fd(&c->fd);
    if (waitpid(c->pid, &status, 0) == c->pid && WIFSIGNALED(status))
        (void)snprintf(answer, PROBE_TEXT, "!it was ended by signal %d (%s)", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
    else
        while (c->len > 0 && answer[c->len - 1] == '\n')
            answer[--c->len] = '\0';
    c->pid = 0;
}

/** Ends a child that is late. It may be stuck in the kernel, so nobody waits for it. */
static void child_late(struct child *c, size_t i, struct doctor_answers *a)
{
    size_t len = strlen(a->late);

    (void)kill(c->pid, SIGKILL);
    (void)waitpid(c->pid, NULL, WNOHANG);
    zb_close_fd(&c->fd);
    *((char *)a + probes[i].answer.at) = '\0';
    (void)snprintf(a->late + len, sizeof(a->late) - len, "%s%s", len > 0 ? " " : "",
                   probes[i].answer.name);
}

/** Reads the answers, until all children have ended or it is too late. */
static void children_read(struct child *children, struct doctor_answers *a, uint64_t began_ns)
{
    uint64_t until_ns = zb_min_u64(zb_now_ns() + PROBE_MS * UINT64_C(1000000),
                                   began_ns + DOCTOR_MS * UINT64_C(1000000)),
             now;
    struct pollfd polls[PROBES];
    size_t left = 1;

    while (left > 0 && (now = zb_now_ns()) < until_ns) {
        left = 0;
        for (size_t i = 0; i < PROBES; i++) {
            polls[i] =
                (struct pollfd){ .fd = children[i].pid ? children[i].fd : -1, .events = POLLIN };
            left += children[i].pid != 0;
        }
        if (left == 0 || poll(polls, PROBES, (int)((until_ns - now) / 1000000) + 1) <= 0)
            continue;
        for (size_t i = 0; i < PROBES; i++) {
            char *answer = (char *)a + probes[i].answer.at;

            if (children[i].pid && polls[i].revents && !child_read(&children[i], answer))
                child_end(&children[i], answer);
        }
    }
    for (size_t i = 0; i < PROBES; i++)
        if (children[i].pid)
            child_late(&children[i], i, a);
}

/** In tests: the answers of a file. */
static void answers_file(const char *root, struct doctor_answers *a)
{
    struct zb_opt rows[PROBES + 1] = { { .name = NULL } };
    char full[PATH_MAX];

    for (size_t i = 0; i < PROBES; i++)
        rows[i] = probes[i].answer;
    if (tree_path(root, ANSWERS, full))
        (void)zb_opt_file(rows, a, full, true, NULL, NULL);
}

/** Takes what was found about each place out of its line. */
static void places_read(struct doctor_machine *m)
{
    const char *at = m->answers.data;

    for (size_t i = 0; i < m->nplaces && *at; i++) {
        unsigned long long bytes;
        char word[16];

        if (sscanf(at, "%llu %15s", &bytes, word) == 2) {
            m->places[i].free_bytes = bytes;
            m->places[i].direct = strcmp(word, "direct") == 0     ? DIRECT_YES
                                  : strcmp(word, "buffered") == 0 ? DIRECT_NO
                                                                  : DIRECT_UNKNOWN;
        }
        at += strcspn(at, "\n");
        at += *at == '\n';
    }
}

void doctor_probe(struct doctor_machine *m)
{
    struct child children[PROBES] = { { .pid = 0 } };

    if (*m->root) {
        answers_file(m->root, &m->answers);
    } else {
        (void)snprintf(m->answers.build, sizeof(m->answers.build), "%s",
                       *ZSHARD_CUDA_VERSION ? ZSHARD_CUDA_VERSION : "none");
        for (size_t i = 0; i < PROBES; i++)
            if (probes[i].run && (m->gpu || !probes[i].gpu))
                child_start(m, i, &children[i]);
        children_read(children, &m->answers, m->began_ns);
    }
    places_read(m);
}
