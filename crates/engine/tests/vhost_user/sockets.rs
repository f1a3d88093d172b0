//! Which users may connect, and what may be done with the socket and its file.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;

use sidecore_abi::virtio::features as f;
use sidecore_driver::frontend::Frontend;
use sidecore_driver::net::NetDriver;
use sidecore_engine::device::virtio_net::{NetConfig, VirtioNet};
use sidecore_engine::port::Attachment;
use sidecore_engine::transport::vhost_user::{check_path, Endpoint, SocketError, VhostUser, VhostUserConfig};

use super::{await_status, config, hang_up, pass, Rig, Role, LIMIT};

#[test]
fn one_vmm_at_a_time_and_a_link_that_can_be_cut() {
    let rig = Rig::new("link");
    let mut vu = rig.attach(0, Role::Server);
    let _other = rig.attach(1, Role::Server);
    let mut a = NetDriver::start(rig.meet(0, Role::Server), config(f::EVENT_IDX)).unwrap();
    let mut b = NetDriver::start(rig.meet(1, Role::Server), config(f::EVENT_IDX)).unwrap();
    let second = Frontend::connect(rig.path(0), LIMIT).unwrap();
    assert!(second.features().is_err(), "a second VMM is hung up on");
    pass(&mut a, &mut b, 0..100);
    vu.set_link(false).unwrap();
    await_status(&vu, |status| status.detail == "link set down");
    assert!(UnixStream::connect(rig.path(0)).is_err(), "nobody is to be reached");
    assert!(a.session().frontend.features().is_err());
    assert!(!rig.ports[0].link());
    vu.set_link(true).unwrap();
    a.reconnect(rig.meet(0, Role::Server)).unwrap();
    pass(&mut a, &mut b, 100..200);
    drop(vu);
    assert!(!rig.path(0).exists(), "the socket file goes with the port");
    assert!(!rig.ports[0].link());
}

#[test]
fn socket_files_have_the_mode_asked_for_and_never_replace_anything_alive() {
    let rig = Rig::new("files");
    let endpoint = |mode| Endpoint::Listen { path: rig.path(0), mode, owner: (None, None) };
    let start = |endpoint| {
        let net = NetConfig { queue_pairs: 1, ..NetConfig::default() };
        let device = VirtioNet::new(&net, Arc::clone(&rig.ports[0]), Arc::clone(&rig.cores) as _).unwrap();
        VhostUser::start(VhostUserConfig { endpoint, journal: None }, device)
            .map_err(|e| *e.downcast::<SocketError>().unwrap())
    };
    for mode in [0o600, 0o660, 0o666] {
        let vu = start(endpoint(Some(mode))).unwrap();
        let meta = std::fs::metadata(rig.path(0)).unwrap();
        assert!(meta.file_type().is_socket());
        assert_eq!(meta.permissions().mode() & 0o777, mode);
        assert!(matches!(start(endpoint(None)), Err(SocketError::InUse(_))));
        drop(vu);
        assert!(!rig.path(0).exists());
    }
    // A process that died leaves its socket behind.
    drop(UnixListener::bind(rig.path(0)).unwrap());
    assert!(rig.path(0).exists());
    drop(start(endpoint(None)).unwrap());
    std::fs::File::create(rig.path(0)).unwrap().write_all(b"precious").unwrap();
    assert!(matches!(start(endpoint(None)), Err(SocketError::NoSocket(_))));
    assert_eq!(std::fs::read(rig.path(0)).unwrap(), b"precious");
    let long = PathBuf::from(format!("/{}", "x".repeat(107)));
    let error = check_path(&long).unwrap_err().to_string();
    assert!(error.contains("108 bytes") && error.contains("107"), "{error}");
    assert!(start(Endpoint::Connect { path: long }).is_err());
    let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    assert!(matches!(start(Endpoint::Opened(file)), Err(SocketError::BadDescriptor)));
    let nowhere = PathBuf::from("/nonexistent/dir/x.sock");
    let Err(error) = start(Endpoint::Listen { path: nowhere, mode: None, owner: (None, None) }) else {
        panic!("there is no such directory")
    };
    assert!(error.to_string().contains("/nonexistent/dir/x.sock"), "{error}");
}

#[test]
fn sockets_may_be_handed_over_open() {
    let rig = Rig::new("handed");
    let (ours, theirs) = UnixStream::pair().unwrap();
    let net = || NetConfig { queue_pairs: 1, ..NetConfig::default() };
    let _a = rig.attach_with(0, Endpoint::Opened(ours.into()), net());
    let listener = UnixListener::bind(rig.path(1)).unwrap();
    let _b = rig.attach_with(1, Endpoint::Opened(listener.into()), net());
    let mut a = NetDriver::start(Frontend::new(theirs).unwrap(), config(0)).unwrap();
    for _ in 0..3 {
        let mut b = NetDriver::start(rig.meet(1, Role::Server), config(0)).unwrap();
        pass(&mut a, &mut b, 0..50);
        hang_up(&b);
    }
}
