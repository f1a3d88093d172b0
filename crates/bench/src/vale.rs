//! `sidecore bench vale` and `sidecore bench limit`: what a frame costs on a switch of ring ports, by the
//! number of receivers, beside what copying it costs at least.
//!
//! Theory of operation. A daemon with ring ports on one I/O core; one thread on another processor is the
//! sender and all the receivers in turns, so two processors are enough. The sender writes the addresses of
//! each frame, which go to all receivers in turns (unicast) or to all at once (broadcast). The cost of a
//! frame is the time in which the I/O core was busy, by its own account, over the frames that it took. Rings
//! are large enough that nothing is lost: what one turn sends fits into any receiver's ring. The numbers of
//! receivers alternate, and so does the copy limit of the same processor.

use sidecore_driver::load::copy_limit;
use sidecore_port::Port;

use crate::prelude::*;

/// `bench vale`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Numbers of receivers.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,8,64,250")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=250))]
    pub receivers: Vec<u16>,
    /// Frame sizes in bytes, without frame check sequence.
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_value = "60,1500")]
    #[arg(value_parser = clap::value_parser!(u16).range(60..=1514))]
    pub sizes: Vec<u16>,
    #[command(flatten)]
    pub repeat: Repeat<300>,
    #[command(flatten)]
    pub cpus: Processors,
    #[command(flatten)]
    pub output: Output,
}

/// `bench limit`.
#[derive(Debug, clap::Args)]
pub struct LimitArgs {
    /// Frame sizes in bytes.
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_value = "60,1500")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=2048))]
    pub sizes: Vec<u16>,
    #[command(flatten)]
    pub repeat: Repeat<300>,
    /// Buffers of 2048 bytes in each region, as the slots of a ring port.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u16).range(2..=4096))]
    pub slots: u16,
    /// Processor that copies.
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    pub core: usize,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Slots of the sender's ring, and of the receivers': one turn's frames and those under way fit.
const SENDER: u16 = 256;
const RECEIVER: u16 = 1024;
const BATCH: usize = 128;

/// The receivers of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum To {
    /// One receiver after the other.
    Unicast,
    /// All.
    Broadcast,
}

figures! {
    /// One measurement, or medians of them.
    pub struct Figures {
        /// Nanoseconds of the I/O core for each frame taken, and for each frame delivered.
        ns_per_frame, ns_per_copy,
        /// Frames taken and delivered a second, in millions.
        mpps_in, mpps_out,
    }
}

type Sample = (Figures, Mode);

row! {
    fn row(frames: (u16, To), receivers: u16, of: &[Sample], limit_ns: f64) -> Row {
        let figures = Figures::of(of.iter().map(|it| &it.0));
    }

    /// One row of the table: medians.
    #[derive(Deserialize)]
    pub struct Row {
        size: u16 = frames.0,
        to: To = frames.1,
        receivers: u16 = receivers,
        /// Nanoseconds of the I/O core for each frame taken, in each round.
        samples: Vec<f64> = of.iter().map(|it| it.0.ns_per_frame).collect(),
        #[serde(flatten)]
        figures: Figures = figures,
        /// Nanoseconds that copying alone costs.
        limit_ns: f64 = limit_ns,
        /// Rate of delivered frames against the rate at which they could be copied.
        of_limit: f64 = figures.mpps_out * limit_ns / 1e3,
        /// Frames delivered a second, in millions, by the distance of the two processors.
        #[serde(skip_deserializing)]
        modes: Modes = Modes::of(of, |(it, mode)| (*mode, it.mpps_out)),
    }
}

/// The address of receiver `n`; the sender is number 0.
fn mac(n: u16) -> [u8; 6] {
    let [high, low] = n.to_be_bytes();
    [2, 0x76, 0, 0, high, low]
}

/// A daemon, the sender's port and the receivers'.
struct Stage {
    sender: Port,
    receivers: Vec<Port>,
    switch: Switch,
}

impl Stage {
    fn start(args: &Args, receivers: u16) -> Result<Stage> {
        let slots = |n: u16| if n == 0 { SENDER } else { RECEIVER };
        let ports = (0..=receivers).map(|n| format!("ring:@/r{n},slots={}", slots(n)));
        let switch = Switch::start(args.cpus.io_core, ports, &[])?;
        let attach = |n: u16| Port::attach(&switch.file(format!("r{n}")).to_string_lossy()).map_err(text);
        let sender = attach(0)?;
        let receivers = (1..=receivers).map(attach).collect::<Result<Vec<_>>>()?;
        let mut stage = Stage { sender, receivers, switch };
        stage.introduce()?;
        Ok(stage)
    }

    /// Makes all addresses known to the switch.
    fn introduce(&mut self) -> Result<()> {
        let mut frame = [0; 60];
        frame[..6].fill(0xff);
        for (n, port) in (1..).zip(&mut self.receivers) {
            frame[6..12].copy_from_slice(&mac(n));
            port.tx[0].push(&frame);
            port.tx[0].sync().map_err(text)?;
            while !port.tx[0].is_drained() {
                std::thread::yield_now();
            }
        }
        // The floods of all these do not count.
        self.drain()?;
        self.sender.rx[0].sync().map_err(text)?;
        self.sender.rx[0].skip(usize::MAX);
        self.sender.rx[0].sync().map_err(text)
    }

    /// Takes what has come at all receivers; how many frames.
    #[inline]
    fn drain(&mut self) -> Result<u64> {
        let mut frames = 0;
        for port in &mut self.receivers {
            port.rx[0].sync().map_err(text)?;
            frames += port.rx[0].skip(usize::MAX).0 as u64;
        }
        Ok(frames)
    }

    fn run(&mut self, to: To, size: usize, time: Duration, cpus: [usize; 2]) -> Result<Sample> {
        let mut template = vec![0x5a; size];
        template[..6].fill(0xff);
        template[6..12].copy_from_slice(&mac(0));
        template[12..14].copy_from_slice(&[0x88, 0xb5]);
        let last = u16::try_from(self.receivers.len()).unwrap_or(u16::MAX);
        let (mut next, mut laid) = (0, 0);
        let (mut sent, mut got) = (0u64, 0u64);
        let distance = Distance::before(&cpus);
        let before = self.switch.spent()?;
        let start = Instant::now();
        while start.elapsed() < time {
            for _ in 0..16 {
                let tx = &mut self.sender.tx[0];
                for _ in 0..BATCH.min(tx.space()) {
                    let Some(buffer) = tx.buffer() else { break };
                    if laid < SENDER {
                        buffer[..size].copy_from_slice(&template);
                        laid += 1;
                    }
                    if to == To::Unicast {
                        next = if next == last { 1 } else { next + 1 };
                        buffer[..6].copy_from_slice(&mac(next));
                    }
                    buffer[6..12].copy_from_slice(&mac(0));
                    tx.commit(size, false);
                    sent += 1;
                }
                tx.sync().map_err(text)?;
                got += self.drain()?;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        while !self.sender.tx[0].is_drained() {
            got += self.drain()?;
        }
        // The last batch is delivered just before its slots come back.
        got += self.drain()?;
        let spent = self.switch.spent()?.since(before);
        let copies = if to == To::Unicast { 1 } else { u64::from(last) };
        if got != sent * copies {
            return Err(format!("{sent} frames were sent to {copies} receivers each, and {got} arrived"));
        }
        let [mpps_in, mpps_out] = [sent, got].map(|frames| frames as f64 / seconds / 1e6);
        let ns_per_frame = spent.per_frame();
        let ns_per_copy = ns_per_frame / copies as f64;
        Ok((Figures { ns_per_frame, ns_per_copy, mpps_in, mpps_out }, distance.after()))
    }
}

/// The copy limit, measured on a thread of its own: pinning must not pass to what is started later.
fn limit(core: usize, size: u16, slots: [u16; 2], time: Duration) -> Result<f64> {
    apart(|| copy_limit(core, size.into(), slots, time).map_err(text))
}

/// `bench vale`.
pub fn run(args: &Args) -> Result<()> {
    let time = args.repeat.window;
    let frames: Vec<(u16, To)> =
        args.sizes.iter().flat_map(|&size| [To::Unicast, To::Broadcast].map(|to| (size, to))).collect();
    // The copy limit takes its turn, too: none are its receivers.
    let cases: Vec<u16> = [0].iter().chain(&args.receivers).copied().collect();
    let mut samples = in_parts(args.repeat.rounds, &cases, |round, &receivers| {
        if receivers == 0 {
            let copied = |&(size, _): &_| limit(args.cpus.io_core, size, [SENDER, RECEIVER], time);
            let sample = |ns_per_frame| (Figures { ns_per_frame, ..Figures::default() }, Mode::Unknown);
            return frames.iter().step_by(2).map(|it| copied(it).map(sample)).collect();
        }
        apart(|| {
            let mut stage = Stage::start(args, receivers)?;
            pin(args.cpus.load_core).map_err(text)?;
            let one = |&(size, to): &(u16, To)| {
                let sample = stage.run(to, size.into(), time, args.cpus.pair())?;
                let (ns, mpps) = (sample.0.ns_per_frame, sample.0.mpps_out);
                eprintln!("{round}: {receivers} receivers, {size} B {to:?}: {ns:.1} ns, {mpps:.2} Mpps");
                Ok(sample)
            };
            frames.iter().map(one).collect()
        })
    })?;
    let limits = samples.remove(0);
    let mut rows = Vec::new();
    for (part, &frames) in frames.iter().enumerate() {
        let limit_ns = middle(&limits[part / 2], |it| it.0.ns_per_frame);
        let of_case =
            |(&receivers, of): (&u16, &Vec<Vec<Sample>>)| row(frames, receivers, &of[part], limit_ns);
        rows.extend(args.receivers.iter().zip(&samples).map(of_case));
    }
    let note = format!("one sender, {}; ns: busy time of the I/O core", args.repeat);
    Results::new("vale", &note).with("rows", &rows)?.give(&args.output, || draw(&rows))
}

/// Nanoseconds of a delivered frame by the number of receivers.
pub fn draw(rows: &[Row]) -> String {
    let mut series = Vec::new();
    for size in distinct(rows.iter().map(|row| row.size)) {
        for to in [To::Unicast, To::Broadcast] {
            let name =
                format!("{size} B, {}", if to == To::Unicast { "unicast in turns" } else { "broadcast" });
            let points = rows.iter().filter(|row| row.size == size && row.to == to);
            let points = points.map(|row| (f64::from(row.receivers), row.figures.ns_per_copy)).collect();
            series.push(Line::new(name, points));
        }
    }
    chart(
        "Cost of a delivered frame on a switch of ring ports",
        "sidecore bench vale --svg FILE",
        Axis::log("receivers"),
        Axis::log("ns of the I/O core"),
        &series,
    )
}

/// `bench limit`.
pub fn run_limit(args: &LimitArgs) -> Result<()> {
    let all = by_turns(args.repeat.rounds, &args.sizes, |_, &size| {
        limit(args.core, size, [args.slots; 2], args.repeat.window)
    })?;
    let rows = all.into_iter().zip(&args.sizes).map(|(samples, &size)| {
        let ns = median(samples.iter().copied());
        fields! { size, samples, ns, mpps: 1e3 / ns, gbits: 8.0 * f64::from(size) / ns }
    });
    let note = format!("one core copies frames from one shared region to another, {}", args.repeat);
    Results::new("limit", &note).with("rows", &rows.collect::<Vec<_>>())?.print(args.json)
}
