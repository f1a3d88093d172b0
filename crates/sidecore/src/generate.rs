//! What is made from the flag table: completions and man pages. They are not kept in the repository;
//! packaging runs these commands, so they cannot be out of date.

use std::path::Path;

use clap::CommandFactory;
use sidecore_engine::state::kinds::KINDS;
use sidecore_engine::state::options::Key;
use sidecore_engine::state::{DaemonSpec, PortSpec, SwitchSpec};

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::options::told;
use crate::{print, Outcome};

/// The description of the control socket, kept by hand; `daemon::http`'s tests compare it with the code.
pub const OPENAPI: &str = include_str!("../openapi.json");

pub fn completions(args: &CompletionsArgs) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "sidecore", &mut text);
    let names = if args.shell == clap_complete::Shell::Bash { PORT_NAMES } else { "" };
    print(&format!("{}{names}", String::from_utf8_lossy(&text)))
}

/// For bash: behind commands that take a port, the names of those that there are, as the daemon says them. A name of a port
/// stands at a depth of the JSON at which no other `name` does.
const PORT_NAMES: &str = r#"
_sidecore_with_ports() {
    _sidecore "$@"
    local words="${COMP_WORDS[*]:1:2}" current="${COMP_WORDS[COMP_CWORD]}"
    case "$words" in
    "del "* | "set "* | "restart "* | "doctor "* | "move "* | "resize "* | "capture "* | "show port")
        [[ "$current" == -* ]] && return
        local names
        names=$("${COMP_WORDS[0]}" show ports --json 2>/dev/null | sed -n 's/^      "name": "\(.*\)",$/\1/p')
        COMPREPLY+=($(compgen -W "$names" -- "$current"))
        ;;
    esac
}
complete -F _sidecore_with_ports -o bashdefault -o default sidecore
"#;

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
         A TOML file for sidecore\\-run(1) and sidecore\\-apply(1), with a table [daemon], and a table [[switch]] or [[port]] for \
         each switch and port. The same keys, joined by commas, are the words of sidecore\\-add(1).\n",
    );
    let mut section = |head: &str, keys: &[Key]| {
        page.push_str(&format!(".SH {head}\n"));
        for key in keys {
            let (name, form, told) = (plain(key.name), plain(&key.form.to_string()), plain(&told(key)));
            page.push_str(&format!(".TP\n\\fB{name}\\fR = {form}\n{told}\n"));
        }
    };
    section("DAEMON", DaemonSpec::KEYS);
    section("SWITCHES", SwitchSpec::KEYS);
    section("PORTS", PortSpec::KEYS);
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
        for key in DaemonSpec::KEYS.iter().chain(SwitchSpec::KEYS).chain(PortSpec::KEYS) {
            assert!(page.contains(&format!("\\fB{}\\fR = ", key.name.replace('-', "\\-"))), "{}", key.name);
        }
        for kind in KINDS {
            assert!(page.contains(&format!("\\fB{}\\fR\n", kind.name.replace('-', "\\-"))), "{}", kind.name);
        }
        assert!(!page.contains('`'));
    }
}
