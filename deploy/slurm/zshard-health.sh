#!/bin/sh
# zshard-health.sh - for HealthCheckProgram in slurm.conf: drains a node whose zshardd is degraded or does not answer, with
# the first reason. It resumes no node: look first. slurmd runs it as root.
set -u
PATH=${ZSHARD_BIN:+$ZSHARD_BIN:}$PATH

status=$(zctl --wait "${ZSHARD_WAIT:-10}" status 2>&1) && exit 0
node=${SLURMD_NODENAME:-$(hostname -s)}
reason=$(printf '%s\n' "$status" | sed -n '1s/[^[:print:]]//gp' | cut -c 1-120)
scontrol update nodename="$node" state=drain reason="zshard: ${reason:-no daemon}"
