//! Wait for a network interface when a service starts: a card may be plugged in later, and a bond may take some time to
//! come up. Without the wait, the service manager would restart the daemon several times, and soon give up.

use std::fs;
use std::time::{Duration, Instant};

use nix::net::if_::if_nametoindex;

use super::{Backoff, Shutdown, Supervisor, interface_name, is_outside_kernel};

/// Interval of checks in the first minute, and the maximum interval later.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Time after which the pauses grow.
const OFTEN: Duration = Duration::from_secs(60);
/// Bit of `/sys/class/net/NAME/flags`: the interface is up (`IFF_UP`).
const UP: u32 = 1;

/// Checks that an interface exists and is up; otherwise returns the reason to wait.
fn usable(name: &str) -> Result<(), String> {
    if is_outside_kernel(name) {
        return Ok(());
    }
    if_nametoindex(name).map_err(|_| format!("there is no interface `{name}` yet"))?;
    let flags = fs::read_to_string(format!("/sys/class/net/{}/flags", interface_name(name))).ok();
    let flags = flags.and_then(|text| u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok());
    match flags {
        Some(flags) if flags & UP == 0 => {
            Err(format!("interface `{name}` is down: `ip link set {name} up` brings it up"))
        }
        _ => Ok(()),
    }
}

/// If a service manager has started this process, waits until the interface exists and is up; the service status shows
/// the reason of the wait. Returns `false` if the daemon has to end.
pub fn wait_for_interface(name: &str, supervisor: Supervisor, ending: &Shutdown) -> bool {
    wait_until(|| usable(name), supervisor, ending)
}

fn wait_until(usable: impl Fn() -> Result<(), String>, supervisor: Supervisor, ending: &Shutdown) -> bool {
    let (start, mut pauses) = (Instant::now(), Backoff::new(PAUSE, PAUSE_MAX));
    let mut told = String::new();
    loop {
        let Err(why) = usable() else { return true };
        if !supervisor.is_there() {
            // The daemon was started by hand: it does not wait, so that the error of opening the link is reported at
            // once.
            return true;
        }
        if why != told {
            tracing::warn!("{why}; it is waited for");
            supervisor.status(&format!("waits: {why}"));
            told = why;
        }
        let pause = if start.elapsed() < OFTEN { PAUSE } else { pauses.pause() };
        if ending.wait_for(pause) {
            return false;
        }
    }
}
