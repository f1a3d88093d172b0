//! `pkt-gen` on interfaces of the host, in a network namespace of their own: TAPs on a Linux bridge without
//! any daemon, AF_XDP and AF_PACKET on veth pairs whose other ends the daemon has. Needs root and iproute2.

use std::process::{Command, Output, Stdio};

use crate::rig::net::Net;
use crate::rig::Daemon;

/// What these tests do with a network namespace.
trait PktGen {
    fn pkt_gen(&self, args: &str) -> Command;
    fn verify(&self, from: &str, to: &str, frames: u32, shape: &str);
}

impl PktGen for Net {
    fn pkt_gen(&self, args: &str) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_sidecore"));
        command.arg("pkt-gen").args(args.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// `frames` numbered frames from one port to another: none is lost, reordered or changed. The sender says
    /// hello until it is heard, so it does not matter when links and bridge ports come up.
    fn verify(&self, from: &str, to: &str, frames: u32, shape: &str) {
        let receiver = self.pkt_gen(&format!("-i {to} -f rx --verify -n {frames}")).spawn().unwrap();
        let sender = format!("-i {from} -f tx --verify -n {frames} --window 256 {shape}");
        let sent = said(self.pkt_gen(&sender).output().unwrap());
        let received = said(receiver.wait_with_output().unwrap());
        assert!(sent.contains(&format!("Sent {frames} packets ")), "{sent}");
        let verified = format!("Verified {frames} packets of 3 flows: 0 lost, 0 reordered, 0 corrupt; ");
        assert!(received.contains(&verified), "{received}");
    }
}

/// What a program that succeeded has printed.
fn said(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn frames_pass_a_linux_bridge_from_tap_to_tap() {
    let net = Net::new();
    net.ip("link add br0 type bridge");
    net.ip("link set br0 up");
    for tap in ["t0", "t1"] {
        net.ip(&format!("tuntap add {tap} mode tap"));
        net.ip(&format!("link set {tap} up master br0"));
    }
    net.verify("tap:t0", "tap:t1", 3000, "-l 60 -l 1514 -s 10.0.0.1-10.0.0.3");
    net.verify("tap:t1", "tap:t0", 3000, "-l 60 -s 10.0.0.1-10.0.0.3");
    // One that pkt-gen makes itself is gone afterwards.
    said(net.pkt_gen("-i tap:t2 -f tx -n 100").output().unwrap());
    net.ip("tuntap add t2 mode tap");
}

#[test]
fn frames_pass_the_daemon_from_af_xdp_to_af_packet() {
    let net = Net::new();
    for name in ["x", "p"] {
        net.ip(&format!("link add {name}0 type veth peer name {name}1"));
    }
    let mut command = net.command(env!("CARGO_BIN_EXE_sidecore"));
    let _daemon = Daemon::start(command.args(["run", "--port", "x=xdp:x0", "--port", "p=packet:p0"]));
    net.verify("xdp:x1", "packet:p1", 3000, "-l 60 -l 1514 -s 10.0.0.1-10.0.0.3");
    net.verify("packet:p1", "xdp:x1", 3000, "-l 60 -s 10.0.0.1-10.0.0.3");
}

#[test]
fn what_an_interface_cannot_do_is_said() {
    let net = Net::new();
    net.ip("link add v0 type veth peer name v1");
    for (args, says) in [
        (
            "-i packet:v0 -f tx -n 1 -l 1515",
            "packet:v0 takes frames of at most 1514 bytes; ip link set v0 mtu 1501",
        ),
        ("-i xdp:nowhere -f rx", "there is no such interface"),
        ("-i xdp:v0 -f rx -p 64", "-p 64: xdp:v0 has "),
        ("-i tap:v0 -f rx", "v0"),
        ("-i tap:t0 -f tx -n 1 -H 12", "-H does not apply to this port"),
    ] {
        let output = net.pkt_gen(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args}");
        let why = String::from_utf8(output.stderr).unwrap();
        assert!(why.contains(says), "{args}: {why}");
    }
}
