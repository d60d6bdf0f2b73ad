/*
 * config.c - rows of options, and the three places that values come from.
 *
 * MODEL. A value is text until option_set(), the one function that reads it, whoever brought it:
 * the row's default, the file (libconfuse finds keys and values, and knows the line), the command
 * line. So a value is checked in one way, and a default that is wrong fails every test.
 *
 * NOT HERE. What depends on the machine at the start: "auto" sizes, whether a directory exists.
 */
#include "daemon/config.h"

#include <assert.h>
#include <confuse.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/plan.h"
#include "base/size.h"
#include "base/util.h"
#include "daemon/os/cpus.h"
#include "daemon/os/numa.h"
#include "kernels/zk.h"
#include "nvme/zn.h"
#include "proto/socket.h"

#define CONFIG_FILE_MAX ZB_MIB              /* bytes of a configuration file */
#define SIZE_MAX_BYTES  (UINT64_C(1) << 50) /* of a tier: far from where sums overflow */
#define SIZE_MIN_BYTES  ZB_MIB
#define PAGE_BYTES      ZB_PAGE_ALIGN
#define HELP_MAX        16384u

/* ---- the rows */

static int check_socket(const char *text, struct zb_err *err)
{
    struct sockaddr_un address;

    return zp_socket_address(text, &address, err);
}

static int check_kernels(const char *text, struct zb_err *err)
{
    const struct zk_ops *ops;

    return zk_select(text, &ops, err);
}

static int check_group(const char *text, struct zb_err *err)
{
    return getgrnam(text) ? 0 : zb_fail(err, -EINVAL, "there is no group '%s'", text);
}

static int check_paths(const char *text, struct zb_err *err)
{
    unsigned n = 1;

    for (const char *p = text; *p; p++) {
        n += *p == *ZSD_PATHS_SEPARATOR;
        if (*p == *ZSD_PATHS_SEPARATOR && (p == text || p[1] == *p || p[1] == '\0'))
            return zb_fail(err, -EINVAL, "'%s': a directory has no name", text);
    }
    return n < ZN_PATHS_MAX
               ? 0
               : zb_fail(err, -EINVAL, "%u directories: at most %u", n, ZN_PATHS_MAX - 1);
}

#define MEMBER(m) offsetof(struct zsd_config, m), sizeof(((struct zsd_config *)0)->m)

/* clang-format off */
static const struct zsd_option options[] = {
    { "socket", ZSD_TEXT, MEMBER(socket), .arg = "PATH", .def = "", .check = check_socket,
      .help = "The Unix socket to serve. Empty: $ZSHARD_SOCKET, else "
              "$XDG_RUNTIME_DIR/zshard.sock, else /run/zshard/zshard.sock." },
    { "data", ZSD_TEXT, MEMBER(data), .arg = "DIR", .def = "",
      .help = "Directory of the data file; made when only its last part is missing. Empty: "
              "$STATE_DIRECTORY (systemd sets it), else a temporary one in $TMPDIR or /var/tmp, "
              "removed at the end." },
    { "host_bytes", ZSD_SIZE, MEMBER(host_bytes), .arg = "SIZE", .def = "auto",
      .min = SIZE_MIN_BYTES, .max = SIZE_MAX_BYTES, .automatic = true, .auto_value = ZSD_AUTO,
      .help = "Budget of the host tier: arenas, staging, rings and resident pages. auto: a "
              "quarter of the memory that the machine and our cgroups leave." },
    { "nvme_bytes", ZSD_SIZE, MEMBER(nvme_bytes), .arg = "SIZE", .def = "auto",
      .min = SIZE_MIN_BYTES, .max = SIZE_MAX_BYTES, .zero = true,
      .automatic = true, .auto_value = ZSD_AUTO,
      .help = "Size of the data file, reserved at the start. 0: no NVMe tier. auto: that of the "
              "file that is there, else 4G or half of what the file system has free, whichever "
              "is less." },
    { "paths", ZSD_LIST, MEMBER(paths), .arg = "DIR:DIR...", .def = "", .check = check_paths,
      .help = "More directories with a data file of nvme_bytes each, best on other drives: pages "
              "are spread over all, by how fast each is. At most 7; the order must not change." },
    { "gpu_bytes", ZSD_SIZE, MEMBER(gpu_bytes), .arg = "SIZE", .def = "0",
      .min = SIZE_MIN_BYTES, .max = SIZE_MAX_BYTES, .zero = true,
      .help = "Budget of the GPU tier: optimizer state that lives in GPU memory and is stepped "
              "there. 0: no GPU is used. Where there is none, or no driver: exit status 4." },
    { "gpu", ZSD_TEXT, MEMBER(gpu), .arg = "NAME", .def = "cuda",
      .help = "The GPU of gpu_bytes: cuda, or cuda:N for another than the first. For tests, "
              "emulated:BYTES: threads that play one." },
    { "io", ZSD_CHOICE, MEMBER(io), .arg = "NAME", .def = "auto",
      .choices = "auto uring threads fixed",
      .help = "How the data file is read and written. auto: io_uring, or threads where it is "
              "refused. fixed: for benches only: there is no data file, but memory (beside "
              "host_bytes) that answers like a drive of a fixed rate; nothing survives." },
    { "io_depth", ZSD_COUNT, MEMBER(io_depth), .arg = "N", .def = "64",
      .min = 1, .max = ZN_DEPTH_MAX,
      .help = "Requests in flight on the data file." },
    { "fixed_rate", ZSD_SIZE, MEMBER(fixed_rate), .arg = "SIZE", .def = "1G",
      .min = SIZE_MIN_BYTES, .max = SIZE_MAX_BYTES,
      .help = "With io fixed: bytes a second, read and written together." },
    { "fixed_latency_us", ZSD_COUNT, MEMBER(fixed_latency_us), .arg = "US", .def = "100",
      .min = 0, .max = 1000000,
      .help = "With io fixed: the least that a transfer takes, in microseconds." },
    { "cpus", ZSD_TEXT, MEMBER(cpus), .arg = "LIST", .def = "", .check = zsd_cpus_check,
      .help = "CPUs of the compute threads, such as 0-3,8. Empty: all that we may use." },
    { "numa", ZSD_TEXT, MEMBER(numa), .arg = "NODES", .def = "auto", .check = zsd_numa_check,
      .help = "NUMA nodes that the daemon computes on and takes memory from, such as 0-1; when they "
              "are full, the others are used. auto: those that cpus are on. off: as the kernel "
              "likes." },
    { "threads", ZSD_COUNT, MEMBER(threads), .arg = "N", .def = "auto", .min = 1, .max = 1024,
      .automatic = true, .auto_value = 0,
      .help = "Compute threads. auto: one for each CPU of cpus." },
    { "page_elems", ZSD_COUNT, MEMBER(page_elems), .arg = "N", .def = "262144",
      .min = ZB_BLOCK_ELEMS, .max = ZB_PAGE_ELEMS_MAX, .multiple = ZB_BLOCK_ELEMS,
      .help = "Elements of a page, the unit of I/O." },
    { "ring_bytes", ZSD_SIZE, MEMBER(ring_bytes), .arg = "SIZE", .def = "auto",
      .min = ZB_PAGE_ALIGN, .max = SIZE_MAX_BYTES, .automatic = true, .auto_value = 0,
      .help = "Part of host_bytes: buffers that pages pass through between the NVMe tier and "
              "the compute threads; at least one. auto: chosen from host_bytes." },
    { "clients_max", ZSD_COUNT, MEMBER(clients_max), .arg = "N", .def = "1024",
      .min = 1, .max = 65536,
      .help = "Connections at one time; the next one is refused with a sentence." },
    { "jobs_max", ZSD_COUNT, MEMBER(jobs_max), .arg = "N", .def = "64", .min = 1, .max = 4096,
      .help = "Jobs at one time." },
    { "timeout_ms", ZSD_COUNT, MEMBER(timeout_ms), .arg = "MS", .def = "60000",
      .min = 1, .max = 86400000,
      .help = "Deadline of requests that name none, in milliseconds." },
    { "kernels", ZSD_TEXT, MEMBER(kernels), .arg = "NAME", .def = "auto", .check = check_kernels,
      .help = "Instructions that the optimizer uses: auto (the best that the processor has), ref, "
              "avx2, avx512, neon. The results have the same bits." },
    { "socket_group", ZSD_TEXT, MEMBER(socket_group), .arg = "GROUP", .def = "",
      .check = check_group,
      .help = "Group whose members may connect. Empty: the daemon's user only (and root)." },
    { "log_level", ZSD_LEVEL, MEMBER(log_level), .arg = "LEVEL", .def = "info",
      .choices = "error warn info debug",
      .help = "What is logged on standard error." },
};
/* clang-format on */

const struct zsd_option *zsd_options(size_t *ret_count)
{
    *ret_count = ZB_COUNT(options);
    return options;
}

/* ---- values */

static bool choice_has(const char *choices, const char *text)
{
    size_t len = strlen(text);

    for (const char *p = choices; len > 0 && (p = strstr(p, text)) != NULL; p += len)
        if ((p == choices || p[-1] == ' ') && (p[len] == ' ' || p[len] == '\0'))
            return strchr(text, ' ') == NULL;
    return false;
}

static int value_text(const struct zsd_option *o, char *member, const char *text,
                      struct zb_err *err)
{
    int rc = 0;

    if (o->choices && !choice_has(o->choices, text))
        return zb_fail(err, -EINVAL, "'%s' is none of: %s", text, o->choices);
    if (!*text && *o->def)
        return zb_fail(err, -EINVAL, "the value is empty");
    if (o->check && *text)
        rc = o->check(text, err);
    if (rc < 0)
        return rc;
    if (strlen(text) >= o->size)
        return zb_fail(err, -EINVAL, "%zu bytes are too long: at most %zu", strlen(text),
                       o->size - 1);
    memcpy(member, text, strlen(text) + 1);
    return 0;
}

static int value_limits(const struct zsd_option *o, const char *text, uint64_t n,
                        struct zb_err *err)
{
    if (n == 0 && o->zero)
        return 0;
    if (n < o->min || n > o->max) {
        if (o->type == ZSD_SIZE)
            return zb_fail(err, -EINVAL, "'%s' is not between %s and %s", text,
                           zb_size_text(o->min).s, zb_size_text(o->max).s);
        return zb_fail(err, -EINVAL, "'%s' is not between %llu and %llu", text,
                       (unsigned long long)o->min, (unsigned long long)o->max);
    }
    if (o->multiple && n % o->multiple != 0)
        return zb_fail(err, -EINVAL, "%s is not a multiple of %llu", text,
                       (unsigned long long)o->multiple);
    return 0;
}

/** Decimal digits only. */
static int value_digits(const char *text, uint64_t *ret, struct zb_err *err)
{
    uint64_t n = 0;

    for (const char *p = text; *p; p++) {
        if (*p < '0' || *p > '9' || !zb_mul_fits(n, 10, &n) ||
            !zb_add_fits(n, (uint64_t)(*p - '0'), &n))
            return zb_fail(err, -EINVAL, "'%s' is no plain number", text);
    }
    *ret = n;
    return *text ? 0 : zb_fail(err, -EINVAL, "'' is no plain number");
}

static int value_number(const struct zsd_option *o, uint64_t *ret, const char *text,
                        struct zb_err *err)
{
    int rc;

    if (o->automatic && strcmp(text, "auto") == 0) {
        *ret = o->auto_value;
        return 0;
    }
    rc = o->type == ZSD_SIZE ? zb_size_parse(text, ret, err) : value_digits(text, ret, err);
    return rc < 0 ? rc : value_limits(o, text, *ret, err);
}

static int value_level(enum zb_log_level *level, const struct zsd_option *o, const char *text,
                       struct zb_err *err)
{
    int rc = zb_log_level_parse(text, level);

    return rc < 0 ? zb_fail(err, rc, "'%s' is none of: %s", text, o->choices) : 0;
}

static int option_read(const struct zsd_option *o, struct zsd_config *config, const char *text,
                       struct zb_err *err)
{
    void *member = (char *)config + o->offset;
    uint64_t n = 0;
    int rc;

    switch (o->type) {
    case ZSD_TEXT:
    case ZSD_LIST:
    case ZSD_CHOICE:
        return value_text(o, member, text, err);
    case ZSD_LEVEL:
        return value_level(member, o, text, err);
    case ZSD_COUNT:
        rc = value_number(o, &n, text, err);
        if (rc == 0)
            *(uint32_t *)member = (uint32_t)n;
        return rc;
    case ZSD_SIZE:
        rc = value_number(o, &n, text, err);
        if (rc == 0)
            *(uint64_t *)member = n == ZSD_AUTO ? n : n - n % PAGE_BYTES;
        return rc;
    }
    return -EINVAL; /* not reached: every type is above */
}

/** `where` is "FILE:LINE: " or "", `name` as the user wrote it. */
static int option_set(const struct zsd_option *o, struct zsd_config *config, const char *text,
                      const char *where, const char *name, struct zb_err *err)
{
    struct zb_err why = { 0 };

    if (option_read(o, config, text, &why) == 0)
        return 0;
    return zb_fail(err, -EINVAL, "%s%s: %s", where, name, why.text);
}

static const struct zsd_option *option_find(const char *name, size_t len)
{
    for (size_t i = 0; i < ZB_COUNT(options); i++)
        if (strncmp(options[i].name, name, len) == 0 && options[i].name[len] == '\0')
            return &options[i];
    return NULL;
}

static void config_defaults(struct zsd_config *config)
{
    int rc = 0;

    memset(config, 0, sizeof(*config));
    for (size_t i = 0; i < ZB_COUNT(options); i++)
        rc |= option_read(&options[i], config, options[i].def, NULL);
    assert(rc == 0);
}

/* ---- the file. libconfuse calls back without an argument of ours, so the reading in progress is
 * static: a configuration is read once, before threads start. */

static struct {
    struct zsd_config *config;
    struct zb_err *err;
    const char *path;
    int line_of[ZB_COUNT(options)]; /* where a key was given; 0: not yet */
} file;

/** What libconfuse has to say itself: unknown keys, syntax. The first failure stays. */
static void file_on_error(cfg_t *cfg, const char *fmt, va_list ap)
{
    char text[256];

    (void)vsnprintf(text, sizeof(text), fmt, ap);
    (void)zb_fail(file.err, -EINVAL, "%s:%d: %s", file.path, cfg->line, text);
}

/** One more of a list. */
static int file_on_element(const struct zsd_option *o, const char *value, const char *where,
                           int *line, int at_line)
{
    const char *member = (const char *)file.config + o->offset;
    char text[sizeof(file.config->paths)];

    if (strpbrk(value, ZSD_PATHS_SEPARATOR) || !*value)
        return zb_fail(file.err, -EINVAL, "%s%s: '%s' cannot be in a list", where, o->name, value);
    if ((size_t)snprintf(text, sizeof(text), "%s%s%s", *line ? member : "",
                         *line ? ZSD_PATHS_SEPARATOR : "", value) >= sizeof(text))
        return zb_fail(file.err, -EINVAL, "%s%s: the list is too long", where, o->name);
    *line = at_line;
    return option_set(o, file.config, text, where, o->name, file.err);
}

static int file_on_value(cfg_t *cfg, cfg_opt_t *opt, const char *value, void *result)
{
    const struct zsd_option *o = option_find(opt->name, strlen(opt->name));
    int *line = &file.line_of[o - options];
    char where[PATH_MAX + 16];

    *(const char **)result = value;
    (void)snprintf(where, sizeof(where), "%s:%d: ", file.path, cfg->line);
    if (*line && (o->type != ZSD_LIST || cfg_opt_size(opt) <= 1))
        return zb_fail(file.err, -EINVAL, "%s%s: given before, on line %d", where, o->name, *line);
    if (o->type == ZSD_LIST)
        return file_on_element(o, value, where, line, cfg->line);
    *line = cfg->line;
    return option_set(o, file.config, value, where, o->name, file.err);
}

/** A regular file of a decent size, whole, with a NUL behind it. */
static int file_read(const char *path, char **ret_text, struct zb_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    ssize_t n = 0;
    int rc = 0;

    if (fd < 0)
        return zb_fail(err, -errno, "configuration '%s': %m", path);
    if (fstat(fd, &st) < 0)
        rc = zb_fail(err, -errno, "configuration '%s': %m", path);
    else if (!S_ISREG(st.st_mode))
        rc = zb_fail(err, -EINVAL, "configuration '%s' is no regular file", path);
    else if ((uint64_t)st.st_size > CONFIG_FILE_MAX)
        rc = zb_fail(err, -EINVAL, "configuration '%s' is %s long; at most %s are read", path,
                     zb_size_text((uint64_t)st.st_size).s, zb_size_text(CONFIG_FILE_MAX).s);
    else if ((*ret_text = calloc(1, (size_t)st.st_size + 1)) == NULL)
        rc = zb_fail(err, -ENOMEM, "configuration '%s': %m", path);
    else if ((n = read(fd, *ret_text, (size_t)st.st_size)) < 0)
        rc = zb_fail(err, -errno, "configuration '%s': %m", path);
    zb_close_fd(&fd);
    if (rc == 0 && memchr(*ret_text, '\0', (size_t)n))
        rc = zb_fail(err, -EINVAL, "configuration '%s' contains a NUL: it is no text", path);
    return rc;
}

/** The first byte behind the comment at p; p where there is none; NULL: it never ends. */
static char *comment_end(char *p)
{
    char *end;

    if (p[0] == '#' || (p[0] == '/' && p[1] == '/'))
        return strchrnul(p, '\n');
    if (p[0] != '/' || p[1] != '*')
        return p;
    end = strstr(p + 2, "*/");
    return end ? end + 2 : NULL;
}

/** Comments become blanks, since libconfuse miscounts their lines. */
static int file_blank_comments(char *text, const char *path, struct zb_err *err)
{
    char quote = '\0', *p = text;
    unsigned line = 1;

    while (*p) {
        char *end = quote ? p : comment_end(p);

        if (!end)
            return zb_fail(err, -EINVAL, "%s:%u: a comment that never ends", path, line);
        if (p < end) {
            for (; p < end; p++)
                if (*p == '\n')
                    line++;
                else
                    *p = ' ';
            continue;
        }
        if (*p == '\n')
            line++;
        else if (quote && p[0] == '\\' && p[1] && p[1] != '\n')
            p++; /* whatever comes next, it is no quote */
        else if (quote)
            quote = *p == quote ? '\0' : quote;
        else if (*p == '"' || *p == '\'')
            quote = *p;
        p++;
    }
    return 0;
}

static int file_parse(const char *text, const char *path, struct zsd_config *config,
                      struct zb_err *err)
{
    cfg_opt_t opts[ZB_COUNT(options) + 1];
    cfg_t *cfg;
    int rc;

    for (size_t i = 0; i < ZB_COUNT(options); i++)
        if (options[i].type == ZSD_LIST)
            opts[i] =
                (cfg_opt_t)CFG_STR_LIST_CB(options[i].name, NULL, CFGF_NODEFAULT, file_on_value);
        else
            opts[i] = (cfg_opt_t)CFG_STR_CB(options[i].name, NULL, CFGF_NODEFAULT, file_on_value);
    opts[ZB_COUNT(options)] = (cfg_opt_t)CFG_END();
    cfg = cfg_init(opts, CFGF_NONE);
    if (!cfg)
        return zb_fail(err, -ENOMEM, "configuration '%s': %m", path);
    memset(&file, 0, sizeof(file));
    file.config = config;
    file.err = err;
    file.path = path;
    (void)cfg_set_error_function(cfg, file_on_error);
    rc = *text ? cfg_parse_buf(cfg, text) : CFG_SUCCESS; /* a stream of no bytes cannot be opened */
    (void)cfg_free(cfg);
    if (rc == CFG_SUCCESS)
        return 0;
    return zb_fail(err, -EINVAL, "configuration '%s' cannot be read", path);
}

static int config_file(const char *path, struct zsd_config *config, struct zb_err *err)
{
    char *text = NULL;
    int rc = file_read(path, &text, err);

    if (rc == 0)
        rc = file_blank_comments(text, path, err);
    if (rc == 0)
        rc = file_parse(text, path, config, err);
    free(text);
    return rc;
}

/* ---- the command line */

enum arg_kind { ARG_END, ARG_HELP, ARG_VERSION, ARG_CHECK, ARG_FSCK, ARG_CONFIG, ARG_OPTION };

struct arg {
    enum arg_kind kind;
    const struct zsd_option *option; /* of ARG_OPTION */
    const char *value;               /* of ARG_CONFIG and ARG_OPTION */
    char name[64];                   /* as the user wrote it: "--host-bytes" */
};

static const struct {
    const char *name;
    enum arg_kind kind;
} arg_words[] = {
    { "--help", ARG_HELP }, { "--version", ARG_VERSION }, { "--check-config", ARG_CHECK },
    { "--fsck", ARG_FSCK }, { "--config", ARG_CONFIG },
};

/** What `a->name` asks for: ARG_END when there is no such thing. */
static enum arg_kind arg_find(struct arg *a)
{
    char key[sizeof(a->name)];

    for (size_t i = 0; i < ZB_COUNT(arg_words); i++)
        if (strcmp(a->name, arg_words[i].name) == 0)
            return arg_words[i].kind;
    if (strncmp(a->name, "--", 2) != 0 || strchr(a->name, '_'))
        return ARG_END;
    (void)snprintf(key, sizeof(key), "%s", a->name + 2);
    for (char *p = key; *p; p++)
        if (*p == '-')
            *p = '_';
    a->option = option_find(key, strlen(key));
    return a->option ? ARG_OPTION : ARG_END;
}

/** Reads the argument at argv[*i] and moves *i past it: "--name value", "--name=value". */
static int arg_next(int argc, char **argv, int *i, struct arg *a, struct zb_err *err)
{
    const char *text, *equals;
    int len;

    *a = (struct arg){ .kind = ARG_END };
    if (*i >= argc)
        return 0;
    text = argv[(*i)++];
    equals = strchr(text, '=');
    len = equals ? (int)zb_min_u64((uint64_t)(equals - text), INT_MAX) : INT_MAX;
    if (snprintf(a->name, sizeof(a->name), "%.*s", len, text) < (int)sizeof(a->name))
        a->kind = arg_find(a);
    switch (a->kind) {
    case ARG_END:
        return zb_fail(err, -EINVAL, "'%s' is no option; try: zshardd --help", text);
    case ARG_HELP:
    case ARG_VERSION:
    case ARG_CHECK:
    case ARG_FSCK:
        return equals ? zb_fail(err, -EINVAL, "%s takes no value", a->name) : 0;
    case ARG_CONFIG:
    case ARG_OPTION:
        a->value = equals ? equals + 1 : *i < argc ? argv[(*i)++] : NULL;
        break;
    }
    return a->value ? 0 : zb_fail(err, -EINVAL, "%s needs a value", a->name);
}

/* What the command line says beside options. */
struct args {
    const char *config;
    enum arg_kind word; /* ARG_HELP, ARG_VERSION, ARG_CHECK, ARG_FSCK or ARG_END */
};

static int args_words(int argc, char **argv, struct args *ret, struct zb_err *err)
{
    struct arg a;
    int i = 1, rc;

    *ret = (struct args){ .word = ARG_END };
    while ((rc = arg_next(argc, argv, &i, &a, err)) == 0 && a.kind != ARG_END) {
        if (a.kind == ARG_CONFIG)
            ret->config = a.value;
        else if (a.kind != ARG_OPTION)
            ret->word = a.kind;
        if (a.kind == ARG_HELP || a.kind == ARG_VERSION)
            break;
    }
    return rc;
}

static int args_options(int argc, char **argv, struct zsd_config *config, struct zb_err *err)
{
    struct arg a;
    int i = 1, rc;

    while ((rc = arg_next(argc, argv, &i, &a, err)) == 0 && a.kind != ARG_END) {
        if (a.kind == ARG_OPTION)
            rc = option_set(a.option, config, a.value, "", a.name, err);
        if (rc < 0)
            break;
    }
    return rc;
}

/* ---- help */

struct text {
    char s[HELP_MAX];
    size_t len;
};

static void text_add(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void text_add(struct text *t, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(t->s + t->len, sizeof(t->s) - t->len, fmt, ap);
    va_end(ap);
    assert(n >= 0 && (size_t)n < sizeof(t->s) - t->len);
    t->len += (size_t)n;
}

/** `words` in lines of at most 80 columns, each indented. */
static void text_wrap(struct text *t, const char *words, int indent)
{
    while (*words) {
        size_t room = 80 - (size_t)indent, len = strlen(words), end = len;

        if (len > room)
            for (end = room; words[end] != ' '; end--)
                ;
        text_add(t, "%*s%.*s\n", indent, "", (int)end, words);
        words += end + (words[end] == ' ');
    }
}

static void help_option(struct text *t, const struct zsd_option *o)
{
    text_add(t, "  --");
    for (const char *p = o->name; *p; p++)
        text_add(t, "%c", *p == '_' ? '-' : *p);
    text_add(t, " %s", o->arg);
    if (*o->def)
        text_add(t, "  (default: %s)", o->def);
    text_add(t, "\n");
    text_wrap(t, o->help, 8);
    if (o->choices) {
        text_add(t, "        One of: %s.\n", o->choices);
    } else if (o->type == ZSD_COUNT) {
        text_add(t, "        From %llu to %llu", (unsigned long long)o->min,
                 (unsigned long long)o->max);
        if (o->multiple)
            text_add(t, ", a multiple of %llu", (unsigned long long)o->multiple);
        text_add(t, ".\n");
    }
}

static const char *config_help(void)
{
    static struct text t;

    t.len = 0;
    text_add(&t, "usage: zshardd [--config FILE] [--check-config | --fsck] [--OPTION VALUE]...\n"
                 "\n"
                 "The daemon of zshard: owns the memory that training borrows, and runs the\n"
                 "optimizer where the state lives. Without options it serves its own user, with a\n"
                 "temporary data directory.\n"
                 "\n"
                 "  --config FILE\n"
                 "        Read options from a file: name = value, with '_' for '-'. The command\n"
                 "        line wins over it.\n"
                 "  --check-config\n"
                 "        Check the options and end: status 0, or 2 and a sentence.\n"
                 "  --fsck\n"
                 "        Check what a data directory (--data, and --paths) holds, every page and\n"
                 "        every counter, and end; nothing there is changed. Status 0, or 6 and\n"
                 "        what is damaged.\n"
                 "  --help, --version\n"
                 "\n");
    for (size_t i = 0; i < ZB_COUNT(options); i++)
        help_option(&t, &options[i]);
    text_add(&t, "\n"
                 "Sizes are bytes, or have a unit: K, M, G, T (powers of 1024), as in 1.5G.\n"
                 "\n"
                 "Exit status: 0 ended in good order; 2 wrong options or configuration;\n"
                 "3 the socket or the data directory belongs to another daemon; 4 there is no\n"
                 "such GPU; 6 --fsck found damage; 1 anything else.\n");
    return t.s;
}

int zsd_config_load(struct zsd_config *config, int argc, char **argv, const char **ret_text,
                    struct zb_err *err)
{
    struct args args;
    int rc = args_words(argc, argv, &args, err);

    if (rc < 0)
        return rc;
    if (args.word == ARG_HELP || args.word == ARG_VERSION) {
        *ret_text = args.word == ARG_HELP ? config_help() : "zshardd " ZSHARD_VERSION "\n";
        return 1;
    }
    config_defaults(config);
    if (args.config)
        rc = config_file(args.config, config, err);
    if (rc == 0)
        rc = args_options(argc, argv, config, err);
    if (rc < 0)
        return rc;
    return args.word == ARG_CHECK ? 2 : args.word == ARG_FSCK ? 3 : 0;
}
