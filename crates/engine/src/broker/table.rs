//! What each request does.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{memfd_create, MemfdFlags};
use rustix::net::SocketType;

use super::rules::Rules;
use super::{bad, Broker};
use crate::disk::opener;
use crate::host::interface::{packet_socket_here, Interface};
use crate::host::netns::{self, FPM};
use crate::host::tap;
use crate::host::tap::sys::{queue_here, Attach};
use crate::host::vxlan;
use crate::host::xdp::{bpf, sys};
use crate::sandbox::holder;
use crate::sandbox::open::broker::{AddressIn, Answer, Entries, Named, Refusal, Request, Socket};
use crate::sandbox::open::socket::{self, SocketSpec};
use crate::sandbox::open::{self, own_file};

/// A file with this text, which has no other reader.
fn copy(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"sidecore-text", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

impl Rules {
    /// Whether what is asked may be.
    fn permit(&mut self, request: &Request) -> io::Result<()> {
        let named = match request {
            Request::Listen { path, .. } => return self.allow_socket(path),
            Request::Hold { path, .. } | Request::Find { path } => return self.allow_holder(path),
            Request::TapIn(wanted) => return self.allow_tap(&wanted.netns, &wanted.name),
            Request::Shadow(shadow) => return self.allow_tap(&shadow.netns, &shadow.names()[0]),
            Request::ShadowOut(shadow) | Request::Entries(Entries { shadow, .. }) => {
                return self.allow_change(&shadow.netns, &shadow.names()[0]);
            }
            Request::MtuIn { netns, name, .. } | Request::AddressIn(AddressIn { netns, name, .. }) => {
                return self.allow_change(netns, name);
            }
            Request::Call { path } => Named::Call(path.clone()),
            Request::JournalAt { path } => Named::Journal(path.clone()),
            Request::Disk { path, .. } => Named::Disk(path.clone()),
            Request::Tap { name, .. }
            | Request::Packet { name, .. }
            | Request::Xdp { name, .. }
            | Request::Attach { name, .. }
            | Request::Mtu { name, .. }
            | Request::Up { name } => Named::Interface(name.clone()),
            Request::Udp { at } => Named::Address(at.ip().to_string()),
            Request::Inside { netns, .. } | Request::TapOut { netns, .. } => Named::Namespace(netns.clone()),
            // Requests about what is the daemon's own, or that reach nothing.
            Request::Remove { .. }
            | Request::Journal { .. }
            | Request::Forget { .. }
            | Request::Next { .. }
            | Request::Config
            | Request::Accounts { .. }
            | Request::DescriptorHelper
            | Request::Sockets { .. }
            | Request::Enter { .. } => return Ok(()),
        };
        self.allow(named)
    }
}

impl Broker {
    /// Does what is asked. The number of descriptors is the right one.
    pub(super) fn carry_out(&mut self, request: Request, fds: &[OwnedFd]) -> Result<Answer, Refusal> {
        self.rules.permit(&request)?;
        match request {
            Request::Listen { path, seqpacket, mode, owner, backlog } => {
                let kind = if seqpacket { SocketType::SEQPACKET } else { SocketType::STREAM };
                let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
                let wanted = SocketSpec { path, kind, mode, owner, backlog };
                let (socket, file) = socket::listen_here(&wanted).map_err(socket::refusal)?;
                let number = self.remember(file)?;
                Ok(Answer { number, ..Answer::fd(socket) })
            }
            Request::Remove { number } => {
                let file = self.sockets.remove(&number).ok_or(io::Error::from(io::ErrorKind::NotFound))?;
                file.remove();
                Ok(Answer::default())
            }
            Request::Call { path } => Ok(Answer::fd(socket::call_here(&path, SocketType::STREAM)?)),
            Request::Hold { path, of } => {
                self.children.room()?;
                let child = holder::spawn(&path, &of)?;
                self.children.adopt(child, None)?;
                Ok(Answer::fd(holder::connect(&path)?))
            }
            // The asker waits for the holder's answer itself: others wait for the broker.
            Request::Find { path } => Ok(Answer::fd(holder::call_with_secret(&path)?)),
            Request::Journal { name } => {
                let opened =
                    open::journal_here(&name).map_err(|(path, error)| match error.raw_os_error() {
                        Some(_) => error,
                        None => io::Error::new(error.kind(), format!("\"{}\": {error}", path.display())),
                    })?;
                let own = opened.ok_or(io::Error::from(io::ErrorKind::NotFound))?;
                Ok(Answer { number: own.new.into(), ..Answer::fd(own.file) })
            }
            Request::JournalAt { path } => {
                let own = own_file(&path, 0o600)?;
                Ok(Answer { number: own.new.into(), ..Answer::fd(own.file) })
            }
            Request::Forget { name } => done(open::forget_here(&name)),
            Request::Next { after } => {
                Ok(Answer { text: open::next_here(&after).unwrap_or_default(), ..Answer::default() })
            }
            Request::Config => match &self.rules.config {
                Some(config) => {
                    let text = std::fs::read_to_string(config)?;
                    self.rules.learn(&text);
                    Ok(Answer::fd(copy(&text)?))
                }
                None => Err(io::Error::new(io::ErrorKind::NotFound, "there is no configuration file").into()),
            },
            Request::Accounts { groups } => Ok(Answer::fd(File::open(open::accounts::file(groups))?)),
            Request::DescriptorHelper => {
                self.children.room()?;
                let (socket, child) = holder::helper("door")?;
                self.children.adopt(child, None)?;
                Ok(Answer::fd(socket))
            }
            Request::Disk { path, read_only, look } => {
                Ok(Answer::fd(self.children.open(path, |path| opener::spawn(path, read_only, look))?))
            }
            Request::Tap { name, create, multi } => {
                let queue = queue_here(&name, Attach { create, multi })?;
                Ok(Answer { number: queue.for_all.into(), ..Answer::fd(queue.fd) })
            }
            Request::Packet { buffer, .. } => Ok(Answer::fd(packet_socket_here(buffer)?)),
            Request::Xdp { buffer, .. } => Ok(Answer::fd(sys::socket_here(buffer)?)),
            Request::Udp { at } => Ok(Answer::fd(vxlan::socket::open_here(at)?)),
            Request::Sockets { queues } => Ok(Answer::fd(bpf::socket_map_here(queues)?)),
            Request::Enter { queue } => {
                let [map, socket] = fds else { return Err(bad("a map and a socket are needed")) };
                done(bpf::put_socket_here(map, queue, socket))
            }
            Request::Attach { name, native } => {
                let [map] = fds else { return Err(bad("a map is needed")) };
                Ok(Answer::fd(bpf::attach_here(map, Interface::new(&name)?.index()?, native)?))
            }
            Request::Mtu { name, mtu } => done(Interface::new(&name)?.set_mtu_here(mtu)),
            Request::Up { name } => done(Interface::new(&name)?.bring_up_here()),
            Request::Inside { netns, socket } => {
                if matches!(socket, Socket::Listen(port) if port != FPM) {
                    return Err(bad("there is no such socket"));
                }
                Ok(Answer::fd(netns::open_here(&netns, socket)?))
            }
            Request::TapIn(wanted) => {
                let queue = tap::tap_in_here(&wanted)?;
                self.rules.gave(wanted.netns, wanted.name);
                Ok(Answer::fd(queue))
            }
            Request::TapOut { netns, name } => {
                self.rules.took(netns.clone(), name.clone());
                done(tap::remove_tap_here(&netns, &name))
            }
            Request::MtuIn { netns, name, mtu } => done(netns::set_mtu_here(&netns, &name, mtu)),
            Request::Shadow(shadow) => {
                shadow.make_here()?;
                let [bridge, ..] = shadow.names();
                self.rules.gave(shadow.netns, bridge);
                Ok(Answer::default())
            }
            Request::ShadowOut(shadow) => {
                let [bridge, ..] = shadow.names();
                self.rules.took(shadow.netns.clone(), bridge);
                done(shadow.remove_here())
            }
            Request::Entries(entries) => done(entries.write_here()),
            Request::AddressIn(wanted) => done(netns::set_address_here(&wanted)),
        }
    }
}

/// What was asked for is done, and that is all.
fn done(result: io::Result<()>) -> Result<Answer, Refusal> {
    Ok(result.map(|()| Answer::default())?)
}
