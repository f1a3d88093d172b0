//! Events: what the log says of changes, kept for programs, and `GET /v1/events`.
//!
//! A line of the log whose place in the code has the field `event` is an event, whatever the log's filter
//! says. The last [`KEPT`] of them are kept. A reader is no more than a place in this history: a slow one
//! delays neither the daemon nor other readers, and is told how many events were gone before it came to them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use sidecore_engine::util::fault::shown;
use tokio::sync::mpsc::channel;
use tokio::sync::{watch, OwnedSemaphorePermit};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::capture::Stream;
use crate::api::EventView;
use crate::events::now_ms;

/// Events that are kept.
const KEPT: usize = 1024;

/// Most events in one piece of an answer.
const PIECE: usize = 64;

/// Most characters of an event's text: peers and configurations cause long ones.
const LONGEST: usize = 1000;

/// The events of this daemon.
pub struct Events {
    kept: Mutex<Kept>,
    /// Whether there will be no more; touched by each new one.
    ended: watch::Sender<bool>,
}

struct Kept {
    /// The number before that of the first event.
    begin: u64,
    /// The number of the last one.
    last: u64,
    /// In the form of server-sent events.
    events: VecDeque<String>,
}

impl Events {
    pub fn new() -> Events {
        // So a number of an earlier daemon is smaller than all of this one.
        let begin = now_ms();
        let kept = Kept { begin, last: begin, events: VecDeque::with_capacity(KEPT) };
        Events { kept: Mutex::new(kept), ended: watch::Sender::new(false) }
    }

    pub fn push(&self, mut event: EventView) {
        event.text = shown(&event.text, LONGEST);
        // Each change leaves it whole.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.last += 1;
        if kept.events.len() == KEPT {
            kept.events.pop_front();
        }
        let text = written(kept.last, event);
        kept.events.push_back(text);
        drop(kept);
        self.ended.send_modify(|_| ());
    }

    /// Some that follow number `after`, and the number of the last of them; no number: all that are kept.
    fn since(&self, after: Option<u64>) -> (String, u64) {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = kept.last - kept.events.len() as u64;
        // Other numbers are of an earlier daemon.
        let known = |after: &u64| (kept.begin..=kept.last).contains(after);
        let after = after.map_or(gone, |after| Some(after).filter(known).unwrap_or(kept.begin));
        let (mut text, from) = (String::new(), after.max(gone));
        if after < gone {
            let missed = Some(gone - after);
            let why = format!("{} events were not kept until you read them", gone - after);
            text = written(
                gone,
                EventView { event: "missed".to_owned(), missed, text: why, ..EventView::default() },
            );
        }
        let behind = usize::try_from(from - gone).unwrap_or(usize::MAX);
        let events = kept.events.iter().skip(behind).take(PIECE);
        let last = from + events.len() as u64;
        text.extend(events.map(String::as_str));
        (text, last)
    }

    /// There will be no more: answers end.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    /// The body of an answer: what follows number `after`, and, to `follow`, what is to come. It has `slot`
    /// until it ends.
    pub fn body(self: Arc<Events>, mut after: Option<u64>, follow: bool, slot: OwnedSemaphorePermit) -> Body {
        let (sender, pieces) = channel(1);
        tokio::spawn(async move {
            let mut ended = self.ended.subscribe();
            loop {
                let ends = *ended.borrow_and_update() || !follow;
                loop {
                    let (text, last) = self.since(after);
                    after = Some(last);
                    if text.is_empty() {
                        break;
                    }
                    if sender.send(text.into()).await.is_err() {
                        return;
                    }
                }
                let more = tokio::select! {
                    more = ended.changed(), if !ends => more.is_ok(),
                    () = sender.closed(), if !ends => false,
                    else => false,
                };
                if !more {
                    return;
                }
            }
        });
        Body::new(Stream { pieces, _held: slot })
    }
}

/// `event` as a server-sent event with this number.
fn written(seq: u64, event: EventView) -> String {
    let event = EventView { seq, time_ms: now_ms(), ..event };
    // Numbers and texts have a JSON form, which is one line.
    format!("id: {seq}\ndata: {}\n\n", serde_json::to_string(&event).unwrap_or_default())
}

/// Makes events of the log's lines.
pub struct Told(pub Arc<Events>);

impl<S: Subscriber> Layer<S> for Told {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut view = EventView::default();
        event.record(&mut view);
        self.0.push(view);
    }
}

impl Visit for EventView {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let place = match field.name() {
            "message" => &mut self.text,
            "event" => &mut self.event,
            "port" => self.port.get_or_insert_default(),
            "switch" => self.switch.get_or_insert_default(),
            "router" => self.router.get_or_insert_default(),
            "tenant" => self.tenant.get_or_insert_default(),
            "group" => self.group.get_or_insert_default(),
            "member" => self.member.get_or_insert_default(),
            _ => return,
        };
        value.clone_into(place);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "queue" => self.queue = Some(value),
            "core" => self.core = Some(value),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(events: &Events, count: usize) {
        (0..count).for_each(|_| events.push(EventView::default()));
    }

    /// The events that follow `after`: their numbers from the first one on, and what was missed before them.
    fn read(events: &Events, mut after: Option<u64>) -> (Vec<u64>, Option<u64>) {
        let (mut all, mut missed) = (Vec::new(), None);
        loop {
            let (text, last) = events.since(after);
            if text.is_empty() {
                return (all, missed);
            }
            for event in text.split_terminator("\n\n") {
                let (id, data) = event.split_once("\ndata: ").unwrap();
                let view: EventView = serde_json::from_str(data).unwrap();
                assert_eq!(id, format!("id: {}", view.seq));
                missed = missed.or(view.missed);
                all.extend(Some(view.seq).filter(|_| view.missed.is_none()));
            }
            after = Some(last);
        }
    }

    #[test]
    fn a_reader_goes_on_where_it_was_and_is_told_what_is_gone() {
        let events = Events::new();
        let begin = events.since(None).1;
        assert_eq!(read(&events, None), (vec![], None));
        push(&events, 100);
        let numbers = |from: u64, to: u64| (begin + from..=begin + to).collect::<Vec<_>>();
        assert_eq!(read(&events, None), (numbers(1, 100), None));
        assert_eq!(read(&events, Some(begin + 98)), (numbers(99, 100), None));
        assert_eq!(read(&events, Some(begin + 100)), (vec![], None));
        // A number of an earlier daemon, or of a clock that was put back.
        assert_eq!(read(&events, Some(7)), (numbers(1, 100), None));
        assert_eq!(read(&events, Some(u64::MAX)), (numbers(1, 100), None));
        push(&events, KEPT);
        let kept = numbers(101, 100 + KEPT as u64);
        assert_eq!(read(&events, None), (kept.clone(), None));
        assert_eq!(read(&events, Some(begin + 98)), (kept.clone(), Some(2)));
        assert_eq!(read(&events, Some(7)), (kept, Some(100)));
    }

    #[test]
    fn a_text_is_one_line_and_has_an_end() {
        let events = Events::new();
        let hostile = format!("<b>\"\u{1b}[2J\n\ndata: {{}}\n\n{}", "x".repeat(2 * LONGEST));
        events.push(EventView { text: hostile, ..EventView::default() });
        let (text, _) = events.since(None);
        assert_eq!(text.lines().count(), 3, "{text}");
        let view: EventView =
            serde_json::from_str(text.lines().nth(1).unwrap().strip_prefix("data: ").unwrap()).unwrap();
        assert!(view.text.starts_with(r#"<b>"\u{1b}[2J\n\ndata: {}\n\nxx"#) && view.text.ends_with("x…"));
    }
}
