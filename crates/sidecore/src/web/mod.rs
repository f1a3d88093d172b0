//! `web`: a page in a process of its own, which is a client of the control socket like any other.
//!
//! | file | what |
//! |---|---|
//! | `guard` | who may ask: token, `Host`, `Origin`, and what browsers are told of safety |
//! | `poll` | asks the daemon once in a second, and follows its events |
//! | `history` | what that found in the last hour, in bounded memory |
//! | `stream` | sends pages that are open each new second and event |
//! | `ask` | what the page asks for beyond that, and with `--write` what it changes |
//!
//! The page is in `page/`: modules as browsers take them, and uPlot 1.6.32 (`npm pack uplot`;
//! `dist/uPlot.iife.min.js`), whose licence is beside it. A page that is slow, or sleeps, delays no other
//! one: it has a place in the history, and gets the newest second when it reads again.

mod ask;
mod guard;
mod history;
mod poll;
mod stream;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::CONTENT_TYPE;
use axum::routing::{get, post};
use axum::serve::Listener;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::SocketType;
use sidecore_engine::sandbox::open::socket::{listen_at, SocketFile, SocketSpec};
use tokio::sync::Semaphore;

use self::guard::Guard;
use self::history::History;
use crate::cli::{OfDaemon, WebArgs};
use crate::client::{told_to_end, Remote};
use crate::{print, Outcome};

/// Connections at once. A browser has six at most.
const CONNECTIONS: usize = 256;
/// Connections that may wait.
const BACKLOG: i32 = 128;
/// How long a connection may be open before a request's head is there.
const HEAD: Duration = Duration::from_secs(10);
/// Bytes that HTTP keeps of a connection's head.
const BUFFER: usize = 16 << 10;

/// Where a page is to be had.
#[derive(Clone, Debug)]
pub enum Listen {
    Unix(PathBuf),
    /// An address of the loopback interface.
    Tcp(SocketAddr),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err("unix: lacks the path of the socket".to_owned()),
                path => Ok(Listen::Unix(path.into())),
            };
        }
        let address = text.replace("localhost:", "127.0.0.1:").parse::<SocketAddr>();
        match address.map_err(|_| "allowed: 127.0.0.1:PORT, [::1]:PORT, or unix:PATH".to_owned())? {
            address if address.ip().is_loopback() => Ok(Listen::Tcp(address)),
            _ => Err("only this host may connect, for what passes is not encrypted; from elsewhere use ssh -L PORT:127.0.0.1:PORT, or \
                a reverse proxy with --listen unix:PATH"
                .to_owned()),
        }
    }
}

/// What handlers share.
#[derive(Clone)]
struct Page {
    guard: Arc<Guard>,
    history: Arc<History>,
    remote: Remote,
}

/// `web`.
pub fn run(args: &OfDaemon<WebArgs>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| format!("cannot start: {e}"))?.block_on(serve(args))
}

async fn serve(args: &OfDaemon<WebArgs>) -> Outcome {
    let socket = args.control.path();
    let history = Arc::new(History::new());
    let page =
        |guard| Page { guard: Arc::new(guard), history: Arc::clone(&history), remote: Remote::new(&socket) };
    let ended = told_to_end()?;
    tokio::spawn(poll::samples(Arc::clone(&history), Remote::new(&socket)));
    tokio::spawn(poll::events(Arc::clone(&history), Remote::new(&socket)));
    let mut file = None;
    let serving = async {
        match &args.listen {
            Listen::Tcp(address) => {
                let fail = |e| {
                    format!(
                        "cannot listen on {address}: {e}; --listen 127.0.0.1:0 takes any port that is free"
                    )
                };
                let listener = tokio::net::TcpListener::bind(address).await.map_err(fail)?;
                let address = listener.local_addr().map_err(fail)?;
                let guard = Guard::new(Some(address.ip()), args.write)?;
                print(&format!("http://{address}/?token={}\n", guard.token))?;
                answer(listener, router(page(guard))).await
            }
            Listen::Unix(path) => {
                let (kind, backlog) = (SocketType::STREAM, BACKLOG);
                // Its owner alone may connect, until the operator gives it to a proxy.
                let wanted =
                    SocketSpec { path: path.clone(), kind, mode: Some(0o600), owner: (None, None), backlog };
                let (listener, made) = listen_at(&wanted).map_err(|e| e.to_string())?;
                file = Some(made);
                let fail = |e| format!("cannot listen on {}: {e}", path.display());
                let listener = tokio::net::UnixListener::from_std(listener.into()).map_err(fail)?;
                print(&format!("unix:{}\n", path.display()))?;
                answer(listener, router(page(Guard::new(None, args.write)?))).await
            }
        }
    };
    let outcome = tokio::select! {
        outcome = serving => outcome,
        () = ended => Ok(()),
    };
    file.iter().for_each(SocketFile::remove);
    outcome
}

/// Answers until the process ends.
async fn answer(mut listener: impl Listener, router: Router) -> Outcome {
    let (places, mut said) = (Arc::new(Semaphore::new(CONNECTIONS)), false);
    let mut http = http1::Builder::new();
    // Who has no token sends a head once, and in time.
    http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(BUFFER);
    loop {
        let (stream, _) = listener.accept().await;
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            if !std::mem::replace(&mut said, true) {
                eprintln!("sidecore: {CONNECTIONS} connections are open: more are closed at once. This is said once; `ss -tnp` shows whose they are");
            }
            continue;
        };
        let talk = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
        tokio::spawn(async move {
            // It fails where the other side hangs up.
            let _ = talk.await;
            drop(place);
        });
    }
}

const JS: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";

/// The files of the page.
const FILES: &[(&str, &str, &str)] = &[
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/main.js", JS, include_str!("page/main.js")),
    ("/live.js", JS, include_str!("page/live.js")),
    ("/dom.js", JS, include_str!("page/dom.js")),
    ("/topology.js", JS, include_str!("page/topology.js")),
    ("/port.js", JS, include_str!("page/port.js")),
    ("/cores.js", JS, include_str!("page/cores.js")),
    ("/why.js", JS, include_str!("page/why.js")),
    ("/chart.js", JS, include_str!("page/chart.js")),
    ("/page.css", CSS, include_str!("page/page.css")),
    ("/uplot.js", JS, include_str!("page/uplot.js")),
    ("/uplot.css", CSS, include_str!("page/uplot.css")),
    ("/uplot.LICENSE", "text/plain; charset=utf-8", include_str!("page/uplot.LICENSE")),
];

fn router(page: Page) -> Router {
    let files = FILES.iter().fold(Router::new(), |router, (path, kind, text)| {
        router.route(path, get(move || async move { ([(CONTENT_TYPE, *kind)], *text) }))
    });
    files
        .route("/api/session", get(ask::session))
        .route("/api/live", get(stream::live))
        .route("/api/history", get(ask::history))
        .route("/api/at", get(ask::at))
        .route("/api/v1/{*view}", get(ask::view))
        .route("/api/doctor/{port}", get(ask::doctor))
        .route("/api/explain/{port}", post(ask::explain))
        .route("/api/trace/{port}", get(ask::trace))
        .route("/api/capture/{port}", get(ask::capture))
        .route("/api/set/{port}", post(ask::set))
        .route("/api/drain/{group}/{member}", post(ask::drain))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&page.guard), guard::check))
        .with_state(page)
}

#[cfg(test)]
mod tests {
    use super::Listen;

    #[test]
    fn other_hosts_may_not_connect() {
        for here in ["127.0.0.1:80", "127.7.0.1:0", "[::1]:8484", "localhost:8484", "unix:/run/x"] {
            assert!(here.parse::<Listen>().is_ok(), "{here}");
        }
        for (elsewhere, why) in [
            ("0.0.0.0:80", "ssh -L"),
            ("[::]:80", "ssh -L"),
            ("192.0.2.1:80", "unix:PATH"),
            ("8484", "allowed"),
            ("unix:", "path"),
        ] {
            let said = elsewhere.parse::<Listen>().unwrap_err();
            assert!(said.contains(why), "{elsewhere}: {said}");
        }
    }
}
