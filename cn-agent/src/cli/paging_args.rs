//! Paging options that `exec` and `vm` share, and the requests that are built from them: to lease a region for a
//! program, and to map it.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use cxloe_client::message::MapRequest;
use cxloe_cn_core::mapped::MappingKind;
use cxloe_daemon::Span;
use cxloe_daemon::command_line::{Exit, Failure};
use cxloe_daemon::to_stderr;
use cxloe_exec::lease::{Lease, LeaseError};
use cxloe_exec::memory_limit::GroupLimit;
use cxloe_fabric::model::{ByteSize, Name, human_bytes};

use super::failure::of_agent;

#[derive(Debug, Args)]
pub struct PagingArgs {
    /// Bytes that may be resident in this machine's memory
    #[arg(long, value_name = "SIZE")]
    local: ByteSize,
    /// Longest wait for a successor if the agent ends
    #[arg(long, default_value = "30s", value_name = "TIME")]
    wait: Span,
    /// Longest outage of memory nodes before touching their pages gives SIGBUS
    #[arg(long, default_value = "30s", value_name = "TIME")]
    lost_wait: Span,
    /// Fetch no pages ahead
    #[arg(long)]
    no_prefetch: bool,
}

impl PagingArgs {
    pub fn wait(&self) -> Duration {
        self.wait.0
    }

    pub fn lost_wait(&self) -> Duration {
        self.lost_wait.0
    }

    /// Lowers `--local` to what the control group of this process permits, with a warning on standard error.
    pub fn keep_below_limits(&mut self) {
        let Some(limit) = GroupLimit::of_this_process() else { return };
        let resident = limit.resident(self.local.0);
        if resident < self.local.0 {
            to_stderr!(
                "cn-agent: --local is {}, not {}: {} permits {} for this command and its program, resident remote memory \
                 included",
                human_bytes(resident),
                human_bytes(self.local.0),
                limit.file.display(),
                human_bytes(limit.bytes)
            );
            self.local = ByteSize(resident);
        }
    }

    /// Builds the request to map `region`; `fresh` discards the content of the region first.
    pub fn map(&self, region: &Name, kind: MappingKind, fresh: bool) -> MapRequest {
        let request = MapRequest::new(region.to_string(), kind, self.local.0, self.lost_wait.0);
        MapRequest { prefetch: !self.no_prefetch, fresh, ..request }
    }
}

/// Leases the region of this name or, without a name, creates a temporary one of `size` bytes.
///
/// # Errors
/// When the region does not exist, or none can be created.
pub fn lease(socket: &Path, region: Option<&Name>, size: Option<ByteSize>) -> Result<Lease, Failure> {
    match region {
        Some(name) => Lease::existing(socket, name.clone()),
        None => Lease::create(socket, size.unwrap_or_default().0),
    }
    .map_err(of_lease)
}

/// Converts the error of a lease to a message and an exit code.
fn of_lease(error: LeaseError) -> Failure {
    match error {
        LeaseError::Agent(error) => of_agent(error),
        LeaseError::NoRegion { .. } | LeaseError::NotAttached { .. } => Failure::new(Exit::NotFound, error),
    }
}
