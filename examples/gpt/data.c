/*
 * data.c - joins files to one row of tokens, in segments.
 *
 * A text is one segment in memory, whatever the number of files. A token file is a segment of its
 * own, which keeps its descriptor; a window is read from the file when it is needed, and may cross
 * from one file to the next. Tokens are counted once, when the data is opened: this gives the
 * entropy and checks that they are inside the vocabulary. They are checked again when read, because
 * a file can change, and the model would then read outside its tables.
 */
#include "examples/gpt/data.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <fts.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "examples/gpt/model/rng.h"

#define BIN_HEADER_BYTES 1024u
#define BIN_MAGIC        20240520
#define BIN_VERSION      1
#define PIECE_TOKENS     65536u /* read at a time */

struct segment {
    const uint8_t *text; /* or NULL: tokens in fd */
    int fd;
    const char *path; /* d->paths */
    uint64_t first, count;
};

struct gpt_data {
    struct gpt_data_info info;
    uint32_t window;
    uint8_t *text;
    uint64_t text_bytes;    /* allocated */
    struct gpt_paths paths; /* copies, for messages */
    struct segment *segments;
    size_t nsegments;
};

/* ---- lists of paths */

static int paths_add(struct gpt_paths *p, const char *path, struct zb_err *err)
{
    char **more = realloc(p->path, (p->n + 1) * sizeof(*more));

    if (!more)
        return zb_fail(err, -ENOMEM, "a list of files: %m");
    p->path = more;
    p->path[p->n] = strdup(path);
    if (!p->path[p->n])
        return zb_fail(err, -ENOMEM, "a list of files: %m");
    p->n++;
    return 0;
}

void gpt_paths_done(struct gpt_paths *paths)
{
    for (size_t i = 0; i < paths->n; i++)
        free(paths->path[i]);
    free(paths->path);
    *paths = (struct gpt_paths){ 0 };
}

static int paths_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool matches(const char *name, const char *const *patterns)
{
    for (; *patterns; patterns++)
        if (fnmatch(*patterns, name, 0) == 0)
            return true;
    return false;
}

static int sources_walk(FTS *fts, struct gpt_paths *paths, struct zb_err *err)
{
    static const char *const files[] = { "*.c",  "*.h",   "*.md",    "*.py",
                                         "*.sh", "*.txt", "*.proto", NULL };
    static const char *const not_folders[] = { ".*", "build*", "out", NULL };
    FTSENT *e;
    int rc = 0;

    while (rc == 0 && (errno = 0, e = fts_read(fts)) != NULL) {
        if (e->fts_info == FTS_D && e->fts_level > 0 && matches(e->fts_name, not_folders))
            (void)fts_set(fts, e, FTS_SKIP);
        else if (e->fts_info == FTS_F && matches(e->fts_name, files))
            rc = paths_add(paths, e->fts_path, err);
        else if (e->fts_info == FTS_DNR || e->fts_info == FTS_ERR)
            rc = zb_fail(err, -e->fts_errno, "folder '%s': %m", e->fts_path);
    }
    if (rc == 0 && errno != 0)
        rc = zb_fail(err, -errno, "source files: %m");
    return rc;
}

int gpt_data_sources(const char *root, struct gpt_paths *ret, struct zb_err *err)
{
    char *roots[] = { strdup(root), NULL };
    FTS *fts = roots[0] ? fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL) : NULL;
    struct gpt_paths paths = { 0 };
    int rc = fts ? sources_walk(fts, &paths, err) : zb_fail(err, -ENOMEM, "source files: %m");

    if (fts)
        (void)fts_close(fts);
    free(roots[0]);
    if (rc == 0 && paths.n == 0)
        rc = zb_fail(err, -ENOENT,
                     "there are no source files under '%s' to train on: name text "
                     "files with --data",
                     root);
    if (rc != 0) {
        gpt_paths_done(&paths);
        return rc;
    }
    qsort(paths.path, paths.n, sizeof(*paths.path), paths_order);
    *ret = paths;
    return 0;
}

/* The installed text, PREFIX/share/zshard/data; in a build, a link to its own sources. */
static int sources_own(struct gpt_paths *ret, struct zb_err *err)
{
    static const char below[] = "/../share/zshard/data";
    char path[PATH_MAX], *root, *slash;
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - sizeof(below));
    int rc;

    if (n <= 0)
        return zb_fail(err, -errno, "/proc/self/exe: %m");
    path[n] = '\0';
    slash = strrchr(path, '/');
    memcpy(slash ? slash : path, below, sizeof(below));
    root = realpath(path, NULL);
    if (!root)
        return zb_fail(
            err, -ENOENT,
            "there is no text to train on in the directory of this program: name text files with "
            "--data");
    rc = gpt_data_sources(root, ret, err);
    free(root);
    return rc;
}

/* ---- opening */

/* Exactly `bytes` at an offset: 0, -EIO at the end of the file, or what read says. */
static int read_all(int fd, void *buf, size_t bytes, uint64_t off)
{
    char *p = buf;

    while (bytes > 0) {
        ssize_t n = pread(fd, p, bytes, (off_t)off);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        p += n;
        off += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

static int file_open(const char *path, int *ret_fd, uint64_t *ret_bytes, struct zb_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    int rc = 0;

    if (fd < 0)
        return zb_fail(err, -errno, "data file '%s': %m", path);
    if (fstat(fd, &st) < 0)
        rc = zb_fail(err, -errno, "data file '%s': %m", path);
    else if (!S_ISREG(st.st_mode))
        rc = zb_fail(err, -EINVAL, "data file '%s' is not a regular file", path);
    if (rc != 0) {
        (void)close(fd);
        return rc;
    }
    *ret_fd = fd;
    *ret_bytes = (uint64_t)st.st_size;
    return 0;
}

/* Doubles the text's memory until it has room: there are many small files. */
static int text_room(struct gpt_data *d, uint64_t bytes)
{
    uint64_t room = bytes > 2 * d->text_bytes ? bytes : 2 * d->text_bytes;
    uint8_t *more;

    if (bytes <= d->text_bytes)
        return 0;
    more = realloc(d->text, room);
    if (!more)
        return -ENOMEM;
    d->text = more;
    d->text_bytes = room;
    return 0;
}

static int text_append(struct gpt_data *d, const char *path, struct zb_err *err)
{
    uint64_t bytes = 0;
    int fd = -1;
    int rc = file_open(path, &fd, &bytes, err);

    if (rc != 0)
        return rc;
    if (bytes > GPT_TEXT_BYTES_MAX || d->info.tokens + bytes > GPT_TEXT_BYTES_MAX) {
        rc = zb_fail(err, -EINVAL,
                     "the text is longer than %" PRIu64 " bytes with '%s': cut it "
                     "into tokens first (.bin files are read piece by piece)",
                     GPT_TEXT_BYTES_MAX, path);
    } else if (bytes > 0) {
        rc = text_room(d, d->info.tokens + bytes);
        if (rc == 0)
            rc = read_all(fd, d->text + d->info.tokens, bytes, 0);
        if (rc != 0)
            (void)zb_fail(err, rc, "data file '%s': %m", path);
        else
            d->info.tokens += bytes;
    }
    (void)close(fd);
    return rc;
}

static int text_open(struct gpt_data *d, struct zb_err *err)
{
    int rc = 0;

    d->info.vocab = GPT_TEXT_VOCAB;
    for (size_t i = 0; i < d->paths.n && rc == 0; i++)
        rc = text_append(d, d->paths.path[i], err);
    if (rc != 0)
        return rc;
    d->segments[d->nsegments++] =
        (struct segment){ .text = d->text, .fd = -1, .count = d->info.tokens };
    return 0;
}

static int bin_check(const char *path, int fd, uint64_t bytes, uint64_t *ret_tokens,
                     struct zb_err *err)
{
    int32_t header[3];
    int rc;

    if (bytes < BIN_HEADER_BYTES)
        return zb_fail(err, -EBADMSG,
                       "token file '%s' has %" PRIu64 " bytes, less than a header "
                       "of %u",
                       path, bytes, BIN_HEADER_BYTES);
    rc = read_all(fd, header, sizeof(header), 0);
    if (rc != 0)
        return zb_fail(err, rc, "token file '%s': %m", path);
    if (header[0] != BIN_MAGIC)
        return zb_fail(err, -EBADMSG, "token file '%s' begins with %d, not with llm.c's magic %d",
                       path, header[0], BIN_MAGIC);
    if (header[1] != BIN_VERSION)
        return zb_fail(err, -EBADMSG,
                       "token file '%s' has version %d; version %d can be read (uint16 "
                       "tokens of GPT-2)",
                       path, header[1], BIN_VERSION);
    if (header[2] < 0 || bytes != BIN_HEADER_BYTES + 2 * (uint64_t)header[2])
        return zb_fail(err, -EBADMSG,
                       "token file '%s' has %" PRIu64 " bytes, but its header specifies "
                       "%d tokens, which would be %" PRIu64,
                       path, bytes, header[2],
                       BIN_HEADER_BYTES + 2 * (uint64_t)(header[2] < 0 ? 0 : header[2]));
    *ret_tokens = (uint64_t)header[2];
    return 0;
}

static int bin_open(struct gpt_data *d, struct zb_err *err)
{
    d->info.vocab = GPT_BIN_VOCAB;
    for (size_t i = 0; i < d->paths.n; i++) {
        struct segment *s = &d->segments[d->nsegments];
        uint64_t bytes = 0;
        int rc;

        *s = (struct segment){ .fd = -1, .path = d->paths.path[i], .first = d->info.tokens };
        rc = file_open(s->path, &s->fd, &bytes, err);
        if (rc != 0)
            return rc;
        d->nsegments++;
        rc = bin_check(s->path, s->fd, bytes, &s->count, err);
        if (rc != 0)
            return rc;
        d->info.tokens += s->count;
    }
    return 0;
}

/* Tokens [first, first + count) of a segment. */
static int segment_read(const struct segment *s, uint64_t first, uint32_t count, uint32_t *tokens,
                        struct zb_err *err)
{
    unsigned char *raw = (unsigned char *)tokens + 2 * (size_t)count; /* the upper half */
    int rc;

    if (s->text) {
        for (uint32_t i = 0; i < count; i++)
            tokens[i] = s->text[first + i];
        return 0;
    }
    rc = read_all(s->fd, raw, 2 * (size_t)count, BIN_HEADER_BYTES + 2 * first);
    if (rc != 0)
        return zb_fail(err, rc, "token file '%s' could not be read at token %" PRIu64 ": %m",
                       s->path, first);
    for (uint32_t i = 0; i < count; i++) { /* raw token i lies at or behind tokens[i] */
        uint16_t token;

        memcpy(&token, raw + 2 * (size_t)i, sizeof(token));
        if (token >= GPT_BIN_VOCAB)
            return zb_fail(err, -EBADMSG,
                           "token file '%s' has token %u at %" PRIu64 "; the vocabulary is %u",
                           s->path, token, first + i, GPT_BIN_VOCAB);
        tokens[i] = token;
    }
    return 0;
}

static int data_count(struct gpt_data *d, struct zb_err *err)
{
    uint64_t *times = calloc(d->info.vocab, sizeof(*times));
    uint32_t *piece = malloc(PIECE_TOKENS * sizeof(*piece));
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    double nats = 0.0;
    int rc = times && piece ? 0 : zb_fail(err, -ENOMEM, "counting tokens: %m");

    for (size_t k = 0; rc == 0 && k < d->nsegments; k++)
        for (uint64_t at = 0; rc == 0 && at < d->segments[k].count; at += PIECE_TOKENS) {
            uint64_t left = d->segments[k].count - at;
            uint32_t n = left < PIECE_TOKENS ? (uint32_t)left : PIECE_TOKENS;

            rc = segment_read(&d->segments[k], at, n, piece, err);
            for (uint32_t i = 0; rc == 0 && i < n; i++) {
                times[piece[i]]++;
                hash = (hash ^ piece[i]) * UINT64_C(0x100000001b3);
            }
        }
    for (uint32_t t = 0; rc == 0 && t < d->info.vocab; t++)
        if (times[t] > 0) {
            double p = (double)times[t] / (double)d->info.tokens;

            nats -= p * log(p);
        }
    d->info.unigram_nats = nats;
    d->info.hash = hash;
    free(times);
    free(piece);
    return rc;
}

static bool path_is_bin(const char *path)
{
    size_t n = strlen(path);

    return n >= 4 && strcmp(path + n - 4, ".bin") == 0;
}

static int data_build(struct gpt_data *d, const char *const *paths, size_t n, struct zb_err *err)
{
    size_t bins = 0;
    int rc = n == 0 ? sources_own(&d->paths, err) : 0;

    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = paths_add(&d->paths, paths[i], err);
        bins += path_is_bin(paths[i]);
    }
    if (rc != 0)
        return rc;
    if (bins != 0 && bins != n)
        return zb_fail(err, -EINVAL,
                       "%zu of %zu data files are token files (.bin): text and "
                       "tokens do not mix",
                       bins, n);
    d->info.files = d->paths.n;
    d->segments = calloc(d->paths.n, sizeof(*d->segments));
    if (!d->segments)
        return zb_fail(err, -ENOMEM, "data: %m");
    rc = bins ? bin_open(d, err) : text_open(d, err);
    if (rc != 0)
        return rc;
    if (d->info.tokens < d->window)
        return zb_fail(err, -EINVAL,
                       "the data has %" PRIu64 " tokens, but a sequence of %u with "
                       "its last target needs %u",
                       d->info.tokens, d->window - 1, d->window);
    return data_count(d, err);
}

int gpt_data_open(struct gpt_data **ret, const char *const *paths, size_t n, uint32_t window,
                  struct zb_err *err)
{
    struct gpt_data *d = calloc(1, sizeof(*d));
    int rc;

    assert(window >= 2);
    if (!d)
        return zb_fail(err, -ENOMEM, "data: %m");
    d->window = window;
    rc = data_build(d, paths, n, err);
    if (rc == 0)
        *ret = d;
    else
        gpt_data_close(d);
    return rc;
}

void gpt_data_close(struct gpt_data *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->nsegments; i++)
        if (d->segments[i].fd >= 0)
            (void)close(d->segments[i].fd);
    free(d->segments);
    gpt_paths_done(&d->paths);
    free(d->text);
    free(d);
}

const struct gpt_data_info *gpt_data_info(const struct gpt_data *d)
{
    return &d->info;
}

/* ---- sequences */

uint64_t gpt_data_offset(const struct gpt_data *d, uint64_t seed, uint64_t step, uint64_t index)
{
    struct gpt_rng rng = gpt_rng(seed, "batches");

    assert(step <= UINT32_MAX && index <= UINT32_MAX);
    return gpt_rng_below(&rng, step << 32 | index, d->info.tokens - d->window + 1);
}

int gpt_data_sequence(const struct gpt_data *d, uint64_t seed, uint64_t step, uint64_t index,
                      uint32_t *tokens, struct zb_err *err)
{
    uint64_t at = gpt_data_offset(d, seed, step, index), end = at + d->window;
    int rc = 0;

    for (size_t k = 0; k < d->nsegments && rc == 0; k++) {
        const struct segment *s = &d->segments[k];
        uint64_t from = at > s->first ? at : s->first;
        uint64_t to = end < s->first + s->count ? end : s->first + s->count;

        if (from < to)
            rc = segment_read(s, from - s->first, (uint32_t)(to - from), tokens + (from - at), err);
    }
    return rc;
}
