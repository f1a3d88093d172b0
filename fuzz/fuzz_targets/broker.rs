//! Requests to the broker, and what operators tell it: whatever the bytes are, they are nothing that is
//! known, or exactly what makes these bytes.
#![cfg_attr(feature = "libfuzzer", no_main)]

use sidecore_engine::sandbox::open::broker::{Named, Request};
use sidecore_fuzz::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(named) = Named::decode(data) {
        assert_eq!(named.encode().unwrap().as_bytes(), data);
    }
    if let Ok(request) = Request::decode(data) {
        assert_eq!(request.encode().unwrap(), data);
    }
});
