//! Capture: what passes a port, in both directions, as a pcapng stream.
//!
//! Theory of operation. Every port has a [`CaptureSlot`]. Without a capture, an I/O core reads one flag per
//! batch and continues. With a capture, it copies each frame, cut at the capture's `snaplen`, into a queue of
//! fixed size, as the very bytes of the file: the [`CaptureReader`] on the other side only swaps the full
//! buffer for an empty one. It makes one system call, the wake-up, when it puts the first frame into an empty
//! buffer.
//!
//! A capture never delays a port. If the buffer is full, if its lock is not free within some thousand cycles,
//! or if another capture starts or ends at that moment, the frame is not captured, and counted as lost. The
//! count is the `isb_ifdrop` of interface statistics, which come when it has grown and at the stream's end (a
//! reader takes the last ones); `isb_ifrecv` counts all frames of the port.
//!
//! What a record says. *Inbound* is into the switch, *outbound* is out of it: the view of a tcpdump that
//! runs on the switch's side of the port, as it would on the host side of a TAP. A frame that was not
//! delivered has a comment such as `dropped: ring_full`; at ingress if the switch had nowhere to give it,
//! at egress if the receiver did not get it. One that the receiver will have segmented has a comment such
//! as `gso tcpv4 size=1448`. Checksums that are left to the receiver are captured unfinished, as on any
//! interface with checksum offload. Frames that a device refused before there was a frame (a chain that
//! ends within the Ethernet header) are in the counters only.

mod pcapng;
mod reader;
mod sink;
mod slot;

use std::sync::Arc;

pub use pcapng::{CaptureCount, CaptureOptions, Direction};
pub use reader::{CaptureReader, CaptureStop};
pub use slot::{CapturePoint, CaptureSlot, Watcher};

use sink::Sink;
use slot::Onlooker;

/// Starts a capture of `points`, each of which becomes an interface of the stream.
///
/// # Errors
/// What the system says of making an eventfd.
pub fn start(points: Vec<Arc<dyn CapturePoint>>, options: CaptureOptions) -> std::io::Result<CaptureReader> {
    let names: Vec<&str> = points.iter().map(|point| point.capture_name()).collect();
    let head = pcapng::head(&names, options.snaplen);
    let sink = Arc::new(Sink::new(points.len(), options)?);
    for (interface, point) in (0..).zip(&points) {
        sink.begin(interface, point.capture_slot().missed());
        point.capture_slot().add(Onlooker::Capture { sink: Arc::clone(&sink), interface });
    }
    Ok(CaptureReader::new(sink, points, head, options))
}
