"""DeepSpeed's own unit tests, with DeepSpeed itself and with zshard.deepspeed; compares what passes.

    deepspeed_tests.py TESTS RESULTS.json --theirs PYTHON --ours PYTHON [--file NAME]... [--test REGEX] [--again]
    deepspeed_tests.py TESTS RESULTS.json --summary

TESTS is the folder `tests` of a checkout of DeepSpeed. RESULTS.json has the outcome of each test on each side, and is
continued: a test that has an outcome is not run again. With both sides, those tests run on zshard that DeepSpeed
passes. README.md in this folder describes the environment.

The file is also the pytest plugin of the runs (-p deepspeed_tests). It replaces how DeepSpeed's tests start their
ranks: forked from a process that has imported torch and deepspeed, and ended as soon as one of them fails.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import importlib
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from multiprocessing import connection
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
FILES = (
    "unit/checkpoint/test_latest_checkpoint.py",
    "unit/checkpoint/test_shared_weights.py",
    "unit/checkpoint/test_lr_scheduler.py",
    "unit/runtime/zero/test_zero_context.py",
    "unit/runtime/zero/test_unwrap_model.py",
    "unit/runtime/zero/test_zero_grad_clip.py",
    "unit/runtime/zero/test_zero_empty_param.py",
    "unit/v1/zero/test_zero.py",
    "unit/checkpoint/test_zero_optimizer.py",
    "unit/runtime/zero/test_zero_tensor_fragment.py",
    "unit/checkpoint/test_universal_checkpoint.py",
    "unit/v1/zero/test_offload_states.py",
)
GRACE = 3.0  # seconds that ranks have after another one has failed
RANK_SECONDS = float(os.environ.get("PEER_RANK_SECONDS", "40"))

Outcomes = dict[str, dict[str, Any]]  # of tests: {"outcome", "why", "seconds"}


# ---- the plugin: one pytest process


def _say(**what: Any) -> None:
    with open(os.environ["PEER_LINES"], "a", encoding="utf-8") as f:
        f.write(json.dumps(what) + "\n")


def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> Any:
    """Fixtures that are classes of the tests' DistributedFixture; pytest 8.4 does not recognise them any more."""
    if getattr(obj, "is_dist_fixture", False) and isinstance(obj, type) and isinstance(obj.world_size, int):
        manager = collector.session._fixturemanager
        if not manager.getfixturedefs(name, collector):
            manager._register_fixture(name=name, func=obj, nodeid=collector.nodeid, scope="function")
        return []
    return None


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leaves out what has an outcome, and puts the launcher in place."""
    with open(os.environ["PEER_DONE"], encoding="utf-8") as f:
        given = json.load(f)
    wanted = None if given["only"] is None else set(given["only"])
    done = set(given["done"])
    pattern = re.compile(given["test"] or "")
    items[:] = [
        i for i in items if i.nodeid not in done and (wanted is None or i.nodeid in wanted) and pattern.search(i.nodeid)
    ]
    common = sys.modules.get("unit.common")
    if common is not None:
        common.DistributedExec._launch_daemonic_procs = _launch  # type: ignore[attr-defined]
    os.environ["PEER_WARM"] = os.environ["PEER_SIDE"]
    before = ["deepspeed_standins"] if os.environ["PEER_SIDE"] == "ours" else []
    multiprocessing.set_forkserver_preload(
        [*before, "torch", "deepspeed", "deepspeed_tests", "unit.common", "unit.simple_model"]
    )


def _warm(theirs: bool) -> None:
    """In the process that ranks are forked from: loads what else takes seconds in each rank."""
    ops = "FusedAdamBuilder CPUAdamBuilder ShareMemCommBuilder AsyncIOBuilder PinMemoryBuilder"
    modules = "torch._dynamo.aot_compile torch._inductor.compile_fx"
    for name in [*modules.split(), *(("deepspeed.runtime.zero.muon.original_muon",) if theirs else ())]:
        importlib.import_module(name)
    if theirs:
        from deepspeed.accelerator import get_accelerator

        for name in ops.split():
            try:
                get_accelerator().create_op_builder(name).load(verbose=False)
            except Exception as e:
                print(f"{name}: {e}", file=sys.stderr)


def pytest_runtest_logstart(nodeid: str, location: Any) -> None:
    """A test begins."""
    _say(begin=nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    """A test has an outcome."""
    if report.when == "call" or report.outcome != "passed":
        text = ""
        if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
            text = str(report.longrepr[2])
        elif report.outcome != "passed":
            text = str(report.longrepr)
        _say(test=report.nodeid, outcome=report.outcome, text=text[-6000:], seconds=round(report.duration, 2))


def _rank(pipe: Any, test: Any, where: tuple[Any, ...]) -> None:
    """One rank of a test."""
    try:
        skipped = test._dist_run(*where)
        said = ("skipped", str(skipped)) if skipped else ("passed", "")
    except BaseException as e:
        said = ("failed", "".join(traceback.format_exception(e)))
    pipe.send(said)
    if pipe.recv():
        test._dist_destroy()


def clear_shared(port: str | int) -> None:
    """Removes the buffers in /dev/shm that DeepSpeed's ranks leave when they are killed: 66 MiB for each."""
    for path in glob.glob(f"/dev/shm/deepspeed_allreduce_buffer_*_{port}_*"):
        with contextlib.suppress(OSError):
            os.unlink(path)


def _launch(test: Any, num_procs: int, init_method: str) -> None:
    """In place of DistributedExec._launch_daemonic_procs."""
    import pytest

    port = sys.modules["unit.common"].get_master_port()
    context = multiprocessing.get_context("forkserver")
    pipes, ranks = [], []
    try:
        for rank in range(num_procs):
            here, there = context.Pipe()
            process = context.Process(
                target=_rank, args=(there, test, (rank, num_procs, port, init_method)), daemon=True
            )
            process.start()
            there.close()
            pipes.append(here)
            ranks.append(process)
        said = _hear(pipes)
        good = all(s[0] in ("passed", "skipped") for s in said)
        if good:
            for pipe in pipes:
                pipe.send(True)
            for process in ranks:
                process.join(10)
    finally:
        for process in ranks:
            process.kill()
            process.join()
        clear_shared(port)
    for kind in ("failed", "hung"):
        for s in said:
            if s[0] == kind:
                pytest.fail(f"{kind}: {s[1]}", pytrace=False)
    skips = [s[1] for s in said if s[0] == "skipped"]
    if skips:
        pytest.skip(skips[0])


def _hear(pipes: list[Any]) -> list[tuple[str, str]]:
    """What each rank says, at most RANK_SECONDS; GRACE after the first failure."""
    said: dict[int, tuple[str, str]] = {}
    end = time.monotonic() + RANK_SECONDS
    while len(said) < len(pipes) and (left := end - time.monotonic()) > 0:
        for pipe in connection.wait([p for i, p in enumerate(pipes) if i not in said], left):
            i = pipes.index(pipe)
            try:
                said[i] = pipes[i].recv()
            except EOFError:
                said[i] = ("failed", "the process of a rank ended")
        if any(s[0] == "failed" for s in said.values()):
            end = min(end, time.monotonic() + GRACE)
    return [said.get(i, ("hung", f"a rank did not end within {RANK_SECONDS:g} s")) for i in range(len(pipes))]


# ---- runs


def why(text: str) -> str:
    """The reason in a line: the first rank's last exception and the deepest line that it names."""
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(E  +)?[A-Za-z_][\w.]*(: |$)", line)]
    if not errors:
        return lines[-1][:300] if lines else ""
    last = re.sub(r"^E +", "", errors[-1])
    if "hung: " in text[:10]:
        last = text[6:]
    places = [m.groups() for m in re.finditer(r'File "([^"]+)", line (\d+)', text)]
    place = f" ({os.path.basename(places[-1][0])}:{places[-1][1]})" if places else ""
    return last[:300] + place


def _environment(side: str, folder: str, tests: str, paths: list[str]) -> dict[str, str]:
    env = dict(os.environ)
    path = [*paths, HERE, tests, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    env |= {
        "PYTHONPATH": os.pathsep.join(path),
        "PEER_SIDE": side,
        "PEER_LINES": os.path.join(folder, "lines"),
        "PEER_DONE": os.path.join(folder, "done"),
        "LOCAL_SIZE": "4",
        "DS_ACCELERATOR": "cpu",
        "DS_DISABLE_REUSE_DIST_ENV": "1",
        "DS_UNITTEST_TIMEOUT": str(int(RANK_SECONDS)),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TMPDIR": folder,
    }
    return env


class Run:
    """The tests of one file on one side."""

    def __init__(self, args: argparse.Namespace, side: str, file: str, known: Outcomes) -> None:
        self.args, self.side, self.file, self.known = args, side, file, known
        self.begun = ""

    def until_done(self, only: list[str] | None, save: Any) -> None:
        """Starts pytest, again after each hang, until all tests have outcomes."""
        for _ in range(60):
            done = [t for t in self.known if t.startswith(self.file)]
            if only is not None and not set(only) - set(done):
                return
            self.begun = ""
            with tempfile.TemporaryDirectory(prefix="ds-") as folder:
                with open(os.path.join(folder, "done"), "w", encoding="utf-8") as f:
                    json.dump({"done": done, "only": only, "test": self.args.test}, f)
                open(os.path.join(folder, "lines"), "w").close()
                ended = self._once(folder, save)
            if ended:
                return
            name = self.begun or f"{self.file}::"
            self.known[name] = {"outcome": "failed", "why": "the test, or its process, hung", "seconds": 0}
            save()

    def _once(self, folder: str, save: Any) -> bool:
        """One pytest process. False: it was ended, because nothing happened."""
        ours = self.side == "ours"
        before = ["-m", "zshard.run"] if ours else []
        plugins = ["-p", "deepspeed_standins"] if ours else []
        python = getattr(self.args, self.side)
        words = [python, "-B", *before, "-m", "pytest", *plugins, "-p", "deepspeed_tests", "-p", "no:cacheprovider"]
        words += ["-q", "--tb=short", "--basetemp", os.path.join(folder, "t"), self.file]
        paths = self.args.theirs_path if not ours else []
        env = _environment(self.side, folder, self.args.tests, paths)
        log = open(self.args.log, "a", encoding="utf-8") if self.args.log else open(os.devnull, "w")
        with log:
            process = subprocess.Popen(
                words, cwd=self.args.tests, env=env, stdout=log, stderr=log, start_new_session=True
            )
            try:
                return self._follow(process, env["PEER_LINES"], save)
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()

    def _follow(self, process: Any, path: str, save: Any) -> bool:
        at, last = 0, time.monotonic()
        limit = 3 * RANK_SECONDS + 60
        while True:
            ended = process.poll() is not None
            with open(path, encoding="utf-8") as f:
                f.seek(at)
                lines = f.readlines()
                at = f.tell()
            for line in lines:
                self._take(json.loads(line))
            if lines:
                last = time.monotonic()
                save()
            if ended:
                if process.returncode in (0, 1, 5):
                    return not self.begun or self.begun in self.known
                if not self.begun or self.begun in self.known:
                    self.begun = f"{self.file}::(pytest ended with {process.returncode})"
                return False
            if time.monotonic() - last > limit:
                return False
            time.sleep(0.2)

    def _take(self, said: dict[str, Any]) -> None:
        if "begin" in said:
            self.begun = said["begin"]
            return
        outcome = said["outcome"]
        self.known[said["test"]] = {
            "outcome": outcome,
            "why": "" if outcome == "passed" else why(said["text"]) if outcome == "failed" else said["text"][:300],
            "seconds": said["seconds"],
        }
        if self.args.verbose:
            mark = self.known[said["test"]]
            print(f"{self.side} {outcome:7} {mark['seconds']:6.1f} {said['test']} {mark['why']}", flush=True)


# ---- the rule: which tests use only what zshard.deepspeed offers
#
# The rule: the names of "three worlds" in the design (initialize and the engine's methods, zero.Init,
# GatheredParameters, safe_get_full_*, accelerator, comm, and so on), and what DeepSpeed documents for users as far as
# zshard.deepspeed has it. (pattern of the node id, what else the test uses); the first that matches counts.

_VERIFY = "checkpoint_correctness_verification(): deepspeed.moe.utils, engine.sparse_tensor_module_names, file names"
_MOE = "deepspeed.moe.utils.split_params_into_different_moe_groups_for_optimizer"
OUTSIDE: tuple[tuple[str, str], ...] = (
    (r"test_zero_context.py::test_multiple_all_gather_handles", "MultipleAllGatherHandles, an internal class"),
    (r"::TestMiCSGatheredParametersFree", "zero.MiCS_Init"),
    (r"::test_subclass_param|::TestScatterGather|::TestGatherUpdate", "param.ds_status, ZeroParamStatus"),
    (r"::test_scatter_halftype", "param.ds_tensor, the slice of a rank"),
    (r"::test_throughput_calculation", "engine.tput_timer"),
    (r"test_zero_grad_clip.py", "DeepSpeedZeroOptimizer_Stage3, its _get_norm_groups(), safe_set_local_grad"),
    (
        r"::TestZeroElementParam::(test_left|test_with_offload|test_offload|test_checkpoint)",
        "no attribute ds_id of parameters without elements; get_state_devices()",
    ),
    (r"::TestGradientAllreduceOpTraining::test\[muon", "the optimizer Muon"),
    (r"::TestBF16OptimizerGradReduction", "BF16_Optimizer, optimizer.fp32_groups_gradients_flat"),
    (r"::TestPartitionNcclAlignment", "optimizer.nccl_start_alignment_factor, parallel_partitioned_bit16_groups"),
    (r"::TestZero3ParamPartitioningBase::", "param.ds_tensor, ds_status, optimizer.get_fp32_grad_partitions()"),
    (r"::TestZero3ParamPartitioning(Large|Many)Param", "optimizer.averaged_gradients"),
    (r"::TestZero3InitForParent|::TestParamPartitioningSkipInit", "param.ds_tensor, the slice of a rank"),
    (r"::TestZeroAdamOptimizerStepCount", "optimizer.optimizer.state, fp16_groups, fp32_partitioned_groups_flat"),
    (r"::TestZeroOffloadOptim::test\[True\]", "ZeRORuntimeException"),
    (r"::TestZeroPartitionCache", "param.ds_persist"),
    (r"::TestZeROCheckpoint::|::test_existing_latest", _VERIFY),
    (r"::TestZeROCheckpointFrozenWeights::test_save_exclude", "get_model_ckpt_name_for_rank(), DeepSpeed's files"),
    (r"::TestZeROCheckpointFrozenWeights::", _VERIFY),
    (r"::TestLRSchedulerCheckpoint", _VERIFY),
    (r"::TestZeROSaveLoadEdgeCase", _MOE),
    (r"::test_elastic_checkpoint_fixed_dp\[True", "optimizer.optimizer.state_dict(), state of DeepSpeed's wrapper"),
    (r"::test_elastic_checkpoint_fixed_dp", "deepspeed.utils.torch.required_torch_version"),
    (r"::test_elastic_checkpoint_change_dp\[True", "optimizer.optimizer.state_dict(), ZeRORuntimeException"),
    (r"::test_elastic_checkpoint_is_deprecated", "DeepSpeedZeroConfig"),
    (r"::TestZeRONonDistributed", "engine._change_recovery_script_permissions()"),
    (r"::TestZeROPPLoadCheckpoint", f"param.all_gather_coalesced(), ds_status; {_MOE}"),
    (r"test_zero_tensor_fragment.py.*(::TestTensorFragmentGet.*local|Set.*local)", "safe_get_local_*, per-rank slices"),
    (r"::TestTensorFragment(Set|Update)::", "safe_set_full_grad, safe_update_full_grad_vectorized"),
    (r"test_universal_checkpoint.py", "deepspeed.checkpoint.ds_to_universal, the optimizer's _set_fp32_... methods"),
    (r"::TestDynamicOffloadStatesZero12", "optimizer.averaged_gradients, single_partition_of_fp32_groups"),
    (r"::TestDynamicOffloadStatesZero3", "get_state_devices(), param.ds_tensor, optimizer.grad_partitions_flat_buffer"),
)


def outside(test: str) -> str:
    """What the test uses besides the names of the rule; "" if nothing."""
    return next((what for pattern, what in OUTSIDE if re.search(pattern, test)), "")


def group_of(test: str) -> str:
    """The test without its parameters."""
    return test.split("[", 1)[0]


# ---- what came out


def summary(found: dict[str, Outcomes]) -> None:
    """Prints totals, and each group of tests that does not pass or is outside of the rule."""
    theirs, ours = found.get("theirs", {}), found.get("ours", {})
    passed = {t for t, o in theirs.items() if o["outcome"] == "passed"}
    inside = {t for t in passed if not outside(t)}
    good = {t for t in passed if ours.get(t, {}).get("outcome") == "passed"}
    counts = Counter(o["outcome"] for o in theirs.values())
    kinds = ", ".join(f"{n} {kind}" for kind, n in counts.items())
    print(f"with DeepSpeed: {len(theirs)} tests, {kinds}")
    share = f" ({100 * len(good & inside) / len(inside):.0f} %)" if inside else ""
    print(
        f"of those that pass and are inside of the rule {len(good & inside)} of {len(inside)} pass with zshard{share}"
    )
    print(f"of those that pass and are outside of it      {len(good - inside)} of {len(passed - inside)}")
    for title, tests in (("inside, and fails", inside - good), ("outside", passed - inside)):
        print(f"\n{title}")
        groups: dict[tuple[str, str], list[str]] = {}
        for t in sorted(tests):
            groups.setdefault((group_of(t), outside(t)), []).append(t)
        for (group, what), members in groups.items():
            reasons = Counter(ours.get(t, {}).get("why", "not run") for t in members if t not in good)
            print(
                f"  {len([t for t in members if t in good])}/{len(members)} {group}" + (f"  [{what}]" if what else "")
            )
            for reason, n in reasons.most_common(4):
                print(f"        {n} x {reason}")
    print("\nnot passed with DeepSpeed")
    for group, n in sorted(
        Counter((group_of(t), o["why"][:140]) for t, o in theirs.items() if t not in passed).items()
    ):
        print(f"  {n} {group[0]}: {group[1]}")


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("tests")
    parser.add_argument("results")
    parser.add_argument("--theirs", help="a Python with DeepSpeed and pytest")
    parser.add_argument("--theirs-path", action="append", default=[], help="a folder for its PYTHONPATH")
    parser.add_argument("--ours", help="a Python with zshard and pytest")
    parser.add_argument("--file", action="append", help="only files with this in their name")
    parser.add_argument("--test", help="only tests whose node id matches this regular expression")
    parser.add_argument("--again", action="store_true", help="forget the outcomes of what is run (on zshard's side)")
    parser.add_argument("--log", help="a file for pytest's own output")
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("-v", "--verbose", action="store_true")
    args = parser.parse_args()
    args.tests = os.path.abspath(args.tests)
    for side in ("theirs", "ours"):
        if os.path.dirname(getattr(args, side) or ""):
            setattr(args, side, os.path.abspath(getattr(args, side)))
    found: dict[str, Outcomes] = {"theirs": {}, "ours": {}}
    if os.path.exists(args.results):
        with open(args.results, encoding="utf-8") as f:
            found |= json.load(f)

    def save() -> None:
        with open(f"{args.results}.tmp", "w", encoding="utf-8") as f:
            json.dump(found, f, indent=1)
        os.replace(f"{args.results}.tmp", args.results)

    files = [f for f in FILES if not args.file or any(name in f for name in args.file)]
    for file in [f for f in files if not os.path.exists(os.path.join(args.tests, f))]:
        print(f"'{file}' is not in '{args.tests}'", file=sys.stderr)
        files.remove(file)
    if args.theirs:
        for file in files:
            Run(args, "theirs", file, found["theirs"]).until_done(None, save)
    if args.ours:
        for file in files:
            wanted = [t for t, o in found["theirs"].items() if t.startswith(file) and o["outcome"] == "passed"]
            wanted = [t for t in wanted if re.search(args.test or "", t)]
            if args.again:
                for t in wanted:
                    found["ours"].pop(t, None)
            if wanted:
                Run(args, "ours", file, found["ours"]).until_done(wanted, save)
    summary(found)


if __name__ == "__main__":
    main()
elif "PEER_WARM" in os.environ:
    _warm(os.environ["PEER_WARM"] == "theirs")
