//! What is made from the flag table: completions and man pages. They are not kept in the repository;
//! packaging runs these commands, so they cannot be out of date.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use sidecore_engine::state::kinds::KINDS;
use sidecore_engine::state::{
    AclSpec, DaemonSpec, GroupSpec, PortSpec, RouteSpec, RouterSpec, SwitchSpec, TenantSpec,
};
use sidecore_engine::util::form::{Form, Value};

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::options::told;
use crate::{print, Outcome};

pub fn completions(args: &CompletionsArgs) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "sidecore", &mut text);
    print(&with_port_names(args.shell, &String::from_utf8_lossy(&text)))
}

/// Completions with the names of ports, behind the commands that take one. `show ports` tells them while the
/// shell completes: the name of a port stands at a depth of its JSON at which no other `name` does.
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

/// The tables of the configuration file.
const SECTIONS: [(&str, Form); 8] = [
    ("DAEMON", DaemonSpec::FORM),
    ("SWITCHES", SwitchSpec::FORM),
    ("ROUTERS", RouterSpec::FORM),
    ("ROUTES OF A ROUTER: TABLES [[router.routes]]", RouteSpec::FORM),
    ("TENANTS", TenantSpec::FORM),
    ("GROUPS", GroupSpec::FORM),
    ("ACCESS LISTS", AclSpec::FORM),
    ("PORTS", PortSpec::FORM),
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
         A TOML file for sidecore\\-run(1) and sidecore\\-apply(1), with a table [daemon], and a table [[switch]], [[router]], [[tenant]], [[group]], \
         [[acl]] or [[port]] for each of these. The same keys, joined by commas, are the words of sidecore\\-add(1).\n",
    );
    let row = |name: &str, form: &str, told: &str| {
        format!(".TP\n\\fB{}\\fR = {}\n{}\n", plain(name), plain(form), plain(told))
    };
    for (head, form) in SECTIONS {
        let Form::Part(part) = form else { continue };
        page.push_str(&format!(".SH {head}\n"));
        page.extend(part.keys.iter().map(|key| row(key.name, &key.form.to_string(), &told(key))));
    }
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
    print(crate::daemon::description())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_the_file_has_every_kind_and_key() {
        let page = file_page();
        for (_, form) in SECTIONS {
            let Form::Part(part) = form else { panic!("{form:?}") };
            for key in part.keys {
                assert!(
                    page.contains(&format!("\\fB{}\\fR = ", key.name.replace('-', "\\-"))),
                    "{}",
                    key.name
                );
            }
        }
        for kind in KINDS {
            assert!(page.contains(&format!("\\fB{}\\fR\n", kind.name.replace('-', "\\-"))), "{}", kind.name);
        }
        assert!(!page.contains('`'));
    }
}
