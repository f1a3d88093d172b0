//! Clients that say anything at a ring port's socket and at the one where ports are asked for: right
//! messages, changed ones, pieces, several at once, connections that end in the middle. Afterwards an honest
//! client is answered, and of those before it nothing is left: no port, no lease, no descriptor.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use sidecore_abi::ring::{Answer, Request, MESSAGE};
use sidecore_abi::vale::{self, Reply, Verb, REPLY};
use sidecore_engine::graph::Scheduler;
use sidecore_engine::graph::{CoreOptions, Graph};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::ring::Geometry;
use sidecore_engine::state::kinds::KINDS;
use sidecore_engine::state::{CoreGraph, DaemonSpec, Engine};
use sidecore_engine::transport::ring::{set_directory, Device, RingPort, RingPortConfig};
use sidecore_fuzz::fuzz_target;

/// The daemon's front end for programs, without the rest of the daemon.
#[path = "../../crates/sidecore/src/daemon/vale/mod.rs"]
mod verbs;
use verbs::Vale;

/// Most ports on demand.
const ON_DEMAND: usize = 4;
/// Most connections of an input at a time.
const CONNECTIONS: usize = 4;
/// `EBUSY`.
const BUSY: u32 = 16;
/// How long the daemon may take to see that a client has gone.
const PATIENCE: Duration = Duration::from_secs(10);
/// No names of host interfaces: their ports would be the host's.
const NAMES: [&str; 8] = ["vale1:a", "vale1:b", "vale2:a{1", "x}1", "x", "", "vale:c", "vale1:"];

struct World {
    directory: PathBuf,
    engine: Arc<Engine>,
    _port: RingPort,
    _device: Device,
}

// SAFETY: both are started by the fuzzer's one thread and not touched again until the process ends.
unsafe impl Sync for World {}
unsafe impl Send for World {}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let directory = std::env::temp_dir().join(format!("sidecore-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("ring")).unwrap();
        set_directory(&directory.join("control.sock")).unwrap();
        let cores = Graph::start(&CoreOptions::default()).unwrap();
        let mut config = RingPortConfig::new(&directory.join("port"));
        config.geometry = Geometry { slots: 8, buf_size: 64, pipes: 2, ..Geometry::default() };
        let port = RingPort::start(config, sidecore_fuzz::port(), Arc::clone(&cores) as Arc<dyn Scheduler>);
        let graph = Arc::new(CoreGraph::new(cores));
        let counters = CounterFile::anonymous().unwrap();
        let engine = Arc::new(Engine::new(KINDS, graph, counters, DaemonSpec::default(), Box::new(|_| ())));
        let verbs = Box::new(Vale::new(Arc::clone(&engine), ON_DEMAND));
        let device = Device::start(&directory.join("device"), 0o600, (None, None), verbs).unwrap();
        World { directory, engine, _port: port.unwrap(), _device: device }
    })
}

fn connect(name: &str) -> Option<UnixStream> {
    let socket = UnixStream::connect(world().directory.join(name)).ok()?;
    socket.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
    Some(socket)
}

/// A right message of either kind, as far as `a` and `b` make one.
fn message(device: bool, a: u8, b: u8) -> Vec<u8> {
    if device {
        let mut ask = vale::Ask::new(Verb::Open, NAMES[usize::from(b) % NAMES.len()]);
        ask.verb = u32::from(a % 10);
        ask.tx_slots = u32::from(b >> 3);
        ask.first = u32::from(b >> 6);
        return ask.to_bytes().to_vec();
    }
    let mut request = Request::new(sidecore_abi::ring::Ask::Info, u32::from(b % 16));
    request.ask = u32::from(a % 6);
    request.pipe[0] = b >> 4;
    request.to_bytes().to_vec()
}

fn ask(device: &mut UnixStream, verb: Verb, name: &str) -> Reply {
    device.write_all(&vale::Ask::new(verb, name).to_bytes()).unwrap();
    let mut reply = [0; REPLY];
    device.read_exact(&mut reply).unwrap();
    Reply::from_bytes(&reply).unwrap()
}

fn info(port: &mut UnixStream) -> Answer {
    port.write_all(&message(false, sidecore_abi::ring::Ask::Info as u8, 0)).unwrap();
    let mut answer = [0; MESSAGE];
    port.read_exact(&mut answer).unwrap();
    Answer::from_bytes(&answer).unwrap()
}

/// What this process has open.
fn descriptors() -> Vec<PathBuf> {
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok())
        .collect()
}

/// Honest clients are answered, and nothing is left of the clients before them.
fn all_is_well() {
    let mut port = connect("port").unwrap();
    assert_eq!(info(&mut port).errno, 0);
    let mut device = connect("device").unwrap();
    // The second answer comes when all connections that ended before the first have been looked at.
    ask(&mut device, Verb::List, "");
    ask(&mut device, Verb::List, "");
    // Ports that stay are there because they were asked for, and go when that is asked for.
    for left in world().engine.everything().ports {
        if let Some(switch) = &left.switch {
            ask(&mut device, Verb::Detach, &format!("vale{switch}:{}", left.name));
        }
        // Its own thread may not have seen yet that its program is gone.
        let start = Instant::now();
        loop {
            let reply = ask(&mut device, Verb::DelIf, &left.name);
            if reply.errno == 0 {
                break;
            }
            let why = vale::text(&reply.text);
            assert!(reply.errno == BUSY && start.elapsed() < PATIENCE, "{left:?}: {why:?}");
        }
    }
    // A connection that has ended may be looked at behind the one that is answered: what is left stays for
    // longer.
    static DESCRIPTORS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let start = Instant::now();
    loop {
        info(&mut port);
        ask(&mut device, Verb::List, "");
        let open = descriptors();
        let mut before = DESCRIPTORS.lock().unwrap();
        if before.is_empty() || open.len() <= before.len() {
            *before = open;
            return;
        }
        assert!(start.elapsed() < PATIENCE, "descriptors {open:?}, before {before:?}");
    }
}

fuzz_target!(|data: &[u8]| {
    let mut open: Vec<(bool, UnixStream)> = Vec::new();
    world();
    for op in data.chunks_exact(4).take(64) {
        let &[what, a, b, c] = op else { break };
        if open.is_empty() || what & 7 == 0 {
            if open.len() == CONNECTIONS {
                open.remove(0);
            }
            let (device, name) = match what >> 6 {
                0 | 1 => (false, "port".to_owned()),
                2 => (true, "device".to_owned()),
                _ => (false, format!("ring/{}", NAMES[usize::from(a) % NAMES.len()])),
            };
            // A port on demand may not be there.
            open.extend(connect(&name).map(|socket| (device, socket)));
            continue;
        }
        let place = usize::from(c) % open.len();
        let (device, socket) = &mut open[place];
        let mut bytes = message(*device, a, b);
        match what & 7 {
            1 | 2 => {}
            3 => bytes.truncate(usize::from(c) % bytes.len()),
            4 => {
                let at = usize::from(c) % bytes.len();
                bytes[at] ^= b | 1;
            }
            5 => bytes.extend(message(*device, b, a)),
            6 => {
                open.remove(place);
                continue;
            }
            _ => bytes = vec![a; usize::from(b)],
        }
        // The daemon may have hung up; a right request is answered before the next one is sent, now and then.
        if socket.write_all(&bytes).is_ok() && matches!(what & 0x0f, 1 | 2) {
            let _ = socket.read(&mut [0; REPLY]);
        }
    }
    drop(open);
    all_is_well();
});
