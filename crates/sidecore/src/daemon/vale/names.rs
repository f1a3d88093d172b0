//! Names of ports as programs write them, and the ports that they mean.

use rustix::io::Errno;
use sidecore_engine::state::{PortSpec, Spec, DEFAULT_SWITCH};
use sidecore_engine::transport::ring::HOST;

use super::{refused, Refusal};

/// A name as programs write it.
pub(super) struct Name<'a> {
    /// Without a pipe's suffix.
    pub(super) base: &'a str,
    /// Whether it is one of a pipe's ends.
    pub(super) pipe: bool,
    /// Whether it is about the port's host rings.
    pub(super) host: bool,
    /// S (settled) and P of `valeS:P`.
    pub(super) vale: Option<OnSwitch<'a>>,
}

/// A switch, and a port on it.
pub(super) type OnSwitch<'a> = (&'a str, &'a str);

/// Switch and port of `valeS:P`.
pub(super) fn place_of(name: &str) -> Option<OnSwitch<'_>> {
    let (switch, port) = name.strip_prefix("vale")?.split_once(':')?;
    Some((if switch.is_empty() { DEFAULT_SWITCH } else { switch }, port))
}

impl<'a> Name<'a> {
    pub(super) fn read(name: &'a str) -> Result<Name<'a>, Refusal> {
        let (base, pipe, host) = match (name.find(['{', '}']), name.strip_suffix(HOST)) {
            (Some(at), _) => (&name[..at], true, false),
            (None, Some(base)) => (base, false, true),
            (None, None) => (name, false, false),
        };
        let plain = |part: &str| part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.');
        let bad = |why| refused!(INVAL, "{name:?} is no port's name: {why}");
        if pipe && !plain(&name[base.len() + 1..]) {
            return bad("a pipe is named by letters, digits, '_' and '.'");
        }
        let vale = place_of(base);
        match vale {
            Some((switch, port)) if plain(switch) && plain(port) && !port.is_empty() => {}
            Some(_) => return bad("switch and port of valeS:P are letters, digits, '_' and '.'"),
            None if plain(base) && !base.is_empty() && !base.starts_with('.') => {}
            None => return bad("it is letters, digits, '_' and '.', or valeS:P"),
        }
        Ok(Name { base, pipe, host, vale })
    }

    pub(super) fn on_switch(&self) -> Result<OnSwitch<'a>, Refusal> {
        self.vale.ok_or_else(|| (Errno::INVAL, format!("{:?} names no switch; write valeS:P", self.base)))
    }

    /// The port of that name in `spec`.
    pub(super) fn find<'s>(&self, spec: &'s Spec) -> Option<&'s PortSpec> {
        let on = |port: &&PortSpec| {
            self.vale.is_some_and(|at| port.switch.as_deref() == Some(at.0) && is_called(port, at))
        };
        ring_at(spec, self.base).or_else(|| spec.ports.iter().find(on))
    }
}

/// The ring port with this location.
pub(super) fn ring_at<'s>(spec: &'s Spec, location: &str) -> Option<&'s PortSpec> {
    spec.ports.iter().find(|port| port.kind == "ring" && port.location == location)
}

/// Whether `port`, which is on that switch, has that name there.
pub(super) fn is_called(port: &PortSpec, at: OnSwitch<'_>) -> bool {
    port.name == at.1
        || (port.kind == "ring" && (port.location == at.1 || place_of(&port.location) == Some(at)))
}
