//! The daemon is killed in the middle of traffic, and no frame is lost.

use std::process::{Child, Command};

use sidecore_abi::virtio::features as f;
use sidecore_driver::frontend::protocol;
use sidecore_driver::net::NetDriver;

use super::{config, Rig, Role, Stream};

#[test]
#[ignore = "the process that a_killed_daemon_loses_nothing kills"]
fn daemon() {
    let dir = std::env::var_os("SIDECORE_TEST_DIR").unwrap();
    let role = if std::env::var_os("SIDECORE_TEST_CLIENT").is_some() { Role::Client } else { Role::Server };
    let rig = Rig::at(dir.into());
    let _ports = [rig.attach(0, role), rig.attach(1, role)];
    loop {
        std::thread::park();
    }
}

struct Daemon(Child);

impl Daemon {
    fn start(rig: &Rig, role: Role) -> Daemon {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "vhost_user::killed::daemon", "--ignored", "--nocapture"])
            .env("SIDECORE_TEST_DIR", &rig.dir);
        if role == Role::Client {
            command.env("SIDECORE_TEST_CLIENT", "1");
        }
        Daemon(command.stdout(std::process::Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Daemon {
    /// SIGKILL.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_daemon_loses_nothing() {
    for features in
        [0, f::EVENT_IDX | f::IN_ORDER, f::RING_PACKED, f::RING_PACKED | f::EVENT_IDX | f::IN_ORDER]
    {
        for role in [Role::Server, Role::Client] {
            // Without INFLIGHT_SHMFD, as QEMU's network devices are: only our own journal knows.
            let mut config = config(features);
            config.want.protocol &= !protocol::INFLIGHT_SHMFD;
            let rig = Rig::new(&format!("kill{features}{role:?}"));
            let mut daemon = Daemon::start(&rig, role);
            let mut a = NetDriver::start(rig.meet(0, role), config).unwrap();
            let mut b = NetDriver::start(rig.meet(1, role), config).unwrap();
            let stale = vec![a.session().first_base(); 2];
            let mut stream = Stream::default();
            let rounds = std::env::var("KILLS").map_or(8, |kills| kills.parse().unwrap());
            for round in 1..=rounds {
                stream.run(&mut a, &mut b, round * 500);
                stream.send(&mut a);
                // Death comes at another moment of the batch each time.
                (0..round * 131 % 4099).for_each(|_| std::hint::spin_loop());
                drop(daemon);
                daemon = Daemon::start(&rig, role);
                // The receiver first: what is sent to a port without a peer is dropped.
                b.reconnect_at(rig.meet(1, role), &stale).unwrap();
                a.reconnect_at(rig.meet(0, role), &stale).unwrap();
            }
            let until = stream.next;
            stream.run(&mut a, &mut b, until);
            println!("{features:#x} {role:?}: {until} frames, {} came twice", stream.twice);
        }
    }
}
