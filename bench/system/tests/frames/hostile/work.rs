//! A compute node that works during attacks, and checks every byte that it reads.

use cxloe_link::LinkCounters;
use cxloe_wire::session::RequesterCounters;

use super::*;

/// Deterministic random generator (xorshift64*), with its state.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() >> 16) as usize % end
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Counters of a compute node's session and link when its work ended.
pub struct Ended {
    pub session: RequesterCounters,
    pub link: LinkCounters,
}

/// A compute node at work on its own thread: writes, reads and bursts, whose data is checked.
pub struct Work {
    pub stop: Arc<AtomicBool>,
    pub rounds: Arc<AtomicU64>,
    /// Failure that ended the work, if any.
    pub failure: Arc<Mutex<Option<String>>>,
    /// The working thread, which returns the session's counters.
    pub thread: JoinHandle<Result<Ended, String>>,
}

impl Work {
    pub fn start(mut port: Port) -> Work {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let failure = Arc::new(Mutex::new(None));
        let (stopped, done, failed) = (Arc::clone(&stop), Arc::clone(&rounds), Arc::clone(&failure));
        let thread = std::thread::spawn(move || {
            let mut numbers = Numbers(7);
            let mut lines = vec![[0_u8; 64]; (REGION / 64) as usize];
            while !stopped.load(Ordering::Relaxed) {
                if let Err(e) = round(&mut port, &mut numbers, &mut lines) {
                    let why = e.message().unwrap_or("no reason").to_owned();
                    *failed.lock().map_err(|e| e.to_string())? = Some(why.clone());
                    return Err(why);
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
            // The memory node has to hold the last write of every line.
            let mut all = vec![0; REGION as usize];
            port.read_bytes(HPA, &mut all).map_err(|e| e.to_string())?;
            if all != lines.as_flattened() {
                return Err("the region holds other bytes than were written".into());
            }
            let session = port.engine().sessions().first().ok_or("no session")?.counters;
            let link = port.link().counters();
            port.close().map_err(|e| e.to_string())?;
            Ok(Ended { session, link })
        });
        Work { stop, rounds, failure, thread }
    }

    /// Waits until the work has completed more rounds; fails with the failure that ended it.
    pub fn goes_on(&self, during: &str) -> Outcome {
        let before = self.rounds.load(Ordering::Relaxed);
        let enough = || self.rounds.load(Ordering::Relaxed) >= before + 3;
        eventually(&format!("the compute node works during: {during}"), || {
            enough() || self.thread.is_finished()
        })?;
        let failure = self.failure.lock().map_err(|e| e.to_string())?.clone();
        ensure(enough(), format!("the compute node has stopped during: {during}: {failure:?}"))
    }

    pub fn end(self) -> Outcome<Ended> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(self.thread.join().map_err(|_| "the compute node's thread panicked")??)
    }
}

/// Runs operations of every kind at random addresses; `lines` is the expected content of the region.
pub fn round(port: &mut Port, numbers: &mut Numbers, lines: &mut [[u8; 64]]) -> Result<(), Failed> {
    let hpa = |line: usize| HPA + line as u64 * 64;
    for _ in 0..8 {
        let line = numbers.below(lines.len());
        lines[line].fill(numbers.next() as u8);
        port.write(hpa(line), &lines[line])?;
        let other = numbers.below(lines.len());
        for line in [line, other] {
            ensure(port.read(hpa(line))? == lines[line], format!("line {line} holds other bytes"))?;
        }
    }
    let first = numbers.below(lines.len() - 256);
    let part = &mut lines[first..first + 256];
    part.as_flattened_mut().copy_from_slice(&numbers.bytes(256 * 64));
    port.write_bytes(hpa(first), part.as_flattened())?;
    let mut back = vec![0; 256 * 64];
    port.read_bytes(hpa(first), &mut back)?;
    ensure(back == part.as_flattened(), format!("burst from line {first} on holds other bytes"))
}
