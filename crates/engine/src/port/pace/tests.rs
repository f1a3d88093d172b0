//! What receivers pay for, and what not.

use super::*;
use crate::port::Crowd;

const MS: Duration = Duration::from_millis(1);

#[test]
fn who_is_slow_gets_a_fifth_of_a_core_and_what_is_new_is_free() {
    let (pace, ms) = (Pace::default(), ticks_in(MS));
    let mut now = ticks();
    assert!(!pace.is_watched() && !pace.rests_at(now));
    // A guest's first touch of its buffers.
    for _ in 0..4 {
        assert!(!pace.was_slow_at(ms, now));
    }
    assert!(pace.is_watched() && !pace.rests_at(now));
    let (start, mut spent) = (now, 0);
    while now < start + 10_000 * ms {
        if pace.rests_at(now) {
            now += ms / 4;
            continue;
        }
        (now, spent) = (now + 2 * ms, spent + 2);
        pace.was_slow_at(2 * ms, now);
    }
    assert!((1_900..2_300).contains(&spent), "{spent} of 10,000 ms");
    // It is believed again, and its free time has come back.
    now += ticks_in(2 * WATCHED);
    assert!(!pace.rests_at(now) && !pace.is_watched());
    assert!(!pace.was_slow_at(4 * ms, now) && pace.was_slow_at(4 * ms, now));
    // What takes very long is paid for however long that is.
    now += ticks_in(2 * WATCHED);
    assert!(pace.was_slow_at(20_000 * ms, now));
    assert!(pace.rests_at(now + 79_000 * ms) && !pace.rests_at(now + 81_000 * ms));
}

#[test]
fn who_lags_a_little_very_often_is_watched_and_pays_for_what_is_its_own() {
    let (pace, ms) = (Pace::default(), ticks_in(MS));
    let mut now = ticks();
    // A twentieth of the time is overlooked for ever.
    for _ in 0..2_000 {
        now += 4 * ms;
        pace.lagged_at(ms / 5, false, now);
    }
    assert!(!pace.is_watched());
    // A tenth is not.
    let before = now;
    while !pace.is_watched() {
        now += 2 * ms;
        pace.lagged_at(ms / 5, false, now);
        assert!(now < before + 1_000 * ms);
    }
    assert!(now > before + 300 * ms && pace.state().watch.left(now) > ticks_in(WATCHED / 2));
    // That may have been its senders', whatever it took. A twentieth of its own is overlooked, too.
    pace.suspect_at(1_000 * ms, false, now);
    assert!(!pace.rests_at(now));
    for _ in 0..2_000 {
        now += 4 * ms;
        assert!(!pace.lagged_for_certain_at(ms / 5, false, now));
    }
    let (start, mut spent) = (now, 0);
    while now < start + 10_000 * ms {
        now += ms / 4;
        if !pace.rests_at(now) {
            spent += 1;
            pace.lagged_for_certain_at(ms / 4, false, now);
        }
    }
    assert!((1_900..2_700).contains(&(spent / 4)), "{} of 10,000 ms", spent / 4);
    assert!(pace.state().pays.left(now) > 0);
}

#[test]
fn who_takes_long_whenever_it_is_not_watched_is_watched_all_the_time() {
    let (pace, ms) = (Pace::default(), ticks_in(MS));
    let mut now = ticks();
    // A twentieth of the time.
    for _ in 0..500 {
        now += 40 * ms;
        assert!(!pace.rests_at(now) && !pace.is_watched());
        pace.suspect_at(2 * ms, false, now);
    }
    assert!(pace.state().watch.left(now) <= ticks_in(SUSPECTED));
    for _ in 0..50 {
        now += 12 * ms;
        pace.suspect_at(2 * ms, false, now);
    }
    assert!(pace.state().watch.left(now) > ticks_in(SUSPECTED));
}

#[test]
fn who_was_slow_is_watched_a_hundred_times_as_long() {
    let (pace, ms) = (Pace::default(), ticks_in(MS));
    let now = ticks();
    assert!(!pace.was_slow_at(ms, now));
    assert!(!pace.rests_at(now + 99 * ms) && pace.is_watched());
    assert!(!pace.rests_at(now + 101 * ms) && !pace.is_watched());
}

#[test]
fn who_is_suspected_is_watched_for_a_moment() {
    let pace = Pace::default();
    pace.suspect(0, false);
    let now = ticks();
    assert!(pace.is_watched() && !pace.rests());
    assert!(!pace.rests_at(now + ticks_in(SUSPECTED / 2)) && pace.is_watched());
    assert!(!pace.rests_at(now + ticks_in(SUSPECTED)) && !pace.is_watched());
    // A clock that is a little behind is no way out; one that has nothing to do with it is not waited for.
    pace.was_slow_at(ticks_in(100 * MS), now);
    assert!(pace.rests_at(now) && pace.rests_at(now - 1) && !pace.rests_at(0));
}

/// Twenty receivers, each of which stays below what is overlooked of one.
#[test]
fn what_all_overlook_together_has_an_end_and_spares_those_who_lag_rarely() {
    let ms = ticks_in(MS);
    let (mut crowd, mut now) = (Crowd::default(), ticks());
    let many: Vec<Pace> = (0..20).map(|_| Pace::default()).collect();
    let honest = Pace::default();
    for round in 0..2_000u64 {
        now += 5 * ms;
        for pace in &many {
            let crowded = crowd.overlook_at(ms / 5, now);
            pace.lagged_at(ms / 5, crowded, now);
        }
        // A millisecond each second.
        if round % 200 == 0 {
            honest.lagged_at(ms, crowd.overlook_at(ms, now), now);
        }
    }
    // Those that come first have what is overlooked of all: a fifth of the time, of which each takes a twenty-fifth.
    let watched = many.iter().filter(|pace| pace.is_watched()).count();
    assert!((14..18).contains(&watched) && !honest.is_watched(), "{watched} of 20");
}

/// Ten receivers, each of which would take a fifth.
#[test]
fn those_who_pay_have_a_fifth_of_a_core_together() {
    let ms = ticks_in(MS);
    let (mut crowd, start) = (Crowd::default(), ticks());
    let many: Vec<Pace> = (0..10).map(|_| Pace::default()).collect();
    let (mut now, mut spent) = (start, 0);
    while now < start + 10_000 * ms {
        now += ms / 4;
        for pace in &many {
            let pays = pace.state().pays.left(now) > 0;
            if !(pace.rests_at(now) || pays && crowd.rests_at(now)) {
                (now, spent) = (now + ms / 2, spent + 1);
                if pace.was_slow_at(ms / 2, now) {
                    crowd.was_slow_at(ms / 2, now);
                }
            }
        }
    }
    // And what is free of each: 5 ms, and one part in 200.
    assert!((1_500..2_900).contains(&(spent / 2)), "{} of 10,000 ms", spent / 2);
}
