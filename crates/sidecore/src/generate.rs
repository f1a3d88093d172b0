//! What is made from the flag table: completions and man pages. They are not kept in the repository;
//! packaging runs these commands, so they cannot be out of date.

use std::path::Path;

use clap::CommandFactory;

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::{print, Outcome};

/// The description of the control socket, kept by hand; `daemon::http`'s tests compare it with the code.
pub const OPENAPI: &str = include_str!("../openapi.json");

pub fn completions(args: &CompletionsArgs) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "sidecore", &mut text);
    print(&String::from_utf8_lossy(&text))
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
    clap_mangen::generate_to(Cli::command(), directory).map_err(fail)
}

pub fn openapi() -> Outcome {
    print(OPENAPI)
}
