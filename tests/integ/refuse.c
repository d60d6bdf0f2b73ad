#include "tests/integ/refuse.h"

#include <string.h>

const char *const rf_small[] = { "--host-bytes", "8M", "--nvme-bytes", "16M", "--page-elems",
                                 "4096",         NULL };

void rf_says(const char *name, int rc, int want, const char *text, const char *part)
{
    if (rc != want || (want < 0 && !strstr(text, part)) || strchr(text, '\n'))
        fail_msg("%s: got %d, '%s'; wanted %d and '%s'", name, rc, text, want, part);
}

void rf_refused(const char *name, struct zi_raw *r, unsigned method,
                const ProtobufCMessage *message, int want, const char *part)
{
    rf_says(name, zi_raw_call(r, method, message), want, r->text, part);
}

const Zp__JobOpen rf_open = {
    PROTOBUF_C_MESSAGE_INIT(&zp__job_open__descriptor),
    .name = (char[]){ "job" },
    .world = 1,
    .staging_bytes = RF_STAGING,
    .offload_param = 2,
    .offload_optimizer = 2,
    .groups = 1,
    .optimizer = 1,
};

static Zp__Tensor good_tensor = { PROTOBUF_C_MESSAGE_INIT(&zp__tensor__descriptor),
                                  .name = (char[]){ "t" }, .n_dims = 1,
                                  .dims = (uint64_t[]){ 100 } };

const Zp__UnitDefine rf_unit = {
    PROTOBUF_C_MESSAGE_INIT(&zp__unit_define__descriptor),
    .n_tensors = 1,
    .tensors = (Zp__Tensor *[]){ &good_tensor },
    .name = (char[]){ "a" },
    .elems = 3 * RF_PAGE - 100,
    .dtype = ZC_F32,
    .grad_dtype = ZC_F32,
    .last = true,
};
