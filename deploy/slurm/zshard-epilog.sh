#!/bin/sh
# zshard-epilog.sh - for Epilog in slurm.conf: ends what a Slurm job left in zshardd. slurmd runs it as root, which must be
# an administrator of zshardd (root_is_admin = yes, the default).
#
# A trainer that is killed ends its job in the daemon. What can be left are jobs that were to be kept, hold memory, and have
# saved nothing. They are destroyed. A job with a commit or a snapshot is never destroyed: it can be resumed, and its memory
# is given to others that need it.
#
# Only jobs of the user whose Slurm job ends are looked at, and none while another Slurm job of that user runs on this node:
# its job in the daemon may be between two programs.
#
# It always exits with 0, since a failed epilog drains the node. What it did, and what failed, goes to the system log.
set -u
PATH=${ZSHARD_BIN:+$ZSHARD_BIN:}$PATH

uid=${SLURM_JOB_UID:-}
job=${SLURM_JOB_ID:-}
node=${SLURMD_NODENAME:-$(hostname -s)}

say() { logger -t zshard-epilog -- "Slurm job $job: $*" 2>/dev/null || echo "zshard-epilog: Slurm job $job: $*" >&2; }

# Names and numbers only: they become arguments.
case "$uid" in '' | *[!0-9]*) say "SLURM_JOB_UID is '$uid', not a number"; exit 0 ;; esac
user=$(id -nu "$uid" 2>/dev/null) || user=$uid

if ! others=$(squeue --noheader --format=%A --user="$uid" --nodelist="$node" --states=RUNNING,SUSPENDED,STOPPED); then
    say "squeue failed: nothing is destroyed"
    exit 0
fi
if printf '%s\n' "$others" | grep -qvx -e "$job" -e ''; then
    exit 0
fi

if ! jobs=$(zctl --wait "${ZSHARD_WAIT:-10}" jobs -H -o name,uid,attached,keep 2>&1); then
    say "zctl jobs: $jobs"
    exit 0
fi

# Names of jobs have no spaces.
printf '%s\n' "$jobs" | awk -v uid="$uid" '$2 == uid && $3 == 0 && $4 == "yes" { print $1 }' |
    while read -r name; do
        if why=$(zctl destroy "$user/$name" 2>&1); then
            say "destroyed job '$name' of $user, which had saved nothing"
        elif [ $? -ne 8 ]; then # 8: it has a commit or a snapshot
            say "zctl destroy $user/$name: $why"
        fi
    done
exit 0
