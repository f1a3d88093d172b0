//! An engine in this process: I/O cores, a learning switch, ring ports.
#![allow(dead_code)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sidecore_engine::core::Tuning;
use sidecore_engine::graph::{Attach, CoreOptions, Graph, Scheduler, Topology};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::port::{Port, PortId, DEFAULT_MTU};
use sidecore_engine::switch::{Switch, SwitchOptions};
use sidecore_engine::transport::ring::{HostRingsPort, RingPort, RingPortConfig};

/// A directory for sockets, gone with this.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new() -> Directory {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("sidecore-ring-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub struct Engine {
    pub directory: Directory,
    pub ports: Vec<Arc<Port>>,
    pub attachments: Vec<RingPort>,
    pub cores: Arc<Graph>,
    pub hosts: Vec<HostRingsPort>,
    file: CounterFile,
    switch: Arc<Switch>,
}

impl Engine {
    /// One switch with ring ports p0, p1 and so on.
    pub fn new(
        ports: usize,
        cpus: Vec<usize>,
        spin: Duration,
        change: impl Fn(&mut RingPortConfig),
    ) -> Engine {
        let directory = Directory::new();
        let file = CounterFile::anonymous().unwrap();
        let cores = Graph::start(&CoreOptions {
            cpus,
            tuning: Tuning { spin, ..Tuning::default() },
            ..CoreOptions::default()
        })
        .unwrap();
        let switch = Arc::new(Switch::new("lan", SwitchOptions::default()));
        let ports: Vec<_> = (0..ports)
            .map(|i| {
                let id = PortId(u16::try_from(i).unwrap());
                let name = format!("p{i}");
                let counters = file.open_slot(id, &name);
                Arc::new(Port::new(id, &name, counters, DEFAULT_MTU).unwrap())
            })
            .collect();
        let members: Vec<_> =
            ports.iter().map(|port| (Arc::clone(port), Attach::Switch(Arc::clone(&switch)))).collect();
        cores.publish(&Arc::new(Topology::new(&members)));
        let attachments = ports
            .iter()
            .map(|port| {
                let mut config = RingPortConfig::new(&directory.0.join(&port.name));
                change(&mut config);
                RingPort::start(config, Arc::clone(port), Arc::clone(&cores) as Arc<dyn Scheduler>).unwrap()
            })
            .collect();
        Engine { directory, ports, attachments, cores, hosts: Vec::new(), file, switch }
    }

    /// Ports that sleep early, so that kicks and wake-ups are part of the test.
    pub fn sleepy(ports: usize) -> Engine {
        Engine::new(ports, Vec::new(), Duration::from_micros(20), |_| {})
    }

    /// Gives port `of` host rings, `rings` of each direction, on a wire to port `to`, which leaves the
    /// switch.
    pub fn add_host_rings(&mut self, of: usize, rings: usize, to: usize) {
        let id = PortId(u16::try_from(self.ports.len()).unwrap());
        let counters = self.file.open_slot(id, "host");
        let host = Arc::new(Port::new(id, "host", counters, DEFAULT_MTU).unwrap());
        let across = self.ports[to].id;
        self.ports.push(Arc::clone(&host));
        let joined = |port: &Arc<Port>| match port.id {
            other if other == id => Attach::Wire(across),
            other if other == across => Attach::Wire(id),
            _ => Attach::Switch(Arc::clone(&self.switch)),
        };
        let members: Vec<_> = self.ports.iter().map(|port| (Arc::clone(port), joined(port))).collect();
        self.cores.publish(&Arc::new(Topology::new(&members)));
        let path = self.directory.0.join(format!("p{of}"));
        let scheduler = Arc::clone(&self.cores) as Arc<dyn Scheduler>;
        self.hosts.push(HostRingsPort::start(&path, rings, host, scheduler).unwrap());
    }

    /// The name by which a client attaches to port `i`.
    pub fn name(&self, i: usize) -> String {
        self.directory.0.join(format!("p{i}")).to_str().unwrap().to_owned()
    }

    pub fn attach(&self, i: usize) -> sidecore_port::Port {
        sidecore_port::Port::attach(&self.name(i)).unwrap()
    }
}

/// Waits until `done`; a test that waits longer than a minute has failed.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// The address of client `i`.
pub fn mac(i: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, i]
}

/// A frame from `src` to `dst` with number `number`, of `len` bytes, whose contents follow from the number.
pub fn frame(dst: u8, src: u8, number: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    bytes.extend(mac(dst));
    bytes.extend(mac(src));
    bytes.extend([0x88, 0xb5]);
    bytes.extend(number.to_le_bytes());
    let mut state = number;
    while bytes.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The number in a frame that `frame` made.
pub fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[14..22].try_into().unwrap())
}
