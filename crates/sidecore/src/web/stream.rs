//! What is new, for a page that is open, and bodies of answers that come in pieces.

use std::future::Future;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tokio::sync::mpsc::{channel, Sender};
use tokio::sync::Semaphore;

use super::history::Seen;
use super::Page;
use crate::daemon::Stream;

/// Streams that are open at once, captures and traces included.
static OPEN: Semaphore = Semaphore::const_new(64);

/// A body of what `write` sends. Where it is read no more, `write` is dropped.
pub fn pieces<F>(write: impl FnOnce(Sender<Bytes>) -> F) -> Result<Body, (StatusCode, &'static str)>
where
    F: Future<Output = ()> + Send + 'static,
{
    let full = (StatusCode::SERVICE_UNAVAILABLE, "64 streams are open: close other pages");
    let open = OPEN.try_acquire().map_err(|_| full)?;
    let (sender, pieces) = channel(1);
    let (gone, writing) = (sender.clone(), write(sender));
    tokio::spawn(async move {
        tokio::select! {
            () = writing => {}
            () = gone.closed() => {}
        }
        drop(open);
    });
    Ok(Body::new(Stream { pieces, _held: () }))
}

/// `GET /api/live`. It waits for the page, never the other way round.
pub async fn live(State(page): State<Page>) -> Response {
    let body = pieces(|sender| async move {
        let history = Arc::clone(&page.history);
        let (mut news, mut seen) = (history.news(), Seen::default());
        loop {
            let new = history.since(&mut seen);
            if !new.is_empty() && sender.send(new).await.is_err() {
                return;
            }
            // Its sender is in the history.
            let _ = news.changed().await;
        }
    });
    match body {
        Ok(body) => ([(CONTENT_TYPE, "text/event-stream")], body).into_response(),
        Err(full) => full.into_response(),
    }
}
