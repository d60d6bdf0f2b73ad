#include "tests/ztest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt/args.h"

#define WORDS_MAX 64

#define SHAPE     "--seq 8 --layers 2 --heads 2 --width 16"
#define GOOD      "--steps 3 --seed 1 --batch 4 --micro-batch 2 " SHAPE

/* Splits at spaces; "%" stands for an empty word. */
static int parse(struct gpt_args *args, const char *line, struct zb_err *err, char *words)
{
    char *argv[WORDS_MAX];
    int argc = 0;

    (void)snprintf(words, 1024, "%s", line);
    for (char *save, *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        assert_true(argc < WORDS_MAX);
        argv[argc++] = strcmp(w, "%") == 0 ? w + 1 : w;
    }
    return gpt_args_parse(args, argc, argv, err);
}

static const struct {
    const char *line;
    int rc;
    const char *says;
} cases[] = {
    { GOOD, 0, "" },
    { "--help", 0, "" },
    { "--version", 0, "" },
    { "", -EINVAL, "--steps N is missing" },
    { "--steps 3 --seed 1 --batch 4 " SHAPE, -EINVAL, "--micro-batch M is missing" },
    { GOOD " --nonsense", -EINVAL, "unknown option '--nonsense'" },
    { GOOD " --step 3", -EINVAL, "unknown option '--step'" },
    { GOOD " stray", -EINVAL, "unexpected argument 'stray'" },
    { GOOD " --", -EINVAL, "unknown option '--'" },
    { GOOD " --keep=yes", -EINVAL, "--keep takes no value" },
    { GOOD " --job", -EINVAL, "--job needs a value" },
    { GOOD " --job --keep", -EINVAL, "--job needs a value" },
    { GOOD " --job=", -EINVAL, "--job must not be empty" },
    { GOOD " --data", -EINVAL, "--data needs a value" },
    { GOOD " --steps 0", 0, "" },
    { GOOD " --steps 4294967295", 0, "" },
    { GOOD " --steps 4294967296", -EINVAL, "--steps must be 0 to 4294967295, not 4294967296" },
    { GOOD " --steps -1", -EINVAL, "--steps must be a whole number, not '-1'" },
    { GOOD " --steps +1", -EINVAL, "whole number" },
    { GOOD " --steps 1.5", -EINVAL, "whole number" },
    { GOOD " --steps 0x10", -EINVAL, "whole number" },
    { GOOD " --steps %", -EINVAL, "whole number" },
    { GOOD " --seed 18446744073709551615", 0, "" },
    { GOOD " --seed 18446744073709551616", -EINVAL,
      "--seed must be 0 to 18446744073709551615, not" },
    { GOOD " --batch 0", -EINVAL, "--batch must be 1 to 1048576, not 0" },
    { GOOD " --layers 5000", -EINVAL, "--layers must be 1 to 4096, not 5000" },
    { GOOD " --heads 3", -EINVAL, "--width 16 is not a multiple of --heads 3" },
    { GOOD " --micro-batch 1048576 --seq 1048576", -EINVAL, "tokens at a time" },
    { GOOD " --freeze 0", 0, "" },
    { GOOD " --freeze 2", 0, "" },
    { GOOD " --freeze 3", -EINVAL, "--freeze 3 is more than there are blocks: --layers 2" },
    { GOOD " --freeze 4097", -EINVAL, "--freeze must be 0 to 4096, not 4097" },
    { GOOD " --freeze -1", -EINVAL, "--freeze must be a whole number, not '-1'" },
    { GOOD " --freeze 1 --quantize-frozen", 0, "" },
    { GOOD " --quantize-frozen", -EINVAL, "is of frozen blocks, and there are none: give --fr" },
    { GOOD " --freeze 1 --quantize-frozen --stage 2", -EINVAL, "is of --stage 3, and this is st" },
    { GOOD " --lr 0", 0, "" },
    { GOOD " --lr 3e-4", 0, "" },
    { GOOD " --lr -1", -EINVAL, "--lr must be 0 to 1e+06, not -1" },
    { GOOD " --lr nan", -EINVAL, "--lr must be a number, not 'nan'" },
    { GOOD " --lr inf", -EINVAL, "--lr must be 0 to 1e+06, not inf" },
    { GOOD " --lr fast", -EINVAL, "--lr must be a number, not 'fast'" },
    { GOOD " --lr 1e-3x", -EINVAL, "must be a number" },
    { GOOD " --weight-decay=", -EINVAL, "must be a number" },
    { GOOD " --clip 0", 0, "" },
    { GOOD " --dtype bf16", 0, "" },
    { GOOD " --dtype fp16", 0, "" },
    { GOOD " --dtype fp8", -EINVAL, "--dtype must be fp32, bf16 or fp16, not 'fp8'" },
    { GOOD " --dtype fp16 --loss-scale 128", 0, "" },
    { GOOD " --dtype fp16 --loss-scale -1", -EINVAL, "--loss-scale must be 0 to" },
    { GOOD " --dtype fp16 --initial-scale-power 127", -EINVAL, "must be 0 to 126, not 127" },
    { GOOD " --dtype fp16 --loss-scale-window 0", -EINVAL, "--loss-scale-window must be 1 to" },
    { GOOD " --dtype fp16 --hysteresis 0", -EINVAL, "--hysteresis must be 1 to 4294967295, not 0" },
    { GOOD " --dtype fp16 --consecutive-hysteresis --min-loss-scale 0.5", 0, "" },
    { GOOD " --hysteresis 2", -EINVAL, "--hysteresis is of --dtype fp16" },
    { GOOD " --dtype bf16 --loss-scale 0", -EINVAL, "--loss-scale is of --dtype fp16" },
    { GOOD " --dtype fp16 --device cpu", 0, "" },
    { GOOD " --dtype fp16 --device emulated", 0, "" },
    { GOOD " --dtype bf1", -EINVAL, "--dtype must be" },
    { GOOD " --device cpu", 0, "" },
    { GOOD " --device cuda:1", 0, "" },
    { GOOD " --device emulated:64M", 0, "" },
    { GOOD " --device cudas", -EINVAL, "--device: 'cudas' is not cpu" },
    { GOOD " --device tpu", -EINVAL, "--device: 'tpu' is not cpu" },
    { GOOD " --stage 3", 0, "" },
    { GOOD " --stage 4", -EINVAL, "--stage" },
    { GOOD " --stage 4", -EINVAL, "--stage must be 3, 2, 1 or 0, not '4'" },
    { GOOD " --resume", -EINVAL, "--resume needs the daemon" },
    { GOOD " --resume --offload nvme", 0, "" },
    { GOOD " --resume --offload nvme --init x", -EINVAL, "--init begins a run" },
    { GOOD " --commit-every 0", 0, "" },
    { GOOD " --commit-every never", -EINVAL, "must be a whole number" },
    { GOOD " --config ds.json", 0, "" },
    { "--config ds.json --steps 3 --seed 1 --seq 8 --layers 2 --heads 2 --width 16", 0, "" },
    { "--config ds.json --steps 3 --seed 1 --seq 8 --layers 2 --heads 2", -EINVAL, "--width C is" },
    { GOOD " --config ds.json --keep", 0, "" }, /* it may name the store */
    { GOOD " --config", -EINVAL, "--config needs a value" },
    { GOOD " --offload disk", -EINVAL, "--offload must be none, host or nvme, not 'disk'" },
    { GOOD " --offload nvme", 0, "" },
    { GOOD " --offload nvme --offload-param gpu", 0, "" },
    { GOOD " --offload gpu", -EINVAL, "--offload must be none, host or nvme, not 'gpu'" },
    { GOOD " --offload-param gpu", -EINVAL, "with the optimizer state, or not at all" },
    { GOOD " --offload-param host", -EINVAL, "with the optimizer state, or not at all" },
    { GOOD " --offload nvme --offload-optimizer none", -EINVAL, "with the optimizer state" },
    { GOOD " --offload nvme --offload-param none", 0, "" },
    { GOOD " --offload-optimizer host --keep", 0, "" },
    { GOOD " --keep", -EINVAL, "--keep needs the daemon" },
    { GOOD " --keep --offload host", 0, "" },
};

static void args_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct zb_err err = { 0 };
        struct gpt_args args;
        char words[1024];
        int rc = parse(&args, cases[i].line, &err, words);

        if (rc != cases[i].rc || err.code != rc || !strstr(err.text, cases[i].says))
            fail_msg("'%s': %d '%s'", cases[i].line, rc, err.text);
        gpt_args_done(&args);
    }
}

static void values_arrive(void **state)
{
    struct zb_err err = { 0 };
    struct gpt_args args;
    char words[1024];

    (void)state;
    assert_int_equal(parse(&args, GOOD, &err, words), 0);
    assert_int_equal(args.steps, 3);
    assert_int_equal(args.seed, 1);
    assert_int_equal(args.batch, 4);
    assert_int_equal(args.micro_batch, 2);
    assert_int_equal(args.seq, 8);
    assert_int_equal(args.layers, 2);
    assert_int_equal(args.heads, 2);
    assert_int_equal(args.width, 16);
    assert_int_equal(args.commit_every, 100);
    assert_int_equal(args.freeze, 0);
    assert_false(args.keep);
    assert_true(args.lr == 1e-3 && args.weight_decay == 0.01 && args.clip == 1);
    assert_int_equal(args.dtype, GPT_FP32);
    assert_true(args.loss_scale == 0 && args.min_scale == 1 && !args.consecutive_hysteresis);
    assert_int_equal(args.scale_power, 16);
    assert_int_equal(args.scale_window, 1000);
    assert_int_equal(args.hysteresis, 2);
    assert_int_equal(args.offload_param, GPT_OFFLOAD_NONE);
    assert_int_equal(args.offload_grad, GPT_GRAD_AUTO);
    assert_string_equal(args.job, "zgpt");
    assert_null(args.socket);
    assert_int_equal(args.data.n, 0);
    gpt_args_done(&args);

    assert_int_equal(
        parse(
            &args,
            GOOD
            " --data a b --lr=2.5 --data c --dtype bf16 --socket s --job j "
            "--offload-param host --offload nvme --offload-grad host --keep --init i --export=e=f "
            "--jsonl l --clip 0 --weight-decay 0.5 --seed 7 --freeze 1 "
            "--quantize-frozen",
            &err, words),
        0);
    assert_int_equal(args.data.n, 3);
    assert_string_equal(args.data.at[0], "a");
    assert_string_equal(args.data.at[1], "b");
    assert_string_equal(args.data.at[2], "c");
    assert_true(args.lr == 2.5 && args.weight_decay == 0.5 && args.clip == 0);
    assert_int_equal(args.dtype, GPT_BF16);
    assert_int_equal(args.offload_param, GPT_OFFLOAD_HOST); /* more specific than --offload */
    assert_int_equal(args.offload_optimizer, GPT_OFFLOAD_NVME);
    assert_int_equal(args.offload_grad, GPT_GRAD_HOST);
    assert_string_equal(args.socket, "s");
    assert_string_equal(args.job, "j");
    assert_string_equal(args.init, "i");
    assert_string_equal(args.export, "e=f");
    assert_string_equal(args.jsonl, "l");
    assert_true(args.keep);
    assert_false(args.resume);
    assert_int_equal(args.seed, 7); /* the last one wins */
    assert_int_equal(args.freeze, 1);
    assert_true(args.quantize_frozen);
    gpt_args_done(&args);

    assert_int_equal(parse(&args, GOOD " --resume --offload host --commit-every 7", &err, words),
                     0);
    assert_true(args.keep && args.resume);
    assert_int_equal(args.commit_every, 7);
    gpt_args_done(&args);
    assert_int_equal(args.node_gather, 0);
    assert_int_equal(parse(&args, GOOD " --node-gather auto", &err, words), 0);
    assert_int_equal(args.node_gather, 2);
    gpt_args_done(&args);
    assert_int_equal(parse(&args, GOOD " --node-gather nccl", &err, words), 0);
    assert_int_equal(args.node_gather, 0);
    gpt_args_done(&args);
}

static void micro_steps(void **state)
{
    static const struct {
        uint32_t batch, micro_batch, world;
        int rc;
        uint32_t steps;
    } rows[] = {
        { 12, 2, 1, 0, 6 },
        { 12, 2, 2, 0, 3 },
        { 12, 2, 3, 0, 2 },
        { 12, 12, 1, 0, 1 },
        { 1, 1, 1, 0, 1 },
        { 12, 2, 4, -EINVAL, 77 },
        { 12, 5, 1, -EINVAL, 77 },
        { 4, 8, 1, -EINVAL, 77 },
        { 4, 1048576, 4294967295u, -EINVAL, 77 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct gpt_args args = { .batch = rows[i].batch, .micro_batch = rows[i].micro_batch };
        struct zb_err err = { 0 };
        uint32_t steps = 77;

        if (gpt_args_micro_steps(&args, rows[i].world, &steps, &err) != rows[i].rc ||
            steps != rows[i].steps)
            fail_msg("%u by %u on %u: %u '%s'", rows[i].batch, rows[i].micro_batch, rows[i].world,
                     steps, err.text);
    }
}

static void help_has_every_flag(void **state)
{
    static const char *const flags[] = {
        "--socket PATH",     "--job NAME",        "--keep",
        "--resume",          "--stage 3",         "--offload none",
        "--offload-optim",   "--offload-par",     "--data FILE...",
        "--steps N",         "--seed S",          "--batch B",
        "--micro-batch",     "--seq T",           "--layers L",
        "--heads H",         "--width C",         "--lr X",
        "--weight-decay ",   "--clip X",          "--dtype fp32",
        "--device NAME",     "--config FILE",     "--init PATH",
        "--export FILE",     "--jsonl FILE",      "--help",
        "--version",         "--commit-every N",  "--overlap all",
        "--optimizer adamw", "--moments fp32",    "--quantize-gather",
        "--freeze N",        "--quantize-frozen",
    };
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    (void)state;
    gpt_args_help(out);
    (void)fclose(out);
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        if (!strstr(text, flags[i]))
            fail_msg("help does not say '%s'", flags[i]);
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1)
        if (end - line > 80)
            fail_msg("a line of help has %d characters", (int)(end - line));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(args_table),
        cmocka_unit_test(values_arrive),
        cmocka_unit_test(micro_steps),
        cmocka_unit_test(help_has_every_flag),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
