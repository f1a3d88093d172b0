//! Captures, judged by other people's readers. Needs tcpdump and tshark.

use crate::frames;
use std::io::Cursor;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::frames::datagram;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use sidecore_engine::observe::capture::{start, CaptureCount, CaptureOptions, CaptureReader};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::packet::{Batch, Gso, Offload};
use sidecore_engine::port::{DropReason, Port, PortId, DEFAULT_MTU};

fn port(id: u16, name: &str) -> Arc<Port> {
    let counters = CounterFile::anonymous().unwrap().open_slot(PortId(id), name);
    Arc::new(Port::new(PortId(id), name, counters, DEFAULT_MTU).unwrap())
}

fn capture(ports: &[&Arc<Port>], options: CaptureOptions) -> CaptureReader {
    start(ports.iter().map(|port| Arc::clone(port) as _).collect(), options).unwrap()
}

/// Ends the capture and reads the rest.
fn finish(mut reader: CaptureReader) -> Vec<u8> {
    reader.stopper().stop();
    rest(&mut reader)
}

/// What comes of a capture that has been ended.
pub fn rest(reader: &mut CaptureReader) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(bytes) = reader.next_bytes() {
        all.extend_from_slice(bytes);
    }
    all
}

/// What pcap-file finds in the stream.
#[derive(Default)]
struct Found {
    interfaces: Vec<String>,
    packets: Vec<Found1>,
    /// Seen and lost, by interface.
    counts: Vec<(u64, u64)>,
}

struct Found1 {
    interface: u32,
    time: Duration,
    original_len: u32,
    data: Vec<u8>,
    flags: u32,
    comments: Vec<String>,
}

fn parse(bytes: &[u8]) -> Found {
    let mut reader = PcapNgReader::new(Cursor::new(bytes)).unwrap();
    let mut found = Found::default();
    while let Some(block) = reader.next_block() {
        match block.unwrap() {
            Block::InterfaceDescription(block) => {
                let name = block.options.iter().find_map(|option| match option {
                    InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                    _ => None,
                });
                found.interfaces.push(name.unwrap());
                assert!(block.options.contains(&InterfaceDescriptionOption::IfTsResol(9)));
            }
            Block::EnhancedPacket(block) => {
                let mut packet = Found1 {
                    interface: block.interface_id,
                    time: block.timestamp,
                    original_len: block.original_len,
                    data: block.data.to_vec(),
                    flags: 0,
                    comments: Vec::new(),
                };
                for option in block.options {
                    match option {
                        EnhancedPacketOption::Flags(flags) => packet.flags = flags,
                        EnhancedPacketOption::Comment(text) => packet.comments.push(text.to_string()),
                        other => panic!("{other:?}"),
                    }
                }
                found.packets.push(packet);
            }
            Block::InterfaceStatistics(block) => {
                let interface = block.interface_id as usize;
                assert!(interface < found.interfaces.len());
                // The last ones count.
                found.counts.resize(found.counts.len().max(interface + 1), (0, 0));
                let (mut seen, mut lost) = (None, None);
                for option in &block.options {
                    match option {
                        InterfaceStatisticsOption::IsbIfRecv(n) => seen = Some(*n),
                        InterfaceStatisticsOption::IsbIfDrop(n) => lost = Some(*n),
                        _ => {}
                    }
                }
                found.counts[interface] = (seen.unwrap(), lost.unwrap());
            }
            other => panic!("{other:?}"),
        }
    }
    found
}

/// The stream as a file, for the programs that read files.
struct Saved(PathBuf);

impl Saved {
    fn new(bytes: &[u8], name: &str) -> Saved {
        let path = std::env::temp_dir().join(format!("sidecore-{}-{name}.pcapng", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Saved(path)
    }

    fn tool(&self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let program = words.next().unwrap();
        let output = Command::new(program).args(words).arg("-r").arg(&self.0).output();
        let output =
            output.unwrap_or_else(|e| panic!("{program} cannot be run ({e}): apt-get install {program}"));
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A TCP segment of 3000 bytes to be cut at 1448.
fn large_segment() -> (Vec<u8>, Offload) {
    let builder = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .tcp(1000, 2000, 1, 65535);
    let mut bytes = Vec::new();
    builder.write(&mut bytes, &[7; 3000]).unwrap();
    let facts = Offload {
        flags: Offload::NEEDS_CSUM,
        gso: Gso::Tcp4,
        gso_size: 1448,
        csum_start: 34,
        csum_offset: 16,
        hdr_len: 54,
        ..Offload::NONE
    };
    (bytes, facts)
}

#[test]
fn both_directions_drops_and_large_frames_are_told_apart_by_everybody() {
    let vm = port(0, "vm1");
    let reader = capture(&[&vm], CaptureOptions::default());
    let short = datagram([2; 6], 111, 222, b"short");
    let long = datagram([2; 6], 333, 444, &[5; 1000]);
    let (large, facts) = large_segment();
    let mut batch = Batch::new();
    frames::push(&mut batch, &short, Offload::NONE);
    frames::push(&mut batch, &long, Offload::NONE);
    frames::push(&mut batch, &large, facts);

    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    vm.capture.ingress(batch.all(), &[(1, DropReason::Hairpin)]);
    vm.capture.egress(batch.only(&[2, 0]), &[(2, DropReason::RingFull)]);
    let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let stream = finish(reader);
    assert!(!vm.capture.is_on());

    let found = parse(&stream);
    assert_eq!(found.interfaces, ["vm1"]);
    assert_eq!(found.counts, [(5, 0)]);
    let gso = "gso tcpv4 size=1448";
    let expected: [(&[u8], u32, &[&str]); 5] = [
        (&short, 1, &[]),
        (&long, 1, &["dropped: hairpin"]),
        (&large, 1, &[gso]),
        (&large, 2, &["dropped: ring_full", gso]),
        (&short, 2, &[]),
    ];
    assert_eq!(found.packets.len(), expected.len());
    for (packet, (bytes, flags, comments)) in found.packets.iter().zip(expected) {
        assert!(packet.data == bytes && packet.original_len as usize == bytes.len());
        assert_eq!((packet.interface, packet.flags), (0, flags));
        assert_eq!(packet.comments, comments);
        assert!(before <= packet.time && packet.time <= after, "{:?}", packet.time);
    }

    let saved = Saved::new(&stream, "both");
    let text = saved.tool("tcpdump -n -tt");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert!(lines[0].contains("IP 10.9.0.9.111 > 10.9.0.1.222: UDP, length 5"), "{text}");
    assert!(
        lines[2].contains("IP 10.0.0.1.1000 > 10.0.0.2.2000:") && lines[2].contains("length 3000"),
        "{text}"
    );
    let seconds = format!("{}.", found.packets[0].time.as_secs());
    assert!(lines[0].starts_with(&seconds), "{text}");

    let fields = "-e frame.interface_name -e frame.packet_flags_direction -e frame.len -e frame.comment";
    let text = saved.tool(&format!("tshark -n -T fields {fields} -E separator=| -E aggregator=;"));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    // Wireshark shows the direction as a number with or without leading zeros.
    let line = |i: usize| lines[i].replace("0x0000000", "").replace("0x", "");
    assert_eq!(line(0), format!("vm1|1|{}|", short.len()));
    assert_eq!(line(1), format!("vm1|1|{}|dropped: hairpin", long.len()));
    assert_eq!(line(3), format!("vm1|2|{}|dropped: ring_full;{gso}", large.len()));
}

#[test]
fn frames_are_cut_at_the_snaplen() {
    let vm = port(0, "vm1");
    let bytes = datagram([2; 6], 1, 2, &[9; 1000]);
    let mut batch = Batch::new();
    frames::push(&mut batch, &bytes, Offload::NONE);
    for snaplen in [20, 64, 101, 5000] {
        let reader = capture(&[&vm], CaptureOptions { snaplen, ..CaptureOptions::default() });
        vm.capture.ingress(batch.all(), &[]);
        let stream = finish(reader);
        let packet = &parse(&stream).packets[0];
        assert_eq!(packet.original_len as usize, bytes.len());
        assert!(packet.data == bytes[..bytes.len().min(snaplen as usize)]);
        let text = Saved::new(&stream, &format!("snap{snaplen}")).tool("tcpdump -n");
        assert_eq!(text.lines().count(), 1);
    }
}

#[test]
fn what_does_not_fit_is_counted_and_nothing_waits() {
    let vm = port(0, "vm1");
    let reader = capture(&[&vm], CaptureOptions { buffer: 64 << 10, ..CaptureOptions::default() });
    let bytes = datagram([2; 6], 1, 2, &[9; 1000]);
    let mut batch = Batch::new();
    for _ in 0..100 {
        frames::push(&mut batch, &bytes, Offload::NONE);
    }
    // Without a reader meanwhile: a capture that waited for room would hang here.
    for _ in 0..10 {
        vm.capture.ingress(batch.all(), &[]);
    }
    let (seen, lost) = reader.counts();
    assert_eq!(vm.capture.captures(), [CaptureCount { frames: seen, lost }]);
    assert_eq!(vm.capture.lost(), lost);
    // A reader that goes on reading knows before the end.
    let mut reader = reader;
    let mut stream = Vec::new();
    for _ in 0..2 {
        stream.extend_from_slice(reader.next_bytes().unwrap());
    }
    assert_eq!(parse(&stream).counts, [(seen, lost)]);
    stream.extend(finish(reader));
    let found = parse(&stream);
    assert_eq!(seen, 1000);
    assert_eq!(found.counts, [(seen, lost)]);
    assert_eq!(found.packets.len() as u64 + lost, seen);
    assert!((40..64).contains(&found.packets.len()), "{} frames in 64 KiB", found.packets.len());
    assert!(stream.len() < 70 << 10);
    let saved = Saved::new(&stream, "lossy");
    assert_eq!(saved.tool("tshark -n").lines().count(), found.packets.len());
}

#[test]
fn a_waiting_reader_is_woken_and_several_cores_may_write() {
    let vm = port(0, "vm1");
    let mut reader = capture(&[&vm], CaptureOptions::default());
    let stop = reader.stopper();
    let mut stream = Vec::new();
    std::thread::scope(|scope| {
        let writers: Vec<_> = [1u16, 2]
            .into_iter()
            .map(|writer| {
                let vm = &vm;
                scope.spawn(move || {
                    let bytes = datagram([2; 6], writer, 2, &[9; 200]);
                    let mut batch = Batch::new();
                    for _ in 0..50 {
                        frames::push(&mut batch, &bytes, Offload::NONE);
                    }
                    for _ in 0..200 {
                        vm.capture.ingress(batch.all(), &[]);
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            for writer in writers {
                writer.join().unwrap();
            }
            stop.stop();
        });
        // As an event loop would: wait for the descriptor, take what there is.
        loop {
            let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
            let fd = reader.as_fd();
            let ready = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)).unwrap();
            assert_eq!(ready, 1, "the reader was not woken");
            let Some(bytes) = reader.next_bytes() else { break };
            stream.extend_from_slice(bytes);
        }
    });
    let found = parse(&stream);
    let (seen, lost) = found.counts[0];
    assert_eq!((seen, found.packets.len() as u64 + lost), (20_000, 20_000));
    assert!(found.packets.iter().all(|packet| packet.data.len() == 242));
}

#[test]
fn captures_share_a_port_and_ports_share_a_capture() {
    let (a, b) = (port(0, "a"), port(1, "b"));
    let both = capture(&[&a, &b], CaptureOptions::default());
    let alone = capture(&[&a], CaptureOptions::default());
    let bytes = datagram([2; 6], 1, 2, b"x");
    let mut batch = Batch::new();
    frames::push(&mut batch, &bytes, Offload::NONE);
    a.capture.ingress(batch.all(), &[]);
    b.capture.egress(batch.only(&[0]), &[]);
    drop(alone);
    assert!(a.capture.is_on() && b.capture.is_on());
    // The capture outlives its first port and ends with its last one, without being stopped.
    a.capture.close();
    assert!(!a.capture.is_on());
    a.capture.ingress(batch.all(), &[]);
    b.capture.egress(batch.only(&[0]), &[]);
    b.capture.close();
    let mut both = both;
    let found = parse(&rest(&mut both));
    assert_eq!(found.interfaces, ["a", "b"]);
    assert_eq!(found.counts, [(1, 0), (2, 0)]);
    let order: Vec<_> = found.packets.iter().map(|packet| (packet.interface, packet.flags)).collect();
    assert_eq!(order, [(0, 1), (1, 2), (1, 2)]);
}
