#!/usr/bin/env python3
"""test_files.py - export and import of safetensors with a real daemon, and with the format's own
library where Python has it.

    ZSHARD_BUILD=build tests/integ/test_files.py [NAME...]
"""
import array
import filecmp
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time

from harness import Daemon, check, main, program, wait_until

FLAGS = ("--host-bytes", "16M", "--nvme-bytes", "64M", "--page-elems", "8192", "--ring-bytes", "1M")
TIGHT = ("--host-bytes", "7M", "--nvme-bytes", "96M", "--page-elems", "8192", "--ring-bytes", "512K")

QUANTIZED = "quantized" # in place of "frozen", if the unit is quantized, too

# name, elems, dtype, grad dtype, frozen, tensors: name, first, shape, group
def units(head):
    return (
        ("embed", 40001, "bf16", "fp32", False, (("wte.weight", 0, [70, 500], 0),
                                                 ("wpe.weight", 36864, [30, 101], 1))),
        ("head", head, "fp32", "fp32", False, (("ln.weight", 3, [head - 3], 65535),)),
        ("tables", 19, "bf16", "fp32", True, (("scale", 0, [], 0), ("table", 4, [3, 5], 0))),
        ("cold", 9001, "bf16", "fp32", QUANTIZED, (("cold.weight", 5, [8996], 65535),)))


UNITS = units(50000)
ITERATIONS, APPLIED = 12, 11


def bf16(values):
    """As zshard rounds: to nearest, ties away from zero."""
    bits = array.array("I")
    bits.frombytes(values.tobytes())
    return array.array("H", ((b + 0x8000) >> 16 & 0xffff for b in bits)).tobytes()


def model(seed, of=UNITS):
    """{name: (dtype, shape, bytes)}, and the metadata."""
    dice, tensors = random.Random(seed), {}

    def plane(n):
        return array.array("f", (dice.uniform(-1, 1) for _ in range(n)))

    for _, _, dtype, _, frozen, rows in of:
        for name, _, shape, _ in rows:
            n = 1
            for dim in shape:
                n *= dim
            master = plane(n)
            if frozen == QUANTIZED: # values that 8 bits can hold: the largest in each group is 127
                master = array.array("f", (127 if i % 20 == 0 else dice.randint(-127, 127)
                                           for i in range(n)))
            if dtype == "fp32":
                tensors[name] = ("F32", shape, master.tobytes())
            else:
                tensors[name] = ("BF16", shape, bf16(master))
            if frozen:
                continue
            tensors[name + ".exp_avg"] = ("F32", shape, plane(n).tobytes())
            tensors[name + ".exp_avg_sq"] = ("F32", shape,
                                             array.array("f", map(abs, plane(n))).tobytes())
            if dtype != "fp32":
                tensors[name + ".master"] = ("F32", shape, master.tobytes())
    manifest = [{"name": name, "elems": elems, "dtype": dtype, "grad_dtype": grad,
                 "frozen": bool(frozen), **({"quantized": True} if frozen == QUANTIZED else {}),
                 "tensors": [{"name": t, "first": first, "group": group}
                             for t, first, _, group in rows]}
                for name, elems, dtype, grad, frozen, rows in of]
    return tensors, {"format": "pt", "zshard.format": "1", "zshard.iterations": str(ITERATIONS),
                     "zshard.applied": str(APPLIED), "zshard.groups": "2",
                     "zshard.optimizer": "adamw", "zshard.moments": "fp32",
                     "zshard.units": json.dumps(manifest)}


def write(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def read(path):
    with open(path, "rb") as f:
        n, = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(n)), f.read()
    metadata = header.pop("__metadata__")
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])])
            for name, t in header.items()}, metadata


def zctl(daemon, *words):
    return subprocess.run([program("zctl"), *words], env=daemon.env(), text=True,
                          capture_output=True, timeout=60, stdin=subprocess.DEVNULL, check=False)


def done(daemon, *words):
    result = zctl(daemon, *words)
    check(result.returncode == 0, f"zctl {' '.join(words)}: {result}")


def refused(daemon, status, says, *words):
    result = zctl(daemon, *words)
    check(result.returncode == status and says in result.stderr, f"zctl {words}: {result}")


def restart(daemon):
    """And no job is in memory any more."""
    check(daemon.stop() == 0, "the daemon did not end well")
    daemon.start()


def same_folders(a, b):
    names = sorted(os.listdir(a))
    check(names == sorted(os.listdir(b)), f"{names}, {sorted(os.listdir(b))}")
    check(filecmp.cmpfiles(a, b, names, shallow=False)[0] == names, f"{a} and {b} differ")


def there_and_back(flags, head):
    """Import, export, import, export: the same files; over a restart of the daemon, too."""
    with Daemon(*flags) as d, tempfile.TemporaryDirectory() as folder:
        def at(name):
            return os.path.join(folder, name)

        tensors, metadata = model(1, units(head))
        write(at("first"), tensors, metadata)
        done(d, "import", "a", at("first"))
        job = d.zctl("jobs", "a")[0]
        check((job["durable"], job["committed"], job["committed_iterations"],
               job["committed_applied"], job["attached"]) == (True, True, ITERATIONS, APPLIED, 0),
              f"{job}")
        done(d, "export", "a", at("one"), "--optimizer")
        got, said = read(at("one/model.safetensors"))
        check(got.keys() == tensors.keys(), f"{sorted(got)}")
        for name, want in tensors.items():
            check(got[name] == want, f"'{name}' came back as another")
        check(said | {"zshard.units": ""} == metadata | {"zshard.units": ""}, f"{said}")
        check(json.loads(said["zshard.units"]) == json.loads(metadata["zshard.units"]), f"{said}")

        restart(d)
        done(d, "import", "b", at("one"))
        for options in ((), ("--optimizer",), ("--dtype", "fp32"), ("--dtype", "fp16"),
                        ("--optimizer", "--shard-bytes", "300K")):
            name = "-".join(options).replace("--", "") or "plain"
            done(d, "export", "a", at(name + "-a"), *options)
            done(d, "export", "b", at(name + "-b"), *options)
            same_folders(at(name + "-a"), at(name + "-b"))
        check(len(os.listdir(at("optimizer-shard-bytes-300K-a"))) > 2, "one file only")
        restart(d)
        done(d, "import", "c", at("optimizer-shard-bytes-300K-a"))
        restart(d)
        for job in "abc":
            done(d, "export", job, at("again-" + job), "--optimizer")
            same_folders(at("again-" + job), at("one"))


def scrubbed():
    """All that is saved is read at the rate that was asked for, while nobody else does anything."""
    with Daemon(*FLAGS) as d, tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x")
        write(path, *model(6))
        done(d, "import", "a", path)
        check(d.zctl("scrub")[0]["state"] == "idle", f"{d.zctl('scrub')}")
        for options in (["--rate", "1M"], []):
            begin = time.monotonic()
            done(d, "scrub", "start", *options)
            wait_until("the scrub's end", lambda: d.zctl("scrub")[0]["state"] == "done", 60)
            row = d.zctl("scrub")[0]
            check(row["bytes"] == row["total_bytes"] >= 90000 * 10 and row["bad_pages"] == 0, f"{row}")
            if options:
                seconds = time.monotonic() - begin
                check(seconds > row["bytes"] / (1 << 20) * 0.8 - 0.2, f"{seconds} s for {row}")


def snapshots():
    """A snapshot, and a clone of it, are exported as the job was."""
    with Daemon(*FLAGS) as d, tempfile.TemporaryDirectory() as folder:
        def at(name):
            return os.path.join(folder, name)

        write(at("first"), *model(7))
        done(d, "import", "a", at("first"))
        done(d, "export", "a", at("one"), "--optimizer")
        row = d.zctl("snapshot", "a", "s")[0]
        check((row["job"], row["name"], row["iterations"]) == ("a", "s", ITERATIONS), f"{row}")
        check(d.zctl("snapshots") == d.zctl("snapshots", "a") == [row], f"{d.zctl('snapshots')}")
        refused(d, 4, "", "snapshot", "a", "s")
        done(d, "clone", "a@s", "b")
        restart(d)
        for what in ("a@s", "b"):
            done(d, "export", what, at("of-" + what), "--optimizer")
            same_folders(at("of-" + what), at("one"))
        done(d, "rollback", "a", "s")
        done(d, "export", "a", at("back"), "--optimizer")
        same_folders(at("back"), at("one"))
        done(d, "destroy", "a@s")
        refused(d, 8, "job 'a' has a commit of step", "destroy", "a")
        done(d, "destroy", "--force", "a")
        check(d.zctl("snapshots") == [], f"{d.zctl('snapshots')}")
        done(d, "export", "b", at("alone"), "--optimizer")
        same_folders(at("alone"), at("one"))


def in_memory():
    there_and_back(FLAGS, 50000)


def streamed():
    there_and_back(TIGHT, 300000)


def refusals():
    with Daemon(*FLAGS) as d, tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.safetensors")
        tensors, metadata = model(2)
        write(path, tensors, metadata)
        done(d, "import", "a", path)
        refused(d, 4, "exists already", "import", "a", path)
        refused(d, 4, "no saved job 'b'", "export", "b", os.path.join(folder, "y"))
        refused(d, 2, "", "import", "no/name", path)
        refused(d, 4, "already exists", "export", "a", path)
        write(path, tensors, metadata | {"zshard.units": metadata["zshard.units"].replace(
            '"frozen": true, "quantized"', '"frozen": false, "quantized"')})
        refused(d, 6, "zshard.units[3].quantized is true, and the unit is not frozen", "import", "b",
                path)
        write(path, tensors, {k: v for k, v in metadata.items() if k != "zshard.units"})
        refused(d, 2, "--like JOB", "import", "b", path)
        done(d, "import", "b", path, "--like", "a")
        del tensors["wpe.weight"]
        write(path, tensors, metadata)
        refused(d, 4, "no tensor 'wpe.weight'", "import", "c", path)
        with open(path, "r+b") as f:
            f.truncate(100)
        refused(d, 6, "is not a valid safetensors file", "import", "c", path)
        check([job["name"] for job in d.zctl("jobs")] == ["a", "b"], f"{d.zctl('jobs')}")
        check(os.listdir(folder) == ["x.safetensors"], f"{os.listdir(folder)}")


def too_large():
    """A job that does not fit is refused with numbers, and is not there."""
    with Daemon("--host-bytes", "1M", "--nvme-bytes", "1M", "--page-elems", "8192", "--ring-bytes",
                "512K") as d, tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x")
        write(path, *model(3))
        refused(d, 4, "", "import", "a", path)
        check(d.zctl("jobs") == [], f"{d.zctl('jobs')}")


def the_library():
    """What Python's safetensors writes is imported, and what we write opens in it."""
    try:
        import numpy
        import safetensors
        import safetensors.numpy
    except ImportError as e:
        print(f"skipped: {e}")
        return
    with Daemon(*FLAGS) as d, tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.safetensors")
        write(path, *model(4))
        done(d, "import", "a", path)
        dice, theirs = numpy.random.default_rng(5), {}
        for _, _, dtype, _, _, rows in UNITS:
            for name, _, shape, _ in rows:
                theirs[name] = dice.normal(size=shape).astype(
                    numpy.float32 if dtype == "fp32" else numpy.float16)
        safetensors.numpy.save_file(theirs, path)
        done(d, "import", "b", path, "--like", "a")
        done(d, "export", "b", os.path.join(folder, "y.safetensors"), "--dtype", "fp32")
        with safetensors.safe_open(os.path.join(folder, "y.safetensors"), "numpy") as f:
            check(f.metadata()["format"] == "pt" and sorted(f.keys()) == sorted(theirs), f"{f}")
            for name, want in theirs.items():
                got = f.get_tensor(name)
                if name not in ("scale", "table", "cold.weight"): # of these, bf16 or less is kept
                    check(got.dtype == numpy.float32 and (got == want.astype("f4")).all(), name)
        done(d, "export", "b", os.path.join(folder, "m"), "--shard-bytes", "200K", "--optimizer",
             "--dtype", "fp16")
        with open(os.path.join(folder, "m", "model.safetensors.index.json"), encoding="utf-8") as f:
            index = json.load(f)
        total = 0
        for name, where in index["weight_map"].items():
            with safetensors.safe_open(os.path.join(folder, "m", where), "numpy") as f:
                total += f.get_tensor(name).nbytes
                if name in theirs and name not in ("scale", "table", "ln.weight", "cold.weight"):
                    check((f.get_tensor(name) == theirs[name]).all(), name)
        check(total == index["metadata"]["total_size"], f"{total} bytes, {index['metadata']}")


def plain_files():
    """Files of another program, which say no units: each layer becomes one, and so does what is in none."""
    dice = random.Random(5)

    def plane(n):
        return array.array("f", (dice.uniform(-1, 1) for _ in range(n))).tobytes()

    parts = [{"h.0.a": ("F32", [30, 100], plane(3000)), "h.0.b": ("F32", [70], plane(70))},
             {"h.1.a": ("F32", [30, 100], plane(3000)), "wte.weight": ("F32", [50, 10], plane(500))}]
    with Daemon(*FLAGS) as d:
        paths = [os.path.join(d.folder, f"{i}.safetensors") for i in range(2)]
        for path, tensors in zip(paths, parts):
            write(path, tensors, {"format": "pt"})
        done(d, "import", "plain", *paths)
        check(sorted(row["unit"] for row in d.zctl("ls", "plain")) == ["h.0", "h.1", "wte.weight"], f"{d.zctl('ls')}")
        out = os.path.join(d.folder, "out.safetensors")
        done(d, "export", "plain", out)
        tensors, _ = read(out)
        check(tensors == parts[0] | parts[1], "what was exported is not what was imported")
        write(paths[1], {"h.1.a.exp_avg": ("F32", [2], plane(2))}, {"format": "pt"})
        refused(d, 2, "these files carry no unit layout; give one with --like JOB", "import", "more", *paths)


def init_of_a_folder():
    """zgpt begins with a folder of several files, as Hugging Face's libraries write large models."""
    words = "--steps 0 --batch 1 --micro-batch 1 --seq 8 --layers 2 --heads 1 --width 8".split()
    with tempfile.TemporaryDirectory() as folder:
        one, two = os.path.join(folder, "1.safetensors"), os.path.join(folder, "2.safetensors")
        parts = os.path.join(folder, "parts")

        def zgpt(*more):
            return subprocess.run([program("zgpt"), *words, *more], text=True, capture_output=True, timeout=150,
                                  check=False)

        ran = zgpt("--seed", "1", "--export", one, "--memory", "8G")
        check(ran.returncode == 0, f"{ran}")
        tensors, _ = read(one)
        os.mkdir(parts)
        for i in range(2):
            write(os.path.join(parts, f"model-{i}.safetensors"), dict(list(tensors.items())[i::2]), {"format": "pt"})
        ran = zgpt("--seed", "2", "--init", parts, "--export", two)
        check(ran.returncode == 0, f"{ran}")
        check(read(two)[0] == tensors, "the weights are not those of the folder")
        write(os.path.join(parts, "again.safetensors"), dict(list(tensors.items())[:1]), {"format": "pt"})
        ran = zgpt("--seed", "2", "--init", parts)
        check(ran.returncode == 2 and "two files of" in ran.stderr, f"{ran}")


def plan_counts_idle_jobs():
    """A saved job that nobody is attached to gives memory to one that needs it: a plan does not count it."""
    words = ("plan", "--params", "1M", "--units", "4", "--dtype", "fp32", "--offload-param", "host",
             "--offload-optimizer", "host")
    with Daemon("--host-bytes", "28M", "--nvme-bytes", "96M", "--page-elems", "8192", "--ring-bytes", "1M") as d:
        path = os.path.join(d.folder, "m.safetensors")
        write(path, {f"h.{i}.a": ("F32", [250000], bytes(1000000)) for i in range(4)}, {"format": "pt"})
        done(d, "import", "idle", path)
        wait_until("the staging to come back", lambda: all(t["staging"] == 0 for t in d.zctl("tiers")), 5)
        job, = d.zctl("jobs")
        check(job["state"] == "idle" and job["host_bytes"] > 12 << 20, f"{job}")
        result = zctl(d, *words, "--json")
        plan = json.loads(result.stdout)
        check(result.returncode == 0 and plan["fits"] and plan["schema"] == 2, f"{result}")
        check(plan["node"]["gives_room"] == job["host_bytes"], f"{plan['node']}, {job}")
        check("host: of idle jobs" in zctl(d, *words).stdout, f"{zctl(d, *words).stdout}")
        result = zctl(d, *words[:2], "40M", *words[3:])
        check(result.returncode == 7 and result.stdout.endswith("\nIt does not fit.\n") and
              result.stderr.startswith("zctl: does not fit, because "), f"{result}")


if __name__ == "__main__":
    sys.exit(main({f.__name__: f for f in (
        in_memory, streamed, refusals, too_large, the_library, scrubbed, snapshots,
        plain_files, init_of_a_folder, plan_counts_idle_jobs)}))
