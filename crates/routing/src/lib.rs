//! The control plane of a router: an unmodified routing daemon (FRR) in its own network namespace, and the
//! state that the router takes over from it.
//!
//! Theory of operation. Each port of such a router has a TAP in the namespace, with the port's name, station
//! address, MTU and addresses. So the routing daemon sees an ordinary host with these interfaces. Frames for
//! the router itself go to that TAP (`router/punt.rs` of the engine), frames that the namespace sends there
//! go out of the port, and no other frames pass it. One thread for each such router (`session`) does the
//! rest:
//!
//! * **Routes** come from zebra's FPM (`fpm`): zebra connects to port 2620 of the namespace's loopback, sends
//!   all its routes, and then each change. FPM has no end of a table, no sequence numbers and no answers, and
//!   some deletions get lost. So the session compares these routes with the kernel's table from time to time
//!   (`session/compare.rs`), and a route that zebra sends again replaces the earlier one.
//! * **Neighbours, links and addresses** come from the namespace's kernel (`kernel`). In the other direction,
//!   each TAP gets the addresses that the configuration gives to its port. Addresses of the namespace's
//!   loopback and dummy interfaces become the router's own.
//!
//! When the routing daemon ends, its routes stay for a while (`grace`). Routes that it does not send again
//! within the same time after it came back are removed. So forwarding continues without it.
//!
//! A program in the namespace may send anything. It can only harm the routes of this router. Everything else
//! is bounded: one connection at a time, one unfinished frame, limited numbers of routes, objects and hops
//! (`router/feed.rs` of the engine). Malformed messages are counted.
//!
//! The engine knows nothing of this crate. Its routers take changes of routes, links and neighbours by public
//! methods ([`Router`]). After each change of the configuration the engine calls what the daemon gave it for
//! that, [`Controls::follow`].
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod agent;
pub mod fpm;
pub mod kernel;
mod overlay;
pub mod say;
mod session;
pub mod tell;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sidecore_engine::host::netns;
use sidecore_engine::host::shadow::Shadow;
use sidecore_engine::router::Router;
use sidecore_engine::state::status::VERSION;
use sidecore_engine::state::{Engine, RouterSpec, SwitchSpec};

use self::overlay::Span;
use self::session::{Plane, Session};
pub use self::view::{AgentView, ControlView, RouterView, Routers};

/// Seconds for which routes stay that the control plane does not say any more, unless it is said otherwise.
const GRACE: u32 = 120;

/// The control planes that are followed, by the names of their routers.
#[derive(Default)]
pub struct Controls(Mutex<BTreeMap<String, Session>>, Mutex<BTreeMap<String, Span>>);

impl Controls {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has each router of `engine` with a control plane be followed. What a control plane has said that is
    /// not wanted any more is forgotten.
    pub fn follow(&self, engine: &Engine) {
        self.follow_switches(engine);
        let mut sessions = self.lock();
        let mut before = std::mem::take(&mut *sessions);
        for RouterSpec { name, control, grace, agents, .. } in engine.spec().routers {
            let Some((router, now)) = engine.graph().router(&name) else { continue };
            let old = before.remove(&name);
            let Some(namespace) = control else {
                drop(old);
                forget(&router, now);
                continue;
            };
            let grace = grace.map_or(GRACE, |grace| grace.get());
            let agents = agents
                .iter()
                .flat_map(|agents| &agents.0)
                .map(|it| (it.member.clone(), it.socket.clone()))
                .collect();
            if let Some(old) = old.filter(|old| old.is(&router, &namespace, grace)) {
                old.nudge(agents);
                sessions.insert(name, old);
                continue;
            }
            let cores = Arc::clone(&engine.graph().cores);
            let plane = Plane::new(router, &namespace, grace, Box::new(move || cores.seconds()));
            match plane.and_then(|plane| Session::start(plane, agents)) {
                Ok(session) => drop(sessions.insert(name, session)),
                Err(e) => {
                    tracing::error!(router = %name, "nothing follows its control plane: no thread: {e}")
                }
            }
        }
    }

    /// Has control planes be followed anew whose namespace has gone or was made again. To be called every
    /// second.
    pub fn look(&self, engine: &Engine) {
        let spans = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        let stay = spans.values().all(Span::is_in_its_namespace);
        drop(spans);
        if !(stay && self.lock().values().all(Session::is_in_its_namespace)) {
            self.follow(engine);
        }
    }

    /// Has each switch of `engine` with a control plane be followed.
    fn follow_switches(&self, engine: &Engine) {
        let mut spans = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *spans);
        for SwitchSpec { name, control, vni, .. } in engine.spec().switches {
            let (Some(control), Some(vni)) = (control, vni) else { continue };
            let Some(overlay) = engine.overlay(&name) else {
                // Its tunnel does not run just now. The shadow stays: without it all other hosts would hear
                // that we have nothing.
                drop(before.remove(&name));
                continue;
            };
            let shadow = Shadow { netns: netns::path(&control), vni: vni.get(), local: overlay.local };
            let said = match before.remove(&name) {
                Some(old) if old.is(&shadow, &overlay) => {
                    spans.insert(name, old);
                    continue;
                }
                Some(old) if old.has(&shadow) => Some(old.end()),
                Some(old) => {
                    old.remove();
                    None
                }
                None => None,
            };
            match Span::start(&name, shadow, overlay, said) {
                Ok(span) => drop(spans.insert(name, span)),
                Err(e) => {
                    tracing::error!(switch = %name, "nothing follows its control plane: no thread: {e}")
                }
            }
        }
        before.into_values().for_each(Span::remove);
    }

    /// Ends all of them.
    pub fn end(&self) {
        drop(std::mem::take(&mut *self.1.lock().unwrap_or_else(PoisonError::into_inner)));
        drop(std::mem::take(&mut *self.lock()));
    }

    /// All routers of `engine`.
    pub fn routers(&self, engine: &Engine) -> Routers {
        let view = |RouterSpec { name, .. }: RouterSpec| {
            let (router, now) = engine.graph().router(&name)?;
            let (interfaces, table_bytes) = (router.interfaces(), router.table_bytes() as u64);
            let control = self.lock().get(&name).map(|session| session.view(now));
            Some(RouterView { name, interfaces, table_bytes, control })
        };
        Routers { version: VERSION, routers: engine.spec().routers.into_iter().filter_map(view).collect() }
    }
}

/// Has `router` forget what a control plane has said.
fn forget(router: &Router, now: u32) {
    router.set_loopbacks(&BTreeSet::new(), now);
    router.next_generation();
    let mut behind = None;
    while let (_, Some(next)) = router.sweep(behind, now) {
        behind = Some(next);
    }
}
