//! One rule: how it is written, and the entries that it becomes.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::headers::{
    halves, Field, DPORT, DST, DST_MAC, FLAGS, HAS_FLAGS, LATER, NO_FLAGS, NO_PORTS, NO_PROTO, PORTS, PROTO,
    SEEN, SPORT, SRC, SRC_MAC, TYPE, VLAN, WORDS,
};
use crate::packet::Mac;

/// What a rule says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// The frame passes.
    Permit,
    /// It is dropped.
    #[default]
    Deny,
}

/// A mask, and what the words are under it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub mask: [u64; WORDS],
    pub value: [u64; WORDS],
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub(super) action: Action,
    pub(super) entries: Vec<Entry>,
    text: String,
}

/// Why a rule cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rule:?}: {why}")]
pub struct BadRule {
    /// The rule.
    pub rule: String,
    /// What is wrong, and what is allowed.
    pub why: String,
}

/// Most entries of one rule: three ranges of the worst sort, or a thousand prefixes and some ports.
const MOST: usize = 32_768;

const KEYS: &str = "src-mac, dst-mac, vlan, type, src, dst, proto, sport, dport, icmp, flags";

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Rule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Rule, BadRule> {
        Rule::read(text, &BTreeMap::new())
    }
}

/// Reads rules, a line each; `set NAME = VALUES` names values for the lines behind it, which say `src=@NAME`.
/// What stands behind a `#` is for people.
///
/// # Errors
/// A line is no rule.
pub fn read_rules<'t>(lines: impl IntoIterator<Item = &'t str>) -> Result<Vec<Rule>, BadRule> {
    let (mut rules, mut sets) = (Vec::new(), BTreeMap::new());
    for line in lines {
        let line = line.split('#').next().unwrap_or("").trim();
        match line.strip_prefix("set ").map(|set| set.split_once('=')) {
            _ if line.is_empty() => {}
            None => rules.push(Rule::read(line, &sets)?),
            Some(Some((name, values))) => {
                sets.insert(name.trim().to_owned(), values.trim().to_owned());
            }
            Some(None) => {
                let why = "it has no values; allowed: set NAME = VALUE+VALUE".to_owned();
                return Err(BadRule { rule: line.to_owned(), why });
            }
        }
    }
    Ok(rules)
}

type Sets = BTreeMap<String, String>;

/// The entries that a rule has so far.
struct Draft(Vec<Entry>);

impl Draft {
    /// Each entry also has one of these: a word, what is looked at of it, and what that is.
    fn one_of(&mut self, all: &[Clause]) -> Result<(), String> {
        if self.0.len().saturating_mul(all.len()) > MOST {
            return Err(format!(
                "it becomes more than {MOST} entries; allowed: several rules, or wider ranges"
            ));
        }
        let with = |entry: &Entry, words: &Clause| {
            let mut entry = *entry;
            for &(word, mask, value) in words {
                if entry.mask[word] & mask & (entry.value[word] ^ value) != 0 {
                    return None;
                }
                entry.mask[word] |= mask;
                entry.value[word] |= value;
            }
            Some(entry)
        };
        let both = |entry: Entry| all.iter().filter_map(move |words| with(&entry, words));
        self.0 = self.0.iter().copied().flat_map(both).collect();
        if self.0.is_empty() {
            return Err("no frame is like that: it contradicts itself".to_owned());
        }
        Ok(())
    }
}

impl Rule {
    /// Whether it lets frames pass.
    pub fn permits(&self) -> bool {
        self.action == Action::Permit
    }

    fn read(text: &str, sets: &Sets) -> Result<Rule, BadRule> {
        Rule::parse(text, sets).map_err(|why| BadRule { rule: text.to_owned(), why })
    }

    fn parse(text: &str, sets: &Sets) -> Result<Rule, String> {
        let mut words = text.split_ascii_whitespace();
        let action = match words.next() {
            Some("permit") => Action::Permit,
            Some("deny") => Action::Deny,
            _ => return Err("it begins with neither permit nor deny".to_owned()),
        };
        let mut given: BTreeMap<&str, String> = BTreeMap::new();
        for word in words {
            let (key, value) = word.split_once('=').ok_or_else(|| format!("{word:?} is not KEY=VALUE"))?;
            let value = match value.strip_prefix('@') {
                None => value.to_owned(),
                Some(name) => sets.get(name).cloned().ok_or_else(|| format!("there is no set {name:?}"))?,
            };
            if given.insert(key, value).is_some() {
                return Err(format!("key `{key}` is there twice"));
            }
        }
        let text = text.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        Ok(Rule { action, entries: entries(action, given)?, text })
    }
}

/// The entries of a rule with these keys.
fn entries(action: Action, mut given: BTreeMap<&str, String>) -> Result<Vec<Entry>, String> {
    let mut draft = Draft(vec![Entry::default()]);
    let mut each = |key: &str, read: &dyn Fn(&str) -> Option<Vec<Clause>>, allowed: &str| {
        let Some(text) = given.remove(key) else { return Ok(None) };
        let parts = text.split([',', '+']).map(|part| read(part.trim()));
        let bad = || format!("key `{key}`: {text:?} is not allowed; allowed: {allowed}");
        let all: Vec<Clause> = parts.collect::<Option<Vec<_>>>().ok_or_else(bad)?.concat();
        Ok::<_, String>(Some(all))
    };
    let fixed = [
        each("src-mac", &|text| mac(SRC_MAC, text), "MAC or MAC/MASK")?,
        each("dst-mac", &|text| mac(DST_MAC, text), "MAC or MAC/MASK")?,
        each("vlan", &|text| range(VLAN, text, 4095), "VLANs and ranges, such as 10+20-30")?,
        each("type", &ethertype, "ipv4, ipv6, arp, or a number such as 0x88b5")?,
    ];
    let src = each("src", &|text| prefix(SRC, text), "addresses and prefixes, such as 10.0.0.0/8")?;
    let dst = each("dst", &|text| prefix(DST, text), "addresses and prefixes, such as 10.0.0.0/8")?;
    let proto = each("proto", &protocol, "tcp, udp, icmp, icmpv6, or a number")?;
    let ports = "ports and ranges, such as 80+8000-8099";
    let sport = each("sport", &|text| range(SPORT, text, 65535), ports)?;
    let dport = each("dport", &|text| range(DPORT, text, 65535), ports)?;
    let icmp = each("icmp", &message, "TYPE or TYPE/CODE, such as 8 or 3/4")?;
    let flags = each("flags", &|text| flag(text), "flags of TCP, such as syn+!ack")?;
    if let Some(key) = given.keys().next() {
        return Err(format!("key `{key}`: no such key; allowed: {KEYS}"));
    }
    let is = |number: u64| proto.as_ref().is_some_and(|it| it.iter().all(|it| it[0].2 == PROTO.at(number)));
    if (sport.is_some() || dport.is_some()) && !(is(6) || is(17)) {
        return Err("sport and dport are of proto=tcp or proto=udp; allowed: a rule for each".to_owned());
    }
    if flags.is_some() && !is(6) {
        return Err("flags are of proto=tcp".to_owned());
    }
    if icmp.is_some() && (!(is(1) || is(58)) || sport.is_some() || dport.is_some()) {
        return Err("icmp is of proto=icmp or proto=icmpv6".to_owned());
    }
    // IPv6 says so beside its words.
    let families = |of: &Option<Vec<Clause>>| -> Vec<usize> { of.iter().flatten().map(Vec::len).collect() };
    let (from, to) = (families(&src), families(&dst));
    if from.iter().chain(&to).any(|it| Some(it) != from.first().or(to.first())) {
        return Err("its addresses are of IPv4 and of IPv6; allowed: a rule for each".to_owned());
    }
    for all in fixed.iter().chain([&src, &dst]).flatten() {
        draft.one_of(all)?;
    }
    let seen = |bits: u64| vec![(SEEN.0, SEEN.at(bits), SEEN.at(bits))];
    // What the rule says where protocol, ports or flags cannot be seen: RFC 7045 §2.3, RFC 7112 §5.
    let mut all = Vec::new();
    let unseen = |draft: &Draft, bits: u64| {
        let mut unseen = Draft(draft.0.clone());
        unseen.one_of(&[seen(bits)]).map(|()| unseen.0)
    };
    if let Some(proto) = &proto {
        if action == Action::Deny {
            all.extend(unseen(&draft, NO_PROTO)?);
        }
        draft.one_of(proto)?;
    }
    if sport.is_none() && dport.is_none() && icmp.is_none() && flags.is_none() {
        all.extend(draft.0);
        return Ok(all);
    }
    all.extend(unseen(&draft, if action == Action::Permit { LATER } else { NO_PORTS })?);
    draft.one_of(&[seen(PORTS)])?;
    for words in [&sport, &dport, &icmp].into_iter().flatten() {
        draft.one_of(words)?;
    }
    if let Some(flags) = flags {
        if action == Action::Deny {
            all.extend(unseen(&draft, NO_FLAGS)?);
        }
        // All of them together, unlike other values.
        draft.one_of(&[flags.concat()])?;
        draft.one_of(&[seen(HAS_FLAGS)])?;
    }
    all.extend(draft.0);
    Ok(all)
}

/// What some words of an entry are: the word, what is looked at of it, and what that is.
type Clause = Vec<(usize, u64, u64)>;

fn exact(field: Field, value: u64) -> Clause {
    vec![(field.0, field.all(), field.at(value))]
}

fn mac(field: Field, text: &str) -> Option<Vec<Clause>> {
    let number = |text: &str| {
        let [a, b, c, d, e, f] = text.parse::<Mac>().ok()?.0;
        Some(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    };
    let (text, mask) = text.split_once('/').unwrap_or((text, "ff:ff:ff:ff:ff:ff"));
    let (value, mask) = (number(text)?, number(mask)?);
    Some(vec![vec![(field.0, field.at(mask), field.at(value & mask))]])
}

/// A number, or all from one to another: as few prefixes of its bits as have just these.
fn range(field: Field, text: &str, most: u64) -> Option<Vec<Clause>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.parse::<u64>().ok().filter(|it| *it <= most);
    let (mut first, last) = (number(first)?, number(last)?);
    if first > last {
        return None;
    }
    let mut all = Vec::new();
    while first <= last {
        // The largest block that begins here and ends in the range.
        let fits = |bits: &u32| first & ((1 << bits) - 1) == 0 && first + (1 << bits) - 1 <= last;
        let bits = (0..=field.2).rev().find(fits).unwrap_or(0);
        let mask = field.all() & !field.at((1 << bits) - 1);
        all.push(vec![(field.0, mask, field.at(first))]);
        first += 1 << bits;
    }
    Some(all)
}

fn ethertype(text: &str) -> Option<Vec<Clause>> {
    let number = match text {
        "ipv4" => 0x0800,
        "ipv6" => 0x86dd,
        "arp" => 0x0806,
        _ => u16::from_str_radix(text.strip_prefix("0x")?, 16).ok()?,
    };
    Some(vec![exact(TYPE, number.into())])
}

fn protocol(text: &str) -> Option<Vec<Clause>> {
    let number = match text {
        "icmp" => 1,
        "tcp" => 6,
        "udp" => 17,
        "icmpv6" => 58,
        _ => text.parse::<u8>().ok()?,
    };
    Some(vec![exact(PROTO, number.into())])
}

fn prefix(word: usize, text: &str) -> Option<Vec<Clause>> {
    let (address, len) = match text.split_once('/') {
        None => (text, None),
        Some((address, len)) => (address, Some(len.parse::<u32>().ok()?)),
    };
    let (number, len) = match address.parse().ok()? {
        IpAddr::V4(it) => (
            it.to_ipv6_mapped().to_bits(),
            96 + len.filter(|len| *len <= 32).or_else(|| len.is_none().then_some(32))?,
        ),
        IpAddr::V6(it) => (it.to_bits(), len.unwrap_or(128)),
    };
    if len > 128 {
        return None;
    }
    let mask = u128::MAX.checked_shl(128 - len).unwrap_or(0);
    let ([mask_high, mask_low], [high, low]) = (halves(mask), halves(number & mask));
    // The address of nobody has no family: frames that are not IP have zeros there.
    let mut words = vec![(word, mask_high, high), (word + 1, mask_low, low)];
    let family = if address.contains(':') { 0x86dd } else { 0 };
    if family != 0 {
        words.extend(exact(TYPE, family));
    }
    Some(vec![words])
}

fn message(text: &str) -> Option<Vec<Clause>> {
    let (kind, code) = match text.split_once('/') {
        None => (text, None),
        Some((kind, code)) => (kind, Some(code.parse::<u8>().ok()?)),
    };
    let mut words = exact(SPORT, kind.parse::<u8>().ok()?.into());
    words.extend(code.map(|code| exact(DPORT, code.into())).unwrap_or_default());
    Some(vec![words])
}

fn flag(text: &str) -> Option<Vec<Clause>> {
    let name = text.strip_prefix('!');
    let bit = ["fin", "syn", "rst", "psh", "ack", "urg"].iter().position(|it| *it == name.unwrap_or(text))?;
    let bit = FLAGS.at(1 << bit);
    Some(vec![vec![(FLAGS.0, bit, if name.is_some() { 0 } else { bit })]])
}
