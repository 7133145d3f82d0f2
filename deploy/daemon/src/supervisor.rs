//! What a daemon tells the service manager that started it (systemd's `sd_notify` protocol): that it serves, how it is
//! doing, that it is alive, that it ends. Started by anything else, it tells nobody.
//!
//! ```text
//!   main thread:  ready --> every third of WatchdogSec: look --> STATUS=, WATCHDOG=1 --> ... --> stopping
//!                                                         `--> somebody is stuck: STATUS= says who, no WATCHDOG=1
//! ```
//!
//! The look goes to the threads that do the daemon's work, not just to the one that tells. So one that is stuck
//! makes the watchdog end the daemon, which the service manager then starts again.

use std::time::Duration;

use sd_notify::NotifyState;

use super::Ending;

/// Looks within the time after which the watchdog ends the daemon: two may fail.
const LOOKS: u32 = 3;

/// The service manager, if there is one.
#[derive(Clone, Copy, Debug)]
pub struct Supervisor {
    /// After how much silence it ends this process; `None`: never.
    watchdog: Option<Duration>,
}

impl Supervisor {
    /// Who has started this process, as the environment says (`NOTIFY_SOCKET`, `WATCHDOG_USEC`).
    pub fn of_this_process() -> Supervisor {
        Supervisor { watchdog: sd_notify::watchdog_enabled().filter(|time| !time.is_zero()) }
    }

    /// Says what the daemon is doing, for `systemctl status`.
    pub fn status(&self, text: &str) {
        send(&[NotifyState::Status(text)]);
    }

    /// Says that the daemon serves.
    pub fn ready(&self, text: &str) {
        send(&[NotifyState::Ready, NotifyState::Status(text)]);
    }

    /// Says that the daemon ends, and what it does before.
    pub fn stopping(&self, text: &str) {
        send(&[NotifyState::Stopping, NotifyState::Status(text)]);
    }

    /// How often to look whether all threads are alive, and for how long to wait for their answer; `None`: nobody asks.
    pub fn looks(&self) -> Option<(Duration, Duration)> {
        self.watchdog.map(|time| (time / LOOKS, time / LOOKS / 2))
    }

    /// Tells what a look has shown: how things stand; or, as an error, who does not answer.
    pub fn tell(&self, shown: Result<String, String>) {
        match shown {
            Ok(text) => send(&[NotifyState::Status(&text), NotifyState::Watchdog]),
            Err(stuck) => {
                tracing::error!(
                    "{stuck}; unless that ends, the watchdog of the service manager ends this daemon"
                );
                send(&[NotifyState::Status(&stuck)]);
            }
        }
    }

    /// Waits for the end; meanwhile tells again and again what `look` shows, which is given the time to wait for answers.
    pub fn watch(&self, ending: &Ending, mut look: impl FnMut(Duration) -> Result<String, String>) {
        let Some((every, patience)) = self.looks() else { return ending.wait() };
        while !ending.wait_for(every) {
            self.tell(look(patience));
        }
    }
}

/// Sends to where the environment says, if it does. A service manager that does not listen is no reason not to serve.
fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot tell the service manager (NOTIFY_SOCKET)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_watchdog_nobody_looks() {
        assert_eq!(Supervisor { watchdog: None }.looks(), None);
        let ending = Ending::watch().unwrap();
        std::thread::spawn(ending.worker()).join().unwrap();
        Supervisor { watchdog: None }.watch(&ending, |_| panic!("looked"));
    }

    #[test]
    fn looks_go_on_until_the_end_and_leave_room_for_two_that_fail() {
        let supervisor = Supervisor { watchdog: Some(Duration::from_millis(30)) };
        let (every, patience) = supervisor.looks().unwrap();
        assert!(every * 2 + patience < Duration::from_millis(30), "{every:?} {patience:?}");
        let ending = Ending::watch().unwrap();
        let mut end = Some(ending.worker());
        let mut looks = 0;
        supervisor.watch(&ending, |given| {
            assert_eq!(given, patience);
            looks += 1;
            match looks {
                3 => end.take().into_iter().for_each(|end| end()),
                4.. => panic!("looked after the end"),
                _ => {}
            }
            if looks == 2 { Err("worker 0 does not answer".into()) } else { Ok("serving".into()) }
        });
        assert_eq!(looks, 3);
    }
}
