//! Reason for which a node of either kind ends a registration and begins the next.

/// Cause of a new registration; `R` is the node's own reason to refuse a manager.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Halt<R> {
    /// This node refuses the manager.
    #[error(transparent)]
    Refused(#[from] R),
    /// The manager's store lacks what this node has seen, as the manager itself found.
    #[error(
        "the manager's store lacks what this node has seen; start the manager over its newest store, or see `gmm adopt-fabric`"
    )]
    Stale,
    /// Another manager leads since the registration, or the same one after a restart.
    #[error("another manager leads")]
    Anew,
    /// The answer does not match the pending request.
    #[error("the manager's answer does not match the request")]
    Unexpected,
}
