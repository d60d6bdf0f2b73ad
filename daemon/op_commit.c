/* op_commit.c - commits of a job. */
#include <errno.h>

#include "daemon/core_priv.h"
#include "proto/shard.pb-c.h"

void zsd_commit(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    zsd_refuse(req, -ENOSYS, "this daemon cannot do that yet");
}

void zsd_progress(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    zsd_refuse(req, -ENOSYS, "this daemon cannot do that yet");
}
