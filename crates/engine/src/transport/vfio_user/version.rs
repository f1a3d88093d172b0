//! VERSION: what both sides can do.
//!
//! We name no capability that the peer has not named: an early client warns of, and a strict one may refuse,
//! what it does not know.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use serde_json::{Map, Value};
use sidecore_abi::vfio_user::{Version, DEFAULT_MAX_TRANSFER};

use super::dma::MAX_MAPS;
use super::messages::Refusal;

/// Our versions: 0.0 and 0.1.
const MINOR: u16 = 1;
/// Descriptors that we ask for in one message. More are taken: Cloud Hypervisor sends as many as the device
/// has vectors. But QEMU takes a larger number than this for a mistake.
const MAX_MSG_FDS: u64 = 16;
/// The page size on which memory is mapped.
const PAGE_SIZES: u64 = 4096;

/// What was agreed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed {
    /// The peer takes descriptors.
    pub(super) takes_fds: bool,
    /// Most bytes of data in one message to the peer.
    pub(super) max_transfer: u32,
}

impl Agreed {
    /// As a word that is not zero.
    pub(super) fn word(self) -> u64 {
        1 | u64::from(self.takes_fds) << 1 | u64::from(self.max_transfer) << 32
    }

    /// What `word` was made of.
    pub(super) fn load(word: u64) -> Option<Agreed> {
        let max_transfer = u32::try_from(word >> 32).unwrap_or(0);
        (word & 1 != 0).then_some(Agreed { takes_fds: word & 2 != 0, max_transfer })
    }
}

/// Reads the peer's proposal; gives back what was agreed, and the payload of the answer.
pub(super) fn agree(payload: &[u8]) -> Result<(Agreed, Vec<u8>), Refusal> {
    let proposal = Version::parse(payload).unwrap_or_default();
    if proposal.major != 0 {
        let Version { major, minor } = proposal;
        return Err(Refusal::fatal(format!(
            "the client speaks version {major}.{minor}; we speak 0.0 and 0.1"
        )));
    }
    let offered = capabilities(payload.get(Version::SIZE..).unwrap_or_default())?;
    let number = |name: &str, default: u64| match offered.get(name) {
        None => Ok(default),
        Some(value) => value.as_u64().ok_or_else(|| {
            Refusal::fatal(format!("the client's capability {name} is no number, but {value}"))
        }),
    };
    let max_transfer = number("max_data_xfer_size", u64::from(DEFAULT_MAX_TRANSFER))?;
    let agreed = Agreed {
        takes_fds: number("max_msg_fds", 1)? > 0,
        max_transfer: u32::try_from(max_transfer)
            .map_or(DEFAULT_MAX_TRANSFER, |n| n.min(DEFAULT_MAX_TRANSFER)),
    };

    let ours = [
        ("max_msg_fds", Value::from(MAX_MSG_FDS)),
        ("max_data_xfer_size", Value::from(DEFAULT_MAX_TRANSFER)),
        ("max_dma_maps", Value::from(MAX_MAPS)),
        ("pgsizes", Value::from(PAGE_SIZES)),
        ("write_multiple", Value::from(true)),
    ];
    let common: Map<String, Value> = ours
        .into_iter()
        .filter(|(name, _)| offered.contains_key(*name))
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    let mut answer = Version { major: 0, minor: proposal.minor.min(MINOR) }.bytes().to_vec();
    answer.extend(serde_json::json!({ "capabilities": common }).to_string().bytes());
    answer.push(0);
    Ok((agreed, answer))
}

/// The object `capabilities` of the JSON text, which may be absent, as may the text.
fn capabilities(text: &[u8]) -> Result<Map<String, Value>, Refusal> {
    if text.is_empty() {
        return Ok(Map::new());
    }
    let Some(text) = text.strip_suffix(&[0]) else {
        return Err(Refusal::fatal("the client's capabilities do not end in a zero byte"));
    };
    match serde_json::from_slice(text) {
        Ok(Value::Object(mut all)) => match all.remove("capabilities") {
            None => Ok(Map::new()),
            Some(Value::Object(capabilities)) => Ok(capabilities),
            Some(_) => Err(Refusal::fatal("the client's capabilities are no JSON object")),
        },
        Ok(_) => Err(Refusal::fatal("the client's version data are no JSON object")),
        Err(e) => Err(Refusal::fatal(format!("the client's version data are no JSON: {e}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(minor: u8, json: &str) -> Result<(Agreed, Value), Refusal> {
        let mut payload = vec![0, 0, minor, 0];
        payload.extend(json.bytes());
        if !json.is_empty() {
            payload.push(0);
        }
        let (agreed, reply) = agree(&payload)?;
        assert_eq!(reply[..2], [0, 0]);
        assert!(reply[2] <= minor && reply[2] <= 1 && reply[3] == 0);
        let text = reply[4..].strip_suffix(&[0]).unwrap();
        Ok((agreed, serde_json::from_slice(text).unwrap()))
    }

    #[test]
    fn what_the_client_does_not_name_is_not_named() {
        let (agreed, reply) = say(0, "").unwrap();
        assert_eq!(reply, serde_json::json!({"capabilities": {}}));
        assert!(agreed.takes_fds && agreed.max_transfer == DEFAULT_MAX_TRANSFER);
        let (agreed, reply) =
            say(7, r#"{"capabilities":{"max_msg_fds":0,"max_data_xfer_size":64,"migration":{}}, "x":1}"#)
                .unwrap();
        let ours = serde_json::json!({"max_msg_fds": 16, "max_data_xfer_size": DEFAULT_MAX_TRANSFER});
        assert_eq!(reply["capabilities"], ours);
        assert!(!agreed.takes_fds && agreed.max_transfer == 64);
    }

    #[test]
    fn the_answer_to_qemu_fits_into_the_space_of_its_question() {
        // QEMU reads the answer into the buffer of the question.
        let question = r#"{"capabilities": {"max_dma_maps": 65535, "write_multiple": true, "max_msg_fds": 16, "pgsizes": 4096, "max_data_xfer_size": 1048576, "migration": {"pgsize": 4096, "max_bitmap_size": 268435456}}}"#;
        let (_, reply) = say(0, question).unwrap();
        assert_eq!(reply["capabilities"].as_object().unwrap().len(), 5);
        assert!(reply.to_string().len() <= question.len());
    }
}
