/* op_reader.c - reading what is saved. */
#include <errno.h>

#include "daemon/core_priv.h"
#include "proto/shard.pb-c.h"

void zsd_reader_open(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    zsd_refuse(req, -ENOSYS, "this daemon cannot do that yet");
}

void zsd_reader_unit(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    zsd_refuse(req, -ENOSYS, "this daemon cannot do that yet");
}

void zsd_reader_read(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    zsd_refuse(req, -ENOSYS, "this daemon cannot do that yet");
}

void zsd_reader_close(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    zsd_refuse(req, -ENOSYS, "this daemon cannot do that yet");
}
