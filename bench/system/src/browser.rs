//! A headless Chromium for tests of pages: what a person would see, click and measure.
//!
//! `chromedriver` starts the browser and drives it over its own pipe; this speaks the WebDriver protocol (JSON over HTTP,
//! W3C) to `chromedriver` on the loopback interface. Both use a folder of their own, which goes with the [`Browser`], and
//! end with it. With [`Browser::start_in`] they live in a network namespace of a lab, and reach what is served there.
//!
//! ```text
//!   test --HTTP, 127.0.0.1--> chromedriver --pipe--> chromium --HTTP--> what is tested
//! ```
//!
//! Elements are named by CSS selectors; whatever looks for one waits for it, at most [`LIMIT`].

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_lab::{LabError, Namespace};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::outcome::Outcome;

/// Bound of every wait: for an element, for a page, for the browser to start.
pub const LIMIT: Duration = Duration::from_secs(30);
/// How long the browser and its driver may take to end by themselves.
const GRACE: Duration = Duration::from_secs(5);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// The key under which the protocol carries the id of an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// What the page, or the browser about the page, wrote to the console.
#[derive(Debug, Clone)]
pub struct Message {
    /// `SEVERE`, `WARNING`, `INFO`…; uncaught exceptions and violated policies are severe.
    pub level: String,
    /// Who says it: `javascript`, `network`, `security`, `console-api`….
    pub source: String,
    /// What it says.
    pub text: String,
}

/// A running browser with one window. Dropping it ends it.
pub struct Browser {
    driver: Driver,
    session: String,
    chromium: Option<Pid>,
}

impl Browser {
    /// Starts one in the network namespace of the calling thread.
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn start() -> Outcome<Browser> {
        Browser::over(Driver::start(None)?)
    }

    /// Starts one in a network namespace, whose loopback interface has to be up.
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn start_in(namespace: &Namespace) -> Outcome<Browser> {
        Browser::over(Driver::start(Some(namespace.clone()))?)
    }

    fn over(driver: Driver) -> Outcome<Browser> {
        let profile = format!("--user-data-dir={}", driver.folder.path().join("profile").display());
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-default-apps",
            "--disable-extensions",
            "--disable-sync",
            "--hide-scrollbars",
            "--lang=en-GB",
            // The browser ends when its driver does, however that comes.
            "--remote-debugging-pipe",
            &profile,
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
            "pageLoadStrategy": "normal",
            "timeouts": { "pageLoad": LIMIT.as_millis() as u64, "script": LIMIT.as_millis() as u64 },
        } } });
        let made = driver.ask(Method::POST, "/session", wanted)?;
        let session = made["sessionId"].as_str().ok_or("a session without an id")?.to_owned();
        let pid = made["capabilities"]["goog:processID"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        Ok(Browser { driver, session, chromium: pid.map(Pid::from_raw) })
    }

    /// Opens a page and waits until it and what it includes are loaded.
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn open(&self, url: &str) -> Outcome {
        self.tell("/url", json!({ "url": url })).map(drop)
    }

    /// Loads the page once more.
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn reload(&self) -> Outcome {
        self.tell("/refresh", json!({})).map(drop)
    }

    /// Runs the body of a function in the page; what it returns. A promise is waited for.
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn run(&self, script: &str) -> Outcome<Value> {
        self.tell("/execute/sync", json!({ "script": script, "args": [] }))
    }

    /// Waits until a JavaScript expression is true, as JavaScript has it; its value.
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn until(&self, expression: &str) -> Outcome<Value> {
        let script = format!("const value = ({expression}); return [Boolean(value), value];");
        let deadline = Instant::now() + LIMIT;
        loop {
            let mut found = self.run(&script)?;
            if found[0] == json!(true) {
                return Ok(found[1].take());
            }
            if Instant::now() >= deadline {
                let page = self.run("return document.body.innerText")?;
                let page = page.as_str().unwrap_or_default();
                return Err(format!("did not come true: {expression}; the page shows:\n{page}").into());
            }
            thread::sleep(PAUSE);
        }
    }

    /// Waits until an element is there.
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn wait(&self, selector: &str) -> Outcome {
        self.until(&format!("document.querySelector({}) !== null", json!(selector))).map(drop)
    }

    /// How many elements there are now.
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn count(&self, selector: &str) -> Outcome<u64> {
        let count = self.run(&format!("return document.querySelectorAll({}).length", json!(selector)))?;
        Ok(count.as_u64().ok_or("no count")?)
    }

    /// The text of an element as it is rendered: what is hidden is not in it.
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn text(&self, selector: &str) -> Outcome<String> {
        let text = self.driver.ask(Method::GET, &self.of(selector, "text")?, Value::Null)?;
        Ok(text.as_str().ok_or("no text")?.to_owned())
    }

    /// Waits until an element shows this text somewhere.
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn shows(&self, selector: &str, text: &str) -> Outcome {
        let (selector, text) = (json!(selector), json!(text));
        self.until(&format!(
            "[...document.querySelectorAll({selector})].some(e => e.innerText.includes({text}))"
        ))
        .map(drop)
    }

    /// Clicks an element as a mouse does, which fails when something covers it. It is scrolled to the middle first.
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn click(&self, selector: &str) -> Outcome {
        self.wait(selector)?;
        let element = format!("document.querySelector({})", json!(selector));
        self.run(&format!("{element}?.scrollIntoView({{ block: 'center', behavior: 'instant' }})"))?;
        self.driver.ask(Method::POST, &self.of(selector, "click")?, json!({})).map(drop)
    }

    /// Types text into an element; `\u{E007}` is Enter, `\u{E004}` Tab (the protocol's keys).
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn fill(&self, selector: &str, text: &str) -> Outcome {
        self.driver.ask(Method::POST, &self.of(selector, "value")?, json!({ "text": text })).map(drop)
    }

    /// Makes the page this wide and high, in CSS pixels; `mobile`: as a phone shows it.
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn viewport(&self, width: u32, height: u32, mobile: bool) -> Outcome {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile });
        self.chrome("Emulation.setDeviceMetricsOverride", size).map(drop)
    }

    /// What the page is told that its reader prefers: a dark scheme, or a light one.
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn prefer_dark(&self, dark: bool) -> Outcome {
        let scheme = json!({ "name": "prefers-color-scheme", "value": if dark { "dark" } else { "light" } });
        self.chrome("Emulation.setEmulatedMedia", json!({ "features": [scheme] })).map(drop)
    }

    /// What is seen of the page, as a PNG.
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn screenshot(&self, path: &Path) -> Outcome {
        let made = self.chrome("Page.captureScreenshot", json!({ "format": "png" }))?;
        save(&made, path)
    }

    /// The whole page from top to bottom, as a PNG.
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn screenshot_whole(&self, path: &Path) -> Outcome {
        let whole = json!({ "format": "png", "captureBeyondViewport": true });
        save(&self.chrome("Page.captureScreenshot", whole)?, path)
    }

    /// By how many CSS pixels the page is wider than its window: 0 when nobody has to scroll sideways.
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn overflow(&self) -> Outcome<i64> {
        let root = "document.documentElement";
        let wider = self.run(&format!("return {root}.scrollWidth - {root}.clientWidth"))?;
        Ok(wider.as_i64().ok_or("no width")?)
    }

    /// What came to the console since the last call.
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn console(&self) -> Outcome<Vec<Message>> {
        let said = self.tell("/se/log", json!({ "type": "browser" }))?;
        let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        let entries = said.as_array().into_iter().flatten();
        Ok(entries
            .map(|entry| Message {
                level: text(entry, "level"),
                source: text(entry, "source"),
                text: text(entry, "message"),
            })
            .collect())
    }

    /// Of these, errors: uncaught exceptions, violated policies, and what the page itself calls an error. A request that
    /// failed is none of them: a page may be made for that.
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn errors(&self) -> Outcome<Vec<Message>> {
        let mut said = self.console()?;
        said.retain(|message| message.level == "SEVERE" && message.source != "network");
        Ok(said)
    }

    /// A command of Chrome's own protocol (CDP).
    ///
    /// # Errors
    /// What the browser or its driver says.
    pub fn chrome(&self, command: &str, parameters: Value) -> Outcome<Value> {
        self.tell("/goog/cdp/execute", json!({ "cmd": command, "params": parameters }))
    }

    fn tell(&self, path: &str, body: Value) -> Outcome<Value> {
        self.driver.ask(Method::POST, &format!("/session/{}{path}", self.session), body)
    }

    /// The path of what can be asked of an element, which is waited for.
    fn of(&self, selector: &str, what: &str) -> Outcome<String> {
        self.wait(selector)?;
        let found = self.tell("/element", json!({ "using": "css selector", "value": selector }))?;
        let element = found[ELEMENT].as_str().ok_or("an element without an id")?;
        Ok(format!("/session/{}/element/{element}/{what}", self.session))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser in order; should that fail, it ends with its driver's pipe, or is ended.
        let _ = self.driver.ask(Method::DELETE, &format!("/session/{}", self.session), Value::Null);
        self.driver.end();
        if let Some(chromium) = self.chromium {
            let deadline = Instant::now() + GRACE;
            while kill(chromium, None) != Err(Errno::ESRCH) && Instant::now() < deadline {
                thread::sleep(PAUSE);
            }
            let _ = kill(chromium, Signal::SIGKILL);
        }
    }
}

/// Does something in a network namespace, or where the caller is.
fn inside<T: Send>(namespace: Option<&Namespace>, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
    match namespace {
        Some(namespace) => namespace.enter(work),
        None => Ok(work()),
    }
}

fn save(made: &Value, path: &Path) -> Outcome {
    use base64::Engine as _;
    let picture =
        base64::engine::general_purpose::STANDARD.decode(made["data"].as_str().ok_or("no data")?)?;
    Ok(fs::write(path, picture)?)
}

/// A running `chromedriver`.
struct Driver {
    process: Child,
    url: String,
    namespace: Option<Namespace>,
    runtime: tokio::runtime::Runtime,
    http: reqwest::Client,
    folder: TempDir,
}

impl Driver {
    fn start(namespace: Option<Namespace>) -> Outcome<Driver> {
        let folder = tempfile::tempdir()?;
        let log = folder.path().join("chromedriver.log");
        let mut command = Command::new("chromedriver");
        // Told a port: without IPv6 it does not find out itself which one it was given.
        let free = || TcpListener::bind("127.0.0.1:0")?.local_addr().map(|address| address.port());
        let port = inside(namespace.as_ref(), free)??;
        // In the process group of the test: who ends that by a signal ends this too, and with it the browser.
        command.arg(format!("--port={port}")).env("HOME", folder.path()).env("TMPDIR", folder.path());
        for name in ["XDG_CONFIG_HOME", "XDG_CACHE_HOME", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY"] {
            command.env_remove(name);
        }
        let file = File::create(&log)?;
        command.stdin(Stdio::null()).stderr(file.try_clone()?).stdout(file);
        let process = inside(namespace.as_ref(), || command.spawn())?.map_err(|error| {
            format!("chromedriver cannot be started: {error}; `deploy/install/need.sh chromium` installs it")
        })?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let http = cxloe_fabric::client::http().timeout(LIMIT * 2).build()?;
        let url = format!("http://127.0.0.1:{port}");
        let mut driver = Driver { process, url, namespace, runtime, http, folder };
        driver.listens(&log)?;
        Ok(driver)
    }

    /// Waits until it says that it listens.
    fn listens(&mut self, log: &Path) -> Outcome {
        let deadline = Instant::now() + LIMIT;
        loop {
            let said = fs::read_to_string(log)?;
            if said.contains("started successfully") {
                return Ok(());
            }
            if self.process.try_wait()?.is_some() || Instant::now() >= deadline {
                return Err(format!("chromedriver does not listen; it said:\n{said}").into());
            }
            thread::sleep(PAUSE);
        }
    }

    /// Sends one command and returns its `value`.
    fn ask(&self, method: Method, path: &str, body: Value) -> Outcome<Value> {
        let request = self.http.request(method.clone(), format!("{}{path}", self.url));
        let request = if body.is_null() { request } else { request.json(&body) };
        let answer = || self.runtime.block_on(async { request.send().await?.json::<Value>().await });
        let mut answer = inside(self.namespace.as_ref(), answer)?
            .map_err(|error| format!("chromedriver did not answer {method} {path}: {error}"))?;
        let value = answer["value"].take();
        match value.get("error").and_then(Value::as_str) {
            Some(error) => Err(format!("{error}: {}", value["message"].as_str().unwrap_or_default()).into()),
            None => Ok(value),
        }
    }

    /// Ends it: asked first, then by force.
    fn end(&mut self) {
        if let Ok(pid) = i32::try_from(self.process.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let deadline = Instant::now() + GRACE;
        while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(PAUSE);
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.end();
    }
}
