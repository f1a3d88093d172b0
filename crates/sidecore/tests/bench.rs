//! The benchmarks of the scheduler and of disks run, and say what they promise to say. What their numbers are
//! is no matter here: a test machine does other things, too.

use crate::rig;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::rig::Testbed;
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;

/// All of them want the same two processors.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// What `sidecore bench NAME --quick --json` prints.
fn bench(name: &str) -> Value {
    bench_with(name, &[])
}

/// Runs a bench with further words.
fn bench_with(name: &str, more: &[&str]) -> Value {
    rig::last_of_two_processors();
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
    let output = command.args(["bench", name, "--quick", "--json"]).args(more).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "bench {name}: {errors}");
    assert!(errors.contains("round 1/1: "), "bench {name} tells how far it is: {errors}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["version"], &answer["bench"]), (&1.into(), &name.into()));
    assert!(!answer["rows"].as_array().unwrap().is_empty());
    answer
}

/// The figure that `sidecore bench draw` makes of an answer; all its numbers are some.
fn drawn(answer: &Value) -> String {
    let bed = Testbed::new();
    bed.write("result.json", &answer.to_string());
    bed.ok(&["bench", "draw", "result.json", "picture.svg"]);
    let picture = std::fs::read_to_string(bed.path("picture.svg")).unwrap();
    assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
    picture
}

/// How many points and bars a figure has. Each picture's ground is a rectangle, too.
fn marks(picture: &str) -> usize {
    picture.matches("<circle ").count() + picture.matches("<rect x=").count()
}

/// The summary's keys and numbers, which are all there.
fn summary(answer: &Value) -> Vec<(&str, f64)> {
    let summary = answer["summary"].as_object().unwrap();
    summary.iter().map(|(key, value)| (key.as_str(), value.as_f64().unwrap())).collect()
}

/// Says how far the processors were from each other during the one sample that there is.
fn is_labelled(modes: &Value) {
    let modes = modes.as_object().unwrap_or_else(|| panic!("{modes}"));
    let known = ["near", "far", "mixed", "unknown"];
    assert!(modes.keys().all(|mode| known.contains(&mode.as_str())), "{modes:?}");
    assert_eq!(modes.values().map(|of| of["samples"].as_u64().unwrap()).sum::<u64>(), 1, "{modes:?}");
}

/// Every row does.
fn labelled(answer: &Value) {
    answer["rows"].as_array().unwrap().iter().for_each(|row| is_labelled(&row["modes"]));
}

/// Every row has these numbers, above zero.
fn positive(answer: &Value, keys: &[&str]) {
    for row in answer["rows"].as_array().unwrap() {
        for key in keys {
            assert!(row[key].as_f64().is_some_and(|number| number > 0.0), "{key}: {row}");
        }
    }
}

#[test]
fn share() {
    let answer = bench("share");
    positive(&answer, &["rate", "p50_us", "p99_us", "jain"]);
    let [("jain", jain), ("linear_until", until), ("ratio_at_7", ratio)] = summary(&answer)[..] else {
        panic!("{answer}")
    };
    assert!(jain > 0.0 && jain <= 1.0 && until >= 0.0 && ratio > 0.0, "{answer}");
    labelled(&answer);
    // Three kinds of work grow with the guests: the share of linear and the latency of each with 1, 2 and 7
    // guests in two ways.
    assert_eq!(marks(&drawn(&answer)), 2 * 3 * 3 * 2);
}

#[test]
fn containment() {
    let answer = bench("containment");
    positive(&answer, &["ns_per_frame", "ratio"]);
    // Three kinds of ports with six measures each, of which the first is what all are compared with.
    let summary = summary(&answer);
    assert_eq!(summary.len(), 3 * 6, "{answer}");
    let plain = summary.iter().filter(|(name, _)| name.ends_with("_plain"));
    assert_eq!(plain.map(|(_, ratio)| *ratio).collect::<Vec<_>>(), [1.0; 3], "{answer}");
    labelled(&answer);
}

#[test]
fn policy() {
    let answer = bench("policy");
    positive(&answer, &["ns_per_frame", "ratio"]);
    let summary = summary(&answer);
    let (beside, own): (Vec<_>, Vec<_>) =
        summary.iter().map(|(name, _)| *name).partition(|name| *name == "ratio_ovs");
    // Open vSwitch is there, or it is said why not.
    assert_eq!(beside.is_empty(), answer["missing"]["ovs"].is_string(), "{answer}");
    answer["beside"].as_array().unwrap().iter().for_each(|row| is_labelled(&row["modes"]));
    assert_eq!(
        own,
        [
            "acl_1000_cost",
            "again_cost",
            "flows_cost",
            "mirror_cost",
            "off_cost",
            "plain_cost",
            "receiver_cost",
            "vlan_cost"
        ],
        "{answer}"
    );
    labelled(&answer);
}

#[test]
fn vxlan() {
    let answer = bench("vxlan");
    positive(&answer, &["median"]);
    assert_eq!(answer["notes"], serde_json::json!([]), "{answer}");
    let keys: Vec<_> = summary(&answer).into_iter().map(|(key, _)| key).collect();
    let ratios = ["ratio_kernel_1500", "ratio_kernel_64", "ratio_kernel_cut_tcp", "ratio_kernel_tcp"];
    assert_eq!(keys, [&["duplicates", "macs_20k_s", "move_ms"][..], &ratios].concat());
    labelled(&answer);
}

#[test]
fn mix() {
    let answer = bench("mix");
    positive(&answer, &["p99_us", "p99_alone_us", "stream_mpps", "stream_alone_mpps"]);
    let [("p99_vs_alone", p99), ("stream_loss", loss)] = summary(&answer)[..] else { panic!("{answer}") };
    assert!(p99 > 0.0 && loss <= 1.0, "{answer}");
    labelled(&answer);
    answer["rows"].as_array().unwrap().iter().for_each(|row| is_labelled(&row["stream_modes"]));
    // Latency and rate of four ways with 1 and 6 streams, in the mix and alone.
    assert_eq!(marks(&drawn(&answer)), 2 * 4 * 2 * 2);
}

#[test]
fn parts() {
    let answer = bench("parts");
    positive(&answer, &["rate", "ratio", "p50_us"]);
    let keys: Vec<_> = summary(&answer).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["polling", "saved_interrupts", "scheduling_only", "thread_per_device"]);
    labelled(&answer);
    // Four ways with 1 and 3 guests: two kinds of work, and notifications where there are some.
    assert!(marks(&drawn(&answer)) > 2 * 4 * 2, "{answer}");
}

#[test]
fn budget() {
    let answer = bench("budget");
    positive(&answer, &["granted", "time", "frames"]);
    let [("worst_error", error)] = summary(&answer)[..] else { panic!("{answer}") };
    assert!(error >= 0.0, "{answer}");
    labelled(&answer);
    assert_eq!(marks(&drawn(&answer)), 3 * 2);
}

#[test]
fn vsr() {
    let answer = bench_with("vsr", &["--figure", "13"]);
    positive(&answer, &["peak_mpps"]);
    labelled(&answer);
    // Five lengths of queues, behind wires and switches, with an I/O core and with threads; each with two
    // loads.
    assert_eq!(marks(&drawn(&answer)), 5 * 2 * 2 * 2);
    let ratio = |key: &str| answer["summary"][key].as_f64().unwrap();
    assert!(ratio("overload_ratio") > 0.0 && ratio("overload_ratio_threads") > 0.0, "{answer}");
    let answer = bench_with("vsr", &["--figure", "router"]);
    let number = |key: &str| answer["summary"][key].as_f64().unwrap();
    assert!(number("mpps") > 0.0 && number("ratio_threads") > 0.0, "{answer}");
    labelled(&answer);
    a_benchmark_that_ends_early_puts_the_kernels_limit_back();
}

#[test]
fn vsr_with_a_processor_for_each_thread() {
    let count = |answer: &Value, how: &str| {
        answer["rows"].as_array().unwrap().iter().filter(|row| row["how"] == how).count()
    };
    for (figure, measured, model, calibrated) in [("2", 4, 1, 4), ("5", 2, 3, 2), ("9", 3, 1, 1)] {
        let answer = bench_with("vsr", &["--figure", figure]);
        positive(&answer, &["peak_mpps"]);
        labelled(&answer);
        assert_eq!((count(&answer, "measured"), count(&answer, "model")), (measured, model), "{answer}");
        // What is reckoned is never shown as if it had been measured.
        for row in answer["rows"].as_array().unwrap() {
            assert_eq!(row["line"].as_str().unwrap().contains("(model)"), row["how"] == "model", "{row}");
        }
        let picture = drawn(&answer);
        assert_eq!(picture.matches("(model)").count(), 1 + model, "{picture}");
        let costs = answer["costs"].as_object().unwrap();
        assert!(costs.values().all(|cost| cost.as_f64().unwrap() > 0.0), "{answer}");
        let calibration = answer["calibration"].as_array().unwrap();
        assert_eq!(calibration.len(), calibrated, "{answer}");
        assert!(calibration.iter().all(|line| line["ratio"].is_number()), "{answer}");
        let [("calibration_worst", worst)] = summary(&answer)[..] else { panic!("{answer}") };
        assert!(worst.is_finite(), "{answer}");
    }
    // Reservations of I/O with periods of 10 and 200 ms; of the guest behind wires and switches, too.
    for (figure, lines) in [("10", 2), ("11", 2 * 2)] {
        let answer = bench_with("vsr", &["--figure", figure]);
        positive(&answer, &["peak_mpps"]);
        labelled(&answer);
        assert_eq!(count(&answer, "measured"), lines, "{answer}");
        let keys: Vec<_> = summary(&answer).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["r2", "r2_short"], "{answer}");
        assert_eq!(marks(&drawn(&answer)), lines * 2);
    }
}

#[test]
fn vsr_of_several_routers() {
    // Two members, and the paper's two points; three lines of two loads, and the paper's two, one and one.
    for (figure, keys, points) in
        [("18", &["speedup_2"][..], 2 + 2), ("19", &["stage_headroom", "stage_headroom_whole"], 3 * 2 + 4)]
    {
        let answer = bench_with("vsr", &["--figure", figure]);
        positive(&answer, &["peak_mpps"]);
        labelled(&answer);
        assert!(answer["notes"][0].as_str().unwrap().contains("SCHED_DEADLINE"), "{answer}");
        let summary = summary(&answer);
        assert_eq!(summary.iter().map(|(key, _)| *key).collect::<Vec<_>>(), keys, "{answer}");
        assert!(summary.iter().all(|(_, ratio)| *ratio > 0.0), "{answer}");
        assert_eq!(marks(&drawn(&answer)), points, "{answer}");
    }
}

/// It pins threads that have reservations, so it turns off the limit of the whole machine. It may not stay
/// off.
fn a_benchmark_that_ends_early_puts_the_kernels_limit_back() {
    rig::needs_root();
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = || std::fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").unwrap();
    let before = limit();
    assert_ne!(before, "-1\n", "write 950000 to /proc/sys/kernel/sched_rt_runtime_us");
    for signal in [Signal::INT, Signal::KILL] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
        let command = command.args(["bench", "vsr", "--figure", "3", "--quick"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        rig::until("limit of -1", || limit() == "-1\n");
        kill_process(Pid::from_child(&child), signal).unwrap();
        rig::wait(&mut child);
        rig::until("limit as before", || limit() == before);
    }
}

#[test]
fn group() {
    let answer = bench("group");
    positive(&answer, &["drained_in_5_lives", "balance"]);
    let number = |key: &str| answer["summary"][key].as_f64().unwrap();
    // These hold on any machine, unless it lets a flow wait for 100 ms.
    assert_eq!(number("reordered"), 0.0, "{answer}");
    assert!((1.0..1.2).contains(&number("balance")) && number("balance_100k") < 1.2, "{answer}");
    assert_eq!(marks(&drawn(&answer)), 2);
}

#[test]
fn grants() {
    let answer = bench("grants");
    positive(&answer, &["measured"]);
    let keys: Vec<_> = summary(&answer).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["p99_ratio", "rate_error", "reclaim_worst_error", "weight_worst_error"]);
    let rows = answer["rows"].as_array().unwrap();
    let knobs: Vec<_> = rows.iter().map(|row| row["knob"].as_str().unwrap()).collect();
    let reclaims = ["reclaim"; 4];
    assert_eq!(knobs, [&["rate", "weight"], &reclaims[..], &["class", "class", "class"]].concat());
    for row in &rows[1..6] {
        let part = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
        assert!(["granted", "frames", "core_ran"].iter().all(|key| part(key) > 0.0), "{row}");
        // Parts of 20 ms, on a machine that may be busy between the readings of two clocks.
        assert!(part("measured") < 2.0 && part("core_ran") < 2.0, "parts of one core: {row}");
    }
    labelled(&answer);
    // Received and granted; the same by time and by frames; that of four; three rules.
    assert_eq!(marks(&drawn(&answer)), 2 + 3 + 3 * 4 + 3);
}

#[test]
fn moves() {
    let answer = bench("move");
    // On a busy machine several spells may pass between two looks of the flow's thread: those have no pause
    // of their own.
    positive(&answer, &["spells", "mpps", "sent", "pause_p99_us"]);
    assert!(answer["rows"].as_array().unwrap().iter().all(|row| row["pause_p50_us"].is_number()), "{answer}");
    assert!(answer["one_processor"].is_boolean());
    let [("lost", lost), ("pause_p99_us", pause), ("reordered", reordered)] = summary(&answer)[..] else {
        panic!("{answer}")
    };
    // These two hold on any machine.
    assert!(lost == 0.0 && reordered == 0.0 && pause > 0.0, "{answer}");
    labelled(&answer);
    // Half, 99 of 100 and the longest, where there is a pause.
    assert!((6..=9).contains(&marks(&drawn(&answer))), "{answer}");
}

#[test]
fn idle() {
    let answer = bench("idle");
    positive(&answer, &["ns_alone", "ns_among", "ratio"]);
    let summary = summary(&answer);
    let keys: Vec<_> = summary.iter().map(|(key, _)| *key).collect();
    let asked = ["asleep_p50_us", "asleep_p99_us", "at_work_p50_us", "at_work_p99_us", "bare_thread_p50_us"];
    assert_eq!(keys, [&asked[..], &["bare_thread_p99_us", "frame_cost_ratio", "idle_share"]].concat());
    assert!(summary.iter().all(|(_, value)| *value >= 0.0), "{answer}");
    let row = &answer["rows"][0];
    let count = |key: &str| row[key].as_array().unwrap().len();
    assert_eq!(["asleep_us", "at_work_us", "bare_thread_us"].map(count), [8, 8, 8]);
    // Silent queues go cold, and a burst wakes them: on any machine.
    assert!(row["woken"].as_u64().unwrap() > 0, "{answer}");
    ["ns_alone", "ns_among", "at_work_us"].iter().for_each(|key| is_labelled(&answer["modes"][key]));
    // Twenty-one percentiles each.
    assert_eq!(marks(&drawn(&answer)), 3 * 21);
}

#[test]
fn blk() {
    let found = |program: &str| {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&paths).any(|folder| folder.join(program).exists())
    };
    rig::needs("qemu-storage-daemon", "qemu-system-common");
    let answer = bench("blk");
    positive(&answer, &["iops", "iops_per_guest", "p50_us", "p99_us"]);
    for row in answer["rows"].as_array().unwrap() {
        // In so short a time fio may have one request, and no processor time that the kernel has counted.
        assert!(row["way"] == "host (fio)" || row["cycles_per_request"].as_f64().unwrap() > 0.0, "{row}");
    }
    let of = |way: &str| answer["rows"].as_array().unwrap().iter().filter(|row| row["way"] == way).count();
    // Reads and writes at two depths by two numbers of guests, two kinds in sequence, two numbers of paced
    // guests; the host has one guest, and none that is paced.
    let host = found("fio");
    assert_eq!((of("qemu-storage-daemon"), of("sidecore")), (12, 12));
    assert_eq!(of("host (fio)"), if host { 6 } else { 0 });
    for row in answer["rows"].as_array().unwrap() {
        // The host's requests take no second processor.
        match row["way"] == "host (fio)" {
            true => assert_eq!(row["modes"], serde_json::json!({})),
            false => is_labelled(&row["modes"]),
        }
    }
    answer["pings"].as_array().unwrap().iter().for_each(|ping| is_labelled(&ping["modes"]));
    let summary = answer["summary"].as_object().unwrap();
    for (key, measured) in [
        ("iops_ratio_qd32", true),
        ("latency_ratio_qd1", true),
        ("of_host_io_uring", host),
        ("sequential_of_host", host),
        ("ping_p99_vs_alone", true),
    ] {
        assert_eq!(summary[key].as_f64().is_some_and(|value| value > 0.0), measured, "{key}: {answer}");
    }
    assert!(marks(&drawn(&answer)) > 0, "{answer}");
}

/// What is compared with us may not be installed: the answer says that, and has all the rest.
#[test]
fn a_program_that_is_missing_is_named() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let bed = Testbed::new();
    std::fs::create_dir(bed.path("bin")).unwrap();
    for tool in ["setpriv", "stdbuf", "taskset", "chrt"] {
        let paths = std::env::var_os("PATH").unwrap();
        let found = std::env::split_paths(&paths).map(|folder| folder.join(tool)).find(|path| path.exists());
        std::os::unix::fs::symlink(found.expect(tool), bed.path("bin").join(tool)).unwrap();
    }
    let answer = |words: &[&str]| -> Value {
        let output = bed.command().args(words).env("PATH", bed.path("bin")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let words =
        ["bench", "pvp", "--rounds", "1", "--seconds", "0.02", "--size", "64", "--peer", "ovs-normal"];
    let pvp = answer(&[&words[..], &["--json"]].concat());
    let of =
        |name: &str| pvp["results"].as_array().unwrap().iter().find(|row| row["candidate"] == name).unwrap();
    assert!(of("sidecore")["mpps"]["median"].as_f64().unwrap() > 0.0, "{pvp}");
    assert!(pvp["missing"]["ovs-normal"].as_str().unwrap().contains("openvswitch-switch-dpdk"), "{pvp}");
    let blk = answer(&["bench", "blk", "--quick", "--json"]);
    assert!(blk["missing"]["qemu-storage-daemon"].as_str().unwrap().contains("qemu-system-common"), "{blk}");
    assert!(!blk["rows"].as_array().unwrap().is_empty());
}

#[test]
fn fib() {
    let answer = bench("fib");
    let rows = answer["rows"].as_array().unwrap();
    let families: Vec<&str> = rows.iter().map(|row| row["family"].as_str().unwrap()).collect();
    assert_eq!(families, ["IPv4", "IPv6"]);
    for row in rows {
        let keys: Vec<&str> =
            row["rates"].as_array().unwrap().iter().map(|r| r["keys"].as_str().unwrap()).collect();
        assert_eq!(keys, ["random", "routed", "flows"]);
        assert!(row["rates"].as_array().unwrap().iter().all(|rate| rate["mlookups"].as_f64().unwrap() > 0.0));
        assert!(row["update_us_p99"].as_f64().unwrap() >= row["update_us_median"].as_f64().unwrap());
        is_labelled(&row["modes"]);
        assert!(row["changes"].as_f64().unwrap() > 0.0 && row["bytes"].as_u64().unwrap() > 0, "{row}");
    }
    let [("mlookups_1m", rate), ("update_us_median", update)] = summary(&answer)[..] else {
        panic!("{answer}")
    };
    assert!(rate > 0.0 && update > 0.0, "{answer}");
    assert_eq!(marks(&drawn(&answer)), 2 * 3);
}

#[test]
fn router() {
    let answer = bench("router");
    let rows = answer["rows"].as_array().unwrap();
    let ours: Vec<_> = rows.iter().filter(|row| row["candidate"] == "sidecore").collect();
    for ports in ["ring", "virtio"] {
        let of = ours.iter().filter(|row| row["ports"] == ports);
        let families: Vec<_> = of.map(|row| row["family"].as_str().unwrap()).collect();
        assert_eq!(families, ["IPv4", "IPv4", "IPv6", "IPv6"], "{ports}");
    }
    assert!(
        ours.iter().all(|row| row["lost"] == 0 && row["ns_per_frame"].as_f64().unwrap() > 0.0),
        "{answer}"
    );
    assert!(rows.iter().all(|row| row["mpps"].as_f64().unwrap() > 0.0), "{answer}");
    labelled(&answer);
    let summary = answer["summary"].as_object().unwrap();
    assert!(
        ["mpps_1m", "mpps_1m_virtio"].iter().all(|key| summary[*key].as_f64().unwrap() > 0.0),
        "{answer}"
    );
    let delays = answer["delays"].as_array().unwrap();
    for ports in ["ring", "virtio"] {
        let of = delays.iter().filter(|row| row["ports"] == ports && row["candidate"] != "l3fwd");
        let of: Vec<_> = of.collect();
        assert_eq!(
            of.iter().map(|row| row["candidate"].as_str().unwrap()).collect::<Vec<_>>(),
            ["sidecore", "wire"]
        );
        for row in of {
            let [p50, p99] = ["p50_us", "p99_us"].map(|key| row[key].as_f64().unwrap());
            assert!(p50 > 0.0 && p50 <= p99, "{row}");
            assert!(row["lost"].is_u64(), "{row}");
        }
    }
    assert!(summary["delay_p50_us"].as_f64().unwrap() > 0.0, "{answer}");
    // It is there, or the output says why not.
    let notes = answer["notes"].as_array().unwrap();
    let says_why = notes.iter().any(|note| note.as_str().unwrap().starts_with("l3fwd: "));
    assert_eq!(summary["ratio_l3fwd"].is_null(), says_why, "{answer}");
}

/// What every row of `rfc2544` has.
fn report(answer: &Value) {
    for row in answer["rows"].as_array().unwrap() {
        let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value}: {row}"));
        let (ndr, pdr) = (number(&row["ndr"]["mpps"]["mean"]), number(&row["pdr"]["mpps"]["mean"]));
        assert!(pdr > 0.0 && ndr <= pdr * 1.06, "less may pass without loss than with some: {row}");
        let loads: Vec<_> =
            row["latency"].as_array().unwrap().iter().map(|it| number(&it["percent_of_ndr"])).collect();
        assert_eq!(loads, [10.0, 50.0, 90.0, 100.0]);
        for latency in row["latency"].as_array().unwrap() {
            let [p50, p99, max] = ["p50_us", "p99_us", "max_us"].map(|key| number(&latency[key]));
            assert!(p50 > 0.0 && p50 <= p99 && p99 <= max * 1.001, "{latency}");
            is_labelled(&latency["modes"]);
        }
        is_labelled(&row["modes"]);
        assert_eq!(row["repetition_modes"].as_array().unwrap().len(), 1);
        let trials = row["trials_by_mode"].as_object().unwrap().values();
        assert!(trials.map(|count| count.as_u64().unwrap()).sum::<u64>() > 0, "{row}");
        let curve = row["curve"].as_array().unwrap();
        assert!(curve.len() >= 2, "{row}");
        for point in curve {
            let stages = point["stages"].as_object().unwrap();
            assert_eq!(stages["unexplained"], 0, "the daemon names every loss: {point}");
            let [offered, delivered] = ["offered_mpps", "delivered_mpps"].map(|key| number(&point[key]));
            assert!(offered > 0.0 && delivered <= offered * 1.001, "{point}");
        }
        assert!(
            number(&row["back_to_back"]["frames"]["mean"]) >= 0.0 && number(&row["trials"]) > 10.0,
            "{row}"
        );
    }
    for own in answer["generator"].as_array().unwrap() {
        assert!(own["mpps"].as_f64().unwrap() > 0.0, "{answer}");
    }
}

#[test]
fn rfc2544() {
    let file = std::env::temp_dir().join(format!("sc-rfc2544-{}.svg", std::process::id()));
    let answer = bench_with("rfc2544", &["--svg", &file.to_string_lossy()]);
    report(&answer);
    let sizes: Vec<_> =
        answer["rows"].as_array().unwrap().iter().map(|row| row["size"].as_str().unwrap()).collect();
    assert_eq!(sizes, ["64", "1518"]);
    for row in answer["rows"].as_array().unwrap() {
        assert!(row["reset_ms"]["mean"].as_f64().unwrap() > 0.0, "a kill is noticed: {row}");
        assert!(row["recovery_ms"]["mean"].as_f64().unwrap() >= 0.0, "{row}");
    }
    let summary = answer["summary"].as_object().unwrap();
    assert_eq!((&summary["candidate"], &summary["size"]), (&"sidecore".into(), &"64".into()));
    assert!(summary["ndr_mpps"].is_number() && summary["p99_us_at_50"].as_f64().unwrap() > 0.0);
    assert!(summary["ratio_testpmd"].is_null(), "nobody was beside us");
    let svg = std::fs::read_to_string(&file).unwrap();
    let _ = std::fs::remove_file(&file);
    assert_eq!(svg.matches("<polyline").count(), 1 + 2 * (1 + 1 + 2), "three charts for each size");
}

/// The ports of a daemon that runs: its drop counters explain what is lost.
#[test]
fn rfc2544_ring_ports_of_a_daemon() {
    let bed = rig::Testbed::new();
    let _daemon = bed.daemon(&["--cores", "1", "--port", "a=ring:a", "--port", "b=ring:b"]);
    let (a, b, socket) = (bed.at("ring/a"), bed.at("ring/b"), bed.at("control.sock"));
    let words = ["--ports", &a, &b, "--socket", &socket, "--sizes", "128", "--flows", "100"];
    let answer = bench_with("rfc2544", &words);
    report(&answer);
    let row = &answer["rows"][0];
    assert_eq!((&row["candidate"], &row["size"]), (&"target".into(), &"128".into()));
    assert!(row["reset_ms"].is_null(), "a daemon that somebody else has started is left alone");
}

/// What is not there is told at once, before the tester is measured.
#[test]
fn rfc2544_looks_for_its_target_first() {
    let bed = rig::Testbed::new();
    for (target, why) in
        [("interface:nosuch0,nosuch1", "nosuch0"), ("vhost-user:/nosuch/a,/nosuch/b", "/nosuch/a")]
    {
        let said = bed.fails(&["bench", "rfc2544", "--target", target]);
        assert!(said.contains(why) && !said.contains("the tester alone"), "{said}");
    }
}

#[test]
fn rfc2544_router_with_flows_of_mixed_sizes() {
    let answer = bench_with("rfc2544", &["--router", "--imix", "--flows", "1000"]);
    report(&answer);
    let row = &answer["rows"][0];
    assert_eq!((&row["candidate"], &row["size"]), (&"sidecore-router".into(), &"imix".into()));
}

#[test]
fn ptnet() {
    let answer = bench("ptnet");
    for part in ["rows", "batches"] {
        for row in answer[part].as_array().unwrap() {
            assert!(row["mpps"].as_f64().is_some_and(|mpps| mpps > 0.0), "{row}");
            assert_eq!(row["lost"], 0, "{row}");
        }
    }
    assert_eq!(answer["rows"].as_array().unwrap().len(), 10);
    assert_eq!(answer["batches"].as_array().unwrap().len(), 4);
    let summary = answer["summary"].as_object().unwrap();
    assert!(summary["pipe_60_mpps"].as_f64().is_some_and(|mpps| mpps > 0.0), "{answer}");
    assert!(summary["switch_60_mpps"].as_f64().is_some_and(|mpps| mpps > 0.0), "{answer}");
    assert!(summary["kicks_per_packet"].as_f64().is_some_and(|kicks| kicks >= 0.0), "{answer}");
    let kicks = answer["kicks"].as_array().unwrap();
    assert_eq!(kicks.len(), 5);
    for row in kicks {
        let kicks =
            row["rounds"].as_array().unwrap().iter().filter_map(serde_json::Value::as_f64).sum::<f64>();
        assert_eq!(kicks > 0.0, row["kick_us"].as_f64().is_some_and(|time| time > 0.0), "{row}");
    }
}
