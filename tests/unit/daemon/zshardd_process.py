#!/usr/bin/env python3
"""zshardd as a process: its one line, its signals, its exit status, what it leaves behind.

usage: zshardd_process.py PATH-OF-ZSHARDD
"""
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.."))
ZSHARDD = sys.argv.pop(1) if len(sys.argv) > 1 else "zshardd"
SLOW = 120  # seconds until we conclude that something will not happen, with sanitizers
REQUEST, REPLY = 1, 2
HELLO, PING = 1, 2


def frame(method, tag, body=b"", kind=REQUEST):
    return b"zsh\1" + struct.pack("<IHBBiQ", len(body), method, kind, 0, 0, tag) + body


class Client:
    """A connection that said hello."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(SLOW)
        try:
            self.socket.connect(path)
            self.call(HELLO, b"\x08\1\x10\1")
        except OSError:
            self.socket.close()
            raise

    def receive(self, size):
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionResetError("the daemon hung up")
            data += more
        return data

    def call(self, method, body=b""):
        self.socket.sendall(frame(method, 7, body))
        head = self.receive(24)
        length, got, kind, _, code, tag = struct.unpack("<IHBBiQ", head[4:])
        assert (got, kind, tag) == (method, REPLY, 7), head
        return code, self.receive(length)


class Daemon:
    def __init__(self, *args, env=None, wait=True, **kwargs):
        self.process = subprocess.Popen(
            [ZSHARDD, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={"PATH": os.environ["PATH"], **(env or {})}, **kwargs)
        self.ready = {}
        if wait:
            line = self.process.stdout.readline()
            if not line.startswith("ready "):
                raise AssertionError(f"'{line}', {self.process.communicate()}")
            self.ready = dict(word.split("=", 1) for word in line.split()[1:])

    def end(self, signum=signal.SIGTERM):
        """Exit status, the rest of standard output, standard error."""
        if signum:
            self.process.send_signal(signum)
        out, err = self.process.communicate(timeout=SLOW)
        return self.process.returncode, out, err


class Process(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="zshard-process-")
        os.chmod(self.dir, 0o755)
        self.running = []

    def tearDown(self):
        for daemon in self.running:
            if daemon.process.poll() is None:
                daemon.process.kill()
            daemon.process.communicate()
        shutil.rmtree(self.dir)

    def client(self):
        client = Client(self.path("s"))
        self.addCleanup(client.socket.close)
        return client

    def path(self, name):
        return os.path.join(self.dir, name)

    def start(self, *args, **kwargs):
        daemon = Daemon(*args, **kwargs)
        self.running.append(daemon)
        return daemon

    def usual(self, *args, **kwargs):
        return self.start("--socket", self.path("s"), "--data", self.path("data"),
                          "--host-bytes", "64M", "--nvme-bytes", "8M", *args, **kwargs)

    def test_ready_line(self):
        ready = self.usual("--io", "threads", "--threads", "2").ready
        self.assertEqual(ready["socket"], self.path("s"))
        self.assertEqual(ready["data"], self.path("data"))
        self.assertEqual(ready["host_bytes"], str(64 << 20))
        self.assertEqual(ready["nvme_bytes"], str(8 << 20))
        self.assertEqual(ready["io"], "threads")
        self.assertEqual(ready["threads"], "2")

    def test_each_signal_ends_it_in_good_order(self):
        for signum in signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT:
            daemon = self.usual()
            client = self.client()
            self.assertEqual(client.call(PING), (0, b""))
            status, out, err = daemon.end(signum)
            self.assertEqual((status, out), (0, ""), err)
            self.assertIn("ended status=0", err)
            self.assertEqual(os.listdir(self.dir), ["data"])
            with self.assertRaises(ConnectionResetError):
                client.receive(1)

    def test_other_signals_do_not_end_it(self):
        daemon = self.usual()
        for signum in signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXFSZ:
            daemon.process.send_signal(signum)
        self.assertEqual(self.client().call(PING), (0, b""))
        status, _, err = daemon.end()
        self.assertEqual(status, 0, err)
        for name in "ALRM", "USR1", "USR2":
            self.assertIn("signal-ignored name=" + name, err)

    def test_too_few_descriptors(self):
        for most in 12, 13, 14, 40:
            def limit():
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            status, out, err = self.start("--socket", self.path("s"), "--data", self.path("data"), wait=False,
                                          preexec_fn=limit).end(None)
            self.assertEqual((status, out), (1, ""), err)
            self.assertIn(f"this process may open {most} files (RLIMIT_NOFILE", err)

    def test_killed_and_started_again(self):
        self.usual().end(signal.SIGKILL)
        self.assertEqual(sorted(os.listdir(self.dir)), ["data", "s", "s.lock"])
        daemon = self.usual()
        self.assertEqual(self.client().call(PING), (0, b""))
        self.assertEqual(daemon.end()[0], 0)

    def test_killed_it_leaves_no_temporary_data(self):
        tmp = self.path("tmp")
        os.mkdir(tmp)
        daemon = self.start("--socket", self.path("s"), "--host-bytes", "64M", "--nvme-bytes", "8M",
                            env={"TMPDIR": tmp})
        self.assertEqual(os.path.dirname(daemon.ready["data"]), tmp)
        daemon.end(signal.SIGKILL)
        for _, _, files in os.walk(tmp):
            self.assertEqual(files, [])

    def test_without_options_as_any_user(self):
        run, tmp = self.path("run"), self.path("tmp")
        for directory in run, tmp:
            os.mkdir(directory)
            os.chmod(directory, 0o777)
        other = {} if os.geteuid() else {"user": 65534, "group": 65534, "extra_groups": []}
        if other and not os.access(ZSHARDD, os.X_OK):
            self.skipTest("another user may not run it")
        try:
            daemon = self.start(env={"XDG_RUNTIME_DIR": run, "TMPDIR": tmp}, **other)
        except PermissionError:
            self.skipTest("another user may not run it where it lies")
        self.assertEqual(daemon.ready["socket"], os.path.join(run, "zshard.sock"))
        self.assertGreater(int(daemon.ready["host_bytes"]), 0)
        self.assertEqual(os.stat(daemon.ready["data"]).st_mode & 0o777, 0o700)
        status, _, err = daemon.end()
        self.assertEqual(status, 0, err)
        self.assertEqual(os.listdir(run) + os.listdir(tmp), [])

    def test_without_a_place_for_the_socket(self):
        if os.geteuid() == 0:
            self.skipTest("root has /run/zshard")
        status, _, err = self.start(wait=False).end(None)
        self.assertEqual(status, 1)
        self.assertIn("give --socket, or set XDG_RUNTIME_DIR", err)

    def test_socket_in_use(self):
        first = self.usual()
        second = self.start("--socket", self.path("s"), "--data", self.path("data2"),
                            "--nvme-bytes", "8M", wait=False)
        status, out, err = second.end(None)
        self.assertEqual((status, out), (3, ""))
        self.assertIn("in use by another daemon", err)
        self.assertEqual(self.client().call(PING), (0, b""))
        self.assertEqual(first.end()[0], 0)

    def test_data_in_use(self):
        self.usual()
        second = self.start("--socket", self.path("s2"), "--data", self.path("data"),
                            "--nvme-bytes", "8M", wait=False)
        status, out, err = second.end(None)
        self.assertEqual((status, out), (3, ""))
        self.assertIn("in use by another daemon", err)
        self.assertNotIn("s2", os.listdir(self.dir))

    def test_failed(self):
        with open(self.path("file"), "w", encoding="ascii"):
            pass
        daemon = self.start("--socket", self.path("s"), "--data", self.path("file"), wait=False)
        status, out, err = daemon.end(None)
        self.assertEqual((status, out), (1, ""))
        self.assertIn("data directory", err)
        self.assertEqual(os.listdir(self.dir), ["file"])

    def test_wrong_options(self):
        with open(self.path("conf"), "w", encoding="ascii") as conf:
            conf.write("# nothing\nhost_byte = 5\n")
        for args, says in ((["--nope"], "unknown option '--nope'"),
                           (["--host-bytes", "5Q"], "--host-bytes must be a size"),
                           (["--socket", "/" + 200 * "s"], "path is 201 bytes long"),
                           (["--config", "/no/such"], "/no/such"),
                           (["--config", self.path("conf")], "conf:2: unknown option 'host_byte'"),
                           (["--check-config", "--config", self.path("conf")], "conf:2: ")):
            status, out, err = self.start(*args, wait=False).end(None)
            self.assertEqual((status, out), (2, ""), args)
            self.assertIn(says, err)
            self.assertEqual(err.count("\n"), 1)

    def test_words(self):
        for args, says in ((["--help"], "--host-bytes SIZE"), (["--version"], "zshardd "),
                           (["--check-config"], "is fine"),
                           (["--check-config", "--config", SOURCE + "/deploy/zshardd.conf"],
                            "is fine")):
            status, out, err = self.start(*args, wait=False).end(None)
            self.assertEqual((status, err), (0, ""), args)
            self.assertIn(says, out)

    def test_service_manager_is_told(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(self.path("notify"))
            manager.settimeout(SLOW)
            daemon = self.usual(env={"NOTIFY_SOCKET": self.path("notify")})
            self.assertEqual(manager.recv(64), b"READY=1")
            self.assertEqual(daemon.end()[0], 0)
            self.assertEqual(manager.recv(64), b"STOPPING=1")

    def test_idle_it_sleeps(self):
        daemon = self.usual()
        client = self.client()
        status = f"/proc/{daemon.process.pid}/status"

        def switches():
            with open(status, encoding="ascii") as file:
                return sum(int(line.split()[1]) for line in file if "ctxt_switches" in line)

        before = switches()
        time.sleep(1)
        self.assertLess(switches() - before, 10)  # a tick every 20 ms would be 50
        self.assertEqual(client.call(PING), (0, b""))

    def test_standard_files_closed(self):
        def close_all():
            for fd in range(3):
                os.close(fd)

        process = subprocess.Popen(
            [ZSHARDD, "--socket", self.path("s"), "--data", self.path("data"), "--nvme-bytes", "8M",
             "--host-bytes", "64M", "--log-level", "debug"], preexec_fn=close_all)
        deadline = time.monotonic() + SLOW
        while not os.path.exists(self.path("s")) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        self.assertEqual(self.client().call(PING), (0, b""))
        self.assertEqual([os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in range(3)],
                         3 * ["/dev/null"])
        process.terminate()
        self.assertEqual(process.wait(SLOW), 0)

    def test_reader_of_the_line_has_gone(self):
        daemon = self.usual(wait=False)
        daemon.process.stdout.close()
        deadline = time.monotonic() + SLOW
        while time.monotonic() < deadline:
            try:
                self.assertEqual(self.client().call(PING), (0, b""))
                break
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.01)
        daemon.process.stdout = None
        daemon.process.terminate()
        self.assertEqual(daemon.process.wait(SLOW), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
