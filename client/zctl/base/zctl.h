/*
 * zctl.h - shared by the rooms of zctl: a command, one run, and tables.
 *
 * MODEL. Each process runs one command: main() finds its row, parses its options into its struct,
 * and calls its function. Output goes to `out`. A failure is a code and a message in `err`, which
 * main() prints and turns into the exit status. Nothing below main() prints to standard error or
 * exits.
 */
#ifndef ZCTL_H
#define ZCTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/err.h"
#include "base/opt.h"
#include "client/zclient.h"

#define ZCTL_SCHEMA      2 /* of the JSON output; grows when a key changes its meaning or is removed */
#define ZCTL_COLUMNS_MAX 64u                 /* of a table */
#define ZCTL_JOB_MAX     (ZC_NAME_MAX + 12u) /* bytes of a job's name with the uid of its owner */
/* Exit statuses in addition to the library's. */
#define ZCTL_EXIT_NO_FIT   7 /* a plan that does not fit */
#define ZCTL_EXIT_KEEPS    8 /* destroy, without --force, of a job that has commits or snapshots */
#define ZCTL_EXIT_DEGRADED 8 /* status of a daemon that is not healthy */

struct zctl;
struct zctl_column;

/** One command. run() returns 0 or a negative errno with z->err set. */
struct zctl_cmd {
    const char *name, *args, *help;
    int argc_min, argc_max;                            /* words after the name */
    int (*run)(struct zctl *z, int argc, char **argv); /* these words */
    const struct zb_opt *options;                      /* NULL: none */
    size_t bytes;                                      /* size of the options' struct */
    /* of the rows that it prints, for -o, which is checked before run(); NULL: it prints no rows */
    const struct zctl_column *columns;
    size_t ncolumns;
};
#define ZCTL_COLUMNS(table) .columns = (table), .ncolumns = sizeof(table) / sizeof((table)[0])

/** How rows are printed, if not as JSON. */
struct zctl_style {
    bool list;           /* one line for each value of a row */
    bool bare;           /* -H: no headings, a tab between cells, nothing else than rows */
    bool exact;          /* -p: numbers without units and names of users; nothing is cut */
    const char *columns; /* keys separated by commas; NULL: those that are shown */
};

/** One run. */
struct zctl {
    const struct zctl_cmd *const *cmds; /* all commands, sorted by name */
    size_t ncmds;
    const char *socket; /* NULL: the library's rule */
    uint32_t wait_ms;   /* for a daemon that starts; 0: none */
    bool json;
    struct zctl_style style;
    FILE *out;
    struct zc_client *client;   /* NULL until zctl_connect() */
    struct zb_opts opts;        /* of the command; opts.values is its struct */
    int status;                 /* exit status; 0: the one that belongs to the returned code */
    char job[ZCTL_JOB_MAX + 1]; /* of zctl_job() */
    bool unread; /* the reader of the output has exited (`zctl ls | head`): no error message */
    struct zb_err err;
};

/* ---- run.c */

/** Finds a command by name; NULL: there is none. */
const struct zctl_cmd *zctl_command(const struct zctl *z, const char *name);
/** Fails with an unknown command: returns -EINVAL, with z->err, which suggests a similar one. */
int zctl_unknown(struct zctl *z, const char *name);

/** The library's name for a JOB: NAME, or UID/NAME for USER/NAME. NULL: z->err; another call
 * overwrites it. */
const char *zctl_job(struct zctl *z, const char *word);
/** The uid of a user, from its name or number. 0, or z->err. */
int zctl_uid(struct zctl *z, const char *word, uint32_t *ret);
/** The name of a user, or its number if it has none. */
struct zctl_user {
    char name[33];
};
struct zctl_user zctl_user(uint32_t uid);

/** A parsed JOB or JOB@SNAPSHOT; job is as of zctl_job(). */
struct zctl_saved {
    char job[ZCTL_JOB_MAX + 1];
    char snapshot[ZC_NAME_MAX + 1]; /* "": the newest commit */
};
/** Parses a word. 0, or z->err: it is neither. */
int zctl_saved(struct zctl *z, const char *word, struct zctl_saved *ret);

/** Connects to the daemon: 0, or z->err. Called once. */
int zctl_connect(struct zctl *z);
/** Records the library's message for a call that failed with rc, and returns rc; 0 stays 0. */
int zctl_failed(struct zctl *z, int rc);
/** The same for a request that older daemons do not know. */
int zctl_failed_new(struct zctl *z, int rc);

/* ---- ask.c */

/** Whether questions are asked: standard input is a terminal. */
bool zctl_asks(void);

/** Asks a question, to which y and yes are the answers that return 0. Others return -EINTR, with
 * z->err. Where standard input is not a terminal, it is not asked: 0. */
int zctl_ask(struct zctl *z, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- output.c */

/** Sets json and style from the options, and checks that cmd prints what they ask for: 0, or
 * -EINVAL with z->err. cmd NULL: unknown, not checked. */
struct zctl_output {
    const char *output; /* table, json, list, or keys of columns */
    bool json, bare, exact;
};
int zctl_output(struct zctl *z, const struct zctl_cmd *cmd, const struct zctl_output *o);

/* ---- print.c: rows of structs, as a table for people or JSON for programs */

enum zctl_type {
    ZCTL_TEXT,   /* char[] */
    ZCTL_U32,    /* uint32_t */
    ZCTL_U64,    /* uint64_t */
    ZCTL_SIZE,   /* uint64_t: bytes; in the table as "1.50 GiB" */
    ZCTL_TIME,   /* uint64_t: seconds since 1970; in the table as the local time, with its zone */
    ZCTL_BOOL,   /* bool: "yes" and "no" in the table */
    ZCTL_DOUBLE, /* double */
    ZCTL_USER,   /* uint32_t: a uid; in the table the name of the user */
    ZCTL_SHARE,  /* double: fraction of 1, in the table as "96%"; negative: unknown, "-" and null */
};

enum zctl_shown {
    ZCTL_SHOWN,
    ZCTL_JSON_ONLY,
};

/** A column: one member of the struct of a row. */
struct zctl_column {
    const char *key; /* in JSON; in upper case the table's heading */
    enum zctl_type type;
    size_t offset;
    enum zctl_shown shown;
    const char *heading; /* NULL: derived from the key */
    size_t width_max;    /* of a text in the table; 0: unlimited, if the line has room */
};

/** The column with a key of `len` bytes, in any case; NULL: there is none. */
const struct zctl_column *zctl_column(const struct zctl_column *columns, size_t ncolumns,
                                      const char *key, size_t len);

/** Call after the last write to `out`: 0, or -EIO with z->err. */
int zctl_written(struct zctl *z);

/** Prints the whole output of a command. 0, -ENOMEM, or -EIO: it cannot be written. */
int zctl_print(struct zctl *z, const struct zctl_column *columns, size_t ncolumns, const void *rows,
               size_t nrows, size_t row_bytes);
/** The same, followed by n messages: as lines for people, as an array under `key` for programs. */
int zctl_print_more(struct zctl *z, const struct zctl_column *columns, size_t ncolumns,
                    const void *rows, size_t nrows, size_t row_bytes, const char *key,
                    const struct zc_message *messages, size_t n);

/** Lines below a table, for people only, since the rows of the JSON have the same data. Write them
 * to `out` after zctl_below_open(); zctl_print_below() prints and frees them. */
struct zctl_below {
    FILE *out;
    char *text;
    size_t len;
};
int zctl_below_open(struct zctl *z, struct zctl_below *ret);
int zctl_print_below(struct zctl *z, const struct zctl_column *columns, size_t ncolumns,
                     const void *rows, size_t nrows, size_t row_bytes, struct zctl_below *below);

/** Parts of an output: a table (0 or -ENOMEM); one row as JSON (NULL: no memory). */
struct json_t;
int zctl_table(FILE *out, const struct zctl_column *columns, size_t ncolumns, const void *rows,
               size_t nrows, size_t row_bytes);
struct json_t *zctl_row_json(const struct zctl_column *columns, size_t ncolumns, const void *row);
/** Writes JSON with jansson's flags, and frees it: 0, or -ENOMEM (also for NULL). zctl_written()
 * reports a failed write. */
int zctl_dump(FILE *out, struct json_t *all, size_t flags);

/* ---- device.c */

/** A block device, as sysfs and SMART tell it. */
struct zctl_device {
    char name[24];          /* major:minor; "": unknown */
    bool known;             /* written_bytes */
    uint64_t written_bytes; /* by everybody, since the machine was started */
    double wear;            /* part of its life that is used, which may exceed 1; -1: unknown */
};
/** smart: asks the drive for its wear, which takes a command of the drive. */
void zctl_device_look(const char *device, bool smart, struct zctl_device *ret);
/** Bytes of the device over ours; -1: unknown. */
double zctl_device_over(bool known, uint64_t device_bytes, uint64_t our_bytes);

#endif
