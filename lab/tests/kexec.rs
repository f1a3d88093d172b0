//! A kernel crashes while its card is under traffic, and the one that was loaded for this case starts. The
//! card was not told: it goes on with the rings of a kernel that is dead, until the new kernel's driver takes
//! it over.

use sidecore_lab::netboot::NetBoot;
use sidecore_lab::{Daemon, Guest, Netns, Nic, Result, RunDir};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(180);
/// Name, driver, the end of the MAC and IP address.
const CARDS: [(&str, &str, u8); 2] = [("a", "e1000e", 11), ("b", "e1000", 12)];
/// What Debian's kdump-tools does, but for `irqpoll`: the card's interrupt has to come by itself.
const LOAD: &str =
    "kexec -p /tmp/kernel --initrd=/tmp/initrd --reuse-cmdline --append='reset_devices nr_cpus=1'";

#[test]
fn a_crash_kernel_finds_the_card_under_traffic() -> Result<()> {
    let dir = RunDir::new("kexec")?;
    let host = Netns::new("kexec")?;
    host.tap("tap0", false)?;
    let [a, b] =
        CARDS.map(|(name, model, n)| format!("{name}={model}:{},mac=52:54:00:00:ce:{n}", dir.join(name)));
    let mut daemon = Daemon::start_in(&host, &["--port", &a, "--port", &b, "--port", "host=tap:tap0"])?;
    let _files = NetBoot::serve(&host, "tap0")?;
    let mut guests = Guest::boot_all(CARDS.map(|(name, ..)| {
        let nic = Nic::vfio_user(dir.join(name));
        Guest::named(name).limit(LIMIT).memory_mib(512).kernel_argument("crashkernel=192M").nic(nic)
    }))?;

    // The host knows where the guests are, and goes on sending without answers.
    let mut traffic = Vec::new();
    for (_, _, n) in CARDS {
        host.ip(&format!("neigh add 10.0.0.{n} lladdr 52:54:00:00:ce:{n} dev tap0 nud permanent"))?;
        traffic.push(host.spawn(&format!("iperf3 --server --port 52{n} > /dev/null 2>&1"))?);
        traffic.push(host.spawn(&format!("ping -q -i 0.01 10.0.0.{n} > /dev/null"))?);
        let port = format!(":{:04X}", 5200 + u16::from(n));
        host.expect(&format!("until grep -q {port} /proc/net/tcp*; do sleep 0.05; done"))?;
    }
    for (guest, (_, driver, n)) in guests.iter_mut().zip(CARDS) {
        serves(guest, driver, n)?;
        guest.expect(LOAD)?;
        guest.run_in_background(&format!("iperf3 --client 10.0.0.1 --port 52{n} --bidir --time 1000"))?;
    }
    for (guest, (.., n)) in guests.iter_mut().zip(CARDS) {
        // One connection for control, one each way.
        let connections = format!("netstat -nt | grep -c '10.0.0.1:52{n} *ESTABLISHED' | grep -q 3");
        guest.wait_until(&connections, LIMIT)?;
        for bytes in ["rx_bytes", "tx_bytes"] {
            let now = format!("cat /sys/class/net/eth0/statistics/{bytes}");
            guest.wait_until(&format!("n=$({now}); usleep 20000; test $({now}) -gt $n"), LIMIT)?;
        }
    }

    let [a, b] = &mut guests;
    std::thread::scope(|scope| {
        let both = [a, b].map(|guest| scope.spawn(|| guest.restart_by("echo c > /proc/sysrq-trigger")));
        both.map(|one| one.join().unwrap()).into_iter().collect::<Result<()>>()
    })?;

    for (guest, (_, driver, n)) in guests.iter_mut().zip(CARDS) {
        assert!(guest.run("test -s /proc/vmcore")?.success(), "this is not the crash kernel");
        serves(guest, driver, n)?;
    }
    drop(traffic);
    let balance = daemon.balance()?;
    println!("{balance}; {:?}", balance.drops);
    let ports = daemon.show_json("ports")?.to_string();
    assert!(!ports.contains("fault\":\""), "{ports}");
    Ok(())
}

/// The card came up with its driver, and fetches a kernel.
fn serves(guest: &mut Guest, driver: &str, n: u8) -> Result<()> {
    assert_eq!(guest.expect("ethtool -i eth0 | sed -n 's/^driver: //p'")?.trim(), driver);
    guest.address(&format!("10.0.0.{n}/24"))?;
    guest.wait_until("ping -c 1 -W 1 10.0.0.1 > /dev/null", LIMIT)?;
    for file in ["kernel", "initrd"] {
        guest.expect(&format!("wget -q -O /tmp/{file} http://10.0.0.1/{file}"))?;
    }
    Ok(())
}
