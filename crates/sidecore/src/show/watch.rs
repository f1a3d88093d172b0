//! `--watch`: what is shown, again each second, until the program is ended.

use std::io::{ErrorKind, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::Outcome;

/// A terminal's own words (ECMA-48): to the first place, and erase all behind it.
const HOME: &str = "\x1b[H\x1b[J";

const SECOND: Duration = Duration::from_secs(1);

/// Writes what `look` sees each second: over what was there on a terminal, else below it. It ends when its
/// output is closed.
pub(super) fn each_second(look: impl Fn() -> Result<String, String>) -> Outcome {
    let out = std::io::stdout();
    let (before, behind) = if out.is_terminal() { (HOME, "") } else { ("", "\n") };
    let mut next = Instant::now();
    loop {
        let text = format!("{before}{}{behind}", look()?);
        let mut out = out.lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(|e| format!("cannot write: {e}"))?,
        }
        drop(out);
        // From second to second, however long a look takes.
        next = (next + SECOND).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}
