//! `gmm label-region`: labels of a region, by which `gmm list` finds it.

use clap::Args;
use cxloe_daemon::command_line::{Failure, output};
use cxloe_fabric::Client;
use cxloe_fabric::api::LabelRegion;
use cxloe_fabric::model::{Label, Name};
use serde_json::json;

#[derive(Debug, Args)]
#[command(after_help = "\
A label is a key with a value: 1 to 63 letters, digits, '.', '_', '-' or '/'; a value may be empty. A region has at
most 32.

Examples:
  gmm label-region model use=serving team=vision
  gmm label-region model team-                     removes the label
  gmm list -R --label use=serving,team!=vision")]
pub struct LabelRegionArgs {
    /// Name of the region
    region: Name,
    /// Labels to set, as key=value, and to remove, as key-
    #[arg(value_name = "KEY=VALUE|KEY-", required = true)]
    changes: Vec<LabelChange>,
}

/// Change of one label.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LabelChange {
    Set(Label),
    Remove(String),
}

impl std::str::FromStr for LabelChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_suffix('-').filter(|_| !text.contains('=')) {
            Some(key) => Ok(Self::Remove(key.to_owned())),
            None => text
                .parse()
                .map(Self::Set)
                .map_err(|error: cxloe_fabric::model::LabelError| error.to_string()),
        }
    }
}

/// Changes the labels of a region, and prints the resulting labels.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn run(client: &Client, args: LabelRegionArgs) -> Result<(), Failure> {
    let (mut set, mut remove) = (Vec::new(), Vec::new());
    for change in args.changes {
        match change {
            LabelChange::Set(label) => set.push(label),
            LabelChange::Remove(key) => remove.push(key),
        }
    }
    let set =
        set.try_into().map_err(|error: cxloe_fabric::model::LabelError| Failure::usage(error.to_string()))?;
    let region = client.label_region(&args.region, &LabelRegion { set, remove }).await?;
    output::print(json!({ "region": region.name, "labels": region.labels }), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_as_people_write_them() {
        let set = |text: &str| Ok(LabelChange::Set(text.parse().unwrap()));
        assert_eq!("team-".parse(), Ok(LabelChange::Remove("team".into())));
        assert_eq!("team=a-".parse(), set("team=a-"));
        assert!("team".parse::<LabelChange>().is_err_and(|error| error.contains("write it as key=value")));
    }
}
