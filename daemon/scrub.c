/* scrub.c - reads every page in the background. */
#include <errno.h>

#include "daemon/core_priv.h"
#include "proto/shard.pb-c.h"

void zsd_scrub(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    zsd_refuse(req, -ENOSYS, "this daemon cannot do that yet");
}
