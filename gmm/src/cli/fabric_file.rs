//! The fabric file of `gmm serve`: read, and checked for what no fabric could ever satisfy, so that it fails at the start
//! and not silently later.

use std::collections::BTreeSet;
use std::path::Path;

use cxloe_daemon::command_line::Failure;
use cxloe_daemon::options;
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_gmm::manager::{Declared, Initialisation, Manager};

/// What the file at `path` declares; nothing without a file.
///
/// # Errors
/// When it cannot be read, or what it says cannot come about.
pub fn declared(path: Option<&Path>, initialisation: Initialisation) -> Result<Declared, Failure> {
    let Some(path) = path else { return Ok(Declared::default()) };
    let declared: Declared = options::read(path).map_err(Failure::usage)?;
    let wrong = |what: String| Err(Failure::usage(format!("fabric file {}: {what}", path.display())));
    let mut names = BTreeSet::new();
    for region in &declared.regions {
        let name = &region.name;
        if !names.insert(name) {
            return wrong(format!("region {name} is declared twice; give each a name of its own"));
        }
        if region.size.0 == 0 {
            return wrong(format!("region {name} has no size; give one, as in size = \"64G\""));
        }
        if let Err(error) = Ways::try_from(region.ways) {
            return wrong(format!("region {name}: {error}"));
        }
        if let Err(error) = Granularity::try_from(region.granularity) {
            return wrong(format!("region {name}: {error}"));
        }
    }
    if initialisation.is_static()
        && let Some((node, owners)) = Manager::shared_nodes(&declared)
    {
        return wrong(format!(
            "memory node {node} is named for {owners}, and a static fabric gives memory nodes away whole; \
             name it for one of them, or start with --init manager-first"
        ));
    }
    Ok(declared)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, initialisation: Initialisation) -> Result<Declared, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        declared(Some(file.path()), initialisation).map_err(|failure| failure.message)
    }

    #[test]
    fn what_can_be_is_read_and_what_cannot_is_named() {
        let region = |name: &str, more: &str| {
            format!("[[region]]\nname = '{name}'\nsize = '64M'\nowner = 'cn1'\n{more}\n")
        };
        let text =
            region("a", "ways = 4\non = ['mn0', 'mn1']") + "[[quota]]\ncompute_node = 'cn1'\nbytes = '1G'\n";
        let read_back = read(&text, Initialisation::Static).unwrap();
        assert_eq!((read_back.regions[0].ways, read_back.quotas[0].bytes.0), (4, 1 << 30));
        assert_eq!(declared(None, Initialisation::Static).unwrap(), Declared::default());

        for (text, words) in [
            (region("a", "") + &region("a", ""), "twice"),
            (region("a", "").replace("64M", "0"), "no size"),
            (region("a", "ways = 5"), "`5`"),
            (region("a", "granularity = 100"), "region a"),
            (region("a", "colour = 1"), "colour"),
        ] {
            let message = read(&text, Initialisation::Concurrent).unwrap_err();
            assert!(message.contains(words), "{message}");
        }
        let shared = region("a", "on = ['mn0']") + &region("b", "on = ['mn0']").replace("cn1", "cn2");
        let message = read(&shared, Initialisation::Static).unwrap_err();
        assert!(message.contains("mn0") && message.contains("cn1 and cn2"), "{message}");
        assert!(read(&shared, Initialisation::ManagerFirst).is_ok());
    }
}
