//! Statistics of a memory node for each sync, within the manager's size limit: sessions with the most recent frames
//! come first, and the others are left out.

use serde_json::Value;

use crate::worker::WorkerReport;

/// Maximum number of sessions in one report. At about 700 bytes each, they fit the largest request of a node
/// (1 MiB) and leave room for results.
const SESSIONS_MAX: usize = 512;

/// Reports of all workers, within the manager's limit. A worker's `sessions_left_out` is the number of its sessions
/// left out.
pub fn bounded_report(mut reports: Vec<WorkerReport>) -> Value {
    let mut ages: Vec<u64> =
        reports.iter().flat_map(|r| &r.sessions).map(|session| session.idle_ns).collect();
    if ages.len() <= SESSIONS_MAX {
        return serde_json::to_value(reports).unwrap_or_default();
    }
    let (_, &mut oldest, _) = ages.select_nth_unstable(SESSIONS_MAX);
    let left_out: Vec<usize> = reports
        .iter_mut()
        .map(|report| {
            let before = report.sessions.len();
            report.sessions.retain(|session| session.idle_ns < oldest);
            before - report.sessions.len()
        })
        .collect();
    let mut value = serde_json::to_value(reports).unwrap_or_default();
    for (report, left_out) in value.as_array_mut().into_iter().flatten().zip(left_out) {
        if let (Some(report), 1..) = (report.as_object_mut(), left_out) {
            report.insert("sessions_left_out".to_owned(), left_out.into());
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use cxloe_wire::session::{ResponderCounters, SessionStatus};

    use super::*;

    fn worker(sessions: u64, idle_ns: u64) -> WorkerReport {
        // Counters with the largest number of digits.
        let counters: ResponderCounters = {
            let zeros = serde_json::to_value(ResponderCounters::default()).unwrap();
            let most =
                zeros.as_object().unwrap().keys().map(|name| (name.clone(), u64::MAX.into())).collect();
            serde_json::from_value(Value::Object(most)).unwrap()
        };
        let session = |index: u64| SessionStatus {
            cn: "02:00:00:00:00:01".into(),
            integrity: "sealed (pre-shared)".into(),
            streams: 64,
            max_frame: 9014,
            waiting: usize::MAX,
            buffered: usize::MAX,
            idle_ns: idle_ns + index,
            counters,
        };
        WorkerReport { sessions: (0..sessions).map(session).collect(), ..WorkerReport::default() }
    }

    #[test]
    fn a_report_fits_a_request_however_many_sessions_there_are() {
        let few = bounded_report(vec![worker(3, 0), worker(2, 5)]);
        assert_eq!(few[1]["sessions"].as_array().unwrap().len(), 2);
        assert!(few[0].get("sessions_left_out").is_none());
        let many = bounded_report((0..16).map(|index| worker(256, index * 1_000_000)).collect());
        assert!(many.to_string().len() < 900_000, "{} bytes", many.to_string().len());
        let shown = |index: usize| many[index]["sessions"].as_array().unwrap().len();
        assert_eq!((shown(0), shown(1), shown(2)), (256, 256, 0), "those that were heard last");
        assert_eq!(many[15]["sessions_left_out"], 256);
    }
}
