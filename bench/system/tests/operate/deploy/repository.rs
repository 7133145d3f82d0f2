//! The apt repository of the packages (`make repo`): apt, with a root folder of its own, accepts packages that are
//! signed with the repository's key, and refuses a package, a list or a signed text in which one byte was changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cxloe_system::command::{output_text, printed};
use cxloe_system::pair::{Outcome, ensure};

use super::unit::source;

const PACKAGE: &str = "cxloe-observe";

/// A host for apt: a root folder without packages, configured with one repository.
struct Host(PathBuf);

impl Host {
    fn new(root: PathBuf, sources: &Path) -> Outcome<Host> {
        for folder in [
            "etc/apt/sources.list.d",
            "etc/apt/preferences.d",
            "etc/apt/apt.conf.d",
            "etc/apt/trusted.gpg.d",
            "var/lib/apt/lists/partial",
            "var/cache/apt/archives/partial",
            "var/lib/dpkg",
            "downloads",
        ] {
            fs::create_dir_all(root.join(folder))?;
        }
        fs::write(root.join("var/lib/dpkg/status"), "")?;
        fs::copy(sources, root.join("etc/apt/sources.list.d/cxloe.sources"))?;
        Ok(Host(root))
    }

    fn apt(&self, arguments: &[&str]) -> Outcome<Output> {
        let mut apt = Command::new("apt-get");
        for (name, path) in [("Dir", ""), ("Dir::State::status", "var/lib/dpkg/status")] {
            apt.arg("-o").arg(format!("{name}={}", self.0.join(path).display()));
        }
        // apt usually fetches files as the user `_apt`, who may not read those of tests.
        apt.args(["-o", "APT::Sandbox::User=root", "-o", "APT::Update::Error-Mode=any"]).args(arguments);
        Ok(apt.current_dir(self.0.join("downloads")).env("LC_ALL", "C").output()?)
    }

    /// Downloads a package from the repository: the lists first, then the file.
    fn takes(&self) -> Outcome<Output> {
        let updated = self.apt(&["update"])?;
        if !updated.status.success() {
            return Ok(updated);
        }
        self.apt(&["download", PACKAGE])
    }
}

fn repository(packages: &Path, into: &Path, key: Option<&Path>) -> Outcome<String> {
    let mut made = Command::new(source().join("deploy/debian/repo"));
    made.arg(packages).arg(into).env_remove("REPO_URI").env_remove("REPO_KEY");
    if let Some(key) = key {
        made.env("REPO_KEY", key);
    }
    printed(&mut made)
}

/// Checks a repository of the packages in `made`, in a folder below `dir`.
pub fn is_taken_as_it_was_signed(made: &Path, dir: &Path) -> Outcome {
    let (first, again) = (dir.join("repo"), dir.join("again"));
    let told = repository(made, &first, None)?;
    ensure(told.contains("apt-get update"), told)?;
    // The next release is signed with the key that hosts already trust.
    repository(made, &again, Some(&first.join("key.asc")))?;
    let public = |of: &Path| -> Outcome<String> {
        let text = fs::read_to_string(of.join("cxloe.sources"))?;
        Ok(text.split_once("Signed-By:").ok_or("no key")?.1.to_owned())
    };
    ensure(public(&first)? == public(&again)?, "the second repository has another key")?;
    ensure(!again.join("key.asc").exists(), "a given key is not copied")?;

    let sources = first.join("cxloe.sources");
    let taken = Host::new(dir.join("host"), &sources)?;
    let output = taken.takes()?;
    ensure(output.status.success(), output_text(&output))?;
    let version = env!("CARGO_PKG_VERSION");
    let file = format!("{PACKAGE}_{version}_all.deb");
    ensure(taken.0.join("downloads").join(&file).exists(), format!("{file} was not downloaded"))?;

    let lists = first.join("apt/dists/stable");
    let packages = fs::read_dir(lists.join("main"))?.next().ok_or("no lists")??.path();
    let changed = [
        ("a package", first.join("apt/pool").join(&file)),
        ("the list", packages.join("Packages.gz")),
        ("the signed text", lists.join("InRelease")),
    ];
    for (index, (what, path)) in changed.into_iter().enumerate() {
        let right = fs::read(&path)?;
        let mut wrong = right.clone();
        let middle = wrong.len() / 2;
        wrong[middle] ^= 1;
        fs::write(&path, &wrong)?;
        let other = packages.join("Packages");
        let plain = fs::read(&other)?;
        // The plain list is removed, so that apt reads the compressed list, which was changed.
        if path.ends_with("Packages.gz") {
            fs::remove_file(&other)?;
        }
        let host = Host::new(dir.join(format!("host{index}")), &sources)?;
        let output = host.takes()?;
        ensure(!output.status.success(), format!("{what} was changed: {}", output_text(&output)))?;
        ensure(
            !host.0.join("downloads").join(&file).exists(),
            format!("{what} was changed, and {file} taken"),
        )?;
        fs::write(&path, &right)?;
        fs::write(&other, &plain)?;
    }
    Ok(())
}
