//! The pool's clusters: the number of references to each, and which clusters are free.
//!
//! A dropped reference still counts until the commit that drops it is durable, because a power cut
//! would restore it, and until no earlier command can access the cluster. So a volume may write a
//! cluster with one reference in place, and a cluster without references is free.

use std::collections::VecDeque;

/// A dropped reference.
#[derive(Clone, Copy, Debug)]
struct Retired {
    cluster: u32,
    /// The change of the metadata that dropped it.
    change: u64,
    /// From this epoch on no command accesses the cluster.
    grace: u64,
}

/// The references of all clusters.
#[derive(Debug)]
pub(crate) struct Clusters {
    references: Vec<u16>,
    /// One bit for each cluster, set if it is free.
    free: Vec<u64>,
    free_count: u32,
    /// The word of `free` where the next search starts.
    cursor: usize,
    retired: VecDeque<Retired>,
}

impl Clusters {
    /// Returns the clusters with these references.
    pub(crate) fn new(references: Vec<u16>) -> Self {
        let mut free = vec![0_u64; references.len().div_ceil(64)];
        let mut free_count = 0;
        for (cluster, _) in references.iter().enumerate().filter(|(_, count)| **count == 0) {
            free[cluster / 64] |= 1 << (cluster % 64);
            free_count += 1;
        }
        Self { references, free, free_count, cursor: 0, retired: VecDeque::new() }
    }

    /// Returns the number of free clusters.
    pub(crate) fn free(&self) -> u32 {
        self.free_count
    }

    /// Whether clusters become free when the metadata are durable and commands have ended.
    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    pub(crate) fn references(&self, cluster: u32) -> u16 {
        self.references[cluster as usize]
    }

    /// Allocates a free cluster, with one reference.
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

    /// Frees a cluster that was never referenced by a table.
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

    /// Drops a reference with the change `change`.
    pub(crate) fn retire(&mut self, cluster: u32, change: u64, grace: u64) {
        assert!(self.references[cluster as usize] > 0, "cluster {cluster} is free");
        self.retired.push_back(Retired { cluster, change, grace });
    }

    /// Frees references whose changes are durable and that no command can use. Returns how many.
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

    /// Goal: a cluster is used again only after its drop is durable and no command accesses it.
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
