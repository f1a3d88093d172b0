//! zebra's connection: what it says, and what becomes of it when the connection comes or goes.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{accept_with, recv, RecvFlags, SocketFlags};
use sidecore_engine::host::netns::FPM;
use sidecore_engine::util::slice::upto;

use super::Worker;
use crate::fpm::Stream;
use crate::say::said;

impl Worker {
    /// Takes a connection in place of the one that there is.
    pub(super) fn accept(&mut self, listener: &OwnedFd) {
        // Non-blocking by a flag of its own: the listener's is not inherited.
        let Ok(zebra) = accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else { return };
        // The newest counts: an older one may be of a zebra that is gone.
        self.disconnected();
        self.stream = Stream::default();
        let now = self.now();
        (self.view.connected, self.seconds.since) = (true, Some(now));
        self.view.connections += 1;
        self.renew(now);
        tracing::info!(event = "routing", router = %self.router.name, "zebra has connected");
        self.zebra = Some(zebra);
    }

    /// The connection is closed, if there is one. Routes stay for `grace` seconds.
    pub(super) fn disconnected(&mut self) {
        if self.zebra.take().is_none() {
            return;
        }
        self.flush(true);
        let now = self.now();
        (self.view.connected, self.seconds.since) = (false, None);
        self.renew(now);
        tracing::warn!(
            event = "routing",
            router = %self.router.name,
            "zebra has gone; {} routes stay for {} s", self.router.fed().routes, self.plane.grace
        );
    }

    /// What was said so far is to be said anew.
    fn renew(&mut self, now: u32) {
        self.router.next_generation();
        (self.seconds.sweep, self.sweeping) = (Some(now.saturating_add(self.plane.grace)), None);
        self.compare = self.compare.again();
    }

    /// Takes what has come, without waiting.
    pub(super) fn read(&mut self) {
        let Some(zebra) = &self.zebra else { return };
        let len = match recv(zebra, &mut self.room[..], RecvFlags::empty()) {
            Ok((0, _)) => return self.disconnected(),
            Ok((len, _)) => len,
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => return self.disconnected(),
        };
        self.seconds.last = Some(self.now());
        let (pending, view) = (&mut self.pending, &mut self.view);
        let taken = self.stream.take(upto(&self.room, len), |message| {
            view.messages += u64::from(message.is_ok());
            match message.and_then(said) {
                Ok(Some((change, _))) => pending.push(change),
                Ok(None) => {}
                Err(_) => view.malformed += 1,
            }
        });
        pending.heard(Instant::now());
        if let Err(why) = taken {
            view.malformed += 1;
            tracing::warn!(router = %self.router.name, "the stream at port {FPM} is not FPM ({why}): the connection ends");
            self.disconnected();
        }
    }

    /// Has what was said take effect, if it is time.
    pub(super) fn flush(&mut self, now: bool) {
        let changes = self.pending.take(Instant::now(), now);
        if !changes.is_empty() {
            self.router.feed(&changes, self.now());
        }
    }

    /// Removes what was not said again in time, some of it.
    pub(super) fn sweep(&mut self) {
        let now = self.now();
        if self.seconds.sweep.is_some_and(|then| now >= then) {
            self.seconds.sweep = None;
            self.sweeping = Some((None, 0));
        }
        let Some((behind, gone)) = self.sweeping.take() else { return };
        let (more, next) = self.router.sweep(behind, now);
        match (next, gone + more) {
            (Some(_), gone) => self.sweeping = Some((next, gone)),
            (None, 0) => {}
            (None, gone) => {
                tracing::warn!(event = "routing", router = %self.router.name, "{gone} routes that zebra has not sent again were removed");
            }
        }
    }
}
