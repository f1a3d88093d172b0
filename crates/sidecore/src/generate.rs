//! What is made from the flag table: completions and man pages. They are not kept in the repository;
//! packaging runs these commands, so they cannot be out of date.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use sidecore_engine::state::kinds::KINDS;
use sidecore_engine::state::options::Key;
use sidecore_engine::state::{DaemonSpec, GroupSpec, PortSpec, SwitchSpec, TenantSpec};

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::options::told;
use crate::{print, Outcome};

/// The description of the control socket, kept by hand; `daemon::http`'s tests compare it with the code.
pub const OPENAPI: &str = include_str!("../openapi.json");

pub fn completions(args: &CompletionsArgs) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "sidecore", &mut text);
    print(&with_port_names(args.shell, &String::from_utf8_lossy(&text)))
}

/// Completions with the names of ports, behind the commands that take one. `show ports` tells them while the shell completes: the name
/// of a port stands at a depth of its JSON at which no other `name` does.
fn with_port_names(shell: Shell, text: &str) -> String {
    match shell {
        Shell::Bash => format!("{text}{PORTS_IN_BASH}"),
        Shell::Fish => format!("{text}{PORTS_IN_FISH}"),
        // The last lines choose the function that completes.
        Shell::Zsh => {
            format!("{}{PORTS_IN_ZSH}", text.split_once(ZSH_END).map_or(text, |(before, _)| before))
        }
        _ => text.to_owned(),
    }
}

const PORTS_IN_BASH: &str = r#"
_sidecore_with_ports() {
    _sidecore "$@"
    local words="${COMP_WORDS[*]:1:2}" current="${COMP_WORDS[COMP_CWORD]}"
    case "$words" in
    "del "* | "set "* | "restart "* | "doctor "* | "move "* | "resize "* | "reserve "* | "capture "* | "show port")
        [[ "$current" == -* ]] && return
        local names
        names=$("${COMP_WORDS[0]}" show ports --json 2>/dev/null | sed -n 's/^      "name": "\(.*\)",$/\1/p')
        COMPREPLY+=($(compgen -W "$names" -- "$current"))
        ;;
    esac
}
complete -F _sidecore_with_ports -o bashdefault -o default sidecore
"#;

/// Where clap's text for zsh names its function as the one that completes.
const ZSH_END: &str = "if [ \"$funcstack[1]\" = \"_sidecore\" ]; then";

const PORTS_IN_ZSH: &str = r#"_sidecore_with_ports() {
    local -a typed names
    typed=("${words[@]}")
    local last=$PREFIX ret
    _sidecore "$@"
    ret=$?
    case "${typed[2]} ${typed[3]}" in
    "del "* | "set "* | "restart "* | "doctor "* | "move "* | "resize "* | "reserve "* | "capture "* | "show port")
        if [[ "$last" != -* ]]; then
            names=(${(f)"$(${typed[1]} show ports --json 2>/dev/null | sed -n 's/^      "name": "\(.*\)",$/\1/p')"})
            compadd -- "${names[@]}" && ret=0
        fi
        ;;
    esac
    return ret
}

compdef _sidecore_with_ports sidecore
if [ "$funcstack[1]" = "_sidecore" ]; then
    _sidecore_with_ports "$@"
fi
"#;

const PORTS_IN_FISH: &str = r#"
function __sidecore_ports
    set -l typed (commandline -opc)
    $typed[1] show ports --json 2>/dev/null | string match -gr '^      "name": "(.*)",$'
end
for name in del set restart doctor move resize reserve capture
    complete -c sidecore -n "__fish_sidecore_using_subcommand $name" -f -a "(__sidecore_ports)"
end
complete -c sidecore -n "__fish_sidecore_using_subcommand show; and contains -- port (commandline -opc)" -f -a "(__sidecore_ports)"
"#;

/// What a router has in the file: key, value, meaning.
const ROUTER: [(&str, &str, &str); 5] = [
    ("name", "NAME", "Its name: 1 to 63 letters, digits, ., _ and -"),
    ("control", "NAME|PATH", "The network namespace of its control plane, by name (ip-netns(8)) or path [default: none]"),
    (
        "grace",
        "1 to 86400",
        "Seconds after the control plane ended or came back for which the router keeps routes that were not sent again [default: 120]",
    ),
    (
        "agents",
        "MEMBER:PATH or a list",
        "The agents of other members of its group, by the sockets of their virtio-serial ports: their guests get the control plane's routes [default: none]",
    ),
    ("routes", "tables", "Its static routes, as below"),
];

/// What a route has there.
const ROUTE: [(&str, &str, &str); 6] = [
    ("prefix", "ADDRESS/LENGTH", "The destinations"),
    ("via", "ADDRESS or a list", "The gateways; with several, the flow chooses one"),
    (
        "port",
        "NAME",
        "The port of link-local gateways; without gateways, the port at which the destinations are neighbours",
    ),
    ("blackhole", "true", "Packets are dropped silently"),
    (
        "unreachable",
        "true",
        "Packets are dropped, and the sender is told that the destination is unreachable",
    ),
    ("prohibit", "true", "Packets are dropped, and the sender is told that this is prohibited"),
];

/// The page of the configuration file, made from the tables of its keys.
fn file_page() -> String {
    // A line that begins with a dot or a quote would be a request; backslashes begin escapes (groff(7)).
    let plain = |text: &str| {
        let text = text.replace('\\', "\\\\").replace('`', "").replace('-', "\\-");
        if text.starts_with(['.', '\'']) {
            format!("\\&{text}")
        } else {
            text
        }
    };
    let mut page = String::from(
        ".TH sidecore.toml 5\n.SH NAME\nsidecore.toml \\- configuration of sidecore\n.SH DESCRIPTION\n\
         A TOML file for sidecore\\-run(1) and sidecore\\-apply(1), with a table [daemon], and a table [[switch]], [[router]], [[tenant]], [[group]] or \
         [[port]] for each switch, router, tenant, group and port. The same keys, joined by commas, are the words of sidecore\\-add(1).\n",
    );
    let row = |name: &str, form: &str, told: &str| {
        format!(".TP\n\\fB{}\\fR = {}\n{}\n", plain(name), plain(form), plain(told))
    };
    let section = |head: &str, keys: &[Key]| {
        let rows = keys.iter().map(|key| row(key.name, &key.form.to_string(), &told(key)));
        format!(".SH {head}\n{}", rows.collect::<String>())
    };
    page.push_str(&section("DAEMON", DaemonSpec::KEYS));
    page.push_str(&section("SWITCHES", SwitchSpec::KEYS));
    page.push_str(".SH ROUTERS\n");
    page.extend(ROUTER.iter().map(|(name, form, told)| row(name, form, told)));
    page.push_str(".SS Routes of a router: tables [[router.routes]]\n");
    page.extend(ROUTE.iter().map(|(name, form, told)| row(name, form, told)));
    page.push_str(&section("TENANTS", TenantSpec::KEYS));
    page.push_str(&section("GROUPS", GroupSpec::KEYS));
    page.push_str(&section("PORTS", PortSpec::KEYS));
    page.push_str(".SH KINDS OF PORTS\n");
    for kind in KINDS {
        page.push_str(&format!(".TP\n\\fB{}\\fR\n{}\n", plain(kind.name), plain(kind.keys)));
    }
    page + ".SH SEE ALSO\nsidecore(1), sidecore\\-run(1)\n"
}

pub fn man(args: &ManArgs) -> Outcome {
    let Some(directory) = &args.directory else {
        let mut text = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut text).map_err(|e| e.to_string())?;
        return print(&String::from_utf8_lossy(&text));
    };
    let fail =
        |e: std::io::Error| format!("cannot write man pages into {}: {e}", Path::new(directory).display());
    std::fs::create_dir_all(directory).map_err(fail)?;
    clap_mangen::generate_to(Cli::command(), directory).map_err(fail)?;
    std::fs::write(directory.join("sidecore.toml.5"), file_page()).map_err(fail)
}

pub fn openapi() -> Outcome {
    print(OPENAPI)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_the_file_has_every_kind_and_key() {
        let page = file_page();
        for key in [DaemonSpec::KEYS, SwitchSpec::KEYS, TenantSpec::KEYS, GroupSpec::KEYS, PortSpec::KEYS]
            .into_iter()
            .flatten()
        {
            assert!(page.contains(&format!("\\fB{}\\fR = ", key.name.replace('-', "\\-"))), "{}", key.name);
        }
        let description: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
        for (schema, rows) in [("RouterSpec", &ROUTER[..]), ("RouteSpec", &ROUTE[..])] {
            let properties = &description["components"]["schemas"][schema]["properties"];
            let mut known: Vec<&str> = properties.as_object().unwrap().keys().map(String::as_str).collect();
            let mut rows: Vec<&str> = rows.iter().map(|(name, ..)| *name).collect();
            known.sort_unstable();
            rows.sort_unstable();
            assert_eq!(known, rows, "{schema}");
            assert!(rows.iter().all(|name| page.contains(&format!("\\fB{name}\\fR = "))));
        }
        for kind in KINDS {
            assert!(page.contains(&format!("\\fB{}\\fR\n", kind.name.replace('-', "\\-"))), "{}", kind.name);
        }
        assert!(!page.contains('`'));
    }
}
