//! Checks whether an error that an engine has reported is justified.

use cxloe_cn_core::engine::EngineError;
use cxloe_wire::session::OpError;

use crate::node_context::NodeContext;
use crate::operation::{Operation, OperationKind};
use crate::region::Region;
use crate::tally::Figures;
use crate::trace::Name;
use crate::violation::InvariantViolation;

/// State of an operation when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// True if the operation was in flight; false if it was refused.
    pub sent: bool,
    /// True if the operation's region was removed, or its content replaced, after the submission.
    pub ended: bool,
}

/// Checks the error of an operation on a part of a region, and counts it; returns the reason if it is not
/// justified.
pub(crate) fn check_error(
    op: &Operation,
    error: EngineError,
    region: &Region,
    around: NodeContext<'_>,
    figures: &mut Figures,
    Moment { sent, ended }: Moment,
) -> Result<(), String> {
    let own = around.node_of(region);
    if let EngineError::NotConnected(mac) | EngineError::DataLost(mac) | EngineError::Failed { mac, .. } =
        error
        && mac != own.mac
        && op.kind != OperationKind::Flush
        && !ended
    {
        return Err(format!("it fails for another memory node's sake: {error}"));
    }
    let lossy = ended || own.losses() > 0;
    let withdrawn = around.state.is_some();
    let taken_away = ended || around.is_taken_away(region);
    let count = match (error, sent) {
        (EngineError::NotConnected(_), false) => &mut figures.refused_not_connected,
        (EngineError::DataLost(_), false) if lossy => &mut figures.refused_data_lost,
        // The session's frames have become smaller since the burst was drawn.
        (EngineError::BadBurst(_), false) => &mut figures.refused_limits,
        // While the manager withdraws a region, its compute node refuses operations on it.
        (EngineError::Draining(_), false) if withdrawn => &mut figures.refused_withdrawn,
        (EngineError::Failed { error: OpError::SessionDead, .. }, true) => &mut figures.failed_session_dead,
        (EngineError::Failed { error: OpError::DataLost, .. }, true) if lossy => {
            &mut figures.failed_data_lost
        }
        (EngineError::Failed { error: OpError::FrameTooLarge, .. }, true) => &mut figures.failed_limits,
        (EngineError::Failed { error: OpError::Fault(_), .. }, true) if taken_away => {
            &mut figures.failed_taken_away
        }
        _ => return Err(format!("it fails without reason: {error}")),
    };
    *count += 1;
    Ok(())
}

/// Checks that a modified line was lost only together with the memory that it belonged to.
pub(crate) fn check_write_back(
    hpa: u64,
    error: EngineError,
    region: &Region,
    around: NodeContext<'_>,
) -> Result<(), InvariantViolation> {
    let mn = around.node_of(region);
    let may = match error {
        EngineError::Failed { error: OpError::DataLost, .. } => mn.losses() > 0,
        EngineError::Failed { error: OpError::Fault(_), .. } => around.is_taken_away(region),
        _ => false,
    };
    if may {
        return Ok(());
    }
    let mn = Name(mn.mac);
    Err(InvariantViolation::Rule(format!(
        "a line on {mn}, at HPA {hpa:#x}, was acknowledged and is lost: {error}"
    )))
}
