"""SIGKILL, at any instant."""

import random
import time

from outside import vfio
from outside.case import attack
from outside.daemon import Failure, until
from outside.flow import Neighbours, pause


@attack("kill")
def kill_a_vmm(stage):
    """VMMs are killed in the middle of their traffic, and come again."""
    stage.start("vhost-user:DIR/evil.sock", ports=["evil1=e1000:DIR/evil1.sock,switch=evil"])
    chance = random.Random(1)
    with stage.during():
        for _ in range(40 if stage.full else 12):
            all_of = [stage.helper("flood", stage.at("evil.sock"), 20, "--sources", 50),
                      stage.helper("storm", stage.at("evil1.sock"), 20, 0x400, 2, 0)]
            pause(chance.uniform(0.02, 0.15))
            for helper in all_of:
                helper.process.kill()
                helper.process.communicate()
            stage.progress("behind a killed VMM")


@attack("kill")
def kill_the_daemon(stage):
    """The daemon is killed under neighbours' traffic, and started again."""
    stage.start(reconnect=True)
    chance, kills = random.Random(2), 0
    for _ in range(10 if stage.full else 4):
        pause(chance.uniform(0.05, 0.3))
        stage.daemon.process.kill()
        stage.daemon.process.wait()
        kills += 1
        if not stage.daemon.start():
            raise Failure(f"it does not start again: {stage.daemon.ending()}")
        got = stage.neighbours.got()
        until(lambda: stage.daemon.alive() and stage.neighbours.got() > got, 15, "neighbours' traffic after a restart")
    stage.first_pid = stage.daemon.pid
    last = stage.neighbours.end()
    flow = last["flows"][0]
    stage.notes.update(kills=kills, frames=flow["got"], doubled=flow["doubled"], lost=flow["lost"])
    stage.check(not flow["altered"], f"{flow['altered']} frames are altered")
    # What the daemon had sent on and not yet given back when it was killed is sent on again: a batch at most.
    stage.check(flow["doubled"] <= 256 * kills, f"{flow['doubled']} frames came twice after {kills} kills")
    stage.check(last["hangups"] <= 4 * kills, f"{last['hangups']} hang-ups after {kills} kills")
    stage.conserved()
    stage.daemon.stop()
    stage.spared.add("end")


@attack("kill")
def kill_clients(stage):
    """Clients of the control socket, captures and the sockets of ring ports are killed at any instant."""
    import os
    import signal
    import subprocess
    stage.start(ports=["r=ring:DIR/r.sock,switch=evil"])
    chance = random.Random(3)
    env = {**os.environ, "SIDECORE_SOCKET": stage.daemon.control}
    binary = stage.options.binary
    with stage.during():
        for i in range(40 if stage.full else 12):
            what = (["capture", "a"], ["show", "ports"], ["pkt-gen", "-i", stage.at("r.sock"), "-f", "tx"])[i % 3]
            client = subprocess.Popen([binary, *what], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            pause(chance.uniform(0.0, 0.15))
            client.send_signal(signal.SIGKILL)
            client.wait()
        stage.progress("behind killed clients")
