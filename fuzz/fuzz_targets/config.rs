//! Arbitrary configuration: an error that says something, or a specification that says itself again.
#![cfg_attr(feature = "libfuzzer", no_main)]

use sidecore_engine::policy::acl::{read_rules, Acl, Action, Headers};
use sidecore_engine::state::kinds::KINDS;
use sidecore_engine::state::{text, SwitchSpec};
use sidecore_fuzz::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(input) = std::str::from_utf8(data) else { return };
    match text::from_toml("fuzz.toml", input, KINDS) {
        Ok(spec) => assert!(toml_again(&spec)),
        Err(bad) => assert!(!bad.0.is_empty()),
    }
    let _ = text::port(input, KINDS);
    let _ = text::named::<SwitchSpec>(input);
    if let Ok(rules) = read_rules(input.lines().take(8)) {
        let (count, acl) = (rules.len(), Acl::compile(rules, Action::Deny, [0x9e37_79b9; 8]));
        assert!(acl.find(&Headers::find(data, 0)) <= count);
        assert!(acl.hidden().iter().all(|(rule, by)| by < rule));
    }
});

/// What was understood can be written and understood again, to the same meaning.
fn toml_again(spec: &sidecore_engine::state::Spec) -> bool {
    let written = toml::to_string(spec).expect("a specification can be written");
    text::from_toml("again.toml", &written, KINDS).is_ok_and(|again| again == *spec)
}
