//! HTTP over the control socket, one request at a time.

use std::future::Future;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::Serialize;
use tokio::signal::unix::{signal, SignalKind};

use crate::api::Refused;

/// How long an answer may take that only shows something. Changes may have to wait for hosts and VMMs.
const ANSWER: Duration = Duration::from_secs(5);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// No daemon listens.
    #[error("no daemon listens on {}; start `sidecore run`, or name its socket with --socket", .0.display())]
    NotRunning(PathBuf),
    /// A daemon listens, and does not answer.
    #[error("{who} has not answered within {} s{why}", ANSWER.as_secs())]
    Silent {
        /// Which process.
        who: String,
        /// Why, as far as that can be seen.
        why: &'static str,
    },
    /// The daemon said no.
    #[error("{0}")]
    Refused(String),
    /// The conversation failed.
    #[error("{0}")]
    Broken(String),
}

impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        failure.to_string()
    }
}

/// A daemon, by its socket.
pub struct Client {
    remote: Remote,
    runtime: tokio::runtime::Runtime,
}

/// A daemon, by its socket, for programs that wait for several things at once.
#[derive(Clone)]
pub struct Remote {
    socket: PathBuf,
}

/// A connection to it, for one request after the other.
pub struct Connection<'r> {
    remote: &'r Remote,
    sender: SendRequest<Full<Bytes>>,
}

/// Ends when a signal (SIGINT, SIGTERM) wants that the process ends. From the call on they do not end it
/// otherwise.
pub fn told_to_end() -> Result<impl Future<Output = ()>, String> {
    let on = |kind| signal(kind).map_err(|e| format!("cannot watch signals: {e}"));
    let (mut int, mut term) = (on(SignalKind::interrupt())?, on(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
        }
    })
}

impl Client {
    /// The daemon behind `socket`. Nothing is sent yet.
    pub fn new(socket: &Path) -> Result<Client, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Failure::Broken(format!("cannot start: {e}")))?;
        Ok(Client { remote: Remote::new(socket), runtime })
    }

    /// Asks for `path`.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.call(Method::GET, path, Bytes::new())
    }

    /// Sends `body` to `path`.
    pub fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(|e| Failure::Broken(format!("cannot ask: {e}")))?;
        self.call(method, path, body.into())
    }

    /// Asks for `path` to be deleted.
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.call(Method::DELETE, path, Bytes::new())
    }

    /// Hands the body of the answer to `path` to `read`.
    pub fn stream<F: Future<Output = Result<(), String>>>(
        &self,
        path: &str,
        read: impl FnOnce(Incoming) -> F,
    ) -> Result<(), String> {
        self.runtime.block_on(async {
            let response = self.remote.response(Method::GET, path, Bytes::new()).await?;
            read(response.into_body()).await
        })
    }

    fn call<T: DeserializeOwned>(&self, method: Method, path: &str, body: Bytes) -> Result<T, Failure> {
        self.runtime.block_on(self.remote.call(method, path, body))
    }
}

impl Remote {
    /// The daemon behind `socket`. Nothing is sent yet.
    pub fn new(socket: &Path) -> Remote {
        Remote { socket: socket.to_owned() }
    }

    /// The answer to one request.
    pub async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, Failure> {
        let limit = if method == Method::GET { ANSWER } else { Duration::MAX };
        let whole =
            async { whole(self.response(method, path, body).await?).await.map_err(|e| self.broken(&e)) };
        match tokio::time::timeout(limit, whole).await {
            Ok(answer) => serde_json::from_slice(&answer?).map_err(|e| self.broken(&e)),
            Err(_) => Err(self.silent()),
        }
    }

    /// Connects.
    pub async fn connect(&self) -> Result<Connection<'_>, Failure> {
        let stream = tokio::net::UnixStream::connect(&self.socket).await.map_err(|e| match e.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Failure::NotRunning(self.socket.clone()),
            _ => self.broken(&e),
        })?;
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| self.broken(&e))?;
        // Its errors reach the sender.
        tokio::spawn(connection);
        Ok(Connection { remote: self, sender })
    }

    /// The response to a request, if it is a success.
    pub async fn response(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, Failure> {
        let response = self.connect().await?.request(method, path, body).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = whole(response).await.map_err(|e| self.broken(&e))?;
        let text = serde_json::from_slice::<Refused>(&body).map(|refused| refused.error);
        Err(Failure::Refused(text.unwrap_or_else(|_| format!("the daemon answered {status}"))))
    }

    /// The daemon does not answer: which process that is, and whether it was stopped.
    fn silent(&self) -> Failure {
        let peer = std::os::unix::net::UnixStream::connect(&self.socket);
        let peer = peer.and_then(|stream| Ok(rustix::net::sockopt::socket_peercred(&stream)?.pid));
        let Ok(pid) = peer.map(|pid| pid.as_raw_nonzero().get().unsigned_abs()) else {
            return Failure::Silent { who: format!("the daemon at {}", self.socket.display()), why: "" };
        };
        // The socket is one that the broker has made for the daemon, which started it.
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let broker = line.split(|byte| *byte == 0).nth(1) == Some(&b"broker"[..]);
        let pid = stat(pid).filter(|_| broker).map_or(pid, |(_, parent)| parent);
        let stopped = stat(pid).is_some_and(|(state, _)| matches!(state.as_str(), "T" | "t"));
        let why = if stopped {
            ": it is stopped (SIGSTOP, or a debugger has it); kill -CONT lets it go on"
        } else {
            ""
        };
        Failure::Silent { who: format!("the daemon (process {pid})"), why }
    }

    fn broken(&self, cause: &dyn std::error::Error) -> Failure {
        let mut text = format!("control socket {}: {cause}", self.socket.display());
        let mut next = cause.source();
        while let Some(cause) = next {
            text.push_str(&format!(": {cause}"));
            next = cause.source();
        }
        Failure::Broken(text)
    }
}

impl Connection<'_> {
    /// The response to a request, whatever its status.
    pub async fn request(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, Failure> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "sidecore")
            .header("content-type", "application/json")
            .body(Full::new(body))
            .map_err(|e| self.remote.broken(&e))?;
        self.sender.send_request(request).await.map_err(|e| self.remote.broken(&e))
    }

    /// The answer to `path`, if it comes in time and is a success.
    pub async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, Failure> {
        let remote = self.remote;
        let whole = async {
            let response = self.request(Method::GET, path, Bytes::new()).await?;
            let status = response.status();
            let body = whole(response).await.map_err(|e| remote.broken(&e))?;
            match status.is_success() {
                true => serde_json::from_slice(&body).map_err(|e| remote.broken(&e)),
                false => Err(Failure::Refused(format!("the daemon answered {status} to {path}"))),
            }
        };
        tokio::time::timeout(ANSWER, whole).await.unwrap_or_else(|_| Err(remote.silent()))
    }
}

async fn whole(response: Response<Incoming>) -> Result<Bytes, hyper::Error> {
    response.into_body().collect().await.map(|body| body.to_bytes())
}

/// State and parent of process `pid`: number, name in brackets, state, parent (proc(5)).
fn stat(pid: u32) -> Option<(String, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = stat.rsplit(") ").next()?.split(' ');
    Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
}

/// `name` as one segment of a path.
pub fn segment(name: &str) -> String {
    name.bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => char::from(b).to_string(),
            b'.' if name.bytes().any(|b| b != b'.') => ".".to_owned(),
            _ => format!("%{b:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_stay_in_their_segment() {
        assert_eq!(
            ["web-1.a", "a/b", "..", "ü"].map(super::segment),
            ["web-1.a", "a%2Fb", "%2E%2E", "%C3%BC"]
        );
    }
}
