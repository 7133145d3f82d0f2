//! The measurement of programs: first the memory that each program needs is determined, then all ways of holding that
//! memory are measured alternately, trial by trial.

use std::path::PathBuf;
use std::time::Duration;

use super::error::ProgramsError;
use super::figures::{Figure, Paging};
use super::program::{Job, Program};
use super::stage::{Allowance, Missed, Remote, Run, Stage, region_bytes};
use super::{Absent, MemoryBacking, Resident};
use cxloe_measure::machine::median;
use cxloe_measure::pattern::Share;

/// Parameters of a measurement of programs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Ways of holding memory other than local, in the order of reports.
    pub ways: Vec<MemoryBacking>,
    pub residents: Vec<Resident>,
    /// Number of trials of each program, limit and way.
    pub trials: u32,
    /// Maximum duration of one run.
    pub limit: Duration,
}

/// Program with the memory that it needs.
pub struct Sized {
    pub program: Program,
    pub footprint: u64,
    job: Job,
    answer: Vec<u8>,
}

impl Sized {
    /// Bytes of remote memory that a run of the program needs.
    pub fn region_bytes(&self) -> u64 {
        region_bytes(self.footprint, self.job.beside)
    }
}

/// Figures and failures of a measurement.
#[derive(Debug, Default)]
pub struct ComparisonResults {
    /// Figures, in the order of programs, limits and ways.
    pub figures: Vec<Figure>,
    /// Descriptions of runs that failed or printed wrong output.
    pub failed: Vec<String>,
}

/// Runs each program once in local memory to determine the memory it needs and its output. Programs that fail are left
/// out, with the reason.
///
/// # Errors
/// Returns an error on Ctrl-C, and on failures that affect all programs.
pub fn size(
    stage: &Stage,
    programs: &[Program],
    scale: Share,
    limit: Duration,
    progress: &mut dyn FnMut(&str),
) -> Result<(Vec<Sized>, Vec<Absent>), ProgramsError> {
    let (mut sized, mut absent) = (Vec::new(), Vec::new());
    for program in programs {
        progress(&format!("{}: how much memory it takes", program.name));
        let folder = folder_of(stage, program)?;
        let job = program.job(scale, &folder)?;
        let may = Allowance { way: MemoryBacking::Local, local: 0, footprint: 0, limit };
        match stage.run(&job, None, may)? {
            Ok(run) => {
                let footprint = run.most.max(4096);
                sized.push(Sized { program: *program, footprint, job, answer: run.out });
            }
            Err(missed) => {
                let reason = format!("in local memory {}", words(&missed, limit));
                absent.push(Absent { name: program.name.into(), reason });
            }
        }
    }
    Ok((sized, absent))
}

fn folder_of(stage: &Stage, program: &Program) -> Result<PathBuf, ProgramsError> {
    let folder = stage.folder.join(program.name);
    std::fs::create_dir_all(&folder).map_err(ProgramsError::io(format!("making {}", folder.display())))?;
    Ok(folder)
}

fn words(missed: &Missed, limit: Duration) -> String {
    match missed {
        Missed::Late => format!("it takes more than {} s", limit.as_secs_f64()),
        Missed::Killed => {
            "the kernel ended it: its group found no page to take with so little resident".into()
        }
        Missed::Failed(why) => format!("it failed: {why}"),
    }
}

/// One run within a trial: a way of holding memory, with a limit of resident memory.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Turn {
    way: MemoryBacking,
    resident: Resident,
}

/// Returns the runs of one trial, in order, for a program that needs `footprint` bytes. Ways that swap are left out for
/// a limit that permits all of the memory to be resident.
fn turns(plan: &Plan, footprint: u64) -> Vec<Turn> {
    let mut turns =
        vec![Turn { way: MemoryBacking::Local, resident: Resident::Share(Share::percent(100.0)) }];
    for &resident in &plan.residents {
        let ways =
            plan.ways.iter().filter(|way| **way == MemoryBacking::Exec || !resident.is_all_of(footprint));
        turns.extend(ways.map(|&way| Turn { way, resident }));
    }
    turns
}

/// Results of the same run over all trials.
#[derive(Default)]
struct Series {
    seconds: Vec<f64>,
    whole: Vec<f64>,
    operation_ns: Vec<f64>,
    ratios: Vec<f64>,
    paging: Option<Paging>,
    swapped_in: Option<u64>,
    missed: Option<String>,
}

/// Seconds of a run's work. If the run completed fewer than `operations` in its time, the seconds are scaled up.
fn seconds(run: &Run, operations: Option<u64>) -> f64 {
    match (run.worked, operations) {
        (Some((done, time)), Some(all)) if done > 0 => time.as_secs_f64() * all as f64 / done as f64,
        (Some((_, time)), _) => time.as_secs_f64(),
        (None, _) => run.whole.as_secs_f64(),
    }
}

/// Measures the programs in `sized` alternately. `remote` is required if a way of holding memory uses remote memory;
/// `progress` is called before each run.
///
/// # Errors
/// Returns an error on Ctrl-C, and on failures that affect all runs; failures of single runs are among the results.
pub fn measure(
    stage: &Stage,
    remote: Option<&Remote>,
    sized: &[Sized],
    plan: &Plan,
    progress: &mut dyn FnMut(&str),
) -> Result<ComparisonResults, ProgramsError> {
    let mut outcome = ComparisonResults::default();
    for one in sized {
        let turns = turns(plan, one.footprint);
        let mut all: Vec<Series> = turns.iter().map(|_| Series::default()).collect();
        for _ in 0..plan.trials {
            let mut local = None;
            for (turn, series) in turns.iter().zip(&mut all) {
                progress(&format!("{}: {}, {} resident", one.program.name, turn.way, turn.resident));
                // A run that failed or exceeded its time is not repeated in later trials.
                if series.missed.is_some() {
                    continue;
                }
                let (footprint, limit) = (one.footprint, plan.limit);
                let may = Allowance { way: turn.way, local: turn.resident.of(footprint), footprint, limit };
                let run = match stage.run(&one.job, remote, may)? {
                    Ok(run) if run.out == one.answer => run,
                    Ok(_) => {
                        series.missed =
                            Some("wrong data: it printed something else than in local memory".into());
                        continue;
                    }
                    Err(missed) => {
                        series.missed = Some(words(&missed, limit));
                        if let Missed::Failed(_) = missed {
                            let what = format!("{} {}", one.program.name, turn.way);
                            outcome.failed.push(format!("{what}, {} resident", turn.resident));
                        }
                        continue;
                    }
                };
                let all = one.job.load.as_ref().map(super::redis::Load::requests);
                let took = seconds(&run, all);
                if turn.way == MemoryBacking::Local {
                    local = Some(took);
                }
                series.seconds.push(took);
                series.whole.push(run.whole.as_secs_f64());
                series.ratios.extend(local.filter(|local| *local > 0.0).map(|local| took / local));
                series.operation_ns.extend(
                    run.worked
                        .filter(|(done, _)| *done > 0)
                        .map(|(done, time)| time.as_nanos() as f64 / done as f64),
                );
                series.paging = run.paging.or(series.paging);
                series.swapped_in = run.swapped_in.or(series.swapped_in);
            }
        }
        outcome.failed.extend(turns.iter().zip(&all).filter_map(|(turn, series)| {
            let wrong = series.missed.as_ref()?.starts_with("wrong data");
            wrong
                .then(|| format!("{} {}, {} resident: wrong data", one.program.name, turn.way, turn.resident))
        }));
        outcome.figures.extend(turns.iter().zip(all).map(|(turn, series)| series.figure(one, turn)));
    }
    Ok(outcome)
}

/// Minimum and maximum of several values.
fn spread(values: &[f64]) -> Option<[f64; 2]> {
    let several = (values.len() > 1).then_some(values)?;
    Some(several.iter().fold([f64::MAX, 0.0], |[least, most], value| [least.min(*value), most.max(*value)]))
}

impl Series {
    fn figure(self, sized: &Sized, turn: &Turn) -> Figure {
        let local = if turn.way == MemoryBacking::Local {
            sized.footprint
        } else {
            turn.resident.of(sized.footprint)
        };
        Figure {
            program: sized.program.name.into(),
            way: turn.way,
            resident: turn.resident.to_string(),
            local_bytes: local,
            footprint_bytes: sized.footprint,
            seconds: median(&self.seconds),
            whole_seconds: median(&self.whole),
            operation_ns: median(&self.operation_ns),
            slowdown: median(&self.ratios),
            slowdown_spread: spread(&self.ratios),
            seconds_spread: spread(&self.seconds),
            paging: self.paging,
            swapped_in: self.swapped_in,
            trials: self.seconds.len(),
            missed: self.missed.filter(|_| self.seconds.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(residents: &[&str]) -> Plan {
        let residents = residents.iter().map(|text| text.parse().unwrap()).collect();
        Plan {
            ways: vec![MemoryBacking::Exec, MemoryBacking::SwapFile],
            residents,
            trials: 2,
            limit: Duration::from_secs(9),
        }
    }

    #[test]
    fn swap_has_nothing_to_do_where_everything_fits() {
        let of = |residents: &[&str]| {
            let all = turns(&plan(residents), 100 << 20);
            all.iter().map(|turn| format!("{} {}", turn.way, turn.resident)).collect::<Vec<_>>()
        };
        assert_eq!(of(&["100%", "50%"]), ["local 100%", "exec 100%", "exec 50%", "swap-file 50%"]);
        assert_eq!(of(&["128M"]), ["local 100%", "exec 128 MiB"]);
    }

    #[test]
    fn several_trials_have_a_spread() {
        assert_eq!(spread(&[2.0]), None);
        assert_eq!(spread(&[2.0, 5.0, 1.5]), Some([1.5, 5.0]));
    }

    #[test]
    fn work_that_was_cut_short_counts_for_all_of_it() {
        let run = |worked| Run {
            whole: Duration::from_secs(7),
            worked,
            out: Vec::new(),
            most: 0,
            paging: None,
            swapped_in: None,
        };
        assert_eq!(seconds(&run(None), None), 7.0);
        assert_eq!(seconds(&run(Some((100, Duration::from_secs(2)))), None), 2.0);
        assert_eq!(seconds(&run(Some((100, Duration::from_secs(2)))), Some(300)), 6.0);
    }
}
