//! Options: flags over file over defaults, and errors that name the option.

use std::time::Duration;

use clap::{CommandFactory, Parser};
use cxloe_daemon::{ConfigError, LogFormat};
use cxloe_fabric::model::DeviceKind;
use cxloe_link::Backend;
use cxloe_link::wait::WaitStyle;
use cxloe_mn::config::{Cli, Config, MapSource};
use cxloe_mn::pool::PoolSpec;
use cxloe_mn::worker::EchoFor;

fn cli(args: &[&str]) -> Cli {
    Cli::try_parse_from(["mn-server"].iter().chain(args)).unwrap_or_else(|error| panic!("{error}"))
}

fn resolve(args: &[&str]) -> Result<Config, ConfigError> {
    cli(args).resolve()
}

const LEAST: [&str; 4] = ["-i", "eth9", "--manager", "http://10.0.0.1:7440"];

fn with(more: &[&str]) -> Vec<&'static str> {
    LEAST.iter().copied().chain(more.iter().map(|arg| -> &'static str { arg.to_string().leak() })).collect()
}

#[test]
fn the_least_is_an_interface_and_a_manager() {
    Cli::command().debug_assert();
    let config = resolve(&LEAST).unwrap();
    assert_eq!((config.node.interface.as_str(), config.workers, config.node.ethertype), ("eth9", 1, 0x88B5));
    assert_eq!(config.source, MapSource::Manager("http://10.0.0.1:7440".into()));
    assert_eq!(
        (&config.pool.spec, config.pool.bytes, &config.echo),
        (&PoolSpec::Anon, None, &EchoFor::default())
    );
    assert_eq!(config.device, DeviceKind::Mld);
    assert_eq!(resolve(&with(&["--device", "sld"])).unwrap().device, DeviceKind::Sld);
    assert!(!config.node.name.as_str().is_empty() && config.node.fault_plan().is_none());
    assert!(config.state_path().starts_with(&config.node.data_dir));
}

#[test]
fn flags_win_over_the_file_and_the_file_over_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mn.toml");
    let text = "interface = 'eth1'\nmanager = 'http://m:1'\npool-size = '2GiB'\npool = 'huge2m'\nwait = 'busy'\n\
                workers = 2\ncpus = '2-3'\nethertype = '0x88B6'\nmlock = true\nsession-timeout = '2s'\nlog-format = 'json'\n";
    std::fs::write(&path, text).unwrap();
    let file = path.to_str().unwrap();
    let config = resolve(&[
        "--config",
        file,
        "-i",
        "eth2",
        "--wait",
        "adaptive:100us",
        "--pool-size",
        "512M",
        "--mlock=false",
    ])
    .unwrap();
    assert_eq!((config.node.interface.as_str(), config.workers), ("eth2", 2));
    assert_eq!(config.node.wait, WaitStyle::Adaptive { spin: Duration::from_micros(100) });
    assert_eq!(
        (config.pool.bytes, &config.pool.spec, config.pool.mlock),
        (Some(512 << 20), &PoolSpec::Huge2M, false)
    );
    assert_eq!((config.cpus.as_slice(), config.node.ethertype), (&[2, 3][..], 0x88B6));
    assert_eq!((config.session_timeout, config.node.log_format), (Duration::from_secs(2), LogFormat::Json));
    let config = resolve(&["--config", file, "--static-map", "map.toml"]).unwrap();
    assert_eq!(config.source, MapSource::Static("map.toml".into()), "instead of the file's manager");
}

#[test]
fn what_print_config_prints_gives_the_same_options() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mn.toml");
    let all = with(&[
        "--name",
        "mn7",
        "--device",
        "sld",
        "--data-dir",
        "/tmp/x",
        "--link",
        "xdp",
        "--wait",
        "sleep",
        "--workers",
        "2",
        "--cpus",
        "4,6",
        "--priority",
        "3",
        "--ethertype",
        "0x88B6",
        "--key-file",
        "k",
        "--pool",
        "file:/srv/pool",
        "--pool-size",
        "64G",
        "--extent-size",
        "4M",
        "--prefault",
        "--mlock",
        "--numa-node",
        "0",
        "--socket",
        "/tmp/mn.sock",
        "--tlb-entries",
        "64",
        "--max-sessions",
        "9",
        "--session-timeout",
        "7s",
        "--reorder-max",
        "600",
        "--reorder-total-max",
        "700",
        "--log",
        "debug",
        "--log-format",
        "json",
        "--echo",
        "--echo-for",
        "02:00:00:00:00:07",
        "--echo-for",
        "02:00:00:00:00:08",
        "--faults",
        "drop=1%,seed=7",
        "--pcap",
        "p",
        "--pcap-max",
        "1M",
    ]);
    for args in [LEAST.to_vec(), all] {
        let config = resolve(&args).unwrap();
        std::fs::write(&path, config.to_toml()).unwrap();
        let again = resolve(&["--config", path.to_str().unwrap()]).unwrap();
        assert_eq!(again.to_toml(), config.to_toml());
        assert_eq!(
            (again.node.backend, again.cpus, again.pool.bytes),
            (config.node.backend, config.cpus, config.pool.bytes)
        );
        assert_eq!(
            (again.reorder_total_max, again.echo, again.node.pcap),
            (config.reorder_total_max, config.echo, config.node.pcap)
        );
    }
    let text = resolve(&with(&["--link", "packet", "--pool-size", "16G"])).unwrap();
    assert_eq!(text.node.backend, Backend::Packet);
    assert!(text.to_toml().contains("pool-size = \"16GiB\""), "{}", text.to_toml());
}

#[test]
fn errors_name_the_option() {
    let long = "a-name-of-20-letters";
    for (field, args) in [
        ("interface", vec!["--manager", "http://m:1"]),
        ("interface", vec!["-i", long, "--manager", "http://m:1"]),
        ("manager", vec!["-i", "eth0"]),
        ("manager", vec!["-i", "eth0", "--manager", "ftp://m"]),
        ("static-map", with(&["--static-map", "f"])),
        ("name", with(&["--name", "a b"])),
        ("priority", with(&["--priority", "8"])),
        ("ethertype", with(&["--ethertype", "0x0100"])),
        ("ethertype", with(&["--ethertype", "0x8100"])),
        ("workers", with(&["--workers", "0"])),
        ("cpus", with(&["--workers", "2", "--cpus", "1"])),
        ("tlb-entries", with(&["--tlb-entries", "1"])),
        ("max-sessions", with(&["--max-sessions", "0"])),
        ("session-timeout", with(&["--session-timeout", "1ms"])),
        ("reorder-total-max", with(&["--reorder-max", "9", "--reorder-total-max", "8"])),
        ("faults", with(&["--faults", "drop=200%"])),
    ] {
        let error = resolve(&args).unwrap_err();
        assert!(
            matches!(error, ConfigError::Field { field: named, .. } if named == field),
            "{args:?}: {error}"
        );
        assert!(error.to_string().contains(&format!("--{field}")), "{error}");
    }
}

#[test]
fn a_bad_flag_or_file_says_where() {
    for (args, names) in [
        (["--pool", "tape"], "--pool"),
        (["--pool-size", "1.5G"], "--pool-size"),
        (["--link", "carrier"], "--link"),
        (["--wait", "never"], "--wait"),
        (["--cpus", "x"], "--cpus"),
        (["--session-timeout", "5"], "--session-timeout"),
    ] {
        let error = Cli::try_parse_from(["mn-server"].iter().chain(&args)).unwrap_err().to_string();
        assert!(error.contains(names), "{error}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mn.toml");
    for (text, names) in
        [("pool_size = '1G'", "pool_size"), ("pool-size = -1", "pool-size"), ("wait = [", "mn.toml")]
    {
        std::fs::write(&path, text).unwrap();
        let error = resolve(&["--config", path.to_str().unwrap()]).unwrap_err();
        assert!(matches!(error, ConfigError::Syntax { .. }) && error.to_string().contains(names), "{error}");
    }
    let error = resolve(&["--config", "/nonexistent/mn.toml"]).unwrap_err();
    assert!(
        matches!(error, ConfigError::Read { ref path, .. } if path.as_os_str() == "/nonexistent/mn.toml"),
        "{error}"
    );
}

#[test]
fn the_help_teaches() {
    let help = Cli::command().render_long_help().to_string();
    for taught in
        ["Examples:", "--print-config", "file:/path", "nr_hugepages", "--static-map", "0x88B5", "Limits"]
    {
        assert!(help.contains(taught), "{taught} is missing in\n{help}");
    }
}
