//! The Debian packages: built from the existing programs, checked by lintian, installed into a separate root folder,
//! used, removed, and purged until no file is left. dpkg runs the packages' scripts with DPKG_ROOT, which requires only
//! write access to a folder and does not change the machine's own packages.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cxloe_lab::program;

use super::repository;
use super::unit::source;
use cxloe_system::pair::{Outcome, ensure, succeeded};

const PACKAGES: [&str; 9] = [
    "cxloe-common",
    "cxloe-gmm",
    "cxloe-mn",
    "cxloe-cn",
    "libcxloe0",
    "libcxloe-dev",
    "cxloe-bench",
    "cxloe-dpdk",
    "cxloe-observe",
];

/// A root folder that at first contains only a user database.
struct Root(PathBuf);

impl Root {
    fn new(path: PathBuf) -> Outcome<Root> {
        for folder in ["etc", "var/lib/dpkg/updates", "var/lib/dpkg/info", "usr", "tmp"] {
            fs::create_dir_all(path.join(folder))?;
        }
        for file in ["var/lib/dpkg/status", "var/lib/dpkg/available"] {
            fs::write(path.join(file), "")?;
        }
        fs::write(path.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
        fs::write(path.join("etc/group"), "root:x:0:\n")?;
        Ok(Root(path))
    }

    fn dpkg(&self, arguments: &[&str], files: &[PathBuf]) -> Outcome<String> {
        let mut dpkg = Command::new("dpkg");
        let root = format!("--root={}", self.0.display());
        dpkg.args([
            &root,
            "--force-script-chrootless",
            "--force-not-root",
            "--force-depends",
            "--no-triggers",
        ]);
        dpkg.arg("--log=/dev/null").args(arguments).args(files).stdin(Stdio::null());
        let path = std::env::var("PATH").unwrap_or_default();
        dpkg.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C");
        let output = dpkg.output()?;
        let output_text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure(output.status.success(), format!("dpkg {arguments:?}: {output_text}"))?;
        Ok(output_text)
    }

    /// Every file and folder in the root, except dpkg's own.
    fn content(&self) -> Outcome<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        walk(&self.0, &self.0, &mut found)?;
        found.retain(|path| !path.starts_with("var/lib/dpkg"));
        Ok(found)
    }

    fn text(&self, path: &str) -> Outcome<String> {
        Ok(fs::read_to_string(self.0.join(path)).map_err(|error| format!("{path}: {error}"))?)
    }
}

fn walk(root: &Path, folder: &Path, found: &mut BTreeSet<String>) -> Outcome {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        found.insert(entry.path().strip_prefix(root).unwrap_or(&entry.path()).display().to_string());
        if entry.file_type()?.is_dir() {
            walk(root, &entry.path(), found)?;
        }
    }
    Ok(())
}

fn build(into: &Path) -> Outcome<Vec<PathBuf>> {
    let programs = program("gmm")?;
    let mut build = Command::new(source().join("deploy/debian/build"));
    build.arg(programs.parent().ok_or("no folder")?).arg(into).env("COMPRESSION", "-Zgzip -z1");
    succeeded(build.output()?)?;
    let made = |package: &str| -> Outcome<PathBuf> {
        let start = format!("{package}_{}_", env!("CARGO_PKG_VERSION"));
        let entries = fs::read_dir(into)?.flatten().map(|entry| entry.path());
        let of_package =
            |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start));
        Ok(entries.into_iter().find(of_package).ok_or_else(|| format!("no package {package}"))?)
    };
    PACKAGES.iter().map(|package| made(package)).collect()
}

/// Completions that bash offers at the end of a command line.
fn completed(root: &Root, program: &str, words: &str) -> Outcome<Vec<String>> {
    let script = root.0.join("usr/share/bash-completion/completions").join(program);
    let run = "source \"$0\"; read -ra COMP_WORDS <<<\"$1 $2\"; [[ $2 != *\\  ]] || COMP_WORDS+=(''); \
               COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); found=$(complete -p \"$1\"); found=${found#*-F }; \
               ${found%% *} \"$1\" \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"; \
               printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["-c", run]).arg(script).args([program, words]);
    Ok(succeeded(bash.output()?)?.lines().map(str::to_owned).collect())
}

/// Makes a newer version of the package, with another configuration; returns its path.
fn newer(package: &Path, folder: &Path) -> Outcome<PathBuf> {
    let (tree, made) = (folder.join("newer"), folder.join("newer.deb"));
    succeeded(Command::new("dpkg-deb").arg("-R").arg(package).arg(&tree).output()?)?;
    let change = |file: &str, change: &dyn Fn(String) -> String| -> Outcome {
        let path = tree.join(file);
        Ok(fs::write(&path, change(fs::read_to_string(&path)?))?)
    };
    change("usr/share/cxloe/mn-server.toml", &|text| text + "# newer\n")?;
    let version = format!("Version: {}", env!("CARGO_PKG_VERSION"));
    change("DEBIAN/control", &|text| text.replace(&version, &format!("{version}+1")))?;
    succeeded(Command::new("dpkg-deb").args(["-Zgzip", "-z1", "-b"]).arg(&tree).arg(&made).output()?)?;
    Ok(made)
}

pub fn packages_come_and_go() -> Outcome {
    let dir = tempfile::tempdir()?;
    let made = build(&dir.path().join("made"))?;
    // lintian checks every string of every object, which takes minutes for a debug build. The three packages
    // named here cover each kind of content.
    let looked_at = made.iter().filter(|path| {
        ["cxloe-common_", "cxloe-mn_", "cxloe-observe_"]
            .iter()
            .any(|name| path.to_string_lossy().contains(name))
    });
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on=error", "--tag-display-limit=0"]).args(looked_at);
    let output = lintian.output()?;
    ensure(output.status.success(), String::from_utf8_lossy(&output.stdout))?;

    repository::is_taken_as_it_was_signed(&dir.path().join("made"), dir.path())?;

    let root = Root::new(dir.path().join("root"))?;
    let before = root.content()?;
    root.dpkg(&["--install"], &made)?;
    let installed = root.content()?;
    for file in [
        "usr/bin/gmm",
        "usr/bin/mn-server",
        "usr/bin/cn-agent",
        "usr/bin/cxloe-bench",
        "usr/lib/cxloe/libcxloe_preload.so",
        "usr/lib/systemd/system/gmm.service",
        "usr/lib/systemd/system/mn-server@.service",
        "usr/lib/udev/rules.d/60-cxloe.rules",
        "usr/lib/sysusers.d/cxloe.conf",
        "usr/include/cxloe.h",
        "usr/share/man/man1/mn-server-doctor.1.gz",
        "usr/share/bash-completion/completions/cn-agent",
        "usr/share/doc/cxloe-cn/changelog.gz",
        "usr/share/cxloe/hugepages.conf",
        "usr/share/cxloe/grafana/cxloe.json",
        "usr/share/cxloe/prometheus/alerts.yml",
        "usr/share/cxloe/prometheus/prometheus.yml",
        "usr/share/cxloe/tune/nic",
        "usr/share/cxloe/tune/dpdk",
        "usr/lib/systemd/system/cn-agent.service.d/dpdk.conf",
        "etc/cxloe/cn-agent.toml",
    ] {
        ensure(installed.contains(file), format!("{file} is not installed"))?;
    }
    ensure(root.text("etc/passwd")?.contains("\ncxloe:"), "the user of the nodes is missing")?;

    // The installed programs have the version of this release, and find their files.
    for name in ["gmm", "mn-server", "cn-agent", "cxloe-bench"] {
        let output_text =
            succeeded(Command::new(root.0.join("usr/bin").join(name)).arg("--version").output()?)?;
        ensure(output_text.trim() == format!("{name} {}", env!("CARGO_PKG_VERSION")), output_text)?;
    }
    let mut options = Command::new(root.0.join("usr/bin/mn-server"));
    options.arg("--config").arg(root.0.join("etc/cxloe/mn-server.toml"));
    options.args(["-i", "enp3s0f0", "--manager", "http://10.0.0.1:7440", "--print-config"]);
    ensure(succeeded(options.output()?)?.contains("pool-size = \"1GiB\""), "the configuration is not read")?;
    a_program_in_c(&root)?;
    what_surrounds_a_fabric_works(&root)?;
    the_example_of_huge_pages_suffices(&root)?;
    for (program, words, offered) in [
        ("gmm", "create-region --", "--size"),
        ("mn-server", "doctor --poo", "--pool"),
        ("mn-server", "run --wait ", "busy"),
        ("cn-agent", "exec --loc", "--local"),
        ("cxloe-bench", "quick", "quickstart"),
    ] {
        let replies = completed(&root, program, words)?;
        ensure(replies.contains(&offered.to_owned()), format!("{program} {words}: {replies:?}"))?;
    }

    // Changes of the administrator survive an upgrade and a removal.
    let changed = format!("{}pool = \"memfd\"\n", root.text("etc/cxloe/mn-server.toml")?);
    fs::write(root.0.join("etc/cxloe/mn-server.toml"), &changed)?;
    // The upgrade runs with an empty standard input, so it may not ask a question.
    let newer = newer(&made[2], dir.path())?;
    root.dpkg(&["--install"], &[newer])?;
    ensure(root.text("usr/share/cxloe/mn-server.toml")?.ends_with("# newer\n"), "it is upgraded")?;
    ensure(
        root.text("etc/cxloe/mn-server.toml")? == changed,
        "the administrator's options were overwritten",
    )?;
    fs::create_dir_all(root.0.join("var/lib/cxloe"))?;
    fs::write(root.0.join("var/lib/cxloe/mn-mn0.state"), "kept")?;
    fs::create_dir_all(root.0.join("var/lib/private/cxloe-gmm"))?;
    root.dpkg(&[&["--remove"][..], &PACKAGES].concat(), &[])?;
    let removed = root.content()?;
    ensure(
        !removed.iter().any(|path| path.starts_with("usr/bin") || path.ends_with(".service")),
        "programs are left",
    )?;
    ensure(root.text("etc/cxloe/mn-server.toml")? == changed, "options go with a purge only")?;
    ensure(removed.contains("var/lib/cxloe/mn-mn0.state"), "state goes with a purge only")?;

    let packages: Vec<&str> =
        PACKAGES.into_iter().filter(|package| !package.starts_with("libcxloe")).collect();
    root.dpkg(&[&["--purge", "--force-remove-essential"][..], &packages].concat(), &[])?;
    // Tools that manage users leave copies of the files they have changed.
    let mut after = root.content()?;
    after.retain(|path| {
        !["etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/.pwd.lock"]
            .contains(&path.as_str())
    });
    let left: Vec<&String> = after
        .difference(&before)
        .filter(|path| !["etc/shadow", "etc/gshadow"].contains(&path.as_str()) && !is_shared(path))
        .collect();
    ensure(left.is_empty(), format!("left over: {left:?}"))?;
    ensure(!root.text("etc/passwd")?.contains("cxloe"), "the user is left")
}

/// True if a path is a folder that every system has, and that packages do not remove.
fn is_shared(path: &str) -> bool {
    path == "var/lib/private"
}

/// Wireshark finds the dissector, Prometheus accepts the alerts, and the script for interfaces runs from its
/// folder.
fn what_surrounds_a_fabric_works(root: &Root) -> Outcome {
    let folders = succeeded(Command::new("tshark").args(["-G", "folders"]).output()?)?;
    let plugins = folders
        .lines()
        .find_map(|line| Some(line.strip_prefix("Global Lua Plugins:")?.trim()))
        .ok_or_else(|| format!("no folder of plug-ins: {folders}"))?;
    let link = root.0.join(plugins.trim_start_matches('/')).join("cxloe.lua");
    let target = fs::read_link(&link).map_err(|error| format!("{}: {error}", link.display()))?;
    let script = root.0.join(target.strip_prefix("/")?);
    let mut fields = Command::new("tshark");
    fields.args(["-G", "fields", "-X"]).arg(format!("lua_script:{}", script.display()));
    ensure(succeeded(fields.output()?)?.contains("cxloe.response_to"), "the dissector is not loaded")?;
    let shared = root.0.join("usr/share/cxloe");
    let mut rules = Command::new("promtool");
    rules.args(["check", "rules"]).arg(shared.join("prometheus/alerts.yml"));
    succeeded(rules.output()?)?;
    let nic = Command::new(shared.join("tune/nic")).args(["-i", "lo", "--json"]).output()?;
    serde_json::from_str::<serde_json::Value>(&succeeded(nic)?)?;
    Ok(())
}

/// The file `hugepages.conf`, which reserves huge pages at boot, only sets `vm.nr_hugepages`, and reserves enough pages
/// for the pool of 16 GiB in the book; the doctor counts the pages needed.
fn the_example_of_huge_pages_suffices(root: &Root) -> Outcome {
    let text = root.text("usr/share/cxloe/hugepages.conf")?;
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let settings: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(" = ")).collect();
    let [("vm.nr_hugepages", pages)] = settings[..] else {
        return Err(format!("other settings than vm.nr_hugepages: {text}").into());
    };
    let mut doctor = Command::new(root.0.join("usr/bin/mn-server"));
    doctor.args(["doctor", "-i", "lo", "--insecure", "--manager", "http://127.0.0.1:1", "--pool", "huge2m"]);
    doctor.args(["--pool-size", "16G", "--json", "--socket"]).arg(root.0.join("tmp/mn.sock"));
    // The exit code is ignored: other checks of the doctor fail here.
    let report: serde_json::Value = serde_json::from_slice(&doctor.output()?.stdout)?;
    let checks = report["checks"].as_array().ok_or("no checks")?;
    let check = checks.iter().find(|check| check["name"] == "huge pages").ok_or("no check of huge pages")?;
    let needed = check["found"].as_str().and_then(|found| found.rsplit(' ').nth(1)?.parse::<u64>().ok());
    let needed = needed.ok_or_else(|| format!("no number of pages: {check}"))?;
    ensure(pages.parse::<u64>()? >= needed, format!("{pages} pages, and {needed} are needed"))?;
    let advice = check["advice"].as_str().unwrap_or("/usr/share/cxloe/hugepages.conf");
    ensure(advice.contains("/usr/share/cxloe/hugepages.conf"), advice)
}

/// Compiles a C program with the installed headers and libraries; the program has to find the shared library by its
/// installed name.
fn a_program_in_c(root: &Root) -> Outcome {
    let (usr, built) = (root.0.join("usr"), root.0.join("tmp/records"));
    let library = fs::read_dir(usr.join("lib"))?
        .flatten()
        .map(|entry| entry.path())
        .find(|folder| folder.join("libcxloe.so").exists())
        .ok_or("no libcxloe.so")?;
    let mut cc = Command::new("cc");
    cc.arg("-I").arg(usr.join("include")).arg("-o").arg(&built);
    cc.arg(usr.join("share/doc/libcxloe-dev/examples/records.c")).arg("-L").arg(&library).arg("-lcxloe");
    succeeded(cc.output()?)?;
    // Without an agent the program fails with its own message, not with an error of the dynamic linker.
    let output =
        Command::new(&built).env("LD_LIBRARY_PATH", &library).env("CXLOE_AGENT", "/nonexistent").output()?;
    let output_text = String::from_utf8_lossy(&output.stderr);
    ensure(!output_text.contains("shared librar"), output_text.clone())?;
    ensure(
        output.status.code().is_some_and(|code| code != 127),
        format!("{}: {output_text}", output.status),
    )?;
    fs::remove_file(&built)?;
    Ok(())
}
