//! Content of the page at first and after changes of the fabric.

use cxloe_fabric::api::{CreateRegion, GrowRegion, ResetRegion};
use nix::sys::signal::Signal;
use serde_json::json;

use super::scripted::Scripted;
use cxloe_system::browser::Browser;
use cxloe_system::star::*;

/// Address on which the manager listens, the same after each start.
const ADDRESS: &str = "127.0.0.1:7440";
const LISTEN: [&str; 3] = ["--insecure", "--listen", ADDRESS];
/// Size of a phone's screen, in CSS pixels.
const PHONE: (u32, u32) = (390, 844);

/// Opens the page and sets a variable in it that a reload would remove.
fn page(rig: &Star) -> Outcome<Browser> {
    let browser = Browser::start_in(rig.lab.namespace("switch")?)?;
    browser.open(&format!("http://{ADDRESS}/"))?;
    browser.run("window.mark = 'first'")?;
    browser.shows("#standing", "Live")?;
    Ok(browser)
}

fn never_loaded_again(browser: &Browser) -> Outcome {
    ensure(browser.run("return window.mark")? == json!("first"), "the page was loaded again")
}

fn no_errors(browser: &Browser) -> Outcome {
    let errors = browser.errors()?;
    ensure(errors.is_empty(), format!("{errors:?}"))
}

/// Checks that the page, and the dialog with this title, fit a phone's screen.
fn fits_a_phone(browser: &Browser, title: &str) -> Outcome {
    browser.viewport(PHONE.0, PHONE.1, true)?;
    browser.until(&format!("innerWidth === {}", PHONE.0))?;
    ensure(browser.overflow()? == 0, "the page scrolls sideways on a phone")?;
    browser.run("document.querySelector('#regions button.title').click()")?;
    browser.shows("#details-title", title)?;
    browser.shows("#details-body", "HDM decoder 0")?;
    let wide = "const d = document.querySelector('dialog'); return d.scrollWidth - d.clientWidth";
    ensure(browser.run(wide)? == json!(0) && browser.overflow()? == 0, "the dialog scrolls sideways")?;
    browser.click("dialog .close")?;
    browser.viewport(1440, 900, false)
}

pub fn the_page_shows_the_fabric_as_it_changes() -> Outcome {
    cxloe_lab::expect_error("has not answered within the limit");
    cxloe_lab::expect_error("has lost its content");
    let rig = Star::new(2, 1, &LISTEN)?;
    let browser = page(&rig)?;
    browser.shows(
        "#no-memory-nodes",
        &format!("mn-server -i INTERFACE --pool-size 16G --node-key FILE --manager http://{ADDRESS}"),
    )?;
    browser.shows("#no-regions", "gmm create-region")?;

    // Nodes that start after the page was opened appear on it.
    rig.start_mn(0, &["--pool-size", "64MiB"])?;
    rig.start_mn(1, &["--pool-size", "64MiB"])?;
    rig.start_agent(0, &[])?;
    browser.shows("#memory-nodes", "mn1")?;
    browser.shows("#compute-nodes", "cn0")?;
    browser.shows("#health", "All is well")?;
    browser.shows("#memory-of", "of 128 MiB in use")?;

    // The page shows a new region, and traffic to it.
    let hpa = rig.create("heap", 0, 32 * MIB, &[0, 1], 1024)?;
    browser.shows("#regions tr", "heap")?;
    browser.until("/active[^]*cn0[^]*32 MiB[^]*2 × 1 KiB[^]*mn0, mn1/.test(document.querySelector('#regions tr').innerText)")?;
    browser.shows("#memory-used", "32 MiB")?;
    browser.shows("#memory-nodes", "16 MiB of 64 MiB in use, 25 %")?;
    let mut port = rig.connect(0)?;
    fill(&mut port, hpa, MIB, 1)?;
    browser.until("[...document.querySelectorAll('#memory-nodes .rate')].every(e => /in .*\\/s[^]*requests\\/s/.test(e.innerText))")?;
    browser.until("/requests\\/s/.test(document.querySelector('#compute-nodes .rate').innerText)")?;

    // A dialog with details opens by keyboard; closing it returns the focus.
    browser.run("document.querySelector('#regions button.title').focus()")?;
    browser.fill("#regions button.title", "\u{E007}")?;
    browser.shows("#details-body", "2 ways, pieces of 1 KiB")?;
    browser.shows("#details-body .decoder td", "mn1")?;
    // An open dialog is updated when its region changes.
    let grow = GrowRegion { size: size(48 * MIB), on: Vec::new(), wait_ms: WAIT_MS };
    rig.ask(rig.manager.grow_region(&name("heap"), &grow))?;
    browser.shows("#details-body h3", "HDM decoder 1")?;
    browser.shows("#details-body", "48 MiB (50,331,648 bytes)")?;
    browser.fill("dialog .close", "\u{E00C}")?;
    browser
        .until("!document.querySelector('dialog').open && document.activeElement.textContent === 'heap'")?;
    browser.click("#memory-nodes li:first-child button.title")?;
    browser.shows("#details-body", "Logical devices")?;
    browser.until("/cn0[^]*0[^]*executed/i.test(document.querySelector('#details-body').innerText)")?;
    browser.click("dialog .close")?;
    browser.run("document.activeElement.blur()")?;
    browser.fill("body", "/")?;
    browser.until("document.activeElement.id === 'search'")?;

    // A memory node is killed and restarted.
    rig.end("mn1", Signal::SIGKILL)?;
    browser.shows("#memory-nodes li.unwell", "unreachable")?;
    browser.shows("#memory-nodes li.unwell", "last report")?;
    browser.shows("#health", "2 problems")?;
    browser.shows("#problems", "1 memory node unreachable")?;
    browser.shows("#regions tr", "degraded")?;
    browser.shows("#events li.bad", "Memory node mn1 is silent.")?;
    browser.shows("#events-zone", "UTC")?;
    browser.shows("#events li.day", "20")?;
    // Each problem names the node and the remedy.
    browser.shows("#trouble-list li.bad", "Memory node mn1 has been silent")?;
    browser.shows("#trouble-list li.bad code", "systemctl status mn-server")?;
    browser.shows("#trouble-list li.warn", "Region heap of cn0 waits for mn1")?;
    browser.click("#trouble-list li.warn button.title")?;
    browser.shows("#details-title", "Region heap")?;
    browser.click("dialog .close")?;
    browser.until("document.title === '(2) CXLoE fabric'")?;

    fits_a_phone(&browser, "Region heap")?;
    // The memory node restarts without its content: the region is lost, and the page names the command that resets it.
    rig.start_mn(1, &["--pool-size", "64MiB"])?;
    browser.shows("#trouble-list li.bad", "Region heap of cn0 has lost content")?;
    browser.shows("#trouble-list li.bad code", "gmm reset-region heap")?;
    rig.ask(rig.manager.reset_region(&name("heap"), ResetRegion { wait_ms: WAIT_MS }))?;
    browser.shows("#health", "All is well")?;
    browser.until("document.querySelector('#trouble').hidden")?;
    browser.prefer_dark(true)?;
    let dark = browser.run("return getComputedStyle(document.body).backgroundColor")?;
    browser.prefer_dark(false)?;
    let light = browser.run("return getComputedStyle(document.body).backgroundColor")?;
    ensure(dark != light, format!("dark and light are both {dark}"))?;
    never_loaded_again(&browser)?;
    no_errors(&browser)
}

pub fn a_manager_that_is_gone_is_missed_and_welcomed_back() -> Outcome {
    let rig = Star::new(1, 1, &LISTEN)?;
    rig.start_mn(0, &["--pool-size", "16MiB"])?;
    let browser = page(&rig)?;
    browser.shows("#memory-nodes", "mn0")?;
    ensure(browser.count("#banner:not([hidden])")? == 0, "there is nothing to warn of")?;

    rig.end("gmm", Signal::SIGKILL)?;
    browser.shows("#banner", "The manager does not answer")?;
    let banner = browser.text("#banner")?;
    ensure(banner.contains(ADDRESS) && banner.contains("how things stood"), banner)?;
    let standing = browser.text("#standing")?;
    let since = standing.strip_prefix("No answer since ").unwrap_or_default();
    ensure(since.split(':').count() == 3, format!("since when is not in {standing:?}"))?;
    browser.shows(".stale #memory-nodes", "mn0")?;
    // The time at which the manager became unreachable stays the same for as long as it is unreachable.
    let first = since.split(' ').next().unwrap_or_default();
    browser.until("/\\((?!0 s|1 s)/.test(document.querySelector('#standing').innerText)")?;
    ensure(browser.text("#standing")?.contains(first), "it fails since another time")?;

    rig.start_gmm(&LISTEN)?;
    browser.shows("#standing", "Live")?;
    ensure(browser.count("#banner:not([hidden]), .stale")? == 0, "the warning stays")?;
    // The page lists the events that occurred while it had no connection, and new ones.
    browser.shows("#events", "The manager took over, term 2.")?;
    rig.start_agent(0, &[])?;
    browser.shows("#compute-nodes", "cn0")?;
    never_loaded_again(&browser)?;
    no_errors(&browser)
}

pub fn text_stays_text_and_many_regions_are_searched() -> Outcome {
    // The time-out is long enough for a simulated node, which reports only when the test calls it.
    let rig = Star::new(0, 0, &[&LISTEN[..], &["--node-timeout-ms", "60000"]].concat())?;
    let mut node = Scripted::register(&rig, "mn-scripted", 4 << 30)?;
    let browser = page(&rig)?;

    // The page shows text from a memory node as text, not as markup.
    let hostile = "<img src=x onerror='window.hit=1'><script>window.hit=2</script><b>bold</b>";
    let region = |text: &str| CreateRegion { wait_ms: 0, ..CreateRegion::new(name(text), 2 * MIB, cn(0)) };
    rig.ask(rig.manager.create_region(&region("refused")))?;
    node.answer(Some(hostile), json!([{ "link": "<b>", "sessions": [{ "cn": hostile }, 7] }, hostile]))?;
    browser.shows("#events li", hostile)?;
    ensure(browser.count("#fabric b, #fabric script, #fabric img")? == 0, "text has become markup")?;
    ensure(browser.run("return window.hit ?? null")?.is_null(), "text has become a script")?;
    // Trusted Types block the conversion of text into markup, even if the page's code attempts it.
    let forced = "try { document.body.innerHTML = '<b>x</b>'; return 'done' } catch (e) { return e.name }";
    ensure(browser.run(forced)? == json!("TypeError"), "the page may turn text into markup")?;
    // The only console errors are those of the policy just tested.
    ensure(browser.errors()?.iter().all(|e| e.text.contains("TrustedHTML")), "there are other errors")?;

    // Region names that are special in JavaScript, the longest possible name, and many regions.
    let longest = "w".repeat(63);
    for text in ["constructor", "toString", &longest] {
        rig.ask(rig.manager.create_region(&region(text)))?;
    }
    for index in 0..240 {
        rig.ask(rig.manager.create_region(&region(&format!("job-{index:03}"))))?;
    }
    node.answer(None, json!(null))?;
    browser.shows("#regions-count", "243 regions, 486 MiB, the first 100 shown")?;
    browser.shows("#region-states", "243 active")?;
    // Events of the same kind at the same time are one entry, which can be expanded.
    let line = "document.querySelector('#events li.many summary').innerText";
    browser.until(&format!("/^[0-9]+ regions of [^]* are active: [^]* and [0-9]+ more/.test({line})"))?;
    ensure(browser.count("#events > li")? < 20, "every event of many has a line of its own")?;
    browser.click("#events li.many summary")?;
    browser.until("document.querySelector('#events li.many details').open")?;
    browser.shows("#events li.many details li", "is active.")?;
    ensure(browser.count("#regions tr")? == 100, "more rows than are shown at a time")?;
    browser.click("#more-regions")?;
    browser.until("document.querySelectorAll('#regions tr').length === 200")?;
    browser.fill("#search", "JOB-23")?;
    browser.shows("#regions-count", "10 regions, 20 MiB")?;
    browser.until("document.querySelectorAll('#regions tr').length === 10")?;
    browser.run("document.querySelector('#search').value = ''")?;
    browser.fill("#search", "no such thing")?;
    browser.shows("#no-regions", "No region fits.")?;
    browser.shows("#no-memory-nodes", "No memory node fits the search.")?;
    browser.run("document.querySelector('#search').value = ''")?;
    browser.fill("#search", "www")?;
    browser.shows("#regions tr", &longest)?;
    fits_a_phone(&browser, &longest)?;
    browser.run("document.querySelector('#search').value = ''")?;
    browser.fill("#search", "constructor")?;
    browser.shows("#regions-count", "1 region,")?;
    browser.shows("#regions tr", "constructor")?;
    never_loaded_again(&browser)?;
    no_errors(&browser)
}
