//! Steps around one place that a node knows: those who look at it, and others who change it.

use super::Worker;
use crate::random::Random;
use protocol::InodeId;

/// Bytes that one look reads.
const LOOKED_AT_BYTES: u64 = 40_000;

impl Worker {
    /// With choices of its own.
    pub(crate) fn choosing(mut self, random: Random) -> Worker {
        self.random = random;
        self
    }

    /// Looks at a place, so that names, attributes and bytes of it are cached; answers which it is.
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

    /// Looks at a place in one way.
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
        // What an error says has been judged.
        let _ = self.read_range(&open, 0, LOOKED_AT_BYTES).await;
        self.close(&open).await;
    }

    /// Changes what is there, once or twice.
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

    /// Writes a piece to what has a name, which is made if it is not there.
    async fn write_to(&mut self, parent: InodeId, name: &str) {
        let Some(open) = self.open(parent, name, libc::O_RDWR | libc::O_CREAT).await else {
            return;
        };
        self.write(&open).await;
        self.close(&open).await;
    }
}
