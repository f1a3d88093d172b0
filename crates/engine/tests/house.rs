//! The rules of the house, held by reading the sources: which module may use which, where `unsafe` may stand,
//! how long a file may be.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The engine's modules in layers: a module may use those of earlier layers, and itself.
const LAYERS: &[&[&str]] = &[
    &["count", "lock", "util"],
    &["mem"],
    &["sandbox"],
    &["core"],
    &["disk", "ring", "virtq"],
    &["packet"],
    &["observe"],
    &["port"],
    &["policy", "group", "slots"],
    &["switch"],
    &["router"],
    &["graph"],
    &["host", "device"],
    &["transport", "broker"],
    &["state"],
];

/// All that a module may use, where that is less than the earlier layers.
const ONLY: &[(&str, &[&str])] = &[("core", &["count", "lock", "mem", "observe", "util"])];

/// What each crate of ours may use of our others, in its library or program; tests may use more.
const CRATES: &[(&str, &[&str])] = &[
    ("abi", &[]),
    ("fib", &[]),
    ("driver", &["abi"]),
    ("port", &["abi"]),
    ("engine", &["abi", "fib"]),
    ("routing", &["engine"]),
    ("pktgen", &["abi", "driver", "engine", "port"]),
    ("bench", &["abi", "driver", "engine", "fib", "pktgen", "port"]),
    ("sidecore", &["abi", "engine", "pktgen", "port", "routing"]),
];

/// Words of which the engine is rid: an owner has a typed lease of what it lends.
const GONE: &[&str] = &["into_any", "QueueKey"];

/// Names of types that had several meanings, and the files in which the one that is left stands.
const ONE_MEANING: &[(&str, &[&str])] = &[
    ("Inner", &[]),
    ("Journal", &[]),
    ("Letter", &[]),
    ("Meter", &[]),
    ("Place", &[]),
    ("Ring", &["device/e1000/ring.rs", "device/rtl8169/ring.rs"]),
    ("Shared", &[]),
    ("State", &[]),
    ("Traits", &[]),
    ("Words", &["mem/shared.rs"]),
];

/// Modules of one layer that must not use each other.
const STRANGERS: &[(&str, &str)] =
    &[("device", "switch"), ("host", "switch"), ("device", "host"), ("host", "device")];

/// Modules in which `unsafe` is allowed; each such file opens with its invariant.
const UNSAFE: &[&str] = &["mem", "ring", "virtq", "host", "observe"];

/// Lines that a file may have. Tables may be longer: list them here with the reason.
const HARD_CAP: usize = 1000;
const MEDIAN: usize = 250;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, found);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

fn engine_files() -> Vec<(String, PathBuf, String)> {
    let src = root().join("crates/engine/src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let module = |path: &Path| {
        let first = path.strip_prefix(&src).unwrap().components().next().unwrap();
        first.as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned()
    };
    files.into_iter().map(|path| (module(&path), path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// Files of the engine, and of crates that are cut from it and live by its rules.
fn files_of_the_house() -> Vec<(String, PathBuf, String)> {
    let mut paths = Vec::new();
    sources(&root().join("crates/routing/src"), &mut paths);
    let read = |path: PathBuf| ("routing".to_owned(), path.clone(), fs::read_to_string(path).unwrap());
    engine_files().into_iter().chain(paths.into_iter().map(read)).collect()
}

fn layer(module: &str) -> usize {
    let place = LAYERS.iter().position(|layer| layer.contains(&module));
    place.unwrap_or_else(|| panic!("module `{module}` has no layer: give it one in LAYERS"))
}

/// The code without comments and without what stands behind `#[cfg(test)]`.
fn code(text: &str) -> impl Iterator<Item = &str> {
    // Tests stand at the end of a file; what else is for tests only stands anywhere, and is looked at.
    let mut marks = text.match_indices("#[cfg(test)]\n");
    let tests = marks.find(|(at, mark)| {
        let item = text[at + mark.len()..].lines().find(|line| !line.trim_start().starts_with("#["));
        item.is_some_and(|line| line.contains("mod ") && line.ends_with('{'))
    });
    let end = tests.map_or(text.len(), |(at, _)| at);
    text[..end].lines().map(|line| line.split("//").next().unwrap_or(""))
}

#[test]
fn modules_use_only_earlier_layers() {
    let mut wrong = Vec::new();
    for (module, path, text) in engine_files() {
        if module == "lib" || path.ends_with("tests.rs") {
            continue;
        }
        for line in code(&text) {
            for used in line.split("crate::").skip(1) {
                let used: String = used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if used.is_empty() || used == module {
                    continue;
                }
                let bad_layer = layer(&used) > layer(&module);
                let strangers = STRANGERS.contains(&(module.as_str(), used.as_str()));
                let only = ONLY.iter().find(|(of, _)| *of == module);
                let beyond = only.is_some_and(|(_, only)| !only.contains(&used.as_str()));
                if bad_layer || strangers || beyond {
                    wrong.push(format!("{}: `{module}` uses `{used}`: {}", path.display(), line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn crates_use_only_those_that_they_may() {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let dir = entry.unwrap().path();
        let text = fs::read_to_string(dir.join("Cargo.toml")).unwrap();
        let (_, rest) = text.split_once("[dependencies]").unwrap();
        let dependencies = rest.split("\n[").next().unwrap();
        let names = dependencies.lines().filter_map(|line| line.strip_prefix("sidecore-"));
        let name = |line: &str| line.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let mut used: Vec<String> = names.map(name).collect();
        used.sort();
        found.push((dir.file_name().unwrap().to_string_lossy().into_owned(), used));
    }
    found.sort();
    let mut allowed: Vec<(String, Vec<String>)> = CRATES
        .iter()
        .map(|(name, used)| (name.to_string(), used.iter().map(|it| it.to_string()).collect()))
        .collect();
    allowed.sort();
    assert_eq!(found, allowed);
}

#[test]
fn what_is_gone_stays_gone() {
    for (_, path, text) in files_of_the_house() {
        for word in GONE {
            assert!(!code(&text).any(|line| line.contains(word)), "{} has `{word}`", path.display());
        }
    }
}

#[test]
fn a_name_of_one_meaning_is_defined_where_it_has_that() {
    let mut paths = Vec::new();
    ["crates", "lab"].iter().for_each(|dir| sources(&root().join(dir), &mut paths));
    let mut found = 0;
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        for line in code(&text) {
            let mut words =
                line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
            let defines =
                words.by_ref().any(|word| ["struct", "enum", "trait", "type", "union"].contains(&word));
            let Some(name) = words.next().filter(|_| defines) else { continue };
            let Some((_, files)) = ONE_MEANING.iter().find(|(one, _)| *one == name) else { continue };
            let there = files.iter().any(|file| path.ends_with(Path::new("crates/engine/src").join(file)));
            assert!(there, "{}: `{name}` has a meaning already: {files:?}", path.display());
            found += 1;
        }
    }
    let all: usize = ONE_MEANING.iter().map(|(_, files)| files.len()).sum();
    assert_eq!(found, all, "a name that is left stands elsewhere");
}

#[test]
fn unsafe_stands_only_where_it_may() {
    let mut wrong = Vec::new();
    for (module, path, text) in files_of_the_house() {
        let has = code(&text)
            .any(|line| line.split_whitespace().any(|word| word.trim_start_matches('(') == "unsafe"));
        if !has {
            continue;
        }
        if !UNSAFE.contains(&module.as_str()) {
            wrong.push(format!("{}: unsafe outside {UNSAFE:?}", path.display()));
        }
        let opening: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
        if !opening.to_lowercase().contains("invariant") {
            wrong.push(format!("{}: has unsafe, but does not open with its invariant", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_are_short() {
    let mut files = Vec::new();
    for dir in ["crates", "lab", "fuzz"] {
        let dir = root().join(dir);
        if dir.exists() {
            sources(&dir, &mut files);
        }
    }
    let mut lengths: Vec<(usize, PathBuf)> =
        files.into_iter().map(|path| (fs::read_to_string(&path).unwrap().lines().count(), path)).collect();
    lengths.sort();
    let long: Vec<_> = lengths.iter().filter(|(lines, _)| *lines > HARD_CAP).collect();
    assert!(long.is_empty(), "longer than {HARD_CAP} lines: {long:?}");
    let median = lengths[lengths.len() / 2].0;
    assert!(median <= MEDIAN, "the median file has {median} lines, more than {MEDIAN}");
}

/// Words with which a comment leans on what stands before it.
const LEANING: &[&str] = &["And ", "Nor ", "Of ", "On which ", "Such ", "The same"];
const COLUMNS: usize = 110;

#[test]
fn comments_stand_alone_and_their_lines_are_short() {
    let mut paths = Vec::new();
    ["crates", "lab", "fuzz"].iter().for_each(|dir| sources(&root().join(dir), &mut paths));
    let mut wrong = Vec::new();
    for path in paths {
        let (mut fenced, mut begins) = (false, true);
        for (number, line) in (1..).zip(fs::read_to_string(&path).unwrap().lines()) {
            let Some(comment) = line.trim_start().strip_prefix("//") else {
                (fenced, begins) = (false, true);
                continue;
            };
            let comment = comment.trim_start_matches(['/', '!']).trim_start();
            fenced ^= comment.starts_with("```");
            // Tables, layouts and commands are not wrapped.
            let is_long = line.chars().count() > COLUMNS && !fenced && !comment.starts_with(['|', '`']);
            let leans =
                begins && LEANING.iter().any(|word| comment.trim_start_matches("* ").starts_with(word));
            if is_long || leans {
                wrong.push(format!("{}:{number}: {comment}", path.display()));
            }
            begins = comment.is_empty();
        }
    }
    assert!(wrong.is_empty(), "over {COLUMNS} columns, or beginning with {LEANING:?}:\n{}", wrong.join("\n"));
}

#[test]
fn every_file_says_what_it_is_for() {
    for (_, path, text) in files_of_the_house() {
        assert!(text.starts_with("//!"), "{} does not open with what it is for", path.display());
    }
}

/// The folders below the engine's `src` whose files must not use each other in a circle: all with more than
/// one, but for tests.
fn folders() -> BTreeSet<String> {
    let src = root().join("crates/engine/src");
    let in_src = |(_, path, _): (String, PathBuf, String)| path.strip_prefix(&src).unwrap().to_owned();
    let mut found = BTreeMap::<String, usize>::new();
    for path in engine_files().into_iter().map(in_src) {
        // The files of a folder, and folders in it, each of which counts as one file.
        for below in path.ancestors().skip(1).filter(|below| !below.as_os_str().is_empty()) {
            *found.entry(below.to_string_lossy().into_owned()).or_default() += 1;
        }
    }
    found.retain(|folder, files| *files > 1 && !folder.ends_with("/tests"));
    found.into_keys().collect()
}

/// Which files of `dir`, whose names begin with `here`, each of them uses; what lies in a folder below counts
/// as the file of that name. A file that uses what `mod.rs` or `lib.rs` exports uses that, which uses what it
/// exports.
fn uses_within(dir: &Path, here: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut paths = Vec::new();
    sources(dir, &mut paths);
    let below = |path: &Path| path.strip_prefix(dir).unwrap().to_owned();
    let name = |path: &Path| {
        let first = below(path).components().next().unwrap().as_os_str().to_string_lossy().into_owned();
        first.trim_end_matches(".rs").to_owned()
    };
    let files: BTreeSet<String> = paths.iter().map(|path| name(path)).collect();
    let top = if files.contains("lib") { "lib" } else { "mod" };
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in paths.iter().filter(|path| !path.ends_with("tests.rs")) {
        let text = code(&fs::read_to_string(path).unwrap()).collect::<Vec<_>>().join(" ");
        let file = name(path);
        let mut used: BTreeSet<String> = match file.as_str() {
            file if file == top => files.iter().filter(|other| names(&text, other)).cloned().collect(),
            _ => {
                let up = "super::".repeat(below(path).components().count());
                let ups = text.match_indices(&up).filter(|(at, _)| !text[..*at].ends_with("super::"));
                let inside =
                    ups.map(|(at, _)| &text[at + up.len()..]).filter(|rest| !rest.starts_with("super::"));
                let after = inside.chain(text.split(here).skip(1));
                let known = |name: String| if files.contains(&name) { name } else { top.to_owned() };
                after.flat_map(first_names).filter(|name| name != "super").map(known).collect()
            }
        };
        used.remove(&file);
        uses.entry(file).or_default().append(&mut used);
    }
    uses
}

/// Whether `text`, of a `mod.rs`, names something in its file `other`.
fn names(text: &str, other: &str) -> bool {
    let path = format!("{other}::");
    text.match_indices(&path).any(|(at, _)| {
        let before = text[..at].strip_suffix("self::").unwrap_or(&text[..at]);
        !before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
    })
}

/// The names that a path goes on with: one, or each of those in braces.
fn first_names(rest: &str) -> Vec<String> {
    let name = |text: &str| text.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let Some(list) = rest.strip_prefix('{') else { return vec![name(rest)] };
    let (mut names, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' if depth == 0 => {
                names.push(name(&list[start..at]));
                start = at + 1;
            }
            '}' => {
                names.push(name(&list[start..at]));
                break;
            }
            _ => {}
        }
    }
    names.retain(|name: &String| !name.is_empty());
    names
}

#[test]
fn files_of_a_folder_use_each_other_in_no_circle() {
    let folders = folders();
    assert!(["core", "transport/ring", "virtq/region"].iter().all(|known| folders.contains(*known)));
    let mut circles = Vec::new();
    let engine = root().join("crates/engine/src");
    let here = |folder: &String| format!("crate::{}::", folder.replace('/', "::"));
    let all = folders.iter().map(|folder| (folder.clone(), engine.join(folder), here(folder)));
    let routing = ("routing".to_owned(), root().join("crates/routing/src"), "crate::".to_owned());
    for (folder, dir, here) in all.chain([routing]) {
        let mut uses = uses_within(&dir, &here);
        // What uses nothing that is left is in no circle.
        loop {
            let left: BTreeSet<String> = uses.keys().cloned().collect();
            uses.values_mut().for_each(|used| used.retain(|file| left.contains(file)));
            uses.retain(|_, used| !used.is_empty());
            if uses.len() == left.len() {
                break;
            }
        }
        if !uses.is_empty() {
            circles.push(format!("files of `{folder}` use each other in a circle: {uses:?}"));
        }
    }
    assert!(circles.is_empty(), "{}", circles.join("\n"));
}

/// Folders and files below `src` in which a peer's number could be an index: none of them may index a slice.
/// A new file in such a folder belongs to them.
const UNINDEXED: &[&str] = &[
    "../../routing/src/lib.rs",
    "device/csb.rs",
    "device/e1000/packet.rs",
    "device/e1000/ring.rs",
    "device/e1000/rss.rs",
    "device/nic/transmitter.rs",
    "device/nic/tx.rs",
    "device/packet.rs",
    "device/ptnet/access.rs",
    "device/ptnet/memory.rs",
    "device/ptnet/receiver.rs",
    "device/ptnet/sender.rs",
    "device/rtl8169/access.rs",
    "device/rtl8169/packet.rs",
    "device/rtl8169/ring.rs",
    "device/rtl8169/rx.rs",
    "device/rtl8169/tx.rs",
    "device/source.rs",
    "device/virtio_blk/request.rs",
    "device/virtio_net/egress.rs",
    "device/virtio_net/ingress.rs",
    "disk/file.rs",
    "disk/job.rs",
    "graph/group",
    "graph/offload.rs",
    "host/describe.rs",
    "host/netlink.rs",
    "host/xdp/ingress.rs",
    "mem/resident.rs",
    "packet",
    "ring",
    "router",
    "sandbox/descriptors/server.rs",
    "slots",
    "transport/vfio_user/commands.rs",
    "transport/vfio_user/dma.rs",
    "transport/vfio_user/irqs.rs",
    "transport/vfio_user/messages.rs",
    "transport/vfio_user/regions.rs",
    "transport/vfio_user/version.rs",
    "transport/vhost_user/messages.rs",
    "virtq",
];
const UNINDEXED_MARK: &str = "deny(clippy::indexing_slicing)";

#[test]
fn where_a_peers_number_could_be_an_index_nothing_is_indexed() {
    let src = root().join("crates/engine/src");
    for place in UNINDEXED {
        let path = src.join(place);
        // An attribute of a module is one of all modules in it.
        let path = if path.is_dir() { path.join("mod.rs") } else { path };
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let marked = text.lines().any(|line| line.starts_with("#![") && line.contains(UNINDEXED_MARK));
        assert!(marked, "{} does not deny clippy::indexing_slicing", path.display());
    }
    // It is taken back for single items only, which say why.
    for (_, path, text) in files_of_the_house() {
        let taken_back = text.contains("#![allow(clippy::indexing_slicing");
        assert!(!taken_back, "{} allows clippy::indexing_slicing as a whole", path.display());
    }
}

/// Files that map memory into the process: each of them says what it maps, and whether a page of it may be
/// missing. Files of others are mapped in one place, behind its checks.
const MAPS: &[&str] = &[
    "host/mapping.rs",
    "mem/foreign.rs",
    "mem/mapping.rs",
    "mem/pages.rs",
    "mem/resident.rs",
    "mem/sigbus.rs",
    "observe/counters.rs",
];

#[test]
fn memory_is_mapped_only_where_it_is_known_what_becomes_of_a_missing_page() {
    let src = root().join("crates/engine/src");
    let calls = ["mmap(", "mmap_anonymous(", "Mapping::of_file(", "Mapping::of_part("];
    let maps = |line: &str| calls.iter().any(|call| line.contains(call));
    let found = engine_files().into_iter().filter(|(_, _, text)| code(text).any(maps));
    let mut found: Vec<String> =
        found.map(|(_, path, _)| path.strip_prefix(&src).unwrap().display().to_string()).collect();
    found.sort();
    assert_eq!(found, MAPS);
}

/// Crates whose arithmetic is on what guests wrote: it is checked in the program that users run, too.
const CHECKED: &[&str] = &["sidecore-engine", "sidecore-fib", "sidecore-routing"];

#[test]
fn arithmetic_on_what_guests_write_is_checked_in_releases() {
    let text = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    for name in CHECKED {
        let (_, rest) = text.split_once(&format!("[profile.release.package.{name}]\n")).unwrap();
        let profile = rest.split("\n[").next().unwrap();
        assert!(profile.lines().any(|line| line == "overflow-checks = true"), "{name}: {profile}");
    }
}

/// Steps of the walk in ARCHITECTURE.md, from one virtio-net port to another: each is a file that has the
/// function.
const WALK: usize = 12;

#[test]
fn the_walk_from_port_to_port_is_as_it_is_told() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, number, file, function, _, _] = cells[..] else { return None };
        let number: usize = number.parse().ok()?;
        Some((number, file.trim_matches('`').to_owned(), function.trim_matches('`').to_owned()))
    });
    let rows: Vec<_> = rows.collect();
    assert!(rows.iter().map(|(number, ..)| *number).eq(1..=WALK), "{rows:?}");
    let files: BTreeSet<_> = rows.iter().map(|(_, file, _)| file).collect();
    assert_eq!(files.len(), rows.len(), "a file stands there twice");
    for (_, file, function) in &rows {
        let code = fs::read_to_string(root().join("crates/engine/src").join(file)).unwrap();
        assert!(code.contains(&format!("fn {function}(")), "{file} has no function `{function}`");
    }
}

/// What is behind each `start` in `text`, up to the end of the code.
fn codes<'t>(text: &'t str, start: &'t str) -> impl Iterator<Item = &'t str> {
    text.match_indices(start).filter_map(move |(at, _)| text.get(at + start.len()..)?.split('`').next())
}

/// Names of the functions of a file that is Rust or Python.
fn functions<'t>(text: &'t str, word: &'t str) -> impl Iterator<Item = &'t str> {
    let name = |line: &'t str| line.split(|c: char| !c.is_alphanumeric() && c != '_').next();
    text.lines().filter_map(move |line| line.trim_start().strip_prefix(word).and_then(name))
}

/// A promise names the command that shows it: one that runs no test at all shows nothing.
#[test]
fn the_tests_that_promises_name_are_there() {
    let promises = fs::read_to_string(root().join("PROMISES.md")).unwrap();
    let mut checked = 0;
    for command in codes(&promises, "cargo test ") {
        let words: Vec<&str> = command.split_whitespace().collect();
        let after = |flag: &str| words.iter().skip_while(|word| **word != flag).nth(1).copied();
        let package = after("-p").unwrap_or_else(|| panic!("`{command}` names no package"));
        let dir = match package.strip_prefix("sidecore-") {
            Some("lab") => root().join("lab"),
            name => root().join("crates").join(name.unwrap_or(package)),
        };
        let mut paths = Vec::new();
        let (base, filter) = match after("--test") {
            Some(name) => {
                let file = dir.join("tests").join(format!("{name}.rs"));
                if file.exists() {
                    paths.push(file);
                } else {
                    // `all`: the program of all files.
                    sources(&dir.join("tests"), &mut paths);
                }
                (dir.join("tests"), words.iter().skip_while(|word| **word != "--test").nth(2))
            }
            None => {
                sources(&dir.join("src"), &mut paths);
                if !words.contains(&"--lib") && dir.join("tests").exists() {
                    sources(&dir.join("tests"), &mut paths);
                }
                (dir.join("src"), words.iter().skip_while(|word| **word != "--lib").nth(1))
            }
        };
        let runs = paths.iter().any(|path| {
            let module = path.strip_prefix(&base).unwrap_or(path).with_extension("").display().to_string();
            let module = module.trim_end_matches("/mod").replace('/', "::");
            let text = fs::read_to_string(path).unwrap();
            let tests = text.split("#[test]").skip(1);
            let mut names = tests.filter_map(|rest| functions(rest, "fn ").next());
            names.any(|name| filter.is_none_or(|filter| format!("{module}::{name}").contains(filter)))
        });
        // Tests of `proptest!` are no functions.
        assert!(runs, "`cargo test {command}` runs no test");
        checked += 1;
    }
    assert!(checked > 30, "{checked} commands were found");
}

/// The attacks that are named in all that is told of security are there.
#[test]
fn the_attacks_that_are_named_are_there() {
    let mut attacks = BTreeSet::new();
    for entry in fs::read_dir(root().join("attacks/cases")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "py") {
            let text = fs::read_to_string(path).unwrap();
            let declared = text.split("\n@attack(").skip(1);
            attacks
                .extend(declared.filter_map(|rest| Some(functions(rest, "def ").next()?.replace('_', "-"))));
        }
    }
    let mut named = 0;
    let promises = fs::read_to_string(root().join("PROMISES.md")).unwrap();
    for command in codes(&promises, "attacks/run ").filter(|command| !command.starts_with("--")) {
        for word in command.split_whitespace() {
            assert!(attacks.iter().any(|name| name.starts_with(word)), "no attack begins with {word}");
            named += 1;
        }
    }
    let security = fs::read_to_string(root().join("SECURITY.md")).unwrap().replace('\n', " ");
    for (at, before) in security.match_indices("ttack `").chain(security.match_indices("ttacks `")) {
        let mut rest = &security[at + before.len()..];
        while let Some((name, behind)) = rest.split_once('`') {
            assert!(name.contains('…') || attacks.contains(name), "there is no attack {name}");
            named += 1;
            let behind = behind.strip_prefix(',').unwrap_or(behind).trim_start();
            let Some(next) = behind.strip_prefix("and ").unwrap_or(behind).strip_prefix('`') else { break };
            rest = next;
        }
    }
    assert!(named > 80, "{named} attacks are named");
}
