//! Tells every lie, or those whose names begin with a word, to a backend that listens: `lies SOCKET [WORD]`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use sidecore_driver::lying::{self, Liar};
use sidecore_driver::Frontend;

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("the backend's socket");
    let word = args.next().unwrap_or_default();
    let mut liar = Liar::new(move || Frontend::connect(&path, Duration::from_secs(3)));
    for lie in lying::all().filter(|lie| lie.name.starts_with(&word)) {
        let outcome = (lie.run)(&mut liar);
        println!("{lie:?}: {outcome:?}");
        liar.release();
    }
}
