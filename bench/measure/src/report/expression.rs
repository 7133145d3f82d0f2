//! Parser for names of ratios, which say what is divided: `a/b` or `a/(b+c)`.

use super::ReportError;

/// Quotient of results: one name divided by a sum of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Quotient<'a> {
    pub(super) above: &'a str,
    /// Names in the denominator; at least one.
    pub(super) below: Vec<&'a str>,
}

impl<'a> Quotient<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self, ReportError> {
        let unreadable = || ReportError::Expression { text: text.into() };
        let (above, limit) = text.split_once('/').ok_or_else(unreadable)?;
        let below: Vec<_> = match limit.strip_prefix('(') {
            Some(sum) => sum.strip_suffix(')').ok_or_else(unreadable)?.split('+').collect(),
            None => vec![limit],
        };
        let is_name = |name: &&str| {
            !name.is_empty()
                && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
        };
        if is_name(&above) && below.iter().all(is_name) {
            Ok(Self { above, below })
        } else {
            Err(unreadable())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients() {
        let simple = Quotient::parse("read64/echo64").unwrap();
        assert_eq!(simple, Quotient { above: "read64", below: vec!["echo64"] });
        let sum = Quotient::parse("fault4k/(uffd_floor4k+fetch4k)").unwrap();
        assert_eq!(sum, Quotient { above: "fault4k", below: vec!["uffd_floor4k", "fetch4k"] });
    }

    #[test]
    fn what_is_none_is_refused() {
        for text in ["", "a", "a/", "/b", "a/(b+c", "a/b+c", "a/(b+)", "a/()", "a/b/c", "a b/c"] {
            assert!(matches!(Quotient::parse(text), Err(ReportError::Expression { .. })), "{text:?}");
        }
    }
}
