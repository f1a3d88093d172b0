//! Doorbells that trap, the pin, and messages.

use super::*;

#[test]
fn trapped_doorbells_are_counted_and_wake() {
    let mut rig = rig(Model::E1000);
    let state = |rig: &Rig| rig.device.queues()[0].kind;
    assert_eq!(state(&rig), "exitless");
    let frame = packet(false, false, 50, false);
    rig.transmit(0, &frame, &[LEGACY]);
    rig.poke(regs::TX_RING + ring::TAIL, 0);
    // Only a core that sleeps is woken.
    for asleep in [false, true] {
        rig.desk.queues.lock().unwrap().values_mut().map(|seat| seat.queue()).for_each(|queue| {
            queue.want_kicks(asleep);
        });
        rig.write(regs::TX_RING + ring::TAIL, 1);
        assert_eq!(rustix::io::read(rig.device.nic.irq.alarm.wake_fd(), &mut [0; 8]).is_ok(), asleep);
    }
    assert_eq!(rig.poll().0.len(), 1);
    assert_eq!(state(&rig), "trapping");
    rig.transmit(1, &frame, &[LEGACY]);
    assert_eq!(state(&rig), "exitless");
}

#[test]
fn the_pin_follows_causes_and_masks() {
    let mut rig = rig(Model::E1000);
    rig.write(regs::IMC, u32::MAX);
    rig.write(regs::ICS, regs::RXT0);
    assert!(!rig.interrupted(0), "masked");
    assert_eq!(rig.read(regs::ICS), regs::RXT0);
    rig.write(regs::IMS, regs::RXT0);
    assert!(rig.interrupted(0) && rig.device.interrupts().level());
    // The end of the interrupt without its cause being gone: again.
    assert!(rig.device.interrupts().unmask() && rig.interrupted(0));
    assert_ne!(rig.read(regs::ICR) & regs::RXT0, 0);
    assert_eq!(rig.read(regs::ICR), 0);
    assert!(!rig.device.interrupts().level());
    rig.device.interrupts().unmask();
    assert!(!rig.interrupted(0));
    // The link.
    rig.device.set_link(false);
    assert!(!rig.port.link());
    rig.write(regs::IMS, regs::LSC);
    assert!(rig.interrupted(0));
    assert_eq!(rig.read(regs::STATUS) & regs::STATUS_LU, 0);
}

#[test]
fn messages_go_where_ivar_says_and_receive_causes_are_held() {
    let mut rig = rig(Model::E1000e);
    let frame = [&MAC.0[..], &PEER, &[8, 0], &[0; 60]].concat();
    rig.post(0, 20);
    rig.deliver(&[(&frame, Offload::NONE)]);
    assert!(rig.interrupted(0) && !rig.interrupted(1));
    // EIAC took the cause, and until the driver writes IMS another frame says nothing.
    assert_eq!(rig.read(regs::ICS) & regs::RXQ0, 0);
    rig.deliver(&[(&frame, Offload::NONE)]);
    assert!(!rig.interrupted(0));
    rig.write(regs::IMS, regs::RXQ0);
    assert!(rig.interrupted(0));
    rig.device.set_link(false);
    assert!(rig.interrupted(2));
    assert_ne!(rig.read(regs::ICR) & regs::LSC, 0);
}
