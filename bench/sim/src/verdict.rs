//! Whether an error that an engine reports can be true.

use cxloe_cn_core::engine::EngineError;
use cxloe_wire::session::OpError;

use crate::broken::Broken;
use crate::memory_node::MemoryNode;
use crate::operation::{Kind, Operation};
use crate::tally::Figures;
use crate::trace::Name;

/// Checks the error of an operation that was `sent`, or else not even taken, and counts it.
pub(crate) fn check_error(
    op: &Operation,
    error: EngineError,
    mns: &[MemoryNode],
    figures: &mut Figures,
    sent: bool,
) -> Result<(), String> {
    let own = &mns[op.region];
    if let EngineError::NotConnected(mac) | EngineError::DataLost(mac) | EngineError::Failed { mac, .. } =
        error
        && mac != own.mac
        && op.kind != Kind::Flush
    {
        return Err(format!("it fails for another memory node's sake: {error}"));
    }
    let lossy = own.losses() > 0;
    let count = match (error, sent) {
        (EngineError::NotConnected(_), false) => &mut figures.refused_not_connected,
        (EngineError::DataLost(_), false) if lossy => &mut figures.refused_data_lost,
        // The session's frames have become smaller since the burst was chosen.
        (EngineError::BadBurst(_), false) => &mut figures.refused_limits,
        (EngineError::Failed { error: OpError::SessionDead, .. }, true) => &mut figures.failed_session_dead,
        (EngineError::Failed { error: OpError::DataLost, .. }, true) if lossy => {
            &mut figures.failed_data_lost
        }
        (EngineError::Failed { error: OpError::FrameTooLarge, .. }, true) => &mut figures.failed_limits,
        _ => return Err(format!("it fails without reason: {error}")),
    };
    *count += 1;
    Ok(())
}

/// Checks that a modified line was lost only with the memory it belonged to.
pub(crate) fn check_write_back(hpa: u64, error: EngineError, mn: &MemoryNode) -> Result<(), Broken> {
    let lost = matches!(error, EngineError::Failed { error: OpError::DataLost, .. });
    if lost && mn.losses() > 0 {
        return Ok(());
    }
    let mn = Name(mn.mac);
    Err(Broken::Rule(format!("a line on {mn}, at HPA {hpa:#x}, was acknowledged and is lost: {error}")))
}
