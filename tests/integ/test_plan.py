#!/usr/bin/env python3
"""test_plan.py - zctl plan against what runs really take.

    ZSHARD_BUILD=build tests/integ/test_plan.py [NAME...]

Each run trains for some steps with zgpt on a daemon of its own; what was planned before it began is
compared with the daemon's accounts (to the byte), its memory and its I/O (within 1 %).
"""

import json
import os
import signal
import subprocess
import tempfile

from harness import (SANITIZED, DEADLINE, LONG, Daemon, Failure, check, main, mpi_env, program, ranks_command,
                     wait_until)

STEPS = 6 if LONG else 4  # the first one has neither the prefetch of the later ones, nor cached shards
PAGES = ["--page-elems", "65536"]
MODELS = {  # layers, width
    "small": (4, 128),
    "middle": (6, 224),
    "large": (9, 320),
}
SIZES = list(MODELS)[:3 if LONG else 2]
MODELS["matrices"] = (2, 256)  # those of a layer are whole pages
NVME = "1G"
# A daemon's own memory for any job: lists of pages, operations, and what its threads' malloc keeps of
# them, which depends on the order of work (364 KiB were seen, with all gradients on NVMe).
OWN = 512 << 10


def plan(d, *words, status=0):
    done = subprocess.run([program("zctl"), "-o", "json", "plan", *words], env=d.env() if d else None,
                          text=True, capture_output=True, timeout=60, check=False)
    check(done.returncode == status, f"zctl plan {words} ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def process_bytes(pid):
    """Private memory, and memfds, of a process."""
    anon = 0
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        for line in f:
            if line.startswith("RssAnon:"):
                anon = int(line.split()[1]) << 10
    memfd = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        try:
            if os.readlink(path).startswith("/memfd:"):
                st = os.stat(path)
                memfd[st.st_ino] = st.st_blocks * 512
        except FileNotFoundError:
            pass
    return anon + sum(memfd.values())


def process_io(pid):
    with open(f"/proc/{pid}/io", encoding="utf-8") as f:
        counters = dict(line.split(": ") for line in f.read().splitlines())
    return int(counters["read_bytes"]), int(counters["write_bytes"])


def zgpt(model, *flags):
    layers, width = MODELS[model]
    return [program("zgpt"), "--seed", "5", "--micro-batch", "1", "--seq", "16", "--layers",
            str(layers), "--heads", "2", "--width", str(width), "--lr", "1e-3", "--data", "LICENSE",
            *flags]


def plan_words(model, offload):
    layers, width = MODELS[model]
    return ["--layers", str(layers), "--width", str(width), "--vocab", "256", "--seq", "16",
            "--offload-param", offload, "--offload-optimizer", offload]


class Training:
    """zgpt on a daemon, as long as it takes to look at it."""

    def __init__(self, d, model, flags, ranks=1, micros=1, launch=ranks_command):
        self.d = d
        self.folder = tempfile.TemporaryDirectory()
        self.jsonl = os.path.join(self.folder.name, "jsonl")
        command = zgpt(model, "--steps", "100000", "--batch", str(ranks * micros), "--jsonl", self.jsonl, *flags)
        self.log = open(os.path.join(self.folder.name, "log"), "w+", encoding="utf-8")
        self.process = subprocess.Popen(launch(ranks, command), stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=self.log, env=d.env() | mpi_env())

    def steps(self):
        try:
            with open(self.jsonl, encoding="utf-8") as f:
                return [json.loads(line) for line in f.read().split("\n")[:-1]]
        except FileNotFoundError:
            return []

    def wait(self, n):
        def there():
            if self.process.poll() is not None:
                self.log.seek(0)
                check(False, f"zgpt ended with {self.process.returncode}:\n{self.log.read()}")
            return len(self.steps()) >= n
        wait_until(f"{n} steps", there, DEADLINE)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(DEADLINE)
        self.log.close()
        self.folder.cleanup()


def near(what, got, want, share=0.01, slack=0):
    check(abs(got - want) <= share * want + slack, f"{what}: planned {want}, and it was {got}")


def agrees(model, host, offload, flags=(), ranks=1, micros=1, mode="zero3", drives=("--nvme-bytes", NVME)):
    """One run: the plan made before it against what it took. Returns the plan."""
    with Daemon("--host-bytes", str(host), *drives, *PAGES) as d:
        words = ["--ranks", str(ranks), "--micro-steps", str(micros), "--mode", mode]
        name = f"{model}, {offload}, {host} bytes of host memory, {ranks} ranks, {' '.join(flags)}"

        def begin():
            return Training(d, model, ["--offload", offload, *flags], ranks, micros)
        return held(d, name, [*plan_words(model, offload), *words], begin, flags)


def held(d, name, words, begin, flags, seen=lambda: None):
    """The plan of `words` against the Training that begin() gives; d is the daemon of its first ranks.
    seen(): what else is to be looked at while it trains. Returns the plan."""
    durable = "--keep" in flags
    words += ["--optimizer", "muon", "--moments", flags[flags.index("muon") + 2]] if "muon" in flags else []
    words += ["--durable", "--commit-every", flags[-1]] if durable else []
    # whether steps may begin early is up to the trainer, and not visible from outside
    plans = [plan(d, *words), plan(d, *words, "--early")]
    if "--grad-ring" in flags:
        clips = ["--clip-mode", "tensor"] if "tensor" in flags else []
        plans = [plan(d, *words, "--early", "--grad-ring", *clips)]
    check(plans[0]["node"]["drive_read"] > 0, f"{name}: the daemon measures its drive")
    idle = process_bytes(d.process.pid)
    with begin() as t:
        t.wait(STEPS)
        job = d.zctl("jobs")[0]
        tiers = {row["name"]: row for row in d.zctl("tiers")}
        memory = process_bytes(d.process.pid) - idle
        seen()
        t.wait(len(t.steps()) + STEPS)
        end = t.steps()
    p = next((p for p in plans if all(p["tiers"][t]["used"] == tiers[t]["used"] for t in tiers)), plans[0])
    check(p["fits"], f"{name}: {p['why']}")
    host_want, nvme_want, step = p["tiers"]["host"], p["tiers"]["nvme"], p["step"]
    check(job["params"] == p["model"]["params"], f"{name}: {job['params']} parameters, {p['model']}")
    rows = {
        "host parameters": (tiers["host"]["params"], host_want["params"]),
        "host gradients": (tiers["host"]["grads"], host_want["grads"]),
        "host state": (tiers["host"]["state"], host_want["state"]),
        "host staging": (tiers["host"]["staging"], host_want["staging"]),
        "host rings": (tiers["host"]["rings"], host_want["ring"] + host_want["buffers"] + host_want["matrices"]),
        "host": (tiers["host"]["used"], host_want["used"]),
        "nvme parameters": (tiers["nvme"]["params"], nvme_want["params"]),
        "nvme gradients": (tiers["nvme"]["grads"], nvme_want["grads"]),
        "nvme gradients of the job": (job["grads_nvme_bytes"], nvme_want["grads"]),
        "nvme state": (tiers["nvme"]["state"], nvme_want["state"]),
        "gradients of the job that are not held": (job["grads_ringed"], host_want["grads_ringed"]),
        "nvme": (tiers["nvme"]["used"], nvme_want["used"]),
    }
    states = end[-1]["state_bytes"]
    for plane, key in (("param", "params"), ("grad", "grads"), ("optimizer", "state")):
        rows[f"a rank's own {key}"] = (states[plane], p["rank"]["own"][key])
        if key != "state" or not {"8bit", "8bit-lo"} & set(flags): # the engine does not know where pages of 8 bits end
            rows[f"a rank's {key} with the daemon"] = (states["daemon_" + plane], p["rank"]["kept"][key])
    for what, (got, want) in rows.items():
        check(got == want, f"{name}: {what}: planned {want}, and it is {got}")
    if not SANITIZED:
        untouched = 0 if step["nvme_read_bytes"] > 0 else host_want["buffers"]
        some = host_want["matrices"] if untouched else 0 # page buffers among them are touched only if pages are streamed
        near(f"{name}: memory of the daemon", memory, host_want["used"] - untouched, slack=OWN + some)
    if durable:  # over a number of steps with the planned number of commits
        every = int(flags[-1])
        whole = end[-1]["step"] // every * every
        steps = [s for s in end if whole - every < s["step"] <= whole]
    else:
        steps = end[1:]
    for what in ("read", "written"):
        got = sum(s[f"nvme_{what}_bytes"] for s in steps) / len(steps)
        near(f"{name}: NVMe bytes {what} a step", got, step[f"nvme_{what}_bytes"])
    return p


def modes():
    """Two ranks in every mode that has something with the daemon, and what DDP has of its own."""
    for mode, stage in (("zero1", "1"), ("zero2", "2"), ("zero3", "3"), ("fsdp", "3")):
        agrees("small", 1 << 30, "host", ["--dtype", "bf16", "--stage", stage], ranks=2, mode=mode)
    with Daemon("--host-bytes", "64M", *PAGES) as d:
        p = plan(d, *plan_words("small", "host"), "--ranks", "2", "--mode", "ddp")
        ddp_is(p, Training(d, "small", ["--dtype", "bf16", "--stage", "0"], 2))


def own_is(name, p, training):
    """A rank's own states, without a daemon."""
    with training as t:
        t.wait(1)
        states = t.steps()[0]["state_bytes"]
    got = [states[plane] for plane in ("param", "grad", "optimizer")]
    want = [p["rank"]["own"][key] for key in ("params", "grads", "state")]
    check(got == want, f"{name}: planned {want}, and it is {got}")


def nothing_offloaded():
    """Two ranks that keep all states themselves, in every mode and dtype."""
    with Daemon("--host-bytes", "64M", *PAGES) as d:
        for stage, mode, dtype in ((0, "ddp", "bf16"), (1, "zero1", "bf16"), (1, "zero1", "fp32"), (2, "zero2", "bf16"),
                                   (3, "zero3", "bf16")):
            words = [*plan_words("small", "host")[:-2], "--offload-optimizer", "none", "--dtype", dtype]
            p = plan(None, *words, "--ranks", "2", "--mode", mode)
            check(sum(p["rank"]["kept"].values()) == 0 and p["tiers"]["host"]["used"] == 0, f"{p}")
            flags = ["--dtype", dtype, "--stage", str(stage), "--offload", "none"]
            own_is(f"{mode}, {dtype}, nothing offloaded", p, Training(d, "small", flags, 2))


def ddp_is(p, training):
    own_is("ddp", p, training)
    check(p["tiers"]["host"]["used"] == p["tiers"]["host"]["buffers"], f"ddp has {p['tiers']} of a daemon")


def least(model, offload, key="least_grads", more=()):
    p = plan(None, *plan_words(model, offload), *more, "--page-elems", "65536", "--nvme-bytes", NVME,
             "--host-bytes", "1M", status=7)
    return p["tiers"]["host"][key]


def host_tier():
    for model in SIZES:
        agrees(model, 1 << 30, "host", ["--dtype", "bf16"])


def nvme_tier():
    for model in SIZES:
        agrees(model, least(model, "nvme"), "nvme", ["--dtype", "bf16"])


def partly_resident():
    for model in ("small", "middle"):
        low = least(model, "nvme")
        p = agrees(model, low + (low // 3), "nvme", ["--dtype", "bf16"])
        check(0 < p["tiers"]["host"]["state"] or 0 < p["tiers"]["host"]["params"], f"{p}")
        check(p["step"]["nvme_read_bytes"] > 0, f"{p}")


def ring():
    """Gradients of streamed pages are not held. With resident parameters, more state is in memory; and a budget that
    would put gradients on NVMe holds none of them there."""
    flags = ["--dtype", "bf16", "--clip", "0", "--grad-ring"]
    held = plan(None, *plan_words("small", "nvme"), "--page-elems", "65536", "--nvme-bytes", NVME, "--host-bytes", "1G")
    whole = held["tiers"]["host"]
    host = (whole["params"] + whole["staging"] + whole["grads"] + whole["state"] // 3) * 17 // 15
    p = agrees("small", host, "nvme", flags)
    plain = plan(None, *plan_words("small", "nvme"), "--page-elems", "65536", "--nvme-bytes", NVME, "--host-bytes",
                 str(host), "--early")
    check(p["tiers"]["host"]["grads_ringed"] > 0 and p["tiers"]["host"]["aside"] > 0, f"{p}")
    check(p["step"]["nvme_read_bytes"] < plain["step"]["nvme_read_bytes"], f"{p}, {plain}")
    p = agrees("small", least("small", "nvme", "least"), "nvme", flags)
    check(p["tiers"]["nvme"]["grads"] == 0 and p["tiers"]["host"]["grads"] == 0, f"{p}")
    # Clipped by tensor: memory for two units, and places for the gradients of a warm-up.
    flags = ["--dtype", "bf16", "--clip", "1", "--clip-mode", "tensor", "--clip-warmup", "0", "--grad-ring"]
    p = agrees("small", host + (1 << 20), "nvme", flags)
    room, ringed = p["tiers"]["host"]["room"], p["tiers"]["host"]["grads_ringed"]
    check(0 < room and 0 < ringed == p["tiers"]["nvme"]["grads"], f"{p}")
    two_nodes_ring(flags)


def two_nodes_ring(flags):
    """Clipped by tensor over two nodes: each holds a part of each unit, until the sums of the other came. In the least
    memory, and with a part of the state in memory."""
    words = [*plan_words("middle", "nvme"), "--ranks", "4", "--nodes", "2", "--early", "--grad-ring", "--clip-mode", "tensor"]
    least_host = plan(None, *words, *PAGES, "--nvme-bytes", NVME, "--host-bytes", "1M", status=7)["tiers"]["host"]["least"]
    for host in (least_host, least_host + (8 << 20)):
        with Daemon("--host-bytes", str(host), "--nvme-bytes", NVME, *PAGES) as a, \
                Daemon("--host-bytes", str(host), "--nvme-bytes", NVME, *PAGES) as b:
            p = held(a, f"two nodes, {host} bytes of host memory", words[:-4],
                     lambda: Training(a, "middle", ["--offload", "nvme", *flags, "--socket", f"{a.socket},{b.socket}"], 4), flags)
        host_want = p["tiers"]["host"]
        check(host_want["room"] > 0 and (host_want["state"] == 0) == (host == least_host), f"{p}")


def muon():
    """In memory, over two ranks; streamed, with page buffers of its own: what crosses the drive for an element of a matrix,
    and for all others."""
    model = "matrices"
    flags = ["--dtype", "bf16", "--optimizer", "muon", "--moments"]
    agrees("small", 1 << 30, "nvme", [*flags, "fp32"], ranks=2)
    layers, width = MODELS[model]
    for moments, matrix, other in (("fp32", 12, 20), ("bf16", 8, 12), ("8bit", 6.125, 8.125),
                                   ("8bit-lo", 4.125, 6.125)): # pages end at 4 KiB
        p = agrees(model, least(model, "nvme", more=[*flags[2:], moments]), "nvme", [*flags, moments])
        check(p["tiers"]["host"]["matrices"] > 0 and p["tiers"]["host"]["state"] == 0, f"{p}")
        matrices, params = layers * 12 * width**2, p["model"]["params"]
        near(f"bytes of state that a step moves, momentum in {moments}", 2 * p["tiers"]["nvme"]["state"],
             matrix * matrices + other * (params - matrices),
             0.015 if moments == "8bit-lo" else 0.01) # the last page of a unit has more zeros


def engine():
    """What a GPU needs to orthogonalize, instead of scratch memory of the host; and without room for it nothing fits."""
    words = ["--layers", "2", "--width", "256", "--vocab", "256", "--seq", "16", "--optimizer", "muon", "--host-bytes", "1G",
             "--nvme-bytes", "1G", "--page-elems", "65536"]
    cpu = plan(None, *words)["tiers"]
    elems, square = 4 * 256 * 256, 256 * 256
    for name, more in (("gpu", 0), ("gpu-bf16", 2 * (elems + square))):
        there = [*words, "--muon-engine", name, "--gpu-tier-bytes"]
        p = plan(None, *there, "64M")["tiers"]
        check(p["gpu"]["matrices"] == 8 * (elems + square) + elems // 4096 * 16 + (32 << 20) + more, f"{p}")
        check(cpu["gpu"]["matrices"] == 0 and p["host"]["matrices"] < cpu["host"]["matrices"], f"{p}, {cpu}")
        p = plan(None, *there, "32M", status=7)
        check("of a GPU tier to be orthogonalized" in p["why"], f"{p}")
    plan(None, *words, "--muon-engine", "gpu", status=7)


def two_ranks():
    agrees("middle", 1 << 30, "nvme", ["--dtype", "bf16"], ranks=2)


# Layers of 96 blocks: each of 8 ranks has 12.
MODELS["eight"] = (2, 180)


def eight_ranks():
    """Eight ranks on a node: all is resident, and all state is streamed. --gpus 8 means the same."""
    agrees("eight", 1 << 30, "host", ["--dtype", "bf16"], ranks=8)
    model, node = plan_words("eight", "nvme"), ["--page-elems", "65536", "--nvme-bytes", NVME]
    p = plan(None, *model, *node, "--ranks", "8", "--host-bytes", "1M", status=7)
    least_grads = p["tiers"]["host"]["least_grads"]
    p = agrees("eight", least_grads, "nvme", ["--dtype", "bf16"], ranks=8)
    check(p["tiers"]["host"]["state"] == 0 and p["step"]["nvme_read_bytes"] > 0, f"{p}")
    same = plan(None, *model, *node, "--gpus", "8", "--host-bytes", str(least_grads))
    for key in ("rank", "step"):
        for name, value in same[key].items():
            check(value == p[key][name] or name.endswith("seconds") or name == "bound",
                  f"--gpus 8: {name} is {value}, and with --ranks 8 {p[key][name]}")
    check(same["ranks"] == 8 and same["tiers"]["host"] == p["tiers"]["host"], f"{same['tiers']}, {p['tiers']}")


def four_drives():
    """Eight ranks that stream from four data files, which are as small as the plan allows."""
    words = [*plan_words("eight", "nvme"), "--gpus", "8", "--page-elems", "65536", "--drives", "4", "--nvme-bytes",
             "64M"]
    host = plan(None, *words, "--host-bytes", "1M", status=7)["tiers"]["host"]["least_grads"]
    p = plan(None, *words, "--host-bytes", str(host))
    size = p["tiers"]["nvme"]["least"]
    check(4 * (size - 65536) >= p["tiers"]["nvme"]["used"] > 3 * (size - 65536), f"{p['tiers']}")
    with tempfile.TemporaryDirectory() as folder:
        paths = ":".join(os.path.join(folder, str(n)) for n in range(3))
        real = agrees("eight", host, "nvme", ["--dtype", "bf16"], ranks=8,
                      drives=("--nvme-bytes", str(size), "--paths", paths))
    got, want = real["tiers"]["nvme"], p["tiers"]["nvme"]
    check(all(got[key] == want[key] for key in ("used", "state", "params", "spare")), f"{got}, {want}")
    check(got["budget"] == 4 * (size - 65536), f"{got}")


def state_on_gpus(device, row_names, ranks, budget):
    """State that moves to emulated GPUs, each rank's to its own: after some steps, what each has is what was
    planned for it. What the daemon itself needs on a device is used before."""
    with Daemon("--host-bytes", "1G", "--nvme-bytes", NVME, "--gpu", device, "--gpu-bytes", budget, *PAGES) as d:
        p = plan(d, *plan_words("eight", "nvme"), "--ranks", str(ranks))
        with Training(d, "eight", ["--offload", "nvme", "--dtype", "bf16"], ranks) as t:
            t.wait(STEPS)
            tiers = {row["name"]: row for row in d.zctl("tiers")}
    names = [name for name in tiers if name.startswith("gpu")]
    check(names == row_names, f"{device}: tiers {names}")
    for name in names:
        got, want = tiers[name]["state"], p["tiers"][name]["used"]  # both in the device's units of memory
        check(got == want, f"{device}, {budget} each, {ranks} ranks, {name}: planned {want} bytes, and it is {got}")
    check(sum(p["tiers"][name]["state"] for name in names) == p["tiers"]["gpu"]["state"], f"{p['tiers']}")
    return [tiers[name]["state"] for name in names]


def one_gpu():
    """All state of eight ranks on it, and none where it has no room for the first run."""
    check(state_on_gpus("emulated:64M", ["gpu"], 8, "32M") != [0], "state is there")
    check(state_on_gpus("emulated:64M", ["gpu"], 8, "4M") == [0], "a run of all state needs more")


def eight_gpus():
    """Each rank's state is on its own GPU; of four ranks, on every second one."""
    names = [f"gpu{n}" for n in range(8)]
    check(0 not in state_on_gpus("emulated*8:64M", names, 8, "32M"), "each has the state of its rank")
    half = state_on_gpus("emulated*8:64M", names, 4, "32M")
    check([n > 0 for n in half] == [True, False] * 4, f"{half}")


def gpu_list(n):
    return "emulated:64M" if n == 1 else f"emulated*{n}:64M"


def first_row(rows):
    """What does not hold, of rows {what: (measured, planned)}."""
    return next((f"{what}: planned {want}, and it is {got}" for what, (got, want) in rows.items() if got != want), None)


def gpu_rows(d, p):
    """Each tier of a node whose job has settled, against the plan."""
    tiers, want = {row["name"]: row for row in d.zctl("tiers")}, p["tiers"]
    host, nvme = want["host"], want["nvme"]
    rows = {
        "host parameters": (tiers["host"]["params"], host["params"]),
        "host gradients": (tiers["host"]["grads"], host["grads"]),
        "host state": (tiers["host"]["state"], host["later"]["state"]),
        "host": (tiers["host"]["used"], host["later"]["used"]),
        "nvme parameters": (tiers["nvme"]["params"], nvme["params"]),
        "nvme state": (tiers["nvme"]["state"], nvme["later"]["state"]),
        "nvme": (tiers["nvme"]["used"], nvme["later"]["used"]),
    }
    for name, row in tiers.items():
        if name.startswith("gpu"):
            rows[f"{name} parameters"] = (row["params"], want[name]["params_used"])
            rows[f"{name} state"] = (row["state"], want[name]["state_used"])
            rows[name] = (row["used"], want[name]["used"] + row["rings"])  # the daemon's own
    return rows


WATCHED = 8


def drifts(steps, of, planned, first, one):
    """Whether a count of every step is not the planned one. The next step's gather of the first unit, of `first` bytes,
    may be counted before a step ends or after it. So the sums of n steps are n times the plan, or as much more or less;
    `one`: of one rank, whose gather is counted whole."""
    sums = [0]
    for step in steps:
        sums.append(sums[-1] + of(step) - planned)
    return not set(sums) <= {min(sums), min(sums) + first} if one else max(sums) - min(sums) > first


def links(steps, p, way, ranks, gpus, first_blocks):
    """What rank 0, and all ranks, count in each step against the plan of one way of gathers. Returns what differs."""
    want, block = p["links"][way], 8192  # bytes of a block in bf16
    mine = want["gpus"][0] if gpus == ranks else {key: want[key] // ranks for key in want["gpus"][0]}
    slices = -(-first_blocks // ranks) * ranks
    counts = {
        "to a GPU": (lambda s: s["gather_up_bytes"], mine["up_bytes"],
                     (first_blocks if way == "host" else slices) * block),
        "sent": (lambda s: s["comm_bytes"]["gather"], mine["sent_bytes"], slices * (ranks - 1) // ranks * block),
        "read in the daemon": (lambda s: s["fetched_bytes"], want["fetched_bytes"],
                               first_blocks * block * (ranks if way == "host" else 1)),
    }
    if gpus == ranks or want["down_bytes"] == 0:  # ranks of one GPU may have slices of different sizes
        counts["from a GPU"] = (lambda s: s["gather_down_bytes"], mine["down_bytes"], slices // ranks * block)
    return [f"{way}: {what}: planned {planned}, and it is {[of(s) for s in steps]}"
            for what, (of, planned, first) in counts.items()
            if drifts(steps, of, planned, first, what != "read in the daemon")]


def on_gpus(ranks, gpus, budgets, way="comm", offload="nvme", micros=1, mode="zero3", param="gpu",
            model="eight", durable=False):
    """Ranks that compute on emulated GPUs: the plan against each tier, each link, and what a rank keeps. Returns the
    plan and the last step."""
    name = f"{mode}, {ranks} ranks, {gpus} GPUs of {budgets}, {way}, state in {offload}"
    with Daemon("--host-bytes", "1G", "--nvme-bytes", NVME, "--gpu", gpu_list(gpus), "--gpu-bytes", budgets, *PAGES) as d:
        words = [*plan_words(model, offload)[:-4], "--offload-param", param, "--offload-optimizer", offload, "--device",
                 "gpu", "--ranks", str(ranks), "--comm", "host", "--node-gather", way, "--micro-steps", str(micros), "--mode", mode]
        words += ["--durable", "--commit-every", "5"] if durable else []
        plans, same = [plan(d, *words), plan(d, *words, "--early")], []
        flags = ["--offload", offload, *(["--offload-param", param] if mode == "zero3" else []), "--dtype", "bf16",
                 "--device", gpu_list(gpus), "--node-gather", way, "--stage", mode[-1], *(["--keep", "--commit-every", "5"] if durable else [])]
        with Training(d, model, flags, ranks, micros) as t:
            t.wait(STEPS)

            def settled():
                same.extend(p for p in plans if not first_row(gpu_rows(d, p)))
                return same
            try:
                wait_until("state to settle", settled, 5)
            except Failure:
                check(False, f"{name}: {first_row(gpu_rows(d, plans[0]))}")
            t.wait(STEPS + WATCHED)
            steps = t.steps()[STEPS:]
    p = same[0]
    step, rows = steps[-1], {}
    states, wrong = step["state_bytes"], links(steps, p, p["links"]["node_gather"], ranks, gpus,
                                              -(-(256 + 16) * MODELS[model][1] // 4096))
    for plane, key in (("param", "params"), ("grad", "grads"), ("optimizer", "state")):
        rows[f"a rank's own {key}"] = (states[plane], p["rank"]["own"][key])
        rows[f"a rank's {key} with the daemon"] = (states["daemon_" + plane], p["rank"]["kept"][key])
    check(not wrong and not first_row(rows), f"{name}: {wrong} {first_row(rows)}")
    return p, step


def gpu_of(p, key):
    return [gpu[key] for name, gpu in p["tiers"].items() if name.startswith("gpu") and name != "gpu"]


def params_on_gpus():
    """Parameters on each rank's GPU. Everything fits; state in host memory; lists of sizes; too little for the
    parameters of one rank."""
    p, _ = on_gpus(4, 4, "28M")
    check(all(gpu_of(p, "params")) and all(gpu_of(p, "state")) and p["tiers"]["host"]["later"]["state"] == 0, f"{p}")
    p, _ = on_gpus(2, 2, "6M", offload="host", micros=2)  # as much as the daemon's own memory, and parameters
    check(all(gpu_of(p, "params")) and not any(gpu_of(p, "state")) and p["tiers"]["host"]["state"] > 0, f"{p}")
    p, _ = on_gpus(8, 4, "10M,4M,5M,24M")
    check([n > 0 for n in gpu_of(p, "state")] == [True, False, False, True], f"{gpu_of(p, 'state')}")
    p, _ = on_gpus(2, 2, "16M,3M")
    check(not any(gpu_of(p, "params")) and "gpu1" in p["tiers"]["gpu"]["why"], f"{p['tiers']}")
    check(p["tiers"]["host"]["params"] > 0, f"{p['tiers']}")


def params_on_one_gpu():
    """Ranks on one GPU read each other's parameters there: nothing crosses a link. Or they gather in host memory."""
    for way in ("comm", "auto"):
        p, step = on_gpus(2, 1, "24M", way=way)
        check(p["links"][p["links"]["node_gather"]]["params_on_gpu"], f"{p['links']}")
        check((step["gather_up_bytes"] == 0) == (way == "auto"), f"{way}: {step}")


def a_part_on_gpus():
    """A durable job: a part of one rank's state fits on its GPU, and none of the other's. (Each GPU has one rank, so the
    order in which ranks register their shards does not matter.)"""
    MODELS["two runs"] = (7, 288)  # of state on each of two GPUs: one may have at most 32 MiB
    p, _ = on_gpus(2, 2, "45M,40M", model="two runs", durable=True)
    check(0 < gpu_of(p, "state")[0] < p["rank"]["kept"]["state"] and gpu_of(p, "state")[1] == 0, f"{p['tiers']}")


def gathers():
    """Bytes on each link by node_gather. With R ranks of P bytes of parameters, reading them in host memory moves P
    into each GPU and R P in all; an all-gather through host memory (2 R - 1) P."""
    for ranks, micros, mode, way in ((8, 1, "zero3", "host"), (4, 2, "zero2", "comm"), (2, 3, "zero3", "host")):
        p, _ = on_gpus(ranks, ranks, "28M", way=way, micros=micros, mode=mode, param="host")
        check(p["links"]["node_gather"] == way and not p["links"][way]["params_on_gpu"], f"{p['links']}")
        host, comm = p["links"]["host"], p["links"]["comm"]
        check(host["memory_bytes"] == host["up_bytes"] == ranks * host["gpus"][0]["up_bytes"], f"{host}")
        check(comm["memory_bytes"] == comm["up_bytes"] + comm["sent_bytes"], f"{comm}")
    # over NCCL, and slices of equal sizes
    p = plan(None, "--params", str(4096 * 8 * 32), "--gpus", "8", "--device", "gpu", "--host-bytes", "1G")
    host, comm = p["links"]["host"], p["links"]["comm"]
    whole = host["gpus"][0]["up_bytes"]
    check(host["memory_bytes"] == 8 * whole and comm["memory_bytes"] == 15 * whole and comm["up_bytes"] == whole,
          f"{p['links']}")


def durable():
    agrees("middle", 1 << 30, "nvme", ["--dtype", "bf16", "--keep", "--commit-every", "5"])


def spilled_gradients():
    """Some gradients on NVMe, and all; one micro-step, and three."""
    for model, micros in (("small", 1), ("small", 3), ("middle", 2))[0 if LONG else 1:]:
        low, grads = least(model, "nvme", "least"), least(model, "nvme")
        for host in (low, low + (grads - low) // 2, grads - 4096):
            p = agrees(model, host, "nvme", ["--dtype", "bf16"], micros=micros)
            spilled, tiers = p["tiers"]["nvme"]["grads"], p["tiers"]
            check(spilled > 0 and p["step"]["push_written_bytes"] == micros * spilled, f"{p}")
            check((tiers["host"]["grads"] == 0) == (host == low), f"{p}")


def least_is_least():
    """What the plan calls the least is admitted, and a page less is refused by both."""
    host = least("small", "nvme", "least")
    agrees("small", host, "nvme", ["--dtype", "bf16"])
    with Daemon("--host-bytes", str(host - 4096), "--nvme-bytes", NVME, *PAGES) as d:
        p = plan(d, *plan_words("small", "nvme"), status=7)
        check(not p["fits"] and str(host) in p["why"], f"{p}")
        done = subprocess.run(zgpt("small", "--steps", "1", "--batch", "1", "--dtype", "bf16",
                                   "--offload", "nvme"), env=d.env() | mpi_env(), text=True,
                              capture_output=True, timeout=DEADLINE, check=False)
        check(done.returncode == 4 and f"smallest host_bytes that would work is {host}" in done.stderr,
              f"{done}")


def kernel_counts():
    """Bytes of a step as the kernel counts them for the daemon: two runs, and what the longer one has
    more. The start of both is the same."""
    for model in SIZES:
        with Daemon("--host-bytes", str(least(model, "nvme")), "--nvme-bytes", NVME, *PAGES) as d:
            step, io = plan(d, *plan_words(model, "nvme"))["step"], [process_io(d.process.pid)]
            for steps in (2, 6):
                subprocess.run(zgpt(model, "--steps", str(steps), "--batch", "1", "--dtype", "bf16",
                                    "--offload", "nvme"), env=d.env() | mpi_env(), check=True,
                               timeout=DEADLINE, stdout=subprocess.DEVNULL)
                io.append(process_io(d.process.pid))
            for i, what in enumerate(("read", "written")):
                got = (io[2][i] - io[1][i]) - (io[1][i] - io[0][i])
                near(f"{model}: bytes that the kernel counted as {what}", got,
                     4 * step[f"nvme_{what}_bytes"])


TESTS = {f.__name__: f for f in (host_tier, nvme_tier, partly_resident, spilled_gradients,
                                 kernel_counts, muon, engine, ring, two_ranks, eight_ranks, four_drives, modes,
                                 nothing_offloaded, one_gpu, eight_gpus, params_on_gpus, params_on_one_gpu, a_part_on_gpus,
                                 gathers, durable, least_is_least)}

if __name__ == "__main__":
    raise SystemExit(main(TESTS))
