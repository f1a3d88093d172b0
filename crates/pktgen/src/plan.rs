//! From flags to a plan: defaults, and which flags apply to which function.

use super::address::{Endpoints, Mac};
use super::args::{Function, PktGenArgs};
use super::end::PortAddress;
use super::frame::{Form, Maker};
use super::replay::Recording;
use super::{ping, verify};

/// Frames of a batch, as netmap's pkt-gen has it.
const BURST: u32 = 512;
const LENGTH: u16 = 60;
const WINDOW: u32 = 512;

/// What will be done.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where.
    pub port: PortAddress,
    /// What frames are like.
    pub form: Form,
    /// Most frames in a batch.
    pub burst: usize,
    /// Frames for each thread; `u64::MAX` for no end.
    pub counts: Vec<u64>,
    /// Frames a second for each thread.
    pub rate: Option<f64>,
    /// With `--verify`: frames under way at most.
    pub window: u64,
    /// Bytes of the header that the port shall have.
    pub header: Option<u32>,
    /// What is sent instead of made frames; read later.
    pub recording: Option<Recording>,
}

impl Plan {
    /// What the flags say.
    pub fn new(args: &PktGenArgs) -> Result<Plan, String> {
        applies(args)?;
        let port = PortAddress::parse(&args.interface)?;
        let header =
            args.header.as_ref().map(|text| text.parse()).transpose().map_err(|e| format!("-H: {e}"))?;
        if header.is_some() && !matches!(port, PortAddress::Ring(_)) {
            return Err("-H does not apply to this port, but to ring ports".to_owned());
        }
        let one = |text: &str| text.parse::<Endpoints>();
        let endpoints = [
            args.source.map_or_else(|| one("10.0.0.1"), Ok)?,
            args.destination.map_or_else(|| one("10.1.0.1"), Ok)?,
        ];
        let own = args.source_mac.unwrap_or_else(|| Mac::of(&args.interface));
        let form = Form {
            length: lengths(args)?,
            mac: [own, args.destination_mac.unwrap_or(Mac([0xff; 6]))],
            endpoints,
            random: [args.random_source, args.random_destination],
            checksum: !args.verify && args.function == Function::Tx,
        };
        let flows = Maker::new(form, 0).flows();
        if args.verify && flows > verify::MAX_FLOWS {
            return Err(format!(
                "--verify tells {} flows apart, but -s and -d make {flows}",
                verify::MAX_FLOWS
            ));
        }
        let burst = match args.function {
            Function::Tx | Function::Rx => BURST,
            Function::Ping | Function::Pong => 1,
        };
        let threads = u64::from(args.threads);
        let count = |thread: u64| match args.count.0 {
            0 => u64::MAX,
            // They share the count: which of them a flow comes to is the sender's affair.
            all if args.function == Function::Rx && !args.verify => all,
            // What does not divide goes to the first ones.
            all => all / threads + u64::from(thread < all % threads),
        };
        Ok(Plan {
            port,
            form,
            burst: args.burst.unwrap_or(burst) as usize,
            counts: (0..threads).map(count).collect(),
            rate: args.rate.map(|rate| rate.0 as f64 / threads as f64),
            window: args.window.unwrap_or(WINDOW).into(),
            header,
            recording: None,
        })
    }
}

fn lengths(args: &PktGenArgs) -> Result<[usize; 2], String> {
    let [least, most] = match args.length[..] {
        [] => [LENGTH; 2],
        [one] => [one; 2],
        [a, b] => [a.min(b), a.max(b)],
        _ => return Err("-l: once for a length, twice for the ends of a range".to_owned()),
    };
    let shortest = match args.function {
        _ if args.verify => verify::SHORTEST,
        Function::Ping => ping::SHORTEST,
        _ => 0,
    };
    if usize::from(least) < shortest {
        return Err(format!("-l {least}: number and time or checksum need {shortest} bytes"));
    }
    Ok([least.into(), most.into()])
}

/// Refuses what would have no effect.
fn applies(args: &PktGenArgs) -> Result<(), String> {
    use Function::{Ping, Rx, Tx};
    let flags: [(&str, bool, &[Function]); 14] = [
        ("-l", !args.length.is_empty(), &[Tx, Ping]),
        ("-s", args.source.is_some(), &[Tx, Ping]),
        ("-d", args.destination.is_some(), &[Tx, Ping]),
        ("-D", args.destination_mac.is_some(), &[Tx, Ping]),
        ("-z", args.random_source, &[Tx]),
        ("-Z", args.random_destination, &[Tx]),
        ("-R", args.rate.is_some(), &[Tx, Ping]),
        ("-W", args.until_silence, &[Rx]),
        ("-P", args.replay.is_some(), &[Tx]),
        ("-X", args.dump, &[Tx, Rx]),
        ("--verify", args.verify, &[Tx, Rx]),
        ("--window", args.window.is_some(), &[Tx]),
        ("--announce", args.announce, &[Rx]),
        ("-p with more than 1", args.threads > 1, &[Tx, Rx]),
    ];
    for (flag, given, functions) in flags {
        if given && !functions.contains(&args.function) {
            let names: Vec<String> = functions.iter().map(|f| format!("-f {f:?}").to_lowercase()).collect();
            let function = format!("{:?}", args.function).to_lowercase();
            return Err(format!("{flag} does not apply to -f {function}, but to {}", names.join(", ")));
        }
    }
    if args.rate.is_some_and(|rate| rate.0 == 0) {
        return Err("-R 0: a rate of no frames; leave -R out for no limit".to_owned());
    }
    let alone = [
        ("-p with more than 1", args.threads > 1),
        ("-z", args.random_source),
        ("-Z", args.random_destination),
        ("-W", args.until_silence),
        ("-X", args.dump),
        ("--announce", args.announce),
    ];
    match alone.iter().find(|(_, given)| args.verify && *given) {
        Some((flag, _)) => Err(format!("{flag} does not go together with --verify")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    #[command(disable_help_flag = true)]
    struct Line {
        #[command(flatten)]
        args: PktGenArgs,
    }

    fn plan(line: &str) -> Result<Plan, String> {
        let words = std::iter::once("pkt-gen").chain(line.split_whitespace());
        Plan::new(&Line::try_parse_from(words).map_err(|e| e.to_string())?.args)
    }

    #[test]
    fn defaults_are_those_of_netmap() {
        let tx = plan("-i a -f tx").unwrap();
        assert_eq!((tx.burst, tx.form.length, tx.counts), (512, [60; 2], vec![u64::MAX]));
        assert_eq!(tx.form.endpoints.map(|e| e.to_string()), ["10.0.0.1:1234", "10.1.0.1:1234"]);
        assert_eq!(tx.form.mac[1], Mac([0xff; 6]));
        assert_eq!(plan("-i a -f ping").unwrap().burst, 1);
        let shared = plan("-i a -f tx -n 10 -p 4 -R 1M -b 9 -l 300 -l 64").unwrap();
        assert_eq!((shared.counts, shared.rate, shared.burst), (vec![3, 3, 2, 2], Some(250_000.0), 9));
        assert_eq!(shared.form.length, [64, 300]);
    }

    #[test]
    fn what_has_no_effect_is_refused() {
        for (line, says) in [
            ("-i a -f rx -l 60", "-l does not apply to -f rx, but to -f tx, -f ping"),
            ("-i a -f pong -R 5", "-R does not apply to -f pong"),
            ("-i a -f tx -W", "-W does not apply to -f tx, but to -f rx"),
            ("-i a -f tx --verify -l 59", "need 60 bytes"),
            ("-i a -f tx --verify -p 2", "does not go together with --verify"),
            ("-i a -f tx --verify -s 10.0.0.1:0-10.0.0.2:65535", "but -s and -d make 131072"),
            ("-i a -f tx -R 0", "a rate of no frames"),
            ("-i a -f tx -l 60 -l 70 -l 80", "once for a length"),
            ("-i a -f tx --window 512", "--verify"),
            ("-i a -f tx -c 2", "-a"),
            ("-i vhost-user:t -f tx -H 12", "-H does not apply to this port"),
            ("-i a -f sing", "possible values"),
            ("-f tx", "-i"),
        ] {
            let said = plan(line).unwrap_err();
            assert!(said.contains(says), "{line}: {said}");
        }
    }
}
