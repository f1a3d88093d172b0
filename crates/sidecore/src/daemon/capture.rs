//! `GET /v1/capture/{port}`: a pcapng stream for as long as the client reads.
//!
//! A thread of its own waits for the capture's descriptor and hands pieces to the response. The channel
//! between them is short: a client that reads slowly fills the capture's buffer, and what does not fit is
//! counted as lost in the stream's statistics. The port never waits. A client that does not read at all loses
//! its connection ([`slots`](super::slots)), and with it the capture.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use hyper::body::Frame;
use rustix::event::{poll, PollFd, PollFlags};
use sidecore_engine::observe::capture::{CaptureReader, CaptureStop};
use sidecore_engine::sandbox::filters;
use tokio::sync::mpsc::{channel, Receiver, Sender};
use tokio::sync::OwnedSemaphorePermit;

use crate::pcapng::keep_frames;

/// Pieces that wait for the client.
const PIECES: usize = 2;

/// The response body of a capture of at most `count` frames, which has `slot` until its thread ends.
pub fn body(reader: CaptureReader, count: Option<u64>, slot: OwnedSemaphorePermit) -> std::io::Result<Body> {
    let (sender, pieces) = channel(PIECES);
    let stop = reader.stopper();
    std::thread::Builder::new().name("capture".to_owned()).spawn(move || {
        filters::enter(filters::Kinds::HELPER);
        pump(reader, count, &sender);
        drop(slot);
    })?;
    Ok(Body::new(Stream { pieces, _held: Stop(stop) }))
}

/// Moves pieces from the capture to the client until either ends.
fn pump(mut reader: CaptureReader, count: Option<u64>, sender: &Sender<Bytes>) {
    let mut left = count.unwrap_or(u64::MAX);
    let stop = reader.stopper();
    loop {
        // An interrupted wait is followed by an empty piece and another wait.
        let _ = poll(&mut [PollFd::new(&reader, PollFlags::IN)], None);
        let Some(bytes) = reader.next_bytes() else { return };
        // The reader hands out whole blocks.
        let piece = if count.is_some() { keep_frames(bytes, &mut left) } else { bytes.to_vec() };
        if !piece.is_empty() && sender.blocking_send(piece.into()).is_err() {
            return;
        }
        if left == 0 {
            // What follows are the statistics and the end.
            stop.stop();
        }
    }
}

/// A response body that others write; it is dropped when it has ended, or the client goes away.
pub struct Stream<T> {
    pub pieces: Receiver<Bytes>,
    pub _held: T,
}

/// Ends a capture when it is dropped.
struct Stop(CaptureStop);

impl<T: Unpin> hyper::body::Body for Stream<T> {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.pieces.poll_recv(context).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.stop();
    }
}
