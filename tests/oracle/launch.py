"""launch.py - runs zgpt, alone or with mpirun. It needs no PyTorch."""

import os
import subprocess
import sys
import tempfile

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
# Writes a rank's exit status to the folder. A rank that did not fail ends a second later: see run().
STATUS = '"$@"; s=$?; echo $s > "$0/$OMPI_COMM_WORLD_RANK"; [ $s -ne 0 ] || sleep 1; exit $s'
TRIES = 3


def run_once(command, ranks, **more):
    """The exit status, the output and, with mpirun, {rank: exit status} of the ranks that ended by themselves."""
    with tempfile.TemporaryDirectory(prefix="zshard-ranks-") as folder:
        if ranks > 1:
            command = [*MPIRUN, "-n", str(ranks), "sh", "-c", STATUS, folder, *command]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
        ended = {}
        for rank in os.listdir(folder):
            with open(os.path.join(folder, rank), encoding="utf-8") as f:
                ended[int(rank)] = f.read().strip()
    return done.returncode, done.stdout, ended


def run(command, ranks=1, timeout=1500, **more):
    """Runs zgpt with `ranks` ranks; `more` is for subprocess.run(). Does not return if it fails.

    Open MPI 4.1's mpirun can see a rank's end before the message that the rank has left MPI, and then ends a run in
    which no rank failed: that is not what is tested. So ranks end late, and such a run is repeated. A rank that really
    leaves without MPI_Finalize() fails each time."""
    for last in [False] * (TRIES - 1) + [True]:
        status, output, ended = run_once(command, ranks, timeout=timeout, **more)
        if status == 0:
            return
        print(" ".join(command), output, f"ranks that ended by themselves, with their status: {ended}", sep="\n")
        if last or "exiting improperly" not in output or set(ended.values()) != {"0"}:
            sys.exit(f"zgpt with {ranks} ranks ended with {status}")
