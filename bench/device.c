#include "bench/device.h"

#include <string.h>

int zbench_device_open(struct zbench *z, const char *name, struct zk_gpu **ret,
                       struct zk_gpu_stream **ret_stream)
{
    int rc = zk_gpu_open(name, 0, ret, &z->err);

    if (rc < 0)
        return rc;
    if (strcmp(zk_gpu_info(*ret)->backend, "emulated") == 0)
        zbench_note(z, "the device is EMULATED: these figures say nothing about a GPU");
    zbench_note(z, "%s", zk_gpu_info(*ret)->name);
    return zk_gpu_stream_new(*ret, ret_stream, &z->err);
}
