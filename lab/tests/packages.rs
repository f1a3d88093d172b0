//! What `make dist` makes, in clean Debians: installed, under guests' traffic upgraded, and removed.
//! `scripts/dist-check` makes the packages of two commits and names their folders: `SIDECORE_DIST`, and
//! `SIDECORE_DIST_BEFORE`.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use sidecore_lab::traffic::Pinging;
use sidecore_lab::{system, Container, Guest, Lab, Nic, Result, Role, RunDir};

const LIMIT: Duration = Duration::from_secs(180);
const INSTALL: &str = "apt-get install -qq --no-install-recommends";
const ADD: &str = "sidecore add vm1=vhost-user:/run/sidecore/vm1.sock vm2=vhost-user:/run/sidecore/vm2.sock";

fn folder(variable: &str) -> PathBuf {
    PathBuf::from(
        std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} is not set: run scripts/dist-check")),
    )
}

/// The file of this commit whose name has `part` in it.
fn file(part: &str) -> PathBuf {
    let files = std::fs::read_dir(folder("SIDECORE_DIST")).unwrap().flatten().map(|entry| entry.path());
    files
        .into_iter()
        .find(|path| path.to_string_lossy().contains(part))
        .unwrap_or_else(|| panic!("there is no {part}"))
}

/// Guests at the ports vm1 and vm2, whose sockets are in `folder`, with addresses.
fn guests(folder: &str) -> Result<[Guest; 2]> {
    let mut guests = Guest::boot_all(["vm1", "vm2"].map(|name| {
        let role = Role::QemuClient { reconnect_ms: 200 };
        Guest::named(name).nic(Nic::vhost_user(format!("{folder}/{name}.sock"), role, 1))
    }))?;
    for (guest, number) in guests.iter_mut().zip(1..) {
        guest.address(&format!("10.0.0.{number}/24"))?;
    }
    Ok(guests)
}

/// A container that has the packages of this commit in `/new`, and of the one before in `/old`.
fn container(suite: &str) -> Result<Container> {
    let [new, old] = ["SIDECORE_DIST", "SIDECORE_DIST_BEFORE"].map(folder);
    Container::boot(suite, &[(&new, "/new"), (&old, "/old")])
}

/// The files of the system, without logs, temporary files and what apt and dpkg note; the users.
fn left(container: &Container) -> Result<String> {
    container.expect(
        "find / -xdev ! -path '/var/log/*' ! -path '/var/cache/*' ! -path '/var/lib/dpkg/*' ! -path '/var/lib/apt/*' ! -path '/tmp/*' \
         ! -path '/var/tmp/*' ! -path '/etc/*-' | sort; find /run -path '*sidecore*' ! -path '/run/systemd/*'; cat /etc/passwd /etc/group; \
         cat /proc/[0-9]*/comm | grep sidecore || true",
    )
}

fn ports(container: &Container) -> Result<Value> {
    Ok(serde_json::from_str(&container.expect("sidecore show ports --json")?).unwrap())
}

#[test]
#[ignore = "needs packages: scripts/dist-check"]
fn a_service_is_upgraded_under_traffic_and_leaves_nothing() -> Result<()> {
    let container = container("bookworm")?;
    let before = left(&container)?;
    container.expect(&format!("{INSTALL} /old/sidecore_*.deb"))?;
    container.expect("systemctl is-active sidecore && systemctl is-enabled sidecore && test -e /usr/share/man/man1/sidecore.1.gz")?;
    let old = container.expect("sidecore --version")?;

    // The operator's configuration, and two guests.
    for name in ["vm1", "vm2"] {
        let port = format!(
            r#"[[port]]\nname = "{name}"\nkind = "vhost-user"\nwhere = "/run/sidecore/{name}.sock"\n"#
        );
        container.expect(&format!("printf '{port}' >>/etc/sidecore/sidecore.toml"))?;
    }
    container.expect("systemctl reload sidecore && cp /etc/sidecore/sidecore.toml /root/")?;
    let mut guests = guests(&container.path("/run/sidecore"))?;
    let ping = Pinging::start(&mut guests[0], "10.0.0.2")?;
    ping.more(&mut guests[0], 5)?;

    container.expect(&format!("{INSTALL} /new/sidecore_*.deb"))?;
    ping.more(&mut guests[0], 10)?;
    let new = container.expect("sidecore --version")?;
    let packaged = container.expect("dpkg-query -W -f '${Version}' sidecore")?;
    let commit = packaged.rsplit('.').next().unwrap();
    assert!(new != old && new.contains(commit), "{old} {new} {packaged}");
    let daemon: Value = serde_json::from_str(&container.expect("sidecore show daemon --json")?).unwrap();
    assert!(new.contains(daemon["program"].as_str().unwrap()), "{daemon} {new}");
    container.expect("cmp /etc/sidecore/sidecore.toml /root/sidecore.toml && rm /root/sidecore.toml")?;
    assert_eq!(ports(&container)?["ports"].as_array().unwrap().len(), 2);
    let ping = ping.end(&mut guests[0])?;
    println!(
        "upgraded from {} to {}: {} of {} pings lost, one each 0.2 s",
        old.trim(),
        new.trim(),
        ping.lost(),
        ping.sent
    );
    assert!(ping.lost() <= 25, "{ping:?}");
    drop(guests);

    container.expect("apt-get remove -qq sidecore")?;
    container.expect("test -e /etc/sidecore/sidecore.toml && ! systemctl is-active sidecore && ! cat /proc/[0-9]*/comm | grep sidecore")?;
    container.expect("apt-get purge -qq sidecore")?;
    assert_same(&before, &left(&container)?);
    Ok(())
}

fn assert_same(before: &str, after: &str) {
    let more: Vec<&str> = after.lines().filter(|line| !before.lines().any(|old| old == *line)).collect();
    let gone: Vec<&str> = before.lines().filter(|line| !after.lines().any(|new| new == *line)).collect();
    assert!(more.is_empty() && gone.is_empty(), "left behind: {more:#?}; gone: {gone:#?}");
}

/// Debian 13, and all packages but that of the drivers.
#[test]
#[ignore = "needs packages: scripts/dist-check"]
fn every_package_is_installed_on_debian_13() -> Result<()> {
    let container = container("trixie")?;
    container.expect("apt-get update -qq")?;
    let before = left(&container)?;
    container.expect(&format!("{INSTALL} /new/sidecore_*.deb /new/sidecore-bench_*.deb"))?;
    container.expect("systemctl is-active sidecore && sidecore bench --help")?;
    container.expect("apt-get purge -qq sidecore-bench sidecore")?;
    assert_same(&before, &left(&container)?);
    the_library_links(&container)
}

/// A program for netmap finds its headers and its library by pkg-config, and a port by the library.
fn the_library_links(container: &Container) -> Result<()> {
    container.expect(&format!("{INSTALL} /new/sidecore_*.deb /new/sidecore-dev_*.deb gcc pkg-config"))?;
    let program = r#"#include <libnetmap.h>
        int main(void) { struct nmport_d *d = nmport_open("vale0:a"); if (!d) return 1; nmport_close(d); return 0; }"#;
    container.expect(&format!(
        "cd /tmp && echo '{program}' >a.c && cc -Wall -Werror a.c -o a $(pkg-config --cflags --libs libnetmap) && ./a"
    ))?;
    container.expect("apt-get purge -qq sidecore-dev sidecore && ! ls -d /usr/include/sidecore /usr/lib/libnetmap.a 2>&1").map(drop)
}

/// For the kernel whose headers are installed, which is not the one that runs.
#[test]
#[ignore = "needs packages: scripts/dist-check"]
fn the_guests_drivers_are_built_by_dkms() -> Result<()> {
    let container = container("bookworm")?;
    container.expect("apt-get update -qq")?;
    container.expect(&format!("{INSTALL} dkms linux-headers-amd64"))?;
    container.expect(&format!("{INSTALL} /new/sidecore-dkms_*.deb"))?;
    let built = "for k in /lib/modules/*; do find $k/updates -name '*.ko*'; done | wc -l";
    container.expect(
        "k=$(basename /usr/src/linux-headers-*-amd64 | sed s/linux-headers-//); dkms autoinstall -k $k",
    )?;
    assert_eq!(container.expect(built)?.trim(), "3", "{}", container.expect("dkms status")?);
    container.expect("apt-get purge -qq sidecore-dkms")?;
    assert_eq!(container.expect(built)?.trim(), "0");
    container.expect("! ls -d /usr/src/*-0.* /var/lib/dkms/ptnet /var/lib/dkms/e1000x /var/lib/dkms/r8169x 2>/dev/null").map(drop)
}

/// README's commands, from the package to two VMs that ping. QEMU and the others have been downloaded and
/// installed before.
#[test]
#[ignore = "needs packages: scripts/dist-check"]
fn the_readme_leads_to_two_vms_within_a_minute() -> Result<()> {
    let lab = Lab::open()?;
    let new = folder("SIDECORE_DIST");
    let container = Container::boot("bookworm", &[(&new, "/new"), (&lab.dir, "/lab")])?;
    container.expect(&format!(
        "apt-get update -qq && {INSTALL} qemu-system-x86 busybox-static cpio kmod xz-utils"
    ))?;
    let since = Instant::now();
    container.expect("apt-get install -qq /new/sidecore_*_amd64.deb")?;
    container.expect(ADD)?;
    // The container has no kernel of its own.
    let kernel =
        format!("ACCEL=tcg RELEASE={} KERNEL=/lab/guest/vmlinuz BASE=/tmp/kernel", lab.kernel_version);
    container.expect(&format!(
        "mkdir -p /tmp/kernel/lib/modules && cp -r /lab/guest/modules /tmp/kernel/lib/modules/{0} && depmod -b /tmp/kernel {0}",
        lab.kernel_version
    ))?;
    let said = container.expect(&format!("{kernel} /usr/share/sidecore/two-vms"))?;
    println!("from the package to two VMs that ping: {:.0} s", since.elapsed().as_secs_f32());
    assert!(said.contains(" 0% packet loss") && since.elapsed().as_secs() <= 60, "{said}");
    Ok(())
}

/// The package in a guest with its own kernel, whose first process is systemd.
#[test]
#[ignore = "needs packages: scripts/dist-check"]
fn the_service_starts_in_a_guest() -> Result<()> {
    let package = std::fs::read(file("/sidecore_")).unwrap();
    let mut guest =
        system::clean("package", vec![("/root/sidecore.deb", 0o644, package)])?.vcpus(2).boot()?;
    guest.expect("dpkg -i /root/sidecore.deb")?;
    guest.wait_until("systemctl is-active -q sidecore", LIMIT)?;
    let about: Value = serde_json::from_str(&guest.expect("sidecore show daemon --json")?).unwrap();
    assert_eq!(
        (&about["sandbox"]["user"], &about["sandbox"]["mode"]),
        (&"sidecore".into(), &"on".into()),
        "{about}"
    );
    guest.expect("dpkg --purge sidecore && ! grep sidecore /etc/passwd && ! ls -d /etc/sidecore /run/sidecore /usr/share/sidecore")?;
    guest.power_off()
}

/// A user that only podman below has, with user ids for containers, runs podman with the arguments behind the
/// folder.
const PODMAN: &str = r#"
set -eu
folder=$1
shift
id=65500
[ -e "$folder/passwd" ] || {
    { cat /etc/passwd; echo "sidecore-lab:x:$id:$id::$folder/home:/bin/sh"; } >"$folder/passwd"
    echo sidecore-lab:200000:65536 >"$folder/ids"
    install -d -o $id -g $id "$folder/home" "$folder/home/run" "$folder/sockets"
}
mount --bind "$folder/passwd" /etc/passwd
touch /etc/subuid /etc/subgid
mount --bind "$folder/ids" /etc/subuid
mount --bind "$folder/ids" /etc/subgid
cd "$folder/home"
exec env -i HOME="$folder/home" XDG_RUNTIME_DIR="$folder/home/run" PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    setpriv --reuid=$id --regid=$id --clear-groups --inh-caps=-all podman --storage-driver vfs --cgroup-manager cgroupfs --runtime runc "$@"
"#;

fn podman(dir: &RunDir, arguments: &[&str]) -> String {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", PODMAN, "sh"]).arg(dir.path()).args(arguments);
    let output = command.output().expect("unshare");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "podman {arguments:?} (packages podman, uidmap and runc): {said}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Without root, and without io_uring, as Docker 25 and containerd 2 have it.
#[test]
#[ignore = "needs packages: scripts/dist-check"]
fn the_image_runs_without_root() -> Result<()> {
    let dir = RunDir::new("podman")?;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::copy(file("-oci.tar"), dir.join("image.tar")).unwrap();
    let profile = std::fs::read("/usr/share/containers/seccomp.json")
        .expect("the package golang-github-containers-common");
    let mut profile: Value = serde_json::from_slice(&profile).unwrap();
    for rule in profile["syscalls"].as_array_mut().unwrap() {
        rule["names"].as_array_mut().unwrap().retain(|name| !name.as_str().unwrap().starts_with("io_uring"));
    }
    std::fs::write(dir.join("seccomp.json"), profile.to_string()).unwrap();

    let loaded = podman(&dir, &["load", "--input", &dir.join("image.tar")]);
    let image = loaded.rsplit(' ').next().unwrap();
    podman(&dir, &["unshare", "chown", "65532:65532", &dir.join("sockets")]);
    let sockets = format!("{}:/run/sidecore", dir.join("sockets"));
    let seccomp = format!("seccomp={}", dir.join("seccomp.json"));
    let run = "run --detach --name sidecore --network none --read-only --cap-drop all --security-opt no-new-privileges";
    let mut words: Vec<&str> = run.split(' ').collect();
    words.extend([
        "--security-opt",
        &seccomp,
        "--volume",
        &sockets,
        "--health-cmd",
        r#"["/usr/bin/sidecore","show","daemon"]"#,
        image,
        "run",
    ]);
    words.extend([
        "--port",
        "vm1=vhost-user:/run/sidecore/vm1.sock",
        "--port",
        "vm2=vhost-user:/run/sidecore/vm2.sock",
    ]);
    podman(&dir, &words);
    let about = podman(&dir, &["exec", "sidecore", "/usr/bin/sidecore", "show", "daemon"]);
    assert!(about.lines().any(|line| line.starts_with("missing") && line.contains("io_uring")), "{about}");
    podman(&dir, &["healthcheck", "run", "sidecore"]);

    guests(&dir.join("sockets"))?[0].expect("ping -c 5 10.0.0.2")?;
    podman(&dir, &["rm", "--force", "--all"]);
    Ok(())
}
