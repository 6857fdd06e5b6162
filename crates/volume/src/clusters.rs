//! The pool's clusters: how many volumes name each, and which are free.
//!
//! A reference that a volume gives up counts on until the commit that dropped it is durable, because a power
//! cut would bring it back, and until no earlier command can touch the cluster. So a cluster with one
//! reference may be written in place by the volume that has it, and one without is free.

use std::collections::VecDeque;

/// A reference that was given up.
#[derive(Clone, Copy, Debug)]
struct Retired {
    cluster: u32,
    /// The change of the metadata that dropped it.
    change: u64,
    /// The epoch from which on no command touches it.
    grace: u64,
}

/// References of all clusters.
#[derive(Debug)]
pub(crate) struct Clusters {
    references: Vec<u16>,
    /// A bit for each free cluster.
    free: Vec<u64>,
    free_count: u32,
    /// The word of `free` where the search goes on.
    cursor: usize,
    retired: VecDeque<Retired>,
}

impl Clusters {
    /// All clusters with their references.
    pub(crate) fn new(references: Vec<u16>) -> Self {
        let mut free = vec![0_u64; references.len().div_ceil(64)];
        let mut free_count = 0;
        for (cluster, _) in references.iter().enumerate().filter(|(_, count)| **count == 0) {
            free[cluster / 64] |= 1 << (cluster % 64);
            free_count += 1;
        }
        Self { references, free, free_count, cursor: 0, retired: VecDeque::new() }
    }

    /// Free clusters.
    pub(crate) fn free(&self) -> u32 {
        self.free_count
    }

    /// Whether clusters will be free when the metadata are durable and commands have ended.
    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    pub(crate) fn references(&self, cluster: u32) -> u16 {
        self.references[cluster as usize]
    }

    /// Takes a free cluster, which then has one reference.
    pub(crate) fn allocate(&mut self) -> Option<u32> {
        if self.free_count == 0 {
            return None;
        }
        let words = self.free.len();
        let word =
            (0..words).map(|at| (self.cursor + at) % words).find(|at| self.free[*at] != 0)?;
        let cluster = (word * 64) as u32 + self.free[word].trailing_zeros();
        self.free[word] &= self.free[word] - 1;
        self.free_count -= 1;
        self.cursor = word;
        assert_eq!(self.references[cluster as usize], 0, "cluster {cluster} is free");
        self.references[cluster as usize] = 1;
        Some(cluster)
    }

    /// Gives a cluster back that nothing has named.
    pub(crate) fn give_back(&mut self, cluster: u32) {
        self.release(cluster);
    }

    /// Whether a cluster can have one more reference.
    pub(crate) fn can_share(&self, cluster: u32) -> bool {
        self.references[cluster as usize] < u16::MAX
    }

    /// Adds a reference.
    pub(crate) fn share(&mut self, cluster: u32) {
        let count = &mut self.references[cluster as usize];
        assert!((1..u16::MAX).contains(count), "cluster {cluster} has {count} references");
        *count += 1;
    }

    /// Gives a reference up that the change `change` drops.
    pub(crate) fn retire(&mut self, cluster: u32, change: u64, grace: u64) {
        assert!(self.references[cluster as usize] > 0, "cluster {cluster} is free");
        self.retired.push_back(Retired { cluster, change, grace });
    }

    /// Drops references whose changes are durable and that no command touches; returns how many.
    pub(crate) fn reclaim(&mut self, durable: u64, epoch: u64) -> usize {
        let mut count = 0;
        while let Some(&Retired { cluster, change, grace }) = self.retired.front() {
            let is_durable = change <= durable || reactor::mutant!("volume-reused-early");
            let is_quiet = grace <= epoch || reactor::mutant!("volume-reused-in-flight");
            if !is_durable || !is_quiet {
                break;
            }
            self.retired.pop_front();
            self.release(cluster);
            count += 1;
        }
        count
    }

    fn release(&mut self, cluster: u32) {
        let count = &mut self.references[cluster as usize];
        assert!(*count > 0, "cluster {cluster} is free");
        *count -= 1;
        if *count == 0 {
            self.free[cluster as usize / 64] |= 1 << (cluster % 64);
            self.free_count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a cluster is used again only when its drop is durable, and no command touches it.
    #[test]
    fn reuse_waits_for_both() {
        let mut clusters = Clusters::new(vec![0; 2]);
        let (one, two) = (clusters.allocate().unwrap(), clusters.allocate().unwrap());
        assert_eq!(clusters.allocate(), None);
        clusters.share(two);
        clusters.retire(one, 5, 12);
        clusters.retire(two, 6, 12);
        assert_eq!((clusters.reclaim(4, 20), clusters.reclaim(9, 11)), (0, 0));
        assert_eq!(clusters.reclaim(5, 12), 1);
        assert_eq!((clusters.references(one), clusters.references(two)), (0, 2));
        assert_eq!(clusters.reclaim(6, 12), 1);
        assert_eq!((clusters.allocate(), clusters.free()), (Some(one), 0));
        assert_eq!(clusters.references(two), 1);
    }
}
