/*
 * bench_train.c - `zbench train`: the cost of offloading a GPT's parameters and optimizer state.
 *
 * MODEL. The same zgpt twice: with everything in the trainer's own memory, and with a zshardd that
 * keeps parameters, gradients and state, in host memory or on NVMe. Each slice is a separate
 * process that makes a few steps. Its value is the median rate of the steps after the warm-up, from
 * its --jsonl. The sequences of a step are computed in --micro-steps parts. With --peer, another
 * trainer of the same model is the reference instead (bench/peers/), one process for all rounds.
 *
 * Both must compute the same, or the figure means nothing: the losses of slices with and without
 * the daemon are compared, bit for bit if a processor computes.
 */
#include "bench/zbench.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/model.h"
#include "base/size.h"
#include "base/util.h"
#include "bench/peer.h"
#include "bench/process.h"
#include "bench/turns.h"

#define WARM_STEPS 2u
#define STEPS      5u
#define LOSS_BOUND 2e-3 /* relative, for a GPU: its sums may differ between runs */
#define LIST_MAX   8u
#define VOCAB      256u /* bytes: zgpt's own data */
#define HOST_BYTES 24u  /* per parameter: more than fp32 with its gradients and state */
#define NVME_BYTES 48u

struct train_bench {
    struct zbench *z;
    const char *dir, *device, *dtype, *host_bytes, *nvme_bytes, *peer_command;
    const char *tokens_list, *micros_list; /* texts of the options */
    char offload[8];
    uint64_t layers, heads, width, seq, params;
    uint64_t tokens[LIST_MAX], micros[LIST_MAX];
    unsigned ntokens, nmicros, rounds;

    struct zbench_peer peer;
    struct zbench_daemon daemon;
    double losses[WARM_STEPS + STEPS]; /* of the previous slice, */
    bool compare;                      /* which the next one must have, too */

    struct {
        uint64_t tokens, micros;
    } now; /* of the case */
};

/* ---- one slice of ours */

static int train_read(struct train_bench *b, FILE *f, double *ret_rate)
{
    double rates[WARM_STEPS + STEPS], losses[WARM_STEPS + STEPS];
    double most = strcmp(b->device, "cpu") == 0 ? 0 : LOSS_BOUND;
    char line[1024];
    unsigned n = 0;

    for (; n < WARM_STEPS + STEPS && fgets(line, sizeof(line), f); n++) {
        json_t *step = json_loads(line, 0, NULL);

        rates[n] = json_number_value(json_object_get(step, "tokens_per_s"));
        losses[n] = json_number_value(json_object_get(step, "loss"));
        json_decref(step);
        if (!(rates[n] > 0))
            return zb_fail(&b->z->err, -EBADMSG, "zgpt printed for a step: %s", line);
        if (b->compare && !(fabs(losses[n] - b->losses[n]) <= most * fabs(b->losses[n])))
            return zb_fail(&b->z->err, -EBADMSG, "the loss of step %u is %.9g, and was %.9g before",
                           n + 1, losses[n], b->losses[n]);
    }
    if (n < WARM_STEPS + STEPS)
        return zb_fail(&b->z->err, -EBADMSG, "zgpt made %u steps, instead of %u", n,
                       WARM_STEPS + STEPS);
    memcpy(b->losses, losses, sizeof(losses));
    b->compare = true;
    *ret_rate = zbench_median(rates + WARM_STEPS, STEPS);
    return 0;
}

/* Tokens a second. */
static int train_ours(struct train_bench *b, bool offload, double *ret_rate)
{
    char path[192];
    const char *const words[] = { "--jsonl",
                                  path,
                                  "--dtype",
                                  b->dtype,
                                  "--device",
                                  b->device,
                                  "--offload",
                                  offload ? b->offload : "none",
                                  offload ? "--socket" : NULL,
                                  b->daemon.socket,
                                  NULL };
    uint64_t batch = b->now.tokens / b->seq;
    FILE *f;
    int rc;

    (void)snprintf(path, sizeof(path), "%s/steps.jsonl", b->daemon.dir);
    rc = zbench_run("zgpt", words, &b->z->err,
                    "--steps %u --seed 1 --layers %" PRIu64 " --heads %" PRIu64 " --width %" PRIu64
                    " --seq %" PRIu64 " --batch %" PRIu64 " --micro-batch %" PRIu64,
                    WARM_STEPS + STEPS, b->layers, b->heads, b->width, b->seq, batch,
                    batch / b->now.micros);
    if (rc < 0)
        return rc;
    f = fopen(path, "re");
    if (!f)
        return zb_fail(&b->z->err, -errno, "'%s': %m", path);
    rc = train_read(b, f, ret_rate);
    (void)fclose(f);
    return rc;
}

static int train_peer(struct train_bench *b, double *ret_rate)
{
    char question[64], answer[128];
    int rc;

    (void)snprintf(question, sizeof(question), "train %" PRIu64 " %" PRIu64 " %u %u", b->now.tokens,
                   b->now.micros, WARM_STEPS, STEPS);
    rc = zbench_peer_ask(b->z, &b->peer, question, answer, sizeof(answer));
    if (rc < 0)
        return rc;
    *ret_rate = strtod(answer, NULL);
    return *ret_rate > 0 ? 0 : zb_fail(&b->z->err, -EPROTO, "the peer answered: %s", answer);
}

/* ---- cases */

static int train_slice(void *bench, unsigned who, double *ret_rate)
{
    struct train_bench *b = bench;

    return who == 1 && b->peer_command ? train_peer(b, ret_rate)
                                       : train_ours(b, who == 0, ret_rate);
}

static int train_case(struct train_bench *b, uint64_t tokens, uint64_t micros)
{
    const char *reference = b->peer_command ? b->peer.name : "resident";
    const struct zbench_row row = zbench_row("tokens/s", false, reference,
                                             "train/%" PRIu64 "/%" PRIu64 "/%s", tokens, micros,
                                             reference);

    b->now.tokens = tokens;
    b->now.micros = micros;
    b->compare = false;
    return zbench_compare(b->z, &row, "ABBA", b->rounds, train_slice, b);
}

static int train_start(struct train_bench *b)
{
    char host[32], nvme[32], peer[512];
    int rc;

    (void)snprintf(host, sizeof(host), "%" PRIu64,
                   zb_round_up(b->params * HOST_BYTES + ZB_GIB, ZB_MIB));
    (void)snprintf(
        nvme, sizeof(nvme), "%" PRIu64,
        strcmp(b->offload, "nvme") == 0 ? zb_round_up(b->params * NVME_BYTES + ZB_GIB, ZB_MIB) : 0);
    rc = zbench_daemon_start(
        &b->daemon, b->dir, &b->z->err, "--host-bytes %s --nvme-bytes %s --log-level warn",
        b->host_bytes ? b->host_bytes : host, b->nvme_bytes ? b->nvme_bytes : nvme);
    if (rc < 0 || !b->peer_command)
        return rc;
    if ((size_t)snprintf(peer, sizeof(peer),
                         "%s %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %s %s",
                         b->peer_command, b->layers, b->heads, b->width, b->seq, b->dtype,
                         b->device) >= sizeof(peer))
        return zb_fail(&b->z->err, -EINVAL, "train: the peer's command is too long");
    return zbench_peer_start(b->z, &b->peer, peer);
}

/* ---- options */

static int train_list(struct train_bench *b, const char *text, uint64_t *ret, unsigned *ret_n)
{
    char copy[256], *rest = copy, *word;
    int rc = 0;

    *ret_n = 0;
    (void)snprintf(copy, sizeof(copy), "%s", text);
    while (rc == 0 && (word = strsep(&rest, ",")) && *ret_n < LIST_MAX)
        rc = zb_size_parse(word, &ret[(*ret_n)++], &b->z->err);
    return rc;
}

static int train_settle(struct train_bench *b)
{
    const struct zb_gpt shape = { b->layers, b->width, VOCAB, b->seq, false };
    struct zb_model model = { 0 };
    struct zbench *z = b->z;
    int rc = train_list(b, b->tokens_list, b->tokens, &b->ntokens);

    if (rc == 0)
        rc = train_list(b, b->micros_list, b->micros, &b->nmicros);
    for (unsigned t = 0; t < b->ntokens && rc == 0; t++)
        for (unsigned m = 0; m < b->nmicros && rc == 0; m++)
            if (b->micros[m] == 0 || b->tokens[t] == 0 ||
                b->tokens[t] % (b->seq * b->micros[m]) != 0)
                rc = zb_fail(&z->err, -EINVAL,
                             "%" PRIu64 " tokens are not a whole number of sequences of %" PRIu64
                             " in %" PRIu64 " micro-steps",
                             b->tokens[t], b->seq, b->micros[m]);
    if (rc == 0)
        rc = zb_model_gpt(&model, &shape, &z->err);
    b->params = model.params;
    zb_model_done(&model);
    return rc;
}

static int train_main(struct zbench *z, void *bench)
{
    struct train_bench *b = bench;
    int rc;

    b->z = z;
    b->daemon = ZBENCH_NO_DAEMON;
    rc = train_settle(b);
    (void)signal(SIGPIPE, SIG_IGN);
    if (rc == 0)
        rc = train_start(b);
    if (rc == 0)
        zbench_note(z, "%.1f million parameters, %s, on %s; offloaded to %s",
                    (double)b->params / 1e6, b->dtype, b->device, b->offload);
    for (unsigned t = 0; t < b->ntokens && rc == 0; t++)
        for (unsigned m = 0; m < b->nmicros && rc == 0; m++)
            rc = train_case(b, b->tokens[t], b->micros[m]);
    zbench_peer_end(&b->peer);
    zbench_daemon_end(&b->daemon);
    return rc;
}

#define AT(member) ZB_OPT_AT(struct train_bench, member)

static const struct zb_opt train_options[] = {
    ZBENCH_DIR(struct train_bench, "/var/tmp"),
    { "device", ZB_OPT_TEXT, AT(device), .arg = "NAME", .def = "cpu" },
    { "offload", ZB_OPT_CHARS, AT(offload), .def = "host", .choices = "host nvme" },
    { "dtype", ZB_OPT_TEXT, AT(dtype), .arg = "bf16", .def = "bf16" },
    { "layers", ZB_OPT_SIZE, AT(layers), .arg = "N", .def = "12", .min = 1 },
    { "heads", ZB_OPT_SIZE, AT(heads), .arg = "N", .def = "4", .min = 1 },
    { "width", ZB_OPT_SIZE, AT(width), .arg = "N", .def = "256", .min = 1 },
    { "seq", ZB_OPT_SIZE, AT(seq), .arg = "N", .def = "256", .min = 1 },
    { "tokens", ZB_OPT_TEXT, AT(tokens_list), .arg = "N,N", .def = "1024" },
    { "micro-steps", ZB_OPT_TEXT, AT(micros_list), .arg = "N,N", .def = "1" },
    { "host-bytes", ZB_OPT_TEXT, AT(host_bytes), .arg = "SIZE" },
    { "nvme-bytes", ZB_OPT_TEXT, AT(nvme_bytes), .arg = "SIZE" },
    ZBENCH_ROUNDS(struct train_bench, "3"),
    ZBENCH_PEER(struct train_bench, peer_command),
    { 0 },
};

const struct zbench_cmd zbench_train = {
    .name = "train",
    .help = "training a GPT whose parameters and state are offloaded, against one that keeps them",
    .options = train_options,
    .bytes = sizeof(struct train_bench),
    .run = train_main,
};
