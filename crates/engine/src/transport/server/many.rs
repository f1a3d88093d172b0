//! A socket with many clients at a time, whose requests are all of one size. Nothing that a client leaves
//! unsent, or does not read, makes the thread wait.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{recv, RecvFlags};

use super::connection::Connection;
use super::socket::Listener;
use super::OwnerLine;
use crate::util::{wait, wait_for};

/// How long no client is let in after that has failed: the client waits in the backlog.
const AGAIN: Duration = Duration::from_millis(100);

/// A client, connected.
pub(in crate::transport) struct ClientConnection<R> {
    pub(in crate::transport) socket: Connection,
    /// What has arrived of the next request.
    request: Vec<u8>,
    /// Since when a request is owed.
    pub(in crate::transport) owes: Option<Instant>,
    /// What it has.
    pub(in crate::transport) role: R,
}

impl<R> ClientConnection<R> {
    /// A new one, of which nothing is known but what it has.
    pub(in crate::transport) fn new(socket: Connection, role: R) -> ClientConnection<R> {
        ClientConnection { socket, request: Vec::new(), owes: Some(Instant::now()), role }
    }
}

/// What is asked and answered at a socket.
pub(in crate::transport) trait Requests {
    /// What a connection may have.
    type Role;
    /// Bytes of a request.
    const SIZE: usize;
    /// How long a connection may owe one, if not for ever.
    const PATIENCE: Option<Duration>;

    /// The connections.
    fn connections(&mut self) -> &mut Vec<ClientConnection<Self::Role>>;

    /// For how long no client is heard: they have asked for more than they may take.
    fn hold(&self) -> Option<Duration> {
        None
    }

    /// Takes a client in, or turns it away.
    fn admit(&mut self, socket: Connection);

    /// Clients were turned away: there was no descriptor for them.
    fn turned_away(&mut self, count: u64);

    /// Answers the request of connection number `index`. False: it is to end.
    fn answer(&mut self, index: usize, request: &[u8]) -> bool;

    /// A connection was ended because it owed a request.
    fn late(&mut self) {}

    /// A connection has ended that had this.
    fn gone(&mut self, role: Self::Role);

    /// All that has come was answered.
    fn answered(&mut self) {}

    /// How the socket is called in the log.
    fn name(&self) -> String;
}

/// Serves until the owner calls. Then the socket's file goes before its clients notice anything.
pub(in crate::transport) fn serve<S: Requests>(server: &mut S, listener: Listener, line: &OwnerLine) {
    loop {
        if server.hold().is_some_and(|time| wait_for(line, Some(time))) {
            return;
        }
        let connections = server.connections();
        let mut fds = vec![PollFd::new(line, PollFlags::IN), PollFd::new(&listener, PollFlags::IN)];
        fds.extend(connections.iter().map(|connection| PollFd::new(&connection.socket, PollFlags::IN)));
        let owed = S::PATIENCE.zip(connections.iter().filter_map(|connection| connection.owes).min());
        let limit = owed.map(|(patience, since)| patience.saturating_sub(since.elapsed()));
        if let Err(error) = wait(&mut fds, limit) {
            return tracing::error!("{}: poll: {error}", server.name());
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let [called, newcomer, said @ ..] = &*ready else { return };
        if *called {
            return;
        }
        // From the end, so that indices stay right.
        for (index, _) in said.iter().enumerate().rev().filter(|(_, said)| **said) {
            if !hear(server, index) {
                part(server, index);
            }
        }
        let late = |owes: Option<Instant>| {
            owes.zip(S::PATIENCE).is_some_and(|(since, most)| since.elapsed() >= most)
        };
        while let Some(index) = server.connections().iter().position(|connection| late(connection.owes)) {
            server.late();
            part(server, index);
        }
        server.answered();
        // One at a time: the owner is heard in between.
        if *newcomer {
            match listener.accept() {
                Ok(Some(socket)) => server.admit(socket),
                Ok(None) => server.turned_away(listener.turned_away()),
                Err(error) => {
                    tracing::warn!("{}: cannot take a client in: {error}", server.name());
                    wait_for(line, Some(AGAIN));
                }
            }
        }
    }
}

/// Ends connection number `index`: what it had is gone when its client notices.
pub(in crate::transport) fn part<S: Requests>(server: &mut S, index: usize) {
    let ClientConnection { socket, role, .. } = server.connections().remove(index);
    server.gone(role);
    drop(socket);
}

/// Reads what has arrived, and has a whole request answered. False: the connection is to end.
fn hear<S: Requests>(server: &mut S, index: usize) -> bool {
    let connection = &mut server.connections()[index];
    let have = connection.request.len();
    connection.request.resize(S::SIZE, 0);
    let got = match recv(&connection.socket, &mut connection.request[have..], RecvFlags::DONTWAIT) {
        Ok((got, _)) if got > 0 => got,
        Err(Errno::AGAIN | Errno::INTR) => {
            connection.request.truncate(have);
            return true;
        }
        Ok(_) | Err(_) => return false,
    };
    connection.request.truncate(have + got);
    if connection.request.len() < S::SIZE {
        connection.owes.get_or_insert_with(Instant::now);
        return true;
    }
    connection.owes = None;
    let request = std::mem::take(&mut connection.request);
    server.answer(index, &request)
}
