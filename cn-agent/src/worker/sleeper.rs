//! Sleeping until any of several descriptors has something, or a time is over: one `ppoll` for the link, the
//! faults of mapped regions, the clients' sockets and the waker of control. The set is kept between sleeps, so that sleeping allocates
//! nothing.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};

/// Wakes a [`Sleeper`] from another thread of this process. Never blocks.
#[derive(Clone, Debug)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// A waker that has not been rung.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new() -> io::Result<Waker> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Waker(Arc::new(EventFd::from_value_and_flags(0, flags)?)))
    }

    /// Wakes the sleeper, now or when it next goes to sleep.
    pub fn wake(&self) {
        // It fails only when it has been rung 2^64 - 2 times without being heard.
        let _ = self.0.write(1);
    }

    fn hush(&self) {
        let _ = self.0.read();
    }
}

/// The set of descriptors to sleep on: the waker first, the link second, paging third, then clients.
#[derive(Debug)]
pub struct Sleeper {
    set: Vec<libc::pollfd>,
    waker: Waker,
    /// Whether the waker ended the last sleep.
    rung: bool,
}

/// The link's place.
const LINK: usize = 1;
/// Places of the set before those of clients.
const FIXED: usize = 3;

impl Sleeper {
    /// For `waker`, `link` and `paging` (if they have a descriptor) and up to `clients` sockets.
    pub fn new(waker: Waker, link: Option<RawFd>, paging: Option<RawFd>, clients: usize) -> Sleeper {
        let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut set = Vec::with_capacity(FIXED + clients);
        set.push(watch(waker.0.as_fd().as_raw_fd()));
        // The kernel skips negative numbers.
        set.push(watch(link.unwrap_or(-1)));
        set.push(watch(paging.unwrap_or(-1)));
        Sleeper { set, waker, rung: false }
    }

    /// Replaces the link's descriptor: a link that is opened again has another.
    pub fn watch_link(&mut self, link: Option<RawFd>) {
        self.set[LINK].fd = link.unwrap_or(-1);
    }

    /// Replaces the clients' sockets; their places are their positions in `sockets`.
    pub fn watch<'a>(&mut self, sockets: impl Iterator<Item = BorrowedFd<'a>>) {
        self.set.truncate(FIXED);
        self.set.extend(sockets.map(|socket| libc::pollfd {
            fd: socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }));
    }

    /// Sleeps, at most `most`; says whether a client's socket has something. Spurious returns are allowed.
    pub fn sleep(&mut self, most: Duration) -> bool {
        let limit = libc::timespec {
            tv_sec: most.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(most.subsec_nanos()),
        };
        // SAFETY: the set is a live array of as many entries as are named, and the time a live value; there is no
        // signal mask. A number that has been closed meanwhile is answered with POLLNVAL.
        let ready = unsafe {
            libc::ppoll(self.set.as_mut_ptr(), self.set.len() as libc::nfds_t, &limit, std::ptr::null())
        };
        self.rung = ready > 0 && self.set[0].revents != 0;
        if ready <= 0 {
            return false;
        }
        if self.rung {
            self.waker.hush();
        }
        if self.set[LINK].revents & (libc::POLLERR | libc::POLLHUP) != 0 {
            clear_error(self.set[LINK].fd);
        }
        self.set[FIXED..].iter().any(|place| place.revents != 0)
    }

    /// Whether the waker was rung during the last sleep, or before it.
    pub fn was_rung(&self) -> bool {
        self.rung
    }

    /// Whether the socket at `place` had something when the last sleep ended.
    pub fn is_ready(&self, place: usize) -> bool {
        self.set.get(FIXED + place).is_some_and(|entry| entry.revents != 0)
    }
}

/// Takes a pending error off a packet socket (its interface went down), which would else end every sleep at
/// once for as long as the interface is down.
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
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn wakes_for_each_kind_and_tells_clients_apart() {
        let (link, mut wire) = UnixStream::pair().unwrap();
        let (faults, mut program) = UnixStream::pair().unwrap();
        let (a, _a) = UnixStream::pair().unwrap();
        let (b, mut client) = UnixStream::pair().unwrap();
        let waker = Waker::new().unwrap();
        let mut sleeper = Sleeper::new(waker.clone(), Some(link.as_raw_fd()), Some(faults.as_raw_fd()), 2);
        sleeper.watch([a.as_fd(), b.as_fd()].into_iter());

        waker.wake();
        assert!(!sleeper.sleep(LONG), "the waker is no client");
        assert!(sleeper.was_rung());
        client.write_all(b"!").unwrap();
        assert!(sleeper.sleep(LONG));
        assert!(!sleeper.is_ready(0) && sleeper.is_ready(1) && !sleeper.is_ready(2) && !sleeper.was_rung());
        sleeper.watch(std::iter::empty());
        program.write_all(b"fault").unwrap();
        assert!(!sleeper.sleep(LONG), "paging is no client");
        wire.write_all(b"frame").unwrap();
        assert!(!sleeper.sleep(LONG), "the link is no client");
    }

    #[test]
    fn is_woken_by_another_thread() {
        let waker = Waker::new().unwrap();
        let mut sleeper = Sleeper::new(waker.clone(), None, None, 0);
        let ringer = thread::spawn(move || waker.wake());
        assert!(!sleeper.sleep(LONG));
        ringer.join().unwrap();
    }
}
