//! Roles of copies of this program: opening a link, and errors if the rights for it are missing.

use super::traffic::*;
use super::*;

/// Role: opens the link named in the environment, and prints the result.
pub fn opener() -> ExitCode {
    match open_as_told() {
        Ok(link) => println!("opened {}", link.info().backend),
        Err(e) => println!("{e:?}\n{e}"),
    }
    ExitCode::SUCCESS
}

/// Role: opens a link, reports that, and receives and answers frames until it is killed.
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
        let output_text = fs::read_to_string(&log)?;
        ensure(output_text.starts_with("Permission"), format!("{asked}: {output_text}"))?;
        ensure(
            output_text.contains("no permission to") && output_text.contains("`cn0`"),
            output_text.clone(),
        )?;
        ensure(output_text.contains("CAP_NET_RAW") && output_text.contains("run as root"), output_text)?;
    }
    Ok(())
}
