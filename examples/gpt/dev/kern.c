/*
 * kern.c - the parts of kernels that need no GPU: the number of teams, the arrays that they use,
 * and the kernels themselves on the processor, one team after the other.
 */
#include "examples/gpt/dev/kern.h"

#include "examples/gpt/dev/kern_priv.h"

static uint64_t div_up(uint64_t n, uint64_t by)
{
    return (n + by - 1) / by;
}

uint64_t gpt_kern_teams(const struct gpt_kern *k)
{
    switch (k->op) {
    case GPT_KERN_EMBED:
        return k->embed.rows;
    case GPT_KERN_EMBED_BACK:
        return k->embed_back.n;
    case GPT_KERN_POS_BACK:
        return k->pos_back.seq;
    case GPT_KERN_NORM:
        return k->norm.rows;
    case GPT_KERN_NORM_BACK:
        return k->norm_back.rows;
    case GPT_KERN_COLS:
        return div_up(k->cols.cols, TEAM) * GPT_KERN_SPLITS;
    case GPT_KERN_COLS_END:
        return div_up(k->cols_end.cols, TEAM);
    case GPT_KERN_RESIDUAL:
        return k->residual.rows;
    case GPT_KERN_BIAS:
        return k->bias.rows;
    case GPT_KERN_GELU:
        return div_up(k->gelu.n, TEAM_CHUNK);
    case GPT_KERN_GELU_BACK:
        return div_up(k->gelu_back.n, TEAM_CHUNK);
    case GPT_KERN_SOFTMAX:
        return k->softmax.rows;
    case GPT_KERN_SOFTMAX_BACK:
        return k->softmax_back.rows;
    case GPT_KERN_LOSS:
        return k->loss.rows;
    case GPT_KERN_LOSS_SUM:
        return 1;
    case GPT_KERN_OP_END:
        break;
    }
    return 0;
}

struct uses {
    struct gpt_kern_use *use;
    unsigned n;
};

static void use(struct uses *u, size_t at, uint64_t len_bytes, bool writes)
{
    u->use[u->n++] = (struct gpt_kern_use){ at, len_bytes, writes };
}

#define READS(member, bytes)  use(&u, offsetof(struct gpt_kern, member), (bytes), false)
#define WRITES(member, bytes) use(&u, offsetof(struct gpt_kern, member), (bytes), true)

/* Those of the embedding. */
static unsigned uses_of_embedding(const struct gpt_kern *k, struct gpt_kern_use *uses)
{
    struct uses u = { uses, 0 };
    uint64_t e = gpt_dev_bytes(k->dtype);

    switch (k->op) {
    case GPT_KERN_EMBED:
        READS(embed.wte, k->embed.vocab * k->embed.cols * e);
        READS(embed.wpe, k->embed.seq * k->embed.cols * e);
        READS(embed.tokens, k->embed.rows * 4);
        WRITES(embed.x, k->embed.rows * k->embed.cols * 4);
        break;
    case GPT_KERN_EMBED_BACK:
        READS(embed_back.which, k->embed_back.n * 4);
        READS(embed_back.first, (k->embed_back.n + 1) * 4);
        READS(embed_back.order, k->embed_back.rows * 4);
        READS(embed_back.dx, k->embed_back.rows * k->embed_back.cols * 4);
        WRITES(embed_back.dwte, k->embed_back.vocab * k->embed_back.cols * 4);
        break;
    case GPT_KERN_POS_BACK:
        READS(pos_back.dx, k->pos_back.rows * k->pos_back.cols * 4);
        WRITES(pos_back.dwpe, k->pos_back.seq * k->pos_back.cols * 4);
        break;
    default:
        break;
    }
    return u.n;
}

/* Those of the embedding, of the norms, and of rows. */
static unsigned uses_of_rows(const struct gpt_kern *k, struct gpt_kern_use *uses)
{
    struct uses u = { uses, 0 };
    uint64_t e = gpt_dev_bytes(k->dtype), n;

    switch (k->op) {
    case GPT_KERN_NORM:
        n = k->norm.rows * k->norm.cols;
        READS(norm.x, n * 4);
        READS(norm.w, k->norm.cols * e);
        READS(norm.b, k->norm.cols * e);
        WRITES(norm.y, n * e);
        WRITES(norm.mean, k->norm.rows * 4);
        WRITES(norm.rstd, k->norm.rows * 4);
        break;
    case GPT_KERN_NORM_BACK:
        n = k->norm_back.rows * k->norm_back.cols;
        READS(norm_back.x, n * 4);
        READS(norm_back.w, k->norm_back.cols * e);
        READS(norm_back.mean, k->norm_back.rows * 4);
        READS(norm_back.rstd, k->norm_back.rows * 4);
        READS(norm_back.dy, n * e);
        WRITES(norm_back.dx, n * 4);
        break;
    case GPT_KERN_COLS:
        n = k->cols.rows * k->cols.cols;
        READS(cols.y, n * e);
        READS(cols.x, k->cols.x ? n * 4 : 0);
        READS(cols.mean, k->cols.x ? k->cols.rows * 4 : 0);
        READS(cols.rstd, k->cols.x ? k->cols.rows * 4 : 0);
        WRITES(cols.part, GPT_KERN_SPLITS * k->cols.cols * 4);
        WRITES(cols.part_x, k->cols.x ? GPT_KERN_SPLITS * k->cols.cols * 4 : 0);
        break;
    case GPT_KERN_COLS_END:
        READS(cols_end.part, GPT_KERN_SPLITS * k->cols_end.cols * 4);
        WRITES(cols_end.to, k->cols_end.cols * 4);
        break;
    case GPT_KERN_RESIDUAL:
        n = k->residual.rows * k->residual.cols;
        READS(residual.x, n * 4);
        READS(residual.y, n * e);
        READS(residual.b, k->residual.cols * e);
        WRITES(residual.to, n * 4);
        break;
    case GPT_KERN_BIAS:
        READS(bias.b, k->bias.cols * e);
        WRITES(bias.y, ((k->bias.rows - 1) * k->bias.ld + k->bias.cols) * e);
        break;
    default:
        return uses_of_embedding(k, uses);
    }
    return u.n;
}

unsigned gpt_kern_uses(const struct gpt_kern *k, struct gpt_kern_use uses[GPT_KERN_USES_MAX])
{
    struct uses u = { uses, 0 };
    uint64_t e = gpt_dev_bytes(k->dtype), n;

    switch (k->op) {
    case GPT_KERN_GELU:
        READS(gelu.x, k->gelu.n * e);
        WRITES(gelu.y, k->gelu.n * e);
        break;
    case GPT_KERN_GELU_BACK:
        READS(gelu_back.x, k->gelu_back.n * e);
        READS(gelu_back.dy, k->gelu_back.n * e);
        WRITES(gelu_back.dx, k->gelu_back.n * e);
        break;
    case GPT_KERN_SOFTMAX:
        n = k->softmax.rows * k->softmax.seq;
        READS(softmax.s, n * 4);
        WRITES(softmax.p, n * e);
        break;
    case GPT_KERN_SOFTMAX_BACK:
        n = k->softmax_back.rows * k->softmax_back.seq;
        READS(softmax_back.p, n * e);
        READS(softmax_back.dp, n * 4);
        WRITES(softmax_back.ds, n * e);
        break;
    case GPT_KERN_LOSS:
        n = k->loss.rows * k->loss.vocab;
        READS(loss.logits, n * 4);
        READS(loss.targets, k->loss.rows * 4);
        WRITES(loss.dlogits, k->loss.dlogits ? n * e : 0);
        WRITES(loss.losses, k->loss.rows * 8);
        break;
    case GPT_KERN_LOSS_SUM:
        READS(loss_sum.losses, k->loss_sum.n * 8);
        WRITES(loss_sum.to, 8);
        break;
    default:
        return uses_of_rows(k, uses);
    }
    return u.n;
}

int gpt_kern_host(void *kern)
{
    const struct gpt_kern *k = kern;
    uint64_t teams = gpt_kern_teams(k);

    for (uint64_t team = 0; team < teams; team++)
        kern_team(k, k->op, team);
    return 0;
}
