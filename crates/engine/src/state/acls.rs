//! What access lists decided, for people.

use super::engine::Engine;
use super::status::VERSION;
use crate::policy::acl::Acl;

crate::util::form::view! {
    /// All access lists.
    AclList {
        /// Version of the JSON.
        version: u32,
        /// The lists, by name.
        acls: Vec<AclView>,
    }

    /// An access list, with what it decided.
    AclView {
        /// Its name.
        name: String,
        /// Ports that have it: `NAME in`, `NAME out` or `NAME mirror`.
        ports: Vec<String>,
        /// Its rules, and at last its default.
        rules: Vec<RuleView>,
    }

    /// A rule, or the default.
    RuleView {
        /// As it is written; `default permit` or `default deny`.
        rule: String,
        /// Frames on which it decided since the list was made or changed.
        frames: u64,
        /// An earlier rule that has all of its frames: it never decides.
        hidden_by?: String,
    }
}

impl AclView {
    /// A list that these `ports` have.
    fn of(name: &str, acl: &Acl, ports: Vec<String>) -> AclView {
        let rules = &acl.rules;
        let hidden = acl.hidden();
        let default = if acl.permits(rules.len()) { "default permit" } else { "default deny" };
        let texts = rules.iter().map(ToString::to_string).chain([default.to_owned()]);
        let row = |(n, (rule, frames)): (usize, (String, u64))| RuleView {
            rule,
            frames,
            hidden_by: hidden.iter().find(|(it, _)| *it == n).map(|(_, by)| rules[*by].to_string()),
        };
        AclView {
            name: name.to_owned(),
            ports,
            rules: texts.zip(acl.counts()).enumerate().map(row).collect(),
        }
    }
}

impl Engine {
    /// All access lists, with what their rules decided.
    pub fn acls(&self) -> AclList {
        let spec = self.spec();
        let ports = |name: &str| {
            let of = |list: &Option<String>, port: &str, way: &str| {
                (list.as_deref() == Some(name)).then(|| format!("{port} {way}"))
            };
            let both = spec.ports.iter().map(|port| {
                [
                    of(&port.acl_in, &port.name, "in"),
                    of(&port.acl_out, &port.name, "out"),
                    of(&port.mirror_acl, &port.name, "mirror"),
                ]
            });
            both.flatten().flatten().collect()
        };
        AclList {
            version: VERSION,
            acls: self
                .means
                .graph
                .acls()
                .into_iter()
                .map(|(name, acl)| AclView::of(&name, &acl, ports(&name)))
                .collect(),
        }
    }
}
