//! The log, on standard error. Peers cannot fill it.
//!
//! Peers cause many of the engine's lines: VMMs that come and leave, refused messages, guests that stop their
//! devices. A hostile peer causes thousands of such lines a second, which fill disks and hide the lines of
//! others. So each place in the code has [`BURST`] lines for each port, and then one every [`EVERY`]. Every
//! [`TELL`] the log says how many lines were left out. A user of the netmap socket chooses the names of
//! ports, so lines with a user count for that user instead. Lines below the level `info` are logged only on
//! request, and have no limit.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use sidecore_engine::state::values::LogFormat;
use sidecore_engine::util::bucket::{nanos, nanos_at, Bucket};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata};
use tracing_subscriber::filter::{FilterExt, LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Filter, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{reload, Layer};

use super::events::{Events, Told};
use crate::api::EventView;
use crate::Outcome;

/// Lines of one place and port that are told at once.
const BURST: u32 = 16;
/// Then there is one more each time.
const EVERY: Duration = Duration::from_secs(10);
/// How often those that were left out are told.
const TELL: Duration = Duration::from_secs(60);
/// Places and ports that are told apart.
const PLACES: usize = 4096;
/// Whose lines peers cause.
const ENGINE: &str = "sidecore_engine";
const ROUTING: &str = "sidecore_routing";
const VALE: &str = "sidecore::daemon::vale";

/// The limits of lines and of events.
static LIMITS: OnceLock<[Arc<Limit>; 2]> = OnceLock::new();

/// Puts another filter in force; false: nothing logs any more.
type Reload = Box<dyn Fn(Targets) -> bool + Send>;

/// The filter in force as it was written, and how it is replaced.
static FILTER: OnceLock<Mutex<(String, Reload)>> = OnceLock::new();

/// Begins to log, what `filter` says, and to note `events`.
pub(super) fn to_stderr(filter: &str, format: LogFormat, events: &Arc<Events>) -> Outcome {
    use std::io::IsTerminal;
    let parsed = parse(filter).map_err(|why| format!("--log {why}"))?;
    let (parsed, handle) = reload::Layer::new(parsed);
    // There is one log, and it begins once.
    let _ =
        FILTER.set(Mutex::new((filter.to_owned(), Box::new(move |filter| handle.reload(filter).is_ok()))));
    let [lines_limit, events_limit] = LIMITS.get_or_init(Default::default).clone();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let lines = lines.with_filter(parsed.and(Limited { limit: lines_limit, of_events: false }));
    let events = Told(Arc::clone(events)).with_filter(Limited { limit: events_limit, of_events: true });
    tracing_subscriber::registry().with(lines).with(events).init();
    Ok(())
}

/// From now on logs what `filter` says.
pub(super) fn set(filter: &str) -> Outcome {
    let parsed = parse(filter)?;
    let mut now = FILTER.get().ok_or("there is no log")?.lock().unwrap_or_else(PoisonError::into_inner);
    if !(now.1)(parsed) {
        return Err("the log has ended".to_owned());
    }
    now.0 = filter.to_owned();
    Ok(())
}

/// What is logged.
pub(super) fn filter() -> String {
    let now = FILTER.get().map(|now| now.lock().unwrap_or_else(PoisonError::into_inner).0.clone());
    now.unwrap_or_default()
}

/// Reads a filter. A word alone must be a level or a module of ours: the library takes a misspelt level for a
/// module, and that turns all lines off. Filters by spans and their fields are refused: the library's code
/// for them compiles longer than all our logging, and no code here opens a span.
fn parse(filter: &str) -> Result<Targets, String> {
    let allowed = "allowed: error, warn, info, debug, trace, off, or module=level lists";
    let levels = ["error", "warn", "info", "debug", "trace", "off"];
    for word in filter.split(',').map(str::trim) {
        let (name, level) = word.split_once('=').map_or((word, None), |(name, level)| (name, Some(level)));
        let known = |word: &str| levels.iter().any(|level| level.eq_ignore_ascii_case(word));
        if level.is_none() && !known(name) && !name.starts_with("sidecore") {
            return Err(format!("{filter:?}: {word:?} is no level; {allowed}"));
        }
        if let Some(level) = level.filter(|level| !known(level)) {
            return Err(format!("{filter:?}: {level:?} is no level; {allowed}"));
        }
    }
    filter.parse().map_err(|e| format!("{filter:?}: {e}; {allowed}"))
}

/// Tells what was left out; called every second.
pub(super) fn tell_left_out(events: &Events) {
    let Some([of_lines, of_events]) = LIMITS.get() else { return };
    for (port, _, left_out) in of_events.left_out(Instant::now()) {
        let text = format!("{left_out} similar events were left out: their peer causes too many");
        let (event, port) = ("missed".to_owned(), Some(port).filter(|port| !port.is_empty()));
        events.push(EventView { event, port, missed: Some(left_out), text, ..EventView::default() });
    }
    for (port, place, left_out) in of_lines.left_out(Instant::now()) {
        // The place's own words, as far as they do not depend on the case, are its file and line.
        tracing::warn!(%port, place, left_out, "similar lines were left out: their peer causes too many");
    }
}

/// The lines of one place and port.
struct Lines {
    port: String,
    place: String,
    /// Lines that were told.
    bucket: Bucket,
    left_out: u64,
    told: Instant,
}

impl Lines {
    fn new(port: String, place: String, now: Instant) -> Lines {
        Lines { port, place, bucket: Bucket::new(), left_out: 0, told: now }
    }

    fn admit(&mut self, now: Instant) -> bool {
        let every = nanos(EVERY);
        let may = self.bucket.take(every, every * u64::from(BURST), nanos_at(now));
        self.left_out += u64::from(!may);
        may
    }
}

/// A place in the code, and a port's name as a hash.
type Key = (Option<Identifier>, u64);

#[derive(Default)]
struct Limit(Mutex<HashMap<Key, Lines>>);

impl Limit {
    fn lines(&self) -> MutexGuard<'_, HashMap<Key, Lines>> {
        // Counts: a panic leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a line of `place` about `port` is told.
    fn admit(&self, at: Identifier, place: &Metadata<'_>, port: &str, now: Instant) -> bool {
        let mut hasher = DefaultHasher::new();
        port.hash(&mut hasher);
        let mut all = self.lines();
        let mut key = (Some(at), hasher.finish());
        let (mut port, mut name) = (port, format!("{}:{}", place.target(), place.line().unwrap_or(0)));
        if all.len() >= PLACES && !all.contains_key(&key) {
            // One for all that are too many.
            (key, port, name) = ((None, 0), "", "others".to_owned());
        }
        all.entry(key).or_insert_with(|| Lines::new(port.to_owned(), name, now)).admit(now)
    }

    /// What was left out and is to be told now: port, place, how many. Places that are silent are forgotten.
    fn left_out(&self, now: Instant) -> Vec<(String, String, u64)> {
        let mut due = Vec::new();
        self.lines().retain(|_, lines| {
            if lines.left_out > 0 && now.saturating_duration_since(lines.told) >= TELL {
                due.push((lines.port.clone(), lines.place.clone(), std::mem::take(&mut lines.left_out)));
                lines.told = now;
            }
            lines.bucket.ahead(nanos_at(now)) > 0 || lines.left_out > 0
        });
        due
    }
}

/// The limit as a filter of lines, or of events.
struct Limited {
    limit: Arc<Limit>,
    of_events: bool,
}

impl<S> Filter<S> for Limited {
    fn enabled(&self, place: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        !self.of_events || place.fields().field("event").is_some()
    }

    fn callsite_enabled(&self, place: &'static Metadata<'static>) -> Interest {
        match !self.of_events || place.fields().field("event").is_some() {
            // Not always: then the library would not forget that one event was refused before it comes to the
            // next.
            true => Interest::sometimes(),
            false => Interest::never(),
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(if self.of_events { LevelFilter::DEBUG } else { LevelFilter::TRACE })
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let place = event.metadata();
        let from = |those: &&str| place.target().starts_with(*those);
        let unlimited = !self.of_events && *place.level() > Level::INFO;
        if ![ENGINE, ROUTING, VALE].iter().any(from) || unlimited {
            return true;
        }
        let mut whose = Whose::default();
        event.record(&mut whose);
        self.limit.admit(place.callsite(), place, &whose.name(), Instant::now())
    }
}

/// The fields of an event that say who has caused it.
#[derive(Default)]
struct Whose {
    name: String,
    user: Option<String>,
}

impl Whose {
    fn name(self) -> String {
        self.user.map_or(self.name, |user| format!("user {user}"))
    }
}

impl Visit for Whose {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            // One has the names of a thing within another, such as a group's member.
            "port" | "switch" | "router" | "tenant" | "group" | "member" => {
                self.name.push_str(&format!("{value:?}"));
            }
            "user" => self.user = Some(format!("{value:?}")),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tracing::Subscriber;

    use super::*;

    #[test]
    fn lines_beyond_the_burst_are_left_out_and_told_and_others_are_not() {
        let (limit, start) = (Limit::default(), Instant::now());
        let metadata = noise();
        let at = |port: &str, seconds| {
            limit.admit(metadata.callsite(), metadata, port, start + Duration::from_secs(seconds))
        };
        let told = (0..1000).filter(|_| at("a", 0)).count();
        assert_eq!(told, BURST as usize);
        assert!(at("b", 0), "a neighbour has lines of its own");
        // The clock of buckets may begin a little after `start`.
        assert_eq!((0..10).filter(|_| at("a", 11)).count(), 1, "then one at a time");
        assert!(limit.left_out(start + Duration::from_secs(59)).is_empty());
        let due = limit.left_out(start + TELL);
        assert_eq!(due.iter().map(|(port, _, n)| (port.as_str(), *n)).collect::<Vec<_>>(), [("a", 993)]);
        limit.left_out(start + Duration::from_secs(3600));
        assert!(limit.lines().is_empty(), "who is silent is forgotten");
    }

    #[test]
    fn there_is_no_more_than_so_much_to_remember() {
        let (limit, start) = (Limit::default(), Instant::now());
        let metadata = noise();
        for port in 0..10 * PLACES {
            limit.admit(metadata.callsite(), metadata, &port.to_string(), start);
        }
        assert_eq!(limit.lines().len(), PLACES + 1);
    }

    fn limited() -> Limited {
        Limited { limit: Arc::default(), of_events: false }
    }

    struct Counts(Arc<AtomicU32>);

    impl<S: Subscriber> Layer<S> for Counts {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A routing daemon may connect and garble without end; what the daemon says of itself is always told.
    #[test]
    fn lines_that_routing_daemons_cause_are_limited() {
        let told = Arc::<AtomicU32>::default();
        let layer = Counts(Arc::clone(&told)).with_filter(limited());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            for _ in 0..100 {
                tracing::warn!(target: "sidecore_routing::session", router = "r", "it has gone");
                tracing::warn!(target: "sidecore::daemon", "ready");
            }
        });
        assert_eq!(told.load(Ordering::Relaxed), BURST + 100);
    }

    /// Whatever their level is; lines that are no events are none.
    #[test]
    fn events_that_a_peer_causes_are_limited_for_each_thing_that_they_are_about() {
        let told = Arc::<AtomicU32>::default();
        let limit = Limited { limit: Arc::default(), of_events: true };
        let layer = Counts(Arc::clone(&told)).with_filter(limit);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            for member in (0..100).flat_map(|_| ["a", "b"]) {
                tracing::debug!(target: ENGINE, event = "drain", group = "g", member, "gone");
                tracing::info!(target: "sidecore::daemon", event = "configuration", "changed");
                tracing::info!(target: ENGINE, member, "no event");
            }
        });
        assert_eq!(told.load(Ordering::Relaxed), 2 * BURST + 200);
    }

    /// A user has no more lines in the log by naming more ports.
    #[test]
    fn a_user_has_one_limit_for_all_ports_that_it_names() {
        let told = Arc::<AtomicU32>::default();
        let layer = Counts(Arc::clone(&told)).with_filter(limited());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            for (i, user) in (0..200).flat_map(|i| [(i, Some(7_u32)), (i, None)]) {
                tracing::info!(target: ENGINE, port = %i, user, "made");
            }
        });
        assert_eq!(told.load(Ordering::Relaxed), BURST + 200);
    }

    /// A place in the code.
    fn noise() -> &'static Metadata<'static> {
        use tracing::callsite::Callsite;
        static PLACE: tracing::callsite::DefaultCallsite = tracing::callsite::DefaultCallsite::new(&META);
        static META: Metadata<'static> = tracing::metadata! {
            name: "noise",
            target: ENGINE,
            level: Level::INFO,
            fields: &["port"],
            callsite: &PLACE,
            kind: tracing::metadata::Kind::EVENT,
        };
        PLACE.metadata()
    }
}
