//! From text to [`Spec`]: the TOML file and the words of the command line.
//!
//! Every complaint names its origin (file and line, or the option), the part, the key and what is
//! allowed. All complaints of a text are reported together.

use std::ops::Range;

use serde::de::DeserializeOwned;
use serde_json::Value;
use toml::de::{DeTable, DeValue, ValueDeserializer};
use toml::Spanned;

use super::acl::AclSpec;
use super::check::{check, Finding};
use super::kinds::{find, Kind};
use super::spec::{Entry, PortSpec, Spec};
use crate::util::form::{Form, Key};

/// Everything that is wrong with a configuration, one line each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct BadSpec(pub Vec<String>);

impl BadSpec {
    /// The findings, each behind its origin.
    pub fn new(findings: &[Finding], origin: impl Fn(&Finding) -> String) -> BadSpec {
        BadSpec(findings.iter().map(|finding| format!("{}{finding}", origin(finding))).collect())
    }
}

/// Reads the TOML text of the file `name`. Files with rules of access lists are the caller's to read.
pub fn from_toml(name: &str, text: &str, kinds: &[Kind]) -> Result<Spec, BadSpec> {
    let line = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let document = DeTable::parse(text).map_err(|e| {
        let at = e.span().map_or(1, |span| line(span.start));
        let digits = text.lines().nth(at - 1).is_some_and(is_octal);
        let hint = if digits { "; octal digits stand in quotes, such as \"0660\"" } else { "" };
        BadSpec(vec![format!("{name}:{at}: {}{hint}", e.message())])
    })?;
    let mut reader = Reader { kinds, complaints: Vec::new(), spec: Spec::default() };
    for (key, value) in document.get_ref() {
        reader.section(key, value);
    }
    let Reader { complaints, spec, .. } = reader;
    if !complaints.is_empty() {
        let lines = complaints.into_iter().map(|(at, text)| format!("{name}:{}: {text}", line(at)));
        return Err(BadSpec(lines.collect()));
    }
    let unread = Spec { acls: spec.acls.iter().map(AclSpec::unread).collect(), ..spec.clone() };
    let findings = check(&unread, kinds);
    if findings.is_empty() {
        return Ok(spec);
    }
    Err(BadSpec::new(&findings, |finding| format!("{name}:{}: ", line(locate(document.get_ref(), finding)))))
}

/// Whether the value of this line of a file is written as permission bits are, which TOML does not know.
fn is_octal(line: &str) -> bool {
    let value = line.split_once('=').map_or("", |(_, value)| value.split('#').next().unwrap_or("").trim());
    value.len() > 1 && value.starts_with('0') && value.bytes().all(|b| b.is_ascii_digit())
}

/// Where in the file the key of `finding` stands; the part's head if the key was not given.
fn locate(document: &DeTable<'_>, finding: &Finding) -> usize {
    let Some(value) = document.get(finding.what) else { return 0 };
    let part = match value.get_ref() {
        DeValue::Array(list) => list.get(finding.place).unwrap_or(value),
        _ => value,
    };
    let DeValue::Table(table) = part.get_ref() else { return part.span().start };
    table.get_key_value(finding.key.as_str()).map_or(part.span().start, |(key, _)| key.span().start)
}

struct Reader<'k> {
    kinds: &'k [Kind],
    /// Where each begins, and what it says.
    complaints: Vec<(usize, String)>,
    spec: Spec,
}

impl Reader<'_> {
    fn section(&mut self, key: &Spanned<std::borrow::Cow<'_, str>>, value: &Spanned<DeValue<'_>>) {
        match key.get_ref().as_ref() {
            "daemon" => {
                if let Some(daemon) = self.part("daemon", value) {
                    self.spec.daemon = daemon;
                }
            }
            "switch" => self.spec.switches = self.list(value),
            "router" => self.spec.routers = self.list(value),
            "tenant" => self.spec.tenants = self.list(value),
            "group" => self.spec.groups = self.list(value),
            "acl" => self.spec.acls = self.list(value),
            "port" => self.spec.ports = self.list(value),
            other => self.complain(
                key.span(),
                format!("key `{other}` is unknown; allowed: [daemon], [[switch]], [[router]], [[tenant]], [[group]], [[acl]], [[port]]"),
            ),
        }
    }

    fn complain(&mut self, at: Range<usize>, text: String) {
        self.complaints.push((at.start, text));
    }

    /// Reads a list of tables; a port's only where its kind knows all their keys.
    fn list<E: Entry>(&mut self, value: &Spanned<DeValue<'_>>) -> Vec<E> {
        let what = E::WHAT;
        let DeValue::Array(list) = value.get_ref() else {
            self.complain(
                value.span(),
                format!("key `{what}` must be a list of tables; allowed: [[{what}]]"),
            );
            return Vec::new();
        };
        let fits =
            |reader: &mut Self, item: &&Spanned<DeValue<'_>>| what != PortSpec::WHAT || reader.keys_fit(item);
        list.iter().filter_map(|item| fits(self, &item).then(|| self.part(what, item)).flatten()).collect()
    }

    /// Reads one table, naming the key at which that fails.
    fn part<T: DeserializeOwned>(&mut self, what: &str, value: &Spanned<DeValue<'_>>) -> Option<T> {
        let error = match T::deserialize(ValueDeserializer::from(value.clone())) {
            Ok(part) => return Some(part),
            Err(error) => error,
        };
        let at = error.span().unwrap_or_else(|| value.span());
        let mut label = what.to_owned();
        let mut key = String::new();
        if let DeValue::Table(table) = value.get_ref() {
            if let Some(DeValue::String(name)) = table.get("name").map(Spanned::get_ref) {
                label = format!("{what} {name}");
            }
            let inside = |span: Range<usize>| span.start <= at.start && at.end <= span.end;
            if let Some((k, _)) = table.iter().find(|(k, v)| inside(k.span()) || inside(v.span())) {
                key = format!("key `{}`: ", k.get_ref());
            }
        }
        self.complain(at, format!("{label}: {key}{}", error.message()));
        None
    }

    /// Whether the kind of a port knows all keys of its table. A kind that is missing or unknown is
    /// left to later checks.
    fn keys_fit(&mut self, item: &Spanned<DeValue<'_>>) -> bool {
        let DeValue::Table(table) = item.get_ref() else { return true };
        let text = |key: &str| match table.get(key).map(Spanned::get_ref) {
            Some(DeValue::String(text)) => text.as_ref().to_owned(),
            _ => String::new(),
        };
        let Ok(kind) = find(self.kinds, &text("kind")) else { return true };
        let before = self.complaints.len();
        for key in table.keys() {
            if !fits(kind, key.get_ref()) {
                let why = kind.not_known(key.get_ref());
                self.complain(key.span(), format!("port {}: key `{}`: {why}", text("name"), key.get_ref()));
            }
        }
        self.complaints.len() == before
    }
}

/// Whether a word of a port begins with a key that has several values.
fn is_list(word: &str) -> bool {
    let is = |key: &&Key| word.strip_prefix(key.name).is_some_and(|value| value.starts_with('='));
    PortSpec::KEYS.iter().find(is).is_some_and(|key| matches!(key.form, Form::List(..)))
}

/// The words of a port, in which what follows a value of a list without a key is one more of it.
fn join_lists<'t>(words: impl Iterator<Item = &'t str>) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    for word in words {
        match joined.last_mut().filter(|last| !word.contains('=') && is_list(last)) {
            Some(last) => {
                last.push('+');
                last.push_str(word);
            }
            None => joined.push(word.to_owned()),
        }
    }
    joined
}

fn fits(kind: &Kind, key: &str) -> bool {
    PortSpec::KEYS.iter().any(|known| known.name == key && kind.knows(known))
}

/// Reads `NAME=KIND:WHERE[,key=value…]`. What can only be judged beside other ports is left to `check`.
pub fn port(text: &str, kinds: &[Kind]) -> Result<PortSpec, BadSpec> {
    let bad = |why: String| BadSpec(vec![format!("port {text:?}: {why}")]);
    let form = || bad("allowed: NAME=KIND:WHERE[,key=value]…".to_owned());
    let (name, rest) = text.split_once('=').ok_or_else(form)?;
    let mut words = rest.split(',');
    let (kind, location) = words.next().and_then(|word| word.split_once(':')).ok_or_else(form)?;
    let row = find(kinds, kind).map_err(|why| bad(format!("key `kind`: {why}")))?;
    let mut pairs = vec![("name", name), ("kind", kind), ("where", location)];
    let joined = join_lists(words);
    for word in &joined {
        let (key, value) = word.split_once('=').ok_or_else(|| bad(format!("{word:?} is not key=value")))?;
        if !fits(row, key) {
            return Err(bad(format!("key `{key}`: {}", row.not_known(key))));
        }
        pairs.push((key, value));
    }
    from_pairs(&pairs).map_err(bad)
}

/// Reads a switch, a router, a tenant or a group: `NAME[,key=value…]`. Routes have commands of their own.
pub fn named<E: Entry>(text: &str) -> Result<E, BadSpec> {
    let bad = |why: String| BadSpec(vec![format!("{} {text:?}: {why}", E::WHAT)]);
    let mut words = text.split(',');
    let mut pairs = vec![("name", words.next().unwrap_or_default())];
    for word in words {
        pairs.push(word.split_once('=').ok_or_else(|| bad(format!("{word:?} is not key=value")))?);
    }
    from_pairs(&pairs).map_err(bad)
}

/// Reads options as key and value. A bad value is reported with its key.
pub fn from_pairs<T: DeserializeOwned>(pairs: &[(&str, &str)]) -> Result<T, String> {
    let read = |pairs: &[(&str, &str)]| {
        T::deserialize(Value::from_iter(pairs.iter().copied())).map_err(|why| why.to_string())
    };
    let again = |at: &usize| pairs[..*at].iter().any(|earlier| earlier.0 == pairs[*at].0);
    if let Some(at) = (0..pairs.len()).find(again) {
        return Err(format!("key `{}`: given twice", pairs[at].0));
    }
    read(pairs).map_err(|whole| {
        let mut alone = pairs.iter().filter_map(|pair| Some((pair.0, read(&[*pair]).err()?)));
        let culprit = alone.find(|(_, why)| !why.starts_with("missing field"));
        culprit.map_or(whole, |(key, why)| format!("key `{key}`: {why}"))
    })
}
