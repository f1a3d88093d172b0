//! virtio-net (virtio 1.2 §5.1) as the device.
//!
//! Theory of operation. `features` is the table of offered features. `state` is the control side: it turns a
//! ring that the transport has set up into a queue, and gives that to the I/O cores (the guest's transmit
//! queues, our ingress) or to the port (its receive queues, our egress). `ingress` and `egress` are the path
//! of the frames. `moderated` delays interrupts. Configuration space and control queue stay with the VMM, so
//! this device passes every frame and has no filters.

mod egress;
pub mod features;
mod ingress;
mod moderated;
mod state;

pub use egress::EgressRing;
pub use ingress::IngressRing;
pub use state::{NetConfig, VirtioNet};
