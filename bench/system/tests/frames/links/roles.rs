//! What copies of this program do with a link, and what they say without the rights for one.

use super::traffic::*;
use super::*;

/// The copy that opens a link and prints what comes of it.
pub fn opener() -> ExitCode {
    match open_as_told() {
        Ok(link) => println!("opened {}", link.info().backend),
        Err(e) => println!("{e:?}\n{e}"),
    }
    ExitCode::SUCCESS
}

/// The copy that opens a link, says so, takes and answers frames for a while, and is killed meanwhile.
pub fn holder() -> ExitCode {
    let mut link = match open_as_told() {
        Ok(link) => link,
        Err(e) => {
            println!("{e}");
            return ExitCode::FAILURE;
        }
    };
    println!("opened");
    for _ in 0..300 {
        if link.receive(64, &mut |_, _| {}).and(link.wait(Duration::from_millis(200))).is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

pub fn open_as_told() -> Result<Box<dyn Link>, LinkError> {
    let told = std::env::var(OPEN).unwrap_or_default();
    let (backend, interface) = told.split_once(' ').unwrap_or_default();
    open(&config(backend.parse().unwrap_or_default(), interface))
}

pub fn missing_rights_are_named(backend: Backend) -> Outcome {
    let lab = cable().build()?;
    for asked in [backend, Backend::Auto] {
        let mut command = copy_without_rights_as("opener")?;
        command.env(OPEN, format!("{asked} cn0"));
        let folder = tempfile::tempdir()?;
        let log = folder.path().join("log");
        Process::log_to(&mut command, &log)?;
        lab.spawn("cn", command)?.wait(LIMIT)?;
        let said = fs::read_to_string(&log)?;
        ensure(said.starts_with("Permission"), format!("{asked}: {said}"))?;
        ensure(said.contains("no permission to") && said.contains("`cn0`"), said.clone())?;
        ensure(said.contains("CAP_NET_RAW") && said.contains("run as root"), said)?;
    }
    Ok(())
}
