//! The fabric file of `gmm serve`. It is checked for contradictions, so that they are reported when the
//! manager starts.

use std::collections::BTreeSet;
use std::path::Path;

use cxloe_daemon::command_line::Failure;
use cxloe_daemon::options;
use cxloe_gmm_core::manager::{Declared, Initialisation, Manager};

/// Returns the declarations in the fabric file at `path`, or none without a path.
///
/// # Errors
/// If the file cannot be read, or contradicts itself.
pub fn declared(path: Option<&Path>, initialisation: Initialisation) -> Result<Declared, Failure> {
    let Some(path) = path else { return Ok(Declared::default()) };
    let declared: Declared = options::read(path).map_err(Failure::usage)?;
    let wrong = |what: String| Err(Failure::usage(format!("fabric file {}: {what}", path.display())));
    let mut names = BTreeSet::new();
    for region in &declared.regions {
        let Some(name) = &region.name else {
            return wrong(format!("a region for {} has no name; give it one", region.owner));
        };
        if !names.insert(name) {
            return wrong(format!("region {name} is declared twice; give each a name of its own"));
        }
        if region.size.0 == 0 {
            return wrong(format!("region {name} has no size; give one, as in size = \"64G\""));
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
    use cxloe_fabric::hdm::Ways;

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
        assert_eq!((read_back.regions[0].ways, read_back.quotas[0].bytes.0), (Ways::Four, 1 << 30));
        assert_eq!(declared(None, Initialisation::Static).unwrap(), Declared::default());

        for (text, words) in [
            (region("a", "") + &region("a", ""), "twice"),
            (region("a", "").replace("64M", "0"), "no size"),
            (region("a", "").replace("name = 'a'", ""), "has no name"),
            (region("a", "ways = 5"), "`5`"),
            (region("a", "granularity = 100"), "`100`"),
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
