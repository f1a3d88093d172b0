//! Network cards of a guest.

use crate::error::{Context, Result};
use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The side that listens on a vhost-user socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// QEMU listens and the switch connects. The VM starts when the switch has connected.
    QemuServer,
    /// The switch listens and QEMU connects, again every `reconnect_ms` milliseconds after it was lost; 0:
    /// never.
    QemuClient {
        /// Milliseconds between attempts.
        reconnect_ms: u32,
    },
}

/// The PCI slot of the first card; those before it are left to devices that a test adds.
const FIRST_SLOT: usize = 0x10;

/// Slot and function of the card with this index.
pub(crate) fn slot(index: usize) -> String {
    format!("{:x}.0", FIRST_SLOT + index)
}

enum Backend {
    VhostUser { socket: PathBuf, role: Role, queues: u16 },
    VfioUser { socket: PathBuf },
    Netdev { arguments: String },
    Cable { end: OwnedFd },
    None,
}

/// A network card: what the guest sees, and what it is plugged into.
pub struct Nic {
    model: String,
    backend: Backend,
    mac: Option<String>,
    options: Vec<String>,
}

impl Nic {
    fn new(model: &str, backend: Backend) -> Self {
        Self { model: model.to_owned(), backend, mac: None, options: Vec::new() }
    }

    /// A virtio-net device whose rings are served by another process, with `queues` pairs of queues.
    pub fn vhost_user(socket: impl AsRef<Path>, role: Role, queues: u16) -> Self {
        let socket = socket.as_ref().to_owned();
        Self::new("virtio-net-pci", Backend::VhostUser { socket, role, queues })
    }

    /// A device that another process emulates altogether; it listens on `socket`.
    pub fn vfio_user(socket: impl AsRef<Path>) -> Self {
        Self::new("vfio-user-pci", Backend::VfioUser { socket: socket.as_ref().to_owned() })
    }

    /// The card of a port of this kind, whose socket QEMU calls: virtio-net for vhost-user, which calls again
    /// when the daemon is back, else one that the daemon emulates.
    pub fn of_port(kind: &str, socket: impl AsRef<Path>) -> Self {
        match kind {
            "vhost-user" => Self::vhost_user(socket, Role::QemuClient { reconnect_ms: 200 }, 1),
            _ => Self::vfio_user(socket),
        }
    }

    /// One of QEMU's own devices, such as `e1000e`, with a back end in the words of `-netdev`, such as
    /// `tap,ifname=tap0,script=no,downscript=no`.
    pub fn qemu(model: &str, netdev: &str) -> Self {
        Self::new(model, Backend::Netdev { arguments: netdev.to_owned() })
    }

    /// One of QEMU's own devices plugged into nothing.
    pub fn unplugged(model: &str) -> Self {
        Self::new(model, Backend::None)
    }

    /// Two of QEMU's own devices with a cable between them. No switch, no privileges.
    ///
    /// # Errors
    /// No sockets are left.
    pub fn cable(model: &str) -> Result<(Self, Self)> {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .context(|| "making a cable".to_owned())?;
        Ok((Self::new(model, Backend::Cable { end: a }), Self::new(model, Backend::Cable { end: b })))
    }

    /// Sets the MAC address, such as `52:54:00:00:00:01`. Without it every card gets one of its own.
    #[must_use]
    pub fn mac(mut self, mac: &str) -> Self {
        self.mac = Some(mac.to_owned());
        self
    }

    /// Adds a property of QEMU's device: `packed=on`, `host_mtu=9000`, `mrg_rxbuf=off`, `guest_announce=off`,
    /// `rx_queue_size=1024` …
    #[must_use]
    pub fn option(mut self, option: &str) -> Self {
        self.options.push(option.to_owned());
        self
    }

    /// The MAC address that was set.
    pub(crate) fn own_mac(&self) -> Option<&str> {
        self.mac.as_deref()
    }

    /// QEMU's arguments for this card as number `index`, with `mac` unless it has its own, and the
    /// descriptors that QEMU must inherit.
    pub(crate) fn into_arguments(self, index: usize, mac: &str) -> (Vec<String>, Option<OwnedFd>) {
        let mut arguments = Vec::new();
        let mut inherit = None;
        // QEMU plugs devices that are described in JSON after all others, so each is told its slot.
        let slot = slot(index);
        let mut device = vec![self.model.clone()];
        let mut netdev = |text: String| arguments.extend(["-netdev".to_owned(), text]);
        match self.backend {
            Backend::VhostUser { socket, role, queues } => {
                netdev(format!("vhost-user,id=net{index},chardev=chr{index},queues={queues}"));
                let role = match role {
                    Role::QemuServer => "server=on,wait=off".to_owned(),
                    Role::QemuClient { reconnect_ms: 0 } => "server=off".to_owned(),
                    Role::QemuClient { reconnect_ms } => format!("server=off,reconnect-ms={reconnect_ms}"),
                };
                let chardev = format!("socket,id=chr{index},path={},{role}", comma(&socket));
                arguments.splice(0..0, ["-chardev".to_owned(), chardev]);
                if queues > 1 {
                    device.push("mq=on".to_owned());
                }
            }
            Backend::VfioUser { socket } => {
                let socket = serde_json::json!({"type": "unix", "path": socket.display().to_string()});
                let mut json = serde_json::json!({"driver": self.model, "id": format!("nic{index}"), "addr": slot, "socket": socket});
                for option in &self.options {
                    let (key, value) = option.split_once('=').unwrap_or((option, "on"));
                    json[key] = match value {
                        "on" => true.into(),
                        "off" => false.into(),
                        _ => value.parse::<u64>().map_or_else(|_| value.into(), Into::into),
                    };
                }
                return (vec!["-device".to_owned(), json.to_string()], None);
            }
            Backend::Netdev { arguments } => {
                let (kind, rest) = arguments.split_once(',').unwrap_or((&arguments, ""));
                let comma = if rest.is_empty() { "" } else { "," };
                netdev(format!("{kind},id=net{index}{comma}{rest}"));
            }
            Backend::Cable { end } => {
                netdev(format!("dgram,id=net{index},local.type=fd,local.str={}", end.as_raw_fd()));
                inherit = Some(end);
            }
            Backend::None => {}
        }
        if !arguments.is_empty() {
            device.push(format!("netdev=net{index}"));
        }
        // No boot ROM: nothing boots from the network, and it would only cost time.
        device.extend([
            format!("id=nic{index}"),
            format!("addr={slot}"),
            format!("mac={mac}"),
            "romfile=".to_owned(),
        ]);
        device.extend(self.options);
        arguments.extend(["-device".to_owned(), device.join(",")]);
        (arguments, inherit)
    }
}

/// A path in a comma-separated list of QEMU's: a comma is written twice.
fn comma(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(nic: Nic) -> String {
        nic.into_arguments(3, "52:54:00:00:00:01").0.join(" ")
    }

    #[test]
    fn vhost_user_has_a_socket_a_netdev_and_a_device() {
        let nic = Nic::vhost_user("/tmp/a,b", Role::QemuClient { reconnect_ms: 100 }, 4).option("packed=on");
        assert_eq!(
            words(nic),
            "-chardev socket,id=chr3,path=/tmp/a,,b,server=off,reconnect-ms=100 \
             -netdev vhost-user,id=net3,chardev=chr3,queues=4 \
             -device virtio-net-pci,mq=on,netdev=net3,id=nic3,addr=13.0,mac=52:54:00:00:00:01,romfile=,packed=on"
        );
    }

    #[test]
    fn vfio_user_is_json_with_typed_options() {
        let nic = Nic::vfio_user("/tmp/s").option("x-pci-class-code=131072").option("x-no-posted-writes=on");
        let text = words(nic);
        let json: serde_json::Value = serde_json::from_str(text.strip_prefix("-device ").unwrap()).unwrap();
        assert_eq!(json["driver"], "vfio-user-pci");
        assert_eq!(json["socket"]["path"], "/tmp/s");
        assert_eq!(json["addr"], "13.0");
        assert_eq!(json["x-pci-class-code"], 131_072);
        assert_eq!(json["x-no-posted-writes"], true);
    }

    #[test]
    fn a_netdev_keeps_its_own_arguments() {
        assert!(words(Nic::qemu("e1000e", "tap,ifname=t0"))
            .starts_with("-netdev tap,id=net3,ifname=t0 -device e1000e,"));
        assert!(words(Nic::qemu("e1000", "user")).starts_with("-netdev user,id=net3 -device e1000,"));
        assert!(words(Nic::unplugged("e1000")).starts_with("-device e1000,id=nic3,"));
    }
}
