//! Programs with threads that Rust has not started serve faults inline: threads with the smallest signal stacks that
//! the kernel allows, without signal stacks, with those of Go's runtime, and with earlier handlers of SIGBUS.

use std::path::{Path, PathBuf};
use std::process::Command;

use cxloe_system::Failed;

use super::{Linked, compile_from, count, libraries, run_inline, source};
use cxloe_system::pair::{Outcome, Pair, REGION, ensure};

fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nodes/c_library").join(name)
}

pub fn of_c() -> Outcome {
    let rig = Pair::bare()?;
    let program = compile_from(&beside("threads.c"), &rig.path("threads"), Linked::Shared)?;
    every_page_was_right(&run_inline(&rig, &program)?)
}

pub fn of_go() -> Outcome {
    let rig = Pair::bare()?;
    let program = go(&rig.path("threads"))?;
    every_page_was_right(&run_inline(&rig, &program)?)
}

fn every_page_was_right(output_text: &str) -> Outcome {
    ensure(
        count(output_text, "pages")? == REGION / 4096 && count(output_text, "evicted")? > REGION / 4096,
        output_text,
    )
}

/// Compiles the program in Go, without network access; returns its path.
fn go(to: &Path) -> Result<PathBuf, Failed> {
    let libraries = libraries()?;
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(to).current_dir(beside("go"));
    go.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"))
        .env("GOPATH", to.with_extension("go"));
    go.env("GOPROXY", "off").env("GOTOOLCHAIN", "local").env("GOFLAGS", "-mod=mod").env("CGO_ENABLED", "1");
    go.env("CGO_CFLAGS", format!("-O1 -I{}", source("include").display()));
    let libraries = libraries.display();
    go.env("CGO_LDFLAGS", format!("-L{libraries} -lcxloe -Wl,-rpath,{libraries}"));
    let output = go.output().map_err(|error| format!("go: {error}; deploy/install/need.sh go"))?;
    ensure(output.status.success(), String::from_utf8_lossy(&output.stderr))?;
    Ok(to.to_path_buf())
}
