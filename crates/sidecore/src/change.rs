//! `add`, `del`, `set`, `restart`, `apply`, `save`, `move`, `resize`, `cores`, `log`: what changes a running
//! daemon.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use hyper::Method;
use serde_json::{json, Map, Value};
use sidecore_engine::state::acls::AclList;
use sidecore_engine::state::disks::Resized;
use sidecore_engine::state::kinds::{find, KINDS};
use sidecore_engine::state::status::Cores;
use sidecore_engine::state::{
    check, text, BadSpec, Change, Entry, GroupSpec, PortSpec, RouterSpec, Spec, SwitchSpec, TenantSpec, Verb,
};

use crate::api::{About, Changes, Moved};
use crate::cli::{
    AclArgs, AddArgs, ApplyArgs, Control, CoresArgs, DelArgs, LogArgs, MoveArgs, OfDaemon, ResizeArgs,
    RestartArgs, SaveArgs, SetArgs, Sort,
};
use crate::client::{segment, Client};
use crate::daemon::broker;
use crate::group;
use crate::{print, Outcome};

pub fn client(control: &Control) -> Result<Client, String> {
    Ok(Client::new(&control.path())?)
}

/// The collection that a flag chooses.
fn collection(sort: &Sort) -> &'static str {
    match sort {
        Sort { switch: true, .. } => "/v1/switches",
        Sort { router: true, .. } => "/v1/routers",
        Sort { tenant: true, .. } => "/v1/tenants",
        Sort { of_groups: true, .. } => "/v1/groups",
        Sort { acl: true, .. } => "/v1/acls",
        _ => "/v1/ports",
    }
}

/// `add`. All are added or none. Paths lead from where the command runs.
pub fn add(args: &OfDaemon<AddArgs>) -> Outcome {
    let here = std::env::current_dir().map_err(|e| format!("cannot tell in which folder this is: {e}"))?;
    let rooted = |spec: &str| {
        let mut port = port(spec)?;
        find(KINDS, &port.kind)?.root(&mut port, &here);
        Ok::<_, String>(port)
    };
    match args.sort {
        Sort { switch: true, .. } => add_to::<SwitchSpec>(args, named),
        Sort { router: true, .. } => add_to::<RouterSpec>(args, named),
        Sort { tenant: true, .. } => add_to::<TenantSpec>(args, named),
        Sort { acl: true, .. } => Err("sidecore acl NAME FILE adds an access list".to_owned()),
        Sort { of_groups: true, .. } => add_to::<GroupSpec>(args, named),
        _ => add_to(args, rooted),
    }
}

fn add_to<E: Entry>(args: &OfDaemon<AddArgs>, read: impl Fn(&str) -> Result<E, String>) -> Outcome {
    let entries = all(&args.specs, read)?;
    let mut spec = Spec::default();
    E::list(&mut spec).clone_from(&entries);
    broker::tell(&args.control.path(), &spec);
    report(&client(&args.control)?.send(Method::POST, collection(&args.sort), &entries)?)
}

/// Reads all of these specifications.
pub fn all<E>(specs: &[String], read: impl Fn(&str) -> Result<E, String>) -> Result<Vec<E>, String> {
    specs.iter().map(|spec| read(spec)).collect()
}

/// Reads a port.
pub fn port(spec: &str) -> Result<PortSpec, String> {
    text::port(spec, KINDS).map_err(|e| e.to_string())
}

/// Reads what is no port.
pub fn named<E: Entry>(spec: &str) -> Result<E, String> {
    text::named(spec).map_err(|e| e.to_string())
}

/// `del`. All are deleted or none.
pub fn del(args: &OfDaemon<DelArgs>) -> Outcome {
    let names: Vec<String> = args.names.iter().map(|name| segment(name)).collect();
    let path = format!("{}?names={}", collection(&args.sort), names.join(","));
    report(&client(&args.control)?.delete(&path)?)
}

/// `restart`. One after the other: each is there again before the next one goes.
pub fn restart(args: &OfDaemon<RestartArgs>) -> Outcome {
    let client = client(&args.control)?;
    for name in &args.names {
        report(&client.send(Method::POST, &format!("/v1/ports/{}/restart", segment(name)), &json!({}))?)?;
    }
    Ok(())
}

/// `log`.
pub fn log(args: &OfDaemon<LogArgs>) -> Outcome {
    let client = client(&args.control)?;
    let about: About = match &args.filter {
        Some(filter) => client.send(Method::PATCH, "/v1/daemon", &json!({ "log": filter }))?,
        None => client.get("/v1/daemon")?,
    };
    print(&format!("logs {}\n", about.log))
}

pub fn set(args: &OfDaemon<SetArgs>) -> Outcome {
    // No name has such a mark.
    if args.name.contains('/') {
        return group::set(&args.control, &args.name, &args.pairs);
    }
    let mut patch = Map::new();
    for pair in &args.pairs {
        let (key, value) = pair.split_once('=').ok_or_else(|| format!("{pair:?} is not key=value"))?;
        let value = if value.is_empty() { Value::Null } else { Value::from(value) };
        if patch.insert(key.to_owned(), value).is_some() {
            return Err(format!("key `{key}`: given twice"));
        }
    }
    let path = format!("{}/{}", collection(&args.sort), segment(&args.name));
    broker::tell_change(&args.control.path(), &patch);
    report(&client(&args.control)?.send(Method::PATCH, &path, &patch)?)
}

pub fn apply(args: &OfDaemon<ApplyArgs>) -> Outcome {
    let spec = read_file(&args.file)?;
    // As `run` does: the command line comes before the file, and the file before the environment.
    let control = Control { socket: args.control.socket.clone().or_else(|| spec.daemon.socket.clone()) };
    let path = if args.dry_run { "/v1/config?dry-run=true" } else { "/v1/config" };
    if !args.dry_run {
        broker::tell(&control.path(), &spec);
    }
    let client = client(&control)?;
    let answer = client.send(Method::PUT, path, &spec);
    report(&answer.map_err(|e| format!("{}: {e}", args.file.display()))?)?;
    if !args.dry_run && !spec.acls.is_empty() {
        hidden(&client.get("/v1/acls")?, |_| true, |text| eprintln!("warning: {text}"));
    }
    Ok(())
}

/// Reads and checks a configuration file.
pub fn read_file(file: &Path) -> Result<Spec, String> {
    let name = file.display().to_string();
    let text =
        sidecore_engine::sandbox::open::read_config(file).map_err(|e| format!("cannot read {name}: {e}"))?;
    let mut spec = text::from_toml(&name, &text, KINDS).map_err(|e| e.to_string())?;
    // A list's file lies where the configuration does, unless its path says otherwise.
    for acl in &mut spec.acls {
        let Some(rules) = acl.file.take() else { continue };
        let rules = file.parent().unwrap_or(Path::new("")).join(rules);
        acl.rules = lines(&rules)?;
    }
    let findings = check(&spec, KINDS);
    match findings.is_empty() {
        true => Ok(spec),
        false => Err(BadSpec::new(&findings, |_| format!("{name}: ")).to_string()),
    }
}

/// The lines of a file with rules.
fn lines(file: &Path) -> Result<Vec<String>, String> {
    let text = sidecore_engine::sandbox::open::read_config(file)
        .map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// `acl`.
pub fn acl(args: &OfDaemon<AclArgs>) -> Outcome {
    let rules = match args.file == Path::new("-") {
        true => {
            std::io::read_to_string(std::io::stdin()).map(|text| text.lines().map(str::to_owned).collect())
        }
        false => Ok(lines(&args.file)?),
    };
    let rules: Vec<String> = rules.map_err(|e| format!("cannot read standard input: {e}"))?;
    let list = json!({ "name": args.name, "rules": rules, "default": args.default });
    let client = client(&args.control)?;
    report(&client.send(Method::PUT, &format!("/v1/acls/{}", segment(&args.name)), &list)?)?;
    hidden(&client.get("/v1/acls")?, |list| list == args.name, |text| eprintln!("warning: {text}"));
    Ok(())
}

/// Says which rules never decide, of the lists that are `meant`.
pub fn hidden(now: &AclList, meant: impl Fn(&str) -> bool, say: impl Fn(&str)) {
    for list in now.acls.iter().filter(|list| meant(&list.name)) {
        for rule in &list.rules {
            if let Some(by) = &rule.hidden_by {
                let (name, rule) = (&list.name, &rule.rule);
                say(&format!("acl {name}: {rule:?} never decides: {by:?} has all of its frames"));
            }
        }
    }
}

pub fn save(args: &OfDaemon<SaveArgs>) -> Outcome {
    let client = client(&args.control)?;
    let spec: Spec = client.get("/v1/config")?;
    let text = toml::to_string(&spec).map_err(|e| e.to_string())?;
    let file = match &args.file {
        Some(file) => file.clone(),
        None => client
            .get::<About>("/v1/daemon")?
            .config
            .ok_or("the daemon was started without a file; name one, or `-` for standard output")?,
    };
    if file == Path::new("-") {
        return print(&text);
    }
    replace(&file, &text).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    print(&format!("saved to {}\n", file.display()))
}

pub fn move_queues(args: &OfDaemon<MoveArgs>) -> Outcome {
    // A name has no such mark.
    let (name, queue) = match args.port.split_once('/') {
        Some((name, queue)) => {
            let number = queue.parse::<usize>();
            (name, Some(number.map_err(|_| format!("{queue:?} is no number of a queue"))?))
        }
        None => (args.port.as_str(), None),
    };
    let body = match queue {
        Some(queue) => json!({ "core": args.core, "queue": queue }),
        None => json!({ "core": args.core }),
    };
    let path = format!("/v1/ports/{}/move", segment(name));
    let moved: Moved = client(&args.control)?.send(Method::POST, &path, &body)?;
    print(&match moved.queues {
        0 => format!("nothing to change: I/O core {} serves it already\n", args.core),
        1 => format!("1 queue moved to I/O core {}\n", args.core),
        n => format!("{n} queues moved to I/O core {}\n", args.core),
    })
}

pub fn resize(args: &OfDaemon<ResizeArgs>) -> Outcome {
    let path = format!("/v1/ports/{}/resize", segment(&args.port));
    let Resized { capacity, grown, told, .. } =
        client(&args.control)?.send(Method::POST, &path, &json!({}))?;
    print(&match (grown, told) {
        (false, _) => format!("nothing to change: the disk has {capacity} bytes, as its file\n"),
        (true, true) => format!("the disk has {capacity} bytes now, and its VMM was told\n"),
        (true, false) => format!("the disk has {capacity} bytes now; a guest sees that when it starts\n"),
    })
}

pub fn set_active(args: &OfDaemon<CoresArgs>) -> Outcome {
    let body = json!({ "active": args.active });
    let cores: Cores = client(&args.control)?.send(Method::PATCH, "/v1/cores", &body)?;
    let active = cores.cores.iter().filter(|core| core.time.active).count();
    print(&format!("{active} of {} I/O cores are active\n", cores.cores.len()))
}

/// Replaces `file` as a whole: a reader sees the old or the new text, also after a crash. A file that is
/// there keeps its owner and its permissions, and of a symbolic link it is the file behind it.
fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::{fchown, MetadataExt};
    let file = match std::fs::canonicalize(file) {
        Err(e) if e.kind() == ErrorKind::NotFound && !file.is_symlink() => file.to_owned(),
        found => found?,
    };
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = PathBuf::from(name);
    let write = || {
        let mut out = std::fs::OpenOptions::new().write(true).create_new(true).open(&new)?;
        if let Ok(old) = std::fs::metadata(&file) {
            let kept = fchown(&out, Some(old.uid()), Some(old.gid()));
            kept.map_err(|e| std::io::Error::new(e.kind(), format!("it would not keep its owner: {e}")))?;
            out.set_permissions(old.permissions())?;
        }
        out.write_all(text.as_bytes())?;
        out.sync_all()?;
        std::fs::rename(&new, &file)
    };
    write().inspect_err(|_| {
        // Best effort: the error that counts is being returned.
        let _ = std::fs::remove_file(&new);
    })
}

/// What `change` does, or would do, for people.
pub fn told(change: &Change, dry_run: bool) -> String {
    let (done, would) = match change.verb {
        Verb::Added => ("added", "would add"),
        Verb::Removed => ("deleted", "would delete"),
        Verb::Restarted => ("restarted", "would restart"),
        Verb::Changed => ("changed", "would change"),
    };
    let verb = if dry_run { would } else { done };
    let mut text = format!("{verb} {} {}", change.what, change.name);
    if !change.details.is_empty() {
        text.push_str(&format!(" ({})", change.details.join(", ")));
    }
    text
}

/// Says what changed.
pub fn report(answer: &Changes) -> Outcome {
    let mut text = String::new();
    for change in &answer.changes {
        text.push_str(&told(change, answer.dry_run));
        text.push('\n');
    }
    if answer.changes.is_empty() {
        text.push_str("nothing to change\n");
    }
    print(&text)
}
