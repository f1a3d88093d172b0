//! A daemon ends at every step of a message, and the next one makes good what is left of it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::net::SendFlags;
use sidecore_abi::vfio_user::{command, dma, flags, DmaMap, DmaUnmap, RegionAccess};

use super::super::{StandIn, Still};
use super::*;
use crate::device::e1000::{E1000Config, Model, E1000};
use crate::graph::{CoreOptions, Graph};
use crate::mem::Terms;
use crate::observe::CounterFile;
use crate::packet::Mac;
use crate::port::{PortId, DEFAULT_MTU};
use crate::sandbox::holder::tests::{started, started_with};
use crate::sandbox::holder::Holder;
use crate::sandbox::open::passing;

/// Where the daemon ends. In the order in which a message passes them.
const STEPS: [&str; 6] = ["handled", "committed", "taken", "half sent", "sent", "done"];

/// A register of which the first reading says zero, and each later one something else (82574 §10.2.2.17).
const SEMAPHORE: u64 = 0x5b50;
const LEDCTL: u64 = 0xe00;

struct Daemon {
    port: Arc<Port>,
    device: SharedDevice,
}

impl Daemon {
    fn new(model: Model) -> Daemon {
        let slot = CounterFile::anonymous().unwrap().open_slot(PortId(0), "p");
        let port = Arc::new(Port::new(PortId(0), "p", slot, DEFAULT_MTU).unwrap());
        let cores = Graph::start(&CoreOptions::default()).unwrap();
        let device = E1000::new(E1000Config::new(model, Mac([2; 6])), Arc::clone(&port), cores).unwrap();
        Daemon { port, device: Arc::new(Mutex::new(Box::new(device))) }
    }

    fn stand_in(model: Model) -> StandIn {
        let slot = CounterFile::anonymous().unwrap().open_slot(PortId(0), "p");
        let port = Arc::new(Port::new(PortId(0), "p", slot, DEFAULT_MTU).unwrap());
        let config = E1000Config::new(model, Mac([2; 6]));
        let device = E1000::new(config, Arc::clone(&port), Arc::new(Still)).unwrap();
        StandIn::new(port, Box::new(device))
    }
}

/// The other end of the socket.
struct Client(UnixStream, u16);

impl Client {
    fn say(&mut self, command: u16, payload: &[u8], fds: &[BorrowedFd]) {
        self.1 += 1;
        let size = u32::try_from(Header::SIZE + payload.len()).unwrap();
        let header = Header { id: self.1, command, size, flags: flags::COMMAND, error: 0 };
        passing::send(&self.0, &[&header.bytes()[..], payload].concat(), fds, SendFlags::empty()).unwrap();
    }

    /// The one answer, when it comes.
    fn hear(&mut self) -> Vec<u8> {
        self.0.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut head = [0; Header::SIZE];
        self.0.read_exact(&mut head).unwrap();
        let header = Header::parse(&head).unwrap();
        assert_eq!((header.id, header.error), (self.1, 0), "another answer, or a refusal");
        let mut payload = vec![0; header.size as usize - Header::SIZE];
        self.0.read_exact(&mut payload).unwrap();
        self.0.set_nonblocking(true).unwrap();
        let more = self.0.read(&mut head).map_err(|e| e.kind());
        self.0.set_nonblocking(false).unwrap();
        assert_eq!(more, Err(ErrorKind::WouldBlock), "a second answer");
        payload
    }

    fn read(&mut self, offset: u64) {
        self.say(command::REGION_READ, &RegionAccess { offset, region: 0, count: 4 }.bytes(), &[]);
    }

    fn value(&mut self) -> u32 {
        let payload = self.hear();
        u32::from_le_bytes(payload[RegionAccess::SIZE..].try_into().unwrap())
    }
}

fn next(exchange: &mut Conversation) {
    exchange.handle().unwrap();
}

/// Does what `listen` does, up to `step`, and ends as a process ends.
fn end_at(mut exchange: Conversation, step: &str) {
    let Ok(Read::Whole(header, size)) = exchange.inbox.look::<Header>() else { panic!("no message") };
    let fds = std::mem::take(&mut exchange.inbox.fds);
    let payload = &exchange.inbox.bytes[Header::SIZE..size];
    let (due, result) = commands::handle(&mut exchange.session, &header, payload, fds, &mut exchange.answer);
    assert!(due && result.is_ok());
    let reached = |name| STEPS.iter().position(|s| *s == step) >= STEPS.iter().position(|s| *s == name);
    if reached("committed") {
        exchange.session.commit(size, Some(&exchange.answer));
    }
    if reached("taken") {
        exchange.inbox.take(size).unwrap();
    }
    if reached("half sent") {
        assert_eq!(
            sendfile(&exchange.inbox.stream, exchange.session.keep.as_ref().unwrap().answers(), None, 7),
            Ok(7)
        );
    }
    if reached("sent") {
        exchange.send_kept(exchange.answer.bytes().len() - 7).unwrap();
    }
    if reached("done") {
        exchange.session.done();
    }
    assert!(exchange.leave());
}

/// A client, and the daemon that talks to it, whose holder is at `path`; their VERSION is said.
fn begun(path: &Path) -> (Client, Daemon, Conversation) {
    let (theirs, ours) = UnixStream::pair().unwrap();
    let mut client = Client(theirs, 0);
    let daemon = Daemon::new(Model::E1000e);
    let mut session = Session::new("p", &daemon.device, &Terms::default());
    session.keep_with(Holder::connect(path).unwrap(), &ours).unwrap();
    let mut exchange = Conversation::new(ours.into(), session, &daemon.port, &daemon.device).unwrap();
    client.say(command::VERSION, &[0, 0, 1, 0], &[]);
    next(&mut exchange);
    client.hear();
    (client, daemon, exchange)
}

/// The next daemon, which goes on with what the holder at `path` keeps.
fn taken_over(path: &Path) -> (Daemon, Conversation) {
    let daemon = Daemon::new(Model::E1000e);
    let (session, stream) =
        Session::find("p", &daemon.device, &Terms::default(), path).expect("nothing was found");
    let exchange = Conversation::resume(stream.into(), session, &daemon.port, &daemon.device).unwrap();
    (daemon, exchange)
}

/// One message, asked by `ask`, in which one daemon ends and another goes on; then `after` has the last word.
fn across(
    name: &str,
    step: &str,
    ask: impl FnOnce(&mut Client),
    after: impl FnOnce(&mut Client, &mut Conversation),
) {
    let (path, holder): (PathBuf, _) = started(&format!("{name}-{}", step.replace(' ', "-")));
    let (mut client, first, mut exchange) = begun(&path);
    let write = RegionAccess { offset: LEDCTL, region: 0, count: 4 };
    client.say(command::REGION_WRITE, &[&write.bytes()[..], &77u32.to_le_bytes()].concat(), &[]);
    next(&mut exchange);
    client.hear();
    ask(&mut client);
    end_at(exchange, step);
    drop(first);

    let (_second, mut exchange) = taken_over(&path);
    if step == "handled" {
        next(&mut exchange);
    }
    after(&mut client, &mut exchange);
    client.read(LEDCTL);
    next(&mut exchange);
    assert_eq!(client.value(), 77);
    drop(exchange);
    holder.join().unwrap();
}

#[test]
fn a_question_is_answered_once_wherever_a_daemon_ends() {
    for step in STEPS {
        across(
            "once",
            step,
            |client| client.read(SEMAPHORE),
            |client, exchange| {
                assert_eq!(client.value(), 0, "it was done twice, or another answer came ({step})");
                client.read(SEMAPHORE);
                next(exchange);
                assert_eq!(client.value(), 1, "it was not done at all ({step})");
            },
        );
    }
}

/// The VMM waits for its answer, and says nothing more until its holder has answered.
#[test]
fn a_holder_answers_once_wherever_its_daemon_ended() {
    for step in STEPS {
        let name = format!("alone-{}", step.replace(' ', "-"));
        let (path, holder) = started_with(&name, || Some(Box::new(Daemon::stand_in(Model::E1000e))));
        let (mut client, daemon, exchange) = begun(&path);
        client.read(SEMAPHORE);
        end_at(exchange, step);
        drop(daemon);
        assert_eq!(client.value(), 0, "it was done twice, or another answer came ({step})");
        client.read(SEMAPHORE);
        assert_eq!(client.value(), 1, "it was not done at all ({step})");
        drop(client);
        holder.join().unwrap();
    }
}

/// A daemon with many ports, or with one whose holder hangs, comes to the others late.
#[test]
fn a_holder_answers_until_its_port_asks_what_it_has() {
    let (path, holder) = started_with("sought", || Some(Box::new(Daemon::stand_in(Model::E1000e))));
    let (mut client, first, mut exchange) = begun(&path);
    assert!(exchange.leave());
    drop((exchange, first));
    let sought = Holder::seek(vec![path.clone()]);
    for expected in [0, 1] {
        client.read(SEMAPHORE);
        assert_eq!(client.value(), expected, "its holder, which was called");
    }
    // More callers than it has places for.
    let crowd: Vec<_> = (0..20).map(|_| crate::sandbox::holder::tests::call(&path)).collect();
    let (_second, mut exchange) = taken_over(&path);
    client.read(SEMAPHORE);
    next(&mut exchange);
    assert_eq!(client.value(), 1, "the next daemon");
    drop((exchange, sought, crowd, client));
    holder.join().unwrap();
}

#[test]
fn memory_that_comes_with_a_message_is_not_lost() {
    const SIZE: u64 = 0x4000;
    let file = memfd_create(c"guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, SIZE).unwrap();
    for step in STEPS {
        let both = dma::READ | dma::WRITE;
        let map = DmaMap { argsz: 32, flags: both, offset: 0, address: 0x1000, size: SIZE };
        across(
            "memory",
            step,
            |client| client.say(command::DMA_MAP, &map.bytes(), &[file.as_fd()]),
            |client, exchange| {
                client.hear();
                assert!(exchange.session.map().translate(0x1000, 0x4000, &mut 0).is_some(), "{step}");
                let unmap = DmaUnmap { argsz: 24, flags: 0, address: 0x1000, size: SIZE };
                client.say(command::DMA_UNMAP, &unmap.bytes(), &[]);
                next(exchange);
                client.hear();
            },
        );
    }
}

/// Messages that want no answer, of which the end of what has come is always a part: the peer has not stopped
/// there.
#[test]
fn whoever_goes_on_sending_is_not_kept_waiting_for_an_earlier_message() {
    let (mut theirs, ours) = UnixStream::pair().unwrap();
    let daemon = Daemon::new(Model::E1000e);
    let session = Session::new("p", &daemon.device, &Terms::default());
    let mut exchange = Conversation::new(ours.into(), session, &daemon.port, &daemon.device).unwrap();
    let message = |command, payload: &[u8]| {
        let size = u32::try_from(Header::SIZE + payload.len()).unwrap();
        let header = Header { id: 1, command, size, flags: flags::COMMAND | flags::NO_REPLY, error: 0 };
        [&header.bytes()[..], payload].concat()
    };
    let access = RegionAccess { offset: LEDCTL, region: 0, count: 4 };
    let write = message(command::REGION_WRITE, &[&access.bytes()[..], &77u32.to_le_bytes()].concat());
    let (first, rest) = write.split_at(20);
    theirs.write_all(&[&message(command::VERSION, &[0, 0, 1, 0])[..], first].concat()).unwrap();
    for _ in 0..3 {
        assert!(matches!(exchange.handle(), Ok(Heard::More)), "a message was handled before that part");
        assert!(matches!(exchange.handle(), Ok(Heard::Part(_))), "now it is waited for");
        theirs.write_all(&[rest, first].concat()).unwrap();
    }
    theirs.write_all(rest).unwrap();
    assert!(matches!(exchange.handle(), Ok(Heard::All)));
}

#[test]
fn what_belongs_to_another_device_is_refused_and_the_client_disconnected() {
    let (path, holder) = started("layout");
    let (mut theirs, ours) = UnixStream::pair().unwrap();
    let first = Daemon::new(Model::E1000e);
    let mut session = Session::new("p", &first.device, &Terms::default());
    session.keep_with(Holder::connect(&path).unwrap(), &ours).unwrap();
    assert!(session.hand_over());
    drop((session, ours));
    let second = Daemon::new(Model::E1000);
    assert!(Session::find("p", &second.device, &Terms::default(), &path).is_none());
    holder.join().unwrap();
    assert_eq!(theirs.read(&mut [0; 8]).unwrap(), 0, "it was not disconnected");
}
