/*
 * zctl.h - what the files of zctl share: the rows of commands, the run, and tables.
 *
 * MODEL. One command in one process: options are read, the row is found, its options are compared
 * with those that were given, its function runs. What it
 * has to say goes to `out`; a failure is a code and a sentence in `err`, which main() prints and
 * turns into the exit status. Nothing below main() prints to standard error or exits.
 */
#ifndef ZCTL_H
#define ZCTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/err.h"
#include "client/zclient.h"

#define ZCTL_SCHEMA      1 /* of the JSON output: grows when a key changes its meaning or goes away */
#define ZCTL_OPTIONS_MAX 64 /* of all commands, and given to one */
#define ZCTL_EXIT_NO_FIT \
    7 /* the exit status of a plan that does not fit; others as the library's */

/** An option of a command, always long. */
struct zctl_option {
    const char *name;
    const char *value; /* what it is called in help; NULL: it has none */
    const char *help;
};

struct zctl {
    const char *socket; /* NULL: the library's rule */
    bool json;
    FILE *out;
    struct zc_client *client; /* NULL until zctl_connect() */
    struct {
        const char *name, *value; /* value "" of an option that has none */
    } given[ZCTL_OPTIONS_MAX];
    size_t ngiven;
    int status; /* the exit status, where a code does not say it; 0: it does */
    struct zb_err err;
};

/** One command. argc and argv are the words behind its name. run() returns 0 or a negative errno
 *  with z->err set. */
struct zctl_cmd {
    const char *name, *args, *help;
    int argc_min, argc_max; /* words after the name */
    int (*run)(struct zctl *z, int argc, char **argv);
    const struct zctl_option *options; /* up to one without a name; NULL: none */
};

/* ---- main.c */

/** The rows, sorted by name. */
const struct zctl_cmd *zctl_commands(size_t *ret_count);
/** NULL: there is none of that name. */
const struct zctl_cmd *zctl_command(const char *name);
/** The whole program but for the process: the exit status. */
int zctl_main(int argc, char **argv, FILE *out, FILE *err);

/* ---- commands, by name */

typedef int zctl_run_fn(struct zctl *z, int argc, char **argv);
zctl_run_fn zctl_clone, zctl_completion, zctl_config, zctl_destroy, zctl_df, zctl_export, zctl_fsck,
    zctl_help, zctl_import, zctl_jobs, zctl_ls, zctl_ping, zctl_plan, zctl_rollback, zctl_scrub,
    zctl_share, zctl_snapshot, zctl_snapshots, zctl_stat, zctl_tier, zctl_tiers, zctl_top,
    zctl_version;

/** The value of an option that was given, or NULL. */
const char *zctl_option(const struct zctl *z, const char *name);
/** A whole number from 0 to max; *ret is unchanged when the option was not given. 0, or z->err. */
int zctl_option_number(struct zctl *z, const char *name, uint64_t max, uint64_t *ret);
/** Likewise a size ("64M"). */
int zctl_option_size(struct zctl *z, const char *name, uint64_t *ret);

/** JOB or JOB@SNAPSHOT, taken apart. */
struct zctl_saved {
    char job[ZC_NAME_MAX + 1];
    char snapshot[ZC_NAME_MAX + 1]; /* "": the newest commit */
};
/** 0, or z->err: it is neither. */
int zctl_saved(struct zctl *z, const char *word, struct zctl_saved *ret);

/** Connects to the daemon: 0, or z->err. Once. */
int zctl_connect(struct zctl *z);
/** Records the library's sentence for a call that failed with rc, and returns rc; 0 stays 0. */
int zctl_failed(struct zctl *z, int rc);
void zctl_print_help(FILE *out);

/* ---- print.c: rows of structs, as a table for people or JSON for programs */

enum zctl_type {
    ZCTL_TEXT,   /* char[] */
    ZCTL_U32,    /* uint32_t */
    ZCTL_U64,    /* uint64_t */
    ZCTL_SIZE,   /* uint64_t: bytes; in the table as "1.50 GiB" */
    ZCTL_KIB,    /* uint64_t: bytes; in the table as KiB, so that columns add up */
    ZCTL_TIME,   /* uint64_t: seconds since 1970; in the table as the local time, with its zone */
    ZCTL_BOOL,   /* bool: "yes" and "no" in the table */
    ZCTL_DOUBLE, /* double */
    ZCTL_SHARE,  /* double: a part of 1, in the table as "96%"; negative: unknown, "-" and null */
};

enum zctl_shown {
    ZCTL_SHOWN,
    ZCTL_WHEN_SET, /* in the table only when some row has something there */
    ZCTL_JSON_ONLY,
};

/** One member of the struct that is a row. */
struct zctl_column {
    const char *key; /* in JSON; in upper case the table's heading */
    enum zctl_type type;
    size_t offset;
    enum zctl_shown shown;
};

/** The whole output of a command. 0, -ENOMEM, or -EIO where it cannot be written. */
int zctl_print(struct zctl *z, const struct zctl_column *columns, size_t ncolumns, const void *rows,
               size_t nrows, size_t row_bytes);
/** The same, and behind the rows n sentences: lines for people, an array of that key for programs.
 */
int zctl_print_more(struct zctl *z, const struct zctl_column *columns, size_t ncolumns,
                    const void *rows, size_t nrows, size_t row_bytes, const char *key,
                    const struct zc_sentence *sentences, size_t n);

/** Parts of an output: a table (0 or -ENOMEM); one row as JSON, or NULL: no memory. */
struct json_t;
int zctl_table(FILE *out, const struct zctl_column *columns, size_t ncolumns, const void *rows,
               size_t nrows, size_t row_bytes);
struct json_t *zctl_row_json(const struct zctl_column *columns, size_t ncolumns, const void *row);

#endif
