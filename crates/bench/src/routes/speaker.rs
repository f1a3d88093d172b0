//! A BGP neighbour that says what it is told (RFC 4271): it opens a session, announces and withdraws
//! prefixes, and hears nothing.
//!
//! It offers no capabilities, so numbers of autonomous systems have two bytes, and a hold time of zero, so
//! neither side sends keepalives after the first ones (§4.2).

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};

use crate::prelude::*;

/// Numbers of messages (§4.1).
const OPEN: u8 = 1;
const UPDATE: u8 = 2;
const NOTIFICATION: u8 = 3;
const KEEPALIVE: u8 = 4;
/// Bytes of a message's header, and of the longest message.
const HEADER: usize = 19;
const LONGEST: usize = 4096;
/// Our autonomous system.
pub const OURS: u16 = 65001;
/// How long the other side may take to open the session.
const PATIENCE: Duration = Duration::from_secs(30);

/// A prefix by its number: networks of 256 addresses from 20.0.0.0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix(pub u32);

impl Prefix {
    /// Bits of its network.
    pub const LEN: u8 = 24;

    /// Its first address.
    pub fn network(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(0x1400_0000 + (self.0 << 8))
    }

    /// As it stands in an UPDATE message (§4.3).
    fn bytes(self) -> [u8; 4] {
        let [a, b, c, _] = self.network().octets();
        [Prefix::LEN, a, b, c]
    }
}

/// The neighbour.
pub struct Speaker(TcpStream);

impl Speaker {
    /// Opens a session with the router at `to`, from this thread's namespace, as `id`.
    ///
    /// # Errors
    /// No speaker answers there, or it refuses.
    pub fn connect(to: SocketAddrV4, id: Ipv4Addr) -> Result<Speaker> {
        let mut last = String::new();
        // It has its address, or listens, soon.
        let connect = || Ok(Speaker::try_connect(to, id).map_err(|why| last = why).ok());
        let opened = until("a session is open", PATIENCE, Duration::from_millis(100), connect);
        opened.map_err(|late| format!("BGP with {to}: {late}: {last}"))
    }

    fn try_connect(to: SocketAddrV4, id: Ipv4Addr) -> Result<Speaker> {
        let stream = TcpStream::connect_timeout(&to.into(), Duration::from_secs(2)).map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).map_err(text)?;
        let mut speaker = Speaker(stream);
        // Version, autonomous system, hold time, identifier, no parameters (§4.2).
        let open = [&[4][..], &OURS.to_be_bytes(), &[0, 0], &id.octets(), &[0]].concat();
        speaker.send(OPEN, &open)?;
        speaker.expect(OPEN)?;
        speaker.send(KEEPALIVE, &[])?;
        speaker.expect(KEEPALIVE)?;
        speaker.drain()?;
        Ok(speaker)
    }

    fn send(&mut self, kind: u8, body: &[u8]) -> Result<()> {
        self.0.write_all(&message(kind, body)).map_err(|e| format!("the BGP session: {e}"))
    }

    /// Reads one message, which is to be of `kind`.
    fn expect(&mut self, kind: u8) -> Result<()> {
        let mut header = [0; HEADER];
        self.0.read_exact(&mut header).map_err(text)?;
        let len = usize::from(u16::from_be_bytes([header[16], header[17]]));
        let mut body = vec![0; len.saturating_sub(HEADER).min(LONGEST)];
        self.0.read_exact(&mut body).map_err(text)?;
        match header[18] {
            it if it == kind => Ok(()),
            NOTIFICATION => Err(format!("refused with {body:?}")),
            it => Err(format!("message {it} instead of {kind}")),
        }
    }

    /// Has a thread read what the other side says, so that it can go on.
    fn drain(&self) -> Result<()> {
        let mut stream = self.0.try_clone().map_err(text)?;
        stream.set_read_timeout(None).map_err(text)?;
        // It ends with the session.
        std::thread::spawn(move || while matches!(stream.read(&mut [0; LONGEST]), Ok(1..)) {});
        Ok(())
    }

    /// Announces these prefixes by way of `gateway`.
    ///
    /// # Errors
    /// The session has ended.
    pub fn announce(&mut self, prefixes: &[Prefix], gateway: Ipv4Addr) -> Result<()> {
        // ORIGIN is IGP, AS_PATH a sequence of us alone, NEXT_HOP (§4.3, §5.1).
        let path = OURS.to_be_bytes();
        let attributes =
            [&[0x40, 1, 1, 0, 0x40, 2, 4, 2, 1][..], &path, &[0x40, 3, 4], &gateway.octets()].concat();
        let len = u16::try_from(attributes.len()).unwrap_or(0).to_be_bytes();
        let head = [&[0, 0][..], &len, &attributes].concat();
        self.all(prefixes, head.len(), |list| [&head[..], list].concat())
    }

    /// Withdraws them.
    ///
    /// # Errors
    /// As of [`Speaker::announce`].
    pub fn withdraw(&mut self, prefixes: &[Prefix]) -> Result<()> {
        self.all(prefixes, 4, |list| {
            let len = u16::try_from(list.len()).unwrap_or(0).to_be_bytes();
            [&len[..], list, &[0, 0]].concat()
        })
    }

    fn all(&mut self, prefixes: &[Prefix], rest: usize, body: impl Fn(&[u8]) -> Vec<u8>) -> Result<()> {
        for some in prefixes.chunks((LONGEST - HEADER - rest) / 4) {
            let list: Vec<u8> = some.iter().flat_map(|prefix| prefix.bytes()).collect();
            self.send(UPDATE, &body(&list))?;
        }
        Ok(())
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        // Its reader ends, too; fails if the other side was faster.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

/// A message with its header (§4.1).
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(HEADER + body.len()).unwrap_or(0).to_be_bytes();
    [&[0xff; 16][..], &len, &[kind], body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_the_rfc_has_them() {
        let keepalive = message(KEEPALIVE, &[]);
        assert_eq!((keepalive.len(), &keepalive[16..]), (19, &[0, 19, 4][..]));
        assert_eq!(Prefix(0x01_0203).bytes(), [24, 21, 2, 3]);
        assert_eq!(Prefix(1).network(), Ipv4Addr::new(20, 0, 1, 0));
    }
}
