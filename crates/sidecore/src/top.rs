//! `top`: ports, queues, cores and drops on a terminal, each second anew, sorted as wished.
//!
//! | file | what |
//! |---|---|
//! | `views` | what each view has: columns, rows, what they are sorted by |
//! | `terminal` | a terminal that is written to as a whole, and gives keys |
//!
//! A few control sequences (ECMA-48) and termios(3) are all that this takes, so there is no library for it.

mod terminal;
mod views;

use std::time::{Duration, Instant};

use sidecore_engine::state::status::{Cores, Ports, Queues};

use self::terminal::{Key, Terminal};
use self::views::{Data, View, VIEWS};
use crate::cli::Control;
use crate::client::Client;
use crate::Outcome;

const SECOND: Duration = Duration::from_secs(1);

/// What is looked at, and how.
struct Screen {
    view: &'static View,
    /// The column that rows are sorted by, of each view.
    column: [usize; VIEWS.len()],
    /// The largest first.
    falling: bool,
}

/// `top`.
pub fn run(control: &Control) -> Outcome {
    let client = Client::new(&control.path())?;
    let mut data = look(&client)?;
    let terminal = Terminal::open()?;
    let mut screen =
        Screen { view: &VIEWS[0], column: VIEWS.each_ref().map(|view| view.first), falling: true };
    let mut due = Instant::now() + SECOND;
    loop {
        let (width, height) = terminal.size();
        terminal.draw(&screen.text(&data, width, height))?;
        match terminal.key(due.saturating_duration_since(Instant::now()))? {
            Some(Key::End) => return Ok(()),
            Some(key) => screen.heed(&key),
            None => {}
        }
        if Instant::now() >= due {
            data = look(&client)?;
            due = Instant::now() + SECOND;
        }
    }
}

/// What there is to see now.
fn look(client: &Client) -> Result<Data, String> {
    let ports: Ports = client.get("/v1/ports")?;
    let queues: Queues = client.get("/v1/queues")?;
    let cores: Cores = client.get("/v1/cores")?;
    let drops = ports.drops().drops;
    let ports = ports.ports.into_iter().filter_map(|port| Some((port.name, port.state?))).collect();
    Ok(Data { ports, drops, queues: queues.queues, cores: cores.cores })
}

impl Screen {
    fn place(&self) -> usize {
        VIEWS.iter().position(|view| std::ptr::eq(view, self.view)).unwrap_or(0)
    }

    fn heed(&mut self, key: &Key) {
        let place = self.place();
        let columns = self.view.columns();
        match key {
            Key::Right => self.column[place] = (self.column[place] + 1) % columns,
            Key::Left => self.column[place] = (self.column[place] + columns - 1) % columns,
            Key::Letter('r') => self.falling = !self.falling,
            Key::Letter(letter) => {
                if let Some(view) = VIEWS.iter().find(|view| view.key == *letter) {
                    self.view = view;
                }
            }
            Key::End | Key::Other => {}
        }
    }

    /// The lines of the screen.
    fn text(&self, data: &Data, width: usize, height: usize) -> Vec<String> {
        let table = self.view.lines(data, self.column[self.place()], self.falling);
        let names = VIEWS.iter().map(|view| match std::ptr::eq(view, self.view) {
            true => format!("[{}]", view.name),
            false => format!(" {} ", view.name),
        });
        let names = names.collect::<String>();
        let head = format!("{names}  p u c d: view, ←→: sort by, r: reverse, q: leave");
        let mut lines = vec![head];
        // The headings are a line of the table.
        let room = height.saturating_sub(2).max(1);
        let more = table.len().saturating_sub(room);
        lines.extend(table.into_iter().take(room));
        if more > 0 {
            lines.push(format!("… {more} more"));
        }
        lines.into_iter().map(|line| line.chars().take(width).collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_choose_view_column_and_order() {
        let mut screen = Screen { view: &VIEWS[0], column: [0; VIEWS.len()], falling: true };
        screen.heed(&Key::Left);
        assert_eq!(screen.column[0], VIEWS[0].columns() - 1);
        screen.heed(&Key::Right);
        screen.heed(&Key::Right);
        assert_eq!(screen.column[0], 1);
        screen.heed(&Key::Letter('c'));
        assert_eq!((screen.view.name, screen.column[screen.place()]), ("cores", 0));
        screen.heed(&Key::Letter('r'));
        screen.heed(&Key::Letter('z'));
        assert_eq!((screen.view.name, screen.falling), ("cores", false));
    }

    #[test]
    fn a_screen_is_no_larger_than_its_terminal() {
        let screen = Screen { view: &VIEWS[0], column: [0; VIEWS.len()], falling: true };
        let lines = screen.text(&Data::default(), 20, 2);
        assert_eq!(lines.len(), 2);
        assert!(lines.iter().all(|line| line.chars().count() <= 20), "{lines:?}");
    }
}
