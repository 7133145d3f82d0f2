//! Details added to a link's [`LinkInfo`](crate::LinkInfo) while it is opened.

/// A link whose [`LinkInfo`](crate::LinkInfo) detail can be extended.
pub(crate) trait LinkDetail {
    /// Text of [`LinkInfo::detail`](crate::LinkInfo::detail), to be extended.
    fn detail(&mut self) -> &mut String;
}
