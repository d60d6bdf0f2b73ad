#include "tests/ztest.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/zc_safetensors.h"
#include "examples/gpt/train.h"
#include "examples/gpt/weights.h"
#include "tests/folder.h"
#include "tests/unit/gpt/fake_engine.h"
#include "tests/unit/gpt/fake_stash.h"

static int folder_make(void **state)
{
    FILE *f = folder_enter(state) == 0 ? fopen("text.txt", "w") : NULL;

    if (!f)
        return -1;
    for (int i = 0; i < 500; i++)
        (void)fprintf(f, "the quick brown fox jumps over the lazy dog; ");
    return fclose(f) || mkdir("folder", 0777);
}

/* ---- a run */

struct result {
    int rc;
    struct zb_err err;
    char *said;
};

static volatile sig_atomic_t stop;

static struct gpt_args args_of(uint64_t steps)
{
    static const char *data[] = { "text.txt" };

    return (struct gpt_args){ .job = "t",
                              .data = { data, 1 },
                              .steps = steps,
                              .seed = 1,
                              .batch = 4,
                              .micro_batch = 2,
                              .seq = 12,
                              .layers = 2,
                              .heads = 2,
                              .width = 16,
                              .lr = 1e-2,
                              .weight_decay = 0.01,
                              .clip = 1 };
}

static struct result train(const struct gpt_args *args)
{
    struct result r = { 0 };
    size_t bytes = 0;
    FILE *people = open_memstream(&r.said, &bytes);

    fake.calls = fake.opened = fake.closed = fake.comm_opened = fake.comm_closed = 0;
    fake.closed_clean = false;
    fake.world = fake.world ? fake.world : 1;
    r.rc = gpt_train(args, &stop, people, &r.err);
    (void)fclose(people);
    assert_int_equal(fake.closed, fake.opened);
    assert_int_equal(fake.comm_closed, fake.comm_opened);
    assert_int_equal(r.err.code, r.rc);
    return r;
}

static void train_well(const struct gpt_args *args)
{
    struct result r = train(args);

    if (r.rc != 0)
        fail_msg("%d: %s", r.rc, r.err.text);
    assert_true(fake.closed_clean);
    free(r.said);
}

/* The losses in a --jsonl file of n lines. */
static double *losses_read(const char *path, size_t n)
{
    double *losses = calloc(n + 1, sizeof(*losses));
    FILE *f = fopen(path, "r");
    char line[1024];
    size_t i = 0;

    assert_non_null(f);
    for (; fgets(line, sizeof(line), f); i++) {
        json_t *o = json_loads(line, JSON_REJECT_DUPLICATES, NULL);

        assert_non_null(o);
        assert_true(i < n);
        assert_int_equal(json_integer_value(json_object_get(o, "step")), i + 1);
        losses[i] = json_number_value(json_object_get(o, "loss"));
        json_decref(o);
    }
    (void)fclose(f);
    assert_int_equal(i, n);
    return losses;
}

/* Whether each line of a file contains `part`. */
static bool lines_have(const char *path, const char *part)
{
    FILE *f = fopen(path, "r");
    char line[1024];
    bool all = true;

    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        all = all && strstr(line, part);
    (void)fclose(f);
    return all;
}

static void files_same(const char *a, const char *b, bool same)
{
    FILE *f = fopen(a, "r"), *g = fopen(b, "r");
    bool equal = true;
    int c;

    assert_non_null(f);
    assert_non_null(g);
    do {
        c = fgetc(f);
        equal = equal && c == fgetc(g);
    } while (c != EOF && equal);
    (void)fclose(f);
    (void)fclose(g);
    assert_int_equal(equal, same);
}

/* ---- tests */

static void it_learns(void **state)
{
    struct gpt_args args = args_of(150);
    double *losses;
    struct result r;

    (void)state;
    args.jsonl = "log";
    r = train(&args);
    assert_int_equal(r.rc, 0);
    assert_non_null(strstr(r.said, "2 micro-steps of 2"));
    assert_non_null(strstr(r.said, "unigram entropy"));
    assert_non_null(strstr(r.said, "step 1/150 "));
    assert_non_null(strstr(r.said, "step 150/150 "));
    free(r.said);
    losses = losses_read("log", 150);
    assert_true(fabs(losses[0] - log(256)) < 0.1);
    assert_true(losses[149] < 1.5); /* the frequencies of letters alone give 3.1 nats */
    free(losses);
}

static void one_object_per_step(void **state)
{
    static const char *const integers[] = { "step",
                                            "fetched_bytes",
                                            "nvme_read_bytes",
                                            "nvme_written_bytes",
                                            "activation_bytes",
                                            "gather_up_bytes",
                                            "gather_down_bytes",
                                            "gather_nodes_bytes" };
    static const char *const numbers[] = { "loss",         "grad_norm", "lr",
                                           "tokens_per_s", "stall_s",   "loss_scale" };
    static const char *const tiers[] = { "host", "nvme", "gpu" };
    struct gpt_args args = args_of(2);
    json_t *o, *tier;
    FILE *f;

    (void)state;
    args.jsonl = "log";
    fake.world = 2; /* two ranks that do the same */
    train_well(&args);
    fake.world = 1;
    f = fopen("log", "r");
    for (int step = 1; step <= 2; step++) {
        o = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL);
        assert_non_null(o);
        assert_int_equal(json_object_size(o), 19);
        for (size_t i = 0; i < sizeof(integers) / sizeof(integers[0]); i++)
            assert_true(json_is_integer(json_object_get(o, integers[i])));
        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
            assert_true(json_is_number(json_object_get(o, numbers[i])));
        assert_true(json_is_false(json_object_get(o, "skipped")));
        assert_int_equal(json_integer_value(json_object_get(o, "step")), step);
        assert_true(json_number_value(json_object_get(o, "lr")) == 0.01);
        assert_true(json_number_value(json_object_get(o, "loss")) < 6); /* a mean over ranks */
        /* For this step alone: bytes of all ranks, and the mean of their waiting times. */
        assert_true(json_number_value(json_object_get(o, "stall_s")) == 0.25);
        assert_int_equal(json_integer_value(json_object_get(o, "nvme_read_bytes")), 100);
        assert_int_equal(json_integer_value(json_object_get(o, "nvme_written_bytes")), 30);
        assert_int_equal(json_integer_value(json_object_get(o, "fetched_bytes")),
                         2 * 4 * (2 * (256 + 12) * 16 + 2 * 2 * (12 * 256 + 13 * 16) + 2 * 16));
        tier = json_object_get(o, "tier_bytes");
        assert_int_equal(json_object_size(tier), 3);
        for (size_t i = 0; i < 3; i++)
            assert_true(json_is_integer(json_object_get(tier, tiers[i])));
        assert_int_equal(json_integer_value(json_object_get(tier, "host")), 2 * 5000000);
        json_decref(o);
    }
    (void)fclose(f);
}

static void not_finite_is_null(void **state)
{
    struct gpt_args args = args_of(1);
    char line[1024];
    struct result r;
    FILE *f;

    (void)state;
    args.jsonl = "log";
    fake.skip_next_step = true;
    r = train(&args);
    assert_int_equal(r.rc, 0);
    assert_non_null(strstr(r.said, "(skipped)"));
    free(r.said);
    f = fopen("log", "r");
    assert_non_null(fgets(line, sizeof(line), f));
    (void)fclose(f);
    assert_non_null(strstr(line, "\"grad_norm\": null,"));
}

/* The same sequences in other micro-batches. */
static void micro_batches_agree(void **state)
{
    struct gpt_args args = args_of(10);
    double *a, *b;

    (void)state;
    args.jsonl = "log";
    args.micro_batch = 4;
    train_well(&args);
    a = losses_read("log", 10);
    args.micro_batch = 1;
    train_well(&args);
    b = losses_read("log", 10);
    for (int i = 0; i < 10; i++)
        if (!(fabs(a[i] - b[i]) <= 2e-6 * a[i]))
            fail_msg("step %d: %.9g and %.9g", i + 1, a[i], b[i]);
    free(a);
    free(b);
}

/* A number in the first line of a --jsonl file. */
static json_int_t integer_read(const char *path, const char *name)
{
    FILE *f = fopen(path, "r");
    json_t *o;
    json_int_t value;

    assert_non_null(f);
    o = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL);
    assert_true(json_is_integer(json_object_get(o, name)));
    value = json_integer_value(json_object_get(o, name));
    json_decref(o);
    (void)fclose(f);
    return value;
}

/* All micro-batches unit by unit: the same sequences, and every unit is fetched once for all of
 * them. */
static void orders_agree(void **state)
{
    static const uint32_t dtypes[] = { GPT_FP32, GPT_BF16 };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct gpt_args args = args_of(10);
        json_int_t fetched;
        double *a, *b;

        args.jsonl = "log";
        args.micro_batch = 1;
        args.dtype = dtypes[i];
        train_well(&args);
        a = losses_read("log", 10);
        fetched = integer_read("log", "fetched_bytes");
        args.order = GPT_VERTICAL;
        train_well(&args);
        b = losses_read("log", 10);
        assert_int_equal(integer_read("log", "fetched_bytes"), fetched / 4);
        assert_true(a[0] == b[0]);
        for (int k = 0; k < 10; k++)
            if (!(fabs(a[k] - b[k]) <= (i == 0 ? 2e-6 : 1e-3) * a[k]))
                fail_msg("step %d: %.9g and %.9g", k + 1, a[k], b[k]);
        free(a);
        free(b);
    }
}

/* Keeping activations between the passes changes no bit, and takes the calculated number of
 * bytes. */
static void checkpoints_agree(void **state)
{
    struct gpt_args args = args_of(5);
    json_int_t all, inputs;
    double *a, *b;

    (void)state;
    args.layers = 3;
    for (uint32_t order = GPT_HORIZONTAL; order <= GPT_VERTICAL; order++) {
        const int64_t n = 2 * 12, c = 16, ht = 2 * 12, micros = order == GPT_VERTICAL ? 2 : 1;

        args.order = order;
        args.jsonl = "log";
        args.export = "all";
        args.checkpoint = GPT_CHECKPOINT_NONE;
        train_well(&args);
        a = losses_read("log", 5);
        all = integer_read("log", "activation_bytes");
        args.export = "inputs";
        args.checkpoint = GPT_CHECKPOINT_BLOCK;
        train_well(&args);
        b = losses_read("log", 5);
        inputs = integer_read("log", "activation_bytes");
        assert_memory_equal(a, b, 5 * sizeof(*a));
        files_same("all", "inputs", true);
        /* the insides of all blocks except one; each of the four means is rounded up to 64 bytes */
        assert_int_equal(all - inputs,
                         (micros * 3 - 1) * (4 * n * (15 * c + ht) + 4 * ((4 * n + 63) / 64 * 64)));
        free(b);

        args.checkpoint = order == GPT_HORIZONTAL ? GPT_CHECKPOINT_HOST : GPT_CHECKPOINT_NVME;
        train_well(&args);
        b = losses_read("log", 5);
        assert_memory_equal(a, b, 5 * sizeof(*a));
        files_same("all", "inputs", true);
        /* the streams, except those in slots */
        assert_int_equal(inputs - integer_read("log", "activation_bytes"),
                         micros * 4 * 4 * n * c - (4 * 4 * n * c + 4095) / 4096 * 4096);
        assert_int_equal(fake_stash.entries, micros * 4);
        assert_int_equal(fake_stash.entry_bytes, 4 * n * c);
        assert_int_equal(fake_stash.opened, fake_stash.closed);
        if (order == GPT_VERTICAL) { /* forward 3 blocks and the head, back 3; not the first */
            assert_int_equal(fake_stash.taken, 5 * 2 * 7);
            assert_int_equal(fake_stash.ahead, 5 * (2 * 7 - 1));
        } else { /* two micro-steps; the head's input stays; block 0, forward, is not announced */
            assert_int_equal(fake_stash.taken, 2 * 5 * 6);
            assert_int_equal(fake_stash.ahead, 2 * 5 * 5);
        }
        args.checkpoint = GPT_CHECKPOINT_NONE;
        free(a);
        free(b);
    }
}

static void export_and_init(void **state)
{
    struct gpt_args args = args_of(3);
    struct zc_st_file *f = NULL;

    (void)state;
    args.export = "trained";
    train_well(&args);
    train_well(&args); /* replaces the old file */
    args.steps = 0;
    args.export = "begin";
    train_well(&args);
    files_same("trained", "begin", false);
    args.init = "trained";
    args.seed = 77; /* irrelevant then */
    args.export = "again";
    train_well(&args);
    files_same("trained", "again", true);
    assert_int_equal(zc_st_open(&f, "again", NULL, 0), 0);
    assert_int_equal(zc_st_count(f), 2 + 2 * 12 + 2);
    assert_string_equal(zc_st_metadata(f, "format"), "pt");
    assert_non_null(zc_st_find(f, "transformer.h.1.mlp.c_proj.bias"));
    zc_st_close(f);
}

/* Whether all tensors with this prefix are the same in both files; there must be some. */
static bool tensors_same(const char *a, const char *b, const char *prefix)
{
    struct zc_st_file *f = NULL, *g = NULL;
    float x[4096], y[4096];
    bool same = true;
    size_t seen = 0;

    assert_int_equal(zc_st_open(&f, a, NULL, 0), 0);
    assert_int_equal(zc_st_open(&g, b, NULL, 0), 0);
    for (size_t i = 0; i < zc_st_count(f); i++) {
        const struct zc_st_tensor *t = zc_st_at(f, i), *u = zc_st_find(g, t->name);
        uint64_t n;

        for (uint64_t at = 0; strncmp(t->name, prefix, strlen(prefix)) == 0 && at < t->elems;
             at += n, seen++) {
            n = t->elems - at < 4096 ? t->elems - at : 4096;
            assert_int_equal(zc_st_read_f32(f, t, at, n, x, NULL, 0), 0);
            assert_int_equal(zc_st_read_f32(g, u, at, n, y, NULL, 0), 0);
            same = same && memcmp(x, y, n * sizeof(*x)) == 0;
        }
    }
    assert_true(seen > 0);
    zc_st_close(f);
    zc_st_close(g);
    return same;
}

/* The fake engine asserts that their gradients are not requested. */
static void frozen_blocks_stay(void **state)
{
    static const char *const tensors[] = { "transformer.wte", "transformer.wpe", "transformer.h.0.",
                                           "transformer.h.1.", "transformer.ln_f" };

    (void)state;
    for (uint32_t i = 0; i < 3 * 2 * 2; i++) {
        struct gpt_args args = args_of(0);
        double *losses;

        args.dtype = i % 3 == 1 ? GPT_BF16 : GPT_FP32;
        args.checkpoint = i % 3 == 2 ? GPT_CHECKPOINT_HOST : GPT_CHECKPOINT_AUTO;
        args.order = i / 3 % 2 ? GPT_VERTICAL : GPT_HORIZONTAL;
        args.freeze = 1 + i / 6;
        args.export = "begin";
        train_well(&args);
        args.steps = 5;
        args.export = "end";
        args.jsonl = "log";
        train_well(&args);
        losses = losses_read("log", 5);
        assert_true(losses[4] < losses[0]);
        free(losses);
        for (size_t k = 0; k < sizeof(tensors) / sizeof(tensors[0]); k++)
            if (tensors_same("begin", "end", tensors[k]) !=
                (k == 2 || (k == 3 && args.freeze == 2)))
                fail_msg("%u: %s", i, tensors[k]);
    }
}

static void what_is_frozen_is_said(void **state)
{
    struct gpt_args args = args_of(1);
    struct result r;

    (void)state;
    args.freeze = 2;
    r = train(&args);
    assert_int_equal(r.rc, 0);
    if (!strstr(r.said, "the first 2 of 2 blocks are frozen; 4320 parameters are trained\n"))
        fail_msg("%s", r.said); /* (256 + 12) * 16, and 2 * 16 */
    free(r.said);
}

static void bf16_computes_with_rounded_weights(void **state)
{
    struct gpt_args args = args_of(150);
    double *exact, *rounded;

    (void)state;
    args.jsonl = "log";
    train_well(&args);
    exact = losses_read("log", 150);
    args.dtype = GPT_BF16;
    train_well(&args);
    rounded = losses_read("log", 150);
    assert_true(rounded[0] != exact[0] && fabs(rounded[0] - exact[0]) < 1e-3);
    assert_true(rounded[149] < 1.5);
    free(exact);
    free(rounded);
}

/* The fake engine asserts that no gradient overflows, and divides by the scale that it reported. */
static void fp16_scales_its_loss(void **state)
{
    struct gpt_args args = args_of(150);
    double *exact, *rounded, *fixed;

    (void)state;
    args.jsonl = "log";
    train_well(&args);
    exact = losses_read("log", 150);
    assert_true(lines_have("log", "\"loss_scale\": 1, \"skipped\": false"));
    args.dtype = GPT_FP16;
    train_well(&args);
    rounded = losses_read("log", 150);
    assert_true(lines_have("log", "\"loss_scale\": 1024, \"skipped\": false"));
    args.loss_scale = 1;
    train_well(&args);
    fixed = losses_read("log", 150);
    assert_true(rounded[0] != exact[0] && fabs(rounded[0] - exact[0]) < 1e-4);
    for (size_t i = 0; i < 10; i++) /* later, rounding leads to the same end along another path */
        assert_true(fabs(rounded[i] - exact[i]) < 1e-3 * exact[i]);
    assert_true(rounded[149] < 1.5);
    assert_true(fixed[149] != rounded[149]); /* small gradients lose more to rounding */
    free(exact);
    free(rounded);
    free(fixed);
}

/* ---- configurations */

static void config_write(const char *text)
{
    FILE *f = fopen("ds.json", "w");

    assert_non_null(f);
    for (; *text; text++)
        (void)fputc(*text == '\'' ? '"' : *text, f);
    assert_int_equal(fclose(f), 0);
}

/* Trains with these words of a command line; the shape is that of args_of(). */
static struct result train_words(const char *more)
{
    char line[1024], *words[64], *at = line;
    struct gpt_args args;
    struct result r = { 0 };
    int n = 0;

    (void)snprintf(line, sizeof(line),
                   "--steps 6 --seed 1 --seq 12 --layers 2 --heads 2 --width 16 --data text.txt "
                   "--config ds.json %s",
                   more);
    while ((words[n] = strsep(&at, " ")) != NULL)
        n += *words[n] != '\0';
    r.rc = gpt_args_parse(&args, n, words, &r.err);
    if (r.rc == 0)
        r = train(&args);
    gpt_args_done(&args);
    return r;
}

#define FILE_LR "'optimizer': {'type': 'AdamW', 'params': {'lr': 0.01, 'weight_decay': 0.1}}, "

static const struct {
    const char *name, *file, *words;
    int rc;
    const char *says; /* the error message of a failure, or a part of the output */
    double lrs[6];
    uint32_t micro_steps; /* 0: as it results */
    enum zc_zero_stage stage;
    double clip, decay;
} configs[] = {
    { "a file says it all",
      "{'train_batch_size': 4, 'train_micro_batch_size_per_gpu': 2, " FILE_LR
      "'gradient_clipping': 0.5, 'zero_optimization': {'stage': 2}}",
      "",
      0,
      "4 sequences of 12 tokens",
      { 0.01, 0.01, 0.01, 0.01, 0.01, 0.01 },
      2,
      ZC_STAGE_2,
      0.5,
      0.1 },
    { "flags win",
      "{'train_batch_size': 4, 'train_micro_batch_size_per_gpu': 2, " FILE_LR
      "'gradient_clipping': 0.5, 'zero_optimization': {'stage': 2}}",
      "--lr 0.02 --clip 2 --batch 8 --stage 3 --weight-decay 0",
      0,
      "zgpt: --lr overrides optimizer.params.lr 0.01 of 'ds.json'\n",
      { 0.02, 0.02, 0.02, 0.02, 0.02, 0.02 },
      4,
      ZC_STAGE_3,
      2,
      0 },
    { "what it leaves is the flags'",
      "{'train_batch_size': 'auto', 'train_micro_batch_size_per_gpu': 'auto', "
      "'gradient_clipping': 'auto', 'bf16': {'enabled': 'auto'}}",
      "--batch 4 --micro-batch 1 --lr 0.03 --dtype bf16",
      0,
      "(bf16)",
      { 0.03, 0.03, 0.03, 0.03, 0.03, 0.03 },
      4,
      ZC_STAGE_DDP,
      1,
      0.01 },
    { "a schedule",
      "{'train_batch_size': 2, 'train_micro_batch_size_per_gpu': 2, " FILE_LR
      "'scheduler': {'type': 'WarmupDecayLR', 'params': {'warmup_max_lr': 0.01, "
      "'warmup_num_steps': 2, 'warmup_type': 'linear', 'total_num_steps': 'auto'}}}",
      "",
      0,
      "",
      { 0, 0, 0.005, 0.01, 0.0075, 0.005 },
      1,
      ZC_STAGE_DDP,
      1,
      0.1 },
    { "its top is the flag's",
      "{'train_batch_size': 2, 'train_micro_batch_size_per_gpu': 2, " FILE_LR
      "'scheduler': {'type': 'WarmupLR', 'params': {'warmup_max_lr': 0.01, "
      "'warmup_num_steps': 2, 'warmup_type': 'linear'}}}",
      "--lr 0.02",
      0,
      "--lr overrides scheduler.params.warmup_max_lr 0.01",
      { 0, 0, 0.01, 0.02, 0.02, 0.02 },
      1,
      ZC_STAGE_DDP,
      1,
      0.1 },
    { "what has no effect",
      "{'train_batch_size': 2, 'steps_per_print': 5}",
      "--lr 1e-3",
      0,
      "zgpt: steps_per_print: ignored, because it controls DeepSpeed's own logging\n",
      { 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3 },
      1,
      ZC_STAGE_DDP,
      1,
      0.01 },
    { "checkpointing",
      "{'train_batch_size': 2, 'activation_checkpointing': "
      "{'partition_activations': true}}",
      "--lr 1e-3",
      0,
      "zgpt: activation_checkpointing.partition_activations: ignored, because no",
      { 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3 },
      1,
      ZC_STAGE_DDP,
      1,
      0.01 },
    { "frozen blocks as int8",
      "{'train_batch_size': 2, 'zero_optimization': {'stage': 3, "
      "'zero_quantized_nontrainable_weights': true}}",
      "--lr 1e-3 --freeze 1",
      0,
      "1 of 2 blocks are frozen, and kept as int8",
      { 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3 },
      1,
      ZC_STAGE_3,
      1,
      0.01 },
    { "there is no frozen block",
      "{'train_batch_size': 2, 'zero_optimization': {'stage': 3, "
      "'zero_quantized_nontrainable_weights': true}}",
      "--lr 1e-3",
      0,
      "zgpt: zero_optimization.zero_quantized_nontrainable_weights: ignored, because no block "
      "is frozen\n",
      { 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3 },
      1,
      ZC_STAGE_3,
      1,
      0.01 },
    { "another stage keeps them whole",
      "{'train_batch_size': 2, 'zero_optimization': {'stage': 3, "
      "'zero_quantized_nontrainable_weights': true}}",
      "--lr 1e-3 --freeze 1 --stage 2",
      0,
      "zero_quantized_nontrainable_weights: ignored, because it applies to stage 3 only\n",
      { 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3 },
      1,
      ZC_STAGE_2,
      1,
      0.01 },
    { "fp16",
      "{'train_batch_size': 2, 'fp16': {'enabled': true, 'initial_scale_power': 7}}",
      "--lr 1e-3",
      0,
      "(fp16)",
      { 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3 },
      1,
      ZC_STAGE_DDP,
      1,
      0.01 },
    { "no batch",
      "{}",
      "",
      -EINVAL,
      "train_batch_size: 'ds.json' has neither this key",
      { 0 },
      0,
      0,
      0,
      0 },
    { "no micro-batch",
      "{'train_batch_size': 4, 'train_micro_batch_size_per_gpu': 'auto'}",
      "",
      -EINVAL,
      "give --micro-batch",
      { 0 },
      0,
      0,
      0,
      0 },
    { "it divides no more",
      "{'train_batch_size': 4, 'train_micro_batch_size_per_gpu': 2}",
      "--batch 5",
      -EINVAL,
      "--batch 5 does not divide into --micro-batch 2",
      { 0 },
      0,
      0,
      0,
      0 },
    { "a wrong key",
      "{'train_batch_size': 4, 'zero_optimization': {'stgae': 3}}",
      "",
      -EINVAL,
      "--config 'ds.json': zero_optimization.stgae: no such key",
      { 0 },
      0,
      0,
      0,
      0 },
    { "of fp16 only",
      "{'train_batch_size': 4}",
      "--hysteresis 3",
      -EINVAL,
      "--hysteresis is of --dtype fp16",
      { 0 },
      0,
      0,
      0,
      0 },
    { "kept where nothing is offloaded",
      "{'train_batch_size': 4}",
      "--keep",
      -EINVAL,
      "--keep needs the daemon",
      { 0 },
      0,
      0,
      0,
      0 },
};

static void files_of_deepspeed(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
        struct result r;

        config_write(configs[i].file);
        r = train_words(configs[i].words);
        if (r.rc != configs[i].rc || !strstr(r.rc == 0 ? r.said : r.err.text, configs[i].says))
            fail_msg("%s: %d '%s' '%s'", configs[i].name, r.rc, r.err.text, r.said ? r.said : "");
        for (size_t k = 0; k < 6 && r.rc == 0; k++)
            if (fabs(fake.lrs[k] - configs[i].lrs[k]) > 1e-15)
                fail_msg("%s: step %zu had lr %g", configs[i].name, k + 1, fake.lrs[k]);
        if (r.rc == 0 &&
            (fake.options.micro_steps != configs[i].micro_steps ||
             fake.options.stage != configs[i].stage || fake.options.clip != configs[i].clip ||
             fake.options.weight_decay[0] != configs[i].decay))
            fail_msg("%s: micro-steps %u, stage %d, clip %g, decay %g", configs[i].name,
                     fake.options.micro_steps, (int)fake.options.stage, fake.options.clip,
                     fake.options.weight_decay[0]);
        if (r.rc == 0)
            assert_int_equal(fake.quantized, strcmp(configs[i].name, "frozen blocks as int8") == 0);
        if (r.rc == 0 && strcmp(configs[i].name, "fp16") == 0)
            assert_true(fake.options.loss_scale.dynamic && fake.options.loss_scale.power == 7);
        free(r.said);
    }
}

/* Scalars without a flag have torch's defaults. */
static void scalars_are_torchs(void **state)
{
    (void)state;
    for (uint32_t optimizer = GPT_ADAMW; optimizer <= GPT_ADAGRAD; optimizer++) {
        struct gpt_args args = args_of(0);

        args.optimizer = optimizer;
        train_well(&args);
        assert_true(fake.options.eps == (optimizer == GPT_ADAGRAD ? 1e-10 : 1e-8));
        assert_true(fake.options.beta2 == (optimizer == GPT_LION ? 0.99 : 0.999));
    }
}

static void a_signal_ends_it(void **state)
{
    struct gpt_args args = args_of(5);
    struct result r;

    (void)state;
    args.jsonl = "log";
    args.export = "stopped";
    (void)remove("stopped");
    stop = 1;
    r = train(&args);
    assert_int_equal(r.rc, -EINTR);
    assert_string_equal(r.err.text, "stopped by a signal after step 1 of 5");
    assert_true(fake.closed_clean);
    assert_int_equal(access("stopped", F_OK), 0);
    free(losses_read("log", 1));
    free(r.said);
    args.steps = 1; /* it was the last step: nothing was lost */
    train_well(&args);
    stop = 0;
}

/* ---- kept runs */

static void a_kept_run_goes_on(void **state)
{
    struct gpt_args args = args_of(6);
    struct result r;
    double *losses;

    (void)state;
    args.offload_param = args.offload_optimizer = GPT_OFFLOAD_HOST;
    args.export = "whole";
    args.jsonl = "log";
    train_well(&args);
    losses = losses_read("log", 6);

    args.keep = true;
    args.steps = 2;
    args.jsonl = "parts";
    args.export = "part";
    train_well(&args);
    assert_int_equal(fake.committed, 2);
    args.steps = 6;
    args.resume = true;
    stop = 1;
    r = train(&args);
    stop = 0;
    assert_int_equal(r.rc, -EINTR);
    assert_string_equal(r.err.text,
                        "stopped by a signal after step 3 of 6: continue with --resume");
    assert_int_equal(fake.committed, 3);
    free(r.said);
    for (int again = 0; again < 2; again++) { /* the second time there is nothing to do */
        r = train(&args);
        assert_int_equal(r.rc, 0);
        if (!strstr(r.said, again ? "resumes after step 6" : "resumes after step 3"))
            fail_msg("%s", r.said);
        free(r.said);
        assert_int_equal(fake.committed, 6);
        files_same("whole", "part", true);
        (void)remove("part");
    }
    {
        double *parts = losses_read("parts", 6);

        assert_memory_equal(losses, parts, 6 * sizeof(*parts));
        free(parts);
    }
    free(losses);
    (void)remove("parts");
    fake_forget();
}

static void a_resume_that_is_refused(void **state)
{
    struct gpt_args args = args_of(2);
    struct result r;

    (void)state;
    args.offload_param = args.offload_optimizer = GPT_OFFLOAD_HOST;
    args.keep = true;
    train_well(&args);
    args.resume = true;
    args.steps = 3;
    args.seed++;
    r = train(&args);
    assert_int_equal(r.rc, -EEXIST);
    if (!strstr(r.err.text, "has 'seed 1', but this run 'seed 2'"))
        fail_msg("%s", r.err.text);
    free(r.said);
    args.seed--;
    fake.other_job = true; /* another job's units */
    r = train(&args);
    fake.other_job = false;
    assert_int_equal(r.rc, -EEXIST);
    assert_non_null(strstr(r.err.text, "is another run: "));
    free(r.said);
    fake_forget();
}

static void a_commit_that_fails(void **state)
{
    struct gpt_args args = args_of(1);
    struct result r;

    (void)state;
    args.offload_param = args.offload_optimizer = GPT_OFFLOAD_HOST;
    args.keep = true;
    args.export = "all the same";
    fake.commit_rc = -ENOSPC;
    r = train(&args);
    fake.commit_rc = 0;
    assert_int_equal(r.rc, -ENOSPC);
    assert_int_equal(access("all the same", F_OK), 0);
    assert_true(fake.closed_clean);
    free(r.said);
    fake_forget();
}

static void sockets_by_rank(void **state)
{
    static const struct {
        const char *list, *mine;
        int rc;
    } rows[] = {
        { "/a", "/a", 0 },   { "/a,/b", "/a", 0 },   { "/a,/b,/c", "/a", 0 },
        { "", "", -EINVAL }, { ",/b", "", -EINVAL },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct gpt_args args = args_of(0);
        struct result r;

        args.socket = rows[i].list;
        fake.socket[0] = '\0';
        r = train(&args);
        assert_int_equal(r.rc, rows[i].rc);
        assert_string_equal(fake.socket, rows[i].mine);
        free(r.said);
    }
}

/* Fails the first call to the engine, then the second, and so on. */
static void every_failure_of_the_engine(void **state)
{
    struct gpt_args args = args_of(1);
    bool failed = true;
    unsigned nth;

    (void)state;
    args.layers = 1;
    args.export = "failed";
    args.keep = true;
    for (nth = 1; failed; nth++) {
        struct result r;

        fake_forget();
        (void)remove("failed");
        args.dtype = nth % 2 ? GPT_FP32 : GPT_BF16;
        fake.fail_at = nth;
        r = train(&args);
        failed = fake.calls >= nth;
        assert_int_equal(r.rc, failed ? -EOWNERDEAD : 0);
        assert_string_equal(r.err.text, failed ? FAKE_MESSAGE : "");
        assert_int_equal(fake.closed_clean, !failed);
        assert_int_equal(access("failed", F_OK), failed ? -1 : 0);
        free(r.said);
    }
    fake.fail_at = 0;
    args.resume = true;
    for (nth = 1, failed = true; failed; nth++) {
        struct result r;

        args.dtype = GPT_FP32;
        args.keep = true;
        args.resume = false;
        train_well(&args);
        args.resume = true;
        args.steps = 2;
        fake.fail_at = nth;
        r = train(&args);
        fake.fail_at = 0;
        failed = fake.calls >= nth;
        assert_int_equal(r.rc, failed ? -EOWNERDEAD : 0);
        free(r.said);
        args.steps = 1;
        fake_forget();
    }
    assert_true(nth > 50);
}

/* The stash fails at its first make, its second, and so on. */
static void a_stash_that_fails(void **state)
{
    struct gpt_args args = args_of(1);

    (void)state;
    for (args.order = GPT_HORIZONTAL; args.order <= GPT_VERTICAL; args.order++) {
        int rc = -EIO;

        args.checkpoint = GPT_CHECKPOINT_HOST;
        for (fake_stash.fail_at = 1; rc != 0; fake_stash.fail_at++) {
            struct result r = train(&args);

            rc = r.rc;
            assert_true(rc == 0 || rc == -EIO);
            assert_string_equal(r.err.text, rc ? "the stash, says the test" : "");
            assert_int_equal(fake_stash.opened, fake_stash.closed);
            free(r.said);
        }
        assert_true(fake_stash.fail_at > 10);
    }
    fake_stash.fail_at = 0;
}

static void refusals(void **state)
{
    static const char *nowhere[] = { "nowhere.txt" };
    const struct {
        const char *name;
        int rc;
        const char *says;
        struct gpt_args change;
    } rows[] = {
        { "batch", -EINVAL, "does not divide", { .batch = 5 } },
        { "data", -ENOENT, "'nowhere.txt'", { .data = { nowhere, 1 } } },
        { "init", -ENOENT, "'nowhere.st'", { .init = "nowhere.st" } },
        { "init of text", -EBADMSG, "not a valid safetensors file", { .init = "text.txt" } },
        { "jsonl", -ENOENT, "--jsonl 'nowhere/log'", { .jsonl = "nowhere/log" } },
        { "jsonl on a full device", -ENOSPC, "--jsonl '/dev/full'", { .jsonl = "/dev/full" } },
        { "export", -ENOENT, "--export 'nowhere/x'", { .export = "nowhere/x" } },
        { "export over a folder", -EISDIR, "--export: 'folder'", { .export = "folder" } },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct gpt_args args = args_of(1);
        struct result r;

        args.batch = rows[i].change.batch ? rows[i].change.batch : args.batch;
        args.data = rows[i].change.data.at ? rows[i].change.data : args.data;
        args.init = rows[i].change.init;
        args.jsonl = rows[i].change.jsonl;
        args.export = rows[i].change.export;
        r = train(&args);
        if (r.rc != rows[i].rc || !strstr(r.err.text, rows[i].says))
            fail_msg("%s: %d '%s'", rows[i].name, r.rc, r.err.text);
        free(r.said);
    }
}

/* ---- weights from files */

struct change {
    const char *name; /* of a tensor */
    const char *rename;
    enum zc_st_dtype dtype;
    uint64_t dims[3];
    uint32_t ndims;
};

/* Writes a file of this model's tensors with one tensor changed. Each element is its number in
 * the file. short_names: without "transformer."; more: one more tensor, whose elements count
 * from `at`. */
static void file_make_more(const struct gpt *model, const char *path, const struct change *c,
                           bool short_names, const struct zc_st_tensor *more, float at)
{
    struct zc_st_tensor tensors[64] = { { .name = NULL } };
    struct zc_st_writer *w = NULL;
    uint64_t total = 0;
    size_t n = 0;
    float value = 0;

    for (uint32_t u = 0; u < model->nunits; u++)
        for (uint32_t k = 0; k < model->units[u].ntensors; k++, n++) {
            const struct gpt_tensor *t = &model->units[u].tensors[k];
            bool changed = c && strcmp(c->name, t->name) == 0;
            uint64_t bytes = changed ? zc_st_dtype_bytes(c->dtype) : 4;

            tensors[n] = (struct zc_st_tensor){ t->name, ZC_ST_F32, t->ndims, t->dims, 0 };
            if (changed)
                tensors[n] = (struct zc_st_tensor){ c->rename ? c->rename : t->name, c->dtype,
                                                    c->ndims, c->dims, 0 };
            if (short_names)
                tensors[n].name += strlen("transformer.");
            for (uint32_t d = 0; d < tensors[n].ndims; d++)
                bytes *= tensors[n].dims[d];
            total += bytes;
        }
    if (more)
        tensors[n++] = *more;
    assert_int_equal(zc_st_create(&w, path, tensors, n, NULL, 0, NULL, 0), 0);
    for (; total >= 4; total -= 4, value++)
        assert_int_equal(zc_st_append(w, &value, 4, NULL, 0), 0);
    assert_int_equal(zc_st_append(w, &value, total, NULL, 0), 0);
    total = more ? 1 : 0;
    for (uint32_t d = 0; more && d < more->ndims; d++)
        total *= more->dims[d];
    for (; total > 0; total--, at++)
        assert_int_equal(zc_st_append(w, &at, 4, NULL, 0), 0);
    assert_int_equal(zc_st_commit(w, NULL, 0), 0);
}

static void file_make(const struct gpt *model, const char *path, const struct change *c,
                      bool short_names)
{
    file_make_more(model, path, c, short_names, NULL, 0);
}

static const struct gpt_shape tiny = { .layers = 1, .heads = 1, .width = 4, .seq = 3, .vocab = 5 };

static void weights_table(void **state)
{
    static const struct {
        const char *name;
        struct change change;
        int rc;
        const char *says;
    } rows[] = {
        { "as it is", { "", NULL, ZC_ST_F32, { 0 }, 0 }, 0, "" },
        { "another name",
          { "transformer.h.0.ln_1.bias", "transformer.h.0.ln_1.b", ZC_ST_F32, { 4 }, 1 },
          -ENOENT,
          "has no tensor 'transformer.h.0.ln_1.bias'" },
        { "another length",
          { "transformer.h.0.ln_1.bias", NULL, ZC_ST_F32, { 5 }, 1 },
          -EINVAL,
          "(5 elements, 1 dimensions); this model needs 4" },
        { "turned around",
          { "transformer.h.0.mlp.c_fc.weight", NULL, ZC_ST_F32, { 16, 4 }, 2 },
          -EINVAL,
          "this model needs 4 by 16" },
        { "more dimensions",
          { "transformer.wte.weight", NULL, ZC_ST_F32, { 5, 4, 1 }, 3 },
          -EINVAL,
          "this model needs 5 by 4" },
        { "a larger vocabulary",
          { "transformer.wte.weight", NULL, ZC_ST_F32, { 6, 4 }, 2 },
          -EINVAL,
          "'transformer.wte.weight' in another shape" },
        { "more positions",
          { "transformer.wpe.weight", NULL, ZC_ST_F32, { 9, 4 }, 2 },
          -EINVAL,
          "this model needs 3 by 4 (--seq by --width)" },
        { "fewer positions",
          { "transformer.wpe.weight", NULL, ZC_ST_F32, { 2, 4 }, 2 },
          -EINVAL,
          "this model needs 3 by 4" },
        { "wider positions",
          { "transformer.wpe.weight", NULL, ZC_ST_F32, { 3, 5 }, 2 },
          -EINVAL,
          "this model needs 3 by 4" },
        { "another dtype",
          { "transformer.ln_f.weight", NULL, ZC_ST_F64, { 4 }, 1 },
          -ENOTSUP,
          "has 'transformer.ln_f.weight' in F64" },
    };
    struct zb_err err = { 0 };
    struct gpt model;

    (void)state;
    assert_int_equal(gpt_init(&model, &tiny, &err), 0);
    for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(rows[0]); i++) {
        struct gpt_weights *w = NULL;
        float got[40];
        int rc;

        if (rows[i / 2].change.rename && i % 2)
            continue; /* another name is the same in both forms */
        err = (struct zb_err){ 0 };
        file_make(&model, "w.st", &rows[i / 2].change, i % 2);
        rc = gpt_weights_open(&w, &model, "w.st", &err);
        if (rc != rows[i / 2].rc || (rc == 0) != (w != NULL) || !strstr(err.text, rows[i / 2].says))
            fail_msg("%s: %d '%s'", rows[i / 2].name, rc, err.text);
        if (w) { /* the end of wte and all of wpe; then the unit after it */
            uint64_t behind = 20 + 3 * 4;

            assert_int_equal(gpt_weights_range(w, 0, 18, 14, got, &err), 0);
            for (int k = 0; k < 14; k++)
                assert_true(got[k] == (float)(18 + k));
            assert_int_equal(gpt_weights_range(w, 1, 0, 9, got, &err), 0);
            for (int k = 0; k < 9; k++)
                assert_true(got[k] == (float)(behind + (uint64_t)k));
            assert_int_equal(truncate("w.st", 100), 0);
            assert_int_equal(gpt_weights_range(w, 1, 0, 9, got, &err), -EIO);
        }
        gpt_weights_close(w);
    }
    gpt_done(&model);
}

/* Tensors that the model does not use are refused by name. */
static void weights_unused(void **state)
{
    static const uint64_t matrix[] = { 5, 4 }, mask[] = { 1, 1, 3, 3 };
    static const struct {
        struct zc_st_tensor more;
        float first; /* of its first element; values grow by 1, as in the file */
        int rc;
        const char *says;
    } rows[] = {
        { { "h.0.attn.bias", ZC_ST_F32, 4, mask, 0 }, 7, 0, "" },
        { { "transformer.h.0.attn.masked_bias", ZC_ST_F32, 0, NULL, 0 }, 7, 0, "" },
        { { "lm_head.weight", ZC_ST_F32, 2, matrix, 0 }, 0, 0, "" }, /* the same as wte */
        { { "lm_head.weight", ZC_ST_F32, 2, matrix, 0 },
          1,
          -ENOTSUP,
          "'w.st' has 1 tensor that this model does not use ('lm_head.weight')" },
        { { "transformer.extra", ZC_ST_F32, 2, matrix, 0 }, 0, -ENOTSUP, "'transformer.extra'" },
        { { "wte.weight", ZC_ST_F32, 2, matrix, 0 }, 0, -ENOTSUP, "('wte.weight')" }, /* twice */
    };
    struct gpt_shape two = tiny;
    struct zb_err err = { 0 };
    struct gpt_weights *w = NULL;
    struct gpt model, larger;

    (void)state;
    assert_int_equal(gpt_init(&model, &tiny, &err), 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int rc;

        file_make_more(&model, "w.st", NULL, false, &rows[i].more, rows[i].first);
        err = (struct zb_err){ 0 };
        w = NULL;
        rc = gpt_weights_open(&w, &model, "w.st", &err);
        if (rc != rows[i].rc || !strstr(err.text, rows[i].says))
            fail_msg("%s from %g: %d '%s'", rows[i].more.name, (double)rows[i].first, rc, err.text);
        gpt_weights_close(w);
    }
    two.layers = 2; /* a deeper model */
    assert_int_equal(gpt_init(&larger, &two, &err), 0);
    file_make(&larger, "w.st", NULL, false);
    err = (struct zb_err){ 0 };
    w = NULL;
    assert_int_equal(gpt_weights_open(&w, &model, "w.st", &err), -ENOTSUP);
    assert_non_null(strstr(err.text, "has 12 tensors that this model does not use ("));
    assert_non_null(strstr(err.text, "'transformer.h.1."));
    assert_non_null(strstr(err.text, ", ...): a model with fewer layers"));
    gpt_done(&larger);
    gpt_done(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_learns),
        cmocka_unit_test(one_object_per_step),
        cmocka_unit_test(not_finite_is_null),
        cmocka_unit_test(micro_batches_agree),
        cmocka_unit_test(orders_agree),
        cmocka_unit_test(checkpoints_agree),
        cmocka_unit_test(export_and_init),
        cmocka_unit_test(frozen_blocks_stay),
        cmocka_unit_test(what_is_frozen_is_said),
        cmocka_unit_test(bf16_computes_with_rounded_weights),
        cmocka_unit_test(fp16_scales_its_loss),
        cmocka_unit_test(files_of_deepspeed),
        cmocka_unit_test(a_signal_ends_it),
        cmocka_unit_test(every_failure_of_the_engine),
        cmocka_unit_test(a_stash_that_fails),
        cmocka_unit_test(refusals),
        cmocka_unit_test(weights_table),
        cmocka_unit_test(weights_unused),
        cmocka_unit_test(scalars_are_torchs),
        cmocka_unit_test(a_kept_run_goes_on),
        cmocka_unit_test(a_resume_that_is_refused),
        cmocka_unit_test(a_commit_that_fails),
        cmocka_unit_test(sockets_by_rank),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_leave);
}
