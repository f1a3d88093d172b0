//! Access lists, as the operator asks for them.

use std::path::PathBuf;
use std::sync::Arc;

use crate::policy::acl::{read_rules, Acl, Action};
use crate::switch::random_key;

crate::util::form::view! {
    /// An access list: its rules, and what becomes of frames that none matches.
    #[derive(Default)]
    #[serde(deny_unknown_fields)]
    AclSpec {
        /// Its name: 1 to 63 letters, digits, `.`, `_` and `-`.
        name: String,
        /// Its rules, in their order: the first that matches a frame decides.
        rules*: Vec<String>,
        /// A file with its rules; not known to a running daemon.
        file?: PathBuf,
        /// What becomes of frames that no rule matches.
        default?: Action,
    }
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
