#!/bin/sh
# zshard-prolog.sh - for Prolog in slurm.conf: a job starts on a node only if zshardd answers there. slurmd runs it as root.
# A failed prolog drains the node and requeues the job.
#
#   ZSHARD_WAIT   seconds to wait for a daemon that is starting; default: 60
set -u
PATH=${ZSHARD_BIN:+$ZSHARD_BIN:}$PATH

if ! why=$(zctl --wait "${ZSHARD_WAIT:-60}" ping 2>&1); then
    echo "zshard: $why" >&2
    exit 1
fi
