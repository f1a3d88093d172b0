//! `run`: the daemon in the foreground.
//!
//! The main thread becomes the control thread: an event loop for HTTP on the control socket, for signals
//! and for the clock of MAC tables. Calls into the engine that may wait (for the host, for I/O cores) run
//! on the loop's pool of blocking threads, so a slow one delays no other answer. I/O cores never wait
//! for any of this.
//!
//! Start: read and check everything, close inherited descriptors, take the counters file, start the broker
//! ([`broker`]), take the control socket (so that a second daemon fails before it touches a port), lock
//! itself down (`sandbox`), start cores, start ports, let the cores serve them, listen, say `ready`. The end
//! is the same backwards, and has a bound (`end`). The counters file stays behind, to be read by `show`.

pub mod broker;
mod capture;
mod end;
mod events;
mod http;
mod limit;
mod listen;
mod log;
mod manager;
mod metrics;
mod openapi;
mod slots;
mod socket;
mod source;
pub mod vale;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use sidecore_engine::core::Tuning;
use sidecore_engine::graph::{CoreOptions, Graph};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::state::kinds::KINDS;
use sidecore_engine::state::values::{LogFormat, Owner, Sandbox, Toggle};
use sidecore_engine::state::{CoreGraph, Cpus, DaemonSpec, Engine};
use sidecore_engine::transport::ring::{device_path, set_directory, Device};
use sidecore_routing::Controls;
use tokio::net::UnixListener;
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::{watch, Semaphore};
use tokio::task::JoinSet;
use tracing::{error, info, warn};

pub use self::capture::Stream;
use self::events::Events;
pub use self::http::description;
use self::http::{Control, CAPTURES, READERS};
use self::listen::Tally;
use self::manager::Manager;
use self::socket::{claim, ControlSocket};
use self::source::Source;
use self::vale::Vale;
use crate::cli::RunArgs;
use crate::client::told_to_end;
use crate::sandbox;
use crate::show::holders;
use crate::{print, Outcome};

/// How long answers under way may take once the end was asked for.
const GRACE: Duration = Duration::from_secs(2);

/// Calls into the engine that may be under way at once; others wait for one to end.
const CALLS: usize = 16;

/// How long a thread for such calls is kept. There is a call each second, which any of them may take: with
/// more than a few seconds a burst of requests would leave its threads behind for ever.
const KEEP: Duration = Duration::from_secs(2);

/// How long all of the end may take, whatever a VMM, a holder or a client does. Less than the service's
/// `TimeoutStopSec`.
const END: Duration = Duration::from_secs(6);

pub fn run(args: RunArgs) -> Outcome {
    let filter = args.log.clone();
    let source = Source::new(args)?;
    let mut spec = source.read()?;
    let events = Arc::new(Events::new());
    log::to_stderr(&filter, spec.daemon.log_format.unwrap_or(LogFormat::Text), &events)?;
    let demanded = spec.daemon.sandbox.is_some();
    spec.daemon = source.complete(spec.daemon)?;
    let DaemonSpec {
        cores: Some(Cpus(cpus)),
        spin: Some(spin),
        socket: Some(socket),
        counters: Some(counters),
        ..
    } = &spec.daemon
    else {
        return Err("the daemon's options are incomplete".to_owned());
    };

    let mode = spec.daemon.sandbox.unwrap_or(Sandbox::On);
    let mut sandbox = sandbox::tidy(sandbox::Wish { mode, demanded }, &spec);
    // While the service manager's socket can be reached.
    let manager = Manager::of_environment();
    limit::warn_of_memory_limit(limit::memory_limit());
    let mut claimed = claim(counters)?;
    sidecore_engine::sandbox::open::reserve::keep();
    sidecore_engine::sandbox::open::set_journals(socket);
    // The program that runs, even if another one was installed in its place since.
    sidecore_engine::sandbox::holder::set_program("/proc/self/exe".into());
    // Before any thread or process is made: they begin where this one may run.
    match sidecore_engine::util::place::leave(cpus) {
        Ok(true) => {}
        Ok(false) => warn!(
            "I/O cores share their processors with everything else: no other one is left to this process"
        ),
        Err(e) => warn!("I/O cores share their processors with everything else: {e}"),
    }
    // With its privileges the daemon gives up what its broker need not do.
    broker::start(socket, source.file(), &spec, mode == Sandbox::On)?;
    // Files that VMMs give are met by a process that can be done without.
    sidecore_engine::sandbox::descriptors::start()
        .map_err(|e| format!("cannot start the descriptor helper: {e}"))?;
    let path = socket;
    let DaemonSpec { socket_mode, socket_owner, read_socket, read_socket_mode, read_socket_owner, .. } =
        &spec.daemon;
    let socket = ControlSocket::bind(path, *socket_mode, socket_owner.as_ref(), "--socket")?;
    let read_socket = read_socket.as_ref().map(|path| {
        ControlSocket::bind(path, *read_socket_mode, read_socket_owner.as_ref(), "--read-socket")
    });
    let read_socket = read_socket.transpose()?;
    set_directory(path).map_err(|e| format!("ring ports: {e}"))?;
    let counter_file = claimed.file.try_clone().and_then(CounterFile::on).map_err(|e| match e.kind() {
        std::io::ErrorKind::StorageFull => format!(
            "there is no room for the counters file {} (about 10 MB): {e}; make room, or choose another path with --counters",
            counters.display()
        ),
        _ => format!("cannot make counters file {}: {e}", counters.display()),
    })?;
    // Once the daemon is locked down it cannot read /proc.
    let forsaken = holders::forsaken(&spec);
    // There is one thread so far; what it loses now, all others lose.
    sandbox.lock_down(spec.daemon.user.as_deref())?;
    let cores = Graph::start(&CoreOptions {
        cpus: cpus.to_vec(),
        tuning: Tuning {
            spin: Duration::from_micros(spin.get().into()),
            least_cores: spec.daemon.least_cores.map_or(usize::MAX, |least| least.get() as usize),
            balance: spec.daemon.balance != Some(Toggle::Off),
            ..Tuning::default()
        },
        ..CoreOptions::default()
    })
    .map_err(|e| format!("cannot start I/O cores: {e}"))?;
    let graph = Arc::new(CoreGraph::new(cores));
    let controls = Arc::new(Controls::default());
    let followed = Arc::clone(&controls);
    let follow = Box::new(move |engine: &Engine| followed.follow(engine));
    let engine = Arc::new(Engine::new(KINDS, graph, counter_file, spec.daemon.clone(), follow));
    // Guests of an earlier daemon send as soon as their own port is back, to others that are not yet.
    engine.graph().cores.rest(true);
    engine.begin(&spec).map_err(|e| e.to_string())?;
    engine.graph().cores.rest(false);
    engine.sweep();
    claimed.keep();
    tell_hidden(&engine);
    forsaken.iter().for_each(|text| warn!(event = "peer", "{text}"));
    let device = serve_programs(&engine, &spec.daemon)?;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(CALLS)
        .thread_keep_alive(KEEP)
        .build();
    let runtime = runtime.map_err(|e| format!("cannot start the control thread: {e}"))?;
    let control = Control {
        engine: Arc::clone(&engine),
        controls: Arc::clone(&controls),
        source: Arc::new(source),
        sandbox: Arc::new(sandbox),
        captures: Arc::new(Semaphore::new(CAPTURES)),
        events,
        readers: Arc::new(Semaphore::new(READERS)),
        tally: Arc::new(Tally::default()),
        netmap: device.clients(),
    };
    let ended = runtime.block_on(serve(control, (&socket, path), read_socket.as_ref(), &manager));
    runtime.shutdown_timeout(GRACE);
    drop(device);
    controls.end();
    engine.shut_down();
    ended
}

/// The socket at which netmap programs ask for ports.
fn serve_programs(engine: &Arc<Engine>, spec: &DaemonSpec) -> Result<Device, String> {
    let limit = spec.vale_ports.map_or(0, |limit| limit.get() as usize);
    let mode = spec.vale_mode.map_or(0o600, |mode| mode.0);
    let owner = spec.vale_owner.as_ref().map_or(Ok((None, None)), Owner::ids)?;
    let path = device_path()?;
    let verbs = Box::new(Vale::new(Arc::clone(engine), limit));
    Device::start(&path, mode, owner, verbs).map_err(|e| format!("netmap programs: {e}"))
}

/// Serves until a signal ends it.
async fn serve(
    control: Control,
    (socket, path): (&ControlSocket, &Path),
    read_socket: Option<&ControlSocket>,
    manager: &Manager,
) -> Outcome {
    let ended = told_to_end()?;
    let mut hangup = signal(SignalKind::hangup()).map_err(|e| format!("cannot watch signals: {e}"))?;
    let app = http::router(control.clone());
    let reader = http::reader(app.clone(), path.to_owned());
    let (stop, stopped) = watch::channel(());
    let mut servers = JoinSet::new();
    for (socket, app) in [(socket, app)].into_iter().chain(read_socket.map(|socket| (socket, reader))) {
        let listener = socket.listener().and_then(UnixListener::from_std);
        let listener = listener.map_err(|e| format!("cannot listen on a control socket: {e}"))?;
        servers.spawn(listen::serve(listener, app, Arc::clone(&control.tally), stopped.clone()));
    }
    drop(stopped);
    let mut second = tokio::time::interval(Duration::from_secs(1));

    print("ready\n")?;
    manager.tell(&[NotifyState::Ready]);
    let ports = control.engine.ports().ports.len();
    info!(ports, "ready");
    let work = async {
        loop {
            tokio::select! {
                _ = hangup.recv() => reload(&control, manager).await,
                _ = second.tick() => {
                    sandbox::tell_refused();
                    log::tell_left_out(&control.events);
                    let Control { engine, controls, .. } = control.clone();
                    // It cannot fail; a panic in it is logged by the hook and must not end the daemon.
                    let tick = move || {
                        broker::look();
                        engine.tick();
                        controls.look(&engine);
                    };
                    let _ = tokio::task::spawn_blocking(tick).await;
                }
            }
        }
    };
    // Told by this thread, which waits for nobody: a daemon that stands still is ended by its manager, and
    // its holders answer.
    let alive = async {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        loop {
            second.tick().await;
            if manager.watches() {
                manager.tell(&[NotifyState::Watchdog]);
            }
        }
    };
    // The end does not wait for what is under way.
    tokio::select! {
        () = ended => {}
        () = work => {}
        () = alive => {}
    }
    info!("stopping");
    manager.tell(&[NotifyState::Stopping]);
    end::bound(END);
    sidecore_engine::ring::leave_memory();
    // No new request; ports stop, which ends captures as it should; then what is under way may finish.
    drop(stop);
    let Control { engine, controls, events, .. } = control.clone();
    let stop = move || {
        controls.end();
        engine.shut_down();
        events.end();
    };
    let _ = tokio::task::spawn_blocking(stop).await;
    let _ = tokio::time::timeout(GRACE, async { while servers.join_next().await.is_some() {} }).await;
    sandbox::tell_refused();
    Ok(())
}

/// Rules of access lists that never decide.
fn tell_hidden(engine: &Engine) {
    crate::change::hidden(&engine.acls(), |_| true, |text| warn!("{text}"));
}

/// SIGHUP: the file again. An error changes nothing and is logged.
async fn reload(control: &Control, manager: &Manager) {
    let mut states = vec![NotifyState::Reloading];
    states.extend(NotifyState::monotonic_usec_now().ok());
    manager.tell(&states);
    let control = control.clone();
    let applied = tokio::task::spawn_blocking(move || {
        let spec = control.source.read()?;
        let changes = control.engine.apply(&spec, false).map_err(|e| e.to_string())?;
        tell_hidden(&control.engine);
        Ok::<_, String>(changes)
    });
    match applied.await {
        Ok(Ok(changes)) => {
            http::tell(&changes);
            info!(changes = changes.len(), "the configuration was applied again");
        }
        Ok(Err(why)) => error!(event = "configuration", "the configuration was not applied: {why}"),
        Err(e) => error!("the configuration was not applied: {e}"),
    }
    manager.tell(&[NotifyState::Ready]);
}
