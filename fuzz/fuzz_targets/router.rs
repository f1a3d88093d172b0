//! A router given arbitrary frames: each has one verdict, what goes on has its own length, and what is made
//! is a whole packet.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use sidecore_engine::mem::Arena;
use sidecore_engine::observe::CounterFile;
use sidecore_engine::packet::{Batch, Offload, Offloads, Sum, HEAD};
use sidecore_engine::port::{Port, PortId};
use sidecore_engine::router::{Member, Now, RewriteBuffer, Router, RouterContext, Rpf, Static, Target};
use sidecore_engine::switch::Verdicts;
use sidecore_fuzz::fuzz_target;

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 0xa0], [2, 0, 0, 0, 0, 0xb0]];
/// The longest frame.
const LONGEST: usize = 2048;

struct Rig {
    ports: Vec<Arc<Port>>,
    context: RouterContext,
    rewrites: RewriteBuffer,
    verdicts: Verdicts,
    arena: Arena,
    batch: Option<Batch>,
    epoch: Instant,
    second: u32,
    _file: CounterFile,
}

impl Rig {
    fn new() -> Rig {
        let file = CounterFile::anonymous().unwrap();
        let port = |i: u16| {
            let name = format!("p{i}");
            Arc::new(Port::new(PortId(i), &name, file.open_slot(PortId(i), &name), 1500).unwrap())
        };
        let ports: Vec<_> = (0..2).map(port).collect();
        let router = Arc::new(Router::new("r").unwrap());
        let nets = [["10.0.0.1/24", "2001:db8:a::1/64"], ["10.0.1.1/24", "2001:db8:b::1/64"]];
        let member = |(i, port): (usize, &Arc<Port>)| Member {
            port: Arc::clone(port),
            mac: MACS[i],
            addresses: nets[i].map(|net| net.parse().unwrap()).into(),
            control: None,
            rpf: if i == 0 { Rpf::Loose } else { Rpf::Off },
        };
        let members: Vec<_> = ports.iter().enumerate().map(member).collect();
        let via = |prefix: &str, gateways: &[&str]| {
            let gateways = gateways.iter().map(|it| it.parse().unwrap()).collect();
            Static { prefix: prefix.parse().unwrap(), target: Target::Via(gateways, None) }
        };
        let routes = [via("0.0.0.0/1", &["10.0.1.9", "10.0.0.9"]), via("2000::/3", &["2001:db8:b::9"])];
        router.configure(&members, &routes, 1);
        let context = RouterContext::new(&router);
        let (rewrites, verdicts, arena) =
            (RewriteBuffer::for_routers(1), Verdicts::default(), Arena::new(64, LONGEST));
        let batch = Some(Batch::new());
        Rig {
            ports,
            context,
            rewrites,
            verdicts,
            arena,
            batch,
            epoch: Instant::now(),
            second: 1,
            _file: file,
        }
    }

    /// Frames as `length, bytes`, to the router unless the length is odd.
    fn run(&mut self, mut data: &[u8]) {
        let mut batch = self.batch.take().unwrap();
        batch.clear();
        while let [kind, len, rest @ ..] = data {
            if batch.len() == self.arena.slots() {
                break;
            }
            let len = (usize::from(*len) * 8 + usize::from(*kind & 7)).min(rest.len()).min(LONGEST - 14);
            let (bytes, behind) = rest.split_at(len);
            data = behind;
            let ethertype: [u8; 2] = [[8, 0], [0x86, 0xdd], [8, 6], [0x81, 0]][usize::from(*kind >> 3 & 3)];
            let to = match kind >> 5 & 3 {
                0 => [0xff; 6],
                1 => [0x33, 0x33, 0xff, 0, 0, 1],
                _ => MACS[0],
            };
            let mut frame = [&to[..], &[2, 0, 0, 0, 1, 1], &ethertype, bytes].concat();
            if *kind & 0x80 != 0 && ethertype == [8, 0] && frame.len() >= 34 {
                // Most that is to be looked at further has a sound header.
                frame[14] = 0x45;
                frame[24..26].fill(0);
                let sum = Sum::of(&frame[14..34]).checksum().to_be_bytes();
                frame[24..26].copy_from_slice(&sum);
            }
            let slot = batch.len();
            let (to, pieces) = batch.next_frame().unwrap();
            let near = frame.len().min(HEAD);
            to.head[..near].copy_from_slice(&frame[..near]);
            (to.len, to.piece, to.pieces) = (frame.len() as u32, pieces.len() as u32, 0);
            let header: [u8; 12] = std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0));
            let offload = Offload::parse(&header, &frame[..near], frame.len(), Offloads::ALL);
            to.offload = offload.ok().filter(|_| kind & 4 != 0).unwrap_or(Offload::NONE);
            if frame.len() > HEAD {
                assert!(pieces.push(self.arena.put(slot, &frame, HEAD)));
                to.pieces = 1;
            }
            batch.commit();
        }
        self.second += 1;
        self.verdicts.clear();
        self.rewrites.clear();
        let now = Now { seconds: self.second / 64 + 1, epoch: self.epoch, core: 0, sender: PortId(0) };
        self.context.decide(&batch, &self.ports[0], &now, &mut self.rewrites, &mut self.verdicts);
        let lengths: Vec<u32> = batch.frames().iter().map(|frame| frame.len).collect();
        self.rewrites.rewrite(&mut batch);
        assert!(batch.frames().iter().zip(lengths).all(|(frame, len)| frame.len == len));
        let mut seen = vec![false; batch.len()];
        let mut picks = Vec::new();
        for id in &self.verdicts.used {
            self.verdicts.picks_alone(PortId(*id), &mut picks);
            picks.iter().for_each(|pick| assert!(!std::mem::replace(&mut seen[usize::from(*pick)], true)));
        }
        for (frame, _) in &self.verdicts.drops {
            assert!(!std::mem::replace(&mut seen[usize::from(*frame)], true));
        }
        assert!(seen.iter().all(|seen| *seen));
        let (made, to) = self.rewrites.made();
        assert_eq!(made.len(), to.len());
        for frame in made.frames() {
            let behind: usize = made.body(frame).iter().map(|piece| piece.len()).sum();
            assert_eq!(frame.head_len() + behind, frame.len as usize);
            match [frame.head[12], frame.head[13]] {
                [8, 0] => assert_eq!(Sum::of(&frame.head[14..34]).value(), 0xffff),
                [0x86, 0xdd] => assert_eq!(
                    u32::from(u16::from_be_bytes([frame.head[18], frame.head[19]])) + 54,
                    frame.len
                ),
                other => assert_eq!(other, [8, 6]),
            }
        }
        self.batch = Some(batch);
    }
}

thread_local!(static RIG: RefCell<Rig> = RefCell::new(Rig::new()));

fuzz_target!(|data: &[u8]| RIG.with_borrow_mut(|rig| rig.run(data)));
