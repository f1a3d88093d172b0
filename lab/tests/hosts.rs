//! One switch over three hosts: what `make demo DEMO=hosts` shows, and it fails where that does.

use sidecore_lab::Result;

#[test]
fn a_guest_moves_to_another_host_of_its_switch() -> Result<()> {
    sidecore_lab::demo::hosts::demo()
}
