//! `capture`: the frames of ports, from the daemon into files or a pipe.
//!
//! The daemon makes the stream; here it is only cut into whole blocks, so that a capture that is
//! interrupted leaves a file that every reader takes. Frames that the filter refuses are left out.

mod files;
mod filter;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

use http_body_util::BodyExt;

use self::files::Files;
pub use self::filter::Filter;
use crate::cli::{CaptureArgs, OfDaemon};
use crate::client::{segment, told_to_end, Client};
use crate::pcapng::{parts, Blocks, Lost, Part};
use crate::Outcome;

/// How often lost frames are told.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// The request for a capture of `ports`, or of all if there are none.
pub fn path(ports: &[String], query: &[String]) -> String {
    let names: Vec<String> = ports.iter().map(|port| segment(port)).collect();
    let place = if names.is_empty() { String::new() } else { format!("/{}", names.join("+")) };
    format!("/v1/capture{place}?{}", query.join("&"))
}

/// `capture`.
pub fn run(args: &OfDaemon<CaptureArgs>) -> Outcome {
    let pipe = args.write == Path::new("-");
    if pipe && io::stdout().is_terminal() {
        return Err(
            "a capture is no text for a terminal; name a file, or pipe it: … -w - | tcpdump -r -".to_owned()
        );
    }
    let filter = args.filter.as_deref().map(Filter::compile).transpose()?;
    let all = filter.is_none() && !args.on_drop;
    let mut query = Vec::new();
    query.extend(args.snaplen.map(|n| format!("snaplen={n}")));
    query.extend(args.count.filter(|_| all).map(|n| format!("count={n}")));
    let path = path(&args.ports, &query);
    let client = Client::new(&args.control.path())?;
    client.stream(&path, |mut body| {
        let (path, size, files) = (args.write.clone(), args.file_size, args.files);
        let (filter, on_drop) = (filter.clone(), args.on_drop);
        let mut left = args.count.unwrap_or(u64::MAX);
        async move {
            let fail = |e: io::Error| format!("cannot write {}: {e}", path.display());
            // Before the first byte: from then on an interrupt is the end of the capture, not ours.
            let mut ended = std::pin::pin!(told_to_end()?);
            // Made only now: a capture that the daemon refuses leaves no empty file.
            let mut out = Files::create(&path, size, files).map_err(fail)?;
            let mut blocks = Blocks::default();
            let (mut frames, mut lost) = (0, Lost::default());
            let (mut said, mut last) = (0, None::<Instant>);
            while left > 0 {
                let frame = tokio::select! {
                    frame = body.frame() => frame,
                    () = &mut ended => None,
                };
                let Some(frame) = frame else { break };
                let frame = frame.map_err(|e| format!("the daemon broke the capture off: {e}"))?;
                let Ok(piece) = frame.into_data() else { continue };
                let whole = blocks.push(&piece)?;
                let mut write = || {
                    for part in parts(&whole) {
                        match part {
                            Part::Head(whole, _) => out.begin(whole)?,
                            Part::Other(whole) => out.write(whole)?,
                            Part::Packet(packet) => {
                                let takes = |filter: &Filter| filter.takes(&packet.bytes, packet.len);
                                let wanted = left > 0
                                    && (!on_drop || packet.dropped.is_some())
                                    && filter.as_ref().is_none_or(takes);
                                if wanted {
                                    (left, frames) = (left - 1, frames + 1);
                                    out.write(packet.whole)?;
                                }
                            }
                        }
                    }
                    out.flush()
                };
                match write() {
                    Err(e) if e.kind() == io::ErrorKind::BrokenPipe => break,
                    done => done.map_err(fail)?,
                }
                lost.look(&whole);
                if lost.frames() > said && last.is_none_or(|last| last.elapsed() >= SAY_EVERY) {
                    (said, last) = (lost.frames(), Some(Instant::now()));
                    eprintln!("sidecore: {said} frames lost so far: they come faster than they are written");
                }
            }
            match lost.frames() {
                0 => eprintln!("sidecore: {frames} frames captured"),
                lost => eprintln!("sidecore: {frames} frames captured, {lost} lost"),
            }
            Ok(())
        }
    })
}
