//! The page of results in a real browser: pictures are drawn, there are no console errors and no external resources,
//! and the text is readable.

use cxloe_system::Failed;
use serde_json::Value;

use super::run::{everything, ways};
use cxloe_system::browser::Browser;
use cxloe_system::{Outcome, ensure};

/// Opens a copy of the page whose name has an extension that browsers recognise.
fn opened() -> Result<Browser, Failed> {
    let run = everything()?;
    let page = run.path("page.html");
    std::fs::copy(run.path("html"), &page)?;
    let browser = Browser::start()?;
    browser.open(&format!("file://{}", page.display()))?;
    Ok(browser)
}

/// Script that returns, for each picture, its section and the number of visible data marks.
const PICTURES: &str = "return [...document.querySelectorAll('figure > svg')].map(svg => {
    const frame = svg.getBoundingClientRect();
    const seen = e => {
        const box = e.getBoundingClientRect();
        return box.width > 0 && box.height > 0 && box.left >= frame.left - 1 && box.right <= frame.right + 1
            && box.top >= frame.top - 1 && box.bottom <= frame.bottom + 1;
    };
    const texts = [...svg.querySelectorAll('text')];
    return {
        section: svg.closest('section').id,
        title: svg.closest('figure').querySelector('h3').innerText,
        size: [frame.width, frame.height],
        marks: [...svg.querySelectorAll('circle, rect')].filter(seen).length,
        texts: texts.length,
        cut: texts.filter(t => !seen(t)).map(t => t.textContent.trim()),
        smallest: Math.min(...texts.map(t => t.getBoundingClientRect().height)),
    };
})";

pub fn is_drawn() -> Outcome {
    let browser = opened()?;
    browser.viewport(1280, 900, false)?;
    let errors = browser.console()?;
    ensure(errors.is_empty(), format!("it is not silent: {errors:?}"))?;
    let fetched = browser.run("return performance.getEntriesByType('resource').map(entry => entry.name)")?;
    ensure(fetched.as_array().is_some_and(Vec::is_empty), format!("it fetches {fetched}"))?;
    let foreign = browser.count("script, link, iframe, img, object, embed, [src]")?;
    ensure(foreign == 0, format!("{foreign} elements that are not of the page itself"))?;
    let links =
        browser.run("return [...document.links].map(a => document.querySelector(a.hash) ? '' : a.href)")?;
    let links = links.as_array().ok_or("no list")?;
    ensure(links.len() == 6 && links.iter().all(|l| l == ""), format!("links that lead nowhere: {links:?}"))?;

    let pictures = browser.run(PICTURES)?;
    let pictures = pictures.as_array().ok_or("no list")?;
    let ways = ways().len();
    let rows = |section: &str| -> u64 {
        match section {
            // The picture of load-latency has one mark for each of three quantiles at each of three rates; that of
            // hot-cold has one for each share of hot pages.
            "load-latency" => 9,
            "hot-cold" => 2,
            "chase" => 1,
            "gups" => ways as u64,
            "stream" => 4,
            _ => 6,
        }
    };
    for (section, count) in [
        ("load-latency", ways),
        ("chase", ways),
        ("gups", 1),
        ("stream", ways),
        ("mix", ways),
        ("hot-cold", ways),
    ] {
        let of_section: Vec<&Value> = pictures.iter().filter(|p| p["section"] == section).collect();
        ensure(of_section.len() == count, format!("{} pictures of {section}", of_section.len()))?;
        for picture in of_section {
            ensure(picture["marks"].as_u64() >= Some(rows(section)), format!("nothing drawn: {picture}"))?;
            ensure(picture["texts"].as_u64() >= Some(2), format!("no words: {picture}"))?;
            ensure(
                picture["cut"].as_array().is_some_and(Vec::is_empty),
                format!("words are cut off: {picture}"),
            )?;
        }
    }
    // Every figure is in a table as well, and the page reports that the data was correct.
    let cells = browser.count("tbody tr")?;
    let measured = everything()?.report.conditions.len() as u64;
    ensure(cells == measured, format!("{cells} rows for {measured} measurements"))?;
    browser.shows("p.good", "none wrong")
}

pub fn is_readable_on_a_phone() -> Outcome {
    let browser = opened()?;
    for (width, height) in [(390, 844), (320, 568)] {
        browser.viewport(width, height, true)?;
        let inner = browser.run("return innerWidth")?;
        ensure(inner == width, format!("{inner} wide"))?;
        ensure(browser.overflow()? == 0, format!("at {width} it has to be scrolled sideways"))?;
        let pictures = browser.run(PICTURES)?;
        for picture in pictures.as_array().ok_or("no list")? {
            let [wide, high] = [0, 1].map(|i| picture["size"][i].as_f64().unwrap_or(0.0));
            ensure(wide > 0.75 * f64::from(width) && high > 30.0, format!("a picture too small: {picture}"))?;
            let least = if width == 390 { 9.0 } else { 6.5 };
            ensure(
                picture["smallest"].as_f64() >= Some(least),
                format!("at {width}, words too small: {picture}"),
            )?;
            ensure(
                picture["cut"].as_array().is_some_and(Vec::is_empty),
                format!("words are cut off: {picture}"),
            )?;
        }
        let small = browser.run(
            "return [...document.querySelectorAll('p, td, th, li, a, h1, h2, h3')].filter(e => \
             parseFloat(getComputedStyle(e).fontSize) < 12).map(e => e.outerHTML)",
        )?;
        ensure(small.as_array().is_some_and(Vec::is_empty), format!("small print: {small}"))?;
    }
    // Text has sufficient contrast in dark mode.
    browser.prefer_dark(true)?;
    let colours = browser.run(
        "const style = getComputedStyle(document.body); const text = document.querySelector('figure svg text');
         return [style.color, style.backgroundColor, getComputedStyle(text).fill]",
    )?;
    ensure(
        colours[0] != colours[1] && colours[2] == "rgb(230, 233, 236)",
        format!("text, background, words of pictures in the dark: {colours}"),
    )
}
