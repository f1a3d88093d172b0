//! Every call of netmap's API, and the program that goes through it step by step against netmap's rules.
//!
//! The table is the claim, and the test holds it: each function that the headers declare, each ioctl and each
//! request has a row, and the program that the row names makes the call. The programs compare head, cur and
//! tail after every call (`INDICES` in `tests/c/check.h`); `c_api.rs` and, where the daemon is needed,
//! `sidecore/tests/pktgen_netmap.rs` run them.

use std::collections::BTreeSet;
use std::path::Path;

/// Program, and what it covers.
const CALLS: &[(&str, &[&str])] = &[
    // One pair of rings: sync, poll, slots and nonsense.
    (
        "rules",
        &[
            "nmport_open",
            "nmport_close",
            "nm_ring_space",
            "nm_ring_empty",
            "nm_ring_next",
            "NIOCTXSYNC",
            "NIOCRXSYNC",
            "NIOCCTRL",
            "NETMAP_REQ_PORT_INFO_GET",
            "NETMAP_REQ_PORT_HDR_SET",
            "NETMAP_REQ_PORT_HDR_GET",
            "NS_BUF_CHANGED",
            "NS_MOREFRAG",
            "NS_INDIRECT",
            "poll",
        ],
    ),
    ("check.h", &["nm_tx_pending"]),
    // Programs built without us: the system calls.
    (
        "raw",
        &[
            "open",
            "openat",
            "ioctl",
            "mmap",
            "mmap64",
            "close",
            "dup",
            "dup2",
            "dup3",
            "poll",
            "ppoll",
            "select",
            "pselect",
            "epoll_create1",
            "epoll_ctl",
            "epoll_wait",
            "epoll_pwait",
            "NIOCREGIF",
            "NIOCGINFO",
            "NIOCCONFIG",
            "NETMAP_REQ_REGISTER",
            "NETMAP_REQ_POOLS_INFO_GET",
            "NR_EXCLUSIVE",
            "NR_RX_RINGS_ONLY",
        ],
    ),
    // The older library, several rings, single steps, memory alone.
    (
        "calls",
        &[
            "nm_open",
            "nm_mmap",
            "nm_close",
            "nm_inject",
            "nm_dispatch",
            "nm_nextpkt",
            "nm_pkt_copy",
            "nmport_new",
            "nmport_parse",
            "nmport_undo_parse",
            "nmport_register",
            "nmport_undo_register",
            "nmport_mmap",
            "nmport_undo_mmap",
            "nmport_delete",
            "nmport_prepare",
            "nmport_undo_prepare",
            "nmport_open_desc",
            "nmport_undo_open_desc",
            "nmport_clone",
            "nmport_inject",
            "nmport_extmem_from_file",
            "nmport_disable_option",
            "nmport_enable_option",
            "nmreq_get_mem_id",
            "nmctx_get",
            "nmctx_malloc",
            "nmctx_free",
            "nmctx_lock",
            "nmctx_unlock",
            "nmctx_ferror",
            "NS_REPORT",
            "NR_TIMESTAMP",
            "NR_NO_TX_POLL",
            "NR_REG_NULL",
        ],
    ),
    // Names and requests, without a port: there are no indices.
    (
        "names",
        &[
            "nmport_extmem",
            "nmport_extmem_getinfo",
            "nmport_offset",
            "nmreq_header_init",
            "nmreq_header_decode",
            "nmreq_register_decode",
            "nmreq_options_decode",
            "nmreq_push_option",
            "nmreq_remove_option",
            "nmreq_find_option",
            "nmreq_option_name",
            "nmctx_set_default",
            "nmctx_set_threadsafe",
        ],
    ),
    ("pipes", &["nmport_open", "NS_BUF_CHANGED", "NS_MOREFRAG"]),
    ("monitors", &["NS_TXMON"]),
    ("released", &["NS_TXMON"]),
    ("passed", &["nmport_mmap", "nm_mmap", "mmap", "NIOCRXSYNC", "NIOCTXSYNC", "poll"]),
    ("shared", &["NS_BUF_CHANGED"]),
    (
        "csb",
        &[
            "NETMAP_REQ_CSB_ENABLE",
            "NETMAP_REQ_SYNC_KLOOP_START",
            "NETMAP_REQ_SYNC_KLOOP_STOP",
            "NETMAP_REQ_OPT_CSB",
            "NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS",
            "nm_sync_kloop_appl_read",
            "nm_sync_kloop_appl_write",
        ],
    ),
    ("host", &["last_tx_ring", "last_rx_ring"]),
    // Ports and switches, on the daemon.
    (
        "control",
        &[
            "NETMAP_REQ_VALE_ATTACH",
            "NETMAP_REQ_VALE_DETACH",
            "NETMAP_REQ_VALE_LIST",
            "NETMAP_REQ_VALE_NEWIF",
            "NETMAP_REQ_VALE_DELIF",
            "NETMAP_REQ_VALE_POLLING_ENABLE",
            "NETMAP_REQ_VALE_POLLING_DISABLE",
            "NETMAP_BDG_ATTACH",
            "NETMAP_BDG_DETACH",
            "NETMAP_BDG_LIST",
            "NETMAP_BDG_NEWIF",
            "NETMAP_BDG_DELIF",
            "NETMAP_BDG_VNET_HDR",
            "NETMAP_VNET_HDR_GET",
        ],
    ),
];

/// What the headers name that is no call by itself, and why.
const EXEMPT: &[(&str, &str)] = &[
    ("nmreq_foreach_option", "a macro for loops; the parser that names.c goes through uses it"),
    ("nmreq_free_options", "called by nmport_undo_parse"),
    ("nm_stst_barrier", "what nm_sync_kloop_appl_write is made of"),
    ("nm_ldld_barrier", "what nm_sync_kloop_appl_read is made of"),
];

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The words of C source `text`, comments left out; with a mark whether a parenthesis follows.
fn words(text: &str) -> BTreeSet<(String, bool)> {
    let mut bare = String::new();
    for (i, part) in text.split("/*").enumerate() {
        bare.push_str(if i == 0 { part } else { part.split_once("*/").map_or("", |(_, rest)| rest) });
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = BTreeSet::new();
    let mut rest = bare.as_str();
    while let Some(start) = rest.find(is_word) {
        let end = rest[start..].find(|c| !is_word(c)).map_or(rest.len(), |len| start + len);
        found.insert((rest[start..end].to_owned(), rest[end..].starts_with('(')));
        rest = &rest[end..];
    }
    found
}

#[test]
fn every_call_has_a_program() {
    let mut declared = BTreeSet::new();
    for header in
        ["../../include/libnetmap.h", "../../include/net/netmap_user.h", "../../include/net/netmap.h"]
    {
        for (word, called) in words(&read(header)) {
            let function = ["nm_", "nmport_", "nmreq_", "nmctx_"].iter().any(|start| word.starts_with(start));
            let request = word.starts_with("NETMAP_REQ_") && !word.starts_with("NETMAP_REQ_OPT_");
            let size = ["NETMAP_REQ_IFNAMSIZ", "NETMAP_REQ_MAXSIZE"].contains(&word.as_str());
            if function && called || word.starts_with("NIOC") || request && !size {
                declared.insert(word);
            }
        }
    }
    let rows: BTreeSet<&str> = CALLS.iter().flat_map(|(_, calls)| calls.iter().copied()).collect();
    let exempt: BTreeSet<&str> = EXEMPT.iter().map(|(call, _)| *call).collect();
    let missing: Vec<_> = declared
        .iter()
        .filter(|call| !rows.contains(call.as_str()) && !exempt.contains(call.as_str()))
        .collect();
    assert!(missing.is_empty(), "no program goes through {missing:?}");
    assert!(declared.len() > 50, "the headers are not read right: {declared:?}");
    for call in &exempt {
        assert!(declared.contains(*call) && !rows.contains(call), "{call} needs no exemption");
    }
}

#[test]
fn each_program_makes_the_calls_that_its_row_has() {
    for (program, calls) in CALLS {
        let file = if program.ends_with(".h") { (*program).to_owned() } else { format!("{program}.c") };
        let made: BTreeSet<String> =
            words(&read(&format!("tests/c/{file}"))).into_iter().map(|(word, _)| word).collect();
        // Half of the programs' calls are in what they share.
        let shared: BTreeSet<String> =
            words(&read("tests/c/check.h")).into_iter().map(|(word, _)| word).collect();
        for call in *calls {
            assert!(made.contains(*call) || shared.contains(*call), "tests/c/{file} does not call {call}");
        }
    }
}
