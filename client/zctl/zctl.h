/*
 * zctl.h - what the files of zctl share: the rows of commands, the run, and tables.
 *
 * MODEL. One command in one process: options are read, the row is found, its function runs. What it
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

#define ZCTL_SCHEMA 1 /* of the JSON output: grows when a key changes its meaning or goes away */

struct zctl {
    const char *socket; /* NULL: the library's rule */
    bool json;
    FILE *out;
    struct zc_client *client; /* NULL until zctl_connect() */
    struct zb_err err;
};

/** One command. argc and argv are the words behind its name. run() returns 0 or a negative errno
 *  with z->err set. */
struct zctl_cmd {
    const char *name, *args, *help;
    int argc_min, argc_max; /* words after the name */
    int (*run)(struct zctl *z, int argc, char **argv);
};

/* ---- main.c */

/** The rows, sorted by name. */
const struct zctl_cmd *zctl_commands(size_t *ret_count);
/** NULL: there is none of that name. */
const struct zctl_cmd *zctl_command(const char *name);
/** The whole program but for the process: the exit status. */
int zctl_main(int argc, char **argv, FILE *out, FILE *err);

/* ---- cmd_*.c */

typedef int zctl_run_fn(struct zctl *z, int argc, char **argv);
zctl_run_fn zctl_completion, zctl_destroy, zctl_help, zctl_jobs, zctl_ls, zctl_ping, zctl_stat,
    zctl_tiers, zctl_version;

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
    ZCTL_BOOL,   /* bool: "yes" and "no" in the table */
    ZCTL_DOUBLE, /* double */
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

#endif
