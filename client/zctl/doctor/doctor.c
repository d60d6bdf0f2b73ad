/*
 * doctor.c - zctl doctor: what is wrong with this machine, and what to do about it.
 *
 * A table with one line for each check that applies, and below it what to do; or one object with
 * `checks`, each with name, ok, fix, level and found, for programs. Exit status 1: a check failed.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "client/zctl/doctor/check.h"
#include "client/zctl/doctor/doctor.h"

#define ROWS_MAX    64u
#define EXIT_FAILED 1
#define FIX_INDENT  4u

struct doctor_options {
    const char *config, *data;
    struct zb_opt_words skip;
};

struct row {
    char name[24], result[8], found[400];
};

static const char *const results[] = {
    [DOCTOR_OK] = "ok",
    [DOCTOR_SKIPPED] = "skipped",
    [DOCTOR_ADVICE] = "advice",
    [DOCTOR_FAILED] = "FAILED",
};
static const char *const levels[] = {
    [DOCTOR_OK] = "ok",
    [DOCTOR_SKIPPED] = "skipped",
    [DOCTOR_ADVICE] = "advice",
    [DOCTOR_FAILED] = "failed",
};

/** The findings of the checks that were not left out. */
struct report {
    const struct doctor_check *checks[ROWS_MAX];
    struct doctor_finding findings[ROWS_MAX];
    size_t n, count[ZB_COUNT(levels)]; /* by level */
};

/* ---- the checks */

static bool is_listed(const struct zb_opt_words *words, const char *name)
{
    for (size_t i = 0; i < words->n; i++)
        if (strcmp(words->at[i], name) == 0)
            return true;
    return false;
}

/** Every word of --skip must be a check. */
static int skip_check(struct zctl *z, const struct zb_opt_words *skip)
{
    size_t n, k;
    const struct doctor_check *checks = doctor_checks(&n);

    for (size_t i = 0; i < skip->n; i++) {
        for (k = 0; k < n && strcmp(checks[k].name, skip->at[i]) != 0; k++)
            ;
        if (k == n)
            return zb_fail(&z->err, -EINVAL, "--skip '%s': unknown check; try: zctl doctor -o json",
                           skip->at[i]);
    }
    return 0;
}

static void report_make(struct report *r, const struct doctor_machine *m,
                        const struct zb_opt_words *skip)
{
    size_t n;
    const struct doctor_check *checks = doctor_checks(&n);

    for (size_t i = 0; i < n && r->n < ROWS_MAX; i++) {
        if (is_listed(skip, checks[i].name))
            continue;
        r->checks[r->n] = &checks[i];
        r->findings[r->n] = doctor_run(&checks[i], m);
        r->count[r->findings[r->n].level]++;
        r->n++;
    }
}

/* ---- for programs */

static json_t *report_json(const struct report *r)
{
    json_t *all = json_array();

    for (size_t i = 0; i < r->n; i++) {
        const struct doctor_finding *f = &r->findings[i];

        if (json_array_append_new(all,
                                  json_pack("{s:s, s:b, s:s, s:s, s:s}", "name", r->checks[i]->name,
                                            "ok", f->level != DOCTOR_FAILED, "fix", f->fix, "level",
                                            levels[f->level], "found", f->found)) < 0) {
            json_decref(all);
            return NULL;
        }
    }
    return json_pack("{s:i, s:b, s:i, s:i, s:o}", "schema", ZCTL_SCHEMA, "ok",
                     r->count[DOCTOR_FAILED] == 0, "failed", (int)r->count[DOCTOR_FAILED], "advice",
                     (int)r->count[DOCTOR_ADVICE], "checks", all);
}

/* ---- for people */

/** What to do about the findings of one level. */
static void print_fixes(FILE *out, const struct report *r, enum doctor_level level)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->findings[i].level == level) {
            (void)fprintf(out, "\n%s (%s)\n%*s", r->checks[i]->name, levels[level], (int)FIX_INDENT,
                          "");
            zb_opt_wrap(out, r->findings[i].fix, FIX_INDENT);
        }
}

/** The checks that do not apply, in lines. */
static void print_skipped(FILE *out, const struct report *r)
{
    char names[ROWS_MAX * 24] = "";

    for (size_t i = 0; i < r->n; i++) {
        size_t len = strlen(names);

        if (r->findings[i].level == DOCTOR_SKIPPED)
            (void)snprintf(names + len, sizeof(names) - len, "%s%s", len > 0 ? ", " : "",
                           r->checks[i]->name);
    }
    if (names[0] == '\0')
        return;
    (void)fputs("\nDo not apply here, or could not be tried (-o json has the reasons):\n    ", out);
    zb_opt_wrap(out, names, FIX_INDENT);
}

static const struct zctl_column columns[] = {
    { "check", ZCTL_TEXT, offsetof(struct row, name), ZCTL_SHOWN, NULL, 0 },
    { "result", ZCTL_TEXT, offsetof(struct row, result), ZCTL_SHOWN, NULL, 0 },
    { "found", ZCTL_TEXT, offsetof(struct row, found), ZCTL_SHOWN, NULL, 0 },
};

static int report_print(struct zctl *z, const struct report *r, const struct doctor_machine *m)
{
    struct row *rows = calloc(r->n + 1, sizeof(*rows));
    struct zctl_below below;
    size_t n = 0;
    int rc = rows ? zctl_below_open(z, &below) : zb_fail(&z->err, -ENOMEM, "the output: %m");

    for (size_t i = 0; rc == 0 && i < r->n; i++) {
        if (r->findings[i].level == DOCTOR_SKIPPED)
            continue;
        (void)snprintf(rows[n].name, sizeof(rows[n].name), "%s", r->checks[i]->name);
        (void)snprintf(rows[n].result, sizeof(rows[n].result), "%s", results[r->findings[i].level]);
        memcpy(rows[n++].found, r->findings[i].found, sizeof(rows->found));
    }
    if (rc == 0) {
        print_fixes(below.out, r, DOCTOR_FAILED);
        print_fixes(below.out, r, DOCTOR_ADVICE);
        print_skipped(below.out, r);
        if (m->answers.late[0] != '\0')
            (void)fprintf(below.out, "\nDid not end in time: %s\n", m->answers.late);
        (void)fprintf(below.out, "\n%zu failed, %zu advice, %zu ok\n", r->count[DOCTOR_FAILED],
                      r->count[DOCTOR_ADVICE], r->count[DOCTOR_OK]);
        rc = zctl_print_below(z, columns, ZB_COUNT(columns), rows, n, sizeof(*rows), &below);
    }
    free(rows);
    return rc;
}

/* ---- the command */

static int doctor(struct zctl *z, int argc, char **argv)
{
    const struct doctor_options *o = z->opts.values;
    const struct doctor_given given = { o->config, o->data, z->socket };
    const char *root = getenv("ZSHARD_DOCTOR_ROOT");
    struct doctor_machine *m = calloc(1, sizeof(*m));
    struct report *r = calloc(1, sizeof(*r));
    int rc = m && r ? skip_check(z, &o->skip) : zb_fail(&z->err, -ENOMEM, "doctor: %m");

    (void)argc;
    (void)argv;
    if (rc == 0) {
        doctor_look(m, root ? root : "", &given);
        report_make(r, m, &o->skip);
        z->status = r->count[DOCTOR_FAILED] > 0 ? EXIT_FAILED : 0;
        rc = z->json ? zctl_dump(z->out, report_json(r), JSON_INDENT(2)) : report_print(z, r, m);
    }
    if (rc == 0 && z->json)
        rc = zctl_written(z);
    else if (rc < 0 && z->err.code == 0)
        rc = zb_fail(&z->err, rc, "the output: %m");
    free(o->skip.at);
    free(m);
    free(r);
    return rc;
}

#define AT(member) ZB_OPT_AT(struct doctor_options, member)

static const struct zb_opt doctor_options[] = {
    { "config", ZB_OPT_TEXT, AT(config), .arg = "FILE",
      .absent = "that of the installed service, if there is one",
      .help = "configuration of the daemon" },
    { "data", ZB_OPT_TEXT, AT(data), .arg = "DIR", .absent = "that of the configuration",
      .help = "data directory to look at" },
    { "skip", ZB_OPT_WORDS, AT(skip), .arg = "CHECK",
      .help = "leave out a check; may be repeated" },
    { 0 },
};

const struct zctl_cmd zctl_doctor = {
    .name = "doctor",
    .args = "",
    .help = "find what is wrong with this machine, and how to fix it; needs no daemon",
    .argc_min = 0,
    .argc_max = 0,
    .run = doctor,
    .options = doctor_options,
    .bytes = sizeof(struct doctor_options),
    ZCTL_COLUMNS(columns),
};
