//! `sidecore bench policy`: what a port's rules on a switch cost for each frame.
//!
//! A third port of the switch has rules, of which the flow between the other two must notice nothing (`off`);
//! the two are access ports of one VLAN (`vlan`); what the sender sends is copied to the third port
//! (`mirror`), beside which stands what any second receiver costs (`receiver`: frames for a group). Frames of
//! many flows (`flows`) also go through a list of 1,000 rules at the sender's port (`acl_1000`: against
//! `flows`; [`super::list`]), and through Open vSwitch with the same rules ([`super::beside`]). How it is
//! measured: [`super`].

use std::collections::BTreeMap;

use super::super::router::MANY;
use super::beside::Beside;
use super::list::{self, List};
use super::{Kind, Measure, Method, Traffic, SIZE};
use crate::prelude::*;

/// `bench policy`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Kind of ports.
    #[arg(long, value_name = "KIND", default_value = "vhost-user")]
    pub port: Kind,
    /// Daemons, one after the other.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub sets: u16,
    #[command(flatten)]
    pub repeat: Repeat<15>,
    #[command(flatten)]
    pub cpus: Processors,
    /// A short look: one round of a few milliseconds. Its figures mean nothing.
    #[arg(long)]
    pub quick: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What of the three ports is set.
#[derive(Default)]
struct Rules {
    /// VLAN of the flow's ports.
    vlan: &'static str,
    /// Mirror of the sender.
    mirror: &'static str,
    /// VLAN and rate of the third port.
    third: [&'static str; 2],
    /// Access list of the sender.
    acl: &'static str,
    traffic: Traffic,
    against: Option<&'static str>,
}

fn measure(name: &'static str, rules: &Rules) -> Measure {
    let words = |of: &[(&str, &str)]| of.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let [vlan, rate] = rules.third;
    let direction = if rules.mirror.is_empty() { "" } else { "in" };
    let mirror = [("mirror", rules.mirror), ("mirror-direction", direction)];
    let options = vec![
        ("p0", words(&[&[("vlan", rules.vlan), ("acl-in", rules.acl)][..], &mirror].concat())),
        ("p1", words(&[("vlan", rules.vlan)])),
        ("p2", words(&[("vlan", vlan), ("out-rate", rate)])),
    ];
    Measure { name, daemon: 0, options, traffic: rules.traffic, against: rules.against }
}

/// `bench policy`.
///
/// # Errors
/// A daemon does not start, or frames are lost.
pub fn run(args: &Args) -> Result<()> {
    args.cpus.differ()?;
    let (sets, rounds, window) = match args.quick {
        true => (1, 1, Duration::from_millis(10)),
        false => (args.sets, args.repeat.rounds, args.repeat.window),
    };
    let list = List::new(if args.quick { 1000 } else { MANY });
    let none = Rules::default;
    let many = || Rules { traffic: Traffic::Many, ..none() };
    let acl = measure("acl_1000", &Rules { acl: list::NAME, against: Some("flows"), ..many() });
    let measures = vec![
        measure("plain", &none()),
        measure("again", &none()),
        measure("off", &Rules { third: ["99", "1M"], ..none() }),
        measure("vlan", &Rules { vlan: "10", ..none() }),
        measure("mirror", &Rules { mirror: "p2", ..none() }),
        measure("receiver", &Rules { traffic: Traffic::ToAll, ..none() }),
        measure("flows", &many()),
        acl,
    ];
    let (cpus, daemons) = (args.cpus, &[&[][..]]);
    let method = Method { measures, daemons, ports: 3, list: Some(&list), cpus, sets, rounds, window };
    let rows = method.rows(args.port)?;
    let beside = Beside::of(&method, &list)?;
    let mut summary: BTreeMap<String, f64> =
        rows.iter().map(|row| (format!("{}_cost", row.measure), row.ratio)).collect();
    let note = format!(
        "time of the I/O core for a frame of {SIZE} B, with rules against without; {sets} daemons, {rounds} rounds each"
    );
    let results = Results::new("policy", &note).with("rows", &rows)?.with("beside", &beside.rows)?;
    let results = match beside.ratio {
        Ok(ratio) => {
            summary.insert("ratio_ovs".to_owned(), ratio);
            results
        }
        Err(why) => results.with("missing", &BTreeMap::from([("ovs", why)]))?,
    };
    results.with("summary", &summary)?.print(args.json)
}
