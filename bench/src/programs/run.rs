//! The measurement: how much memory each program takes, and then all ways by turns, trial by trial.

use std::path::PathBuf;
use std::time::Duration;

use super::error::ProgramsError;
use super::figures::{Figure, Paging};
use super::program::{Job, Program};
use super::stage::{Allowance, Missed, Remote, Run, Stage, region_bytes};
use super::{Absent, Resident, Way};
use crate::machine::median;
use crate::pattern::Share;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Ways besides local memory, in the order of reports.
    pub ways: Vec<Way>,
    /// How much may be resident.
    pub residents: Vec<Resident>,
    /// Trials.
    pub trials: u32,
    /// How long one run may take.
    pub limit: Duration,
}

/// A program whose memory is known.
pub struct Sized {
    /// The program.
    pub program: Program,
    /// Bytes it takes.
    pub footprint: u64,
    job: Job,
    answer: Vec<u8>,
}

impl Sized {
    /// Bytes of remote memory that it is given.
    pub fn region_bytes(&self) -> u64 {
        region_bytes(self.footprint)
    }
}

/// What came out.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Figures, in the order of programs, shares and ways.
    pub figures: Vec<Figure>,
    /// Runs that failed or printed something wrong, in words.
    pub failed: Vec<String>,
}

/// Runs each program once in local memory: how much it takes, and what it prints. Those that do not run to their end are
/// left out, with why.
///
/// # Errors
/// Ctrl-C, and what makes all of it impossible.
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
        let may = Allowance { way: Way::Local, local: 0, footprint: 0, limit };
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

/// One run of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Turn {
    way: Way,
    resident: Resident,
}

/// What is measured of a program that takes `footprint`, in order: with all of it resident, swap has nothing to do.
fn turns(plan: &Plan, footprint: u64) -> Vec<Turn> {
    let mut turns = vec![Turn { way: Way::Local, resident: Resident::Share(Share::percent(100.0)) }];
    for &resident in &plan.residents {
        let ways = plan.ways.iter().filter(|way| **way == Way::Exec || !resident.is_all_of(footprint));
        turns.extend(ways.map(|&way| Turn { way, resident }));
    }
    turns
}

/// What the runs of one turn came to.
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

/// Seconds of a run's work; of `operations` where it did fewer in its time.
fn seconds(run: &Run, operations: Option<u64>) -> f64 {
    match (run.worked, operations) {
        (Some((done, time)), Some(all)) if done > 0 => time.as_secs_f64() * all as f64 / done as f64,
        (Some((_, time)), _) => time.as_secs_f64(),
        (None, _) => run.whole.as_secs_f64(),
    }
}

/// Measures `sized` by turns. `remote` is needed for what is remote; `progress` hears of each run before it begins.
///
/// # Errors
/// Ctrl-C, and what makes all of it impossible; single runs that fail are in the outcome.
pub fn measure(
    stage: &Stage,
    remote: Option<&Remote>,
    sized: &[Sized],
    plan: &Plan,
    progress: &mut dyn FnMut(&str),
) -> Result<Outcome, ProgramsError> {
    let mut outcome = Outcome::default();
    for one in sized {
        let turns = turns(plan, one.footprint);
        let mut all: Vec<Series> = turns.iter().map(|_| Series::default()).collect();
        for _ in 0..plan.trials {
            let mut local = None;
            for (turn, series) in turns.iter().zip(&mut all) {
                progress(&format!("{}: {}, {} resident", one.program.name, turn.way, turn.resident));
                // What did not end in time will not the next time.
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
                if turn.way == Way::Local {
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

/// The least and the most of several values.
fn spread(values: &[f64]) -> Option<[f64; 2]> {
    let several = (values.len() > 1).then_some(values)?;
    Some(several.iter().fold([f64::MAX, 0.0], |[least, most], value| [least.min(*value), most.max(*value)]))
}

impl Series {
    fn figure(self, sized: &Sized, turn: &Turn) -> Figure {
        let local = if turn.way == Way::Local { sized.footprint } else { turn.resident.of(sized.footprint) };
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
        Plan { ways: vec![Way::Exec, Way::SwapFile], residents, trials: 2, limit: Duration::from_secs(9) }
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
