/*
 * zbench.c - one subcommand for each claim about speed: the rows of them, and main().
 *
 * A new one is a bench_<name>.c, a row here and its function in zbench.h; `--json` works for all.
 */
#include "bench/zbench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

static const struct {
    const char *name, *args, *help;
    int (*run)(struct zbench *z, int argc, char **argv);
} cmds[] = {
    { "io",
      "[--dir DIR] [--size SIZE] [--seconds S] [--slices N] [--only read/1M] [--against fio]\n"
      "           [--peer COMMAND] [--smoke]",
      "bandwidth of the I/O engines, against fio", zbench_io },
    { "fetch",
      "[--rounds N] [--ops N]\n"
      "           --gpu [--device NAME] [--size SIZE] [--rate SIZE] [--dir DIR] [--rounds N]",
      "latency of a fetch and release of a resident shard, against a raw ping-pong; or into a\n"
      "           GPU's memory, against a copy from pinned memory",
      zbench_fetch },
    { "adam",
      "[--params N] [--threads N] [--rounds N] [--only CASE] [--kernels NAME] [--peer COMMAND]...\n"
      "           [--smoke]",
      "the optimizer step in memory, against a STREAM triad", zbench_adam },
    { "catalog", "[--dir DIR] [--pages N] [--rounds N]",
      "commits of a catalog of so many pages, against writing as many bytes", zbench_catalog },
    { "comm", "[--ranks N] [--units N] [--elems N] [--rate SIZE] [--rounds N] [--only delayed|tbf]",
      "communication that a rank of ZeRO-3 waits for, with prefetching and overlap_comm, against\n"
      "           without, on a link that is as slow as the computing",
      zbench_comm },
    { "commit", "[--dir DIR] [--params N] [--page-elems N] [--rounds N]",
      "a step that commits, against one that does not", zbench_commit },
    { "overlap", "[--dir DIR] [--params N] [--rate SIZE] [--rounds N]",
      "what a step that overlaps the passes saves", zbench_overlap },
    { "gpu", "[--device NAME] [--elems N] [--rounds N] [--only step/adamw]",
      "the kernels of a GPU, against its copies within device memory", zbench_gpu },
    { "plan", "[--dir DIR] [--params N] [--rounds N] [--only plan/drive]",
      "how long a step takes, against what zctl plan says", zbench_plan },
    { "step",
      "[--dir DIR] [--params N] [--page-elems N] [--ring SIZE] [--rounds N] [--only CASE] "
      "[--peer COMMAND]",
      "a step that streams its state, against the most that drive and kernels can do",
      zbench_step },
    { "share",
      "[--dir DIR] [--params N] [--page-elems N] [--rate SIZE] [--rounds N] [--window-ms MS]",
      "8 clients against 1, and two jobs with shares, on a device of a fixed rate", zbench_share },
    { "snapshot", "[--dir DIR] [--params N] [--page-elems N] [--rounds N]",
      "a step with a snapshot in its middle, against one without", zbench_snapshot },
    { "train",
      "[--dir DIR] [--device NAME] [--offload host|nvme] [--dtype bf16] [--layers N] [--heads N]\n"
      "           [--width N] [--seq N] [--tokens N,N] [--micro-steps N,N] [--host-bytes SIZE]\n"
      "           [--nvme-bytes SIZE] [--rounds N] [--peer COMMAND]",
      "training a GPT whose parameters and state are offloaded, against one that keeps them",
      zbench_train },
};

static void usage(FILE *out)
{
    (void)fprintf(out, "usage: zbench COMMAND [--json] [OPTIONS]\n\n");
    for (size_t i = 0; i < ZB_COUNT(cmds); i++)
        (void)fprintf(out, "  %-8s %s\n           %s\n", cmds[i].name, cmds[i].help, cmds[i].args);
    (void)fprintf(out, "\n--json prints one JSON object instead of a table: bench/README.md\n");
}

/* Takes --json out of the words, wherever it stands. */
static int take_json(struct zbench *z, int argc, char **argv)
{
    int n = 0;

    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            z->json = true;
        else
            argv[n++] = argv[i];
    }
    argv[n] = NULL;
    return n;
}

static int dispatch(struct zbench *z, int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < ZB_COUNT(cmds); i++) {
        if (strcmp(argv[1], cmds[i].name) != 0)
            continue;
        z->bench = cmds[i].name;
        return cmds[i].run(z, argc - 1, argv + 1);
    }
    return zb_fail(&z->err, -EINVAL, "no command '%s'; try: zbench help", argc > 1 ? argv[1] : "");
}

int main(int argc, char **argv)
{
    struct zbench z = { 0 };
    int rc;

    argc = take_json(&z, argc, argv);
    if (argc > 1 && (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0)) {
        usage(stdout);
        return EXIT_SUCCESS;
    }
    rc = dispatch(&z, argc, argv);
    if (rc == 0 && z.count == 0)
        rc = zb_fail(&z.err, -EINVAL, "%s has no case of that name", z.bench);
    if (rc == 0)
        rc = zbench_print(&z);
    if (rc < 0)
        (void)fprintf(stderr, "zbench: %s\n", z.err.text);
    zbench_done(&z);
    return rc == 0 ? EXIT_SUCCESS : rc == -EINVAL ? 2 : EXIT_FAILURE;
}
