//! Four pairs of queues, all of them in use.

use sidecore_lab::{Daemon, Guest, Nic, Result, Role, RunDir};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn four_pairs_of_queues_carry_traffic() -> Result<()> {
    let dir = RunDir::new("multiqueue")?;
    let socket = |name: &str| dir.join(&format!("{name}.sock"));
    let mut daemon = Daemon::start(&[
        "--port",
        &format!("a=vhost-user:{},queues=4", socket("a")),
        "--port",
        &format!("b=vhost-user:{},queues=4", socket("b")),
    ])?;
    let nic = |name: &str| Nic::vhost_user(socket(name), Role::QemuClient { reconnect_ms: 200 }, 4);
    let [mut a, mut b] = Guest::boot_all([
        Guest::named("a").vcpus(4).nic(nic("a")),
        Guest::named("b").vcpus(4).nic(nic("b").option("packed=on")),
    ])?;
    a.address("10.0.0.1/24")?;
    b.address("10.0.0.2/24")?;
    for guest in [&mut a, &mut b] {
        guest.expect("ethtool -L eth0 combined 4")?;
        let shown = guest.expect("ethtool -l eth0 | grep Combined")?;
        assert_eq!(shown.matches('4').count(), 2, "at most and now: {shown}");
    }

    // A guest sends on the queue of the processor that sends; so one sender on each.
    let servers = (1..=4)
        .map(|n| b.run_in_background(&format!("iperf3 --server --one-off --port 520{n}")))
        .collect::<Result<Vec<_>>>()?;
    b.wait_until("[ $(netstat -lnt | grep -c :520) = 4 ]", LIMIT)?;
    let clients = (1..=4)
        .map(|n| {
            let options = format!("--client 10.0.0.2 --port 520{n} --time 2 --parallel 8");
            a.run_in_background(&format!("taskset -c {} iperf3 {options}", n - 1))
        })
        .collect::<Result<Vec<_>>>()?;
    for job in clients {
        let done = a.wait_for(job, LIMIT)?;
        assert!(done.success(), "iperf3: {}", done.text);
    }
    for job in servers {
        assert!(b.wait_for(job, LIMIT)?.success());
    }

    let queues = daemon.show_json("queues")?;
    for (port, kind) in [("a", "split"), ("b", "packed")] {
        for direction in ["ingress", "egress"] {
            let all = queues["queues"].as_array().unwrap().iter();
            let running = all
                .filter(|q| q["port"] == port && q["direction"] == direction && q["kind"] == kind)
                .filter(|q| q["state"] == "running")
                .count();
            assert_eq!(running, 4, "{port} {direction}: {queues:#}");
        }
    }
    // Which processor b's acknowledgements leave from is up to its scheduler.
    for (guest, tx_least) in [(&mut a, 4), (&mut b, 1)] {
        for (direction, least) in [("tx", tx_least), ("rx", 4)] {
            let counted = guest.expect(&format!("ethtool -S eth0 | grep {direction}_queue_[0-3]_packets"))?;
            let used = counted.lines().filter(|line| !line.ends_with(" 0")).count();
            assert!(used >= least, "guest {} {direction}:\n{counted}", guest.name());
        }
    }
    let balance = daemon.balance()?;
    println!("{balance}; {:?}", balance.drops);
    assert!(balance.drops.keys().all(|reason| reason == "ring_full"), "{:?}", balance.drops);
    Ok(())
}
