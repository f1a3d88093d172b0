//! A guest and a program of the host share a pipe: our driver in the guest, its sockets and its netmap
//! programs at one end, a program of the host at the other, in one memory.

use sidecore_lab::kbuild::{build, drivers, program, Kernel};
use sidecore_lab::{Daemon, Guest, Nic, Result, RunDir};
use sidecore_port::{Interest, Port};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);
/// More than a ring holds.
const NUMBERED: u32 = 5000;
/// An Ethernet type for local experiments, by which `netmapio` knows its frames.
const TYPE: [u8; 2] = [0x88, 0xb5];

/// Frame `number` as `netmapio` makes it.
fn numbered(number: u32) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2; 6]);
    frame.extend(TYPE);
    frame.extend(number.to_be_bytes());
    frame.extend((18..60).map(|at: u32| number.wrapping_add(at).to_le_bytes()[0]));
    frame
}

#[test]
fn a_guest_and_a_program_of_the_host_share_a_pipe() -> Result<()> {
    let module = build(&drivers()?.join("ptnet"), "ptnet", Kernel::Guest)?;
    let netmapio = program("netmapio")?;
    let dir = RunDir::new("ptnet-pipe")?;
    let at = |name: &str| dir.join(name);
    let ports = [format!("a=ptnet:{},pipe=p", at("a")), format!("h=ring:{},pipe=p", at("h"))];
    let mut daemon = Daemon::start(&ports.each_ref().map(|port| ["--port", port]).concat())?;
    let card = Guest::named("a")
        .vcpus(1)
        .nic(Nic::vfio_user(at("a")))
        .nic(Nic::vfio_user(format!("{}.mem", at("a"))))
        .file("/ptnet.ko", 0o644, module)
        .file("/netmapio", 0o755, netmapio);
    let [mut guest] = Guest::boot_all([card])?;
    guest.expect("insmod /ptnet.ko")?;
    guest.wait_until("test -e /sys/class/net/eth0", LIMIT)?;
    guest.expect("ip link set eth0 up")?;
    let mut host = Port::attach(&at("h")).unwrap();
    guest.wait_until("test $(cat /sys/class/net/eth0/carrier) = 1", LIMIT)?;

    // What the guest's program sends, the host's reads where it was written: one of the guest's buffers, not
    // of its own.
    let job = guest.run_in_background(&format!("/netmapio eth0 send {NUMBERED}"))?;
    receive(&mut host, 0)?;
    let sent = guest.wait_for(job, LIMIT)?;
    assert!(sent.success() && sent.text.contains(&format!("sent {NUMBERED}")), "{}", sent.text);

    let job = guest.run_in_background(&format!("/netmapio eth0 receive {NUMBERED} > /tmp/received 2>&1"))?;
    guest.wait_until("grep -q ready /tmp/received", LIMIT)?;
    send(&mut host)?;
    let done = guest.wait_for(job, LIMIT)?;
    let text = guest.expect("cat /tmp/received")?;
    assert!(done.success() && text.contains(&format!("received {NUMBERED}, wrong 0")), "{text}");

    // The carrier follows the program, and a second one goes on where the pipe is.
    drop(host);
    guest.wait_until("test $(cat /sys/class/net/eth0/carrier) = 0", LIMIT)?;
    let mut host = Port::attach(&at("h")).unwrap();
    guest.wait_until("test $(cat /sys/class/net/eth0/carrier) = 1", LIMIT)?;
    let job = guest.run_in_background(&format!("/netmapio eth0 send {NUMBERED}"))?;
    receive(&mut host, 0)?;
    assert!(guest.wait_for(job, LIMIT)?.success());

    // Without the daemon nothing moves, and nothing is lost; the program attaches again.
    daemon.kill_and_restart()?;
    host.reattach().unwrap();
    let job = guest.run_in_background(&format!("/netmapio eth0 send {NUMBERED}"))?;
    receive(&mut host, 0)?;
    assert!(guest.wait_for(job, LIMIT)?.success());
    let text = daemon.command(&["show", "ports"])?;
    println!("{text}");
    Ok(())
}

/// Receives all numbered frames from `next` on, in order; what the guest's stack sends beside them is passed
/// over.
fn receive(host: &mut Port, mut next: u32) -> Result<()> {
    let info = *host.info();
    let own = host.tx[0].buffer().map(|bytes| bytes.as_ptr() as usize).unwrap();
    while next < NUMBERED {
        assert!(host.wait(Interest::RECEIVE, Some(LIMIT)).unwrap(), "frame {next} does not come");
        while let Some(frame) = host.rx[0].take() {
            if frame.bytes()[12..14] != TYPE {
                continue;
            }
            assert_eq!(frame.bytes(), numbered(next));
            let away = (frame.bytes().as_ptr() as usize).abs_diff(own) / info.buf_size as usize;
            assert!(
                away >= 1 && away < info.bufs as usize,
                "frame {next} lies {away} buffers from the host's"
            );
            next += 1;
        }
        host.rx[0].sync().unwrap();
    }
    Ok(())
}

fn send(host: &mut Port) -> Result<()> {
    let mut number = 0;
    while number < NUMBERED {
        while number < NUMBERED && host.tx[0].push(&numbered(number)) {
            number += 1;
        }
        host.tx[0].sync().unwrap();
        assert!(host.wait(Interest::SEND, Some(LIMIT)).unwrap(), "no room for frame {number}");
    }
    Ok(())
}
