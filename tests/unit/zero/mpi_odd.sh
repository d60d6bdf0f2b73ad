#!/bin/sh
# mpi_odd.sh MPIEXEC FLAG TEST - one rank of an MPI run makes other calls than the rest. Every rank
# must be told (test_mpi.c) before MPI ends the program.
set -u
failed=0

# odd RANKS CALL STAGE
odd() {
    dir=$(mktemp -d)
    out=$(timeout 60 "$exec" "$flag" "$1" "$test" odd "$2" "$3" "$dir" 2>&1)
    rm -rf "$dir"
    if [ "$(printf '%s\n' "$out" | grep -c '^told: ')" -ne "$1" ] ||
       printf '%s\n' "$out" | grep -q 'MPI_ERR\|MPI_ABORT\|free()'; then
        printf '%s ranks, call %s, stage %s:\n%s\n' "$1" "$2" "$3" "$out"
        failed=1
    fi
}

exec=$1 flag=$2 test=$3
for call in 1 2 3 4 5 7 8; do
    odd 2 $call 3
done
for stage in 1 2 3; do
    odd 3 1 $stage
    odd 3 3 $stage
done
odd 3 2 0
exit $failed
