//! The difference between two configurations, and nothing but the difference.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::spec::{DaemonSpec, Entry, PortSpec, Spec};

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

crate::util::form::view! {
    /// One change.
    Change {
        /// What happened. A port that was restarted has lost its peer, which has to connect again.
        verb: Verb = ["added", "removed", "restarted", "changed"],
        /// What was changed.
        what: String = ["port", "switch", "router", "tenant", "group", "acl"],
        /// Its name.
        name: String,
        /// For changes and restarts.
        details: Vec<String>,
    }
}

/// The changes that lead from `old` to `new`, both settled. Empty if they are the same.
pub fn between(old: &Spec, new: &Spec) -> Vec<Change> {
    let mut changes = Vec::new();
    compare(&old.switches, &new.switches, |_, _| Verb::Changed, &mut changes);
    compare(&old.routers, &new.routers, |_, _| Verb::Changed, &mut changes);
    compare(&old.tenants, &new.tenants, |_, _| Verb::Changed, &mut changes);
    compare(&old.groups, &new.groups, |_, _| Verb::Changed, &mut changes);
    compare(&old.acls, &new.acls, |_, _| Verb::Changed, &mut changes);
    let verb = |a: &PortSpec, b: &PortSpec| match a.same_attachment(b) {
        true => Verb::Changed,
        false => Verb::Restarted,
    };
    compare(&old.ports, &new.ports, verb, &mut changes);
    changes
}

/// The options of `[daemon]` that `new` gives and that differ from those in use.
pub fn fixed_options(running: &DaemonSpec, new: &DaemonSpec) -> Vec<String> {
    let running = keys(running);
    keys(new).into_iter().filter(|pair| !running.contains(pair)).map(|(key, _)| key).collect()
}

fn compare<E: Entry>(old: &[E], new: &[E], verb: impl Fn(&E, &E) -> Verb, changes: &mut Vec<Change>) {
    let named = |list: &'_ [E], name: &str| list.iter().position(|entry| entry.name() == name);
    let mut push = |verb, name: &str, details| {
        changes.push(Change { verb, what: E::WHAT.to_owned(), name: name.to_owned(), details });
    };
    for gone in old.iter().filter(|before| named(new, before.name()).is_none()) {
        push(Verb::Removed, gone.name(), Vec::new());
    }
    for after in new {
        match named(old, after.name()).map(|at| &old[at]) {
            None => push(Verb::Added, after.name(), Vec::new()),
            Some(before) if before != after => {
                push(verb(before, after), after.name(), details(before, after));
            }
            Some(_) => {}
        }
    }
}

/// Entries of a list that are told of one change; of a longer list what came and what went is told. A router
/// may have thousands of routes, and each change is answered and logged.
const LISTED: usize = 8;

fn details<T: Serialize>(before: &T, after: &T) -> Vec<String> {
    let (before, after) = (table(before), table(after));
    let all: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let change = |key: &String| {
        let (before, after) = (before.get(key), after.get(key));
        (before != after).then(|| format!("{key}: {}", change(before, after)))
    };
    all.into_iter().filter_map(change).collect()
}

/// What became of a value, in words.
fn change(before: Option<&Value>, after: Option<&Value>) -> String {
    let list = |value: Option<&Value>| match value {
        None => Some(BTreeSet::new()),
        Some(Value::Array(list)) => Some(list.iter().cloned().map(word).collect::<BTreeSet<_>>()),
        Some(_) => None,
    };
    let long = |value: Option<&Value>| value.and_then(Value::as_array).is_some_and(|it| it.len() > LISTED);
    if long(before) || long(after) {
        if let (Some(before), Some(after)) = (list(before), list(after)) {
            let came = after.difference(&before).map(|it| format!("+ {it}"));
            let went = before.difference(&after).map(|it| format!("− {it}"));
            let mut all = came.chain(went);
            let mut told: Vec<String> = all.by_ref().take(LISTED).collect();
            match all.count() {
                0 if told.is_empty() => return "in another order".to_owned(),
                0 => {}
                more => told.push(format!("{more} more")),
            }
            return told.join(", ");
        }
    }
    let shown = |value: Option<&Value>| value.cloned().map_or_else(|| "unset".to_owned(), word);
    format!("{} → {}", shown(before), shown(after))
}

fn table<T: Serialize>(part: &T) -> Table {
    Table::try_from(part).unwrap_or_default()
}

/// A value as a word of the command line.
fn word(value: Value) -> String {
    match value {
        Value::String(text) => text,
        Value::Array(list) => list.into_iter().map(word).collect::<Vec<_>>().join("+"),
        other => other.to_string(),
    }
}

/// The keys that were given, with their values as words of the command line.
pub(super) fn keys<T: Serialize>(part: &T) -> Vec<(String, String)> {
    table(part).into_iter().map(|(key, value)| (key, word(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{RouteSpec, RouterSpec};

    fn router(routes: impl Iterator<Item = u8>) -> Spec {
        let route = |number: u8| -> RouteSpec {
            toml::from_str(&format!("prefix = \"10.{number}.0.0/16\"\nblackhole = true")).unwrap()
        };
        let routers = vec![RouterSpec { routes: routes.map(route).collect(), ..RouterSpec::new("r") }];
        Spec { routers, ..Spec::default() }
    }

    fn told(before: impl Iterator<Item = u8>, after: impl Iterator<Item = u8>) -> String {
        let changes = between(&router(before), &router(after));
        let [Change { verb: Verb::Changed, details, .. }] = &changes[..] else { panic!("{changes:?}") };
        details.join("; ")
    }

    #[test]
    fn of_a_long_list_what_came_and_went_is_told() {
        let one = told(0..200, 0..201);
        assert!(one.starts_with("routes: + ") && one.contains("10.200.0.0/16") && one.len() < 100, "{one}");
        let gone = told(0..200, 1..200);
        assert!(gone.contains("− ") && gone.contains("10.0.0.0/16") && gone.len() < 100, "{gone}");
        let all = told(0..0, 0..200);
        assert!(all.ends_with(", 192 more") && all.len() < 1000, "{all}");
        assert_eq!(told(0..20, (0..20).rev()), "routes: in another order");
        let few = told(0..1, 0..2);
        assert!(few.contains(" → ") && few.contains("10.1.0.0/16"), "{few}");
    }
}
