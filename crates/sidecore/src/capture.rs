//! `capture`: a port's frames, from the daemon into a file or a pipe.
//!
//! The daemon makes the stream; here it is only cut into whole blocks, so that a capture that is
//! interrupted leaves a file that every reader takes.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use http_body_util::BodyExt;
use tokio::signal::unix::{signal, SignalKind};

use crate::cli::CaptureArgs;
use crate::client::{segment, Client};
use crate::pcapng::{count_frames, Blocks};
use crate::Outcome;

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
            let mut frames = 0;
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
            }
            eprintln!("sidecore: {frames} frames captured");
            Ok(())
        }
    })
}
