//! What the page asks for: the history, views of the daemon as they are, and what commands of ours work out.
//! With `--write` also what changes ports and members of groups.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::Json;
use http_body_util::BodyExt;
use hyper::Method;
use serde::Deserialize;
use serde_json::{json, Map, Value};
use sidecore_engine::state::status::{OnePort, Queues};

use super::stream::pieces;
use super::Page;
use crate::api::About;
use crate::capture::{path, Filter};
use crate::cli::VERSION;
use crate::client::{segment, Failure};
use crate::pcapng::Blocks;
use crate::trace::{self, Trace};
use crate::{doctor, explain};

/// Views of the daemon that the page may have; `*` is a name.
const VIEWS: [&str; 16] = [
    "acls",
    "cores",
    "daemon",
    "disks",
    "drops",
    "groups",
    "mac",
    "neighbours",
    "ports",
    "ports/*",
    "queues",
    "routers",
    "routers/*/explain",
    "routers/*/routes",
    "switches",
    "tenants",
];

/// Most seconds of a capture or a trace.
const LONGEST: u64 = 600;

/// A refusal: what, where, why, what to do.
pub struct No(StatusCode, String);

impl IntoResponse for No {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

impl From<Failure> for No {
    fn from(failure: Failure) -> No {
        let status = match failure {
            Failure::Refused(_) => StatusCode::CONFLICT,
            _ => StatusCode::BAD_GATEWAY,
        };
        No(status, failure.to_string())
    }
}

fn bad(why: impl Into<String>) -> No {
    No(StatusCode::BAD_REQUEST, why.into())
}

/// What the page has to know of us.
pub async fn session(State(page): State<Page>) -> Json<Value> {
    Json(json!({ "token": page.guard.second, "write": page.guard.write, "program": VERSION }))
}

#[derive(Deserialize)]
pub struct Row {
    row: String,
}

pub async fn history(State(page): State<Page>, Query(Row { row }): Query<Row>) -> Response {
    in_json(page.history.row(&row))
}

#[derive(Deserialize)]
pub struct At {
    time: u64,
}

pub async fn at(State(page): State<Page>, Query(At { time }): Query<At>) -> Result<Response, No> {
    let none = || No(StatusCode::NOT_FOUND, "there is no history yet".to_owned());
    page.history.at(time).map(in_json).ok_or_else(none)
}

fn in_json(text: String) -> Response {
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}

/// A view of the daemon's, as it answers.
pub async fn view(State(page): State<Page>, uri: Uri) -> Result<Response, No> {
    let place = uri.path().trim_start_matches("/api/v1/");
    let is = |view: &&str| {
        let (view, place) = (view.split('/'), place.split('/'));
        view.clone().count() == place.clone().count()
            && view.zip(place).all(|(it, part)| it == "*" || it == part)
    };
    if !VIEWS.iter().any(is) {
        return Err(No(StatusCode::NOT_FOUND, format!("the page has no view {place}")));
    }
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    pass(&page, Method::GET, &format!("/v1/{place}{query}"), Bytes::new()).await
}

/// The daemon's answer, whatever it is.
async fn pass(page: &Page, method: Method, path: &str, body: Bytes) -> Result<Response, No> {
    let response = page.remote.connect().await?.request(method, path, body).await?;
    let status = response.status();
    Ok((status, [(CONTENT_TYPE, "application/json")], Body::new(response.into_body())).into_response())
}

/// What `doctor` says of a port.
pub async fn doctor(State(page): State<Page>, Path(port): Path<String>) -> Result<Response, No> {
    let remote = &page.remote;
    let OnePort { port, .. } =
        remote.call(Method::GET, &format!("/v1/ports/{}", segment(&port)), Bytes::new()).await?;
    let Queues { queues, .. } = remote.call(Method::GET, "/v1/queues", Bytes::new()).await?;
    let about: About = remote.call(Method::GET, "/v1/daemon", Bytes::new()).await?;
    // It looks through the processes of the host.
    let found = tokio::task::spawn_blocking(move || json!(doctor::examine(&port, &queues, &about)));
    let found = found.await.map_err(|e| No(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
    Ok(Json(found).into_response())
}

#[derive(Deserialize)]
pub struct Asked {
    what: String,
}

/// What becomes of a frame that comes in by a port.
pub async fn explain(
    State(page): State<Page>,
    Path(port): Path<String>,
    Json(Asked { what }): Json<Asked>,
) -> Result<Response, No> {
    let words: Vec<String> = what.split_whitespace().map(str::to_owned).collect();
    let frame = explain::digits(&explain::typed(&words).map_err(bad)?);
    let body = json!({ "frame": frame }).to_string();
    pass(&page, Method::POST, &format!("/v1/ports/{}/explain", segment(&port)), body.into()).await
}

#[derive(Deserialize)]
pub struct Tracing {
    next: Option<u64>,
    filter: Option<String>,
    seconds: Option<u64>,
}

/// What happens to the next frames of a port: an object in a line for each.
pub async fn trace(
    State(page): State<Page>,
    Path(port): Path<String>,
    Query(asked): Query<Tracing>,
) -> Result<Response, No> {
    let filter = asked.filter.filter(|it| !it.trim().is_empty());
    let filter = filter.map(|filter| Filter::compile(&filter)).transpose().map_err(bad)?;
    let next = asked.next.unwrap_or(1).clamp(1, 100);
    let seconds = asked.seconds.unwrap_or(30).min(LONGEST);
    page.remote.call::<Value>(Method::GET, &format!("/v1/ports/{}", segment(&port)), Bytes::new()).await?;
    let response = page.remote.response(Method::GET, &path(&[], &[]), Bytes::new()).await?;
    let body = pieces(|sender| async move {
        let end = tokio::time::sleep(Duration::from_secs(seconds));
        // At most a hundred, each with a step or two for a port.
        let (told, mut lines) = tokio::sync::mpsc::unbounded_channel();
        let say = move |line: String| told.send(line).map_err(|e| e.to_string());
        let reading = trace::read(response.into_body(), Trace::new(port, filter, next), end, true, say);
        let writing = async {
            while let Some(line) = lines.recv().await {
                if sender.send(line.into()).await.is_err() {
                    return;
                }
            }
        };
        let (outcome, ()) = tokio::join!(reading, writing);
        if let Err(why) = outcome {
            // This fails where the page is gone, and with it whoever asked.
            let _ = sender.send(format!("{}\n", json!({ "error": why })).into()).await;
        }
    });
    let body = body.map_err(|(status, why)| No(status, why.to_owned()))?;
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

#[derive(Deserialize)]
pub struct Capturing {
    seconds: Option<u64>,
    count: Option<u64>,
}

/// A capture of a port, in whole blocks. It ends after `seconds`, or after `count` frames.
pub async fn capture(
    State(page): State<Page>,
    Path(port): Path<String>,
    Query(Capturing { seconds, count }): Query<Capturing>,
) -> Result<Response, No> {
    let query: Vec<String> = count.map(|count| format!("count={count}")).into_iter().collect();
    let response =
        page.remote.response(Method::GET, &path(std::slice::from_ref(&port), &query), Bytes::new()).await?;
    let end = tokio::time::sleep(Duration::from_secs(seconds.unwrap_or(10).min(LONGEST)));
    let body = pieces(|sender| async move {
        let (mut body, mut blocks) = (response.into_body(), Blocks::default());
        tokio::pin!(end);
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                () = &mut end => None,
            };
            let Some(Ok(frame)) = frame else { return };
            let Ok(piece) = frame.into_data() else { continue };
            let Ok(whole) = blocks.push(&piece) else { return };
            if sender.send(whole.into()).await.is_err() {
                return;
            }
        }
    });
    let body = body.map_err(|(status, why)| No(status, why.to_owned()))?;
    // The daemon knows a port of this name, so it is made of letters, digits, dots and dashes.
    let name = format!("attachment; filename=\"{port}.pcapng\"");
    Ok(([(CONTENT_TYPE, "application/x-pcapng".to_owned()), (CONTENT_DISPOSITION, name)], body)
        .into_response())
}

fn may_write(page: &Page) -> Result<(), No> {
    let why = "this page only shows: `sidecore web --write` may change, too";
    page.guard.write.then_some(()).ok_or_else(|| No(StatusCode::FORBIDDEN, why.to_owned()))
}

/// New values of a port, as `sidecore set` takes them: null restores a default. Names of files and
/// interfaces, which only the command tells the broker, are refused there.
pub async fn set(
    State(page): State<Page>,
    Path(port): Path<String>,
    Json(values): Json<BTreeMap<String, Value>>,
) -> Result<Response, No> {
    may_write(&page)?;
    let values: Map<String, Value> = values.into_iter().collect();
    pass(
        &page,
        Method::PATCH,
        &format!("/v1/ports/{}", segment(&port)),
        Value::from(values).to_string().into(),
    )
    .await
}

#[derive(Deserialize)]
pub struct Drain {
    drain: bool,
}

pub async fn drain(
    State(page): State<Page>,
    Path((group, member)): Path<(String, String)>,
    Json(Drain { drain }): Json<Drain>,
) -> Result<Response, No> {
    may_write(&page)?;
    let path = format!("/v1/groups/{}/members/{}", segment(&group), segment(&member));
    pass(&page, Method::PATCH, &path, json!({ "drain": drain }).to_string().into()).await
}
