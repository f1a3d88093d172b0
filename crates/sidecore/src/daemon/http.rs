//! The control socket's HTTP: one handler per route, JSON in and out, described by their types (`openapi`).
//!
//! Every handler that calls the engine does so on a blocking thread. A refusal is a JSON object with one
//! text for people and a status for programs: 400 the request makes no sense, 404 there is no such thing,
//! 409 it is in the way of something else, 413 it is too large, 500 the host refused, 503 there are too many.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use axum::body::Bytes;
use axum::extract::{FromRequest, Path, Query, Request, State};
use axum::http::{header, HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value};
use sidecore_engine::observe::capture::{start, CaptureOptions, CapturePoint};
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
use sidecore_engine::util::form::{Form, Value as Formed};
use sidecore_routing::{Controls, Routers};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::events::Events;
use super::listen::Tally;
use super::metrics;
use super::openapi::{Api, Described, EventStream, Operation};
use super::slots::Why;
use super::source::Source;
use crate::api::{
    About, Active, ApplyQuery, AskedFrame, CaptureQuery, Changes, ClientsView, DoorView, EventsQuery,
    ExplainQuery, KindView, LogFilter, Move, Moved, Names, Refused, RouteQuery, SocketView,
};
use crate::change::told;
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

/// Every route.
pub fn router(control: Control) -> Router {
    let unknown =
        || async { Refusal::new(StatusCode::NOT_FOUND, "no such path; GET /openapi.json lists them") };
    let not_that = || async {
        Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "not that method; GET /openapi.json lists them")
    };
    let routes = api().routes.fallback(unknown).method_not_allowed_fallback(not_that);
    routes.with_state(control).layer(axum::middleware::map_response(in_json))
}

/// The description of every route.
pub fn description() -> &'static str {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| api().document());
    &DOCUMENT
}

/// The routes that only show what is so: those of the read socket. `control` is the path of the control
/// socket.
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

/// Has `$api` serve each row: method, path, handler, what it does, and the content type of its answer where
/// that is not JSON.
macro_rules! serve {
    ($api:expr; $($method:ident $path:expr => $handler:expr, $summary:literal $(, $kind:literal)?;)+) => {
        $api$(.serve(Method::$method, $path, $handler, $summary, [$($kind,)? "application/json"][0]))+
    };
}

/// What is served: no other path is.
fn api() -> Api {
    let api = serve! { Api::default();
        GET "/v1/daemon" => about, "The daemon and the kinds of ports that it knows";
        PATCH "/v1/daemon" => set_log, "Change the log filter";
        GET "/v1/config" => shows!(Engine::spec), "The configuration in force";
        PUT "/v1/config" => apply, "Make this the configuration, all of it or nothing: parts that it lacks are deleted";
        GET "/v1/ports" => shows!(Engine::ports), "All ports";
        GET "/v1/ports/{name}" => port, "One port";
        POST "/v1/ports/{name}/explain" => explain_frame, "What would become of a frame that comes in by a port";
        POST "/v1/ports/{name}/move" => move_queues, "Move a port's ingress queues to another I/O core";
        POST "/v1/ports/{name}/resize" => resize, "Grow a disk to the present size of its file; 409 if that is shorter";
        POST "/v1/ports/{name}/restart" => restart, "Stop the port and start it again, as it is configured";
        GET "/v1/switches" => shows!(Engine::switches), "All switches";
        GET "/v1/routers" => routers, "All routers";
        GET "/v1/routers/{name}/routes" => routes, "The routes of a router";
        POST "/v1/routers/{name}/routes" => add_route, "Add a route, or replace the route with the same prefix";
        DELETE "/v1/routers/{name}/routes" => del_route, "Delete a route";
        GET "/v1/routers/{name}/explain" => explain, "What a router does with a packet, and why";
        GET "/v1/tenants" => shows!(Engine::tenants), "All tenants";
        GET "/v1/groups" => shows!(Engine::groups), "All groups";
        PATCH "/v1/groups/{name}/members/{member}" => set_member, "Change what is wanted of a member of a group";
        GET "/v1/acls" => shows!(Engine::acls), "All access lists";
        GET "/v1/neighbours" => shows!(Engine::neighbours), "The neighbours of all routers";
        GET "/v1/mac" => shows!(Engine::addresses), "The addresses that the switches remember";
        GET "/v1/cores" => shows!(Engine::cores), "I/O cores";
        PATCH "/v1/cores" => set_active, "Set the number of active I/O cores";
        GET "/v1/queues" => shows!(Engine::queues), "Queues of ports";
        GET "/v1/disks" => shows!(Engine::disks), "Disks";
        GET "/v1/events" => events, "What has happened, and what happens until the client disconnects", "text/event-stream";
        GET "/v1/drops" => shows!(|engine| engine.ports().drops()), "Dropped frames by port and reason";
        GET "/v1/capture" => capture_all, "The frames of all ports in both directions; a dropped one has the reason as a comment", "application/x-pcapng";
        GET "/v1/capture/{ports}" => capture, "The frames of some ports, as those of all", "application/x-pcapng";
        GET "/metrics" => scrape, "The counters, for Prometheus", "application/openmetrics-text";
        GET "/openapi.json" => openapi, "This document";
    };
    let api = entries::<RouterSpec>(
        entries::<SwitchSpec>(entries::<PortSpec>(api, "ports"), "switches"),
        "routers",
    );
    entries::<AclSpec>(entries::<GroupSpec>(entries::<TenantSpec>(api, "tenants"), "groups"), "acls")
}

/// What is served alike for each sort of parts, all of which are in `list`.
fn entries<E: Entry + Sync>(api: Api, list: &str) -> Api {
    let (all, one) = (&format!("/v1/{list}"), &format!("/v1/{list}/{{name}}"));
    serve! { api;
        POST all => add::<E>, "Add one, or a list of them, all or none; 409 if one of that name exists";
        DELETE all => del_all::<E>, "Delete some, all or none; 409 if one of them is in use";
        PUT one => put::<E>, "Add or replace it; `name` may be left out";
        PATCH one => set::<E>, "Change it by some of its keys; null restores a key's default";
        DELETE one => del::<E>, "Delete it; 409 if it is in use";
    }
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

/// A refusal that the library makes for itself, of a query or a path that cannot be read, in the form of
/// ours.
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

/// A body, whatever content type it claims. Where it is a list, one may stand for itself.
struct Body<T>(T);

impl<T: Formed> Described for Body<T> {
    fn describe(operation: &mut Operation<'_>) {
        operation.takes(T::FORM);
    }
}

impl<T: DeserializeOwned + Formed, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Body<T>, Response> {
        let mut body = Bytes::from_request(request, state).await.map_err(IntoResponse::into_response)?;
        let bad = |e| Refusal::new(StatusCode::BAD_REQUEST, format!("request body: {e}")).into_response();
        let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
        if matches!(T::FORM, Form::Each(_)) && first != Some(&b'[') {
            // In brackets nothing would be an empty list, and several values behind each other a list.
            serde_json::from_slice::<IgnoredAny>(&body).map_err(bad)?;
            body = [b"[", &*body, b"]"].concat().into();
        }
        serde_json::from_slice(&body).map(Body).map_err(bad)
    }
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

async fn apply(
    State(control): State<Control>,
    Query(ApplyQuery { dry_run }): Query<ApplyQuery>,
    Body(spec): Body<Spec>,
) -> Answer<Changes> {
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

async fn add<E: Entry>(State(control): State<Control>, Body(entries): Body<Vec<E>>) -> Answer<Changes> {
    change(control, false, move |engine| engine.add(&entries)).await
}

async fn put<E: Entry>(
    State(control): State<Control>,
    Path(name): Path<String>,
    Body(keys): Body<Map<String, Value>>,
) -> Answer<Changes> {
    let entry: E = named(&name, keys)?;
    change(control, false, move |engine| engine.put(&entry)).await
}

async fn set<E: Entry>(
    State(control): State<Control>,
    Path(name): Path<String>,
    Body(patch): Body<Map<String, Value>>,
) -> Answer<Changes> {
    change(control, false, move |engine| engine.set(&name, |old: &E| merge(old, &patch))).await
}

async fn del<E: Entry>(State(control): State<Control>, Path(name): Path<String>) -> Answer<Changes> {
    change(control, false, move |engine| engine.del::<E>(&[name])).await
}

/// All of those, or none.
async fn del_all<E: Entry>(State(control): State<Control>, Query(query): Query<Names>) -> Answer<Changes> {
    let names: Vec<String> = query.names.split(',').map(str::to_owned).collect();
    change(control, false, move |engine| engine.del::<E>(&names)).await
}

async fn restart(State(control): State<Control>, Path(name): Path<String>) -> Answer<Changes> {
    change(control, false, move |engine| engine.restart(&name)).await
}

async fn set_log(State(control): State<Control>, Body(LogFilter { log }): Body<LogFilter>) -> Answer<About> {
    super::log::set(&log).map_err(|why| Refusal::new(StatusCode::BAD_REQUEST, why))?;
    tracing::info!(event = "configuration", "the log has a new filter: {log}");
    Ok(about(State(control)).await)
}

async fn set_member(
    State(control): State<Control>,
    Path((group, member)): Path<(String, String)>,
    Body(patch): Body<MemberPatch>,
) -> Answer<Changes> {
    change(control, false, move |engine| engine.set_member(&group, &member, &patch)).await
}

async fn routers(State(control): State<Control>) -> Answer<Routers> {
    let controls = Arc::clone(&control.controls);
    ask(control, move |engine| Ok(controls.routers(engine))).await.map(Json)
}

async fn routes(State(control): State<Control>, Path(name): Path<String>) -> Answer<Routes> {
    ask(control, move |engine| engine.routes(&name)).await.map(Json)
}

async fn add_route(
    State(control): State<Control>,
    Path(name): Path<String>,
    Body(route): Body<RouteSpec>,
) -> Answer<Changes> {
    change(control, false, move |engine| engine.add_route(&name, &route)).await
}

async fn del_route(
    State(control): State<Control>,
    Path(name): Path<String>,
    Query(RouteQuery { prefix }): Query<RouteQuery>,
) -> Answer<Changes> {
    change(control, false, move |engine| engine.del_route(&name, prefix)).await
}

async fn explain(
    State(control): State<Control>,
    Path(name): Path<String>,
    Query(ExplainQuery { to, from }): Query<ExplainQuery>,
) -> Answer<Explained> {
    ask(control, move |engine| engine.explain(&name, to, from.as_deref())).await.map(Json)
}

async fn explain_frame(
    State(control): State<Control>,
    Path(name): Path<String>,
    Body(AskedFrame { frame }): Body<AskedFrame>,
) -> Answer<FrameExplained> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = frame.as_bytes().chunks(2).map(pair).collect();
    let bytes = bytes.filter(|_| frame.len() % 2 == 0 && !frame.contains('+')).ok_or_else(|| {
        Refusal::new(StatusCode::BAD_REQUEST, "frame: an even number of hexadecimal digits".to_owned())
    })?;
    ask(control, move |engine| engine.explain_frame(&name, &bytes)).await.map(Json)
}

async fn move_queues(
    State(control): State<Control>,
    Path(name): Path<String>,
    Body(Move { queue, core }): Body<Move>,
) -> Answer<Moved> {
    let moved = ask(control, move |engine| engine.move_queues(&name, queue, core)).await?;
    Ok(Json(Moved { version: VERSION, queues: moved }))
}

async fn resize(State(control): State<Control>, Path(name): Path<String>) -> Answer<Resized> {
    ask(control, move |engine| engine.resize(&name)).await.map(Json)
}

async fn set_active(State(control): State<Control>, Body(Active { active }): Body<Active>) -> Answer<Cores> {
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
    let text = ask(control, move |engine| {
        let snapshot = metrics::Snapshot {
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
        };
        Ok(metrics::text(&snapshot, classic))
    });
    let kind = if classic { metrics::CLASSIC_TYPE } else { metrics::CONTENT_TYPE };
    Ok(([(header::CONTENT_TYPE, kind)], text.await?).into_response())
}

async fn events(
    State(control): State<Control>,
    Query(EventsQuery { after, follow }): Query<EventsQuery>,
    headers: HeaderMap,
) -> Result<EventStream, Refusal> {
    // What a browser says when it connects again is newer than its address.
    let last = headers.get("last-event-id").map(|id| {
        let number = id.to_str().ok().and_then(|id| id.parse().ok());
        number.ok_or_else(|| {
            Refusal::new(StatusCode::BAD_REQUEST, "Last-Event-ID: it is the number of an event")
        })
    });
    let after = last.transpose()?.or(after);
    let slot = slot(&control, &control.readers, Why::Events)?;
    let head = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok(EventStream((head, control.events.body(after, follow.unwrap_or(true), slot)).into_response()))
}

/// One of the `slots` for what lasts; there is none left: refused, which is `why`.
fn slot(control: &Control, slots: &Arc<Semaphore>, why: Why) -> Result<OwnedSemaphorePermit, Refusal> {
    Arc::clone(slots).try_acquire_owned().map_err(|_| {
        control.tally.count(why, "");
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, format!("the request is refused: {why}"))
    })
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], description()).into_response()
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
    let slot = slot(&control, &control.captures, Why::Captures)?;
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
