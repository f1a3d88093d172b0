//! Commands that make no sense, messages that come in parts, and any bytes at all.

use super::*;

fn sized(command: u16, payload: &[u8]) -> Vec<u8> {
    message(command, (Header::SIZE + payload.len()) as u32, 0, payload)
}

#[test]
fn commands_that_make_no_sense_are_refused_and_change_nothing() {
    let rig = Rig::new("refused");
    let mut client = rig.client();
    let file = memory("refused", 0x2000);
    let both = dma::READ | dma::WRITE;
    client.map(0x1000, 0x2000, both, Some((file.as_fd(), 0))).unwrap();
    let maps = rig.inside.maps.load(SeqCst);
    let (event, memory) = (Event::new().unwrap(), file.as_fd());

    refused(client.map(0x2000, 0x1000, both, Some((memory, 0))), Errno::EXIST);
    refused(client.map(0, 0x1001, both, Some((memory, 0))), Errno::EXIST);
    for (address, size, flags, offset) in [
        (0x10_0000, 0, both, 0),
        (u64::MAX, 2, both, 0),
        (0x10_0000, 0x3000, both, 0),
        (0x10_0000, 0x1000, both, u64::MAX - 10),
        (0x10_0000, 0x1000, both | 4, 0),
        (0x10_0000, 0x1000, 0, 0),
        (0x10_0000, u64::MAX - 0x10_0000, both, 0),
    ] {
        refused(client.map(address, size, flags, Some((memory, offset))), Errno::INVAL);
    }
    refused(client.map(0x10_0000, 0x1000, both, Some((event.as_fd(), 0))), Errno::INVAL);
    refused(client.unmap(0x1000, 0x1000), Errno::INVAL);
    refused(client.unmap(0x2000, 0x1000), Errno::NOENT);

    for (region, offset, len) in [
        (REGISTERS, 0x4000, 1),
        (REGISTERS, 0x3fff, 2),
        (1, 0, 1),
        (9, 0, 1),
        (u32::MAX, 0, 1),
        (PORTS, u64::MAX, 4),
    ] {
        refused(client.read(region, offset, &mut vec![0; len]), Errno::INVAL);
        refused(client.write(region, offset, &vec![0; len]), Errno::INVAL);
    }
    refused(client.write_multi(&[(REGISTERS, PAD, &[1]), (REGISTERS, 0x4000, &[1])]), Errno::INVAL);
    assert_eq!(client.read32(REGISTERS, PAD).unwrap(), 0, "none of a batch is done if one is bad");

    let none: &[BorrowedFd] = &[];
    let one = &[event.as_fd()][..];
    let wire = irq::DATA_EVENTFD | irq::ACTION_TRIGGER;
    for (flags, index, start, count, bools, fds) in [
        (0, 0, 0, 1, &[][..], none),
        (irq::DATA_NONE, 0, 0, 1, &[], none),
        (irq::DATA_NONE | irq::DATA_BOOL | irq::ACTION_MASK, 0, 0, 1, &[], none),
        (wire | 1 << 20, 0, 0, 1, &[], one),
        (wire, irq::COUNT, 0, 1, &[], one),
        (wire, irq::MSIX, 3, 1, &[], one),
        (wire, irq::MSIX, u32::MAX, u32::MAX, &[], one),
        (wire, irq::MSIX, 0, 2, &[], one),
        (wire, irq::MSIX, 0, 1, &[], &[memory][..]),
        (wire, irq::MSIX, 0, 0, &[], none),
        (irq::DATA_BOOL | irq::ACTION_TRIGGER, irq::MSIX, 0, 2, &[1], none),
        (irq::DATA_NONE | irq::ACTION_TRIGGER, irq::MSIX, 0, 1, &[1], none),
        (irq::DATA_NONE | irq::ACTION_TRIGGER, irq::MSIX, 0, 1, &[], one),
        (irq::DATA_NONE | irq::ACTION_MASK, irq::MSIX, 0, 1, &[], none),
        (irq::DATA_EVENTFD | irq::ACTION_UNMASK, irq::MSI, 0, 1, &[], one),
        (irq::DATA_EVENTFD | irq::ACTION_UNMASK, irq::INTX, 0, 1, &[], &[memory]),
    ] {
        refused(client.set_irqs(flags, index, start, count, bools, fds), Errno::INVAL);
    }
    let mask = irq::DATA_EVENTFD | irq::ACTION_MASK;
    refused(client.set_irqs(mask, irq::INTX, 0, 1, &[], one), Errno::NOTSUP);

    let channel = client.channel();
    let mut ask = |command, payload: &[u8], fds: &[BorrowedFd], errno| {
        refused(channel.ask(command, &[payload], fds).map(drop), errno);
    };
    let map = DmaMap { argsz: 31, flags: both, offset: 0, address: 0x10_0000, size: 0x1000 };
    ask(command::DMA_MAP, &map.bytes(), &[memory], Errno::INVAL);
    let map = DmaMap { argsz: 32, ..map };
    ask(command::DMA_MAP, &map.bytes(), &[memory, memory], Errno::INVAL);
    ask(command::DMA_MAP, &map.bytes()[..31], &[memory], Errno::INVAL);
    ask(command::DMA_MAP, &[&map.bytes()[..], &[0]].concat(), &[memory], Errno::INVAL);
    ask(command::DEVICE_GET_INFO, &[0; 16], &[], Errno::INVAL);
    ask(command::DEVICE_GET_REGION_INFO, &[255; 32], &[], Errno::INVAL);
    ask(command::DEVICE_GET_IRQ_INFO, &[255; 16], &[], Errno::INVAL);
    let set = SetIrqs { argsz: 19, flags: wire, index: 2, start: 0, count: 1 };
    ask(command::DEVICE_SET_IRQS, &set.bytes(), one, Errno::INVAL);
    let read = RegionAccess { offset: 0, region: MSIX, count: u32::MAX };
    ask(command::REGION_READ, &read.bytes(), &[], Errno::INVAL);
    ask(command::REGION_READ, &RegionAccess { count: 4, ..read }.bytes(), one, Errno::INVAL);
    ask(command::REGION_WRITE, &RegionAccess { count: 4, ..read }.bytes(), &[], Errno::INVAL);
    ask(command::REGION_WRITE_MULTI, &u64::MAX.to_le_bytes(), &[], Errno::INVAL);
    ask(command::REGION_WRITE_MULTI, &[1, 0, 0, 0, 0, 0, 0, 0, 0], &[], Errno::INVAL);
    ask(command::DEVICE_RESET, &[0], &[], Errno::INVAL);
    for other in [
        command::DEVICE_GET_REGION_IO_FDS,
        command::DIRTY_PAGES,
        command::DEVICE_FEATURE,
        command::DMA_READ,
        command::DMA_WRITE,
        command::MIG_DATA_READ,
        command::MIG_DATA_WRITE,
        0,
        19,
        u16::MAX,
    ] {
        ask(other, &[0; 16], &[], Errno::NOTSUP);
    }
    // What wants no answer gets none, not even if it is wrong.
    channel.tell(command::REGION_WRITE, &[&read.bytes()]).unwrap();
    assert_eq!(client.read32(REGISTERS, PAD).unwrap(), 0);
    assert_eq!((rig.inside.maps.load(SeqCst), mapped("refused")), (maps, 1));
    rig.until("the operator is told", |rig| rig.status().detail.contains("commands refused"));
}

#[test]
fn what_breaks_the_stream_ends_the_conversation() {
    let hello = sized(command::VERSION, &[0; 4]);
    let read = sized(command::REGION_READ, &RegionAccess { offset: 0, region: 0, count: 4 }.bytes());
    let json = |text: &str| sized(command::VERSION, &[&[0; 4], text.as_bytes()].concat());
    let cases: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("VERSION is not first", vec![read.clone()]),
        ("VERSION twice", vec![hello.clone(), hello.clone()]),
        ("another major version", vec![sized(command::VERSION, &[1, 0, 0, 0])]),
        ("no JSON", vec![json("{\"capabilities\":\0")]),
        ("no zero byte", vec![json("{}")]),
        ("no object", vec![json("[]\0")]),
        ("capabilities are a number", vec![json("{\"capabilities\":3}\0")]),
        ("a capability is a text", vec![json("{\"capabilities\":{\"max_msg_fds\":\"x\"}}\0")]),
        ("shorter than its header", vec![hello.clone(), message(command::DEVICE_RESET, 15, 0, &[])]),
        ("no size at all", vec![hello.clone(), message(command::DEVICE_RESET, 0, 0, &[])]),
        ("longer than anything", vec![hello.clone(), message(command::REGION_WRITE, u32::MAX, 0, &[])]),
        ("a reply", vec![hello.clone(), message(command::DMA_READ, 16, flags::REPLY, &[])]),
        ("an unknown type", vec![hello.clone(), message(command::DEVICE_RESET, 16, 7, &[])]),
    ];
    // A device each: the next client of one that was wronged has to wait.
    std::thread::scope(|scope| {
        for (number, (name, messages)) in cases.iter().enumerate() {
            scope.spawn(move || {
                let rig = Rig::new(&format!("broken-{number}"));
                let mut channel = rig.channel();
                for message in messages {
                    // It may have hung up already.
                    let _ = channel.send(&[message], &[]);
                }
                assert!(channel.hangs_up(), "{name}: the conversation goes on");
                rig.until("it is told", |rig| rig.status().detail.contains("bad_message"));
                assert_eq!(rig.status().peer, Peer::Faulted, "{name}");
                assert_eq!(rig.inside.detached.load(SeqCst), 1, "{name}");
                // The next one finds a device.
                assert_eq!(rig.client().read32(REGISTERS, PAD).unwrap(), 0, "{name}");
            });
        }
    });
}

#[test]
fn a_client_that_stops_in_a_message_or_leaves_there_is_let_go() {
    let rig = Rig::new("stalled");
    for (ended, stays) in [(1, false), (2, true)] {
        let mut channel = rig.channel();
        channel.send(&[&sized(command::VERSION, &[0; 4])], &[]).unwrap();
        channel.receive().unwrap();
        let begun = &sized(command::REGION_READ, &[0; 16])[..20];
        channel.send(&[begun], &[]).unwrap();
        if stays {
            assert!(channel.hangs_up(), "we have waited for ever");
        } else {
            drop(channel);
        }
        rig.until("it is let go", |rig| rig.inside.detached.load(SeqCst) == ended);
        rig.until("it is told", |rig| rig.status().detail.contains("middle of a message"));
    }
}

#[test]
fn messages_may_come_in_parts_or_glued_together() {
    let rig = Rig::new("parts");
    let mut channel = rig.channel();
    for byte in sized(command::VERSION, &[0; 4]) {
        channel.send(&[&[byte]], &[]).unwrap();
    }
    channel.receive().unwrap();
    // Two messages in one piece, then one whose descriptor must not be taken for theirs.
    let access = RegionAccess { offset: PAD, region: REGISTERS, count: 4 };
    let write = sized(command::REGION_WRITE, &[&access.bytes()[..], &[1, 2, 3, 4]].concat());
    let read = sized(command::REGION_READ, &access.bytes());
    channel.send(&[&write, &read], &[]).unwrap();
    let event = Event::new().unwrap();
    let set = SetIrqs { argsz: 20, flags: 4 | 32, index: irq::MSIX, start: 0, count: 1 };
    channel.send(&[&sized(command::DEVICE_SET_IRQS, &set.bytes())], &[event.as_fd()]).unwrap();
    let replies = [(); 3].map(|()| channel.receive().unwrap());
    assert!(replies.iter().all(|reply| reply.header.flags == flags::REPLY), "{replies:?}");
    assert_eq!(replies[1].payload[16..], [1, 2, 3, 4]);
}

/// Serves no queue.
struct Idle;

impl Scheduler for Idle {
    fn serve_queue(self: Arc<Self>, _: QueueHandle) -> Recall {
        Box::new(|| ())
    }
}

/// Messages that are nearly right: a good header, and fields from a small set.
fn nearly_right() -> impl Strategy<Value = Vec<u8>> {
    let field = prop_oneof![
        Just(0u32),
        1u32..10,
        Just(32),
        Just(0x1000),
        Just(0x2000),
        Just(0x4000),
        Just(u32::MAX),
        any::<u32>(),
    ];
    let fields = prop::collection::vec(field, 0..12);
    (any::<u8>(), 0u16..20, fields).prop_map(|(kinds, command, fields)| {
        let payload: Vec<u8> = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
        [&[kinds & 0x7f][..], &sized(command, &payload)].concat()
    })
}

proptest! {
    #[test]
    fn no_bytes_bring_the_server_down(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        converse(&bytes, Box::new(Scratch::new(&port("fuzz"), Arc::new(Idle))));
    }

    #[test]
    fn no_sequence_of_commands_brings_the_server_down(
        messages in prop::collection::vec(nearly_right(), 1..40)
    ) {
        let mut bytes = messages.concat();
        bytes[0] |= 0x80;
        let talk = converse(&bytes, Box::new(Scratch::new(&port("fuzz"), Arc::new(Idle))));
        prop_assert!(talk.ended || talk.answered == messages.len());
    }
}
