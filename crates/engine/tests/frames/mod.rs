//! Frames for tests.

// No test uses all of it.
#![allow(dead_code)]

use sidecore_engine::mem::Piece;
use sidecore_engine::packet::{Batch, Frame, Offload, HEAD};

/// Adds a frame whose body lies in `bytes`, in three pieces of which one is empty.
pub fn push(batch: &mut Batch, bytes: &[u8], offload: Offload) {
    let (frame, pieces) = batch.next_frame().unwrap();
    let head = bytes.len().min(HEAD);
    frame.head[..head].copy_from_slice(&bytes[..head]);
    frame.len = bytes.len() as u32;
    frame.offload = offload;
    frame.piece = pieces.len() as u32;
    frame.pieces = 0;
    let body = &bytes[head..];
    let (a, b) = body.split_at(body.len() / 3);
    for part in [a, &[], b] {
        // SAFETY: callers keep `bytes` until they are done with the batch, and no thread writes to it.
        assert!(pieces.push(unsafe { Piece::new(part.as_ptr().cast_mut(), part.len() as u32) }));
        frame.pieces += 1;
    }
    batch.commit();
}

/// An Ethernet frame with an UDP datagram for 10.9.0.1, checksums and all.
pub fn datagram(dst_mac: [u8; 6], src_port: u16, dst_port: u16, payload: &[u8]) -> Vec<u8> {
    let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], dst_mac)
        .ipv4([10, 9, 0, 9], [10, 9, 0, 1], 64)
        .udp(src_port, dst_port);
    let mut bytes = Vec::new();
    builder.write(&mut bytes, payload).unwrap();
    bytes
}

/// All that a frame of `batch` consists of.
pub fn bytes_of(batch: &Batch, frame: &Frame) -> Vec<u8> {
    let mut bytes = frame.head[..frame.head_len()].to_vec();
    for piece in batch.body(frame) {
        let mut part = vec![0; piece.len()];
        assert_eq!(piece.read(&mut part), part.len());
        bytes.extend(part);
    }
    assert_eq!(bytes.len(), frame.len as usize);
    bytes
}
