//! What was found in the last hour: a row of numbers for each port, I/O core and tenant and second.
//!
//! A sample points to the scene of its second: ports, switches and the rest, and their states. Scenes change
//! seldom. Both are counted by their bytes, and the oldest go: with many ports, or much change, the history
//! is shorter than an hour, and the page says from when it is.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use serde_json::{json, Value};
use tokio::sync::watch;

/// Seconds that are kept.
const SECONDS: usize = 3600;
/// Bytes that are kept.
const BYTES: usize = 30 << 20;
/// Events that are kept.
const EVENTS: usize = 500;

/// Numbers in a row. Of ports: frames and bits a second from it, frames and bits a second to it, drops a
/// second, millionths of a core, and nanoseconds that its slowest queue waits (of disks: writes, reads,
/// errors); of cores: millionths busy, idle and asleep, frames a second, queues; of tenants: millionths of a
/// core, millionths held back, nanoseconds. Unknown: not a number.
pub const COLUMNS: usize = 7;
pub type Row = [f32; COLUMNS];

/// Ports, switches, routers, groups, cores and tenants, and their states.
#[derive(Default)]
pub struct Scene {
    /// For the page.
    pub json: Box<str>,
    /// Names of rows, such as `port:web`.
    pub rows: Vec<String>,
}

/// One second.
pub struct Sample {
    pub time_ms: u64,
    pub scene: Arc<Scene>,
    pub rows: Box<[Row]>,
    /// Frames that were dropped in this second: the row of their port, the reason, how many.
    pub drops: Box<[(u32, Arc<str>, u64)]>,
}

impl Sample {
    fn bytes(&self) -> usize {
        size_of::<Sample>() + size_of_val(&*self.rows) + size_of_val(&*self.drops)
    }

    /// For the page. A row of zeros is `0`.
    pub fn json(&self, first: u64) -> String {
        let mut text = format!("{{\"time\":{},\"first\":{first},\"rows\":[", self.time_ms);
        for (at, row) in self.rows.iter().enumerate() {
            text.push_str(if at == 0 { "" } else { "," });
            match row.iter().all(|it| *it == 0.0) {
                true => text.push('0'),
                false => numbers(&mut text, row.iter().copied()),
            }
        }
        let drops: Vec<_> =
            self.drops.iter().map(|(row, reason, count)| json!([row, &**reason, count])).collect();
        // Neither a text nor a number lacks a JSON form.
        let _ = write!(text, "],\"drops\":{}}}", Value::from(drops));
        text
    }
}

fn numbers(text: &mut String, all: impl Iterator<Item = f32>) {
    text.push('[');
    for (at, it) in all.enumerate() {
        text.push_str(if at == 0 { "" } else { "," });
        // Writing to a text does not fail.
        let _ = if it.is_finite() { write!(text, "{it:.0}") } else { write!(text, "null") };
    }
    text.push(']');
}

/// What pages look at.
pub struct History {
    kept: Mutex<Kept>,
    /// Touched by whatever is new.
    news: watch::Sender<()>,
}

#[derive(Default)]
struct Kept {
    samples: VecDeque<Sample>,
    bytes: usize,
    /// How it stands with the daemon, and the number of that.
    status: (u64, Value),
    events: VecDeque<String>,
    /// The number of the last event.
    last: u64,
}

/// What one page was sent last.
#[derive(Default)]
pub struct Seen {
    status: u64,
    scene: Option<Arc<Scene>>,
    time_ms: u64,
    event: u64,
}

impl History {
    pub fn new() -> History {
        History { kept: Mutex::default(), news: watch::Sender::new(()) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Each change leaves it whole.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is told of whatever is new.
    pub fn news(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }

    pub fn sample(&self, sample: Sample) {
        let mut kept = self.kept();
        let new = kept.samples.back().is_none_or(|last| !Arc::ptr_eq(&last.scene, &sample.scene));
        kept.bytes += sample.bytes() + if new { scene_bytes(&sample.scene) } else { 0 };
        kept.samples.push_back(sample);
        while kept.samples.len() > SECONDS || (kept.bytes > BYTES && kept.samples.len() > 1) {
            let Some(gone) = kept.samples.pop_front() else { break };
            let last = kept.samples.front().is_none_or(|next| !Arc::ptr_eq(&next.scene, &gone.scene));
            kept.bytes -= gone.bytes() + if last { scene_bytes(&gone.scene) } else { 0 };
        }
        drop(kept);
        self.news.send_replace(());
    }

    /// How it stands with the daemon.
    pub fn status(&self, status: Value) {
        let mut kept = self.kept();
        if kept.status.1 != status {
            kept.status = (kept.status.0 + 1, status);
            drop(kept);
            self.news.send_replace(());
        }
    }

    /// An event: a JSON object in a line.
    pub fn event(&self, event: String) {
        let mut kept = self.kept();
        if kept.events.len() == EVENTS {
            kept.events.pop_front();
        }
        kept.events.push_back(event);
        kept.last += 1;
        drop(kept);
        self.news.send_replace(());
    }

    /// What is new to a page, as server-sent events.
    pub fn since(&self, seen: &mut Seen) -> Bytes {
        let kept = self.kept();
        let mut text = String::new();
        let mut tell = |what: &str, json: &str| text.extend(["event: ", what, "\ndata: ", json, "\n\n"]);
        if seen.status != kept.status.0 {
            seen.status = kept.status.0;
            tell("status", &kept.status.1.to_string());
        }
        if let (Some(last), Some(first)) = (kept.samples.back(), kept.samples.front()) {
            if !seen.scene.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &last.scene)) {
                seen.scene = Some(Arc::clone(&last.scene));
                tell("scene", &last.scene.json);
            }
            if seen.time_ms != last.time_ms {
                seen.time_ms = last.time_ms;
                tell("sample", &last.json(first.time_ms));
            }
        }
        let first = kept.last - kept.events.len() as u64;
        let skip = usize::try_from(seen.event.saturating_sub(first)).unwrap_or(usize::MAX);
        kept.events.iter().skip(skip).for_each(|event| tell("event", event));
        seen.event = kept.last;
        text.into()
    }

    /// The scene and the sample of that time, or the one before it.
    pub fn at(&self, time_ms: u64) -> Option<String> {
        let kept = self.kept();
        let first = kept.samples.front()?.time_ms;
        let at = kept.samples.partition_point(|sample| sample.time_ms <= time_ms).saturating_sub(1);
        let sample = kept.samples.get(at)?;
        Some(format!("{{\"scene\":{},\"sample\":{}}}", sample.scene.json, sample.json(first)))
    }

    /// The numbers of one row, column by column, with their times. A row of unknown ones stands where seconds
    /// are missing.
    pub fn row(&self, name: &str) -> String {
        const GAP: u64 = 3_000;
        let kept = self.kept();
        let (mut times, mut rows) = (Vec::new(), Vec::<Row>::new());
        let mut known: Option<(&Arc<Scene>, Option<usize>)> = None;
        for sample in &kept.samples {
            // Looked for once in a scene.
            let at = match known {
                Some((scene, at)) if Arc::ptr_eq(scene, &sample.scene) => at,
                _ => sample.scene.rows.iter().position(|it| it == name),
            };
            known = Some((&sample.scene, at));
            if let Some(last) = times.last().filter(|last| sample.time_ms > **last + GAP) {
                times.push(last + 1_000);
                rows.push([f32::NAN; COLUMNS]);
            }
            let row = at.and_then(|at| sample.rows.get(at));
            times.push(sample.time_ms);
            rows.push(row.copied().unwrap_or([f32::NAN; COLUMNS]));
        }
        let mut text = format!("{{\"times\":{},\"columns\":[", Value::from(times));
        for column in 0..COLUMNS {
            text.push_str(if column == 0 { "" } else { "," });
            numbers(&mut text, rows.iter().map(|row| row[column]));
        }
        text + "]}"
    }
}

fn scene_bytes(scene: &Scene) -> usize {
    // An allocation takes 16 bytes more than what it is for, and a text is made with room to grow.
    let row = |row: &String| row.capacity() + 16 + size_of::<String>();
    scene.json.len() + scene.rows.iter().map(row).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(time_ms: u64, scene: &Arc<Scene>, rows: usize) -> Sample {
        let row = [1.0, 2.0, 0.0, f32::NAN, 0.0, 0.0, 1e10];
        Sample { time_ms, scene: Arc::clone(scene), rows: vec![row; rows].into(), drops: Box::default() }
    }

    #[test]
    fn it_is_bounded_whatever_comes() {
        let history = History::new();
        let many = 1_000;
        // A scene that changes each second, with a thousand ports.
        for second in 0..5_000 {
            let json = "x".repeat(300 * many).into();
            let scene = Arc::new(Scene { json, rows: vec!["port:a".to_owned(); many] });
            history.sample(sample(second * 1_000, &scene, many));
            assert!(history.kept().bytes <= BYTES);
        }
        assert!(history.kept().samples.len() > 60);
        // Then one that does not, with one port: all that is counted goes when it goes.
        let scene = Arc::new(Scene::default());
        for second in 5_000..9_000 {
            history.sample(sample(second * 1_000, &scene, 1));
        }
        let kept = history.kept();
        let one = sample(0, &scene, 1).bytes();
        assert_eq!((kept.samples.len(), kept.bytes), (SECONDS, SECONDS * one));
    }

    #[test]
    fn pages_get_what_is_new_to_them() {
        let history = History::new();
        let scene = Arc::new(Scene { json: "{}".into(), rows: vec!["port:a".to_owned()] });
        let mut seen = Seen::default();
        assert_eq!(history.since(&mut seen), "");
        history.sample(sample(1, &scene, 1));
        history.event("1".to_owned());
        let text = String::from_utf8(history.since(&mut seen).to_vec()).unwrap();
        assert!(text.contains("event: scene\ndata: {}\n\n"), "{text}");
        assert!(
            text.contains(r#"data: {"time":1,"first":1,"rows":[[1,2,0,null,0,0,10000000000]],"drops":[]}"#),
            "{text}"
        );
        assert!(text.ends_with("event: event\ndata: 1\n\n"), "{text}");
        assert_eq!(history.since(&mut seen), "");
        // A page that slept gets the newest sample, not all of them; and all events that are kept.
        for second in 2..100 {
            history.sample(sample(second, &scene, 1));
            history.event(second.to_string());
        }
        let text = String::from_utf8(history.since(&mut seen).to_vec()).unwrap();
        assert_eq!(text.matches("event: sample").count(), 1);
        assert_eq!(text.matches("event: event").count(), 98);
    }

    #[test]
    fn rows_have_gaps_where_nothing_was_known() {
        let history = History::new();
        let scene =
            Arc::new(Scene { json: "{}".into(), rows: vec!["core:0".to_owned(), "port:a".to_owned()] });
        let other = Arc::new(Scene { json: "[]".into(), rows: vec!["port:a".to_owned()] });
        history.sample(sample(1_000, &scene, 2));
        history.sample(sample(2_000, &other, 1));
        history.sample(sample(9_000, &other, 1));
        let row: Value = serde_json::from_str(&history.row("port:a")).unwrap();
        assert_eq!(row["times"], json!([1_000, 2_000, 3_000, 9_000]));
        assert_eq!(row["columns"][1], json!([2, 2, null, 2]));
        let row: Value = serde_json::from_str(&history.row("core:0")).unwrap();
        assert_eq!(row["columns"][0], json!([1, null, null, null]));
        let at: Value = serde_json::from_str(&history.at(2_500).unwrap()).unwrap();
        assert_eq!(
            (&at["scene"], &at["sample"]["time"], &at["sample"]["first"]),
            (&json!([]), &json!(2_000), &json!(1_000))
        );
    }
}
