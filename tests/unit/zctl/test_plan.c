/*
 * test_plan.c - zctl plan: what it prints, what it refuses, files, and the picture.
 */
#include "tests/ztest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/iteration.h"
#include "base/util.h"
#include "client/zc_safetensors.h"
#include "client/zctl/base/zctl.h"
#include "client/zctl/zctl_main.h"
#include "tests/unit/zctl/said.h"

/* ---- what it refuses */

static const struct {
    const char *line;
    int status;
    const char *says;
} refusals[] = {
    { "plan", 2, "which model?" },
    { "plan --params 1G --layers 3", 2, "which model?" },
    { "plan --params 1X", 2,
      "--params must be a number, with K, M, G (or B), T or P after it, not '1X'" },
    { "plan --params 1G --mode zero4", 2,
      "--mode must be ddp, zero1, zero2, zero3, fsdp or hybrid, not 'zero4'" },
    { "plan --params 1G --dtype int8", 2, "--dtype must be fp32, bf16 or fp16, not 'int8'" },
    { "plan --params 1G --optimizer adamax", 2, "--optimizer must be adamw, adam, lion," },
    { "plan --params 1G --moments int4", 2, "--moments must be fp32, bf16, 8bit or 8bit-lo" },
    { "plan --params 1G --ranks 0", 2, "--ranks must be 1 to 4294967295, not 0" },
    { "plan --params 1G --ranks 3 --nodes 2 --host-bytes 1G", 2, "3 ranks on 2 nodes" },
    { "plan --params 1G --host-bytes 1X", 2, "--host-bytes must be a size such as 1.5G, not '1X'" },
    { "plan --params 1G --host-bytes 1G --drive-read fast", 2,
      "--drive-read must be a number, not 'fast'" },
    { "plan --params 1G --host-bytes 1G --page-elems 5", 2, "pages of 5 elements" },
    { "plan --params 1T --units 1000000 --ranks 2 --host-bytes 1G", 2, "2000000 shards on a node" },
    { "plan --params 1G --node /nowhere/n", 4, "/nowhere/n" },
    { "plan --index /nowhere/x.safetensors", 4, "/nowhere/x" },
    { "plan --params 1M --host-bytes 1G --measure /nowhere", 4, "/nowhere" },
    { "plan --layers 2 --width 4 --host-bytes 1G", 2, "vocabulary 0" },
    { "plan --params 1G --host-bytes 1G --tokens 0", 2, "--tokens must be 1 to" },
    { "plan --params 1G --host-bytes 1G --tokens 9", 2, "--tokens needs --flops" },
    { "plan --params 1G --host-bytes 1G --link 0", 2, "--link must be 1e-06 to 1e+09, not 0" },
    { "plan --params 1G --host-bytes 1G --gpu-link -3", 2, "--gpu-link must be 1e-06 to" },
    { "plan --params 1G --host-bytes 1G --network fast", 2, "--network must be a number" },
    { "plan --params 1G --host-bytes 1G --latency -1", 2, "--latency must be 0 to 1e+09, not -1" },
    { "plan --params 1G --host-bytes 1G --gpu-mem-bw 0", 2, "--gpu-mem-bw must be" },
    { "plan --params 1G --host-bytes 1G --gpus 0", 2, "--gpus must be 1 to 64, not 0" },
    { "plan --params 1G --host-bytes 1G --gpus 65", 2, "--gpus must be 1 to 64, not 65" },
    { "plan --params 1G --host-bytes 1G --gpus 8 --nodes 9000", 2, "9000 nodes of 8 GPUs" },
    { "plan --params 1G --host-bytes 1G --drives 0", 2, "--drives must be 1 to 1024, not 0" },
    { "plan --params 1G --host-bytes 1G --drives 4", 2,
      "--drives needs --nvme-bytes, --drive-read" },
    { "plan --params 1G --host-bytes 1G --gpus 3 --gpu-tier-bytes 1G,2G", 2,
      "--gpu-tier-bytes has 2 sizes, and there are 3 GPUs" },
    { "plan --params 1G --host-bytes 1G --gpus 3 --gpu-tier-bytes 1G,X,2G", 2, "'X'" },
    { "plan --params 1G --host-bytes 1G --ranks 4 --nodes 2 --node-gather host", 2,
      "on several nodes, ranks that exchange between GPUs do not read" },
    { "plan --params 1G --host-bytes 1G --comm tcp", 2, "--comm must be nccl, host or ring" },
    { "plan --params 1G --offload-optimizer disk", 2, "--offload-optimizer must be none, host" },
    { "plan --params 1G --host-bytes 1G --scale zero3,zero4", 2, "'zero4' is not a mode" },
    { "plan --params 1G --host-bytes 1G --scale zero3,", 2, "'' is not a mode" },
    { "plan --params 1G --host-bytes 1G --scale ddp,ddp", 2, "ddp is given twice" },
    { "plan --params 1G --host-bytes 1G --scale ddp --nodes 3 --ranks 4", 2, "4 ranks on 3 nodes" },
    { "plan --params 1G --host-bytes 1G --svg x", 2, "--svg needs --scale and --tokens" },
    { "plan --params 1G --host-bytes 1G --scale ddp --svg x", 2, "--svg needs --scale and" },
    { "plan --params 1G --host-bytes 40G --gpus 8 --tokens 9 --flops 1T", 2,
      "needs gpu_link, which is not known" },
    { "plan --params 1G --offload-optimizer none --gpus 2 --nodes 2 --tokens 9 --flops 1T "
      "--gpu-link 100",
      2, "needs network, which is not known" },
    { "plan --params 1G --offload-optimizer none --gpus 2 --tokens 9 --flops 1T --gpu-link 9 "
      "--gather-alone",
      2, "ranks gather alone on one node" },
    { "plan --params 1M --offload-optimizer none --scale zero3 --tokens 9 --flops 1T "
      "--gpu-mem-bw 1 --svg /nowhere/x",
      4, "'/nowhere/x': No such file" },
};

static void refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(refusals); i++) {
        struct said s = zctl(refusals[i].line);

        if (s.status != refusals[i].status || !strstr(s.err, refusals[i].says) || *s.out)
            fail_msg("zctl %s: %d '%s' '%s'", refusals[i].line, s.status, s.out, s.err);
        said_free(&s);
    }
}

/* ---- plan: the output of base/forecast.h */

#define PLAN_NODE "--host-bytes 1100M --nvme-bytes 4G --drive-read 2 --drive-write 1 --mem-bw 10 "

/* A second of computing has 1e14 operations: 2 x 1e9 x 1000 of them forward. */
#define PLAN_TIMED                                                                   \
    "--params 1G --gpus 8 --host-bytes 40G --mem-bw 100 --flops 100T --tokens 1000 " \
    "--link 25 --gpu-link 300 --latency 10"

static const struct {
    const char *line;
    int status;
    const char *has[4];
} plans[] = {
    { "plan -o json --layers 12 --width 768 --vocab 50257 " PLAN_NODE,
      0,
      { "\"params\": 124439808", "\"fits\": true", "\"bound\": \"drive-write\"",
        "\"units\": 14" } },
    { "plan -o json --params 124M --units 7 --host-bytes 1G",
      7,
      { "\"params\": 124000000", "\"fits\": false", "\"units\": 7", "\"step_seconds\": null" } },
    { "plan --params 0.3B --mode zero2 --ranks 4 --nodes 2 " PLAN_NODE,
      0,
      { "300000000 parameters", "zero2", "(p + (g + k)/N) P", "It fits." } },
    { "plan -o json --params 1G --host-bytes 40G --optimizer lion --dtype fp16",
      0,
      { "\"dtype\": \"fp16\"", "\"optimizer\": \"lion\"", "\"moments\": \"fp32\"",
        "\"state\": 8000" } },
    { "plan -o json --params 1G --host-bytes 40G --nvme-bytes 1T --drive-read 1e-310 --drive-write "
      "1 "
      "--cores 4294967295",
      0,
      { "\"drive_seconds\": null", "\"cores\": 4294967295", "", "" } },
    { "plan --params 7B --host-bytes 34G --nvme-bytes 1T --micro-steps 4294967295", /* at once */
      0,
      { "nvme read: by gathers", "It fits.", "", "" } },
    { "plan -o json --params 1G --gpus 8 --gpu-tier-bytes 1G --drives 4 --drive-read 2 "
      "--drive-write "
      "1 --drive-endurance 100 --host-bytes 40G --nvme-bytes 1T",
      0,
      { "\"gpu7\": {\n      \"state\": 1", "\"budget\": 4398046248960", "\"drive_read\": 8e9",
        "\"iteration\": null" } },
    { "plan --params 1G --gpus 2 --gpu-tier-bytes 1G --drives 4 --drive-read 2 --host-bytes 40G "
      "--nvme-bytes 1T",
      0,
      { "gpu1: state", "nvme: used of a drive", "2 of the ranks",
        "gpu:  free                   2.00 GiB" } },
    { "plan -o json --params 1G --gpus 4 --gpu-tier-bytes 600M,600M,4G,600M --host-bytes 40G "
      "--nvme-bytes 1T --offload-param gpu --node-gather nccl",
      0,
      { "\"params_used\": 501219328", "\"params_on_gpu\": true", "\"node_gather\": \"comm\"",
        "\"why\": \"\"" } },
    { "plan --params 1G --gpus 4 --gpu-tier-bytes 600M,300M,600M,4G --host-bytes 40G --nvme-bytes "
      "1T "
      "--offload-param gpu",
      0,
      { "not on the GPU tiers: they take 478 MiB of gpu1, and 300 MiB are free there",
        "GATHERS OF A STEP, by node_gather; the plan is for 'comm'", "out of host memory",
        "into gpu3" } },
    { "plan --node-gather auto --device gpu " PLAN_TIMED,
      0,
      { "the plan is for 'comm'", "sent by ranks", "", "" } },
    { "plan -o json " PLAN_TIMED,
      0,
      { "\"compute_seconds\": 0.02,", "\"up_seconds\": 0.010", "\"bound\": \"optimizer\"",
        "\"latency\": 1e-5" } },
    { "plan " PLAN_TIMED,
      0,
      { "AN ITERATION, 1 x 1000 tokens", "bound by optimizer", "sent by a GPU", "It fits." } },
    { "plan --offload-optimizer none --params 2G --scale ddp,zero3 --nodes 5 --gpus 4 --gpu-bytes "
      "24G",
      0,
      { "\nddp          5     20    ", " does not fit\n", "\nzero3        4     16    ",
        "      -       -  -\n" } },
    { "plan -o json --offload-optimizer none --params 2G --scale ddp,hybrid --nodes 2 --gpus 4 "
      "--gpu-bytes 24G --flops 100T --tokens 1000 --gpu-link 100 --gpu-mem-bw 1000 --network 10",
      0,
      { "\"mode\": \"ddp\",\n      \"nodes\": 1,\n      \"ranks\": 4,\n      \"fits\": false",
        "\"loss\": 0.0", "\"iteration\": null", "\"network_bytes\": 80" } },
    { "plan --params 1K --host-bytes 100 --durable",
      7,
      { "\nIt does not fit.\n", "host: smallest that works", "nvme: smallest that works", "" } },
};

static void plan_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(plans); i++) {
        struct said s = zctl(plans[i].line);

        if (s.status != plans[i].status ||
            (s.status == ZCTL_EXIT_NO_FIT) != (strstr(s.err, "does not fit, because") != NULL))
            fail_msg("zctl %s: status %d, '%s'", plans[i].line, s.status, s.err);
        for (size_t k = 0; k < ZB_COUNT(plans[i].has); k++)
            if (!strstr(s.out, plans[i].has[k]))
                fail_msg("zctl %s: no '%s' in\n%s", plans[i].line, plans[i].has[k], s.out);
        said_free(&s);
    }
}

/* The words of an option are the names of base/plan.h and base/model.h, in the same order. */
static void assert_choices(const char *option, const char *(*name_of)(unsigned n), unsigned first)
{
    size_t n;
    const struct zctl_cmd *const *cmds = zctl_commands(&n);
    const struct zctl z = { .cmds = cmds, .ncmds = n };
    const struct zb_opt *o = zb_opt_find(zctl_command(&z, "plan")->options, option, strlen(option));
    char all[128] = "";

    assert_non_null(o);
    for (unsigned i = first; name_of(i); i++)
        (void)snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s%s", i > first ? " " : "",
                       name_of(i));
    assert_string_equal(o->choices, all);
    assert_int_equal(o->min, first);
}

static const char *mode_name(unsigned n)
{
    return n < ZB_MODES ? zb_mode_name((enum zb_mode)n) : NULL;
}

static const char *dtype_name(unsigned n)
{
    return zb_dtype_name((enum zb_dtype)n);
}

static const char *optimizer_name(unsigned n)
{
    return zb_optimizer_name((enum zb_optimizer)n);
}

static const char *moments_name(unsigned n)
{
    return zb_moments_name((enum zb_moments)n);
}

static const char *comm_name(unsigned n)
{
    return n <= ZB_COMM_RING ? zb_comm_name((enum zb_comm)n) : NULL;
}

static void plan_choices_are_names(void **state)
{
    (void)state;
    assert_choices("comm", comm_name, ZB_COMM_NCCL);
    assert_choices("mode", mode_name, ZB_DDP);
    assert_choices("dtype", dtype_name, ZB_F32);
    assert_choices("grad-dtype", dtype_name, ZB_F32);
    assert_choices("optimizer", optimizer_name, ZB_ADAMW);
    assert_choices("moments", moments_name, ZB_MOMENTS_F32);
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void files_write(const char *file, const struct zc_st_tensor *tensors, size_t n)
{
    float zeros[6400] = { 0 };
    struct zc_st_writer *w;

    assert_int_equal(zc_st_create(&w, file, tensors, n, NULL, 0, NULL, 0), 0);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(
            zc_st_append(w, zeros, 6400 * zc_st_dtype_bytes(tensors[i].dtype), NULL, 0), 0);
    assert_int_equal(zc_st_commit(w, NULL, 0), 0);
}

static void folder_make(char *folder, size_t size)
{
    (void)snprintf(folder, size, "%s/zshard-plan-XXXXXX", ztest_folder());
    assert_non_null(mkdtemp(folder));
}

/* Layers are units, and so is each tensor outside of layers; state that zctl exported is not a
 * parameter. The node comes from a file, and the command line takes precedence. */
static void plan_of_files(void **state)
{
    static const char *const names[] = { "layers.0.a",  "layers.0.b.c", "layers.0.a.exp_avg",
                                         "layers.10.a", "norm.weight",  "wte.weight" };
    static const uint64_t dims[] = { 64, 100 };
    char folder[64], file[80], node[80], line[300];
    struct zc_st_tensor tensors[ZB_COUNT(names)];
    struct said s;

    (void)state;
    folder_make(folder, sizeof(folder));
    (void)snprintf(file, sizeof(file), "%s/m.safetensors", folder);
    (void)snprintf(node, sizeof(node), "%s/node", folder);
    for (size_t i = 0; i < ZB_COUNT(names); i++)
        tensors[i] =
            (struct zc_st_tensor){ .name = names[i], .dtype = ZC_ST_F32, .ndims = 2, .dims = dims };
    files_write(file, tensors, ZB_COUNT(names));
    write_text(node, "{\"host_bytes\": \"64M\", \"nvme_bytes\": 1048576, \"drive_read\": 2.5}");
    (void)snprintf(line, sizeof(line), "plan -o json --index %s --node %s --host-bytes 32M", file,
                   node);
    s = zctl(line);
    assert_int_equal(s.status, 0);
    assert_non_null(strstr(s.out, "\"params\": 32000"));
    assert_non_null(strstr(s.out, "\"units\": 4"));
    assert_non_null(strstr(s.out, "\"largest_unit\": 12800"));
    assert_non_null(strstr(s.out, "\"dtype\": \"fp32\""));
    assert_non_null(strstr(s.out, "\"budget\": 33554432"));
    assert_non_null(strstr(s.out, "\"drive_read\": 2.5e9"));
    said_free(&s);
    for (size_t i = 0; i < ZB_COUNT(names); i++)
        tensors[i].dtype = ZC_ST_F16;
    assert_int_equal(unlink(file), 0);
    files_write(file, tensors, ZB_COUNT(names));
    s = zctl(line);
    assert_int_equal(s.status, 0);
    assert_non_null(strstr(s.out, "\"dtype\": \"fp16\""));
    said_free(&s);
    write_text(node, "{\"hosts\": 3}");
    s = zctl(line);
    assert_int_equal(s.status, 2);
    assert_non_null(strstr(s.err, "unknown key 'hosts'"));
    said_free(&s);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(unlink(node), 0);
    assert_int_equal(rmdir(folder), 0);
}

static char *read_text(const char *path)
{
    static char text[65536];
    FILE *f = fopen(path, "r");
    size_t n;

    assert_non_null(f);
    n = fread(text, 1, sizeof(text) - 1, f);
    assert_int_equal(fclose(f), 0);
    text[n] = 0;
    return text;
}

/* The picture has a line for each mode, and a cross where a mode does not fit. The rates come from a
 * file. */
static void plan_picture(void **state)
{
    char folder[64], svg[80], node[80], line[400];
    const char *text;
    struct said s;

    (void)state;
    folder_make(folder, sizeof(folder));
    (void)snprintf(svg, sizeof(svg), "%s/svg", folder);
    (void)snprintf(node, sizeof(node), "%s/node", folder);
    write_text(node, "{\"gpus\": 4, \"gpu_bytes\": \"24G\", \"gpu_link\": 100, \"network\": 10, "
                     "\"gpu_mem_bw\": 1000, \"link\": 25, \"latency\": 2.5, \"drives\": 2, "
                     "\"gpu_tier_bytes\": \"1G,2G,3G,4G\", "
                     "\"drive_read\": 3}");
    (void)snprintf(
        line, sizeof(line),
        "plan --offload-optimizer none --params 2G --scale zero3,ddp --nodes 4 --node %s "
        "--flops 100T --tokens 4000 --svg %s",
        node, svg);
    s = zctl(line);
    assert_int_equal(s.status, 0);
    assert_non_null(strstr(s.out, "\nzero3        4     16 "));
    said_free(&s);
    text = read_text(svg);
    assert_non_null(strstr(text, "<svg xmlns="));
    assert_non_null(strstr(text, ">zero3</text>"));
    assert_non_null(strstr(text, ">ddp: no room</text>"));
    assert_non_null(strstr(text, "2 billion parameters, 4000 tokens"));
    assert_non_null(strstr(text, "nodes of 4 ranks"));
    assert_non_null(strstr(text, "</svg>\n"));
    (void)snprintf(line, sizeof(line), "plan -o json --params 1G --host-bytes 40G --gpus 8");
    s = zctl(line);
    assert_non_null(strstr(s.out, "\"link\": null"));
    said_free(&s);
    (void)snprintf(line, sizeof(line), "plan -o json --params 1G --node %s --host-bytes 40G", node);
    s = zctl(line);
    assert_non_null(strstr(s.out, "\"ranks\": 4"));
    assert_non_null(strstr(s.out, "\"budget\": 3221225472,\n      \"params\": 0"));
    assert_non_null(strstr(s.out, "\"drive_read\": 6e9"));
    assert_non_null(strstr(s.out, "\"latency\": 2.5e-6"));
    said_free(&s);
    assert_int_equal(unlink(svg), 0);
    assert_int_equal(unlink(node), 0);
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused),      cmocka_unit_test(plan_choices_are_names),
        cmocka_unit_test(plan_table),   cmocka_unit_test(plan_of_files),
        cmocka_unit_test(plan_picture),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
