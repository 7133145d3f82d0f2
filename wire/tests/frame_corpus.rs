//! Replays the fuzzers' corpus: every input under `fuzz/corpus` must pass its parser's check.

#[path = "../fuzz/src/lib.rs"]
mod checks;

use std::path::Path;

/// Runs `check` over every input of `target`; fails if there are none.
fn replay(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut inputs = 0;
    for entry in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.unwrap().path();
        let data = std::fs::read(&path).unwrap();
        println!("{}", path.display());
        check(&data);
        // A received frame may be cut off anywhere, so every prefix must pass too.
        for len in 0..data.len() {
            check(&data[..len]);
        }
        inputs += 1;
    }
    assert!(inputs > 0, "no inputs in {}", folder.display());
}

#[test]
fn message() {
    replay("message", checks::message);
}

#[test]
fn view() {
    replay("view", checks::view);
}

#[test]
fn handshake() {
    replay("handshake", checks::handshake);
}

#[test]
fn pfc() {
    replay("pfc", checks::pfc);
}

#[test]
fn vlan() {
    replay("vlan", checks::vlan);
}

#[test]
fn trailer() {
    replay("trailer", checks::trailer);
}

#[test]
fn keyed() {
    replay("keyed", checks::keyed);
}

#[test]
fn responder() {
    replay("responder", checks::responder);
}
