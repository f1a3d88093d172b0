//! Access lists, as the operator asks for them, and what they decided.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::engine::Engine;
use super::spec::{Entry, Spec};
use super::status::VERSION;
use super::view::view;
use crate::policy::acl::{read_rules, Acl, Action};
use crate::switch::random_key;

/// One access list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AclSpec {
    /// Its name: 1 to 63 letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// Its rules, in their order: the first that matches a frame decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// A file with its rules, a line each, instead of `rules`. It is read where the configuration is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// What becomes of frames that no rule matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Action>,
}

/// Most lines of a list.
const MOST: usize = 65_536;

impl AclSpec {
    /// What is wrong with it by itself, if anything is: the key, and why.
    pub(super) fn complaint(&self) -> Option<(&'static str, String)> {
        if self.file.is_some() {
            let why = "a daemon reads no rules; allowed: rules, or in a file for sidecore run or apply without rules";
            return Some(("file", why.to_owned()));
        }
        if self.rules.len() > MOST {
            return Some(("rules", format!("{} lines; allowed: at most {MOST}", self.rules.len())));
        }
        let read = read_rules(self.rules.iter().map(String::as_str));
        read.err().map(|bad| ("rules", bad.to_string()))
    }

    /// As it is before its file is read.
    pub(super) fn unread(&self) -> AclSpec {
        let file = self.file.clone().filter(|_| !self.rules.is_empty());
        AclSpec { file, ..self.clone() }
    }

    /// The list itself.
    pub(super) fn compile(&self) -> Arc<Acl> {
        // It was checked.
        let rules = read_rules(self.rules.iter().map(String::as_str)).unwrap_or_default();
        let key: [[u64; 2]; 4] = std::array::from_fn(|_| random_key());
        Arc::new(Acl::compile(
            rules,
            self.default.unwrap_or_default(),
            std::array::from_fn(|n| key[n / 2][n % 2]),
        ))
    }
}

impl Entry for AclSpec {
    const WHAT: &'static str = "acl";

    fn name(&self) -> &str {
        &self.name
    }

    fn list(spec: &mut Spec) -> &mut Vec<AclSpec> {
        &mut spec.acls
    }

    fn held(spec: &Spec, name: &str) -> Option<String> {
        let its = |list: &Option<String>| list.as_deref() == Some(name);
        let port = spec.ports.iter().find(|port| its(&port.acl_in) || its(&port.acl_out))?;
        Some(format!("port {} has it", port.name))
    }
}

view! {
    /// Answer to `show acl`.
    AclList {
        /// [`VERSION`].
        version: u32,
        /// All lists, by name.
        acls: Vec<AclView>,
    }

    /// One list.
    AclView {
        /// Its name.
        name: String,
        /// The ports that have it: `NAME in` or `NAME out`.
        ports: Vec<String>,
        /// Its rules, and at last its default.
        rules: Vec<RuleView>,
    }

    /// One rule, or the default.
    RuleView {
        /// As it is written, sets with their names; `default permit` or `default deny`.
        rule: String,
        /// Frames on which it decided since the list was made or changed.
        frames: u64,
        /// An earlier rule that has all of its frames: it never decides.
        hidden_by?: String,
    }
}

impl AclView {
    /// A list that ports have.
    pub(super) fn of(name: &str, acl: &Acl, ports: Vec<String>) -> AclView {
        let rules = acl.rules();
        let hidden = crate::policy::acl::shadowed(rules);
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
            let both = spec
                .ports
                .iter()
                .map(|port| [of(&port.acl_in, &port.name, "in"), of(&port.acl_out, &port.name, "out")]);
            both.flatten().flatten().collect()
        };
        AclList { version: VERSION, acls: self.means.graph.acls(ports) }
    }
}
