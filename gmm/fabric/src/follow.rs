//! Reasons why a node of either kind ends a registration and begins the next.

/// Reason why a node registers again; `R` is the node's own reason to refuse a manager.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Halt<R> {
    /// This node refuses the manager.
    #[error(transparent)]
    Refused(#[from] R),
    /// The manager found that its store lacks changes which this node has seen.
    #[error(
        "the manager's store lacks what this node has seen; start the manager over its newest store, or see `gmm adopt-fabric`"
    )]
    Stale,
    /// Another manager has begun to lead, or the same one has restarted.
    #[error("another manager leads")]
    Anew,
    #[error("the manager's answer does not match the request")]
    Unexpected,
}
