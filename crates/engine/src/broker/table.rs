//! What each request does.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{memfd_create, MemfdFlags};
use rustix::net::SocketType;

use super::{bad, Broker};
use crate::disk::opener;
use crate::door;
use crate::hold;
use crate::host::broker as host;
use crate::host::netns::{self, AddressIn, Socket, FPM};
use crate::host::tap::{self, TapIn};
use crate::open::broker::{Answer, Refusal, Request};
use crate::open::socket::{self, SocketSpec};
use crate::open::{self, own_file};

/// A file with this text, which has no other reader.
fn copy(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"sidecore-text", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

impl Broker {
    /// Does what is asked. The number of descriptors is the right one.
    pub(super) fn carry_out(&mut self, request: Request, fds: &[OwnedFd]) -> Result<Answer, Refusal> {
        match request {
            Request::Listen { path, seqpacket, mode, owner, backlog } => {
                self.rules.allow_socket(&path)?;
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
            Request::Call { path } => {
                self.rules.allow_call(&path)?;
                Ok(Answer::fd(socket::call_here(&path, SocketType::STREAM)?))
            }
            Request::Hold { path } => {
                self.rules.allow_holder(&path)?;
                self.room()?;
                let child = hold::spawn(&path).map_err(hold::refusal)?;
                self.adopt(child)?;
                Ok(Answer::fd(hold::connect(&path).map_err(hold::refusal)?))
            }
            Request::Find { path } => {
                self.rules.allow_holder(&path)?;
                // The asker waits for the holder's answer itself: others wait for the broker.
                let (socket, told) = hold::call_with_secret(&path).map_err(hold::refusal)?;
                Ok(Answer { number: told.into(), ..Answer::fd(socket) })
            }
            Request::Journal { name } => {
                let opened = open::journal_here(&name).map_err(|(path, error)| {
                    let why = format!("\"{}\": {error}", path.display());
                    match error.raw_os_error() {
                        Some(_) => error,
                        None => io::Error::new(error.kind(), why),
                    }
                })?;
                let own = opened.ok_or(io::Error::from(io::ErrorKind::NotFound))?;
                let text = own.path().display().to_string();
                Ok(Answer { number: u64::from(own.new), text, fd: Some(own.file.into()) })
            }
            Request::JournalAt { path } => {
                self.rules.allow_journal(&path)?;
                let own = own_file(&path, 0o600)?;
                Ok(Answer { number: u64::from(own.new), ..Answer::fd(own.file) })
            }
            Request::Forget { name } => Ok(open::forget_here(&name).map(|()| Answer::default())?),
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
            Request::Accounts { groups } => {
                Ok(Answer::fd(File::open(if groups { "/etc/group" } else { "/etc/passwd" })?))
            }
            Request::Door => {
                self.room()?;
                let (socket, child) = door::spawn()?;
                self.adopt(child)?;
                Ok(Answer::fd(socket))
            }
            Request::Disk { path, read_only, look } => {
                self.rules.allow_disk(&path)?;
                Ok(Answer::fd(self.openers.begin(path, |path| opener::spawn(path, read_only, look))?))
            }
            Request::Tap { name, create, multi } => {
                self.rules.allow_interface(&name)?;
                host::tap(&name, create, multi)
            }
            Request::Packet { name, buffer } => {
                self.rules.allow_interface(&name)?;
                host::packet(buffer)
            }
            Request::Xdp { name, buffer } => {
                self.rules.allow_interface(&name)?;
                host::xdp(buffer)
            }
            Request::Sockets { queues } => host::sockets(queues),
            Request::Enter { queue } => host::enter(fds, queue),
            Request::Attach { name, native } => {
                self.rules.allow_interface(&name)?;
                host::attach(fds, &name, native)
            }
            Request::Mtu { name, mtu } => {
                self.rules.allow_interface(&name)?;
                host::mtu(&name, mtu)
            }
            Request::Inside { netns, what } => {
                self.rules.allow_namespace(&netns)?;
                let is_fpm = |socket: &Socket| !matches!(socket, Socket::Listen(port) if *port != FPM);
                let socket = netns::socket_of(what).filter(is_fpm);
                let socket = socket.ok_or_else(|| bad("there is no such socket"))?;
                Ok(Answer::fd(netns::open_here(&netns, socket)?))
            }
            Request::TapIn { netns, name, mac, mtu, stays } => {
                self.rules.allow_tap(&netns, &name)?;
                let wanted = TapIn { netns, name, mac, mtu, stays };
                let queue = tap::tap_in_here(&wanted)?;
                self.rules.gave(wanted.netns, wanted.name);
                Ok(Answer::fd(queue))
            }
            Request::TapOut { netns, name } => {
                self.rules.allow_namespace(&netns)?;
                self.rules.took(netns.clone(), name.clone());
                Ok(tap::remove_tap_here(&netns, &name).map(|()| Answer::default())?)
            }
            Request::MtuIn { netns, name, mtu } => {
                self.rules.allow_change(&netns, &name)?;
                Ok(netns::set_mtu_here(&netns, &name, mtu).map(|()| Answer::default())?)
            }
            Request::AddressIn { netns, name, address, len, there } => {
                self.rules.allow_change(&netns, &name)?;
                let wanted = AddressIn { netns, name, address, len, there };
                Ok(netns::set_address_here(&wanted).map(|()| Answer::default())?)
            }
            Request::Up { name } => {
                self.rules.allow_interface(&name)?;
                host::up(&name)
            }
        }
    }
}
