//! `drain`, `undrain`, `set GROUP/MEMBER`: what is wanted of a member of a group; and `show groups`.

use std::time::Duration;

use hyper::Method;
use sidecore_engine::state::groups::{GroupList, MemberPatch, MemberView};

use crate::api::Changes;
use crate::change::{client, report};
use crate::cli::{Control, DrainArgs, MemberArgs, OfDaemon};
use crate::client::{segment, Client};
use crate::table::Table;
use crate::{print, Outcome};

/// How often a member that drains is asked for.
const PAUSE: Duration = Duration::from_millis(200);

/// The group and the member of `name`.
fn parts(name: &str) -> Result<(&str, &str), String> {
    name.split_once('/')
        .ok_or_else(|| format!("{name:?} is no member; allowed: GROUP/MEMBER, as show groups has them"))
}

fn change(client: &Client, name: &str, patch: &MemberPatch) -> Outcome {
    let (group, member) = parts(name)?;
    let path = format!("/v1/groups/{}/members/{}", segment(group), segment(member));
    let changes: Changes = client.send(Method::PATCH, &path, patch)?;
    report(&changes)
}

/// `drain`. With `--wait` it is done when the member has no flows.
pub fn drain(args: &OfDaemon<DrainArgs>) -> Outcome {
    let (name, client) = (&args.of.member, client(&args.control)?);
    change(&client, name, &MemberPatch { drain: Some(true), weight: None })?;
    if args.wait {
        wait(&client, name)?;
    }
    Ok(())
}

/// Waits until the member `name` has no flows, and tells of those that are left.
fn wait(client: &Client, name: &str) -> Outcome {
    let (mut all, mut before) = (0, u32::MAX);
    loop {
        let (member, others) = find(client, name)?;
        all = all.max(member.buckets);
        match member.state.as_str() {
            "drained" => return print(&format!("{name} is drained\n")),
            "joining" => return print(&format!("{name} has no flows, and gets none when it has joined\n")),
            "gone" => return Err(format!("{name} is gone: {}", member.why.unwrap_or_default())),
            "active" => return Err(format!("{name} drains no more: somebody had it undrained")),
            "draining" if !others => {
                let why = "keeps its flows until another member is active, and there is none";
                return Err(format!(
                    "{name} {why} (show groups); it drains then, or: sidecore undrain {name}"
                ));
            }
            _ if member.buckets < before => {
                before = member.buckets;
                print(&format!("{before} of {all} buckets left\n"))?;
            }
            _ => {}
        }
        std::thread::sleep(PAUSE);
    }
}

/// `undrain`.
pub fn undrain(args: &OfDaemon<MemberArgs>) -> Outcome {
    change(&client(&args.control)?, &args.member, &MemberPatch { drain: Some(false), weight: None })
}

/// `set GROUP/MEMBER weight=N`.
pub fn set(control: &Control, name: &str, pairs: &[String]) -> Outcome {
    let [pair] = pairs else { return Err("a member has one key; allowed: weight=N".to_owned()) };
    let weight = pair.strip_prefix("weight=").and_then(|weight| weight.parse().ok());
    let Some(weight) = weight else {
        return Err(format!("{pair:?} is not allowed; allowed: weight=N, from 1 to 1000"));
    };
    change(&client(control)?, name, &MemberPatch { drain: None, weight: Some(weight) })
}

/// The member of that name as it is now, and whether another one of its group is active.
fn find(client: &Client, name: &str) -> Result<(MemberView, bool), String> {
    let (group, member) = parts(name)?;
    let all: GroupList = client.get("/v1/groups")?;
    let members = all.groups.into_iter().filter(|it| it.name == group).flat_map(|it| it.members);
    let (its, others): (Vec<_>, Vec<_>) = members.partition(|it| it.name == member);
    let active = others.iter().any(|it| it.state == "active");
    let its = its.into_iter().next().ok_or_else(|| format!("{name} was deleted meanwhile"))?;
    Ok((its, active))
}

/// `show groups`.
pub fn table(answer: &GroupList) -> String {
    let heads = ["group", "member", "state", ">for", ">weight", ">buckets", ">to move", "probes", "ports"];
    let mut table = Table::new(&heads);
    let mut notes = String::new();
    for group in &answer.groups {
        for member in &group.members {
            let MemberView { name, state, since_s, why, weight, buckets, waiting, probes_missed, ports } =
                member;
            let numbers =
                [format!("{since_s} s"), weight.to_string(), buckets.to_string(), waiting.to_string()];
            let probes = match probes_missed {
                None => "-".to_owned(),
                Some(0) => "ok".to_owned(),
                Some(missed) => format!("missed {missed}"),
            };
            let row = [group.name.clone(), name.clone(), state.clone()];
            table.row(row.into_iter().chain(numbers).chain([probes, ports.join(" ")]));
            notes.extend(why.iter().map(|why| format!("{}/{name}: {why}\n", group.name)));
        }
        if group.members.is_empty() {
            let none = "no port says that it belongs to it: group=NAME,member=MEMBER,interface=N";
            notes.push_str(&format!("{}: {none}\n", group.name));
        }
    }
    table.text() + &notes
}
