"""Neighbours: the program `traffic`, and what it reports."""

import glob
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time

from .daemon import Failure, until

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_program = None


def program():
    """Builds `traffic`, once a run; the program's path."""
    global _program
    if _program is None:
        folder = tempfile.mkdtemp(prefix="sidecore-attack-traffic-")
        _program = os.path.join(folder, "traffic")
        sources = sorted(glob.glob(os.path.join(HERE, "traffic", "*.c")))
        subprocess.run(["cc", "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", _program, *sources], check=True)
    return _program


def remove_program():
    global _program
    if _program is not None:
        os.remove(_program)
        os.rmdir(os.path.dirname(_program))
        _program = None


def on(cpus):
    """For `preexec_fn`: only on these processors."""
    return lambda: os.sched_setaffinity(0, cpus)


class Neighbours:
    """A verified flow and a ping pair."""

    def __init__(self, daemon, cpus, flow=("a", "b"), ping=("c", "d"), both=False, reconnect=False):
        command = [program(), "neighbours"]
        at = lambda name: daemon.path(name + ".sock")
        if flow:
            command += ["--flow", at(flow[0]), at(flow[1])]
        if ping:
            command += ["--ping", at(ping[0]), at(ping[1])]
        command += ["--both"] * both + ["--reconnect"] * reconnect
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=on(cpus))
        self.samples = []
        self.errors = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        threading.Thread(target=lambda: self.errors.extend(self.process.stderr), daemon=True).start()
        until(lambda: self.samples or self.process.poll() is not None, 20, "the first report of the neighbours")
        self.alive()

    def _read(self):
        for line in self.process.stdout:
            self.samples.append(json.loads(line))

    def alive(self):
        if self.process.poll() is not None and self.process.returncode != 0:
            raise Failure(f"the neighbours' own check ended them: {' '.join(self.errors)}")

    def last(self):
        return self.samples[-1]

    def got(self):
        return sum(f["got"] for f in self.last()["flows"])

    def phase(self, start, end):
        """What came between two moments (of time.monotonic)."""
        inside = [s for s in self.samples if start <= s["at"] <= end]
        if len(inside) < 2:
            return None
        first, last = inside[0], inside[-1]
        took = last["at"] - first["at"]
        total = lambda s, what: sum(f[what] for f in s["flows"])
        spread, kept = {}, {}
        for s in inside[1:]:
            for into, what in ((spread, "spread"), (kept, "kept")):
                for bucket, count in s["ping"][what]:
                    into[bucket] = into.get(bucket, 0) + count
        worst, gap = 0.0, None
        for one, two in zip(inside, inside[1:]):
            rate = (total(two, "got") - total(one, "got")) / max(two["at"] - one["at"], 1e-6)
            gap = rate if gap is None else min(gap, rate)
            worst = max(worst, two["ping"]["longest_ns"] / 1e3)
        return {
            "seconds": round(took, 2),
            "pps": round((total(last, "got") - total(first, "got")) / max(took, 1e-6)),
            "least_pps": round(gap),
            "lost": max(0, total(last, "lost") - total(first, "lost")),
            "pings": last["ping"]["answers"] - first["ping"]["answers"],
            "pings_lost": last["ping"]["lost"] - first["ping"]["lost"],
            "p50_us": percentile(spread, 0.5),
            "p99_us": percentile(spread, 0.99),
            # Of the pings during which the neighbours' own program kept its processor: what the I/O core does to them.
            "p99_kept_us": percentile(kept, 0.99),
            "kept": round(sum(kept.values()) / max(sum(spread.values()), 1), 3),
            "longest_us": round(worst, 1),
        }

    def end(self):
        """Lets what is under way arrive; the last report."""
        if self.process.poll() is None and not self.process.stdin.closed:
            self.process.stdin.close()
            try:
                self.process.wait(90)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise Failure("the neighbours do not end") from None
        self.reader.join(5)
        self.alive()
        return self.last()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join(5)
        # An attack may be about how few descriptors there are, and this program has run others before.
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()


def value(bucket):
    """Microseconds of a bucket's middle."""
    if bucket < 16:
        return bucket / 1e3
    top = bucket // 16 + 3
    return ((16 + bucket % 16) + 0.5) * 2 ** (top - 4) / 1e3


def percentile(spread, part):
    total = sum(spread.values())
    if not total:
        return None
    left = total * part
    for bucket in sorted(spread):
        left -= spread[bucket]
        if left <= 0:
            return round(value(bucket), 1)
    return None


class Helper:
    """An attacker that is another process of `traffic`."""

    def __init__(self, cpus, *args):
        self.process = subprocess.Popen([program(), *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=on(cpus))

    def end(self, seconds=60):
        try:
            out, errors = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise Failure("an attacking program does not end") from None
        if self.process.returncode:
            raise Failure(f"attacking program: {errors.strip()}")
        return json.loads(out)


class BusyLoop:
    """The control measurement: a process that only uses the attacker's processor."""

    def __init__(self, cpus, count=1):
        self.all = [subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=on(cpus)) for _ in range(count)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.all:
            process.kill()
            process.wait()


def pause(seconds):
    """Lets traffic pass for a while: the length of a measurement, never what decides a test."""
    time.sleep(seconds)


class Beside:
    """`work`, again and again, in a process of its own (on `cpus`), until the block ends."""

    def __init__(self, work, cpus=None):
        self.stop = multiprocessing.get_context("fork").Event()

        def run():
            if cpus:
                os.sched_setaffinity(0, cpus)
            while not self.stop.is_set():
                work()
            os._exit(0)

        self.process = multiprocessing.get_context("fork").Process(target=run, daemon=True)

    def __enter__(self):
        self.process.start()

    def __exit__(self, *_):
        self.stop.set()
        self.process.join(20)
        self.process.kill()
