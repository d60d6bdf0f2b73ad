/*
 * args.c - rows of flags.
 *
 * A row names a flag, where its value goes and what it may be. Values of a choice are words in one
 * string; a word written in parentheses is known and comes with a later part of zshard: it is
 * refused with a sentence and a code of its own.
 * "--flag=value" and "--flag value" are the same; a flag given twice keeps its last value, except
 * --data, which takes all words up to the next flag and collects them.
 */
#include "examples/gpt/args.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt/dev/dev.h"
#include "examples/gpt/model/gpt.h"

enum kind {
    SWITCH,  /* bool; no value */
    TEXT,    /* const char * */
    PATHS,   /* data, ndata */
    COUNT32, /* uint32_t from min to max */
    COUNT64, /* uint64_t */
    REAL,    /* double from min to max */
    CHOICE,  /* uint32_t: the number of the word in `choices` */
    BOTH,    /* --offload: the CHOICE of two rows */
};

struct row {
    const char *flag, *value, *help;
    enum kind kind;
    size_t offset; /* in struct gpt_args */
    double min, max;
    const char *choices;
    const char *usual; /* the default; NULL: none */
    bool required;
    bool from_config; /* required unless there is a --config */
};

#define AT(member)  .offset = offsetof(struct gpt_args, member)
#define NOWHERE     SIZE_MAX /* one value is possible: checked, and not kept */
#define BATCH_MAX   1048576.0
#define OFFLOADS    "none host nvme"
#define PARAMS      OFFLOADS " gpu"
#define REQUIRED(n) .required = true, .min = 1, .max = (n)

static const struct row rows[] = {
    { "--steps", "N", "optimizer steps; 0 only initialises (and exports)", COUNT64, AT(steps),
      .min = 0, .max = UINT32_MAX, .required = true },
    { "--seed", "S", "of initial values and batches", COUNT64, AT(seed), .min = 0, .max = 0x1p64,
      .required = true },
    { "--batch", "B", "sequences per step, over all ranks", COUNT32, AT(batch), REQUIRED(BATCH_MAX),
      .from_config = true },
    { "--micro-batch", "M", "sequences that a rank computes at a time", COUNT32, AT(micro_batch),
      REQUIRED(BATCH_MAX), .from_config = true },
    { "--seq", "T", "tokens of a sequence", COUNT32, AT(seq), REQUIRED(GPT_SEQ_MAX) },
    { "--layers", "L", "transformer blocks", COUNT32, AT(layers), REQUIRED(GPT_LAYERS_MAX) },
    { "--heads", "H", "attention heads of a block", COUNT32, AT(heads), REQUIRED(GPT_WIDTH_MAX) },
    { "--width", "C", "of the residual stream; a multiple of the heads", COUNT32, AT(width),
      REQUIRED(GPT_WIDTH_MAX) },
    { "--freeze", "N", "the first N blocks are not trained; all else is", COUNT32, AT(freeze),
      .min = 0, .max = GPT_LAYERS_MAX, .usual = "0" },
    { "--data", "FILE...", "text files, or llm.c's token files (.bin)", PATHS, AT(data),
      .usual = "zshard's own sources" },
    { "--lr", "X", "learning rate", REAL, AT(lr), .min = 0, .max = 1e6, .usual = "1e-3" },
    { "--weight-decay", "X", "of matrices; biases and layer norms have none", REAL,
      AT(weight_decay), .min = 0, .max = 1e6, .usual = "0.01" },
    { "--clip", "X", "limit of the gradient's global norm; 0: off", REAL, AT(clip), .min = 0,
      .max = 1e30, .usual = "1" },
    { "--dtype", NULL, "of weights and exchanged gradients; the CPU computes in fp32", CHOICE,
      AT(dtype), .choices = "fp32 bf16 fp16", .usual = "fp32" },
    { "--loss-scale", "X", "of --dtype fp16; 0: it finds its scale, by the next five", REAL,
      AT(loss_scale), .min = 0, .max = 0x1p126, .usual = "0" },
    { "--initial-scale-power", "N", "the first loss scale is 2^N", COUNT32, AT(scale_power),
      .min = 0, .max = 126, .usual = "16" },
    { "--loss-scale-window", "N", "steps without overflow that double it", COUNT32,
      AT(scale_window), .min = 1, .max = UINT32_MAX, .usual = "1000" },
    { "--hysteresis", "N", "one that halves it is the Nth since it doubled", COUNT32,
      AT(hysteresis), .min = 1, .max = UINT32_MAX, .usual = "2" },
    { "--consecutive-hysteresis", NULL, "... since the last step without overflow", SWITCH,
      AT(consecutive_hysteresis) },
    { "--min-loss-scale", "X", "an overflow that would halve it below ends the run", REAL,
      AT(min_scale), .min = 0, .max = 0x1p126, .usual = "1" },
    { "--optimizer", NULL, "lion has betas 0.9 and 0.99, sgd momentum 0.9", CHOICE, AT(optimizer),
      .choices = "adamw adam lion sgd adagrad", .usual = "adamw" },
    { "--moments", NULL, "how the optimizer's moments are stored", CHOICE, AT(moments),
      .choices = "fp32 bf16 8bit", .usual = "fp32" },
    { "--device", "NAME", "to compute on: cpu, cuda[:N], or emulated[:BYTES]", TEXT, AT(device),
      .usual = "cpu" },
    { "--order", NULL, "of micro-batches; vertical: all of them unit by unit", CHOICE, AT(order),
      .choices = "horizontal vertical", .usual = "horizontal" },
    { "--accumulate", NULL, "micro-batches' gradients; local: reduced once a step", CHOICE,
      AT(accumulate), .choices = "reduced local", .usual = "reduced" },
    { "--checkpoint", NULL, "kept of a block: all, or its input, and where", CHOICE, AT(checkpoint),
      .choices = "auto none block host nvme", .usual = "auto" },
    { "--stage", NULL, "of ZeRO: 1 shards optimizer state, 2 gradients too, 3 all; 0: DDP", CHOICE,
      AT(below_3), .choices = "3 2 1 0", .usual = "3" },
    { "--keep-gathered", NULL, "stage 3: what is gathered forward stays for the way back", SWITCH,
      AT(keep_gathered) },
    { "--quantize-gather", NULL, "stage 3: weights travel as int8; what is stepped is exact",
      SWITCH, AT(quantize_gather) },
    { "--quantize-frozen", NULL, "stage 3, with --freeze: frozen blocks are kept as int8", SWITCH,
      AT(quantize_frozen) },
    { "--group", "N", "stage 3: sharded inside groups of N ranks, and alike in all; 0: one",
      COUNT32, AT(group), .min = 0, .max = UINT32_MAX, .usual = "0" },
    { "--memory", "BYTES", "a rank's own, for model states and buffers; 0: no limit", COUNT64,
      AT(memory), .min = 0, .max = 0x1p62, .usual = "0" },
    { "--overlap", NULL, "what runs under the passes; early: --clip 0", CHOICE, AT(overlap),
      .choices = "all none early serve", .usual = "all" },
    { "--offload", NULL, "where optimizer state and parameters live when they must", BOTH,
      .offset = NOWHERE, .choices = OFFLOADS, .usual = "none" },
    { "--offload-optimizer", NULL, "the same for the optimizer state alone", CHOICE,
      AT(offload_optimizer), .choices = OFFLOADS },
    { "--offload-param", NULL, "of the parameters alone; gpu: in the daemon's, if it can", CHOICE,
      AT(offload_param), .choices = PARAMS },
    { "--offload-grad", NULL, "auto: gradients on NVMe where memory lacks; host: never", CHOICE,
      AT(offload_grad), .choices = "auto host", .usual = "auto" },
    { "--socket", "PATH", "of the daemon; of several (A,B): rank r has r*n/ranks", TEXT, AT(socket),
      .usual = "$ZSHARD_SOCKET" },
    { "--job", "NAME", "of this run in the daemon", TEXT, AT(job), .usual = "zgpt" },
    { "--share", "N", "of the daemon's drives and threads, beside other jobs'", COUNT32, AT(share),
      .min = 1, .max = 10000, .usual = "100" },
    { "--keep", NULL, "the job outlives this run, and what is committed the daemon", SWITCH,
      AT(keep) },
    { "--resume", NULL, "go on with a kept job (whoever trains it still is cut off)", SWITCH,
      AT(resume) },
    { "--commit-every", "N", "steps, with --keep; 0: only at the end", COUNT64, AT(commit_every),
      .min = 0, .max = UINT32_MAX, .usual = "100" },
    { "--init", "FILE", "begin with the weights of a .safetensors file", TEXT, AT(init) },
    { "--export", "FILE", "write the weights to a .safetensors file at the end", TEXT, AT(export) },
    { "--jsonl", "FILE", "write one JSON object per step; --resume appends", TEXT, AT(jsonl) },
    { "--config", "FILE", "DeepSpeed's JSON: says what the flags do not", TEXT, AT(config) },
    { "--help", NULL, "this text", SWITCH, AT(help) },
    { "--version", NULL, "the version", SWITCH, AT(version) },
};

#define ROWS (sizeof(rows) / sizeof(rows[0]))

_Static_assert(ROWS <= 64, "bits of gpt_args.given");

/* ---- values */

/* Compares the next word of a list, which may be in parentheses; moves *at behind it. */
static bool choice_next(const char **at, const char *value, bool *ret_later)
{
    const char *word = *at + strspn(*at, " ");
    size_t n = strcspn(word, " ");

    *at = word + n;
    *ret_later = word[0] == '(';
    if (*ret_later) {
        word++;
        n -= 2;
    }
    return n == strlen(value) && memcmp(word, value, n) == 0;
}

static int choice_parse(const struct row *r, const char *value, uint32_t *ret, struct gpt_err *err)
{
    const char *at = r->choices;
    bool later;

    for (uint32_t i = 0; *at; i++) {
        if (!choice_next(&at, value, &later))
            continue;
        if (later)
            return gpt_fail(err, -EOPNOTSUPP, "%s %s is not built into this version of zgpt",
                            r->flag, value);
        *ret = i;
        return 0;
    }
    return gpt_fail(err, -EINVAL, "%s is '%s', and must be one of: %s", r->flag, value, r->choices);
}

static int count_parse(const struct row *r, const char *value, uint64_t *ret, struct gpt_err *err)
{
    char *end;
    unsigned long long n;

    errno = 0;
    n = strtoull(value, &end, 10);
    if (value[0] < '0' || value[0] > '9' || *end != '\0')
        return gpt_fail(err, -EINVAL, "%s is '%s', and must be a whole number", r->flag, value);
    if (errno != 0 || (double)n < r->min || (double)n > r->max)
        return gpt_fail(err, -EINVAL, "%s is %s, and must be from %.0f to %.0f", r->flag, value,
                        r->min, r->max);
    *ret = n;
    return 0;
}

static int real_parse(const struct row *r, const char *value, double *ret, struct gpt_err *err)
{
    char *end;
    double x = strtod(value, &end);

    if (end == value || *end != '\0' || strchr(" \t\n\v\f\r", value[0]) || isnan(x))
        return gpt_fail(err, -EINVAL, "%s is '%s', and must be a number", r->flag, value);
    if (x < r->min || x > r->max)
        return gpt_fail(err, -EINVAL, "%s is %s, and must be from %g to %g", r->flag, value, r->min,
                        r->max);
    *ret = x;
    return 0;
}

static int data_add(struct gpt_args *args, const char *path, struct gpt_err *err)
{
    const char **more = realloc(args->data, (args->ndata + 1) * sizeof(*more));

    if (!more)
        return gpt_fail(err, -ENOMEM, "a list of data files: %m");
    args->data = more;
    args->data[args->ndata++] = path;
    return 0;
}

static int row_set(const struct row *r, struct gpt_args *args, const char *value,
                   struct gpt_err *err)
{
    void *at = r->offset == NOWHERE ? NULL : (char *)args + r->offset;
    uint64_t n = 0;
    uint32_t choice = 0;
    int rc = 0;

    switch (r->kind) {
    case SWITCH:
        *(bool *)at = true;
        break;
    case TEXT:
        if (value[0] == '\0')
            return gpt_fail(err, -EINVAL, "%s is empty", r->flag);
        *(const char **)at = value;
        break;
    case PATHS:
        return data_add(args, value, err);
    case COUNT32:
        rc = count_parse(r, value, &n, err);
        if (rc == 0)
            *(uint32_t *)at = (uint32_t)n;
        break;
    case COUNT64:
        return count_parse(r, value, at, err);
    case REAL:
        return real_parse(r, value, at, err);
    case CHOICE:
        rc = choice_parse(r, value, &choice, err);
        if (rc == 0 && at)
            *(uint32_t *)at = choice;
        break;
    case BOTH:
        return choice_parse(r, value, &choice, err);
    }
    return rc;
}

/* ---- the command line */

static bool row_wants_value(const struct row *r)
{
    return r->kind != SWITCH;
}

/* The row of "--flag" or "--flag=value"; *ret_value is behind the sign, or NULL. */
static const struct row *row_find(const char *word, const char **ret_value)
{
    size_t n = strcspn(word, "=");

    *ret_value = word[n] == '=' ? word + n + 1 : NULL;
    for (size_t i = 0; i < ROWS; i++)
        if (strlen(rows[i].flag) == n && memcmp(rows[i].flag, word, n) == 0)
            return &rows[i];
    return NULL;
}

static bool word_is_flag(const char *word)
{
    return strncmp(word, "--", 2) == 0;
}

static int defaults_set(struct gpt_args *args, struct gpt_err *err)
{
    int rc = 0;

    for (size_t i = 0; i < ROWS && rc == 0; i++)
        if ((rows[i].kind == REAL || rows[i].kind == COUNT64 || rows[i].kind == COUNT32) &&
            rows[i].usual)
            rc = row_set(&rows[i], args, rows[i].usual, err);
    args->job = "zgpt";
    return rc;
}

/* One flag with its values, from argv[*i]; moves *i to the next one. */
static int flag_parse(struct gpt_args *args, int argc, char **argv, int *i, const char **given,
                      struct gpt_err *err)
{
    const char *value;
    const struct row *r = row_find(argv[*i], &value);
    int rc;

    if (!r)
        return gpt_fail(err, -EINVAL,
                        word_is_flag(argv[*i]) ? "there is no flag '%s'; try --help"
                                               : "'%s' stands where a flag should; "
                                                 "try --help",
                        argv[*i]);
    ++*i;
    if (!row_wants_value(r) && value)
        return gpt_fail(err, -EINVAL, "%s takes no value", r->flag);
    if (row_wants_value(r) && !value) {
        if (*i >= argc || word_is_flag(argv[*i]))
            return gpt_fail(err, -EINVAL, "%s needs a value", r->flag);
        value = argv[(*i)++];
    }
    given[r - rows] = value ? value : "";
    args->given |= UINT64_C(1) << (r - rows);
    rc = row_set(r, args, value, err);
    while (rc == 0 && r->kind == PATHS && *i < argc && !word_is_flag(argv[*i]))
        rc = row_set(r, args, argv[(*i)++], err);
    return rc;
}

/* The more special flag wins wherever it stands. */
static void offload_settle(struct gpt_args *args, const char *const *given)
{
    uint32_t both = GPT_OFFLOAD_NONE;
    bool optimizer = false, param = false;

    for (size_t i = 0; i < ROWS; i++) {
        if (rows[i].kind == BOTH && given[i])
            (void)choice_parse(&rows[i], given[i], &both, NULL); /* it was good when it was read */
        optimizer |= rows[i].offset == offsetof(struct gpt_args, offload_optimizer) && given[i];
        param |= rows[i].offset == offsetof(struct gpt_args, offload_param) && given[i];
    }
    if (!optimizer)
        args->offload_optimizer = both;
    if (!param && gpt_args_stage(args) == 3) /* of the others parameters are whole on each rank */
        args->offload_param = both;
}

static int device_settle(struct gpt_args *args, struct gpt_err *err)
{
    if (!args->device || strcmp(args->device, "cpu") == 0)
        args->device = NULL;
    else if (!gpt_dev_named(args->device))
        return gpt_fail(err, -EINVAL,
                        "--device is '%s', and must be one of: cpu, cuda[:N], emulated[:BYTES]",
                        args->device);
    return 0;
}

bool gpt_args_given(const struct gpt_args *args, const char *flag)
{
    const char *value;

    return args->given >> (row_find(flag, &value) - rows) & 1;
}

/* What scales a loss is of fp16. */
static int scale_check(const struct gpt_args *args, struct gpt_err *err)
{
    static const char *const flags[] = {
        "--loss-scale", "--initial-scale-power",    "--loss-scale-window",
        "--hysteresis", "--consecutive-hysteresis", "--min-loss-scale"
    };

    if (args->dtype == GPT_FP16)
        return 0;
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        if (gpt_args_given(args, flags[i]))
            return gpt_fail(err, -EINVAL, "%s is of --dtype fp16: no other loss is scaled",
                            flags[i]);
    return 0;
}

/* What the flags alone say. */
static int args_settle(struct gpt_args *args, const char *const *given, struct gpt_err *err)
{
    if (args->help || args->version)
        return 0;
    for (size_t i = 0; i < ROWS; i++)
        if (rows[i].required && !given[i] && !(rows[i].from_config && args->config))
            return gpt_fail(err, -EINVAL, "%s %s is missing (%s); try --help", rows[i].flag,
                            rows[i].value, rows[i].help);
    offload_settle(args, given);
    return args->config ? 0 : gpt_args_check(args, err);
}

int gpt_args_check(struct gpt_args *args, struct gpt_err *err)
{
    int rc = device_settle(args, err);

    if (rc == 0)
        rc = scale_check(args, err);
    if (rc != 0)
        return rc;
    if (args->offload_param != GPT_OFFLOAD_NONE && args->offload_optimizer == GPT_OFFLOAD_NONE)
        return gpt_fail(err, -EINVAL,
                        "parameters are offloaded with the optimizer state, or not at all: give "
                        "--offload, or --offload-optimizer, too");
    if (args->width % args->heads != 0)
        return gpt_fail(err, -EINVAL, "--width %u is not a multiple of --heads %u", args->width,
                        args->heads);
    if (args->freeze > args->layers)
        return gpt_fail(err, -EINVAL, "--freeze %u is more than there are blocks: --layers %u",
                        args->freeze, args->layers);
    if (args->quantize_frozen && args->freeze == 0)
        return gpt_fail(err, -EINVAL,
                        "--quantize-frozen is of frozen blocks, and there are none: give --freeze");
    if (args->quantize_frozen && gpt_args_stage(args) < 3)
        return gpt_fail(err, -EINVAL, "--quantize-frozen is of --stage 3, and this is stage %u",
                        gpt_args_stage(args));
    if ((uint64_t)args->micro_batch * args->seq > GPT_ROWS_MAX)
        return gpt_fail(err, -EINVAL,
                        "--micro-batch %u of --seq %u is more than %u tokens at a "
                        "time",
                        args->micro_batch, args->seq, GPT_ROWS_MAX);
    if ((args->keep || args->resume) && args->offload_optimizer == GPT_OFFLOAD_NONE)
        return gpt_fail(err, -EINVAL, "%s needs the daemon: --offload host or nvme",
                        args->keep ? "--keep" : "--resume");
    if (args->resume && args->init)
        return gpt_fail(err, -EINVAL, "--init begins a run, and --resume goes on with one");
    args->keep = args->keep || args->resume;
    return 0;
}

int gpt_args_parse(struct gpt_args *args, int argc, char **argv, struct gpt_err *err)
{
    const char *given[ROWS] = { NULL };
    int rc;

    *args = (struct gpt_args){ .help = false };
    rc = defaults_set(args, err);
    for (int i = 0; i < argc && rc == 0;)
        rc = flag_parse(args, argc, argv, &i, given, err);
    return rc == 0 ? args_settle(args, given, err) : rc;
}

void gpt_args_done(struct gpt_args *args)
{
    free(args->data);
    args->data = NULL;
    args->ndata = 0;
}

int gpt_args_micro_steps(const struct gpt_args *args, uint32_t world, uint32_t *ret_micro_steps,
                         struct gpt_err *err)
{
    uint64_t at_a_time = (uint64_t)args->micro_batch * world;

    if (args->batch % at_a_time != 0)
        return gpt_fail(err, -EINVAL,
                        "--batch %u does not divide into --micro-batch %u on each of "
                        "%u ranks",
                        args->batch, args->micro_batch, world);
    *ret_micro_steps = (uint32_t)(args->batch / at_a_time);
    return 0;
}

void gpt_args_help(FILE *out)
{
    fprintf(out, "usage: zgpt --steps N --seed S --batch B --micro-batch M --seq T --layers L "
                 "--heads H --width C [flags]\n"
                 "\n"
                 "Trains a GPT under ZeRO; several ranks: mpirun -n R zgpt ...,\n"
                 "or torchrun --no-python --nproc-per-node R zgpt ...\n"
                 "\n");
    for (size_t i = 0; i < ROWS; i++) {
        const struct row *r = &rows[i];
        const char *value = r->choices ? r->choices : r->value ? r->value : "";
        char left[64];

        (void)snprintf(left, sizeof(left), "%s %s", r->flag, value);
        for (char *p = left + strlen(r->flag) + 1; r->choices && *p; p++)
            *p = *p == ' ' ? '|' : *p;
        fprintf(out, "  %-36s %s", left, r->help);
        if (r->usual)
            fprintf(out, " [%s]", r->usual);
        if (r->required)
            fprintf(out, r->from_config ? " (required, or --config)" : " (required)");
        fprintf(out, "\n");
    }
    fprintf(
        out,
        "\n"
        "Words in parentheses are not in this version. [ ]: what is used when the flag is "
        "absent.\n"
        "SIGTERM, SIGINT: ends behind the step in progress, commits it with --keep, exports; "
        "exit code 1.\n"
        "Exit codes: 0; 2 usage; 3 daemon unreachable or lost; 4 refused: it does not fit (also "
        "the\n"
        "device's memory), or what it needs is not there; 5 a peer rank was lost; 6 data "
        "corrupt;\n"
        "1 anything else.\n");
}
