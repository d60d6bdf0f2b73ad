#!/usr/bin/env python3
"""test_readme.py - the run by hand of README.md, line by line but for the build, with fewer steps: it ends well, as root
too, it reaches NVMe, and something is left to look at."""
import json
import os
import re
import subprocess
import sys
import tempfile

from harness import BUILD, check, program

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BEFORE = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"  # if a line fails, the daemon ends, too
AFTER = """
build/bin/zctl --json jobs >jobs
kill %1
wait %1
"""


def main():
    text = open(os.path.join(ROOT, "README.md"), encoding="utf-8").read()
    by_hand = text[text.index("The same by hand."):text.index("Delete the job")]
    build, *blocks = re.findall(r"```sh\n(.*?)```", by_hand, re.S)
    check(build.startswith("cmake"), f"the first block is not the build: {build}")
    rest = "".join(blocks)
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(BUILD, os.path.join(folder, "build"))
        script = BEFORE + rest.replace("/tmp/", folder + "/").replace("--steps 100", "--steps 2") + AFTER
        script = script.replace("build/bin/zshardd ", "sleep 5 && exec build/bin/zshardd ", 1)  # not waiting fails
        check("--steps 2 " in script and "sleep 5" in script and program("zctl"), script)
        env = {k: v for k, v in os.environ.items() if k not in ("ZSHARD_SOCKET", "OMPI_ALLOW_RUN_AS_ROOT")}
        done = subprocess.run(["bash", "-e", "-c", script], cwd=folder, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=500, check=False,
                              env=env | {"OMPI_MCA_rmaps_base_oversubscribe": "1"})
        check(done.returncode == 0, f"{done.returncode}: {done.stdout}")
        job, = json.load(open(os.path.join(folder, "jobs"), encoding="utf-8"))["rows"]
        check(job["keep"] and job["committed_iterations"] == 2 and job["state"] == "idle", f"{job}")
        check(job["nvme_read_bytes"] > 1 << 20 and job["nvme_written_bytes"] > 1 << 20, f"no step used NVMe: {job}")
    return 0


sys.exit(main())
