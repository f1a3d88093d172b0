//! Datagrams that anybody sends to a tunnel's socket: right ones, changed ones, those of other networks, and
//! segments of streams that are joined. Each is a frame or a drop that is counted, and each frame is as long
//! as its pieces.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, OnceLock};

use sidecore_engine::graph::Scheduler;
use sidecore_engine::host::vxlan::{Vxlan, VxlanConfig};
use sidecore_engine::packet::{Batch, Sum};
use sidecore_fuzz::{fuzz_target, ManualScheduler};

/// Datagrams of an input: as many as a receive takes twice.
const MOST: usize = 64;

struct World {
    scheduler: Arc<ManualScheduler>,
    sender: UdpSocket,
    _ports: [Vxlan; 2],
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        // A port that nothing had a moment ago.
        let at = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        sender.connect(at).unwrap();
        let scheduler = Arc::<ManualScheduler>::default();
        let ports = [1, 2].map(|vni| {
            let config = VxlanConfig { at, vni, peers: Some(vec![SocketAddr::ip(&at)]), ttl: 64, dscp: 0 };
            let cores: Arc<dyn Scheduler> = Arc::clone(&scheduler) as _;
            Vxlan::start(config, &sidecore_fuzz::port(), &cores).unwrap()
        });
        World { scheduler, sender, _ports: ports }
    })
}

/// A segment of a stream: its number there, and how long its payload is.
fn segment(number: u8, len: u8, flags: u8) -> Vec<u8> {
    let sequence = u32::from(number) * 64;
    let mut tcp =
        [&[0, 80, 1, 2][..], &sequence.to_be_bytes(), &[0, 0, 0, 9, 0x50, flags, 1, 0, 0, 0, 0, 0]].concat();
    tcp.resize(20 + usize::from(len), number);
    let total = (tcp.len() as u16 + 20).to_be_bytes();
    let mut ip = [&[0x45, 0][..], &total, &[0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]].concat();
    let sum = Sum::of(&ip).checksum();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut sum = Sum::pseudo(&ip[12..16], &ip[16..], 6, tcp.len());
    sum.add(&tcp);
    tcp[16..18].copy_from_slice(&sum.checksum().to_be_bytes());
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], &ip, &tcp].concat()
}

fuzz_target!(|data: &[u8]| {
    let World { scheduler, sender, .. } = world();
    let mut batch = Batch::new();
    for (number, op) in data.chunks_exact(4).take(MOST).enumerate() {
        let &[what, a, b, c] = op else { break };
        let header = [if what & 0x30 == 0x30 { a } else { 8 }, 0, 0, 0, 0, 0, 1 + (what >> 6) % 3, 0];
        let frame = match what & 7 {
            0..=3 => segment(number as u8, if what & 8 == 0 { 64 } else { b % 65 }, 0x10 | c & 8),
            4 => {
                let mut frame = segment(number as u8, 64, 0x10);
                let at = usize::from(b) % frame.len();
                frame[at] ^= c;
                frame
            }
            5 => vec![c; usize::from(b)],
            6 => segment(number as u8, 64, 0x10)[..usize::from(b) % 119].to_vec(),
            _ => data[..data.len().min(usize::from(b) * 8)].to_vec(),
        };
        let datagram = [&header[..], &frame].concat();
        let cut = if what & 0x30 == 0x20 { usize::from(a) % (datagram.len() + 1) } else { datagram.len() };
        sender.send(&datagram[..cut]).unwrap();
        if what & 0x30 == 0x10 {
            scheduler.poll(&mut batch);
        }
    }
    (0..4).for_each(|_| scheduler.poll(&mut batch));
});
