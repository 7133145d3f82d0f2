//! A way to a server that loses what it is told to lose: requests on their way there, or answers on their way back. It
//! forwards TCP connections over loopback, byte by byte, and remembers what was asked.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// What becomes of the next answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It arrives.
    Arrive,
    /// The server gets the request; its answer is lost with the connection.
    LoseAnswer,
    /// The request is lost with the connection.
    LoseRequest,
}

type Plan = Box<dyn FnMut() -> Fate + Send>;

struct Shared {
    plan: Mutex<Plan>,
    /// Everything that arrived at the server, a connection at a time.
    heard: Mutex<Vec<Vec<u8>>>,
    stop: AtomicBool,
    to: SocketAddr,
}

/// A running proxy. Ends when dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Forwards to `port`; `plan` is asked once for each request.
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

    /// Sends the server everything again that it was ever sent, in order, as a network that kept it could.
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
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// One connection: requests and answers take turns on it, so whatever arrives after an answer begins a request.
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
