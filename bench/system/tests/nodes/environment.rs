//! Environment variables with sockets and other settings: daemons use a variable only if neither an option nor the
//! configuration file sets the value, because the variable may have been set for commands that query daemons.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use cxloe_lab::{LabPrivilege, program};
use cxloe_system::command::printed;
use cxloe_system::pair::*;
use cxloe_system::{Test, tests};

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    tests![
        a_configuration_file_wins_over_variables_and_options_over_both,
        a_daemon_listens_where_its_file_says,
        joining_writes_no_variable_into_the_configuration,
    ]
}

/// Value of the option `socket` that takes effect with this variable and these arguments.
fn socket_of(words: &[&str], variable: Option<(&str, &str)>) -> Outcome<String> {
    let mut command = Command::new(program(words[0])?);
    command.args(&words[1..]).arg("--print-config").stdin(Stdio::null());
    command.env_remove("CXLOE_AGENT").env_remove("CXLOE_MN");
    command.envs(variable);
    let printed = printed(&mut command)?;
    let socket = printed.lines().find_map(|line| line.strip_prefix("socket = "));
    Ok(socket.unwrap_or_default().trim_matches(['"', '\'']).to_owned())
}

fn a_configuration_file_wins_over_variables_and_options_over_both() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("node.toml");
    let file = text(&path);
    let least = ["-i", "any0", "--manager", "http://127.0.0.1:1", "--insecure"];
    for (program, variable) in
        [(&["cn-agent", "run"][..], "CXLOE_AGENT"), (&["mn-server", "run"], "CXLOE_MN")]
    {
        let of =
            |more: &[&str]| socket_of(&[program, &least, more].concat(), Some((variable, "/variable.sock")));
        fs::write(&path, "socket = '/file.sock'\n")?;
        let (both, all) = (of(&["--config", file])?, of(&["--config", file, "--socket", "/option.sock"])?);
        ensure(both == "/file.sock" && all == "/option.sock", format!("{program:?}: {both} {all}"))?;
        fs::write(&path, "")?;
        let alone = of(&["--config", file])?;
        ensure(alone == "/variable.sock", format!("{program:?}: {alone}"))?;
    }
    Ok(())
}

fn a_daemon_listens_where_its_file_says() -> Outcome {
    let rig = Pair::bare()?;
    let at = |name: &str| rig.path(name).display().to_string();
    let config = format!(
        "listen = '127.0.0.1:0'\nstore = '{}'\nsocket = '{}'\nlog = 'json'\n",
        at("gmm.redb"),
        at("file.sock")
    );
    fs::write(rig.path("gmm.toml"), config)?;
    let mut gmm = Command::new(program("gmm")?);
    gmm.args(["serve", "--config", &at("gmm.toml")]);
    gmm.env("CXLOE_GMM_SOCKET", at("variable.sock")).env("CXLOE_GMM_DATA_DIR", at("variable"));
    gmm.env("CXLOE_GMM_PORT_FILE", at("port"));
    rig.start("gmm", "mn", gmm)?;
    eventually("it is served", || rig.path("port").exists().then_some(()))?;
    let there = |name: &str| Path::new(&at(name)).exists();
    ensure(there("file.sock") && there("gmm.redb"), "the file's places are used")?;
    ensure(!there("variable.sock") && !there("variable"), "those of the variables are not")?;
    rig.stop("gmm")?;

    // An option and a variable for the same setting do not conflict.
    let mut gmm = Command::new(program("gmm")?);
    gmm.args(["serve", "--listen", "127.0.0.1:0", "--store", &at("option.redb")]);
    gmm.env("CXLOE_GMM_DATA_DIR", at("variable")).env("CXLOE_GMM_PORT_FILE", at("port"));
    rig.start("gmm", "mn", gmm)?;
    eventually("it is served", || rig.path("port").exists().then_some(()))?;
    ensure(there("option.redb") && !there("variable"), "the option's place is used")
}

fn joining_writes_no_variable_into_the_configuration() -> Outcome {
    let rig = Pair::bare()?;
    rig.start_gmm()?;
    let (manager, config, data) = (rig.manager_url(), rig.path("cn.toml"), rig.path("data"));
    let mut join = Command::new(program("cn-agent")?);
    join.args(["join", &manager, "-i", "cn0", "--no-start", "--config", text(&config)]);
    join.args(["--data-dir", text(&data)]).env("CXLOE_AGENT", "/variable.sock").stdin(Stdio::null());
    rig.lab.enter("cn", || printed(&mut join))??;
    let written = fs::read_to_string(&config)?;
    ensure(!written.contains("variable.sock"), written)
}
