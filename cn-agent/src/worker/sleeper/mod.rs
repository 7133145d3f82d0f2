//! Sleeps until any of several descriptors is ready, or a time is over: one system call for the link, the
//! faults of mapped regions, the clients' sockets and control's waker. The set is kept between sleeps, so
//! that only the first sleep allocates.
//!
//! Sleeps by io_uring (`ring`), whose cost does not depend on the number of clients, or, if that is forbidden
//! or the kernel is old, by `ppoll`, which polls each descriptor before and after every sleep.

#![expect(unsafe_code, reason = "ppoll and getsockopt take raw pointers")]

mod ring;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};

use ring::Ring;

/// Wakes a [`Sleeper`] from another thread of this process. Never blocks.
#[derive(Clone, Debug)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// Creates a waker for one sleeper.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new() -> io::Result<Waker> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Waker(Arc::new(EventFd::from_value_and_flags(0, flags)?)))
    }

    /// Ends the present sleep or, if the sleeper is awake, the next one.
    pub fn wake(&self) {
        // Fails only if the counter is full; a full counter wakes the sleeper, too.
        let _ = self.0.write(1);
    }

    fn clear(&self) {
        let _ = self.0.read();
    }
}

/// A descriptor that is watched during sleeps.
#[derive(Clone, Copy, Debug)]
struct WatchedDescriptor {
    /// Number of the descriptor; negative for none.
    fd: RawFd,
    /// Events of the descriptor when the last sleep ended, as in `poll`.
    has: i16,
}

/// Watched descriptors: the waker first, the link second, paging third, and then the clients.
pub struct Sleeper {
    places: Vec<WatchedDescriptor>,
    way: SleepCall,
    waker: Waker,
    /// Number of times that the link was opened. It shows that a link was reopened even if the new descriptor has the
    /// same number.
    opening: u32,
    /// Whether a waker was used during the last sleep or before it.
    rung: bool,
}

/// System call by which the sleeper sleeps.
enum SleepCall {
    /// Not determined yet. Only the sleeping thread may use an io_uring, so that thread determines the call when it
    /// first sleeps.
    Unknown,
    Ring(Box<Ring>),
    Poll {
        set: Vec<libc::pollfd>,
        why: String,
    },
}

/// Index of the link among the watched descriptors.
const LINK: usize = 1;
/// Number of descriptors in front of those of clients.
const FIXED: usize = 3;

impl fmt::Debug for Sleeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleeper").field("places", &self.places).finish_non_exhaustive()
    }
}

impl Sleeper {
    /// Creates a sleeper for `waker`, for `link` and `paging` if they have a descriptor, and for up to
    /// `clients` sockets.
    pub fn new(waker: Waker, link: Option<RawFd>, paging: Option<RawFd>, clients: usize) -> Sleeper {
        let mut places = Vec::with_capacity(FIXED + clients);
        let fixed = [Some(waker.0.as_fd().as_raw_fd()), link, paging];
        places.extend(fixed.map(|fd| WatchedDescriptor { fd: fd.unwrap_or(-1), has: 0 }));
        Sleeper { places, way: SleepCall::Unknown, waker, opening: 0, rung: false }
    }

    /// Name of the system call for sleeping: `io_uring`, or `ppoll` and the reason; empty before the first sleep.
    pub fn sleep_call(&self) -> String {
        match &self.way {
            SleepCall::Unknown => String::new(),
            SleepCall::Ring(_) => "io_uring".into(),
            SleepCall::Poll { why, .. } => format!("ppoll ({why})"),
        }
    }

    /// Replaces the descriptor of a reopened link; `opening` counts the openings of the link.
    pub fn watch_link(&mut self, link: Option<RawFd>, opening: u32) {
        let fd = link.unwrap_or(-1);
        if (self.places[LINK].fd, self.opening) != (fd, opening) {
            (self.places[LINK].fd, self.opening) = (fd, opening);
            self.forget();
        }
    }

    /// Replaces the clients' sockets; their indices are their positions in `sockets`.
    pub fn watch<'a>(&mut self, sockets: impl Iterator<Item = BorrowedFd<'a>>) {
        self.places.truncate(FIXED);
        self.places.extend(sockets.map(|socket| WatchedDescriptor { fd: socket.as_raw_fd(), has: 0 }));
        self.forget();
    }

    /// Cancels all watches; the next sleep watches the present descriptors.
    #[cold]
    fn forget(&mut self) {
        if let SleepCall::Ring(ring) = &mut self.way {
            ring.forget(self.places.len());
        }
    }

    /// Determines the system call. To be called by the sleeping thread.
    #[cold]
    fn choose(&mut self) {
        let (places, most) = (self.places.len(), self.places.capacity());
        self.way = match Ring::new(places, most) {
            Ok(ring) => {
                tracing::debug!("sleeps by io_uring");
                SleepCall::Ring(Box::new(ring))
            }
            Err(error) => by_poll(&error, most),
        };
    }

    /// Sleeps for at most `most`; returns whether a client's socket is ready. Spurious returns are allowed.
    pub fn sleep(&mut self, most: Duration) -> bool {
        if matches!(self.way, SleepCall::Unknown) {
            self.choose();
        }
        match &mut self.way {
            SleepCall::Ring(ring) => {
                if let Err(error) = ring.sleep(&mut self.places, most) {
                    self.way = by_poll(&error, self.places.capacity());
                    return false;
                }
            }
            SleepCall::Poll { set, .. } => poll(set, &mut self.places, most),
            SleepCall::Unknown => {}
        }
        self.rung = self.places[0].has != 0;
        if self.rung {
            self.waker.clear();
        }
        if self.places[LINK].has & (libc::POLLERR | libc::POLLHUP) != 0 {
            clear_error(self.places[LINK].fd);
        }
        self.places[FIXED..].iter().any(|place| place.has != 0)
    }

    /// Whether a waker ended the last sleep, or was used before that sleep began.
    pub fn was_rung(&self) -> bool {
        self.rung
    }

    /// Whether the socket at `place` was ready when the last sleep ended.
    pub fn is_ready(&self, place: usize) -> bool {
        self.places.get(FIXED + place).is_some_and(|place| place.has != 0)
    }
}

/// Falls back to `ppoll`, and logs the reason.
#[cold]
fn by_poll(error: &io::Error, most: usize) -> SleepCall {
    tracing::info!(%error, "no io_uring here: sleeps by ppoll");
    SleepCall::Poll { set: Vec::with_capacity(most), why: error.to_string() }
}

fn poll(set: &mut Vec<libc::pollfd>, places: &mut [WatchedDescriptor], most: Duration) {
    set.clear();
    // The kernel skips entries with negative numbers.
    set.extend(places.iter().map(|place| libc::pollfd { fd: place.fd, events: libc::POLLIN, revents: 0 }));
    let limit = libc::timespec {
        tv_sec: most.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(most.subsec_nanos()),
    };
    // SAFETY: the set is a live array with as many entries as passed, and the time is a live value; there is no signal
    // mask. The number of a closed descriptor gives POLLNVAL.
    let ready = unsafe { libc::ppoll(set.as_mut_ptr(), set.len() as libc::nfds_t, &limit, std::ptr::null()) };
    for (place, entry) in places.iter_mut().zip(set) {
        place.has = if ready > 0 { entry.revents } else { 0 };
    }
}

/// Clears a pending error of a packet socket (its interface went down). The error would otherwise end every sleep at
/// once as long as the interface is down.
fn clear_error(socket: RawFd) {
    let (mut error, mut length) = (0_i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `length` bytes into `error`; both outlive the call.
    unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            std::ptr::from_mut(&mut error).cast(),
            &mut length,
        );
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    /// Two sleepers from `new`, one for each system call.
    fn both(new: impl Fn() -> Sleeper) -> [Sleeper; 2] {
        let (mut ring, mut poll) = (new(), new());
        ring.choose();
        assert_eq!(ring.sleep_call(), "io_uring", "to be tested where it is allowed");
        poll.way = by_poll(&io::ErrorKind::Unsupported.into(), 8);
        assert_eq!(poll.sleep_call(), "ppoll (unsupported)");
        [ring, poll]
    }

    #[test]
    fn wakes_for_each_kind_and_distinguishes_clients() {
        let (link, mut wire) = UnixStream::pair().unwrap();
        let (faults, mut program) = UnixStream::pair().unwrap();
        let (a, _a) = UnixStream::pair().unwrap();
        let (b, mut client) = UnixStream::pair().unwrap();
        let waker = Waker::new().unwrap();
        let new = || Sleeper::new(waker.clone(), Some(link.as_raw_fd()), Some(faults.as_raw_fd()), 2);
        for mut sleeper in both(new) {
            sleeper.watch([a.as_fd(), b.as_fd()].into_iter());
            assert!(!sleeper.sleep(Duration::from_millis(1)) && !sleeper.was_rung());

            waker.wake();
            assert!(!sleeper.sleep(LONG), "the waker is no client");
            assert!(sleeper.was_rung());
            client.write_all(b"!").unwrap();
            for _ in 0..2 {
                assert!(sleeper.sleep(LONG), "what was not taken is told again");
                assert!(!sleeper.is_ready(0) && sleeper.is_ready(1) && !sleeper.is_ready(2));
                assert!(!sleeper.was_rung());
            }
            (&b).read_exact(&mut [0]).unwrap();
            assert!(!sleeper.sleep(Duration::from_millis(1)) && !sleeper.is_ready(1));
            sleeper.watch(std::iter::empty());
            program.write_all(b"fault").unwrap();
            assert!(!sleeper.sleep(LONG), "paging is no client");
            assert!(sleeper.places[2].has != 0);
            (&faults).read_exact(&mut [0; 5]).unwrap();
            wire.write_all(b"frame").unwrap();
            assert!(!sleeper.sleep(LONG), "the link is no client");
            assert!(sleeper.places[LINK].has != 0);
            (&link).read_exact(&mut [0; 5]).unwrap();
        }
    }

    #[test]
    fn is_woken_by_another_thread() {
        let waker = Waker::new().unwrap();
        for mut sleeper in both(|| Sleeper::new(waker.clone(), None, None, 0)) {
            let waker = waker.clone();
            let ringer = thread::spawn(move || waker.wake());
            assert!(!sleeper.sleep(LONG));
            assert!(sleeper.was_rung());
            ringer.join().unwrap();
        }
    }

    /// Tests more descriptors than one submission takes, and a different set in the next sleep.
    #[test]
    fn watches_many_and_then_others() {
        let pairs = || (0..300).map(|_| UnixStream::pair().unwrap()).collect::<Vec<_>>();
        let waker = Waker::new().unwrap();
        for mut sleeper in both(|| Sleeper::new(waker.clone(), None, None, 600)) {
            for _ in 0..2 {
                let mut pairs = pairs();
                sleeper.watch(pairs.iter().map(|(ours, _)| ours.as_fd()));
                assert!(!sleeper.sleep(Duration::from_millis(1)));
                for at in [299, 0, 150] {
                    pairs[at].1.write_all(b"!").unwrap();
                    assert!(sleeper.sleep(LONG));
                    let ready: Vec<usize> = (0..300).filter(|at| sleeper.is_ready(*at)).collect();
                    assert_eq!(ready, [at]);
                    (&pairs[at].0).read_exact(&mut [0]).unwrap();
                }
                sleeper.watch(std::iter::empty());
                // The sleeper keeps no descriptor open: the peer detects the close.
                let (ours, mut theirs) = pairs.pop().unwrap();
                drop(ours);
                theirs.set_read_timeout(Some(LONG)).unwrap();
                assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
            }
        }
    }

    /// Tests a reopened link, which usually gets the same descriptor number as before.
    #[test]
    fn follows_a_link_that_was_opened_again() {
        let waker = Waker::new().unwrap();
        let (link, mut before) = UnixStream::pair().unwrap();
        let number = link.as_raw_fd();
        let mut sleepers = both(|| Sleeper::new(waker.clone(), Some(number), None, 0));
        for sleeper in &mut sleepers {
            assert!(!sleeper.sleep(Duration::from_millis(1)));
        }
        before.set_read_timeout(Some(LONG)).unwrap();
        let (again, mut wire) = UnixStream::pair().unwrap();
        // SAFETY: both are sockets of this test; the first is closed because it is replaced.
        assert_eq!(unsafe { libc::dup2(again.as_raw_fd(), number) }, number);
        wire.write_all(b"frame").unwrap();
        for mut sleeper in sleepers {
            sleeper.watch_link(Some(number), 1);
            assert!(!sleeper.sleep(LONG));
            assert!(sleeper.places[LINK].has & libc::POLLIN != 0);
        }
        assert_eq!(before.read(&mut [0]).unwrap(), 0, "the one before it is held open");
    }
}
