//! Access lists, as the operator asks for them.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

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
