//! Whether an error that an engine reports can be true.

use cxloe_cn_core::engine::EngineError;
use cxloe_wire::session::OpError;

use crate::broken::Broken;
use crate::operation::{Kind, Operation};
use crate::region::Region;
use crate::surroundings::Surroundings;
use crate::tally::Figures;
use crate::trace::Name;

/// When an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// It was on its way; otherwise it was not even taken.
    pub sent: bool,
    /// Its region is not there any more, or holds something else by now.
    pub ended: bool,
}

/// Checks the error of an operation on a part of a region, and counts it.
pub(crate) fn check_error(
    op: &Operation,
    error: EngineError,
    region: &Region,
    around: Surroundings<'_>,
    figures: &mut Figures,
    Moment { sent, ended }: Moment,
) -> Result<(), String> {
    let own = around.node_of(region);
    if let EngineError::NotConnected(mac) | EngineError::DataLost(mac) | EngineError::Failed { mac, .. } =
        error
        && mac != own.mac
        && op.kind != Kind::Flush
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
        // The session's frames have become smaller since the burst was chosen.
        (EngineError::BadBurst(_), false) => &mut figures.refused_limits,
        // The manager wants it back.
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

/// Checks that a modified line was lost only with the memory it belonged to.
pub(crate) fn check_write_back(
    hpa: u64,
    error: EngineError,
    region: &Region,
    around: Surroundings<'_>,
) -> Result<(), Broken> {
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
    Err(Broken::Rule(format!("a line on {mn}, at HPA {hpa:#x}, was acknowledged and is lost: {error}")))
}
