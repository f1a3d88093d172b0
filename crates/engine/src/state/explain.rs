//! What would become of a frame, for people.

use std::net::{IpAddr, Ipv6Addr};

use super::engine::{Engine, Error};
use super::status::VERSION;
use crate::graph::{Fate, Step};
use crate::packet::{Ether, Fields, ARP};
use crate::port::DropReason;
use crate::router::view::Explained;
use crate::router::Router;

crate::util::form::view! {
    /// What would become of a frame.
    FrameExplained {
        /// Version of the JSON.
        version: u32,
        /// The port by which it would come in.
        from: String,
        /// What would become of it, port by port.
        steps: Vec<StepView>,
    }

    /// What would become of a frame at a port.
    StepView {
        /// The port.
        port: String,
        /// It passes, leaves by the port, comes to its router, is for a member of its group, or is dropped.
        action: String = ["pass", "out", "route", "group", "drop"],
        /// The drop reason, which is counted at the port.
        why?: String,
        /// The rule, VLAN or station behind that.
        about?: String,
        /// What its router does with the packet.
        routed?: Explained,
    }
}

/// Bytes of a frame that is looked at: its headers and then some.
const MOST: usize = 65_535;
/// Bytes of an Ethernet header.
const LEAST: usize = 14;

impl Engine {
    /// What would become of `frame`, without its FCS, if it came in by port `from`.
    ///
    /// # Errors
    /// There is no such port, or no frame is so short or long.
    pub fn explain_frame(&self, from: &str, frame: &[u8]) -> Result<FrameExplained, Error> {
        let port = self.port(from)?;
        if !(LEAST..=MOST).contains(&frame.len()) {
            let why = format!("the frame has {} bytes; allowed: {LEAST} to {MOST}", frame.len());
            return Err(Error::Cannot(why));
        }
        let graph = self.graph();
        let view = |step: Step| self.step_view(&graph.port_name(step.port), step, frame);
        let steps = graph.explain(port.id, frame).into_iter().map(view).collect();
        Ok(FrameExplained { version: VERSION, from: from.to_owned(), steps })
    }

    fn step_view(&self, port: &str, step: Step, frame: &[u8]) -> StepView {
        let Step { fate, why, port: id } = step;
        let about = Some(why).filter(|why| !why.is_empty());
        let view = |action: &str, why: Option<DropReason>| StepView {
            port: port.to_owned(),
            action: action.to_owned(),
            why: why.map(|why| why.name().to_owned()),
            about: about.clone(),
            routed: None,
        };
        match fate {
            Fate::Passes => view("pass", None),
            Fate::Dropped(why) => view("drop", Some(why)),
            Fate::Out => view("out", None),
            Fate::Shared => view("group", None),
            Fate::Routed(router) => match packet(&router, port, frame) {
                Some(to) => {
                    let routed = router.explain(to, Some(id), self.graph().cores.seconds());
                    let routed = Explained { version: VERSION, ..routed };
                    StepView { routed: Some(routed), ..view("route", None) }
                }
                None => view("route", None),
            },
        }
    }
}

/// Where the packet in `frame` goes, if it is one for the station of `router` at `port`.
fn packet(router: &Router, port: &str, frame: &[u8]) -> Option<IpAddr> {
    let fields = Fields::find(frame).filter(|fields| fields.dst != 0 && fields.ethertype != ARP)?;
    let here = router.interfaces().into_iter().find(|it| it.port == port)?;
    (Ether::parse(frame)?.dst == here.mac).then(|| Ipv6Addr::from_bits(fields.dst).to_canonical())
}
