/*
 * zctl.h - what the rooms of zctl share: a command, a run of one, and tables.
 *
 * MODEL. One command in one process: its row is found, its options are read into its struct, its
 * function runs. What it has to say goes to `out`; a failure is a code and a message in `err`, which
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

#define ZCTL_SCHEMA 2 /* of the JSON output: grows when a key changes its meaning or goes away */
/* Exit statuses besides the library's. */
#define ZCTL_EXIT_NO_FIT 7 /* a plan that does not fit */
#define ZCTL_EXIT_KEEPS  8 /* destroy, without --force, of a job that has commits or snapshots */

struct zctl;

/** One command. run() returns 0 or a negative errno with z->err set. */
struct zctl_cmd {
    const char *name, *args, *help;
    int argc_min, argc_max;                            /* words after the name */
    int (*run)(struct zctl *z, int argc, char **argv); /* these words */
    const struct zb_opt *options;                      /* NULL: none */
    size_t bytes;                                      /* of the struct that they are of */
};

/** One run. */
struct zctl {
    const struct zctl_cmd *const *cmds; /* all commands, sorted by name */
    size_t ncmds;
    const char *socket; /* NULL: the library's rule */
    bool json;
    FILE *out;
    struct zc_client *client; /* NULL until zctl_connect() */
    struct zb_opts opts; /* of the command: opts.values is its struct, zeros but for defaults */
    int status;          /* the exit status, where a code does not say it; 0: it does */
    bool unread; /* whoever read the output has ended (`zctl ls | head`): no error message */
    struct zb_err err;
};

/* ---- run.c */

/** NULL: there is none of that name. */
const struct zctl_cmd *zctl_command(const struct zctl *z, const char *name);

/** JOB or JOB@SNAPSHOT, taken apart. */
struct zctl_saved {
    char job[ZC_NAME_MAX + 1];
    char snapshot[ZC_NAME_MAX + 1]; /* "": the newest commit */
};
/** 0, or z->err: it is neither. */
int zctl_saved(struct zctl *z, const char *word, struct zctl_saved *ret);

/** Connects to the daemon: 0, or z->err. Once. */
int zctl_connect(struct zctl *z);
/** Records the library's message for a call that failed with rc, and returns rc; 0 stays 0. */
int zctl_failed(struct zctl *z, int rc);

/* ---- print.c: rows of structs, as a table for people or JSON for programs */

enum zctl_type {
    ZCTL_TEXT,   /* char[] */
    ZCTL_U32,    /* uint32_t */
    ZCTL_U64,    /* uint64_t */
    ZCTL_SIZE,   /* uint64_t: bytes; in the table as "1.50 GiB" */
    ZCTL_TIME,   /* uint64_t: seconds since 1970; in the table as the local time, with its zone */
    ZCTL_BOOL,   /* bool: "yes" and "no" in the table */
    ZCTL_DOUBLE, /* double */
    ZCTL_SHARE,  /* double: a part of 1, in the table as "96%"; negative: unknown, "-" and null */
};

enum zctl_shown {
    ZCTL_SHOWN,
    ZCTL_JSON_ONLY,
};

/** One member of the struct that is a row. */
struct zctl_column {
    const char *key; /* in JSON; in upper case the table's heading */
    enum zctl_type type;
    size_t offset;
    enum zctl_shown shown;
    const char *heading; /* NULL: made of the key */
    size_t width_max;    /* of a text, in the table; 0: as wide as it is, if the line has room */
};

/** Call after the last write to `out`: 0, or -EIO with z->err. */
int zctl_written(struct zctl *z);

/** The whole output of a command. 0, -ENOMEM, or -EIO where it cannot be written. */
int zctl_print(struct zctl *z, const struct zctl_column *columns, size_t ncolumns, const void *rows,
               size_t nrows, size_t row_bytes);
/** The same, and after the rows n messages: lines for people, an array of that key for programs. */
int zctl_print_more(struct zctl *z, const struct zctl_column *columns, size_t ncolumns,
                    const void *rows, size_t nrows, size_t row_bytes, const char *key,
                    const struct zc_sentence *sentences, size_t n);

/** Lines below a table that are for people only, since the JSON has it all in the rows: opened, written
 * to `out`, and printed and freed by zctl_print_below(). */
struct zctl_below {
    FILE *out;
    char *text;
    size_t len;
};
int zctl_below_open(struct zctl *z, struct zctl_below *ret);
int zctl_print_below(struct zctl *z, const struct zctl_column *columns, size_t ncolumns,
                     const void *rows, size_t nrows, size_t row_bytes, struct zctl_below *below);

/** Parts of an output: a table (0 or -ENOMEM); one row as JSON, or NULL: no memory. */
struct json_t;
int zctl_table(FILE *out, const struct zctl_column *columns, size_t ncolumns, const void *rows,
               size_t nrows, size_t row_bytes);
struct json_t *zctl_row_json(const struct zctl_column *columns, size_t ncolumns, const void *row);
/** Writes a line or lines of JSON, with jansson's flags, and frees it: 0, or -ENOMEM (also for NULL). A write
 * that fails is zctl_written()'s. */
int zctl_dump(FILE *out, struct json_t *all, size_t flags);

#endif
