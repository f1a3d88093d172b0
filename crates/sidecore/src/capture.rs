//! `capture`: a port's frames, from the daemon into a file or a pipe.
//!
//! The daemon makes the stream; here it is only cut into whole blocks, so that a capture that is
//! interrupted leaves a file that every reader takes.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use tokio::signal::unix::{signal, SignalKind};

use crate::cli::CaptureArgs;
use crate::client::{segment, Client};
use crate::pcapng::{count_frames, Blocks, Lost};
use crate::Outcome;

/// How often lost frames are told.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// `capture`.
pub fn run(args: &CaptureArgs) -> Outcome {
    let pipe = args.write == Path::new("-");
    if pipe && io::stdout().is_terminal() {
        return Err(
            "a capture is no text for a terminal; name a file, or pipe it: … -w - | tcpdump -r -".to_owned()
        );
    }
    let mut query = Vec::new();
    query.extend(args.snaplen.map(|n| format!("snaplen={n}")));
    query.extend(args.count.map(|n| format!("count={n}")));
    let path = format!("/v1/capture/{}?{}", segment(&args.port), query.join("&"));
    let client = Client::new(&args.control.path())?;
    client.stream(&path, |mut body| {
        let path = args.write.clone();
        async move {
            let fail = |e: io::Error| format!("cannot write {}: {e}", path.display());
            // Before the first byte: from then on an interrupt is the end of the capture, not ours.
            let on = |kind| signal(kind).map_err(|e| format!("cannot watch signals: {e}"));
            let (mut int, mut term) = (on(SignalKind::interrupt())?, on(SignalKind::terminate())?);
            // Made only now: a capture that the daemon refuses leaves no empty file.
            let mut out: Box<dyn Write> = match pipe {
                true => Box::new(io::stdout()),
                false => Box::new(File::create(&path).map_err(fail)?),
            };
            let mut blocks = Blocks::default();
            let (mut frames, mut lost) = (0, Lost::default());
            let (mut said, mut last) = (0, None::<Instant>);
            loop {
                let frame = tokio::select! {
                    frame = body.frame() => frame,
                    _ = int.recv() => None,
                    _ = term.recv() => None,
                };
                let Some(frame) = frame else { break };
                let frame = frame.map_err(|e| format!("the daemon broke the capture off: {e}"))?;
                let Ok(piece) = frame.into_data() else { continue };
                let whole = blocks.push(&piece)?;
                match out.write_all(&whole).and_then(|()| out.flush()) {
                    Err(e) if e.kind() == io::ErrorKind::BrokenPipe => break,
                    done => done.map_err(fail)?,
                }
                frames += count_frames(&whole);
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
