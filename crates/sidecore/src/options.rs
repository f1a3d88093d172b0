//! The options of ports, switches and the daemon for the command line: `--help` and the flags of `run`, made
//! of the tables in the engine's `state`.

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use sidecore_engine::state::kinds::KINDS;
use sidecore_engine::state::{text, DaemonSpec, GroupSpec, PortSpec, SwitchSpec, TenantSpec};
use sidecore_engine::util::form::{Key, Scope};

/// How ports and switches are written.
pub const BRIEF: &str = "\
Ports are written NAME=KIND:WHERE[,key=value]... as in

  web=vhost-user:/run/sidecore/web.sock,mode=0660,queues=4
  up=tap:tap0,mtu=9000
  a=vhost-user:/run/a.sock,role=client,wire=w1
  app=ring:app,queues=2

Switches, tenants and groups are written NAME[,key=value]..., routers
NAME[,control=NAMESPACE][,grace=SECONDS][,agents=MEMBER:PATH+...].
A key that does not apply is an error, which names those that do.
--help lists all keys.";

/// How ports and switches are written, with every option.
pub fn all() -> String {
    let mut text = BRIEF.replace("\n--help lists all keys.", "");
    let kinds: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
    text.push_str(&format!("\n\nKinds of ports: {}.", kinds.join(", ")));
    let mut section = |head: &str, keys: &[Key], scopes: &[Scope]| {
        text.push_str(&format!("\n\n{head}:"));
        for key in keys.iter().filter(|key| scopes.contains(&key.scope)) {
            text.push_str(&format!("\n  {}={}\n          {}", key.name, key.form, told(key)));
        }
    };
    section("Keys of every port", PortSpec::KEYS, &[Scope::Any, Scope::Paid]);
    section("Keys of ports that carry frames", PortSpec::KEYS, &[Scope::Frames, Scope::Queues]);
    section("Keys of ports on a switch that learns", PortSpec::KEYS, &[Scope::Learning]);
    section("Keys of some kinds of ports", PortSpec::KEYS, &[Scope::Kind]);
    section("Keys of every switch", SwitchSpec::KEYS, &[Scope::Any]);
    section("Keys of switches that learn", SwitchSpec::KEYS, &[Scope::Learning]);
    section("Keys of every tenant", TenantSpec::KEYS, &[Scope::Any]);
    section("Keys of every group", GroupSpec::KEYS, &[Scope::Any]);
    text
}

/// What a key is for, of which kinds of ports, and its default.
pub fn told(key: &Key) -> String {
    let kinds = kinds_of(key);
    let kinds = if kinds.is_empty() { kinds } else { format!(" ({kinds})") };
    let default = if key.default.is_empty() { String::new() } else { format!(" [default: {}]", key.default) };
    format!("{}{kinds}{default}", key.help().trim_end_matches('.')).replace('`', "")
}

/// The kinds of ports that know `key`, if not every kind does.
fn kinds_of(key: &Key) -> String {
    let knows = KINDS.iter().filter(|kind| key.scope == Scope::Kind && kind.knows(key));
    knows.map(|kind| kind.name).collect::<Vec<_>>().join(", ")
}

/// The options of the daemon as flags, but for the control socket, which other commands have, too.
#[derive(Debug)]
pub struct DaemonFlags(pub DaemonSpec);

fn flags() -> impl Iterator<Item = &'static Key> {
    DaemonSpec::KEYS.iter().filter(|key| key.name != "socket")
}

impl Args for DaemonFlags {
    fn augment_args(command: Command) -> Command {
        let flag = |key: &'static Key| {
            let sound = |text: &str| match text::from_pairs::<DaemonSpec>(&[(key.name, text)]) {
                Ok(_) => Ok(text.to_owned()),
                // clap says which flag it is.
                Err(why) => Err(why.trim_start_matches(&format!("key `{}`: ", key.name)).to_owned()),
            };
            let flag = Arg::new(key.name).long(key.name).value_name(key.form.to_string());
            flag.help(told(key)).value_parser(sound)
        };
        command.args(flags().map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for DaemonFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = |key: &Key| Some((key.name, matches.get_one::<String>(key.name)?.as_str()));
        let pairs: Vec<_> = flags().filter_map(given).collect();
        text::from_pairs::<DaemonSpec>(&pairs)
            .map(DaemonFlags)
            .map_err(|why| Error::raw(ErrorKind::ValueValidation, why))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
#[path = "options_tests.rs"]
pub mod tests;
