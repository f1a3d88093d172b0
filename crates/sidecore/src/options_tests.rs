//! Every option is read, and told by `--help`, the documentation and the description of the JSON, as the
//! engine's tables have it.

use clap::CommandFactory;
use sidecore_engine::util::form::Form;

use super::*;
use crate::cli::Cli;

/// A value of this form.
fn example(form: &Form) -> String {
    match form {
        Form::Number(least, _) => least.to_string(),
        Form::OneOf(words) => words[0].to_owned(),
        Form::Text(_, like) => (*like).to_owned(),
        Form::List(_, each, _) => example(each),
        _ => panic!("no option is a {form:?}"),
    }
}

/// A port that was given every key, each by the words of the command line.
pub fn every_key() -> PortSpec {
    let read = |key: &Key| {
        let kind = KINDS.iter().find(|kind| kind.knows(key)).unwrap();
        let words = format!("p={}:p,{}={}", kind.name, key.name, example(&key.form));
        let port = text::port(&words, KINDS).unwrap();
        assert_eq!(port.given().map(|key| key.name).collect::<Vec<_>>(), [key.name], "{words}");
        port
    };
    PortSpec::KEYS.iter().filter(|key| key.scope != Scope::Must).map(read).reduce(PortSpec::or).unwrap()
}

#[test]
fn every_key_is_read_from_words_and_written_as_it_was() {
    let keys = |part: toml::Table| part.keys().map(String::as_str).map(str::to_owned).collect::<Vec<_>>();
    let all = |keys: &[Key]| keys.iter().map(|key| key.name.to_owned()).collect::<Vec<_>>();
    let sorted = |mut keys: Vec<String>| {
        keys.sort();
        keys
    };
    let port = every_key();
    assert_eq!(sorted(keys(toml::Table::try_from(&port).unwrap())), sorted(all(PortSpec::KEYS)));
    assert_eq!(port.given().count() + 3, PortSpec::KEYS.len());
    let words = |keys: &[Key]| -> String {
        keys[1..].iter().map(|key| format!(",{}={}", key.name, example(&key.form))).collect()
    };
    let switch = text::named::<SwitchSpec>(&format!("s{}", words(SwitchSpec::KEYS))).unwrap();
    assert_eq!(sorted(keys(toml::Table::try_from(&switch).unwrap())), sorted(all(SwitchSpec::KEYS)));
    let tenant = text::named::<TenantSpec>(&format!("t{}", words(TenantSpec::KEYS))).unwrap();
    assert_eq!(sorted(keys(toml::Table::try_from(&tenant).unwrap())), sorted(all(TenantSpec::KEYS)));
    let group = text::named::<GroupSpec>(&format!("g{}", words(GroupSpec::KEYS))).unwrap();
    assert_eq!(sorted(keys(toml::Table::try_from(&group).unwrap())), sorted(all(GroupSpec::KEYS)));
    let examples: Vec<_> = DaemonSpec::KEYS.iter().map(|key| (key.name, example(&key.form))).collect();
    let pairs: Vec<_> = examples.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let daemon = text::from_pairs::<DaemonSpec>(&pairs).unwrap();
    assert_eq!(sorted(keys(toml::Table::try_from(&daemon).unwrap())), sorted(all(DaemonSpec::KEYS)));
    for other in ["99999999999", "-", "+", "/"] {
        for key in PortSpec::KEYS.iter().filter(|key| matches!(key.form, Form::Number(..) | Form::OneOf(_))) {
            let kind = KINDS.iter().find(|kind| kind.knows(key)).unwrap().name;
            let why = text::port(&format!("p={kind}:p,{}={other}", key.name), KINDS).unwrap_err().to_string();
            assert!(
                why.contains(&format!("key `{}`: {other:?} is not allowed; allowed: ", key.name)),
                "{why}"
            );
        }
    }
}

#[test]
fn help_tells_of_every_key() {
    for name in ["run", "add", "set"] {
        let mut command = Cli::command();
        let help = command.find_subcommand_mut(name).unwrap().render_long_help().to_string();
        let keys =
            [PortSpec::KEYS, SwitchSpec::KEYS, TenantSpec::KEYS, GroupSpec::KEYS].into_iter().flatten();
        for key in keys.filter(|key| key.scope != Scope::Must) {
            assert!(help.contains(&format!("  {}={}\n", key.name, key.form)), "{} in {help}", key.name);
            assert!(help.contains(&told(key)), "{} in {help}", key.name);
        }
        for key in DaemonSpec::KEYS.iter().filter(|_| name == "run") {
            assert!(help.contains(&format!("--{} <", key.name)), "{} in {help}", key.name);
        }
    }
}

/// The table of `keys` in docs/configuration.md; `port`: with the columns that ports have.
fn table(keys: &[Key], port: bool) -> String {
    let row = |cells: &[&str]| {
        let cell = |cell: &&str| if cell.is_empty() { " |".to_owned() } else { format!(" {cell} |") };
        format!("|{}\n", cells.iter().map(cell).collect::<String>())
    };
    let columns = |[key, value, what, kinds, default, changes]: [&str; 6]| match port {
        true => row(&[key, value, what, kinds, default, changes]),
        false => row(&[key, value, what, default]),
    };
    let mut text = columns(["key", "value", "what it is", "kinds", "default", "changes while it runs"]);
    text.push_str(&columns(["---"; 6]).replace(' ', ""));
    for key in keys {
        let words =
            |words: &[&str]| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
        let value = match (key.name, key.form) {
            ("kind", _) => words(&KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>()),
            ("where", _) => "`PATH` or `NAME`".to_owned(),
            (_, Form::Number(least, most)) => format!("{least} to {most}"),
            (_, Form::OneOf(list)) => words(list),
            (_, form) => format!("`{}`", form.to_string().replace('|', "\\|")),
        };
        let kinds = match key.scope {
            Scope::Kind => kinds_of(key),
            Scope::Frames | Scope::Queues | Scope::Learning => "all but blk".to_owned(),
            Scope::Must | Scope::Any | Scope::Paid => "all".to_owned(),
        };
        let changes = match (key.name, key.scope) {
            ("name" | "tenant", _) => "no",
            ("queue", _) => "yes",
            (_, Scope::Must | Scope::Kind) => "restart",
            _ => "yes",
        };
        let what = key.help().trim_end_matches('.');
        text.push_str(&columns([&format!("`{}`", key.name), &value, what, &kinds, key.default, changes]));
    }
    text
}

#[test]
fn the_documentation_has_every_key() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = std::fs::read_to_string(page).unwrap();
    let tables = [DaemonSpec::KEYS, SwitchSpec::KEYS, TenantSpec::KEYS, GroupSpec::KEYS]
        .map(|keys| table(keys, false));
    for table in tables.into_iter().chain([table(PortSpec::KEYS, true)]) {
        assert!(page.contains(&table), "docs/configuration.md should have this table:\n{table}");
    }
}
