/*
 * check_cuda.c - this build, its plugin, and the libraries that zshard loads for GPUs.
 */
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "client/zctl/doctor/check.h"

static bool built_with_cuda(const struct doctor_machine *m)
{
    return m->answers.build[0] != '\0' && strcmp(m->answers.build, "none") != 0;
}

void doctor_gpu_build(const struct doctor_machine *m, struct doctor_finding *f)
{
    if (!doctor_has_gpu(m, f))
        return;
    if (built_with_cuda(m))
        doctor_found(f, DOCTOR_OK, "CUDA %.60s", m->answers.build);
    else
        doctor_found(f, DOCTOR_FAILED,
                     "this zshard was built without CUDA (no nvcc): GPUs are not used");
}

void doctor_gpu_plugin(const struct doctor_machine *m, struct doctor_finding *f)
{
    const char *path = m->answers.plugin;

    if (!doctor_has_gpu(m, f))
        return;
    if (!built_with_cuda(m))
        doctor_found(f, DOCTOR_SKIPPED, "this zshard was built without CUDA");
    else if (*path == '\0')
        doctor_found(f, DOCTOR_SKIPPED, "it could not be tried");
    else
        doctor_found(f, *path == '!' ? DOCTOR_FAILED : DOCTOR_OK, "%.360s", path + (*path == '!'));
}

/** A library that is loaded at run time. One that a variable names, and that cannot be loaded, is a
 * fault. */
static void library_look(const char *answer, const char *variable, struct doctor_finding *f)
{
    const char *named = getenv(variable);

    if (*answer == '\0') {
        doctor_found(f, DOCTOR_SKIPPED, "it could not be tried");
    } else if (*answer != '!') {
        doctor_found(f, DOCTOR_OK, "%.360s", answer);
    } else if (named && *named) {
        doctor_found(f, DOCTOR_FAILED, "%s: %.300s", variable, answer + 1);
        doctor_fix(f, "Set %s to the path of the library, or unset it.", variable);
    } else {
        doctor_found(f, DOCTOR_ADVICE, "%.360s", answer + 1);
    }
}

void doctor_cublaslt(const struct doctor_machine *m, struct doctor_finding *f)
{
    if (doctor_has_gpu(m, f))
        library_look(m->answers.cublaslt, "ZSHARD_CUBLASLT", f);
}

void doctor_nccl(const struct doctor_machine *m, struct doctor_finding *f)
{
    const char *named = getenv("ZSHARD_NCCL_LIB");
    struct doctor_gpu second;

    if (!doctor_has_gpu(m, f))
        return;
    if ((!named || !*named) && !doctor_gpu(&m->answers, 1, &second))
        doctor_found(f, DOCTOR_SKIPPED, "no second GPU");
    else
        library_look(m->answers.nccl, "ZSHARD_NCCL_LIB", f);
}
