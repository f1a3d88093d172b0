//! `events`: what has happened to a daemon, and with `--follow` what happens.

use std::io::{ErrorKind, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::api::EventView;
use crate::cli::{EventsArgs, OfDaemon};
use crate::client::Client;
use crate::Outcome;

/// How often a daemon that is gone is called.
const AGAIN: Duration = Duration::from_millis(250);
/// Bytes of the longest line of events.
const LINE: usize = 64 << 10;

/// What was read so far.
struct Reader {
    json: bool,
    /// The number of the last event.
    last: Option<u64>,
    /// A daemon has answered.
    met: bool,
    /// It was said that the daemon is gone.
    missing: bool,
    /// The reader of what is printed has closed it.
    closed: bool,
}

/// `events`.
pub fn run(args: &OfDaemon<EventsArgs>) -> Outcome {
    let client = Client::new(&args.control.path())?;
    let mut reader = Reader { json: args.json, last: None, met: false, missing: false, closed: false };
    loop {
        let after = reader.last.map_or_else(String::new, |last| format!("&after={last}"));
        let path = format!("/v1/events?follow={}{after}", args.follow);
        let ended = client.stream(&path, |body| reader.read(body));
        if reader.closed {
            return Ok(());
        }
        if !args.follow || !reader.met {
            return ended;
        }
        if !std::mem::replace(&mut reader.missing, true) {
            let why = ended.err().unwrap_or_else(|| "the daemon has ended".to_owned());
            eprintln!("sidecore: {why}; events go on when it is there again");
        }
        std::thread::sleep(AGAIN);
    }
}

impl Reader {
    /// Prints the events of `body`.
    async fn read(&mut self, body: Incoming) -> Outcome {
        self.met = true;
        if std::mem::take(&mut self.missing) {
            eprintln!("sidecore: the daemon is there again");
        }
        each_event(body, |data| self.tell(data).map(|()| !self.closed)).await
    }

    fn tell(&mut self, data: &[u8]) -> Outcome {
        let event: EventView = serde_json::from_slice(data)
            .map_err(|e| format!("the daemon sent an event that cannot be read: {e}"))?;
        self.last = Some(event.seq);
        let mut line = if self.json { data.to_vec() } else { for_people(&event).into_bytes() };
        line.push(b'\n');
        let mut out = std::io::stdout().lock();
        match out.write_all(&line).and_then(|()| out.flush()) {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => self.closed = true,
            written => written.map_err(|e| format!("cannot write: {e}"))?,
        }
        Ok(())
    }
}

/// Hands each event of `body` as JSON to `tell`, as long as that wants more.
pub async fn each_event(mut body: Incoming, mut tell: impl FnMut(&[u8]) -> Result<bool, String>) -> Outcome {
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| format!("the daemon broke the events off: {e}"))?;
        let Ok(piece) = frame.into_data() else { continue };
        text.extend_from_slice(&piece);
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            if let Some(data) = line.strip_prefix(b"data:") {
                if !tell(data.trim_ascii())? {
                    return Ok(());
                }
            }
        }
        if text.len() > LINE {
            return Err("an event is too long".to_owned());
        }
    }
    Ok(())
}

fn for_people(event: &EventView) -> String {
    let EventView { port, switch, router, tenant, group, member, .. } = event;
    let names = [
        ("port", port),
        ("switch", switch),
        ("router", router),
        ("tenant", tenant),
        ("group", group),
        ("member", member),
    ];
    let named = names.iter().filter_map(|(what, name)| Some(format!("{what} {}", name.as_ref()?)));
    // Texts about the configuration have the name.
    let named = named.filter(|_| event.event != "configuration").collect::<Vec<_>>().join(", ");
    let about = if named.is_empty() { named } else { named + ": " };
    format!("{}  {:13}  {about}{}", time(event.time_ms), event.event, event.text)
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970, as the log writes them.
fn time(ms: u64) -> String {
    let (days, rest) = (ms / 86_400_000, ms % 86_400_000);
    // Years begin in March, so that a leap day is a year's last; day 0 is that of the year 0.
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", rest % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let known = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_709_164_800_000, "2024-02-29T00:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ];
        for (ms, text) in known {
            assert_eq!(time(ms), text);
        }
    }

    #[test]
    fn a_line_says_about_what_it_is() {
        let event = |event: &str, port: &str| EventView {
            event: event.to_owned(),
            port: Some(port.to_owned()),
            text: "it is so".to_owned(),
            ..EventView::default()
        };
        assert_eq!(
            for_people(&event("peer", "web")),
            "1970-01-01T00:00:00.000Z  peer           port web: it is so"
        );
        assert!(for_people(&event("configuration", "web")).ends_with("  configuration  it is so"));
    }
}
