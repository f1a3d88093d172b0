//! Addresses on the command line: MAC addresses, and ranges of IPv4 addresses and UDP ports.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// A MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// A locally administered, unicast address that follows from `name`.
    pub fn of(name: &str) -> Mac {
        let mix = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        let [a, b, c, d] = name.bytes().fold(0x811c_9dc5, mix).to_be_bytes();
        Mac([0x02, 0x73, a, b, c, d])
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Mac, String> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        let digits = |part: &&str| part.len() <= 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
        let two = |part: &str| Some(part).filter(digits).and_then(|part| u8::from_str_radix(part, 16).ok());
        let good = bytes.iter_mut().all(|byte| parts.next().and_then(two).map(|b| *byte = b).is_some());
        let whole = good && parts.next().is_none();
        whole
            .then_some(Mac(bytes))
            .ok_or_else(|| format!("{text:?} is not a MAC address like 02:00:00:00:00:01"))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A range of addresses and a range of ports, both with their ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// First and last address.
    pub ip: [u32; 2],
    /// First and last port.
    pub port: [u16; 2],
}

/// The port if none is given.
const PORT: u16 = 1234;

impl Endpoints {
    /// Combinations of address and port.
    #[inline]
    pub fn combinations(&self) -> u64 {
        (u64::from(self.ip[1] - self.ip[0]) + 1) * (u64::from(self.port[1] - self.port[0]) + 1)
    }

    /// Combination `n`: ports take turns first.
    #[inline]
    pub fn get(&self, n: u64) -> (u32, u16) {
        let ports = u64::from(self.port[1] - self.port[0]) + 1;
        let ip = u32::try_from(n / ports).unwrap_or(u32::MAX);
        let port = u16::try_from(n % ports).unwrap_or(u16::MAX);
        (self.ip[0].wrapping_add(ip), self.port[0].wrapping_add(port))
    }
}

impl FromStr for Endpoints {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoints, String> {
        let bad = |why: &str| {
            format!("{text:?}: {why}; write IP, IP:PORT or IP:PORT-IP:PORT, as 10.0.0.1:1000-10.0.0.9:2000")
        };
        let one = |part: &str| -> Result<(u32, Option<u16>), String> {
            let (ip, port) = part.split_once(':').map_or((part, None), |(ip, port)| (ip, Some(port)));
            let ip = ip.parse::<Ipv4Addr>().map_err(|_| bad("not an IPv4 address"))?;
            let port = port.map(|p| p.parse().map_err(|_| bad("not a port"))).transpose()?;
            Ok((u32::from(ip), port))
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let ((ip0, port0), (ip1, port1)) = (one(first)?, one(last)?);
        let port0 = port0.unwrap_or(PORT);
        let port1 = port1.unwrap_or(port0);
        if ip1 < ip0 || port1 < port0 {
            return Err(bad("the end is before the start"));
        }
        Ok(Endpoints { ip: [ip0, ip1], port: [port0, port1] })
    }
}

impl fmt::Display for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |i: usize| format!("{}:{}", Ipv4Addr::from(self.ip[i]), self.port[i]);
        match self.combinations() {
            1 => write!(f, "{}", part(0)),
            _ => write!(f, "{}-{}", part(0), part(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!("02:0:a:Ff:1:10".parse(), Ok(Mac([2, 0, 10, 255, 1, 16])));
        for bad in ["", "02:00:00:00:00", "02:00:00:00:00:00:00", "02:00:00:00:00:100", "02:00:00:00:00:+1"] {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
        assert_ne!(Mac::of("a"), Mac::of("b"));
        assert_eq!(Mac::of("a").0[0] & 3, 2);
    }

    #[test]
    fn ranges() {
        let read = |text: &str| text.parse::<Endpoints>();
        let one = read("10.0.0.1").unwrap();
        assert_eq!(
            (one.combinations(), one.get(0), one.to_string()),
            (1, (0x0a00_0001, 1234), "10.0.0.1:1234".into())
        );
        let range = read("10.0.0.1:5-10.0.0.2:6").unwrap();
        let all: Vec<_> = (0..range.combinations()).map(|n| range.get(n)).collect();
        assert_eq!(all, [(0x0a00_0001, 5), (0x0a00_0001, 6), (0x0a00_0002, 5), (0x0a00_0002, 6)]);
        assert_eq!(range.to_string(), "10.0.0.1:5-10.0.0.2:6");
        assert_eq!(read("1.1.1.1-1.1.1.4").unwrap().combinations(), 4);
        assert_eq!(read("0.0.0.0:0-255.255.255.255:65535").unwrap().combinations(), 1 << 48);
        for bad in ["", "x", "1.1.1.1:x", "1.1.1.2-1.1.1.1", "1.1.1.1:2-1.1.1.1:1", "1.1.1.1:65536"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
