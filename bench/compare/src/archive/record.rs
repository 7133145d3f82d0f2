//! Conditions of a comparison as a file of its archive (`run.json`), from which the differences of two runs are found.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::programs::ProgramVersion;
use cxloe_measure::facts::Fact;

/// Version of the form of an archive; one of another form is refused.
pub const FORM: u32 = 1;

/// Conditions under which a comparison was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Version of the archive's form.
    pub form: u32,
    /// Date and time at which the measurement ended, in UTC (RFC 3339).
    pub measured: String,
    /// Command line that makes the same measurement, with all settings that have defaults.
    pub command: String,
    /// SHA-256 of the trace that was replayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_sha256: Option<String>,
    /// Names of host and user, if they were to be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    pub machine: Vec<Fact>,
    /// Facts of the interfaces at both ends of the cable, and of RDMA devices.
    pub interfaces: Vec<Fact>,
    pub programs: Vec<ProgramVersion>,
}

impl RunRecord {
    /// All conditions by name, as far as two runs of a comparison should agree in them.
    pub fn conditions(&self) -> BTreeMap<String, String> {
        let facts = self.machine.iter().map(|fact| (fact.name.clone(), fact.value.clone()));
        let interfaces =
            self.interfaces.iter().map(|fact| (format!("interface: {}", fact.name), fact.value.clone()));
        let programs =
            self.programs.iter().map(|program| (format!("program: {}", program.program), program.identity()));
        let own = [("command", Some(&self.command)), ("SHA-256 of the trace", self.trace_sha256.as_ref())];
        let own = own.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.clone())));
        facts.chain(interfaces).chain(programs).chain(own).collect()
    }
}
