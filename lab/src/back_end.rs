//! A guest that is a router whose routes come from elsewhere: it has `sidecore-agent`, and a virtio-serial
//! port to the daemon.

use crate::daemon::find_binary;
use crate::error::{Context, Error, Result};
use crate::process::output;
use crate::{Guest, Spec};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Where the agent and the libraries of its own are in the guest, whose others may be older.
const FOLDER: &str = "/sidecore";
/// What the guest calls the port.
const PORT: &str = "sidecore.routes";
const LIMIT: Duration = Duration::from_secs(60);

/// `spec` with the agent, and a port to the daemon at `socket`, where QEMU listens.
///
/// # Errors
/// The agent is not built.
pub fn back_end(spec: Spec, socket: &str) -> Result<Spec> {
    let program = find_binary()?.with_file_name("sidecore-agent");
    let mut spec = file(spec, &program)?;
    // None, of a static program.
    for library in output(Command::new("ldd").arg(&program)).unwrap_or_default().split_whitespace() {
        if library.starts_with('/') {
            spec = file(spec, Path::new(library))?;
        }
    }
    let chardev = format!("socket,id=routes,path={socket},server=on,wait=off");
    let port = format!("virtserialport,chardev=routes,name={PORT}");
    let arguments = ["-chardev", &chardev, "-device", "virtio-serial-pci", "-device", &port];
    Ok(arguments.into_iter().fold(spec, Spec::argument))
}

fn file(spec: Spec, path: &Path) -> Result<Spec> {
    let data = std::fs::read(path)
        .context(|| format!("reading {}; cargo build -p sidecore-routing", path.display()))?;
    let name = path.file_name().ok_or_else(|| Error::new("a file without a name"))?.to_string_lossy();
    Ok(spec.file(&format!("{FOLDER}/{name}"), 0o755, data))
}

/// Starts the agent.
///
/// # Errors
/// The guest has no such port.
pub fn start_agent(guest: &mut Guest) -> Result<()> {
    guest.expect("modprobe virtio_console")?;
    let find = format!("grep -l {PORT} /sys/class/virtio-ports/*/name");
    guest.wait_until(&find, LIMIT)?;
    let found = guest.expect(&find)?;
    let device =
        Path::new(found.trim()).parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let loader =
        format!("loader=$(ls {FOLDER}/ld-* 2> /dev/null); exec $loader ${{loader:+--library-path {FOLDER}}}");
    guest.run_in_background(&format!("{loader} {FOLDER}/sidecore-agent /dev/{device}")).map(drop)
}
