//! A terminal: lines are drawn over what was there, keys come one by one, and it is as before when this is
//! dropped.

use std::io::{ErrorKind, IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::pipe::{pipe_with, PipeFlags};
use rustix::termios::{
    tcgetattr, tcgetwinsize, tcsetattr, LocalModes, OptionalActions, SpecialCodeIndex, Termios,
};
use tokio::signal::unix::{signal, SignalKind};

/// The other screen, without a cursor; and back (xterm's own, which all terminals know).
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// To the first place; to the end of the line, and of the screen, erased (ECMA-48).
const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K\r\n";
const REST: &str = "\x1b[J";

/// What was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Left,
    Right,
    Letter(char),
    Other,
    /// q, control C, the end of the input, or a signal.
    End,
}

/// The terminal on standard input and output.
pub struct Terminal {
    before: Termios,
    /// Readable when a signal wants the end.
    ended: OwnedFd,
}

impl Terminal {
    /// Takes it over.
    pub fn open() -> Result<Terminal, String> {
        let (input, output) = (std::io::stdin(), std::io::stdout());
        if !input.is_terminal() || !output.is_terminal() {
            return Err("top needs a terminal; `sidecore show ports --watch` writes to anything".to_owned());
        }
        let fail = |e: rustix::io::Errno| format!("cannot use the terminal: {e}");
        let before = tcgetattr(&input).map_err(fail)?;
        let ended = listen()?;
        let mut ours = before.clone();
        // Keys as they are pressed, not shown; control C, too, is a key.
        ours.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        ours.special_codes[SpecialCodeIndex::VMIN] = 1;
        ours.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(&input, OptionalActions::Now, &ours).map_err(fail)?;
        let terminal = Terminal { before, ended };
        terminal.write(ENTER)?;
        Ok(terminal)
    }

    /// Columns and lines.
    pub fn size(&self) -> (usize, usize) {
        match tcgetwinsize(std::io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => (80, 24),
        }
    }

    /// Puts `lines` in place of what is there.
    pub fn draw(&self, lines: &[String]) -> Result<(), String> {
        // The last line has none below it to go to.
        let text = lines.join(REST_OF_LINE);
        self.write(&format!("{HOME}{text}\x1b[K{REST}"))
    }

    fn write(&self, text: &str) -> Result<(), String> {
        let mut out = std::io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(format!("cannot write: {e}")),
            _ => Ok(()),
        }
    }

    /// The next key, if one is pressed within `limit`.
    pub fn key(&self, limit: Duration) -> Result<Option<Key>, String> {
        let input = std::io::stdin();
        let mut fds = [PollFd::new(&input, PollFlags::IN), PollFd::new(&self.ended, PollFlags::IN)];
        let limit = Timespec::try_from(limit).map_err(|e| e.to_string())?;
        match poll(&mut fds, Some(&limit)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(e) => return Err(format!("cannot wait for keys: {e}")),
        }
        if !fds[1].revents().is_empty() {
            return Ok(Some(Key::End));
        }
        let mut bytes = [0; 16];
        let got = rustix::io::read(&input, &mut bytes).unwrap_or(0);
        Ok(Some(meaning(bytes.get(..got).unwrap_or_default())))
    }
}

/// What the bytes of one key press mean.
fn meaning(bytes: &[u8]) -> Key {
    match bytes {
        [] | [b'q' | 3 | 4, ..] => Key::End,
        b"\x1b[C" | b"\x1bOC" | b">" => Key::Right,
        b"\x1b[D" | b"\x1bOD" | b"<" => Key::Left,
        [letter, ..] if letter.is_ascii_lowercase() => Key::Letter(char::from(*letter)),
        _ => Key::Other,
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // What cannot be put back now cannot be put back at all.
        let _ = self.write(LEAVE);
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// A descriptor that becomes readable when a signal wants the program to end: it has to put the terminal back
/// before.
fn listen() -> Result<OwnedFd, String> {
    let fail = |e: &dyn std::fmt::Display| format!("cannot listen for signals: {e}");
    let (readable, theirs) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| fail(&e))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| fail(&e))?;
    let (mut term, mut hangup) = {
        let _entered = runtime.enter();
        let on = |kind| signal(kind).map_err(|e| fail(&e));
        (on(SignalKind::terminate())?, on(SignalKind::hangup())?)
    };
    let wait = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = term.recv() => {}
                _ = hangup.recv() => {}
            }
        });
        drop(theirs);
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map_err(|e| fail(&e))?;
    Ok(readable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_meaning() {
        let keys: [&[u8]; 7] = [b"q", b"\x03", b"", b"\x1b[C", b"\x1bOD", b"c", b"\x1b[A"];
        let wanted = [Key::End, Key::End, Key::End, Key::Right, Key::Left, Key::Letter('c'), Key::Other];
        assert_eq!(keys.map(meaning), wanted);
    }
}
