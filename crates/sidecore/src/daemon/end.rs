//! The end of the daemon has a bound.
//!
//! A conversation may hang in a system call that cannot be cancelled, and the orderly end waits for it. So a
//! thread looks at the clock: when the bound has passed it says what is left, by the names of the threads,
//! and ends the process. What ports leave to the next daemon stays as after a kill, which is harmless at any
//! instant.

use std::path::Path;
use std::time::Duration;

use tracing::error;

/// Ends the process after `time`, if it has not ended before.
pub fn bound(time: Duration) {
    let watch = move || {
        std::thread::sleep(time);
        error!("the daemon ends after {time:?} without waiting for: {}", left(Path::new("/proc/self/task")));
        std::process::exit(1);
    };
    if let Err(e) = std::thread::Builder::new().name("end".to_owned()).spawn(watch) {
        error!("the end of the daemon may take any time: no thread for its bound: {e}");
    }
}

/// Names of the threads of `tasks`, but for those that are always there.
fn left(tasks: &Path) -> String {
    let always = |name: &str| ["end", "carriers", "groups"].contains(&name) || name.starts_with("io");
    let tasks = std::fs::read_dir(tasks).into_iter().flatten().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    let mut names: Vec<String> =
        names.map(|name| name.trim_end().to_owned()).filter(|name| !always(name)).collect();
    names.sort();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    #[test]
    fn what_is_left_is_named() {
        let (stop, stopped) = channel::<()>();
        let (started, starts) = channel();
        let thread = std::thread::Builder::new().name("vfu-stuck".to_owned()).spawn(move || {
            let _ = started.send(());
            let _ = stopped.recv();
        });
        starts.recv().unwrap();
        let left = super::left(std::path::Path::new("/proc/self/task"));
        assert!(left.split(", ").any(|name| name == "vfu-stuck"), "{left}");
        drop(stop);
        thread.unwrap().join().unwrap();
    }
}
