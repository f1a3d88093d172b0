//! IPv4 and IPv6 under one measurement.

use std::sync::atomic::{AtomicBool, Ordering};

use sidecore_fib::{v4, v6};

use super::tables::{self, Keys, Random, Route};
use super::Args;
use crate::prelude::*;

/// Addresses that are looked up together.
pub const BATCH: usize = 64;
/// Addresses that are gone through: more than caches hold.
const ADDRESSES: usize = 1 << 20;
/// Changes that are measured one by one.
const CHANGES: usize = 20_000;
/// The time between changes: one is the removal of a route and the next its return.
const STEP: Duration = Duration::from_micros(200);

/// What the two tables have in common.
pub trait Family {
    const NAME: &'static str;
    type Address: Copy + Send + Sync;
    type Writer: Send;
    type Reader: Send;
    fn routes(count: usize) -> Vec<Route<Self::Address>>;
    fn any(random: &mut Random) -> Self::Address;
    fn below(random: &mut Random, route: Route<Self::Address>) -> Self::Address;
    fn writer() -> Result<Self::Writer>;
    fn reader(writer: &Self::Writer) -> Self::Reader;
    fn insert(writer: &mut Self::Writer, route: Route<Self::Address>) -> Result<()>;
    fn remove(writer: &mut Self::Writer, route: Route<Self::Address>);
    fn commit(writer: &mut Self::Writer) -> Result<()>;
    fn bytes(writer: &Self::Writer) -> usize;
    fn lookup(reader: &mut Self::Reader, addresses: &[Self::Address], groups: &mut [u32]);
}

/// What is the same in both but for the module and the type of addresses.
macro_rules! same_for {
    ($module:ident, $address:ty) => {
        type Address = $address;
        type Writer = $module::Writer;
        type Reader = $module::Reader;

        fn routes(count: usize) -> Vec<Route<$address>> {
            tables::$module(count)
        }

        fn writer() -> Result<$module::Writer> {
            $module::Writer::new().map_err(text)
        }

        fn reader(writer: &$module::Writer) -> $module::Reader {
            writer.reader()
        }

        fn insert(writer: &mut $module::Writer, (address, len, group): Route<$address>) -> Result<()> {
            writer.insert(address, len, group).map(drop).map_err(text)
        }

        fn remove(writer: &mut $module::Writer, (address, len, _): Route<$address>) {
            writer.remove(address, len);
        }

        fn bytes(writer: &$module::Writer) -> usize {
            writer.usage().table
        }

        #[inline]
        fn lookup(reader: &mut $module::Reader, addresses: &[$address], groups: &mut [u32]) {
            reader.lookup(addresses, groups);
        }
    };
}

/// IPv4.
pub struct V4;

impl Family for V4 {
    const NAME: &'static str = "IPv4";
    same_for!(v4, u32);

    fn any(random: &mut Random) -> u32 {
        random.word()
    }

    fn below(random: &mut Random, (address, len, _): Route<u32>) -> u32 {
        address | Self::any(random).checked_shr(len.into()).unwrap_or(0)
    }

    fn commit(_: &mut v4::Writer) -> Result<()> {
        Ok(())
    }
}

/// IPv6.
pub struct V6;

impl Family for V6 {
    const NAME: &'static str = "IPv6";
    same_for!(v6, u128);

    fn any(random: &mut Random) -> u128 {
        // Those that are in use at all: 2000::/3.
        1 << 125 | (u128::from(random.next()) << 64 | u128::from(random.next())) >> 3
    }

    fn below(random: &mut Random, (address, len, _): Route<u128>) -> u128 {
        let low = u128::from(random.next()) << 64 | u128::from(random.next());
        address | low.checked_shr(len.into()).unwrap_or(0)
    }

    fn commit(writer: &mut v6::Writer) -> Result<()> {
        writer.commit().map_err(text)
    }
}

/// A table with its routes, and what is looked up in it.
pub struct Loaded<F: Family> {
    routes: Vec<Route<F::Address>>,
    writer: F::Writer,
    keys: Vec<(Keys, Vec<F::Address>)>,
    random: Random,
    pub load_seconds: f64,
}

impl<F: Family> Loaded<F> {
    pub fn new(count: usize) -> Result<Loaded<F>> {
        let routes = F::routes(count);
        let mut writer = F::writer()?;
        let begun = Instant::now();
        for routes in routes.chunks(4096) {
            routes.iter().try_for_each(|route| F::insert(&mut writer, *route))?;
            F::commit(&mut writer)?;
        }
        let load_seconds = begun.elapsed().as_secs_f64();
        let keys = Keys::ALL.map(|keys| (keys, keys.addresses(&routes, ADDRESSES, F::any, F::below)));
        Ok(Loaded { routes, writer, keys: keys.into(), random: Random::new(9), load_seconds })
    }

    pub fn bytes(&self) -> usize {
        F::bytes(&self.writer)
    }

    /// Million lookups a second.
    pub fn rate(&self, keys: Keys, args: &Args) -> Result<f64> {
        let mut reader = F::reader(&self.writer);
        let addresses = self.addresses(keys);
        apart(|| look::<F>(&mut reader, addresses, args))
    }

    /// Lookups of routed addresses a second while another processor changes routes, and the changes a second.
    pub fn rate_beside_changes(&mut self, args: &Args) -> Result<(f64, f64)> {
        let mut reader = F::reader(&self.writer);
        let Loaded { routes, writer, keys, random, .. } = self;
        let addresses = keys.iter().find(|(keys, _)| *keys == Keys::Routed).map_or(&[][..], |(_, all)| all);
        let done = AtomicBool::new(false);
        let changing = || change::<F>(writer, routes, random, args, &done);
        std::thread::scope(|scope| {
            let changing = scope.spawn(changing);
            let looking = scope.spawn(|| {
                let rate = look::<F>(&mut reader, addresses, args);
                done.store(true, Ordering::Relaxed);
                rate
            });
            let early = |_| Err("a thread ended early".to_owned());
            let (rate, changes) =
                (looking.join().unwrap_or_else(early), changing.join().unwrap_or_else(early));
            Ok((rate?, changes?))
        })
    }

    /// Microseconds of a change, the median and p99.
    pub fn updates(&mut self, args: &Args) -> Result<(f64, f64)> {
        let Loaded { routes, writer, random, .. } = self;
        let mut times = on(args.change_core, || {
            let mut times = Vec::with_capacity(CHANGES);
            while times.len() < CHANGES {
                let Some(route) = random.one_of(routes) else { break };
                let begun = Instant::now();
                F::remove(writer, route);
                F::commit(writer)?;
                let between = Instant::now();
                F::insert(writer, route)?;
                F::commit(writer)?;
                times.push(between - begun);
                times.push(between.elapsed());
            }
            Ok(times)
        })?;
        times.sort();
        let at = |part: usize| {
            times.get(times.len() * part / 100).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
        };
        Ok((at(50), at(99)))
    }

    fn addresses(&self, keys: Keys) -> &[F::Address] {
        self.keys.iter().find(|(known, _)| *known == keys).map_or(&[], |(_, all)| all)
    }
}

fn look<F: Family>(reader: &mut F::Reader, addresses: &[F::Address], args: &Args) -> Result<f64> {
    pin(args.core).map_err(text)?;
    let mut groups = [0; BATCH];
    let (mut looked, begun) = (0usize, Instant::now());
    // A first time through, which brings the table into the caches as far as it fits, is not counted.
    let mut counted = begun;
    let mut batches = addresses.chunks(BATCH).cycle();
    loop {
        for batch in batches.by_ref().take(256) {
            F::lookup(reader, batch, &mut groups);
            std::hint::black_box(&groups);
            looked += batch.len();
        }
        if counted == begun && looked >= addresses.len() {
            (looked, counted) = (0, Instant::now());
        }
        let time = counted.elapsed();
        if counted != begun && time >= args.repeat.window {
            return Ok(looked as f64 / time.as_secs_f64() / 1e6);
        }
    }
}

/// Changes routes at the rate that is wanted until `done`: changes a second.
fn change<F: Family>(
    writer: &mut F::Writer,
    routes: &[Route<F::Address>],
    random: &mut Random,
    args: &Args,
    done: &AtomicBool,
) -> Result<f64> {
    pin(args.change_core).map_err(text)?;
    let (mut made, begun) = (0u64, Instant::now());
    while !done.load(Ordering::Relaxed) {
        let due = (begun.elapsed() + STEP).as_secs_f64() * f64::from(args.changes);
        while (made as f64) < due {
            let Some(route) = random.one_of(routes) else { break };
            F::remove(writer, route);
            F::commit(writer)?;
            F::insert(writer, route)?;
            F::commit(writer)?;
            made += 2;
            if done.load(Ordering::Relaxed) {
                break;
            }
        }
        std::hint::spin_loop();
    }
    Ok(made as f64 / begun.elapsed().as_secs_f64())
}
