//! Selection of the configured members that belong to this manager's cluster, made without I/O. Each answer
//! of etcd contains the number of its cluster. A member that was started with an empty folder, or restored
//! alone, is a cluster of its own: it answers and accepts writes, which the other members do not have.

/// Numbers of clusters seen at the members, by the member's index.
#[derive(Debug)]
pub struct Clusters {
    seen: Vec<Option<u64>>,
    /// The cluster that was last judged to be this manager's.
    ours: Option<u64>,
}

/// Verdict on the cluster that an answer came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterJudgement {
    /// The member belongs to the cluster.
    Ours,
    /// The member belongs to another cluster.
    Other,
    /// The members belong to different clusters, none with a majority.
    Undecided,
}

impl Clusters {
    /// Starts without an answer from any of `members` members.
    pub fn of(members: usize) -> Self {
        Self { seen: vec![None; members], ours: None }
    }

    /// Records that the member with this index answered, and that its cluster has this number.
    pub fn saw(&mut self, member: usize, cluster: u64) {
        if let Some(seen) = self.seen.get_mut(member) {
            *seen = Some(cluster);
        }
    }

    /// Judges an answer of the member with this index from the cluster with this number. This manager's cluster is the
    /// one to which a majority of the configured members belongs. Without a majority, it is the cluster that was judged
    /// to be this manager's before, or else the only cluster seen.
    pub fn judge(&mut self, member: usize, cluster: u64) -> ClusterJudgement {
        self.saw(member, cluster);
        let count = |cluster: u64| self.seen.iter().filter(|seen| **seen == Some(cluster)).count();
        let others = self.seen.iter().flatten().any(|seen| *seen != cluster);
        let major = self.seen.iter().flatten().copied().find(|seen| count(*seen) * 2 > self.seen.len());
        self.ours = major.or(self.ours).or((!others).then_some(cluster));
        match self.ours {
            Some(ours) if ours == cluster => ClusterJudgement::Ours,
            Some(_) => ClusterJudgement::Other,
            None => ClusterJudgement::Undecided,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ClusterJudgement::{Other, Ours, Undecided};

    fn judged(members: usize, answers: &[(usize, u64)]) -> Vec<ClusterJudgement> {
        let mut clusters = Clusters::of(members);
        answers.iter().map(|(member, cluster)| clusters.judge(*member, *cluster)).collect()
    }

    #[test]
    fn the_majority_decides() {
        for (members, answers, judgements) in [
            (1, &[(0, 7), (0, 7)][..], &[Ours, Ours][..]),
            // The only member was rebuilt from a snapshot, so its cluster has another number.
            (1, &[(0, 7), (0, 8)], &[Ours, Ours]),
            (3, &[(0, 7), (1, 7), (2, 9), (0, 7)], &[Ours, Ours, Other, Ours]),
            // The member that became a cluster of its own answers first.
            (3, &[(2, 9), (0, 7), (1, 7), (2, 9)], &[Ours, Other, Ours, Other]),
            (3, &[(0, 7), (0, 7), (1, 8), (2, 9), (0, 7)], &[Ours, Ours, Other, Other, Ours]),
            // Members are replaced one by one by those of another cluster.
            (3, &[(0, 7), (1, 7), (2, 7), (0, 8), (1, 8), (2, 7)], &[Ours, Ours, Ours, Other, Ours, Other]),
            (2, &[(0, 7), (1, 8)], &[Ours, Other]),
        ] {
            assert_eq!(judged(members, answers), judgements, "{answers:?}");
        }
    }

    #[test]
    fn different_clusters_at_the_start_are_not_chosen_from() {
        let mut clusters = Clusters::of(2);
        clusters.saw(0, 7);
        clusters.saw(1, 8);
        assert_eq!((clusters.judge(0, 7), clusters.judge(1, 8)), (Undecided, Undecided));
        assert_eq!((clusters.judge(1, 7), clusters.judge(0, 7)), (Ours, Ours));
    }
}
