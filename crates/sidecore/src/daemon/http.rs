//! The control socket's HTTP: one handler per route, JSON in and out, described in `openapi.json`.
//!
//! Every handler that calls the engine does so on a blocking thread. A refusal is a JSON object with one
//! text for people and a status for programs: 400 the request makes no sense, 404 there is no such thing,
//! 409 it is in the way of something else, 413 it is too large, 500 the host refused, 503 there are too many.

use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, Query, Request, State};
use axum::http::{header, HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::{Map, Value};
use sidecore_engine::observe::capture::{start, CaptureOptions, CapturePoint};
use sidecore_engine::router::Net;
use sidecore_engine::state::disks::Resized;
use sidecore_engine::state::explain::FrameExplained;
use sidecore_engine::state::groups::MemberPatch;
use sidecore_engine::state::kinds::KINDS;
use sidecore_engine::state::routers::{Explained, Routes};
use sidecore_engine::state::status::{Cores, OnePort, VERSION};
use sidecore_engine::state::{
    AclSpec, BadSpec, Change, Engine, Entry, Error, GroupSpec, Joint, PortSpec, RouteSpec, RouterSpec, Spec,
    SwitchSpec, TenantSpec,
};
use sidecore_routing::{Controls, Routers};
use tokio::sync::Semaphore;

use super::events::Events;
use super::listen::Tally;
use super::metrics;
use super::slots::Why;
use super::source::Source;
use crate::api::{About, Changes, ClientsView, DoorView, KindView, Moved, Refused, SocketView};
use crate::change::told;
use crate::generate::OPENAPI;
use crate::sandbox::InForce;

/// Captures that may run at once.
pub const CAPTURES: usize = 32;

/// Readers of events that there may be at once.
pub const READERS: usize = 16;

/// Bytes of the longest refusal that the library makes: it cites what it could not read.
const LONGEST_WORD: usize = 64 << 10;

/// What handlers share.
#[derive(Clone)]
pub struct Control {
    pub engine: Arc<Engine>,
    /// Its routers' control planes.
    pub controls: Arc<Controls>,
    /// Where its configuration came from.
    pub source: Arc<Source>,
    /// What it took from itself.
    pub sandbox: Arc<InForce>,
    /// Slots of captures.
    pub captures: Arc<Semaphore>,
    /// What has happened.
    pub events: Arc<Events>,
    /// Slots of its readers.
    pub readers: Arc<Semaphore>,
    /// Refusals.
    pub tally: Arc<Tally>,
    /// Connections of netmap programs.
    pub netmap: Arc<sidecore_engine::transport::ring::Clients>,
}

macro_rules! routes {
    ($($path:literal: $($method:ident $handler:expr),+;)*) => {
        /// Every path with its methods, to be compared with the description.
        #[cfg(test)]
        const ROUTES: &[(&str, &[&str])] = &[$(($path, &[$(stringify!($method)),+])),*];

        /// Every route.
        pub fn router(control: Control) -> Router {
            Router::new()
                $(.route($path, MethodRouter::new()$(.$method($handler))+))*
                .fallback(|| async {
                    Refusal::new(StatusCode::NOT_FOUND, "no such path; GET /openapi.json lists them")
                })
                .method_not_allowed_fallback(|| async {
                    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "not that method; GET /openapi.json lists them")
                })
                .with_state(control)
                .layer(axum::middleware::map_response(in_json))
        }
    };
}

/// The routes that only show what is so: those of the read socket. `control` is the path of the control socket.
pub fn reader(app: Router, control: PathBuf) -> Router {
    let control: Arc<std::path::Path> = control.into();
    app.layer(axum::middleware::from_fn(move |request: Request, next: Next| {
        let (control, method, path) =
            (Arc::clone(&control), request.method().clone(), request.uri().path().to_owned());
        async move {
            let shows = matches!(method, Method::GET | Method::HEAD) && !path.starts_with("/v1/capture");
            if shows {
                return next.run(request).await;
            }
            let why = format!(
                "this socket only shows what is so; {method} {path} is for the control socket: --socket {}",
                control.display()
            );
            Refusal::new(StatusCode::FORBIDDEN, why).into_response()
        }
    }))
}

/// A handler that answers with what the engine says of itself.
macro_rules! shows {
    ($what:expr) => {
        |State(control): State<Control>| show(control, $what)
    };
}

routes! {
    "/v1/daemon": get about, patch set_log;
    "/v1/config": get shows!(Engine::spec), put apply;
    "/v1/ports": get shows!(Engine::ports), post add::<PortSpec>, delete del_all::<PortSpec>;
    "/v1/ports/{name}": get port, put put::<PortSpec>, patch set::<PortSpec>, delete del::<PortSpec>;
    "/v1/ports/{name}/explain": post explain_frame;
    "/v1/ports/{name}/move": post move_queues;
    "/v1/ports/{name}/resize": post resize;
    "/v1/ports/{name}/restart": post restart;
    "/v1/switches": get shows!(Engine::switches), post add::<SwitchSpec>, delete del_all::<SwitchSpec>;
    "/v1/switches/{name}": put put::<SwitchSpec>, patch set::<SwitchSpec>, delete del::<SwitchSpec>;
    "/v1/routers": get routers, post add::<RouterSpec>, delete del_all::<RouterSpec>;
    "/v1/routers/{name}": put put::<RouterSpec>, patch set::<RouterSpec>, delete del::<RouterSpec>;
    "/v1/routers/{name}/routes": get routes, post add_route, delete del_route;
    "/v1/routers/{name}/explain": get explain;
    "/v1/tenants": get shows!(Engine::tenants), post add::<TenantSpec>, delete del_all::<TenantSpec>;
    "/v1/tenants/{name}": put put::<TenantSpec>, patch set::<TenantSpec>, delete del::<TenantSpec>;
    "/v1/groups": get shows!(Engine::groups), post add::<GroupSpec>, delete del_all::<GroupSpec>;
    "/v1/groups/{name}": put put::<GroupSpec>, patch set::<GroupSpec>, delete del::<GroupSpec>;
    "/v1/groups/{name}/members/{member}": patch set_member;
    "/v1/acls": get shows!(Engine::acls), post add::<AclSpec>, delete del_all::<AclSpec>;
    "/v1/acls/{name}": put put::<AclSpec>, patch set::<AclSpec>, delete del::<AclSpec>;
    "/v1/neighbours": get shows!(Engine::neighbours);
    "/v1/mac": get shows!(Engine::addresses);
    "/v1/cores": get shows!(Engine::cores), patch set_active;
    "/v1/queues": get shows!(Engine::queues);
    "/v1/disks": get shows!(Engine::disks);
    "/v1/events": get events;
    "/v1/drops": get shows!(|engine| engine.ports().drops());
    "/v1/capture": get capture_all;
    "/v1/capture/{ports}": get capture;
    "/metrics": get scrape;
    "/openapi.json": get openapi;
}

/// A request that was refused.
pub struct Refusal {
    status: StatusCode,
    text: String,
}

impl Refusal {
    /// With a status for programs and a text for people.
    pub fn new(status: StatusCode, text: impl Into<String>) -> Refusal {
        Refusal { status, text: text.into() }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        let status = match &error {
            Error::Bad(_) => StatusCode::BAD_REQUEST,
            Error::Unknown { .. } => StatusCode::NOT_FOUND,
            Error::Exists { .. } | Error::InUse { .. } | Error::Fixed(_) | Error::Cannot(_) => {
                StatusCode::CONFLICT
            }
            Error::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refusal::new(status, error.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(Refused { version: VERSION, error: self.text })).into_response()
    }
}

/// A refusal that the library makes for itself, of a query or a path that cannot be read, in the form of ours.
async fn in_json(response: Response) -> Response {
    let status = response.status();
    let json = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if json || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let text = match axum::body::to_bytes(response.into_body(), LONGEST_WORD).await {
        Ok(text) if !text.is_empty() => String::from_utf8_lossy(&text).into_owned(),
        _ => status.to_string(),
    };
    Refusal::new(status, text).into_response()
}

type Answer<T> = Result<Json<T>, Refusal>;

/// Runs `f` where it may wait.
async fn ask<T: Send + 'static>(
    control: Control,
    f: impl FnOnce(&Engine) -> Result<T, Error> + Send + 'static,
) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(move || f(&control.engine)).await;
    let done = done
        .map_err(|e| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the request failed: {e}")))?;
    Ok(done?)
}

async fn show<T: Send + 'static>(control: Control, f: fn(&Engine) -> T) -> Answer<T> {
    ask(control, move |engine| Ok(f(engine))).await.map(Json)
}

async fn change(
    control: Control,
    dry_run: bool,
    f: impl FnOnce(&Engine) -> Result<Vec<Change>, Error> + Send + 'static,
) -> Answer<Changes> {
    let changes = ask(control, f).await?;
    if !dry_run {
        tell(&changes);
    }
    Ok(Json(Changes { version: VERSION, dry_run, changes }))
}

/// Logs what has changed.
pub fn tell(changes: &[Change]) {
    for change in changes {
        let of = |sort: &str| Some(change.name.as_str()).filter(|_| change.what == sort);
        tracing::info!(
            event = "configuration",
            port = of("port"),
            switch = of("switch"),
            router = of("router"),
            tenant = of("tenant"),
            group = of("group"),
            "{}",
            told(change, false)
        );
    }
}

/// Reads a body, whatever content type it claims.
fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, Refusal> {
    serde_json::from_slice(body)
        .map_err(|e| Refusal::new(StatusCode::BAD_REQUEST, format!("request body: {e}")))
}

async fn about(State(control): State<Control>) -> Json<About> {
    let kind = |kind: &sidecore_engine::state::kinds::Kind| KindView {
        name: kind.name.to_owned(),
        keys: kind.keys.split(' ').map(str::to_owned).collect(),
        features: (kind.features)(),
    };
    Json(About {
        version: VERSION,
        program: crate::cli::VERSION.to_owned(),
        pid: std::process::id(),
        config: control.source.file().map(std::path::Path::to_owned),
        log: super::log::filter(),
        counters: control.engine.spec().daemon.counters.unwrap_or_default(),
        memory_limit: super::limit::memory_limit(),
        memory_errors: sidecore_engine::mem::memory_errors(),
        clients: ClientsView {
            control: SocketView::new(control.tally.open(), control.tally.refused()),
            netmap: SocketView::new(control.netmap.open(), control.netmap.refused()),
            turned_away: sidecore_engine::sandbox::open::reserve::turned_away(),
        },
        kinds: KINDS.iter().map(kind).collect(),
        sandbox: control.sandbox.view(),
        broker: super::broker::view(|| control.engine.everything().ports),
        door: door(),
    })
}

fn door() -> DoorView {
    let sidecore_engine::sandbox::descriptors::Count { looks, refused, started, kept, .. } =
        sidecore_engine::sandbox::descriptors::count();
    DoorView { looks, refused, started, kept }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ApplyQuery {
    #[serde(default)]
    dry_run: bool,
}

async fn apply(
    State(control): State<Control>,
    Query(ApplyQuery { dry_run }): Query<ApplyQuery>,
    body: Bytes,
) -> Answer<Changes> {
    let spec: Spec = read(&body)?;
    change(control, dry_run, move |engine| engine.apply(&spec, dry_run)).await
}

async fn port(State(control): State<Control>, Path(name): Path<String>) -> Answer<OnePort> {
    let view = ask(control, move |engine| {
        engine.port(&name)?;
        Ok(engine.ports().ports.into_iter().find(|port| port.name == name))
    });
    let gone = || Refusal::new(StatusCode::NOT_FOUND, "the port has just been deleted");
    let port = view.await?.ok_or_else(gone)?;
    Ok(Json(OnePort { version: VERSION, port }))
}

/// One, or a list of which all are added or none.
async fn add<E: Entry>(State(control): State<Control>, body: Bytes) -> Answer<Changes> {
    let many = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    let entries: Vec<E> = if many { read(&body)? } else { vec![read(&body)?] };
    change(control, false, move |engine| engine.add(&entries)).await
}

async fn put<E: Entry>(
    State(control): State<Control>,
    Path(name): Path<String>,
    body: Bytes,
) -> Answer<Changes> {
    let entry: E = named(&name, read(&body)?)?;
    change(control, false, move |engine| engine.put(&entry)).await
}

async fn set<E: Entry>(
    State(control): State<Control>,
    Path(name): Path<String>,
    body: Bytes,
) -> Answer<Changes> {
    let patch: Map<String, Value> = read(&body)?;
    change(control, false, move |engine| engine.set(&name, |old: &E| merge(old, &patch))).await
}

async fn del<E: Entry>(State(control): State<Control>, Path(name): Path<String>) -> Answer<Changes> {
    change(control, false, move |engine| engine.del::<E>(&[name])).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Names {
    /// With commas between them, which no name has.
    names: String,
}

/// All of those, or none.
async fn del_all<E: Entry>(State(control): State<Control>, Query(query): Query<Names>) -> Answer<Changes> {
    let names: Vec<String> = query.names.split(',').map(str::to_owned).collect();
    change(control, false, move |engine| engine.del::<E>(&names)).await
}

async fn restart(State(control): State<Control>, Path(name): Path<String>) -> Answer<Changes> {
    change(control, false, move |engine| engine.restart(&name)).await
}

/// What may change of a daemon that runs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Logged {
    log: String,
}

async fn set_log(State(control): State<Control>, body: Bytes) -> Answer<About> {
    let Logged { log } = read(&body)?;
    super::log::set(&log).map_err(|why| Refusal::new(StatusCode::BAD_REQUEST, why))?;
    tracing::info!(event = "configuration", "the log has a new filter: {log}");
    Ok(about(State(control)).await)
}

async fn set_member(
    State(control): State<Control>,
    Path((group, member)): Path<(String, String)>,
    body: Bytes,
) -> Answer<Changes> {
    let patch: MemberPatch = read(&body)?;
    change(control, false, move |engine| engine.set_member(&group, &member, &patch)).await
}

async fn routers(State(control): State<Control>) -> Answer<Routers> {
    let controls = Arc::clone(&control.controls);
    ask(control, move |engine| Ok(controls.routers(engine))).await.map(Json)
}

async fn routes(State(control): State<Control>, Path(name): Path<String>) -> Answer<Routes> {
    ask(control, move |engine| engine.routes(&name)).await.map(Json)
}

async fn add_route(State(control): State<Control>, Path(name): Path<String>, body: Bytes) -> Answer<Changes> {
    let route: RouteSpec = read(&body)?;
    change(control, false, move |engine| engine.add_route(&name, &route)).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteQuery {
    prefix: Net,
}

async fn del_route(
    State(control): State<Control>,
    Path(name): Path<String>,
    Query(RouteQuery { prefix }): Query<RouteQuery>,
) -> Answer<Changes> {
    change(control, false, move |engine| engine.del_route(&name, prefix)).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainQuery {
    to: std::net::IpAddr,
    from: Option<String>,
}

async fn explain(
    State(control): State<Control>,
    Path(name): Path<String>,
    Query(ExplainQuery { to, from }): Query<ExplainQuery>,
) -> Answer<Explained> {
    ask(control, move |engine| engine.explain(&name, to, from.as_deref())).await.map(Json)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedFrame {
    /// Hexadecimal digits.
    frame: String,
}

async fn explain_frame(
    State(control): State<Control>,
    Path(name): Path<String>,
    body: Bytes,
) -> Answer<FrameExplained> {
    let AskedFrame { frame } = read(&body)?;
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = frame.as_bytes().chunks(2).map(pair).collect();
    let bytes = bytes.filter(|_| frame.len() % 2 == 0 && !frame.contains('+')).ok_or_else(|| {
        Refusal::new(StatusCode::BAD_REQUEST, "frame: an even number of hexadecimal digits".to_owned())
    })?;
    ask(control, move |engine| engine.explain_frame(&name, &bytes)).await.map(Json)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Move {
    queue: Option<usize>,
    core: usize,
}

async fn move_queues(State(control): State<Control>, Path(name): Path<String>, body: Bytes) -> Answer<Moved> {
    let Move { queue, core } = read(&body)?;
    let moved = ask(control, move |engine| engine.move_queues(&name, queue, core)).await?;
    Ok(Json(Moved { version: VERSION, queues: moved }))
}

async fn resize(State(control): State<Control>, Path(name): Path<String>) -> Answer<Resized> {
    ask(control, move |engine| engine.resize(&name)).await.map(Json)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Active {
    active: usize,
}

async fn set_active(State(control): State<Control>, body: Bytes) -> Answer<Cores> {
    let Active { active } = read(&body)?;
    let done = move |engine: &Engine| engine.set_active(active).map(|()| engine.cores());
    ask(control, done).await.map(Json)
}

async fn scrape(State(control): State<Control>, headers: HeaderMap) -> Result<Response, Refusal> {
    let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let classic = metrics::wants_classic(accepted);
    let sandbox = control.sandbox.view();
    let sockets = metrics::Sockets {
        control: (control.tally.open(), control.tally.refused()),
        netmap: (control.netmap.open(), control.netmap.refused()),
        turned_away: sidecore_engine::sandbox::open::reserve::turned_away(),
    };
    let text = ask(control, |engine| {
        Ok(metrics::text(metrics::Snapshot {
            ports: engine.ports(),
            queues: engine.queues(),
            disks: engine.disks().disks,
            cores: engine.cores(),
            tenants: engine.tenants().tenants,
            groups: engine.groups().groups,
            acls: engine.acls().acls,
            addresses: engine.addresses().addresses.len(),
            sandbox,
            sockets,
        }))
    })
    .await?;
    let text = text.map_err(|e| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
    Ok(match classic {
        true => ([(header::CONTENT_TYPE, metrics::CLASSIC_TYPE)], metrics::classic(&text)).into_response(),
        false => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    after: Option<u64>,
    follow: Option<bool>,
}

async fn events(
    State(control): State<Control>,
    Query(EventsQuery { after, follow }): Query<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    // What a browser says when it connects again is newer than its address.
    let last = headers.get("last-event-id").map(|id| {
        let number = id.to_str().ok().and_then(|id| id.parse().ok());
        number.ok_or_else(|| {
            Refusal::new(StatusCode::BAD_REQUEST, "Last-Event-ID: it is the number of an event")
        })
    });
    let after = last.transpose()?.or(after);
    let slot = control.readers.try_acquire_owned().map_err(|_| {
        control.tally.count(Why::Events, "");
        let text = format!("the request is refused: {}", Why::Events);
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text)
    })?;
    let head = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((head, control.events.body(after, follow.unwrap_or(true), slot)).into_response())
}

async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaptureQuery {
    snaplen: Option<u32>,
    count: Option<u64>,
}

async fn capture(
    State(control): State<Control>,
    Path(names): Path<String>,
    Query(query): Query<CaptureQuery>,
) -> Result<Response, Refusal> {
    let names = names.split('+').map(str::to_owned).collect();
    capture_of(control, names, query).await
}

async fn capture_all(
    State(control): State<Control>,
    Query(query): Query<CaptureQuery>,
) -> Result<Response, Refusal> {
    let all = ask(control.clone(), |engine| Ok(engine.spec().ports)).await?;
    let has_frames = |port: &PortSpec| !matches!(port.joint(), Joint::Nothing);
    let names = all.into_iter().filter(has_frames).map(|port| port.name).collect();
    capture_of(control, names, query).await
}

/// A capture of the ports of these names.
async fn capture_of(control: Control, names: Vec<String>, query: CaptureQuery) -> Result<Response, Refusal> {
    let default = CaptureOptions::default();
    let snaplen = query.snaplen.unwrap_or(default.snaplen);
    if !(14..=default.snaplen).contains(&snaplen) || query.count == Some(0) {
        let text = format!("allowed: snaplen from 14 to {}, count from 1", default.snaplen);
        return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
    }
    let slot = Arc::clone(&control.captures).try_acquire_owned().map_err(|_| {
        control.tally.count(Why::Captures, "");
        let text = format!("the request is refused: {}", Why::Captures);
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text)
    })?;
    let found =
        move |engine: &Engine| names.iter().map(|name| engine.port(name)).collect::<Result<Vec<_>, _>>();
    let ports = ask(control, found).await?;
    if ports.is_empty() {
        return Err(Refusal::new(
            StatusCode::CONFLICT,
            "there is no port to capture: sidecore add makes one",
        ));
    }
    let points = ports.into_iter().map(|port| port as Arc<dyn CapturePoint>).collect();
    let fail = |e| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot capture: {e}"));
    let reader = start(points, CaptureOptions { snaplen, ..default }).map_err(fail)?;
    let body = super::capture::body(reader, query.count, slot).map_err(fail)?;
    Ok(([(header::CONTENT_TYPE, "application/x-pcapng")], body).into_response())
}

/// The part in a body whose path names it. The body may repeat the name, but no other one.
fn named<T: DeserializeOwned>(name: &str, mut body: Map<String, Value>) -> Result<T, Refusal> {
    let bad = |why: String| Refusal::new(StatusCode::BAD_REQUEST, format!("request body: {why}"));
    let repeated = body.entry("name").or_insert_with(|| name.into());
    if repeated != name {
        return Err(bad(format!("key `name`: it is {repeated}, but the path says {name:?}")));
    }
    serde_json::from_value(Value::Object(body)).map_err(|e| bad(e.to_string()))
}

/// `old` with the keys of `patch`; null takes a key away.
fn merge<E: Entry>(old: &E, patch: &Map<String, Value>) -> Result<E, BadSpec> {
    let label = format!("{} {}", E::WHAT, old.name());
    let bad = |key: &str, e: &dyn std::fmt::Display| BadSpec(vec![format!("{label}: key `{key}`: {e}")]);
    let read = |keys: &Map<String, Value>| serde_json::from_value::<E>(Value::Object(keys.clone()));
    let Ok(Value::Object(mut keys)) = serde_json::to_value(old) else {
        return Err(BadSpec(vec![format!("{label}: it cannot be changed key by key")]));
    };
    // A port that gets a wire leaves the switch, and the other way round; so it is with routers and pipes.
    const JOINTS: [&str; 4] = ["wire", "switch", "router", "pipe"];
    for named in JOINTS {
        if patch.get(named).is_some_and(|value| !value.is_null()) {
            JOINTS.iter().filter(|left| **left != named).for_each(|left| drop(keys.remove(*left)));
        }
    }
    for (key, value) in patch {
        let known = match value {
            Value::Null => keys.remove(key).is_some(),
            value => keys.insert(key.clone(), value.clone()).is_some(),
        };
        // After each key, so that a bad one is reported by its name.
        if let Err(e) = read(&keys) {
            return Err(bad(key, &e));
        }
        if value.is_null() && !known {
            // A misspelt key must not pass because there is nothing to take away.
            keys.insert(key.clone(), Value::Null);
            read(&keys).map_err(|e| bad(key, &e))?;
            keys.remove(key);
        }
    }
    read(&keys).map_err(|e| BadSpec(vec![format!("{label}: {e}")]))
}

#[cfg(test)]
#[path = "openapi_tests.rs"]
mod openapi_tests;
