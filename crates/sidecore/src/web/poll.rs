//! Asks the daemon once in a second, over one connection, and follows its events.
//!
//! Only what the page shows is read, and what is absent is taken as a daemon that does not know it: so it may
//! be an older one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use hyper::Method;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};
use sidecore_engine::util::fault::shown;
use tokio::time::MissedTickBehavior;

use super::history::{History, Row, Sample, Scene, COLUMNS};
use crate::cli::VERSION;
use crate::client::{Connection, Failure, Remote};
use crate::events::{each_event, now_ms};

const SECOND: Duration = Duration::from_secs(1);
/// Seconds between two questions for all queues: their answer is as long as that for the ports.
const WAITS_EVERY: u32 = 5;
/// Most characters of a VM's name.
const NAME: usize = 63;

/// The list in an answer.
#[derive(Default, Deserialize)]
struct Answer<T> {
    #[serde(default = "Vec::new", alias = "ports", alias = "cores", alias = "tenants", alias = "queues")]
    #[serde(alias = "disks", alias = "switches", alias = "routers", alias = "groups")]
    list: Vec<T>,
}

/// Types that are read of whatever is there: what is absent has its default.
macro_rules! read {
    ($($(#[$about:meta])* $name:ident { $($(#[$how:meta])* $field:ident: $type:ty,)+ })+) => {$(
        $(#[$about])*
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct $name { $($(#[$how])* $field: $type,)+ }
    )+};
}

read! {
    Port {
        name: String,
        counters: Counters,
        state: PortNow,
    }

    Counters {
        in_frames: u64,
        in_bytes: u64,
        out_frames: u64,
        out_bytes: u64,
        drops: BTreeMap<String, u64>,
    }

    PortNow {
        #[serde(flatten)]
        stands: Stands,
        troubles: Vec<Trouble>,
        service: Service,
    }

    /// What the page shows of a port besides numbers.
    #[derive(Serialize)]
    Stands {
        kind: String,
        #[serde(rename = "where")]
        location: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        switch: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        wire: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        router: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pipe: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        group: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tenant: Option<String>,
        link: String,
        link_wanted: String,
        peer: String,
        detail: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        fault: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
    }

    Trouble {
        name: String,
        wrong: bool,
    }

    Service {
        used_ppm: Option<u32>,
        throttled_ppm: Option<u32>,
    }

    Core {
        number: usize,
        queues: usize,
        last: Option<Last>,
    }

    Last {
        busy_ppm: u32,
        idle_ppm: u32,
        sleep_ppm: u32,
        frame_rate: u64,
    }

    Tenant {
        name: String,
        service: Service,
        wait_p99_ns: u64,
    }

    Queue {
        port: String,
        served: Option<Served>,
    }

    Served {
        wait_p99_ns: u64,
    }

    Disk {
        port: String,
        reads: u64,
        read_bytes: u64,
        writes: u64,
        written_bytes: u64,
        errors: BTreeMap<String, u64>,
    }
}

/// What was counted so far of a port.
type Sums = ([u64; 4], BTreeMap<String, u64>);

/// What is remembered from one second to the next.
#[derive(Default)]
struct Poll {
    sums: HashMap<String, Sums>,
    since: Option<Instant>,
    scene: Arc<Scene>,
    /// Names of VMs by the process.
    names: HashMap<u32, String>,
    reasons: HashMap<String, Arc<str>>,
    looks: u32,
    /// How long the slowest queue of a port waits.
    waits: HashMap<String, u64>,
}

/// Takes a sample every second, until the process ends.
pub async fn samples(history: Arc<History>, remote: Remote) {
    let mut second = tokio::time::interval(SECOND);
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        second.tick().await;
        let ended = async {
            let mut connection = remote.connect().await?;
            let mut poll = Poll::default();
            history.status(about(connection.get("/v1/daemon").await?));
            loop {
                let sample = poll.look(&mut connection).await?;
                history.sample(sample);
                second.tick().await;
            }
        };
        let ended: Result<(), Failure> = ended.await;
        if let Err(why) = ended {
            history.status(json!({ "state": "absent", "text": why.to_string() }));
        }
    }
}

/// How it stands with a daemon that answers.
fn about(daemon: Value) -> Value {
    let program = daemon["program"].as_str().unwrap_or("unknown");
    // Not the commit, which is in brackets.
    let number = |version: &str| version.split(' ').next().unwrap_or_default().to_owned();
    let text = match number(program) == number(VERSION) {
        true => String::new(),
        false => format!("the daemon is of version {program}, this page of {VERSION}: what one of them does not know is missing"),
    };
    json!({ "state": "running", "text": text, "program": program, "pid": daemon["pid"] })
}

/// An answer; the empty one, where the daemon does not know of it.
async fn ask<T: DeserializeOwned + Default>(
    connection: &mut Connection<'_>,
    path: &str,
) -> Result<T, Failure> {
    match connection.get(path).await {
        Err(Failure::Refused(_)) => Ok(T::default()),
        answer => answer,
    }
}

impl Poll {
    async fn look(&mut self, connection: &mut Connection<'_>) -> Result<Sample, Failure> {
        let Answer { list: ports } = connection.get("/v1/ports").await?;
        let now = Instant::now();
        let seconds =
            self.since.replace(now).map_or(f32::NAN, |since| now.duration_since(since).as_secs_f32());
        let Answer { list: cores } = ask(connection, "/v1/cores").await?;
        let Answer { list: tenants } = ask(connection, "/v1/tenants").await?;
        if self.looks % WAITS_EVERY == 0 {
            let Answer { list: queues } = ask(connection, "/v1/queues").await?;
            self.waits.clear();
            for Queue { port, served } in queues {
                let wait = self.waits.entry(port).or_default();
                *wait = (*wait).max(served.map_or(0, |served| served.wait_p99_ns));
            }
        }
        self.looks += 1;
        let Answer::<Disk> { list: disks } = ask(connection, "/v1/disks").await?;
        let joints: [Answer<Value>; 3] = [
            ask(connection, "/v1/switches").await?,
            ask(connection, "/v1/routers").await?,
            ask(connection, "/v1/groups").await?,
        ];
        let disks: HashMap<&str, &Disk> = disks.iter().map(|disk| (&*disk.port, disk)).collect();
        let mut sums = HashMap::with_capacity(ports.len());
        let (mut rows, mut drops, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for (at, port) in (0..).zip(&ports) {
            let new = port_sums(port, disks.get(&*port.name).copied());
            let old = self.sums.get(&port.name);
            let rates = (0..4).map(|n| rate(old.map(|old| old.0[n]), new.0[n], seconds));
            let mut row: Row = [0.0; COLUMNS];
            row.iter_mut().zip(rates).for_each(|(to, rate)| *to = rate);
            // Bits are what links are measured in.
            (row[1], row[3]) = (row[1] * 8.0, row[3] * 8.0);
            for (reason, count) in &new.1 {
                let before = old.map_or(*count, |old| old.1.get(reason).copied().unwrap_or(0));
                if let Some(more) = count.checked_sub(before).filter(|more| *more > 0) {
                    row[4] += rate(Some(0), more, seconds);
                    let known = self.reasons.entry(reason.clone()).or_insert_with(|| reason.as_str().into());
                    drops.push((at, Arc::clone(known), more));
                }
            }
            row[5] = ppm(port.state.service.used_ppm);
            row[6] = self.waits.get(&port.name).copied().unwrap_or(0) as f32;
            rows.push(row);
            names.push(format!("port:{}", port.name));
            sums.insert(port.name.clone(), new);
        }
        self.sums = sums;
        for Core { number, queues, last } in &cores {
            let last = last.as_ref();
            let number_of = |get: fn(&Last) -> f32| last.map_or(f32::NAN, get);
            rows.push([
                number_of(|it| it.busy_ppm as f32),
                number_of(|it| it.idle_ppm as f32),
                number_of(|it| it.sleep_ppm as f32),
                number_of(|it| it.frame_rate as f32),
                *queues as f32,
                0.0,
                0.0,
            ]);
            names.push(format!("core:{number}"));
        }
        for Tenant { name, service, wait_p99_ns } in &tenants {
            rows.push([
                ppm(service.used_ppm),
                ppm(service.throttled_ppm),
                *wait_p99_ns as f32,
                0.0,
                0.0,
                0.0,
                0.0,
            ]);
            names.push(format!("tenant:{name}"));
        }
        let scene = self.scene(&ports, &cores, &tenants, joints);
        if scene != self.scene.json {
            self.scene = Arc::new(Scene { json: scene, rows: names });
        }
        let scene = Arc::clone(&self.scene);
        Ok(Sample { time_ms: now_ms(), scene, rows: rows.into(), drops: drops.into() })
    }

    /// Ports and the rest with their states, without numbers, which change from second to second.
    fn scene(
        &mut self,
        ports: &[Port],
        cores: &[Core],
        tenants: &[Tenant],
        [switches, routers, groups]: [Answer<Value>; 3],
    ) -> Box<str> {
        let ports: Vec<Value> = ports
            .iter()
            .map(|Port { name, state, .. }| {
                let mut port = json!(state.stands);
                port["name"] = name.as_str().into();
                let wrong: Vec<_> =
                    state.troubles.iter().filter(|it| it.wrong).map(|it| it.name.as_str()).collect();
                port["wrong"] = wrong.into();
                if let Some(pid) = state.stands.pid {
                    port["vm"] = self.names.entry(pid).or_insert_with(|| vm(pid)).as_str().into();
                }
                port
            })
            .collect();
        let part = |all: &[Value], keys: &[&str]| -> Vec<Value> {
            let one =
                |it: &Value| keys.iter().map(|key| ((*key).to_owned(), it[*key].clone())).collect::<Value>();
            all.iter().map(one).collect()
        };
        let groups = groups.list.iter().map(|group| {
            let members = group["members"].as_array().map_or(&[][..], Vec::as_slice);
            let members = part(members, &["name", "state", "why", "weight", "ports"]);
            json!({ "name": group["name"], "interfaces": group["interfaces"], "members": members })
        });
        json!({
            "ports": ports,
            "cores": cores.iter().map(|core| core.number).collect::<Vec<_>>(),
            "tenants": tenants.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(),
            "switches": part(&switches.list, &["name"]),
            "routers": part(&routers.list, &["name"]),
            "groups": groups.collect::<Vec<_>>(),
        })
        .to_string()
        .into()
    }
}

/// Frames and bytes from the port, those to it, and its drops. Of a disk: writes and reads, and errors.
fn port_sums(port: &Port, disk: Option<&Disk>) -> Sums {
    match disk {
        Some(disk) => ([disk.writes, disk.written_bytes, disk.reads, disk.read_bytes], disk.errors.clone()),
        None => {
            let Counters { in_frames, in_bytes, out_frames, out_bytes, drops } = &port.counters;
            ([*in_frames, *in_bytes, *out_frames, *out_bytes], drops.clone())
        }
    }
}

/// By how much a counter grows in a second. Of a port that is new, or was made anew: unknown.
fn rate(old: Option<u64>, new: u64, seconds: f32) -> f32 {
    let more = old.and_then(|old| new.checked_sub(old));
    more.map_or(f32::NAN, |more| more as f32 / seconds)
}

fn ppm(share: Option<u32>) -> f32 {
    share.map_or(f32::NAN, |share| share as f32)
}

/// How people call the VM whose process this is: QEMU's option `-name`, else the process's own name. Either
/// may be any text.
fn vm(pid: u32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0).skip_while(|word| *word != b"-name");
    let name = words.nth(1).map(|name| String::from_utf8_lossy(name).into_owned());
    let name =
        name.map(|name| name.split(',').next().unwrap_or_default().trim_start_matches("guest=").to_owned());
    let name = name.or_else(|| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    shown(name.unwrap_or_default().trim_end_matches('\n'), NAME)
}

/// Follows the daemon's events until the process ends. A daemon that does not know of them is asked each
/// second: it may be another one by then.
pub async fn events(history: Arc<History>, remote: Remote) {
    let mut last = None;
    loop {
        // What ends it ends `samples`, too, which says so.
        let _ = follow(&history, &remote, &mut last).await;
        tokio::time::sleep(SECOND).await;
    }
}

/// Those that come behind number `last`, which goes on with them. A number of an earlier daemon is none of a
/// later one's.
async fn follow(history: &History, remote: &Remote, last: &mut Option<u64>) -> Result<(), String> {
    let mut connection = remote.connect().await?;
    let path = last.map_or_else(|| "/v1/events".to_owned(), |last| format!("/v1/events?after={last}"));
    let response = connection.request(Method::GET, &path, Bytes::new()).await?;
    if !response.status().is_success() {
        return Err(response.status().to_string());
    }
    let tell = |data: &[u8]| {
        if let Ok(event) = serde_json::from_slice::<Value>(data) {
            *last = event["seq"].as_u64().or(*last);
            history.event(event.to_string());
        }
        Ok(true)
    };
    each_event(response.into_body(), tell).await
}
