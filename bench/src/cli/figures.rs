//! `cxloe-bench figures`: the paper's congestion figures, simulated.

use std::path::PathBuf;

use clap::ValueEnum;
use cxloe_daemon::to_stdout;
use serde::Serialize;

use super::Failure;
use super::common::write;
use cxloe_paper::figures::{Fig11, Fig12, Model};

/// Draw the paper's congestion figures from a simulated link of 100 Gbit/s
///
/// The controller and the token bucket are those that pace real links. Fig. 11: first and final stable rate
/// against the threshold of the memory node's receive FIFO. Fig. 12: final stable rate against the initial
/// rate of the link. The same program gives the same figures everywhere, to the byte; needs neither
/// privileges nor a network.
#[derive(clap::Args)]
pub struct Args {
    /// Figure of the paper to draw
    #[arg(value_enum, default_value_t = FigureChoice::All)]
    which: FigureChoice,

    /// Write the figures drawn (fig11.csv, fig11.svg, fig12.csv, fig12.svg) to this folder, created if
    /// missing
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Print the figures as JSON instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FigureChoice {
    Fig11,
    Fig12,
    All,
}

/// Simulated figures, in the layout of `--json`.
#[derive(Serialize)]
struct Drawn {
    #[serde(skip_serializing_if = "Option::is_none")]
    fig11: Option<Fig11>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fig12: Option<Fig12>,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    if let Some(folder) = &args.output {
        std::fs::create_dir_all(folder).map_err(|e| {
            format!("cannot make the folder {}: {e}; give another with --output", folder.display())
        })?;
    }
    let model = Model::default();
    let drawn = Drawn {
        fig11: (args.which != FigureChoice::Fig12).then(|| Fig11::simulate(&model)),
        fig12: (args.which != FigureChoice::Fig11).then(|| Fig12::simulate(&model)),
    };
    let mut files = Vec::new();
    if let Some(fig) = &drawn.fig11 {
        files.extend([("fig11.csv", fig.csv()), ("fig11.svg", fig.svg()?)]);
    }
    if let Some(fig) = &drawn.fig12 {
        files.extend([("fig12.csv", fig.csv()), ("fig12.svg", fig.svg()?)]);
    }
    if args.json {
        to_stdout!("{}", serde_json::to_string_pretty(&drawn)?);
    } else {
        let tables = [drawn.fig11.as_ref().map(Fig11::table), drawn.fig12.as_ref().map(Fig12::table)];
        to_stdout!("{}", tables.into_iter().flatten().collect::<Vec<_>>().join("\n"));
    }
    if let Some(folder) = &args.output {
        for (name, text) in files {
            let path = folder.join(name);
            write(&path, text.as_bytes())?;
            if !args.json {
                to_stdout!("written: {}", path.display());
            }
        }
    }
    Ok(())
}
