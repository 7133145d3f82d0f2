//! Sets of extents of a memory node's pool, stored as runs: a pool of a terabyte has half a million extents, and a
//! region in an unfragmented pool is one run. Extent `i` covers bytes `i * extent_bytes ..` of the pool (MPMem).

use serde::{Deserialize, Serialize};

/// Consecutive extents of one pool; extent `i` begins at byte `i * extent_bytes` of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExtentRun {
    /// Index of the first extent.
    pub first: u64,
    /// Number of extents, at least 1.
    pub count: u64,
}

/// Extents of one pool, in the order in which they back a CMem range: the first backs the first `extent_bytes` of the
/// range.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Extents(Vec<ExtentRun>);

impl Extents {
    /// Number of extents in all runs.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|run| run.count).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn runs(&self) -> &[ExtentRun] {
        &self.0
    }

    /// Returns the index of every extent, in the order in which the extents back the range.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|run| run.first..run.first + run.count)
    }

    /// Returns true if the last run ends where `first` begins.
    pub fn ends_before(&self, first: u64) -> bool {
        self.0.last().is_some_and(|last| last.first + last.count == first)
    }

    /// Appends a run, merged with the last one if the two are adjacent. An empty run adds nothing.
    pub fn push(&mut self, run: ExtentRun) {
        if run.count == 0 {
            return;
        }
        match self.0.last_mut() {
            Some(last) if last.first + last.count == run.first => last.count += run.count,
            _ => self.0.push(run),
        }
    }
}

impl FromIterator<u64> for Extents {
    fn from_iter<I: IntoIterator<Item = u64>>(indices: I) -> Self {
        let mut extents = Self::default();
        indices.into_iter().for_each(|first| extents.push(ExtentRun { first, count: 1 }));
        extents
    }
}

impl FromIterator<ExtentRun> for Extents {
    fn from_iter<I: IntoIterator<Item = ExtentRun>>(runs: I) -> Self {
        let mut extents = Self::default();
        runs.into_iter().for_each(|run| extents.push(run));
        extents
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_become_runs_and_come_back_in_order() {
        let indices = [4, 5, 6, 9, 2, 3];
        let extents: Extents = indices.into_iter().collect();
        let run = |first, count| ExtentRun { first, count };
        assert_eq!(extents.runs(), [run(4, 3), run(9, 1), run(2, 2)]);
        assert_eq!(extents.len(), 6);
        assert_eq!(extents.iter().collect::<Vec<_>>(), indices);
        assert_eq!(
            serde_json::to_string(&extents).unwrap(),
            r#"[{"first":4,"count":3},{"first":9,"count":1},{"first":2,"count":2}]"#
        );
    }

    #[test]
    fn an_empty_run_adds_nothing() {
        let extents: Extents = [ExtentRun { first: 7, count: 0 }].into_iter().collect();
        assert!(extents.is_empty());
    }
}
