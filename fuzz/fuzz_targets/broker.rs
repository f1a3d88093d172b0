//! Records for the broker, and what operators tell it: whatever the bytes are, they are nothing that is known, or exactly what makes
//! these bytes.
#![cfg_attr(feature = "libfuzzer", no_main)]

use sidecore_engine::open::broker::{Named, Request, RECORD};
use sidecore_fuzz::fuzz_target;

fuzz_target!(|data: &[u8]| {
    assert!(data.len() == RECORD || Request::decode(data).is_err());
    if let Ok(named) = Named::decode(data) {
        assert_eq!(named.encode(), data);
    }
    let mut bytes = [0; RECORD];
    let len = data.len().min(RECORD);
    bytes[..len].copy_from_slice(&data[..len]);
    // The protocol's number is not worth a guess.
    if let Some(first) = data.first() {
        bytes[..8].copy_from_slice(&(0x7363_6272 << 32 | u64::from(*first)).to_ne_bytes());
    }
    if let Ok((request, number)) = Request::decode(&bytes) {
        assert_eq!(request.encode(number).unwrap(), bytes);
    }
});
