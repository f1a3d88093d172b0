//! The carrier follows the peer: when one end of a wire or a pipe goes down, the other end's device loses its
//! carrier.
//!
//! Theory of operation. Ports raise an event when their peers come or go. One thread waits for it and looks
//! at all wires; so does every change of the configuration. An end's carrier is up if the other end is
//! *ready*, which does not depend on that end's own carrier: two ends that follow each other do not hold each
//! other down. A port on a switch always has a carrier. One that stands for a router's port before a control
//! plane has it while that port is ready.
//!
//! Members of groups follow their peers, too (`members`), by a thread of their own that is there from the
//! first group on: a member that dies must not wait for a change of the configuration that is under way.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::cores::CoreGraph;
use super::live::EngineState;
use super::spec::{Joint, PortSpec};
use crate::mem::JoinedThread;
use crate::port::LinkEvents;

/// The threads; they end when this is dropped.
pub(super) struct Follower {
    events: Arc<LinkEvents>,
    _carriers: Option<JoinedThread>,
    groups: Mutex<Option<JoinedThread>>,
}

/// Starts the thread `name`.
fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Option<JoinedThread> {
    let thread = crate::mem::start_helper(name.to_owned(), run);
    thread
        .inspect_err(|e| tracing::error!("{name} do not follow their peers: no thread: {e}"))
        .ok()
        .map(JoinedThread::from)
}

impl Follower {
    pub fn start(state: &Arc<Mutex<EngineState>>) -> Follower {
        let events = Arc::new(LinkEvents::default());
        let (state, waits) = (Arc::clone(state), Arc::clone(&events));
        let run = move || {
            let mut seen = 0;
            while waits.wait(&mut seen, None) {
                crate::lock(&state).follow();
            }
        };
        Follower { events, _carriers: start("carriers", run), groups: Mutex::default() }
    }

    /// Has the members of groups follow their peers, from now on.
    pub fn tend_groups(&self, graph: &Arc<CoreGraph>) {
        let mut thread = crate::lock(&self.groups);
        if thread.is_some() {
            return self.events.raise();
        }
        let (graph, waits) = (Arc::clone(graph), Arc::clone(&self.events));
        *thread = start("groups", move || {
            let mut seen = 0;
            while waits.wait(&mut seen, graph.tend_groups(Instant::now())) {}
        });
    }

    /// Where ports tell of their links.
    pub fn events(&self) -> Arc<LinkEvents> {
        Arc::clone(&self.events)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.events.close();
    }
}

impl EngineState {
    /// Gives every port the carrier that its joint has.
    pub fn follow(&mut self) {
        let ready = |name: &str| {
            self.ports.get(name).is_some_and(|end| end.port.is_ready() && end.spec.link_wanted())
        };
        let carrier = |name: &str, spec: &PortSpec| match (spec.joint(), spec.line()) {
            (Joint::Control(of), _) => ready(of),
            (_, None) => true,
            (_, line) => {
                self.ports.iter().any(|(other, end)| other != name && end.spec.line() == line && ready(other))
            }
        };
        let up: Vec<bool> = self.ports.iter().map(|(name, live)| carrier(name, &live.spec)).collect();
        for (live, up) in self.ports.values_mut().zip(up) {
            let wanted = live.spec.link_wanted();
            let link = live.port.link() && wanted && up;
            if std::mem::replace(&mut live.link, link) != link {
                let how = if link { "up" } else { "down" };
                tracing::debug!(event = "link", port = live.port.name, "its link is {how}");
            }
            if live.port.carrier() == up {
                continue;
            }
            live.port.set_carrier(up);
            if let Some(Err(e)) = live.attachment.as_mut().map(|device| device.follow(up && wanted)) {
                tracing::warn!(port = %live.port.name, "its carrier does not follow its wire: {e}");
            }
        }
    }
}
