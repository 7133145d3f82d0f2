//! Answers about event logs: the oldest records that fit into a response, and clearing them.

use super::{CommandResponse, RequestContext};
use crate::bytes::Payload;
use crate::event_record::{
    ClearEvents, EventRecord, Events, GetEvents, Log, RECORD_BYTES, RECORDS_HEADER_BYTES,
};
use crate::fabric::{LogEntry, LogSource};
use crate::header::ReturnCode;

/// Maximum number of records in a response: as many as Clear Event Records can name at once.
const RECORDS_MAX: usize = 255;

impl RequestContext<'_> {
    pub(super) fn get_events(
        &self,
        source: LogSource,
        payload: &[u8],
        room: usize,
    ) -> Result<CommandResponse, ReturnCode> {
        let request = GetEvents::from_bytes(payload)?;
        let log = Log::from_number(request.log).ok_or(ReturnCode::InvalidInput)?;
        let log_now = self.fabric.events(source, log);
        let fit = room.saturating_sub(RECORDS_HEADER_BYTES) / RECORD_BYTES;
        let fit = fit.min(RECORDS_MAX).min(log_now.entries.len());
        let more = fit < log_now.entries.len();
        let records = log_now.entries.into_iter().take(fit).map(|entry| record(log, entry)).collect();
        Ok(Events { more, overflow: log_now.overflow, records }.into())
    }

    pub(super) fn clear_events(
        &mut self,
        source: LogSource,
        payload: &[u8],
    ) -> Result<CommandResponse, ReturnCode> {
        let request = ClearEvents::from_bytes(payload)?;
        let log = Log::from_number(request.log).ok_or(ReturnCode::InvalidInput)?;
        let entries = self.fabric.events(source, log).entries;
        // Records are cleared in order: the named records must be the oldest.
        let oldest = entries.iter().map(|entry| handle(entry.seq));
        let in_order = request.handles.iter().copied().eq(oldest.take(request.handles.len()));
        let last = match (request.all, in_order) {
            (true, _) => entries.last(),
            (false, true) => request.handles.len().checked_sub(1).and_then(|last| entries.get(last)),
            (false, false) => return Err(ReturnCode::InvalidInput),
        };
        let overflowed = self.fabric.events(source, log).overflow.is_some();
        match last {
            Some(entry) => self.fabric.clear_events(source, log, entry.seq)?,
            // The log has no records, only an overflow count, which has no event number.
            None if request.all && overflowed => self.fabric.clear_events(source, log, u64::MAX)?,
            None => {}
        }
        Ok(().into())
    }
}

fn record(log: Log, entry: LogEntry) -> EventRecord {
    let severity = match log {
        Log::DynamicCapacity => Log::Informational.number(),
        log => log.number(),
    };
    let time_ns = entry.time_ms.saturating_mul(1_000_000);
    EventRecord { handle: handle(entry.seq), severity, time_ns, happening: entry.happening }
}

/// Returns the handle of the event with this number: 1 to FFFFh, because 0 is not a valid handle.
fn handle(seq: u64) -> u16 {
    (seq % u64::from(u16::MAX)) as u16 + 1
}
