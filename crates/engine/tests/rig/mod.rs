//! Network namespaces, and a tiny switch for tests: every frame of a port goes out of the next one.

// No test uses all of it.
#![allow(dead_code)]

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::thread::{self, JoinHandle};

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags};
use sidecore_engine::core::Recall;
use sidecore_engine::graph::{QueueHandle, Scheduler};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::packet::Batch;
use sidecore_engine::port::{IngressQueue, Outcome, Port, PortId, Tally, DEFAULT_MTU};

/// A network namespace that lives as long as this.
pub struct Net(File);

impl Net {
    pub fn new() -> Net {
        assert!(
            rustix::process::geteuid().is_root(),
            "run as root: this test makes network namespaces and TAP interfaces (sudo -E cargo test …)"
        );
        thread::spawn(|| {
            // SAFETY: gives this thread, which ends here, a network namespace of its own.
            let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(result, 0, "unshare(CLONE_NEWNET): {}", std::io::Error::last_os_error());
            // No interface may send unasked.
            std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
            run("ip link set lo up");
            Net(File::open("/proc/thread-self/ns/net").unwrap())
        })
        .join()
        .unwrap()
    }

    /// Runs `f` in the namespace.
    pub fn enter<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                // SAFETY: moves this thread, which ends with `f`, into the namespace.
                let result = unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(result, 0, "setns: {}", std::io::Error::last_os_error());
                f()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs a command in it, which must succeed; returns what it printed.
    pub fn run(&self, line: &str) -> String {
        self.enter(|| run(line))
    }

    /// A path by which `ip` finds the namespace.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Whether an interface of that name is there.
    pub fn has(&self, name: &str) -> bool {
        self.enter(|| Command::new("ip").args(["link", "show", name]).output().unwrap().status.success())
    }
}

fn run(line: &str) -> String {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap();
    let output = Command::new(program).args(words).output();
    let package = if program == "ethtool" { "ethtool" } else { "iproute2" };
    let output =
        output.unwrap_or_else(|e| panic!("{program} cannot be run ({e}): apt-get install {package}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{line}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// A port with counters of its own.
pub fn port(file: &CounterFile, id: u16, name: &str) -> Arc<Port> {
    let counters = file.open_slot(PortId(id), name);
    Arc::new(Port::new(PortId(id), name, counters, DEFAULT_MTU).unwrap())
}

type Look = Box<dyn FnMut(&Port, &Batch) + Send>;
type Served = (u64, Arc<Port>, QueueHandle);

/// One I/O core that joins port 0 with port 1, port 2 with port 3 and so on, and looks at what passes.
pub struct Joiner {
    queues: Mutex<Vec<Served>>,
    ports: Mutex<Vec<Arc<Port>>>,
    look: Mutex<Look>,
    wake: OwnedFd,
    end: AtomicBool,
    next: AtomicU64,
    taken: Mutex<VecDeque<mpsc::Sender<u64>>>,
}

impl Joiner {
    pub fn new(look: impl FnMut(&Port, &Batch) + Send + 'static) -> Arc<Joiner> {
        Arc::new(Joiner {
            queues: Mutex::default(),
            ports: Mutex::default(),
            look: Mutex::new(Box::new(look)),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
            end: AtomicBool::new(false),
            next: AtomicU64::new(1),
            taken: Mutex::default(),
        })
    }

    /// Learns which queues are taken back.
    pub fn on_take_back(&self) -> mpsc::Receiver<u64> {
        let (sender, receiver) = mpsc::channel();
        self.taken.lock().unwrap().push_back(sender);
        receiver
    }

    /// Moves frames on a thread until the guard is dropped.
    pub fn start(self: &Arc<Self>) -> Running {
        let joiner = Arc::clone(self);
        let thread = thread::spawn(move || joiner.work());
        Running { joiner: Arc::clone(self), thread: Some(thread) }
    }

    /// One queue, for tests that move frames by hand.
    pub fn with_queue<R>(&self, index: usize, f: impl FnOnce(&mut dyn IngressQueue) -> R) -> R {
        f(self.queues.lock().unwrap()[index].2.queue())
    }

    fn rouse(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn work(&self) {
        let mut batch = Batch::new();
        while !self.end.load(Ordering::SeqCst) {
            let mut queues = self.queues.lock().unwrap();
            let moved = queues
                .iter_mut()
                .fold(false, |moved, (_, port, queue)| moved | self.round(port, queue.queue(), &mut batch));
            // Copies: a queue may be taken back and closed meanwhile.
            let own = |fd: BorrowedFd| fd.try_clone_to_owned().unwrap();
            let fds: Vec<OwnedFd> =
                queues.iter_mut().filter_map(|(_, _, handle)| handle.queue().kick_fd().map(own)).collect();
            drop(queues);
            if moved {
                continue;
            }
            let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            fds.push(PollFd::new(&self.wake, PollFlags::IN));
            let _ = poll(&mut fds, None);
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
    }

    fn round(&self, port: &Arc<Port>, queue: &mut dyn IngressQueue, batch: &mut Batch) -> bool {
        let mut tally = Tally::default();
        batch.clear();
        queue.fetch(batch, &mut tally);
        if !batch.is_empty() {
            (self.look.lock().unwrap())(port, batch);
            let picks: Vec<u16> = (0..batch.len()).map(|i| u16::try_from(i).unwrap()).collect();
            let other = self.ports.lock().unwrap().iter().find(|p| p.id.0 == port.id.0 ^ 1).cloned();
            if let Some(other) = other {
                let mut outcome = Outcome::new();
                match other.egress(0).unwrap().as_mut() {
                    Some(egress) => egress.send(batch, &picks, &mut outcome),
                    None => outcome.dropped_all(&picks, sidecore_engine::port::DropReason::LinkDown),
                }
                other.counters.block(0).add_outcome(&outcome);
            }
        }
        queue.release(&mut tally);
        port.counters.block(0).add_tally(&tally);
        tally.frames > 0
    }
}

impl Scheduler for Joiner {
    fn serve_queue(self: Arc<Self>, handle: QueueHandle) -> Recall {
        let key = self.next.fetch_add(1, Ordering::SeqCst);
        let port = Arc::clone(handle.port());
        let mut ports = self.ports.lock().unwrap();
        if !ports.iter().any(|p| p.id == port.id) {
            ports.push(Arc::clone(&port));
        }
        drop(ports);
        self.queues.lock().unwrap().push((key, port, handle));
        self.rouse();
        Box::new(move || self.recall(key))
    }
}

impl Joiner {
    fn recall(&self, key: u64) {
        let mut queues = self.queues.lock().unwrap();
        let Some(place) = queues.iter().position(|(k, ..)| *k == key) else { return };
        let (_, _, handle) = queues.swap_remove(place);
        drop(queues);
        self.rouse();
        for sender in self.taken.lock().unwrap().iter() {
            let _ = sender.send(key);
        }
        handle.return_to_owner();
    }
}

/// The joiner's thread.
pub struct Running {
    joiner: Arc<Joiner>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.joiner.end.store(true, Ordering::SeqCst);
        self.joiner.rouse();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking(), "the joiner panicked");
    }
}
