/* fsck.c - every counter, computed again; and df. */
#include <errno.h>

#include "daemon/core_priv.h"
#include "proto/shard.pb-c.h"

void zsd_fsck(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    zsd_refuse(req, -ENOSYS, "this daemon cannot do that yet");
}

void zsd_df(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    zsd_refuse(req, -ENOSYS, "this daemon cannot do that yet");
}
