/*
 * files.h - what export and import share: the manifest of a job, and a set of safetensors files.
 *
 * FILES. One file "STEM.safetensors", or many, "STEM-00001-of-0000N.safetensors", with
 * "STEM.safetensors.index.json" as Hugging Face writes them. A unit's tensor NAME has beside it,
 * when the optimizer's state goes along, its moments in fp32, by the names that PyTorch gives them
 * (NAME.exp_avg and NAME.exp_avg_sq, NAME.momentum_buffer, NAME.sum), and NAME.master where NAME
 * itself is not fp32. "__metadata__" of the first file has what makes the job again (the keys
 * below).
 */
#ifndef ZCTL_MODEL_H
#define ZCTL_MODEL_H

#include "client/zc_safetensors.h"
#include "client/zctl/base/zctl.h"

/* Two pieces travel, two are for conversion: that is the memory, whatever the size of the job. */
#define ZCTL_PIECE_BYTES     (UINT64_C(4) << 20)

#define ZCTL_MASTER          ".master"

#define ZCTL_META_FORMAT     "zshard.format" /* "1" */
#define ZCTL_META_ITERATIONS "zshard.iterations"
#define ZCTL_META_APPLIED    "zshard.applied"
#define ZCTL_META_GROUPS     "zshard.groups"
#define ZCTL_META_OPTIMIZER  "zshard.optimizer" /* "adamw"; without it, that */
#define ZCTL_META_MOMENTS    "zshard.moments"   /* "fp32" likewise */
/* JSON: name, elems, dtype, grad_dtype, frozen, quantized (where it is), tensors */
#define ZCTL_META_UNITS "zshard.units"

/* ---- model.c: the manifest */

struct zctl_model {
    uint64_t iterations, applied;
    uint32_t groups, nunits;
    enum zc_optimizer optimizer;
    enum zc_moments moments;
    struct zc_unit **units; /* each one block of memory */
};

/** Of a reader that is open. 0, or z->err; either way zctl_model_done(). */
int zctl_model_read(struct zctl *z, const struct zc_reader *reader, struct zctl_model *ret);
/** The units as JSON, malloc'ed; NULL: no memory. */
char *zctl_model_text(const struct zctl_model *model);
/** The opposite. Tensors come without their dims. 0, or z->err; either way zctl_model_done(). */
int zctl_model_parse(struct zctl *z, const char *text, struct zctl_model *ret);
void zctl_model_done(struct zctl_model *model);
/** ".exp_avg": what goes behind a tensor's name for moment i, malloc'ed nowhere; NULL: the
 * optimizer has fewer. */
const char *zctl_moment_suffix(enum zc_optimizer optimizer, unsigned i);
/** The number of a tensor's elements: 0, or z->err: it overflows or is not inside its unit. */
int zctl_tensor_elems(struct zctl *z, const struct zc_unit *unit, const struct zc_tensor *t,
                      uint64_t *ret);

/* ---- files.c: a set of files that are read */

struct zctl_tensor {
    const struct zc_st_tensor *t;
    const struct zc_st_file *file;
    bool used; /* for who looks for superfluous ones */
};

struct zctl_files {
    struct zc_st_file **files;
    char **paths;
    size_t n;
    struct zctl_tensor *tensors; /* of all files, by name */
    size_t ntensors;
};

/** Opens files, folders (with an index, or model.safetensors) and indexes. Names are unique over
 * all of them, and as the index says. 0, or z->err; either way zctl_files_close(). */
int zctl_files_open(struct zctl *z, char **words, int n, struct zctl_files *ret);
void zctl_files_close(struct zctl_files *files);
struct zctl_tensor *zctl_files_find(const struct zctl_files *files, const char *name,
                                    const char *suffix);
/** A value of "__metadata__", of whichever file has it: NULL none; or z->err where two differ. */
int zctl_files_metadata(struct zctl *z, const struct zctl_files *files, const char *key,
                        const char **ret);
int zctl_files_metadata_number(struct zctl *z, const struct zctl_files *files, const char *key,
                               uint64_t max, uint64_t *ret);

/* ---- units.c: units by the names of tensors */

/** How many bytes of a tensor's name name its unit. */
size_t zctl_name_unit(const char *name);
/** Whether it is the name of optimizer state, as zctl exports it. */
bool zctl_name_is_state(const char *name);
/** The units of files that say none, as zctl_model_parse() takes them, malloc'ed. 0, or z->err. */
int zctl_units_by_name(struct zctl *z, const struct zctl_files *files, char **ret);

/* ---- place.c: where files are written */

struct zctl_place {
    char *folder, *stem;
    bool made;      /* the folder is ours */
    char **written; /* complete files of ours, removed by zctl_place_undo() */
    size_t nwritten;
};

/** "x.safetensors" is that file, anything else a folder for "model.safetensors". 0; -EEXIST files
 * of that stem are there; z->err. Either way zctl_place_done(). */
int zctl_place_open(struct zctl *z, const char *path, struct zctl_place *ret);
/** The path of file k of n, malloc'ed; NULL: no memory. n 0: of the index. */
char *zctl_place_path(const struct zctl_place *place, size_t k, size_t n);
/** One more is complete, and ours; takes path. 0 or -ENOMEM. */
int zctl_place_written(struct zctl *z, struct zctl_place *place, char *path);
/** Writes a whole file of text, durable and at once. */
int zctl_place_text(struct zctl *z, const char *path, const char *text);
/** Removes all that was written. */
void zctl_place_undo(struct zctl_place *place);
void zctl_place_done(struct zctl_place *place);

/* ---- piece.c: pieces in flight, and a signal that asks to end */

#define ZCTL_SLOTS 2u

/** A piece in memory shared with the daemon: while one travels, the other is worked on. */
struct zctl_slot {
    void *staged;
    bool busy; /* the daemon's */
    int rc;
};

/** The `done` of a call that has the slot; arg is the slot. */
void zctl_slot_done(void *arg, int rc);
/** Waits until it is not busy: how its call ended, with z->err. -ETIMEDOUT, and -EINTR when a
 *  signal came: then it may still be busy. */
int zctl_slot_wait(struct zctl *z, struct zctl_slot *s);
/** From here on SIGHUP, SIGINT and SIGTERM are noticed between two pieces, so that what is half
 * done is taken back in the ordinary way. */
void zctl_stop_catch(void);
void zctl_stop_leave(void);

#endif
