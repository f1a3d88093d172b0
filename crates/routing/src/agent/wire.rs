//! What the daemon and the agent in a back-end say to each other: FPM's frames (`fpm`), of messages of
//! rtnetlink and of these kinds.
//!
//! ```text
//! agent    HELLO number                     each second until it is answered
//! daemon   START number                     answers a HELLO; everything before it is of an earlier connection
//!          NEWLINK number, name, address    the router's ports, as routes name them, with their station addresses
//!          BEGIN  routes ...  END           the whole table: routes that are not in it are to go
//!          NEWROUTE, DELROUTE               what has changed since
//!          MARK at                          all of the table up to its change `at` was told
//! agent    STATE number, at, digest ...     what is in force, behind each MARK, and each second
//! ```
//!
//! The way between them is a stream without a beginning: a virtio port keeps what the last agent, or the last
//! daemon, has left in it. So an agent makes a number up, and drops all bytes before the START with this
//! number; the daemon takes what says another number than the last HELLO for old. Numbers are in the
//! machine's own order: both ends are on one machine.

use libc::{IFLA_ADDRESS, IFLA_IFNAME};
use sidecore_engine::host::netlink::{attributes, bytes, kind, word, Builder, Malformed, Message};
use sidecore_engine::packet::Mac;
use sidecore_engine::router::Change;
use sidecore_engine::util::slice::behind;

use crate::fpm::frame;
use crate::kernel::text;
use crate::say::said;

/// Kinds of messages that the kernel has not.
mod own {
    pub const HELLO: u16 = 0x7300;
    pub const START: u16 = 0x7301;
    pub const BEGIN: u16 = 0x7302;
    pub const END: u16 = 0x7303;
    pub const MARK: u16 = 0x7304;
    pub const STATE: u16 = 0x7305;
}

/// What HELLO and START say before their number.
const MAGIC: [u8; 8] = *b"sidecore";

/// What an agent says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentState {
    /// The number of its HELLO.
    pub number: u64,
    /// The last MARK.
    pub at: u64,
    /// The number of the table that is in force ([`sidecore_engine::router::digest()`]).
    pub digest: u64,
    /// Routes in force.
    pub routes: u32,
    /// Routes that its kernel has refused.
    pub failed: u32,
}

/// One of the router's ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireLink {
    /// By which number routes name it.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Its station address: the back-end has it at the same interface.
    pub mac: Mac,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the module's documentation tells what each is")]
pub enum Said {
    Hello(u64),
    Start(u64),
    Link(WireLink),
    Begin,
    Route(Change),
    End,
    Mark(u64),
    State(AgentState),
}

impl Said {
    /// What `message` says. `None`: nothing that is known.
    ///
    /// # Errors
    /// Its lengths contradict each other.
    pub fn read(message: Message<'_>) -> Result<Option<Said>, Malformed> {
        let number = |at| bytes::<8>(message.body, at).map(u64::from_ne_bytes);
        let magic =
            || bytes::<8>(message.body, 0).and_then(|it| (it == MAGIC).then_some(()).ok_or(Malformed));
        Ok(Some(match message.kind {
            own::HELLO => magic().and_then(|()| Ok(Said::Hello(number(8)?)))?,
            own::START => magic().and_then(|()| Ok(Said::Start(number(8)?)))?,
            own::BEGIN => Said::Begin,
            own::END => Said::End,
            own::MARK => Said::Mark(number(0)?),
            own::STATE => Said::State(AgentState {
                number: number(0)?,
                at: number(8)?,
                digest: number(16)?,
                routes: word(message.body, 24)?,
                failed: word(message.body, 28)?,
            }),
            kind::NEWLINK => Said::Link(link(message)?),
            _ => return Ok(said(message)?.map(|(change, _)| Said::Route(change))),
        }))
    }

    /// Its frame; routes are written by [`crate::tell`].
    #[must_use]
    pub fn frame(&self) -> Vec<u8> {
        let with = |kind, body: &[&[u8]]| frame(&Builder::new(kind, 0, 0, &body.concat()).end());
        match self {
            Said::Hello(number) => with(own::HELLO, &[&MAGIC, &number.to_ne_bytes()]),
            Said::Start(number) => with(own::START, &[&MAGIC, &number.to_ne_bytes()]),
            Said::Begin => with(own::BEGIN, &[]),
            Said::End => with(own::END, &[]),
            Said::Mark(at) => with(own::MARK, &[&at.to_ne_bytes()]),
            Said::State(AgentState { number, at, digest, routes, failed }) => {
                let numbers = [number, at, digest].map(|it| it.to_ne_bytes());
                let counts = [routes, failed].map(|it| it.to_ne_bytes());
                with(own::STATE, &[numbers.as_flattened(), counts.as_flattened()])
            }
            Said::Link(WireLink { number, name, mac }) => {
                let fixed = [&[0; 4][..], &number.to_ne_bytes(), &[0; 8]].concat();
                let message = Builder::new(kind::NEWLINK, 0, 0, &fixed).with(IFLA_IFNAME, name.as_bytes());
                frame(&message.with(IFLA_ADDRESS, &mac.0).end())
            }
            Said::Route(_) => Vec::new(),
        }
    }
}

fn link(message: Message<'_>) -> Result<WireLink, Malformed> {
    let (mut name, mut mac) = (None, None);
    for attribute in attributes(behind(message.body, 16)) {
        match attribute? {
            (IFLA_IFNAME, value) => name = Some(String::from_utf8_lossy(text(value)).into_owned()),
            (IFLA_ADDRESS, value) => mac = Some(Mac(bytes(value, 0)?)),
            _ => {}
        }
    }
    let (Some(name), Some(mac)) = (name, mac) else { return Err(Malformed) };
    Ok(WireLink { number: word(message.body, 4)?, name, mac })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fpm::Stream;

    #[test]
    fn what_is_said_is_what_is_read() {
        let state = AgentState { number: 1, at: 2, digest: 3, routes: 4, failed: 5 };
        let link = WireLink { number: 3, name: "r0".to_owned(), mac: Mac([2, 0, 0, 0, 0, 1]) };
        let all = [
            Said::Hello(7),
            Said::Start(8),
            Said::Link(link),
            Said::Begin,
            Said::End,
            Said::Mark(9),
            Said::State(state),
        ];
        let (mut stream, mut got) = (Stream::default(), Vec::new());
        let bytes: Vec<u8> = all.iter().flat_map(Said::frame).collect();
        stream.take(&bytes, |message| got.extend(message.and_then(Said::read).unwrap())).unwrap();
        assert_eq!(got, all);
    }

    #[test]
    fn a_hello_of_another_program_is_none() {
        let hello = Builder::new(own::HELLO, 0, 0, &[0; 16]).end();
        let mut got = Vec::new();
        Stream::default().take(&frame(&hello), |message| got.push(message.and_then(Said::read))).unwrap();
        assert_eq!(got, [Err(Malformed)]);
    }
}
