//! Interrupts and kicks.

use super::*;

#[test]
fn interrupts_come_when_they_are_wanted() {
    let rig = Rig::running();
    // Those that CREATE asked for in the guest's name.
    (0..2 * PAIRS).for_each(|ring| rig.poke(Rig::theirs(ring, 2), 0));
    assert_eq!(rig.deliver(0, &[&[1; 60]]).interrupts, 0);
    assert!(!rig.interrupted(PAIRS));
    rig.poke(Rig::theirs(PAIRS, 2), 1);
    assert_eq!(rig.deliver(0, &[&[1; 60]]).interrupts, 1);
    assert!(rig.interrupted(PAIRS) && !rig.interrupted(PAIRS + 1));
    // An interrupt for slots that are given back comes when few are under way any more.
    rig.poke(Rig::theirs(0, 2), 1);
    (0..7).for_each(|slot| rig.fill(slot, &[1; 60], 0));
    rig.poke(Rig::theirs(0, 0), 7);
    assert_eq!(rig.poll(0).1.interrupts, 1);
    assert!(rig.interrupted(0));
}

#[test]
fn an_interrupt_that_has_to_wait_comes_in_the_end() {
    let gap = Duration::from_millis(20);
    let mut rig = Rig::with(PtnetConfig {
        pairs: PAIRS,
        slots: 64,
        buf_size: 128,
        moderation: gap,
        ..PtnetConfig::new(MAC)
    });
    rig.place_blocks(GUEST, HOST);
    assert_eq!(rig.command(CREATE), 0);
    let sent: u64 = (0..40).map(|_| rig.deliver(1, &[&[1; 60]]).interrupts).sum();
    assert!((1..40).contains(&sent), "{sent}");
    assert!(rig.interrupted(PAIRS + 1));
    // The core that serves the pair's sending ring is asked to look in time.
    let due = rig.desk.0.lock().unwrap().get_mut(&1).unwrap().queue().longest_sleep().unwrap();
    assert!(due <= gap, "{due:?}");
    let end = std::time::Instant::now() + Duration::from_secs(10);
    let late = loop {
        match rig.poll(1).1.interrupts {
            0 => assert!(std::time::Instant::now() < end, "it never comes"),
            sent => break sent,
        }
        std::thread::yield_now();
    };
    assert!(late == 1 && rig.interrupted(PAIRS + 1));
    let count = rig.nic.queues()[PAIRS + 1].interrupts.unwrap();
    assert!(count.held_back > 0 && count.raised == sent + late);
}

#[test]
fn kicks_are_declined_while_the_core_looks_by_itself() {
    let rig = Rig::running();
    let kicks = |rig: &Rig| rig.peek(HOST + 8);
    assert_eq!((kicks(&rig), rig.peek(HOST + 64 * PAIRS as u64 + 8)), (0, 0));
    let mut queues = rig.desk.0.lock().unwrap();
    let queue = queues.get_mut(&0).unwrap().queue();
    // Shortly after it began it is served by naps; later it is asked for kicks.
    assert!(!queue.want_kicks(true));
    assert!(kicks(&rig) == 1 || queue.longest_sleep().unwrap() <= Duration::from_micros(50));
    let end = std::time::Instant::now() + Duration::from_secs(10);
    while kicks(&rig) == 0 {
        queue.want_kicks(false);
        assert!(!queue.want_kicks(true) && std::time::Instant::now() < end);
    }
    assert!(queue.longest_sleep().unwrap() > Duration::from_millis(1));
    // A frame that came meanwhile is seen.
    rig.poke(Rig::theirs(0, 0), 1);
    assert!(queue.want_kicks(true));
    queue.want_kicks(false);
    assert_eq!(kicks(&rig), 0);
    drop(queues);
}
