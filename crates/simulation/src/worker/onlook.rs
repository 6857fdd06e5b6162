//! Steps around one place that a node has cached: some workers read it, others change it.

use super::Worker;
use crate::random::Random;
use protocol::InodeId;

/// Bytes that one step reads.
const LOOKED_AT_BYTES: u64 = 40_000;

impl Worker {
    /// Returns the worker with a stream of choices of its own.
    pub(crate) fn choosing(mut self, random: Random) -> Worker {
        self.random = random;
        self
    }

    /// Reads a place, so that the node caches its names, attributes and bytes. Returns the place.
    pub(crate) async fn know_a_place(mut self) -> (InodeId, String) {
        let (parent, name) = self.file_place();
        if self.random.chance(50) {
            self.list_directory(parent).await;
        }
        for _ in 0..2 {
            self.lookup(parent, &name).await;
            self.read_a_little(parent, &name).await;
        }
        (parent, name)
    }

    /// Reads a place in one of several ways.
    pub(crate) async fn look_at_place(mut self, (parent, name): (InodeId, String)) {
        match self.random.below(6) {
            0 | 1 => {
                self.lookup(parent, &name).await;
            }
            2 => {
                self.list_directory(parent).await;
            }
            _ => self.read_a_little(parent, &name).await,
        }
    }

    async fn read_a_little(&self, parent: InodeId, name: &str) {
        let Some(open) = self.open(parent, name, libc::O_RDONLY).await else { return };
        // The function called has already judged any error.
        let _ = self.read_range(&open, 0, LOOKED_AT_BYTES).await;
        self.close(&open).await;
    }

    /// Changes the place, once or twice.
    pub(crate) async fn change_place(mut self, (parent, name): (InodeId, String)) {
        for _ in 0..self.random.between(1, 2) {
            match self.random.below(6) {
                0 => self.unlink_name(parent, &name).await,
                1 => self.rename_from(parent, name.clone()).await,
                2 => self.truncate_to((parent, &name), 0).await,
                3 => {
                    self.unlink_name(parent, &name).await;
                    self.write_to(parent, &name).await;
                }
                _ => self.write_to(parent, &name).await,
            }
        }
    }

    /// Writes a piece to a file, which is created if it does not exist.
    async fn write_to(&mut self, parent: InodeId, name: &str) {
        let Some(open) = self.open(parent, name, libc::O_RDWR | libc::O_CREAT).await else {
            return;
        };
        self.write(&open).await;
        self.close(&open).await;
    }
}
