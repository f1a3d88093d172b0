//! A relay between zebra and the daemon, which notes when zebra says something.
//!
//! One thread reads and notes, another one writes: what zebra says is noted at once, however long the daemon
//! takes to read it. What has not been written yet waits in memory.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::prelude::*;

/// Where zebra connects to, and where the daemon listens.
pub const PORT: u16 = 2621;
const DAEMON: u16 = 2620;
/// Bytes of one read.
const READ: usize = 256 << 10;
/// How long the daemon may take to listen.
const PATIENCE: Duration = Duration::from_secs(20);

/// What zebra has said since it was asked last.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    pub first: Instant,
    pub last: Instant,
    pub bytes: u64,
}

/// The relay; its threads end with the connections.
#[derive(Clone, Default)]
pub struct Relay(Arc<Mutex<Option<Said>>>);

impl Relay {
    /// Listens in this thread's namespace, for one zebra.
    ///
    /// # Errors
    /// The port is taken.
    pub fn start() -> Result<Relay> {
        let relay = Relay::default();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, PORT)).map_err(text)?;
        let notes = relay.clone();
        // In this namespace, as the thread that starts it is.
        thread::spawn(move || {
            if let Err(why) = notes.pass(&listener) {
                eprintln!("the relay between zebra and the daemon: {why}");
            }
        });
        Ok(relay)
    }

    fn pass(&self, listener: &TcpListener) -> Result<()> {
        let (zebra, _) = listener.accept().map_err(text)?;
        let connect = || Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, DAEMON)).ok());
        let daemon = until("the daemon listens", PATIENCE, Duration::from_millis(20), connect)?;
        daemon.set_nodelay(true).map_err(text)?;
        let (to, from) = channel();
        thread::spawn(move || write(daemon, &from));
        self.read(zebra, &to);
        Ok(())
    }

    fn read(&self, mut zebra: TcpStream, to: &Sender<Vec<u8>>) {
        let mut room = vec![0; READ];
        while let Ok(len @ 1..) = zebra.read(&mut room) {
            self.note(Instant::now(), len);
            if to.send(room[..len].to_vec()).is_err() {
                return;
            }
        }
    }

    fn note(&self, now: Instant, bytes: usize) {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = said.unwrap_or(Said { first: now, last: now, bytes: 0 });
        *said = Some(Said { last: now, bytes: before.bytes + bytes as u64, ..before });
    }

    /// What zebra has said so far counts no more.
    pub fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// What it has said since.
    pub fn said(&self) -> Option<Said> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write(mut daemon: TcpStream, from: &Receiver<Vec<u8>>) {
    for bytes in from {
        if daemon.write_all(&bytes).is_err() {
            return;
        }
    }
}
