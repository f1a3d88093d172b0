//! Connections to the agents of back-ends (`agent`), by the sockets that the operator names: VMMs' ends of
//! virtio-serial ports.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{recv, send, RecvFlags, SendFlags};
use sidecore_engine::router::Router;
use sidecore_engine::sandbox::open::socket;
use sidecore_engine::util::slice::upto;

use crate::agent::feed::{AgentFeed, Ports};
use crate::view::AgentView;

/// How soon a socket is called again that did not answer, or whose agent said what is not sound.
const AGAIN: Duration = Duration::from_secs(1);
/// How often an agent is told as much as it may have waiting, before others get their turn.
const TURNS: usize = 16;

/// A connection to one agent.
pub(super) struct AgentLink {
    /// Its member of the router's group.
    member: String,
    path: PathBuf,
    socket: Option<OwnedFd>,
    /// It is not called before that.
    call: Instant,
    trouble: Option<String>,
    feed: AgentFeed,
}

/// Why a connection ends.
type End = String;

impl AgentLink {
    pub fn new(member: &str, path: PathBuf) -> AgentLink {
        let now = Instant::now();
        let (member, feed) = (member.to_owned(), AgentFeed::new(now));
        AgentLink { member, path, socket: None, call: now, trouble: None, feed }
    }

    /// Whether it is the one of `member` at `path`.
    pub fn is(&self, member: &str, path: &Path) -> bool {
        self.member == member && self.path == path
    }

    /// It is none of `router`'s any more.
    pub fn leave(&self, router: &Router) {
        router.set_copy(&self.member, false);
    }

    /// What to wait for, if it is connected.
    pub fn event(&self) -> Option<PollFd<'_>> {
        let more = if self.feed.out.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        self.socket.as_ref().map(|socket| PollFd::new(socket, PollFlags::IN | more))
    }

    /// Does what there is to do: calls, hears, tells. Whether there is more at once.
    pub fn serve(&mut self, router: &Router, ports: &Ports, room: &mut [u8]) -> bool {
        let (now, had) = (Instant::now(), self.feed.in_force);
        let more = self.step(router, ports, room, now).unwrap_or_else(|why| {
            if self.trouble.as_ref() != Some(&why) {
                tracing::warn!(router = %router.name, member = %self.member, "its agent at {}: {why}", self.path.display());
            }
            (self.socket, self.call, self.trouble) = (None, now + AGAIN, Some(why));
            self.feed.end();
            false
        });
        if self.feed.in_force && !had {
            self.trouble = None;
            tracing::info!(router = %router.name, member = %self.member, "its kernel has all {} routes", self.feed.state.routes);
        }
        router.set_copy(&self.member, self.feed.in_force);
        more
    }

    fn step(&mut self, router: &Router, ports: &Ports, room: &mut [u8], now: Instant) -> Result<bool, End> {
        if self.socket.is_none() {
            if now < self.call {
                return Ok(false);
            }
            let socket = socket::call(&self.path).map_err(|e| e.to_string())?;
            self.socket = Some(socket);
        }
        self.hear(room, now)?;
        for _ in 0..TURNS {
            let more = self.feed.tell(router, ports, now);
            self.flush()?;
            if !more || !self.feed.out.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes what the agent says.
    fn hear(&mut self, room: &mut [u8], now: Instant) -> Result<(), End> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let len = match recv(socket, &mut *room, RecvFlags::empty()) {
            Ok((0, _)) => return Err("the other end has gone".to_owned()),
            Ok((len, _)) => len,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(e) => return Err(e.to_string()),
        };
        let heard = self.feed.hear(upto(room, len), now);
        heard.map_err(|e| format!("what it says is no message of an agent: {e}"))
    }

    /// Sends what it takes.
    fn flush(&mut self) -> Result<(), End> {
        let Some(socket) = self.socket.as_ref().filter(|_| !self.feed.out.is_empty()) else { return Ok(()) };
        match send(socket, &self.feed.out, SendFlags::NOSIGNAL) {
            Ok(len) => drop(self.feed.out.drain(..len)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(e) => return Err(e.to_string()),
        }
        Ok(())
    }

    /// What there is to show.
    pub fn view(&self) -> AgentView {
        let (now, feed) = (Instant::now(), &self.feed);
        let state = if self.socket.is_none() { "unreachable" } else { feed.condition(now) };
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        AgentView {
            member: self.member.clone(),
            socket: self.path.clone(),
            state: state.to_owned(),
            routes: feed.state.routes.into(),
            failed: feed.state.failed.into(),
            digest: format!("{:016x}", feed.state.digest),
            behind_ms: feed.behind(now).map(ms),
            tables: feed.tables,
            malformed: feed.malformed,
            trouble: self.trouble.clone().filter(|_| self.socket.is_none()),
        }
    }
}
