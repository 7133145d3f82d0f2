//! Notifications to the service manager that started a daemon (systemd's `sd_notify` protocol): ready, status,
//! watchdog, stopping. Without a service manager, nothing is sent.
//!
//! ```text
//!   main thread:  ready --> every third of WatchdogSec: look --> STATUS=, WATCHDOG=1 --> ... --> stopping
//!                                                         `--> a thread is stuck: STATUS= names it, no WATCHDOG=1
//! ```
//!
//! The check covers the threads that do the daemon's work, not only the one that sends. So a stuck thread makes the
//! watchdog end the daemon, and the service manager starts it again.

use std::time::Duration;

use sd_notify::NotifyState;

use super::Shutdown;

/// Checks per watchdog period: two checks may fail before the watchdog ends the daemon.
const LOOKS: u32 = 3;

/// Connection to the service manager, if there is one.
#[derive(Clone, Copy, Debug)]
pub struct Supervisor {
    /// Watchdog period; `None`: no watchdog.
    watchdog: Option<Duration>,
}

impl Supervisor {
    /// Finds the service manager of this process in the environment (`NOTIFY_SOCKET`, `WATCHDOG_USEC`).
    pub fn of_this_process() -> Supervisor {
        Supervisor { watchdog: sd_notify::watchdog_enabled().filter(|time| !time.is_zero()) }
    }

    /// Whether a service manager has started this process.
    pub fn is_there(&self) -> bool {
        std::env::var_os("NOTIFY_SOCKET").is_some()
    }

    /// Sends the status line for `systemctl status`.
    pub fn status(&self, text: &str) {
        send(&[NotifyState::Status(text)]);
    }

    /// Reports that the daemon has started; `text` is the status.
    pub fn ready(&self, text: &str) {
        send(&[NotifyState::Ready, NotifyState::Status(text)]);
    }

    /// Reports that the daemon is stopping; `text` is the status, which names the work that is left.
    pub fn stopping(&self, text: &str) {
        send(&[NotifyState::Stopping, NotifyState::Status(text)]);
    }

    /// Interval of the checks that all threads respond, and the maximum wait for their answers; `None`: no
    /// watchdog.
    pub fn looks(&self) -> Option<(Duration, Duration)> {
        self.watchdog.map(|time| (time / LOOKS, time / LOOKS / 2))
    }

    /// Reports the result of a check: the status, or the error that names the threads that do not respond.
    pub fn notify(&self, shown: Result<String, String>) {
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

    /// Waits until the daemon has to end. Until then, calls `look` at regular intervals and reports its result. The
    /// argument of `look` is the maximum wait for the answers of the daemon's threads.
    pub fn watch(&self, ending: &Shutdown, mut look: impl FnMut(Duration) -> Result<String, String>) {
        let Some((every, wait_limit)) = self.looks() else { return ending.wait() };
        while !ending.wait_for(every) {
            self.notify(look(wait_limit));
        }
    }
}

/// Sends to the service manager's socket (`NOTIFY_SOCKET`), if there is one. The daemon continues even if this fails.
fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot notify the service manager (NOTIFY_SOCKET)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_watchdog_nobody_looks() {
        assert_eq!(Supervisor { watchdog: None }.looks(), None);
        let ending = Shutdown::watch().unwrap();
        std::thread::spawn(ending.worker()).join().unwrap();
        Supervisor { watchdog: None }.watch(&ending, |_| panic!("looked"));
    }

    #[test]
    fn looks_go_on_until_the_end_and_leave_room_for_two_that_fail() {
        let supervisor = Supervisor { watchdog: Some(Duration::from_millis(30)) };
        let (every, wait_limit) = supervisor.looks().unwrap();
        assert!(every * 2 + wait_limit < Duration::from_millis(30), "{every:?} {wait_limit:?}");
        let ending = Shutdown::watch().unwrap();
        let mut end = Some(ending.worker());
        let mut looks = 0;
        supervisor.watch(&ending, |given| {
            assert_eq!(given, wait_limit);
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
