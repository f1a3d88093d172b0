"""A daemon in a folder of its own, its control socket, and what the system knows of its process."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time


class Failure(Exception):
    """Something that was promised does not hold."""


# A loaded machine gets so many times what a thing takes elsewhere: only a failure takes that long.
PATIENCE = 4


def until(condition, seconds, what):
    """Waits for `condition`; its value."""
    seconds *= PATIENCE
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Failure(f"within {seconds} s: not {what}")
        time.sleep(0.02)


def http(path, method, target, body=None, timeout=40.0):
    """One request on a Unix socket: the status, and the answer, as JSON if it is."""
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(timeout)
        s.connect(path)
        s.sendall((head + f"content-length: {len(data)}\r\n\r\n").encode() + data)
        answer = b""
        while True:
            piece = s.recv(1 << 16)
            if not piece:
                break
            answer += piece
    head, _, rest = answer.partition(b"\r\n\r\n")
    if not head:
        raise Failure(f"{method} {target}: no answer")
    if b"chunked" in head.lower():
        whole = b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            if not length:
                break
            whole, rest = whole + rest[:length], rest[length + 2:]
        rest = whole
    try:
        rest = json.loads(rest)
    except ValueError:
        rest = rest.decode(errors="replace")
    return int(head.split()[1]), rest


def parent(number):
    """The parent of a process, and the words it was started with: one that is ending has none any more."""
    try:
        with open(f"/proc/{number}/stat") as stat, open(f"/proc/{number}/cmdline", "rb") as line:
            return int(stat.read().rsplit(") ", 1)[1].split()[1]), line.read().split(b"\0")
    except (OSError, IndexError):
        return 0, []


def helpers(daemon):
    """The processes that this daemon's broker has started, and what each is."""
    every = {int(n): parent(n) for n in os.listdir("/proc") if n.isdigit()}
    brokers = [n for n, (of, _) in every.items() if of == daemon.pid]
    kinds = {b"door": "door", b"hold": "hold"}
    return {n: next((kinds[word] for word in words if word in kinds), None) for n, (of, words) in every.items() if of in brokers}


def openers():
    """Processes of the program that open files of disks, whichever daemon's they are."""
    return [n for n in map(int, filter(str.isdigit, os.listdir("/proc"))) if b"open-disk" in parent(n)[1]]


def doors(daemon):
    """Those that receive descriptors, or are ending."""
    return [n for n, kind in helpers(daemon).items() if kind != "hold"]


def holders(daemon):
    """Those that keep descriptors for the next daemon."""
    return [n for n, kind in helpers(daemon).items() if kind == "hold"]


class Daemon:
    """`sidecore run` with a folder of its own, which goes away with it."""

    def __init__(self, binary, cores, ports=(), switches=(), args=(), folder=None, env=None, before=None, ready=80.0, start=True):
        self.binary = binary
        self.mine = folder is None
        self.folder = folder or tempfile.mkdtemp(prefix="sidecore-attack-")
        os.chmod(self.folder, 0o755)
        self.control = os.path.join(self.folder, "control.sock")
        self.command = [binary, "run", "--socket", self.control, "--cores", ",".join(map(str, cores))]
        for name in switches:
            self.command += ["--switch", name]
        for port in ports:
            self.command += ["--port", port.replace("DIR", self.folder)]
        self.command += [arg.replace("DIR", self.folder) for arg in args]
        self.env = {**os.environ, **(env or {})}
        self.env.pop("NOTIFY_SOCKET", None)
        self.before = before
        self.process = None
        self.lines = []
        if start:
            self.start(ready)

    def start(self, ready=80.0):
        """Starts it and waits for `ready`; false if it ended instead."""
        self.process = subprocess.Popen(
            self.command, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=self.before, text=True, errors="replace")
        self.pid = self.process.pid
        process, said = self.process, threading.Event()

        def read(stream, into):
            for line in stream:
                into(line.rstrip("\n"))
            said.set()

        def out(line):
            if line == "ready":
                self.is_ready = True
                said.set()

        self.is_ready = False
        for stream, into in ((process.stdout, out), (process.stderr, self.lines.append)):
            threading.Thread(target=read, args=(stream, into), daemon=True).start()
        said.wait(ready)
        return self.is_ready

    def path(self, name):
        return os.path.join(self.folder, name)

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def ending(self):
        """How it ended, in words."""
        code = self.process.poll()
        if code is None:
            return "it runs"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"{how}; its last words: {' | '.join(self.lines[-3:])[-400:] or 'none'}"

    def ask(self, method, target, body=None, timeout=40.0, wanted=200):
        status, answer = http(self.control, method, target, body, timeout)
        if wanted is not None and status != wanted:
            raise Failure(f"{method} {target}: {status} {answer}")
        return answer

    def name(self, kind, path):
        """Tells the broker, as an operator may, what may be at `path`: `s` a socket, `c` a call, `j` a journal, `p` a program; or `i` of an interface."""
        operators = self.path("ring/.operators")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            try:
                s.sendto(kind.encode() + path.encode(), operators)
            except FileNotFoundError:
                pass  # The sandbox is off, or the broker is gone.

    def ports(self, timeout=40.0):
        answer = self.ask("GET", "/v1/ports", timeout=timeout)
        return {p["name"]: p for p in answer["ports"]}

    def port(self, name):
        return self.ports()[name]

    def log(self, text):
        """The lines of its log with `text` in them."""
        return [line for line in self.lines if text in line]

    def usage(self):
        """Descriptors, threads, maps, KiB in memory."""
        at = f"/proc/{self.pid}"
        status = dict(line.split(":", 1) for line in open(f"{at}/status").read().splitlines() if ":" in line)
        threads = {}
        for tid in os.listdir(f"{at}/task"):
            try:
                name = open(f"{at}/task/{tid}/comm").read().strip()
            except OSError:
                continue
            threads[name] = threads.get(name, 0) + 1
        return {
            "fds": len(os.listdir(f"{at}/fd")),
            # Beside a pool for requests that grows and shrinks within bounds.
            "threads": sum(n for name, n in threads.items() if name != "tokio-rt-worker")
            + max(0, threads.get("tokio-rt-worker", 0) - 8),
            "names": threads,
            "maps": open(f"{at}/maps").read().count("\n"),
            "rss_kib": sum(int(status[what].split()[0]) for what in ("RssAnon", "RssShmem")),
            "children": len(self.children()),
        }

    def children(self):
        return [n for n in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent(n)[0] == self.pid]

    def stop(self, seconds=60.0):
        """SIGTERM; how many seconds it took to end."""
        start = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failure(f"SIGTERM has not ended it within {seconds} s") from None
        return time.monotonic() - start

    def kill(self):
        if self.process is not None:
            kids = self.children() if self.alive() else []
            if self.alive():
                self.process.kill()
            self.process.wait()
            for kid in kids:  # holders: they would wait for another daemon
                try:
                    if b"sidecore" in open(f"/proc/{kid}/cmdline", "rb").read():
                        os.kill(kid, signal.SIGKILL)
                except OSError:
                    pass

    def remove(self):
        self.kill()
        if self.mine:
            shutil.rmtree(self.folder, ignore_errors=True)
