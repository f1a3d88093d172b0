"""An attack: what it declares, what it may use, and what is judged for every one of them."""

import contextlib
import fcntl
import gc
import os
import select
import resource
import shutil
import tempfile
import time
import traceback

from .daemon import Daemon, Failure, until
from .flow import BusyLoop, Helper, Neighbours, pause

ALL = {}


def attack(needs=(), most=False):
    """Declares a function of one `Stage` as an attack. `most`: it is one of those that have found most, which every commit is tried with."""

    def declare(function):
        name = function.__name__.replace("_", "-")
        assert name not in ALL, name
        ALL[name] = function
        function.needs, function.most, function.summary = needs, most, function.__doc__.strip().split("\n")[0]
        function.subject = function.__module__.removeprefix("cases.")
        return function

    return declare


def require(needs):
    """What an attack needs has to be there: what a machine cannot show has not passed."""
    if "root" in needs and os.getuid() != 0:
        raise Failure("run as root: this attack does what only root may")
    for need, path, what in (("hugetlb", "/proc/sys/vm/nr_hugepages", "huge pages"), ("fuse", "/dev/fuse", "FUSE"), ("tun", "/dev/net/tun", "TUN")):
        if need in needs and not os.path.exists(path):
            raise Failure(f"this attack needs a kernel with {what}: there is no {path}")


class Stage:
    """The daemon, its neighbours and the measurements of one attack.

    Ports a, b, c, d of switch `n` are the neighbours'; a port `evil` is the attacker's, on a switch of its own unless `beside` is true.
    """

    def __init__(self, options, name):
        self.options, self.name, self.full = options, name, options.full
        cpus = sorted(os.sched_getaffinity(0))
        self.core = cpus[-1]
        self.cpus = cpus[:-1] or cpus
        self.stack = contextlib.ExitStack()
        self.daemon = self.neighbours = None
        self.phases, self.notes = {}, {}
        self.problems = []
        self.lossless = True
        # What an attack may leave in the daemon's memory: more, where it says why.
        self.leaves_kib = 16 << 10
        self.spared = set()

    # -- building it up

    def cleanup(self, function, *args):
        self.stack.callback(function, *args)

    def crowd(self, fd):
        """Hangs 40,000 waiters on a descriptor: a signal takes milliseconds."""
        sets = [select.epoll() for _ in range(100)]
        self.cleanup(lambda: [one.close() for one in sets])
        for number in range(500, 900):
            # A set goes on to watch the file when the number under which it knows it is closed.
            other = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, number)
            for one in sets:
                one.register(other, select.EPOLLIN)
            os.close(other)

    def start(self, evil=None, beside=False, ports=(), switches=(), neighbours=True, macs=False, both=False, args=(), reconnect=False,
              ping=True, measure=True, **more):
        """Starts all of it, and measures what neighbours get before."""
        mac = lambda i: f",mac=02:00:00:00:aa:0{i}" if macs else ""
        list_of = [f"{p}=vhost-user:DIR/{p}.sock,switch=n{mac(i + 1)}" for i, p in enumerate("abcd")] if neighbours else []
        if evil:
            list_of.append(f"evil={evil},switch={'n' if beside else 'evil'}")
        list_of += ports
        self.daemon = Daemon(self.options.binary, [self.core], list_of, ["n", "evil", *switches], args, **more)
        self.cleanup(self.daemon.remove)
        if not self.daemon.is_ready:
            raise Failure(f"it does not start: {self.daemon.ending()}")
        self.first_pid = self.daemon.pid
        self.used_before = None
        self.lossless = not beside
        if neighbours:
            self.neighbours = Neighbours(self.daemon, self.cpus, ping=("c", "d") if ping else None, both=both, reconnect=reconnect)
            self.cleanup(self.neighbours.kill)
        self.settle()
        self.used_before = self.daemon.usage()
        if neighbours and measure:
            self.measure("before", 3 if self.full else 0.4)
            if self.full:
                with BusyLoop(self.cpus):
                    self.measure("busy", 3)
        return self.daemon

    def settle(self):
        """Threads that were needed for the start only are given a moment to go."""
        self.daemon.ports()

    def measure(self, name, seconds):
        start = time.monotonic()
        pause(seconds)
        self.phase(name, start)

    def phase(self, name, start):
        if self.neighbours:
            self.phases[name] = self.neighbours.phase(start - 0.11, time.monotonic())

    @contextlib.contextmanager
    def during(self, seconds=0):
        """The attack; afterwards neighbours have to go on."""
        start = time.monotonic()
        yield
        left = seconds - (time.monotonic() - start)
        if left > 0:
            pause(left)
        self.phase("during", start)
        self.progress("under the attack")

    @property
    def seconds(self):
        """How long an attack lasts that could go on for ever."""
        return 3.0 if self.full else 1.0

    def helper(self, *args, cpus=None):
        helper = Helper(cpus or self.cpus, *args)
        self.cleanup(lambda: helper.process.poll() is None and helper.process.kill())
        return helper

    def folder(self):
        """A folder outside the daemon's own, which goes away with the stage."""
        path = tempfile.mkdtemp(prefix="sidecore-attack-")
        os.chmod(path, 0o755)
        self.cleanup(shutil.rmtree, path, True)
        return path

    def undisturbed(self):
        """Other programs do not take the I/O core's processor: what they took would be charged to the port that was just served."""
        for thread in os.listdir(f"/proc/{self.daemon.pid}/task"):
            if open(f"/proc/{self.daemon.pid}/task/{thread}/comm").read().startswith("io-core"):
                os.sched_setscheduler(int(thread), os.SCHED_RR, os.sched_param(1))

    def served(self, name, frames=1):
        """Waits until the daemon has taken frames from a port: it does touch the memory."""
        until(lambda: self.alive() or self.daemon.port(name)["counters"]["in_frames"] >= frames, 10, f"a frame of port {name}")

    def at(self, name):
        return self.daemon.path(name)

    def descriptors(self, count):
        """This process may have so many until the attack is over."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), max(hard, count)))
        except ValueError as error:
            raise Failure(f"this attack needs {count} descriptors, and {hard} are allowed ({error}): run as root, or raise `ulimit -Hn`") from None
        self.cleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))

    # -- judging

    def check(self, condition, text):
        if not condition:
            self.problems.append(text)

    def judge(self, condition, text):
        """As `check`, of what depends on time: only where timing may be judged."""
        if self.full:
            self.check(condition, text)

    def alive(self):
        if not self.daemon.alive():
            raise Failure(f"the daemon has ended: {self.daemon.ending()}")

    def progress(self, when):
        """Neighbours get frames: awaited, so that only a standstill fails."""
        self.alive()
        if not self.neighbours:
            return
        self.neighbours.alive()
        got = self.neighbours.got()
        flows = [f["got"] for f in self.neighbours.last()["flows"]]

        def moved():
            self.alive()
            return all(f["got"] > before for f, before in zip(self.neighbours.last()["flows"], flows))

        try:
            until(moved, 15, "a frame more for neighbours")
        except Failure:
            self.alive()
            raise Failure(f"neighbours stand still {when}, after {got} frames") from None

    def control(self, when, seconds=40):
        """The control socket answers."""
        start = time.monotonic()
        try:
            self.daemon.ports(timeout=seconds)
        except (OSError, TimeoutError) as e:
            self.alive()
            raise Failure(f"the control socket does not answer within {seconds} s {when}: {e!r}") from None
        self.notes["control_ms"] = round(max(self.notes.get("control_ms", 0), 1e3 * (time.monotonic() - start)), 1)

    def conversation(self, name):
        """What the daemon counted of a port's conversations."""
        return self.daemon.port(name)["state"]["conversation"]

    def budget(self, name, start):
        """Changes by a port's messages are bounded: what may come at once, and what may follow in the time since `start`."""
        count = self.conversation(name)
        most = 8192 + 1000 + 2000 * (time.monotonic() - start)
        self.notes["changes"] = self.notes.get("changes", 0) + count["changes"]
        self.notes["held_ms"] = self.notes.get("held_ms", 0) + count["held_us"] // 1000
        self.check(count["changes"] <= most, f"{count['changes']} changes by {name}'s messages; {most:.0f} may be")

    def threads(self, but):
        """Threads of the daemon, and ticks of processor time of those whose name does not begin with `but`."""
        threads = ticks = 0
        for task in os.listdir(f"/proc/{self.daemon.pid}/task"):
            try:
                name, _, rest = open(f"/proc/{self.daemon.pid}/task/{task}/stat").read().partition("(")[2].rpartition(")")
            except OSError:
                continue
            fields = rest.split()
            threads += 1
            ticks += 0 if name.startswith(but) else int(fields[11]) + int(fields[12])
        return threads, ticks

    def fault(self, name, wanted=None):
        """Waits for a port's fault."""
        def there():
            self.alive()
            state = self.daemon.port(name)["state"]
            return state["peer"] in ("faulted", "waiting") and state
        try:
            state = until(there, 10, f"a fault of port {name}")
        except Failure as failure:
            state = self.daemon.port(name)["state"]
            raise Failure(f"{failure}; it is {state['peer']}, its fault {state.get('fault')}, its detail {state.get('detail')!r}") from None
        if wanted:
            said = str(state.get("fault"))
            self.check(wanted in said or self.daemon.log(wanted), f"port {name} has the fault {said!r} instead of {wanted!r}")

    def finish(self):
        """What holds after every attack."""
        self.alive()
        self.check(self.daemon.pid == self.first_pid, "another process is the daemon now")
        if self.neighbours:
            self.progress("after the attack")
            self.measure("after", 3 if self.full else 0.4)
        self.control("after the attack")
        self.back()
        if self.neighbours:
            last = self.neighbours.end()
            for i, flow in enumerate(last["flows"]):
                self.check(not flow["altered"], f"flow {i}: {flow['altered']} frames are altered")
                self.check(not flow["doubled"], f"flow {i}: {flow['doubled']} frames came twice")
                self.check(not flow["under_way"], f"flow {i}: {flow['under_way']} frames are still under way, seconds after the last one was sent")
                self.notes["lost"] = self.notes.get("lost", 0) + flow["lost"]
                if self.lossless:
                    self.check(not flow["lost"], f"flow {i}: {flow['lost']} of {flow['sent']} frames are lost; {self.neighbours_counts()}")
            self.notes["frames"] = sum(f["got"] for f in last["flows"])
            self.check(not last["hangups"], f"{last['hangups']} neighbours were hung up on")
        self.conserved()
        self.asleep()
        ports = self.daemon.ports()
        for name in "abcd" if self.neighbours else "":
            fault = ports[name]["state"].get("fault")
            self.check(not fault, f"port {name} has a fault: {fault}")
        self.timing()
        took = self.daemon.stop()
        self.judge(took < 10, f"SIGTERM took {took:.1f} s")
        self.check(self.daemon.process.returncode == 0, f"SIGTERM: {self.daemon.ending()}")

    def neighbours_counts(self):
        """What the daemon has counted at the flow's ports, which are all that tells a frame that it lost from one that it never saw."""
        ports = self.daemon.ports()

        def text(name):
            counters = ports[name]["counters"]
            drops = {why: n for why, n in counters["drops"].items() if n}
            return f"{name}: {counters['in_frames']} in, {counters['out_frames']} out, drops {drops}"
        return "; ".join(map(text, "ab"))

    def back(self):
        """Descriptors, threads, maps and memory are what they were."""
        before, now = self.used_before, {}

        def good():
            now.update(self.daemon.usage())
            # Three descriptors, a few maps and 16 MiB: what is made when it is first needed, and kept.
            return (now["fds"] <= before["fds"] + 3 and now["threads"] <= before["threads"]
                    and now["maps"] <= before["maps"] + 64 and now["rss_kib"] <= before["rss_kib"] + self.leaves_kib and now["children"] <= before["children"])
        try:
            until(good, 15, "back to before")
        except Failure:
            grown = {k: f"{before[k]} -> {now[k]}" for k in before if k != "names" and now[k] > before[k]}
            names = {k: v for k, v in now["names"].items() if v > before["names"].get(k, 0)}
            self.problems.append(f"not back to before: {grown}{f', threads {names}' if names else ''}")

    def asleep(self):
        """Without traffic the daemon needs next to no processor time."""
        def used():
            fields = open(f"/proc/{self.daemon.pid}/stat").read().rsplit(") ", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        def idle():
            before = used()
            pause(0.3)
            self.idle = used() - before
            return self.idle <= 0.15
        try:
            until(idle, 6, "asleep")
        except Failure:
            self.problems.append(f"with nothing to do the daemon uses {self.idle:.2f} s of 0.30 s")

    def conserved(self):
        """What came in came out or was dropped under a name."""
        def sums():
            answer = self.daemon.ask("GET", "/v1/ports")
            all_of = [p["counters"] for p in answer["ports"]] + [answer["retired"]]
            # What passes a port without a peer stays inside.
            inside = ("switch", "group", "router")
            ends = [p["counters"] for p in answer["ports"] if p["state"]["kind"] not in inside] + [answer["retired"]]
            came = sum(c["in_frames"] for c in ends) + sum(c["made"] for c in all_of)
            went = sum(c["out_frames"] for c in ends) + sum(sum(c["drops"].values()) for c in all_of)
            self.sums = came, went
            return came == went
        try:
            until(sums, 5, "conserved")
        except Failure:
            came, went = self.sums
            self.problems.append(f"{came} frames came in or were made, {went} went out or were dropped")

    def timing(self):
        """Rate and latency beside the busy loop's: only where timing may be judged."""
        busy, during = self.phases.get("busy"), self.phases.get("during")
        if not self.full or not busy or not during or "timing" in self.spared:
            return
        if busy["pps"]:
            self.notes["rate"] = round(during["pps"] / busy["pps"], 2)
            self.check(during["pps"] >= 0.8 * busy["pps"], f"{during['pps']} pps beside {busy['pps']} with a busy loop")
        if busy["p99_us"] and during["p99_us"]:
            self.notes["p99"] = round(during["p99_us"] / busy["p99_us"], 2)
            self.check(during["p99_us"] <= 2 * busy["p99_us"], f"p99 {during['p99_us']} us beside {busy['p99_us']} with a busy loop")
        if busy["p99_kept_us"] and during["p99_kept_us"]:
            self.notes["p99_kept"] = round(during["p99_kept_us"] / busy["p99_kept_us"], 2)


def run(name, options):
    """One attack; what came of it."""
    function = ALL[name]
    stage = Stage(options, name)
    start = time.monotonic()
    result = {"name": name, "subject": function.subject}
    try:
        require(function.needs)
        function(stage)
        if stage.daemon is not None and stage.daemon.process is not None and "end" not in stage.spared:
            stage.finish()
    except Failure as failure:
        stage.problems.append(str(failure))
    except Exception as error:  # one failure does not hide the rest
        for _ in range(20):  # the system tells of a process's end after its sockets are gone
            if stage.daemon is None or stage.daemon.process is None or not stage.daemon.alive():
                break
            pause(0.05)
        if stage.daemon is not None and stage.daemon.process is not None and not stage.daemon.alive():
            stage.problems.append(f"the daemon has ended: {stage.daemon.ending()}")
        else:
            where = traceback.extract_tb(error.__traceback__)
            mine = [f"{os.path.basename(f.filename)}:{f.lineno}" for f in where]
            stage.problems.append(f"{type(error).__name__}: {error} ({' '.join(mine[-4:])})")
    finally:
        try:
            stage.stack.close()
        except Exception as error:
            stage.problems.append(f"cleaning up: {type(error).__name__}: {error}")
    # Sockets and pipes that are held in circles: attacks about descriptors come after many others.
    gc.collect()
    if stage.problems and options.keep_log and stage.daemon is not None:
        result["log"] = stage.daemon.lines[-40:]
    result.update(problems=stage.problems, phases=stage.phases, notes=stage.notes, seconds=round(time.monotonic() - start, 1))
    return result
