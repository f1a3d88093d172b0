//! `sidecore place` with the real daemon: this process is the guest, one of its threads has the name of a
//! vCPU.

use crate::rig;
use std::sync::mpsc::channel;
use std::time::Instant;

use crate::rig::{Testbed, LIMIT};
use serde_json::Value;
use sidecore_driver::{Config, Frontend, NetDriver};

#[test]
fn vcpus_are_found_behind_their_ports_and_pinned_on_request() {
    let last = rig::last_of_two_processors();
    let bed = Testbed::new();
    let port = format!("a=vhost-user:{}", bed.at("a.sock"));
    let _daemon = bed.daemon(&["--cores", &last.to_string(), "--port", &port]);
    let look = || -> Value { serde_json::from_str(&bed.ok(&["place", "--json"])).unwrap() };
    let empty = look();
    assert_eq!((&empty["guests"], &empty["findings"]), (&Value::Array(vec![]), &Value::Array(vec![])));
    assert!(empty["processors"].as_array().unwrap().len() > last);
    assert!(!empty["nodes"].as_array().unwrap().is_empty());
    assert_eq!(empty["cores"][0]["cpu"], last);

    let driver =
        NetDriver::start(Frontend::connect(bed.path("a.sock"), LIMIT).unwrap(), Config::default()).unwrap();
    let (stop, stopped) = channel::<()>();
    let vcpu = std::thread::Builder::new().name("CPU 3/KVM".to_owned());
    let vcpu = vcpu.spawn(move || stopped.recv().unwrap_err()).unwrap();
    let deadline = Instant::now() + LIMIT;
    let answer = loop {
        let answer = look();
        if answer["cores"][0]["queues"].as_array().is_some_and(|queues| !queues.is_empty()) {
            break answer;
        }
        assert!(Instant::now() < deadline, "{answer}");
    };
    assert_eq!(answer["cores"][0]["queues"][0]["port"], "a");
    let guest = &answer["guests"][0];
    assert_eq!((&guest["process"], &guest["ports"][0]), (&std::process::id().into(), &"a".into()));
    assert_eq!(guest["vcpus"].as_array().unwrap().len(), 1, "{guest}");
    assert_eq!((&guest["vcpus"][0]["number"], &guest["vcpus"][0]["name"]), (&3.into(), &"CPU 3/KVM".into()));
    assert!(guest["memory_kib"].as_object().is_some_and(|nodes| !nodes.is_empty()), "{guest}");
    let [finding] = &answer["findings"].as_array().unwrap()[..] else { panic!("{answer}") };
    let (what, mend) = (finding["what"].as_str().unwrap(), finding["mend"].as_str().unwrap());
    assert!(what.contains(&format!("vCPU 3 of a (thread {})", guest["vcpus"][0]["thread"])), "{what}");
    assert!(what.contains(&format!("on processor {last}, which is I/O core 0's")), "{what}");
    assert!(mend.starts_with("taskset -cp ") && finding["mended"] == false, "{finding}");
    let text = bed.ok(&["place"]);
    let fix = format!("to fix it: {mend}");
    for part in ["node 0: processors ", ": I/O core 0", "queue 0 of a", "guest of a: ", &fix] {
        assert!(text.contains(part), "{part} is not in {text}");
    }

    let text = bed.ok(&["place", "--apply"]);
    assert!(text.contains(&format!("fixed: {mend}")), "{text}");
    let text = bed.ok(&["place"]);
    assert!(!text.contains("to fix it") && !text.contains(&format!("on processor {last},")), "{text}");

    // A guest that has left has no process any more.
    drop((stop, driver));
    vcpu.join().unwrap();
    while !look()["guests"].as_array().unwrap().is_empty() {
        assert!(Instant::now() < deadline);
    }
}
