//! Accepts connections at the control socket and gives each to HTTP, within the bounds of
//! [`slots`](super::slots).
//!
//! A request reaches its handler when it is there whole; until then, and again after its answer, its
//! connection owes one. Once in a second overdue connections are dropped: that ends a capture, too.

use std::convert::Infallible;
use std::io;
use std::pin::{pin, Pin};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{header, StatusCode};
use axum::response::IntoResponse;
use axum::Router;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::{service_fn, Service};
use hyper::Request;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use sidecore_engine::state::status::VERSION;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use sidecore_engine::sandbox::descriptors::hang_up;
use sidecore_engine::sandbox::open::reserve;

use super::http::Refusal;
use super::slots::{ConnectionSlots, Peer, Why, PATIENCE};
use crate::api::Refused;

/// The largest body of a request.
pub const BODY: usize = 1 << 20;

/// How much of one that is too large is read, so that a client that sends it before it reads gets the answer.
const DISCARD: usize = 16 << 20;

/// Most that HTTP keeps of a connection's head, and of its answer beyond the piece that is being sent.
const BUFFER: usize = 64 << 10;

/// How long nothing is accepted after an error.
const PAUSE: Duration = Duration::from_millis(100);

/// How long root, or the daemon's own user, waits for a slot when all connections are being answered.
const WAIT: Duration = Duration::from_secs(5);

/// How often the log says that there were refusals.
const SAY: Duration = Duration::from_secs(10);

/// How often each refusal happened.
#[derive(Default)]
pub struct Tally {
    counts: [AtomicU64; Why::ALL.len()],
    said: Mutex<(Option<Instant>, u64)>,
    open: AtomicU64,
}

impl Tally {
    /// Counts one, and says so now and then.
    pub fn count(&self, why: Why, details: &str) {
        let at = why as usize;
        self.counts[at].fetch_add(1, Relaxed);
        if why == Why::Idle {
            // What a client may well do.
            debug!("a connection to the control socket was ended: {why}");
            return;
        }
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if said.0.is_some_and(|last| now.duration_since(last) < SAY) {
            said.1 += 1;
            return;
        }
        let unsaid = std::mem::take(&mut said.1);
        said.0 = Some(now);
        drop(said);
        warn!(
            reason = Why::ALL[at].1,
            unsaid, "a connection to the control socket, or a request, was refused: {why}{details}"
        );
    }

    /// What `/metrics` says of it.
    pub fn refused(&self) -> Vec<(&'static str, u64)> {
        Why::ALL.iter().map(|(why, name)| (*name, self.counts[*why as usize].load(Relaxed))).collect()
    }

    /// Connections that are open.
    pub fn open(&self) -> u64 {
        self.open.load(Relaxed)
    }
}

type Slots = ConnectionSlots<oneshot::Sender<()>>;

/// A connection's slot.
#[derive(Clone)]
struct Seat {
    slots: Arc<Mutex<Slots>>,
    number: u64,
}

impl Seat {
    fn slots(&self) -> MutexGuard<'_, Slots> {
        lock(&self.slots)
    }
}

fn lock(slots: &Mutex<Slots>) -> MutexGuard<'_, Slots> {
    slots.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves `app` at `listener` until the sender of `stopped` is gone; then what is under way ends.
pub async fn serve(listener: UnixListener, app: Router, tally: Arc<Tally>, mut stopped: watch::Receiver<()>) {
    let app = TowerToHyperService::new(app);
    let slots: Arc<Mutex<Slots>> = Arc::new(Mutex::new(ConnectionSlots::new()));
    let mut connections = JoinSet::new();
    let mut second = tokio::time::interval(Duration::from_secs(1));
    let accepting = accept(&listener, &slots, &tally);
    let mut accepting = Box::pin(accepting);
    let ended = stopped.clone();
    let mut open = 0;
    loop {
        tokio::select! {
            // Nothing is sent: it ends with its sender.
            _ = stopped.changed() => break,
            (stream, number, end) = &mut accepting => {
                let seat = Seat { slots: Arc::clone(&slots), number };
                let talk = talk(stream, seat, app.clone(), Arc::clone(&tally), end, ended.clone());
                connections.spawn(talk);
                accepting = Box::pin(accept(&listener, &slots, &tally));
            }
            Some(_) = connections.join_next() => {}
            _ = second.tick() => sweep(&slots, &tally),
        }
        // There may be another socket beside this one.
        let before = std::mem::replace(&mut open, lock(&slots).len() as u64);
        tally.open.fetch_add(open.wrapping_sub(before), Relaxed);
    }
    drop(accepting);
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Ends what is overdue.
fn sweep(slots: &Mutex<Slots>, tally: &Tally) {
    let overdue = lock(slots).overdue(Instant::now());
    for (why, end) in overdue {
        tally.count(why, "");
        // It may have ended by itself.
        let _ = end.send(());
    }
}

/// The next connection that has a slot.
async fn accept(
    listener: &UnixListener,
    slots: &Mutex<Slots>,
    tally: &Tally,
) -> (UnixStream, u64, oneshot::Receiver<()>) {
    let own = sidecore_engine::sandbox::open::broker::maker();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(e) => {
                tally.count(Why::Accept, &format!(": {e}"));
                if reserve::turn_away(listener, &e, |client| hang_up(client)).is_some() {
                    continue;
                }
                // The connection stays, and the next `accept` would fail at once.
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let uid = stream.peer_cred().map_or(u32::MAX, |peer| peer.uid());
        let peer = Peer { uid, own: uid == 0 || uid == own };
        let come = Instant::now();
        loop {
            let waited = come.elapsed() >= WAIT;
            match enter(slots, peer, tally, if waited { Duration::ZERO } else { PATIENCE }) {
                Ok((number, end)) => return (stream, number, end),
                // Answers end. Only a user that may have all slots may hold others up meanwhile.
                Err(Why::Full) if peer.own && !waited => tokio::time::sleep(PATIENCE).await,
                Err(why) => break refuse(&stream, why, peer, tally),
            }
        }
    }
}

fn enter(
    slots: &Mutex<Slots>,
    peer: Peer,
    tally: &Tally,
    patience: Duration,
) -> Result<(u64, oneshot::Receiver<()>), Why> {
    let (end, ended) = oneshot::channel();
    let (number, old) = lock(slots).enter(peer, end, Instant::now(), patience)?;
    if let Some(old) = old {
        tally.count(Why::Displaced, &format!("; user {} connects", peer.uid));
        let _ = old.send(());
    }
    Ok((number, ended))
}

/// Says why, and hangs up.
fn refuse(stream: &UnixStream, why: Why, peer: Peer, tally: &Tally) {
    tally.count(why, &format!("; user {}", peer.uid));
    let refused = Refused { version: VERSION, error: format!("this connection is refused: {why}") };
    // A text and a number have a JSON form.
    let body = serde_json::to_string(&refused).unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    // Its buffer is empty, or it is gone.
    let _ = stream.try_write(answer.as_bytes());
}

/// A connection from its beginning to its end.
async fn talk(
    stream: UnixStream,
    seat: Seat,
    app: TowerToHyperService<Router>,
    tally: Arc<Tally>,
    mut end: oneshot::Receiver<()>,
    mut stopped: watch::Receiver<()>,
) {
    let _leave = Leave(seat.clone());
    let stream = Counted { stream: TokioIo::new(stream), seat: seat.clone() };
    let service = service_fn(|request: Request<Incoming>| {
        let (seat, app, tally) = (seat.clone(), app.clone(), Arc::clone(&tally));
        async move {
            let response = match whole(request, &tally).await {
                Ok(request) => {
                    seat.slots().asked(seat.number);
                    app.call(request).await?
                }
                Err(refusal) => refusal.into_response(),
            };
            Ok::<_, Infallible>(response.map(|body| Answer { body, seat }))
        }
    });
    let mut http = http1::Builder::new();
    // The time of heads is counted with that of bodies, by the slot.
    http.header_read_timeout(None).max_buf_size(BUFFER);
    let mut connection = pin!(http.serve_connection(stream, service));
    let mut stopping = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(e) = ended {
                    debug!("a connection to the control socket failed: {e}");
                }
                return;
            }
            _ = &mut end => return,
            _ = stopped.changed(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Reads a request to its end.
async fn whole(request: Request<Incoming>, tally: &Tally) -> Result<Request<Body>, Refusal> {
    let (head, mut body) = request.into_parts();
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut length = 0_usize;
    let mut bytes = Vec::new();
    // A client that asks first whether to send the body need not send it.
    let asks = announced > BODY && head.headers.contains_key(header::EXPECT);
    while length <= DISCARD && !asks {
        let Some(frame) = body.frame().await else { break };
        let frame = frame.map_err(|e| Refusal::new(StatusCode::BAD_REQUEST, format!("request body: {e}")))?;
        let Some(data) = frame.data_ref() else { continue };
        length = length.saturating_add(data.len());
        if length <= BODY {
            bytes.extend_from_slice(data);
        }
    }
    if asks || length > BODY {
        tally.count(Why::Body, "");
        let text = format!("the request is refused: {}", Why::Body);
        return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text));
    }
    Ok(Request::from_parts(head, Body::from(bytes)))
}

/// Gives a slot up.
struct Leave(Seat);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.slots().leave(self.0.number);
    }
}

/// An answer; when it is gone its connection owes a request.
struct Answer {
    body: Body,
    seat: Seat,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.seat.slots().answered(self.seat.number, Instant::now());
    }
}

/// A connection whose slot knows whether its client reads.
struct Counted {
    stream: TokioIo<UnixStream>,
    seat: Seat,
}

impl Counted {
    fn sent(&self, poll: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.seat.slots().sent(self.seat.number, poll.is_ready(), Instant::now());
        poll
    }
}

impl Read for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Write for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.sent(poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.sent(poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
