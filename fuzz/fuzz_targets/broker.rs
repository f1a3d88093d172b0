//! Requests to the broker, and what operators tell it: whatever the bytes are, they are nothing that is known, or exactly what
//! makes these bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sidecore_engine::open::broker::{Named, Request};

fuzz_target!(|data: &[u8]| {
    if let Ok(named) = Named::decode(data) {
        assert_eq!(named.encode().unwrap().as_bytes(), data);
    }
    if let Ok(request) = Request::decode(data) {
        assert_eq!(request.encode().unwrap(), data);
    }
});
