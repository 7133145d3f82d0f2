//! A headless Chromium for tests of pages: rendering, clicks, and measurements of the layout.
//!
//! `chromedriver` starts the browser and controls it over its own pipe; this file implements a client of the WebDriver
//! protocol (JSON over HTTP, W3C) to `chromedriver` on the loopback interface. Driver and browser use a temporary
//! folder; both end, and the folder is removed, when the [`Browser`] is dropped. With [`Browser::start_in`] they run in
//! a network namespace of a lab.
//!
//! ```text
//!   test --HTTP, 127.0.0.1--> chromedriver --pipe--> chromium --HTTP--> what is tested
//! ```
//!
//! Elements are selected by CSS selectors; every function that takes a selector waits for a matching element, at most
//! [`LIMIT`].

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

/// Limit on every wait: for an element, for a page, for the browser's start.
pub const LIMIT: Duration = Duration::from_secs(30);
/// Time in which the browser and its driver may end before they are killed.
const GRACE: Duration = Duration::from_secs(5);
/// Pause between two polls of a page or a process.
const PAUSE: Duration = Duration::from_millis(20);
/// Key of an element's id in JSON answers (WebDriver, web element identifier).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A message that the page, or the browser about the page, has written to the console.
#[derive(Debug, Clone)]
pub struct ConsoleMessage {
    /// `SEVERE`, `WARNING`, `INFO`…; uncaught exceptions and violated policies are severe.
    pub level: String,
    /// Source: `javascript`, `network`, `security`, `console-api`….
    pub source: String,
    /// Text of the message, with the position in the source.
    pub text: String,
}

/// A running browser with one window. Dropping this value ends the browser.
pub struct Browser {
    driver: Driver,
    session: String,
    chromium: Option<Pid>,
}

impl Browser {
    /// Starts a browser in the network namespace of the calling thread.
    pub fn start() -> Outcome<Browser> {
        Browser::over(Driver::start(None)?)
    }

    /// Starts a browser in a network namespace, whose loopback interface has to be up.
    pub fn start_in(namespace: &Namespace) -> Outcome<Browser> {
        Browser::over(Driver::start(Some(namespace.clone()))?)
    }

    fn over(driver: Driver) -> Outcome<Browser> {
        let profile = format!("--user-data-dir={}", driver.folder.path().join("profile").display());
        let arguments = [
            "--headless",
            // Chromium refuses to start as root with its sandbox.
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
            // The browser ends when its driver's pipe closes, for whatever reason the driver ends.
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

    /// Opens a page and waits until it and its resources are loaded.
    pub fn open(&self, url: &str) -> Outcome {
        self.call_driver("/url", json!({ "url": url })).map(drop)
    }

    /// Reloads the current page and waits until it is loaded.
    pub fn reload(&self) -> Outcome {
        self.call_driver("/refresh", json!({})).map(drop)
    }

    /// Runs `script`, the body of a JavaScript function, in the page; returns its result. A promise is awaited.
    pub fn run(&self, script: &str) -> Outcome<Value> {
        self.call_driver("/execute/sync", json!({ "script": script, "args": [] }))
    }

    /// Waits until a JavaScript expression is truthy; returns its value.
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

    /// Waits until an element exists.
    pub fn wait(&self, selector: &str) -> Outcome {
        self.until(&format!("document.querySelector({}) !== null", json!(selector))).map(drop)
    }

    /// Current number of matching elements.
    pub fn count(&self, selector: &str) -> Outcome<u64> {
        let count = self.run(&format!("return document.querySelectorAll({}).length", json!(selector)))?;
        Ok(count.as_u64().ok_or("no count")?)
    }

    /// Rendered text of an element, without hidden parts.
    pub fn text(&self, selector: &str) -> Outcome<String> {
        let text = self.driver.ask(Method::GET, &self.of(selector, "text")?, Value::Null)?;
        Ok(text.as_str().ok_or("no text")?.to_owned())
    }

    /// Waits until the rendered text of an element contains `text`.
    pub fn shows(&self, selector: &str, text: &str) -> Outcome {
        let (selector, text) = (json!(selector), json!(text));
        self.until(&format!(
            "[...document.querySelectorAll({selector})].some(e => e.innerText.includes({text}))"
        ))
        .map(drop)
    }

    /// Clicks an element with the mouse, which fails when another one covers it. The element is scrolled to the middle
    /// first.
    pub fn click(&self, selector: &str) -> Outcome {
        self.wait(selector)?;
        let element = format!("document.querySelector({})", json!(selector));
        self.run(&format!("{element}?.scrollIntoView({{ block: 'center', behavior: 'instant' }})"))?;
        self.driver.ask(Method::POST, &self.of(selector, "click")?, json!({})).map(drop)
    }

    /// Types text into an element; `\u{E007}` is Enter, `\u{E004}` Tab (the protocol's keys).
    pub fn fill(&self, selector: &str, text: &str) -> Outcome {
        self.driver.ask(Method::POST, &self.of(selector, "value")?, json!({ "text": text })).map(drop)
    }

    /// Sets the size of the page, in CSS pixels; `mobile` emulates a phone.
    pub fn viewport(&self, width: u32, height: u32, mobile: bool) -> Outcome {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile });
        self.chrome("Emulation.setDeviceMetricsOverride", size).map(drop)
    }

    /// Sets the preferred colour scheme, dark or light.
    pub fn prefer_dark(&self, dark: bool) -> Outcome {
        let scheme = json!({ "name": "prefers-color-scheme", "value": if dark { "dark" } else { "light" } });
        self.chrome("Emulation.setEmulatedMedia", json!({ "features": [scheme] })).map(drop)
    }

    /// Writes the visible part of the page as a PNG.
    pub fn screenshot(&self, path: &Path) -> Outcome {
        let made = self.chrome("Page.captureScreenshot", json!({ "format": "png" }))?;
        save(&made, path)
    }

    /// Writes the whole page from top to bottom as a PNG.
    pub fn screenshot_whole(&self, path: &Path) -> Outcome {
        let whole = json!({ "format": "png", "captureBeyondViewport": true });
        save(&self.chrome("Page.captureScreenshot", whole)?, path)
    }

    /// Width of the page beyond its window, in CSS pixels: 0 without horizontal scrolling.
    pub fn overflow(&self) -> Outcome<i64> {
        let root = "document.documentElement";
        let wider = self.run(&format!("return {root}.scrollWidth - {root}.clientWidth"))?;
        Ok(wider.as_i64().ok_or("no width")?)
    }

    /// Console messages since the last call.
    pub fn console(&self) -> Outcome<Vec<ConsoleMessage>> {
        let output_text = self.call_driver("/se/log", json!({ "type": "browser" }))?;
        let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        let entries = output_text.as_array().into_iter().flatten();
        Ok(entries
            .map(|entry| ConsoleMessage {
                level: text(entry, "level"),
                source: text(entry, "source"),
                text: text(entry, "message"),
            })
            .collect())
    }

    /// Errors among the console messages since the last call: uncaught exceptions, violated policies, and
    /// `console.error`. Failed requests are excluded: pages may provoke them on purpose.
    pub fn errors(&self) -> Outcome<Vec<ConsoleMessage>> {
        let mut output_text = self.console()?;
        output_text.retain(|message| message.level == "SEVERE" && message.source != "network");
        Ok(output_text)
    }

    /// Runs a command of Chrome's own protocol (CDP).
    pub fn chrome(&self, command: &str, parameters: Value) -> Outcome<Value> {
        self.call_driver("/goog/cdp/execute", json!({ "cmd": command, "params": parameters }))
    }

    fn call_driver(&self, path: &str, body: Value) -> Outcome<Value> {
        self.driver.ask(Method::POST, &format!("/session/{}{path}", self.session), body)
    }

    /// Path of an element's resource in the WebDriver protocol, after waiting for the element.
    fn of(&self, selector: &str, what: &str) -> Outcome<String> {
        self.wait(selector)?;
        let found = self.call_driver("/element", json!({ "using": "css selector", "value": selector }))?;
        let element = found[ELEMENT].as_str().ok_or("an element without an id")?;
        Ok(format!("/session/{}/element/{element}/{what}", self.session))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser in order; if that fails, the browser ends when its driver's pipe closes, or is killed.
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

/// Runs `work` in a network namespace, or in the caller's if none is given.
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

/// A running `chromedriver`, with the address on which it listens.
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
        // The test selects the port: without IPv6, chromedriver does not report a port that the kernel assigned.
        let free = || TcpListener::bind("127.0.0.1:0")?.local_addr().map(|address| address.port());
        let port = inside(namespace.as_ref(), free)??;
        // The driver stays in the test's process group: a signal to the group also ends the driver, and with it the
        // browser.
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
        // This limit exceeds the browser's own limit on pages and scripts, so that the browser's error comes first and
        // names what is late.
        let http = cxloe_fabric::client::http().timeout(LIMIT * 2).build()?;
        let url = format!("http://127.0.0.1:{port}");
        let mut driver = Driver { process, url, namespace, runtime, http, folder };
        driver.listens(&log)?;
        Ok(driver)
    }

    /// Waits until the driver's log shows that it listens.
    fn listens(&mut self, log: &Path) -> Outcome {
        let deadline = Instant::now() + LIMIT;
        loop {
            let output_text = fs::read_to_string(log)?;
            if output_text.contains("started successfully") {
                return Ok(());
            }
            if self.process.try_wait()?.is_some() || Instant::now() >= deadline {
                return Err(format!("chromedriver does not listen; it said:\n{output_text}").into());
            }
            thread::sleep(PAUSE);
        }
    }

    /// Sends one command to the driver and returns the `value` of its answer.
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

    /// Ends the driver by a request, and by SIGKILL if it does not end in time.
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
