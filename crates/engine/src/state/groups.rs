//! Groups as they are shown, and what is wanted of their members while they run.

use super::engine::{Engine, Error};
use super::grouping::{GroupSpec, MemberWeight};
pub use super::members::{GroupView, MemberView};
use super::plan::Change;
use super::status::VERSION;
use super::text::BadSpec;
use super::values::List;

crate::util::form::view! {
    /// All groups.
    GroupList {
        /// Version of the JSON.
        version: u32,
        /// All groups, by name.
        groups: Vec<GroupView>,
    }

    /// What is to change of a member; what is absent stays.
    MemberPatch {
        /// Whether it gets no new flows.
        drain?: bool,
        /// Its share beside those of other members.
        weight?: u32,
    }
}

impl Engine {
    /// The groups, and how their members are doing.
    pub fn groups(&self) -> GroupList {
        GroupList { version: VERSION, groups: self.graph().groups() }
    }

    /// Changes what is wanted of `member` of `group`.
    pub fn set_member(&self, group: &str, member: &str, patch: &MemberPatch) -> Result<Vec<Change>, Error> {
        let spec = self.everything();
        let members = spec.members(group);
        if spec.groups.iter().any(|it| it.name == group) && !members.contains(member) {
            let there = members.iter().map(|name| (*name).to_owned()).collect();
            return Err(Error::Unknown { what: "member", name: member.to_owned(), there });
        }
        let weight = patch.weight.map(|weight| format!("{member}:{weight}").parse::<MemberWeight>());
        let weight = weight
            .transpose()
            .map_err(|why| Error::Bad(BadSpec(vec![format!("member {member}: key `weight`: {why}")])))?;
        self.set::<GroupSpec>(group, |spec| {
            let mut spec = spec.clone();
            if let Some(weight) = &weight {
                let mut weights = spec.weights.take().unwrap_or(List(Vec::new()));
                weights.0.retain(|it| it.member != member);
                weights.0.push(weight.clone());
                spec.weights = Some(weights);
            }
            if let Some(drains) = patch.drain {
                let mut drain = spec.drain.take().unwrap_or(List(Vec::new()));
                drain.0.retain(|name| name != member);
                drain.0.extend(drains.then(|| member.to_owned()));
                spec.drain = Some(drain).filter(|drain| !drain.0.is_empty());
            }
            Ok(spec)
        })
    }
}
