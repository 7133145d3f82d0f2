//! Access to the detail text of a link that is being opened, which shows why the link was chosen.

/// A link with an extensible detail in its [`LinkInfo`](crate::LinkInfo).
pub(crate) trait LinkDetail {
    /// Text of [`LinkInfo::detail`](crate::LinkInfo::detail), to append to.
    fn detail(&mut self) -> &mut String;
}
