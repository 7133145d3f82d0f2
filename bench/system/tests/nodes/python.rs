//! The Python package: its wheel is made of the library of this build, installed into a fresh environment, and tested
//! by the package's own tests (`cn-agent/python/tests`) with real daemons.
//!
//! The fresh environment contains only the wheel. The tests import pytest and NumPy from another environment, which
//! `deploy/install/need.sh pytest` has made in the build folder.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cxloe_lab::{LabPrivilege, Process, program};
use cxloe_system::command::{output, printed, succeeded};
use cxloe_system::pair::*;
use cxloe_system::{Test, source, tests, text};

/// Time limit on the package's own tests.
const RUN_MAX: Duration = Duration::from_secs(300);

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    tests![the_wheel_works_in_a_fresh_environment]
}

/// Folder of programs and libraries of this build.
fn built() -> Outcome<PathBuf> {
    Ok(program("cn-agent")?.parent().ok_or("programs lie in a folder")?.to_path_buf())
}

/// Interpreter of the environment that has pytest and NumPy.
fn interpreter() -> Outcome<PathBuf> {
    let python = built()?.parent().ok_or("profiles lie in a folder")?.join("pytest/bin/python");
    let missing = || format!("{} is not there: deploy/install/need.sh pytest installs it", python.display());
    ensure(python.exists(), missing())?;
    Ok(python)
}

/// Makes the wheel in `folder`; returns its path. Fails if a second wheel of the same library is not identical.
fn wheel(python: &Path, folder: &Path) -> Outcome<PathBuf> {
    let make = |folder: &Path| -> Outcome<PathBuf> {
        let mut make = Command::new(python);
        make.arg("-B").arg(source("cn-agent/python/wheel.py"));
        let wheel = printed(make.arg(built()?.join("libcxloe_python.so")).arg(folder))?;
        Ok(wheel.trim_end().into())
    };
    let (wheel, again) = (make(folder)?, make(&folder.join("again"))?);
    ensure(wheel.file_name() == again.file_name(), "the same library is a wheel of another name")?;
    ensure(std::fs::read(&wheel)? == std::fs::read(again)?, "the same library is another wheel")?;
    Ok(wheel)
}

/// Makes an environment in `folder` that contains the wheel alone; returns its interpreter.
fn fresh(python: &Path, wheel: &Path, folder: &Path) -> Outcome<PathBuf> {
    succeeded(output(Command::new(python).args(["-m", "venv"]).arg(folder))?)?;
    let own = folder.join("bin/python");
    let mut install = Command::new(&own);
    // pip installs without network access, and writes no files into the user's cache.
    install.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-cache-dir"]);
    succeeded(output(install.env("PIP_DISABLE_PIP_VERSION_CHECK", "1").arg(wheel))?)?;
    Ok(own)
}

fn the_wheel_works_in_a_fresh_environment() -> Outcome {
    let mut rig = Pair::bare()?;
    rig.pool_size = "64MiB";
    rig.start_gmm()?;
    rig.start_mn("anon")?;
    rig.start_agent(&[])?;
    let python = interpreter()?;
    let wheel = wheel(&python, &rig.path("wheels"))?;
    let own = fresh(&python, &wheel, &rig.path("environment"))?;
    // The tests need pytest and NumPy in addition to the package.
    let mut ask = Command::new(&python);
    let others = printed(ask.args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]))?;

    let log = rig.path("pytest.log");
    let mut tests = Command::new(&own);
    tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", text(&rig.path("files"))]);
    tests.arg(source("cn-agent/python/tests")).current_dir(rig.dir.path());
    tests.env("PYTHONPATH", others.trim_end()).env("PYTHONDONTWRITEBYTECODE", "1");
    tests.env("CXLOE_AGENT", rig.socket()).env("CXLOE_CN_AGENT", program("cn-agent")?);
    tests.env("CXLOE_MANAGER", rig.manager_url()).env("CXLOE_OWNER", "agent");
    Process::log_to(&mut tests, &log)?;
    let status = rig.lab.spawn("cn", tests)?.wait(RUN_MAX)?;
    let said = std::fs::read_to_string(&log)?;
    ensure(status.success() && !said.contains("skipped"), format!("{status}\n{said}"))
}
