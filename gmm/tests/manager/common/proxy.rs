//! A proxy in front of a server, which loses requests or answers according to a plan. It forwards TCP connections on
//! the loopback interface, byte by byte, and records all requests.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Treatment of the next request and its answer by the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Request and answer are forwarded.
    Arrive,
    /// The server receives the request; the connection closes before its answer is forwarded.
    LoseAnswer,
    /// The connection closes before the request is forwarded.
    LoseRequest,
}

type Plan = Box<dyn FnMut() -> Fate + Send>;

struct Shared {
    plan: Mutex<Plan>,
    /// All bytes forwarded to the server, one vector for each connection.
    heard: Mutex<Vec<Vec<u8>>>,
    stop: AtomicBool,
    to: SocketAddr,
}

/// A running proxy. Dropping it closes its connections.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy to `port`; `plan` is called once for each request.
    pub fn start(port: u16, plan: impl FnMut() -> Fate + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            plan: Mutex::new(Box::new(plan)),
            heard: Mutex::default(),
            stop: AtomicBool::new(false),
            to: SocketAddr::from(([127, 0, 0, 1], port)),
        });
        let own = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let mut connections = Vec::new();
            for stream in listener.incoming() {
                if own.stop.load(Ordering::SeqCst) {
                    break;
                }
                let shared = Arc::clone(&own);
                connections.push(std::thread::spawn(move || forward(&shared, stream.unwrap())));
            }
            connections.into_iter().for_each(|connection| connection.join().unwrap());
        });
        Self { address, shared, thread: Some(thread) }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Sends all recorded requests to the server again, in order, as a network that delayed them could.
    pub fn replay(&self) -> usize {
        let heard = self.shared.heard.lock().unwrap().clone();
        for connection in &heard {
            let mut server = TcpStream::connect(self.shared.to).unwrap();
            server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            server.write_all(connection).unwrap();
            server.shutdown(Shutdown::Write).unwrap();
            let mut answers = Vec::new();
            drop(server.read_to_end(&mut answers));
        }
        heard.iter().map(Vec::len).sum()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // A connection wakes the thread, which then finds that it has to stop.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Forwards one connection: requests and answers alternate on it, so the bytes after an answer begin a request.
fn forward(shared: &Shared, mut client: TcpStream) {
    let Ok(mut server) = TcpStream::connect(shared.to) else { return };
    let pause = Some(Duration::from_millis(5));
    client.set_read_timeout(pause).unwrap();
    server.set_read_timeout(pause).unwrap();
    let (mut heard, mut fate) = (Vec::new(), None);
    let mut buffer = vec![0; 64 << 10];
    let timed_out = |error: &std::io::Error| {
        matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
    };
    'connection: while !shared.stop.load(Ordering::SeqCst) {
        match client.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                let fate = *fate.get_or_insert_with(|| (shared.plan.lock().unwrap())());
                if fate == Fate::LoseRequest {
                    break;
                }
                heard.extend_from_slice(&buffer[..count]);
                if server.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            Err(error) if timed_out(&error) => {}
            Err(_) => break,
        }
        loop {
            match server.read(&mut buffer) {
                Ok(0) => break 'connection,
                Ok(_) if fate == Some(Fate::LoseAnswer) => break 'connection,
                Ok(count) => {
                    fate = None;
                    if client.write_all(&buffer[..count]).is_err() {
                        break 'connection;
                    }
                }
                Err(error) if timed_out(&error) => break,
                Err(_) => break 'connection,
            }
        }
    }
    shared.heard.lock().unwrap().push(heard);
}
