//! The difference between two configurations, and nothing but the difference.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::spec::{DaemonSpec, PortSpec, Spec};

/// What happens to one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// It was stopped and started with other options; its peer has to connect again.
    Restarted,
    /// It changed while it ran.
    Changed,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// What happens.
    pub verb: Verb,
    /// `port`, `switch` or `router`.
    pub what: String,
    /// The name.
    pub name: String,
    /// For changes and restarts: each key with its old and new value.
    pub details: Vec<String>,
}

/// The changes that lead from `old` to `new`, both settled. Empty if they are the same.
pub fn between(old: &Spec, new: &Spec) -> Vec<Change> {
    let mut changes = Vec::new();
    let switches = |spec: &Spec| spec.switches.iter().map(|s| (s.name.clone(), s.clone())).collect();
    compare("switch", switches(old), switches(new), |_, _| Verb::Changed, &mut changes);
    let routers = |spec: &Spec| spec.routers.iter().map(|r| (r.name.clone(), r.clone())).collect();
    compare("router", routers(old), routers(new), |_, _| Verb::Changed, &mut changes);
    let ports = |spec: &Spec| spec.ports.iter().map(|p| (p.name.clone(), p.clone())).collect();
    let verb = |a: &PortSpec, b: &PortSpec| match a.same_attachment(b) {
        true => Verb::Changed,
        false => Verb::Restarted,
    };
    compare("port", ports(old), ports(new), verb, &mut changes);
    changes
}

/// The options of `[daemon]` that `new` gives and that differ from those in use.
pub fn fixed_options(running: &DaemonSpec, new: &DaemonSpec) -> Vec<String> {
    let running = keys(running);
    keys(new).into_iter().filter(|pair| !running.contains(pair)).map(|(key, _)| key).collect()
}

fn compare<T: PartialEq + Serialize>(
    what: &str,
    old: Vec<(String, T)>,
    new: Vec<(String, T)>,
    verb: impl Fn(&T, &T) -> Verb,
    changes: &mut Vec<Change>,
) {
    let mut push = |verb, name: &str, details| {
        changes.push(Change { verb, what: what.to_owned(), name: name.to_owned(), details });
    };
    for (name, _) in old.iter().filter(|(name, _)| !new.iter().any(|(other, _)| other == name)) {
        push(Verb::Removed, name, Vec::new());
    }
    for (name, after) in &new {
        match old.iter().find(|(other, _)| other == name) {
            None => push(Verb::Added, name, Vec::new()),
            Some((_, before)) if before != after => push(verb(before, after), name, details(before, after)),
            Some(_) => {}
        }
    }
}

fn details<T: Serialize>(before: &T, after: &T) -> Vec<String> {
    let (before, after) = (keys(before), keys(after));
    let all: BTreeSet<&String> = before.iter().chain(&after).map(|(key, _)| key).collect();
    let value = |pairs: &[(String, String)], key: &String| {
        pairs.iter().find(|(other, _)| other == key).map_or("unset".to_owned(), |(_, value)| value.clone())
    };
    all.into_iter()
        .map(|key| (key, value(&before, key), value(&after, key)))
        .filter(|(_, before, after)| before != after)
        .map(|(key, before, after)| format!("{key}: {before} → {after}"))
        .collect()
}

/// The keys that were given, with their values as words of the command line.
pub(super) fn keys<T: Serialize>(part: &T) -> Vec<(String, String)> {
    fn word(value: toml::Value) -> String {
        match value {
            toml::Value::String(text) => text,
            toml::Value::Array(list) => list.into_iter().map(word).collect::<Vec<_>>().join("+"),
            other => other.to_string(),
        }
    }
    let table = toml::Table::try_from(part).unwrap_or_default();
    table.into_iter().map(|(key, value)| (key, word(value))).collect()
}
