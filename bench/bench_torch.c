/*
 * bench_torch.c - `zbench torch`: training in PyTorch through zshard.torch, against DDP, FSDP2 and
 * DeepSpeed.
 *
 * MODEL. torch/bench.py runs the rounds. It is asked for one line after the other, as a peer is
 * (peer.h). A line is a note, or a row with its values: "row NAME UNIT BETTER REFERENCE V:R V:R
 * ..."; this file computes medians, spreads and intervals from them, as in all benchmarks.
 */
#include "bench/zbench.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "bench/peer.h"

#define LINE_MAX_BYTES 65536

struct torch_bench {
    const char *dir, *python, *who, *rows, *model, *dtype, *shape, *seconds;
    unsigned rounds, ranks, warm, steps, life;
};

/* Units and references of rows. They are constants because rows outlive the lines. */
static const char *const words[] = { "tokens/s", "MiB",    "MiB/step", "s",    "ddp",
                                     "fsdp2",    "ds-cpu", "ds-nvme",  "host", "nvme" };

static const char *word_of(const char *text)
{
    for (size_t i = 0; i < ZB_COUNT(words); i++)
        if (strcmp(words[i], text) == 0)
            return words[i];
    return NULL;
}

/* "V:R V:R ...": returns the number of pairs; 0: malformed. */
static unsigned pairs_read(const char *text, double *values, double *references)
{
    unsigned n = 0;

    while (*text && n < ZBENCH_ROUNDS_MAX) {
        char *end;

        values[n] = strtod(text, &end);
        if (end == text || *end != ':')
            return 0;
        text = end + 1;
        references[n] = strtod(text, &end);
        if (end == text)
            return 0;
        n++;
        text = end + strspn(end, " ");
    }
    return n;
}

static int torch_row(struct zbench *z, char *line)
{
    double values[ZBENCH_ROUNDS_MAX], references[ZBENCH_ROUNDS_MAX];
    char *rest = line, *part[4];
    unsigned n;

    for (size_t i = 0; i < ZB_COUNT(part); i++)
        part[i] = strsep(&rest, " ");
    if (!rest || !word_of(part[1]) || !word_of(part[3]))
        return zb_fail(&z->err, -EPROTO, "torch/bench.py printed: row %s ...", line);
    n = pairs_read(rest, values, references);
    if (n == 0)
        return zb_fail(&z->err, -EPROTO, "torch/bench.py has no values for %s", line);
    const struct zbench_row row = zbench_row(word_of(part[1]), strcmp(part[2], "lower") == 0,
                                             word_of(part[3]), "%s", part[0]);

    return zbench_add(z, &row, values, references, n);
}

/* Handles all lines, until "end". */
static int torch_lines(struct zbench *z, struct zbench_peer *p)
{
    char *line = malloc(LINE_MAX_BYTES);
    int rc = line ? 0 : zb_fail(&z->err, -ENOMEM, "a line: %m");

    while (rc == 0) {
        rc = zbench_peer_ask(z, p, "next", line, LINE_MAX_BYTES);
        if (rc < 0 || strcmp(line, "end") == 0)
            break;
        if (strncmp(line, "note ", 5) == 0)
            zbench_note(z, "%s", line + 5);
        else if (strncmp(line, "row ", 4) == 0)
            rc = torch_row(z, line + 4);
        else
            rc = zb_fail(&z->err, -EPROTO, "torch/bench.py printed: %s", line);
    }
    free(line);
    return rc;
}

/* The build folder: this program is in its bin/. */
static int torch_build(struct zbench *z, char *path, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", path, size - 1);

    if (n < 0)
        return zb_fail(&z->err, -errno, "/proc/self/exe: %m");
    path[n] = '\0';
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(path, '/');

        if (slash)
            *slash = '\0';
    }
    return 0;
}

static const char *or_empty(const char *text)
{
    return text ? text : "";
}

static int torch_main(struct zbench *z, void *bench)
{
    const struct torch_bench *b = bench;
    struct zbench_peer peer = { 0 };
    char build[PATH_MAX], *command = NULL;
    int rc = torch_build(z, build, sizeof(build));

    (void)signal(SIGPIPE, SIG_IGN);
    if (rc == 0 &&
        asprintf(&command,
                 "exec python3 -B '%s/bench/torch/bench.py' --build '%s' --dir '%s' --python '%s' "
                 "--who '%s' --rows '%s' --model '%s' --dtype '%s' --shape '%s' --seconds '%s' "
                 "--rounds %u --ranks %u --warm %u --steps %u --life %u",
                 ZBENCH_SOURCE, build, b->dir, or_empty(b->python), b->who, or_empty(b->rows),
                 or_empty(b->model), b->dtype, b->shape, b->seconds, b->rounds, b->ranks, b->warm,
                 b->steps, b->life) < 0)
        rc = zb_fail(&z->err, -ENOMEM, "a command: %m");
    if (rc == 0)
        rc = zbench_peer_start(z, &peer, command);
    if (rc == 0)
        rc = torch_lines(z, &peer);
    zbench_peer_end(&peer);
    free(command);
    return rc;
}

#define AT(member) ZB_OPT_AT(struct torch_bench, member)
#define COUNT(option, member, usual, least)                                           \
    {                                                                                 \
        option, ZB_OPT_COUNT, AT(member), .arg = "N", .def = (usual), .min = (least), \
                                          .max = ZBENCH_ROUNDS_MAX,                   \
    }

static const struct zb_opt torch_options[] = {
    ZBENCH_DIR(struct torch_bench, "/var/tmp"),
    { "rows", ZB_OPT_TEXT, AT(rows), .arg = "torch/few/70M" },
    { "who", ZB_OPT_TEXT, AT(who), .arg = "NAMES", .def = "ddp,fsdp2,ds-cpu,ds-nvme,host,nvme" },
    { "shape", ZB_OPT_TEXT, AT(shape), .arg = "NAMES", .def = "many,few" },
    { "model", ZB_OPT_TEXT, AT(model), .arg = "25M,125M" },
    { "dtype", ZB_OPT_TEXT, AT(dtype), .arg = "NAMES", .def = "fp32,bf16" },
    { "seconds", ZB_OPT_TEXT, AT(seconds), .arg = "S", .def = "10" },
    COUNT("steps", steps, "4", 1),
    COUNT("warm", warm, "2", 0),
    COUNT("ranks", ranks, "2", 1),
    COUNT("life", life, "1", 0),
    ZBENCH_ROUNDS(struct torch_bench, "5"),
    { "python", ZB_OPT_TEXT, AT(python), .arg = "FILE" },
    { 0 },
};

const struct zbench_cmd zbench_torch = {
    .name = "torch",
    .help = "training in PyTorch, parameters and state offloaded by zshard.torch, against DDP, "
            "FSDP2 and DeepSpeed",
    .options = torch_options,
    .bytes = sizeof(struct torch_bench),
    .run = torch_main,
};
