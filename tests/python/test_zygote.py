# ctest: LABELS full COST 10
"""zygote.py: a program that is forked does what it does when it is started; nothing outlives its owner."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PLAIN = [sys.executable, "-B"]
FORKED = [*PLAIN, str(HERE / "zygote.py"), "--with", "decimal"]
SERVER = "import os, sys; print(os.getppid(), os.getpid(), 'decimal' in sys.modules, flush=True); "
PATIENCE = 60.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The sockets of all processes that fork for these tests. They end with it."""
    folder = tmp_path_factory.mktemp("zygote")
    assert start(folder, "").wait(PATIENCE) == 0  # with our limits and folder
    yield folder
    shutil.rmtree(folder)


def env(place: Path, **more: str) -> dict[str, str]:
    return {n: v for n, v in os.environ.items() if n != "ZSHARD_TEST_DEVICE"} | {"ZSHARD_ZYGOTE": str(place), **more}


def start(place: Path, code: str, words: list[str] = FORKED, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*words, "-c", code], env=env(place, **more), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ids(process: subprocess.Popen[str]) -> tuple[int, int]:
    """Of the process that forks, and of the program."""
    assert process.stdout is not None
    server, program, loaded = process.stdout.readline().split()
    assert loaded == "True", "it was not forked"
    return int(server), int(program)


def ends(*pids: int) -> None:
    end = time.monotonic() + PATIENCE
    for pid in pids:
        while os.path.exists(f"/proc/{pid}"):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    break
            assert time.monotonic() < end, f"process {pid} lives on"
            time.sleep(0.01)


# ---- what programs see and do

PROGRAMS: dict[str, list[str]] = {
    "nothing": ["-c", ""],
    "status": ["-c", "raise SystemExit(5)"],
    "large status": ["-c", "raise SystemExit(256 + 3)"],
    "text as status": ["-c", "import sys; sys.exit('why')"],
    "exception": ["-c", "print(1); raise ValueError('why')"],
    "interrupt": ["-c", "raise KeyboardInterrupt"],
    "signal": ["-c", "import os; os.kill(os.getpid(), 11)"],
    "killed": ["-c", "import os; os.kill(os.getpid(), 9)"],
    "abort": ["-c", "import os; os.abort()"],
    "fault": ["-X", "faulthandler", "-c", "import faulthandler as f; print(f.is_enabled())"],
    "unbuffered": ["-u", "-c", "import os; print(1); os._exit(4)"],
    "at once": ["-c", "import os; print(1); os._exit(4)"],
    "no fault": ["-c", "import faulthandler as f; print(f.is_enabled())"],
    "arguments": ["-c", "import sys; print(sys.argv, sys.executable, sys.flags.dont_write_bytecode)", "a b", "-c", "$"],
    "input": ["-c", "import sys; print(sys.stdin.read()[::-1], end=''); print(2, file=sys.stderr)"],
    "folder": ["-c", "import os; print(os.getcwd(), os.listdir())"],
    "environment": ["-c", "import os; os.system('echo $ONE'); print(sorted(set(os.environ) - {'PWD', 'SHLVL', '_'}))"],
    "umask and limits": ["-c", "import os, resource as r; print(os.umask(0), r.getrlimit(r.RLIMIT_NOFILE))"],
    "descriptors": ["-c", "import os; print(len(os.listdir('/proc/self/fd')))"],
    "path": ["-c", "import sys; print(sys.path); import beside; print(beside.__file__)"],
    "program": ["program.py", "x"],
    "module": ["-m", "beside", "x"],
    "module of another folder": ["-m", "other", "x"],
    "no program": ["nowhere.py"],
    "at the end": ["-c", "import atexit, threading as t, time\natexit.register(print, 'last')\n"
                   "t.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\nprint('main')"],
    "globals": ["-c", "class A:\n def __del__(self): print('freed')\na = A()"],
    "signals": ["-c", "import signal as s; print([s.getsignal(n) for n in range(1, 16)], s.pthread_sigmask(0, []))"],
    "seeds": ["-c", "import random; print(random.random() != random.random(), random.Random(1).random())"],
}  # fmt: skip
SHOWS_MODULE = "import sys\nprint(__name__, __file__, sys.argv[1:], sys.path[:2], sys.modules['__main__'].__name__)\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("programs")
    (made / "lib").mkdir()
    for name in ("beside.py", "program.py", "lib/other.py"):
        (made / name).write_text(SHOWS_MODULE)
    return made


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_started(place: Path, folder: Path, name: str) -> None:
    """The same status and output as of a process that is started."""

    def limits() -> None:
        import resource

        os.umask(0o037)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    unset = {"PYTHONFAULTHANDLER": "", "PYTHONUNBUFFERED": ""}
    seen: list[Any] = []
    for how in (PLAIN, FORKED):
        done = subprocess.run(
            [*how, *PROGRAMS[name]], env=env(place, ONE="1", PYTHONPATH=str(folder / "lib"), **unset),
            cwd=folder, input="input", text=True, capture_output=True, timeout=PATIENCE, check=False, preexec_fn=limits,
        )  # fmt: skip
        seen.append((done.returncode, done.stdout, done.stderr.splitlines()[-1:]))  # the frames of a traceback differ
    assert seen[0] == seen[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on(place: Path, number: signal.Signals) -> None:
    handles = f"import signal; signal.signal({int(number)}, lambda n, _: sys.exit(n + 40)); "
    for code, status in ((handles, number + 40), ("", -number)):
        process = start(place, SERVER + code + "print('ready', flush=True); import time; time.sleep(60)")
        ids(process)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(PATIENCE) == status
        process.communicate()


# ---- who dies with whom


def test_a_killed_owner_takes_its_processes_along(place: Path) -> None:
    """As CTest kills a test that takes too long: the program and its children die, another program does not."""
    other = start(place, SERVER + "sys.stdin.read(); print('well')")
    server, _ = ids(other)
    code = "import subprocess; c = subprocess.Popen(['sleep', '600']); print(c.pid, flush=True); c.wait()"
    process = start(place, SERVER + code)
    same, program = ids(process)
    assert same == server and process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    ends(program, child)
    assert other.communicate(timeout=PATIENCE)[0] == "well\n" and other.returncode == 0


def test_who_starts_the_process_that_forks_does_not_take_it_along(tmp_path: Path) -> None:
    first = start(tmp_path, SERVER + "sys.stdin.read()")
    server, program = ids(first)
    first.kill()
    first.wait()
    ends(program)
    second = start(tmp_path, SERVER)
    assert ids(second)[0] == server
    second.communicate()
    shutil.rmtree(tmp_path)
    ends(server)  # with its folder


def test_the_process_that_forks_dies(tmp_path: Path) -> None:
    """So do its programs, and that is said. The socket that it leaves is replaced."""
    process = start(tmp_path, SERVER + "sys.stdin.read()")
    server, program = ids(process)
    os.kill(server, signal.SIGKILL)
    ends(program)
    assert process.wait(PATIENCE) == -signal.SIGKILL and process.stderr is not None
    assert "the process that forks has died, and with it process" in process.stderr.read()
    assert [p for p in tmp_path.iterdir() if p.is_socket()]
    (lock,), (left,) = tmp_path.glob("*.lock"), [p.stat() for p in tmp_path.iterdir() if p.is_socket()]
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # another one is starting it
        again = start(tmp_path, SERVER)
        time.sleep(0.5)
        assert [(p.stat().st_ino, p.stat().st_ctime) for p in tmp_path.iterdir() if p.is_socket()] == [
            (left.st_ino, left.st_ctime)
        ]
    assert ids(again)[0] != server
    again.communicate()
    assert again.returncode == 0


# ---- one for all of them


def test_at_once_and_with_other_variables(tmp_path: Path) -> None:
    """Four that come at once share one. Another value of what counts at an import, or a limit that cannot be raised,
    needs another one."""
    processes = [start(tmp_path, SERVER, ANY=str(i)) for i in range(4)]
    other = start(tmp_path, SERVER + "print(os.environ['OMP_NUM_THREADS'])", OMP_NUM_THREADS="3")
    limited = start(tmp_path, SERVER, ["sh", "-c", 'ulimit -n 300; exec "$@"', "sh", *FORKED])
    servers = {ids(p)[0] for p in processes}
    assert len(servers) == 1
    assert ids(other)[0] not in servers and other.stdout is not None and other.stdout.read() == "3\n"
    assert ids(limited)[0] not in servers
    assert [p.wait(PATIENCE) for p in [*processes, limited]] == [0] * 5


def test_it_cannot_be_used(tmp_path: Path) -> None:
    """The reason is shown, and the program runs, started plainly; what it starts, too."""
    words = [*FORKED[:-1], "decimal,no_such_module"]
    process = start(tmp_path, "import sys; print('decimal' in sys.modules); sys.exit(6)", words)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (6, "False\n")
    assert "No module named 'no_such_module'" in err and "It is started plainly" in err


def serve(folder: Path, before: str, module: str) -> subprocess.Popen[str]:
    """The program that forks itself, in the foreground, after this code."""
    code = f"import os, sys; sys.path.append({str(HERE)!r}); os.fork = lambda: 0; os.setsid = lambda: 0\n"
    code += f"import zygote_server as z; {before}; z.main()"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "z"))
        listener.listen()
        return subprocess.Popen(
            [*PLAIN, "-c", code, str(folder / "z"), module],
            stdin=listener, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("before", "module", "status", "says"),
    [
        ("z.IDLE = 0.1", "decimal", 0, ""),
        ("sys.path.append('.')", "thread", 1, "the imports of thread started threads: there are 2"),
    ],
    ids=["idle", "threads"],
)
def test_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, module: str, status: int, says: str
) -> None:
    """When it is idle; and at once if what it forks might not work."""
    monkeypatch.chdir(tmp_path)
    Path("thread.py").write_text(
        "import threading as t, time; t.Thread(target=time.sleep, args=(9,), daemon=True).start()"
    )
    process = serve(tmp_path, before, module)
    assert says in process.communicate(timeout=PATIENCE)[1] and process.returncode == status


def test_no_folder_no_sharing(place: Path) -> None:
    """Without ZSHARD_ZYGOTE it is the plain command, in the same process."""
    variables = env(place)
    del variables["ZSHARD_ZYGOTE"]
    code = "import os, sys; print(os.getpid(), 'decimal' in sys.modules)"
    process = subprocess.Popen([*FORKED, "-c", code], env=variables, stdout=subprocess.PIPE, text=True)
    assert process.communicate()[0] == f"{process.pid} False\n"


def test_a_folder_of_its_own() -> None:
    """Without ZSHARD_ZYGOTE a process that forks belongs to one program, and ends with it."""
    variables = {n: v for n, v in os.environ.items() if n != "ZSHARD_ZYGOTE"}
    code = f"import sys; sys.path.append({str(HERE)!r}); import zygote\n"
    code += f"zygote.run([sys.executable, '-c', {SERVER!r}], preload=['decimal'], check=True); print(zygote._private)"
    process = subprocess.Popen([*PLAIN, "-c", code], env=variables, stdout=subprocess.PIPE, text=True)
    server, _ = ids(process)
    assert process.stdout is not None
    private = process.stdout.readline().strip()
    assert process.wait(PATIENCE) == 0 and not os.path.exists(private)
    ends(server)
