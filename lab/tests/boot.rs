//! The lab itself: guests boot, talk, run commands, are migrated, and leave nothing behind.

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{pidfd_open, Pid, PidfdFlags};
use sidecore_lab::{Guest, Nic, Result};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn two_guests_ping_and_run_iperf3_over_a_cable() -> Result<()> {
    let (left, right) = Nic::cable("virtio-net-pci")?;
    let mut a = Guest::named("a").nic(left).boot()?;
    let mut b = Guest::named("b").nic(right).boot()?;
    a.expect("ip addr add 10.0.0.1/24 dev eth0 && ip link set eth0 up")?;
    b.expect("ip addr add 10.0.0.2/24 dev eth0 && ip link set eth0 up")?;
    let pings = a.expect("ping -c 3 10.0.0.2")?;
    assert!(pings.contains("3 packets received"), "{pings}");

    let server = b.run_in_background("iperf3 --server --one-off")?;
    b.wait_until("netstat -lnt | grep -q :5201", LIMIT)?;
    let report = a.expect("iperf3 --client 10.0.0.2 --time 1 --json")?;
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert!(report["end"]["sum_received"]["bytes"].as_u64().unwrap() > 0, "{report}");
    assert!(b.wait_for(server, LIMIT)?.success());

    a.power_off()?;
    b.power_off()
}

#[test]
fn commands_keep_their_output_status_and_order() -> Result<()> {
    let mut guest = Guest::named("commands").file("/root/note", 0o600, b"from the test".to_vec()).boot()?;
    assert_eq!(guest.expect("cat /root/note")?, "from the test");
    assert_eq!(guest.expect("hostname")?, "commands\n");
    let big = guest.expect("seq 1 20000")?;
    assert_eq!(big.lines().count(), 20_000, "long output arrives whole");
    let long = "x".repeat(20_000);
    assert_eq!(guest.expect(&format!("echo {long} | wc -c"))?, "20001\n", "a long command arrives whole");
    assert_eq!(guest.run("exit 3")?.status, 3);
    let error = guest.expect("echo oops; false").unwrap_err().to_string();
    assert!(error.contains("oops") && error.contains("status 1") && error.contains("console.log"), "{error}");
    let job = guest.run_in_background("sleep 1000")?;
    guest.stop(job)?;
    assert_eq!(guest.wait_for(job, LIMIT)?.status, 143);
    let status = guest.qmp(serde_json::json!({"execute": "query-status"}))?;
    assert_eq!(status["status"], "running");
    guest.power_off()
}

#[test]
fn intel_cards_and_modules_work() -> Result<()> {
    let (left, right) = Nic::cable("e1000e")?;
    let mut guest = Guest::named("intel")
        .nic(left.mac("52:54:00:aa:00:01"))
        .nic(right)
        .nic(Nic::unplugged("e1000"))
        .boot()?;
    let driver =
        |guest: &mut Guest, nic: &str| guest.expect(&format!("ethtool -i {nic} | sed -n 's/^driver: //p'"));
    assert_eq!(driver(&mut guest, "eth0")?, "e1000e\n");
    assert_eq!(driver(&mut guest, "eth2")?, "e1000\n");
    assert_eq!(guest.expect("cat /sys/class/net/eth0/address")?.trim(), guest.mac(0).unwrap());
    guest.expect("modprobe pktgen && test -d /proc/net/pktgen")?;
    guest.expect("modprobe -a 8021q veth bridge bonding team macvlan macvtap tun vxlan dummy vfio_pci uio_pci_generic sch_fq")?;
    guest.power_off()
}

#[test]
fn a_running_guest_moves_to_another_qemu() -> Result<()> {
    let spec = |nic| Guest::named("mover").nic(nic);
    let (first, peer) = Nic::cable("virtio-net-pci")?;
    let (second, _unplugged) = Nic::cable("virtio-net-pci")?;
    drop(peer);
    let mut guest = spec(first).boot()?;
    guest.expect("echo remembered > /tmp/note")?;
    let job = guest.run_in_background("until [ -e /tmp/go ]; do usleep 1000; done; cat /tmp/note")?;
    let (before, mac) = (guest.pid(), guest.mac(0).map(str::to_owned));
    let (mut guest, migration) = guest.migrate_to(spec(second))?;
    assert_ne!(guest.pid(), before);
    assert_eq!(guest.mac(0).map(str::to_owned), mac, "cards keep their address");
    assert!(migration.downtime_ms <= migration.total_ms, "{migration:?}");
    guest.expect("touch /tmp/go")?;
    assert_eq!(guest.wait_for(job, LIMIT)?.text, "remembered\n");
    guest.power_off()
}

#[test]
fn a_kernel_that_panics_is_reported_with_its_console() -> Result<()> {
    let mut guest = Guest::named("panics").boot()?;
    let error = guest.run("echo c > /proc/sysrq-trigger").unwrap_err().to_string();
    assert!(error.contains("the VM is gone") && error.contains("sysrq triggered crash"), "{error}");
    guest.kill();
    Ok(())
}

#[test]
fn qemu_that_refuses_an_argument_is_reported_with_its_words() {
    let error = Guest::named("refused").argument("-nonsense").boot().err().unwrap().to_string();
    assert!(error.contains("-nonsense") && error.contains("invalid option"), "{error}");
}

#[test]
fn a_guest_dies_with_the_process_that_started_it() {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_sidecore-lab"))
        .arg("shell")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Its first output is the guest's: by then QEMU runs.
    let mut output = lab.stdout.take().unwrap();
    output.read_exact(&mut [0]).unwrap();
    let threads = std::fs::read_dir(format!("/proc/{}/task", lab.id())).unwrap();
    let children = threads.map(|t| std::fs::read_to_string(t.unwrap().path().join("children")).unwrap());
    let pids: Vec<i32> =
        children.flat_map(|c| c.split_whitespace().map(|p| p.parse().unwrap()).collect::<Vec<_>>()).collect();
    let [qemu] = pids[..] else { panic!("one child, QEMU: {pids:?}") };
    let qemu = pidfd_open(Pid::from_raw(qemu).unwrap(), PidfdFlags::empty()).unwrap();
    lab.kill().unwrap();
    lab.wait().unwrap();
    let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&qemu, PollFlags::IN)], Some(&limit)), Ok(1), "QEMU still runs");
    // Open until here: QEMU has not ended for want of a reader.
    drop(output);
}
