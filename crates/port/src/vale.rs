//! What is asked of the daemon beyond one port: ports on demand, and `vale-ctl`'s verbs
//! (`sidecore_abi::vale`).

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};

use sidecore_abi::vale::{text, Ask, Reply, Verb, OPERATORS, REPLY, SOCKET};

use crate::attach::{directory, PATIENCE};

/// Why a request was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ValeError {
    /// No daemon listens there, or we may not connect.
    #[error("no daemon takes requests at \"{}\" ({source}); is it running, and may you write to that socket?", path.display())]
    NotThere {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The daemon said no.
    #[error("{text}")]
    Refused {
        /// Why, for programs.
        errno: u32,
        /// Why, for people.
        text: String,
    },
    /// The conversation broke off or makes no sense.
    #[error("the conversation with the daemon failed: {0}")]
    Broken(io::Error),
}

/// What the daemon did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The port.
    pub name: String,
    /// Number of its switch.
    pub switch: u32,
    /// Its number on the switch.
    pub port: u32,
}

/// A connection to the daemon. Ports that it had made on demand are there for as long as it is open.
#[derive(Debug)]
pub struct Vale {
    socket: UnixStream,
    /// The folder of the daemon's sockets.
    folder: PathBuf,
}

/// The socket of the daemon that the environment names.
pub fn socket_path() -> PathBuf {
    directory().join(SOCKET)
}

impl Vale {
    /// Connects to the daemon whose socket is at `path`.
    ///
    /// # Errors
    /// No daemon listens there, or we may not connect.
    pub fn connect(path: &Path) -> Result<Vale, ValeError> {
        let missing = |source| ValeError::NotThere { path: path.to_owned(), source };
        let socket = UnixStream::connect(path).map_err(missing)?;
        socket.set_read_timeout(Some(PATIENCE)).map_err(ValeError::Broken)?;
        socket.set_write_timeout(Some(PATIENCE)).map_err(ValeError::Broken)?;
        let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
        Ok(Vale { socket, folder })
    }

    /// Asks for something.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn ask(&mut self, ask: &Ask) -> Result<Done, ValeError> {
        let mut bytes = [0; REPLY];
        self.name_interface(ask);
        self.socket.write_all(&ask.to_bytes()).map_err(ValeError::Broken)?;
        self.socket.read_exact(&mut bytes).map_err(ValeError::Broken)?;
        let strange = || ValeError::Broken(io::Error::other("the daemon speaks another language or version"));
        let reply = Reply::from_bytes(&bytes).ok_or_else(strange)?;
        if reply.errno != 0 {
            let text = text(&reply.text).filter(|text| !text.is_empty()).unwrap_or("refused").to_owned();
            return Err(ValeError::Refused { errno: reply.errno, text });
        }
        let name = text(&reply.name).ok_or_else(strange)?.to_owned();
        Ok(Done { name, switch: reply.switch, port: reply.port })
    }

    /// Tells the daemon's broker of the interface that `ask` may lead to: only operators may, and the daemon
    /// itself is none.
    fn name_interface(&self, ask: &Ask) {
        let Some(name) = text(&ask.name) else { return };
        let host = name.strip_suffix('^');
        let leads = ask.verb == Verb::Attach as u32 || ask.verb == Verb::Open as u32 && host.is_some();
        let short = host.unwrap_or(name).rsplit(':').next().unwrap_or(name);
        // What cannot be told the daemon's answer tells of.
        let Some(socket) = UnixDatagram::unbound().ok().filter(|_| leads) else { return };
        if socket.set_write_timeout(Some(PATIENCE)).is_ok() {
            let _ = socket.send_to(format!("i{short}").as_bytes(), self.folder.join(OPERATORS));
        }
    }

    /// Has port `name` be there; the ring port by whose name it is attached to.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn open(&mut self, name: &str) -> Result<String, ValeError> {
        Ok(self.ask(&Ask::new(Verb::Open, name))?.name)
    }
}

/// Whether `name` is one of VALE's, whose ports are made on demand.
pub fn is_vale(name: &str) -> bool {
    name.starts_with("vale") && name.contains(':') && !name.contains('/')
}
