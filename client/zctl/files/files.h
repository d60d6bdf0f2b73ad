/*
 * files.h - shared by export and import: the manifest of a job, and a set of safetensors files.
 *
 * FILES. One file "STEM.safetensors", or many, "STEM-00001-of-0000N.safetensors", with
 * "STEM.safetensors.index.json" as Hugging Face writes them. With the optimizer's state, each
 * tensor NAME of a unit has its moments in fp32 as well, under PyTorch's names (NAME.exp_avg and
 * NAME.exp_avg_sq, NAME.momentum_buffer, NAME.sum), and NAME.master if NAME itself is not fp32.
 * "__metadata__" of the first file has the data to recreate the job (the keys below).
 */
#ifndef ZCTL_MODEL_H
#define ZCTL_MODEL_H

#include "client/zc_safetensors.h"
#include "client/zctl/base/zctl.h"

/* Memory use: two pieces in flight and two for conversion, whatever the size of the job. */
#define ZCTL_PIECE_BYTES     (UINT64_C(4) << 20)

#define ZCTL_MASTER          ".master"

#define ZCTL_META_FORMAT     "zshard.format" /* "1" */
#define ZCTL_META_ITERATIONS "zshard.iterations"
#define ZCTL_META_APPLIED    "zshard.applied"
#define ZCTL_META_GROUPS     "zshard.groups"
#define ZCTL_META_OPTIMIZER  "zshard.optimizer" /* the default is "adamw" */
#define ZCTL_META_MOMENTS    "zshard.moments"   /* the default is "fp32" */
/* JSON: name, elems, dtype, grad_dtype, frozen, quantized (only if true), tensors */
#define ZCTL_META_UNITS "zshard.units"

/* ---- model.c: the manifest */

struct zctl_model {
    uint64_t iterations, applied;
    uint32_t groups, nunits;
    enum zc_optimizer optimizer;
    enum zc_moments moments;
    struct zc_unit **units; /* each in one allocation */
};

/** Reads the manifest from an open reader. 0, or z->err; call zctl_model_done() in either case. */
int zctl_model_read(struct zctl *z, const struct zc_reader *reader, struct zctl_model *ret);
/** The units as JSON, malloc'ed; NULL: no memory. */
char *zctl_model_text(const struct zctl_model *model);
/** Parses such a text; tensors get no dims. 0, or z->err; call zctl_model_done() in either case. */
int zctl_model_parse(struct zctl *z, const char *text, struct zctl_model *ret);
void zctl_model_done(struct zctl_model *model);
/** The suffix of a tensor's name for its moment i (".exp_avg"), a constant; NULL: it has fewer. With Muon that
 * depends on the tensor. */
const char *zctl_moment_suffix(enum zc_optimizer optimizer, const struct zc_unit *unit,
                               const struct zc_tensor *t, unsigned i);
/** Computes the number of a tensor's elements. 0, or z->err: it overflows, or exceeds the unit. */
int zctl_tensor_elems(struct zctl *z, const struct zc_unit *unit, const struct zc_tensor *t,
                      uint64_t *ret);

/* ---- files.c: reads a set of files */

struct zctl_tensor {
    const struct zc_st_tensor *t;
    const struct zc_st_file *file;
    bool used; /* set by import, to find superfluous tensors */
};

struct zctl_files {
    struct zc_st_file **files;
    char **paths;
    size_t n;
    struct zctl_tensor *tensors; /* of all files, by name */
    size_t ntensors;
};

/** Opens files, folders (with an index, or model.safetensors) and indexes. Checks that names of
 * tensors are unique over all of them, and match the index. 0, or z->err; call zctl_files_close()
 * in either case. */
int zctl_files_open(struct zctl *z, char **words, int n, struct zctl_files *ret);
void zctl_files_close(struct zctl_files *files);
struct zctl_tensor *zctl_files_find(const struct zctl_files *files, const char *name,
                                    const char *suffix);
/** Finds a value of "__metadata__" in whichever file has it; NULL: none has. z->err: two differ. */
int zctl_files_metadata(struct zctl *z, const struct zctl_files *files, const char *key,
                        const char **ret);
int zctl_files_metadata_number(struct zctl *z, const struct zctl_files *files, const char *key,
                               uint64_t max, uint64_t *ret);

/* ---- units.c: units by the names of tensors */

/** Length of the part of a tensor's name that names its unit. */
size_t zctl_name_unit(const char *name);
/** Whether it is a name under which zctl exports optimizer state. */
bool zctl_name_is_state(const char *name);
/** Derives units for files without a manifest, as text for zctl_model_parse(), malloc'ed. 0, or
 *  z->err. */
int zctl_units_by_name(struct zctl *z, const struct zctl_files *files, char **ret);

/* ---- place.c: where files are written */

struct zctl_place {
    char *folder, *stem;
    bool made;      /* we made the folder */
    char **written; /* our complete files, removed by zctl_place_undo() */
    size_t nwritten;
};

/** "x.safetensors" is that file, anything else a folder for "model.safetensors". 0; -EEXIST files
 * of that stem exist; or z->err. Call zctl_place_done() in either case. */
int zctl_place_open(struct zctl *z, const char *path, struct zctl_place *ret);
/** The path of file k of n (n 0: of the index), malloc'ed; NULL: no memory. */
char *zctl_place_path(const struct zctl_place *place, size_t k, size_t n);
/** Records a complete file, for zctl_place_undo(); takes path. 0 or -ENOMEM. */
int zctl_place_written(struct zctl *z, struct zctl_place *place, char *path);
/** Writes a text file atomically and durably. */
int zctl_place_text(struct zctl *z, const char *path, const char *text);
/** Removes everything that was written. */
void zctl_place_undo(struct zctl_place *place);
void zctl_place_done(struct zctl_place *place);

/* ---- piece.c: pieces in flight, and termination signals */

#define ZCTL_SLOTS 2u

/** A piece of shared memory: while one is being transferred, the other is processed. */
struct zctl_slot {
    void *staged;
    bool busy; /* in use by the daemon */
    int rc;
};

/** The `done` of a call that uses the slot; arg is the slot. */
void zctl_slot_done(void *arg, int rc);
/** Waits until the slot is not busy. Returns how its call ended, with z->err; or -ETIMEDOUT or, on
 *  a signal, -EINTR: then it may still be busy. */
int zctl_slot_wait(struct zctl *z, struct zctl_slot *s);
/** Catches SIGHUP, SIGINT and SIGTERM. They are noticed between two pieces, so that partial work is
 * undone in the ordinary way. */
void zctl_stop_catch(void);
void zctl_stop_leave(void);

#endif
