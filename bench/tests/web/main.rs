//! The web view of the fabric, looked at with a real browser.

#[path = "../common/browser.rs"]
mod browser;

use std::process::ExitCode;

use browser::Browser;
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    if let Err(error) = cxloe_bench::lab::become_private_user_namespace() {
        eprintln!("{error}");
        return ExitCode::from(3);
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    libtest_mimic::run(&arguments, vec![Trial::test("smoke", smoke)]).exit_code()
}

fn smoke() -> Result<(), Failed> {
    let lab = cxloe_bench::lab::Lab::builder().namespace("a").build()?;
    for b in [Browser::start_in(lab.namespace("a")?)?, Browser::start()?] {
        b.open("data:text/html,<h1>hello</h1><button onclick=\"document.title='x'\">go</button><input><script>console.error('e1');throw new Error('e2')</script>")?;
        b.shows("h1", "hello")?;
        b.click("button")?;
        b.fill("input", "abc")?;
        b.until("document.querySelector('input').value === 'abc'")?;
        b.viewport(390, 844, true)?;
        println!("{} {:?} {:?}", b.overflow()?, b.run("return [innerWidth, document.title]")?, b.errors()?);
        b.screenshot(std::path::Path::new("/tmp/w/web-smoke.png"))?;
    }
    Ok(())
}
