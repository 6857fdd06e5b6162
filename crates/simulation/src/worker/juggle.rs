//! Steps of focused worlds: several open files of one inode at once, opened in different ways.

use super::Worker;
use super::data::Open;
use crate::world::StepKind;
use protocol::InodeId;
use reactor::time::sleep;
use std::time::Duration;

/// Files that a step has open at once, and their calls.
const OPEN_MAX: usize = 3;
const CALLS: (u64, u64) = (4, 12);
/// Ways to open a file; the more revealing ones twice.
const WAYS: [i32; 9] = [
    libc::O_RDONLY,
    libc::O_RDONLY,
    libc::O_RDONLY | libc::O_DIRECT,
    libc::O_RDWR | libc::O_CREAT,
    libc::O_RDWR | libc::O_CREAT,
    libc::O_RDWR | libc::O_CREAT,
    libc::O_RDWR | libc::O_CREAT | libc::O_DIRECT,
    libc::O_RDWR | libc::O_CREAT | libc::O_APPEND,
    libc::O_WRONLY,
];

impl Worker {
    /// Takes a step of a focused world.
    pub(super) async fn step_of(&mut self, kind: StepKind) {
        match kind {
            StepKind::Juggle => self.juggle().await,
            StepKind::Dress => self.dress().await,
            StepKind::Write => self.write_file().await,
            StepKind::Read => self.read_file().await,
            StepKind::Append => {
                let (parent, name) = self.file_place();
                self.append_to(parent, &name).await;
            }
            StepKind::Replace => self.replace().await,
            StepKind::Rewrite => self.rewrite().await,
            StepKind::Unlink => self.unlink().await,
            StepKind::Rename => self.rename().await,
            StepKind::Link => self.link().await,
            StepKind::List => self.list().await,
            StepKind::Truncate => self.truncate().await,
            StepKind::Punch => self.punch().await,
            StepKind::Copy => self.copy().await,
            StepKind::Lock => self.lock().await,
            StepKind::Attributes => self.attributes().await,
            StepKind::Look => self.look().await,
            StepKind::Directory => self.directory().await,
            StepKind::Lookup => {
                let (parent, name) = self.file_place();
                self.lookup(parent, &name).await;
            }
        }
    }

    /// Keeps a few files open, and uses them by turns.
    async fn juggle(&mut self) {
        let (parent, name) = self.file_place();
        let mut open: Vec<Open> = Vec::new();
        let calls = self.random.between(CALLS.0, CALLS.1);
        for _ in 0..self.shared.plan.pieces(calls) {
            if open.is_empty() || open.len() < OPEN_MAX && self.random.chance(25) {
                let way = *self.random.of(&WAYS);
                if let Some(opened) = self.open(parent, &name, way).await {
                    open.push(opened);
                }
            } else {
                let which = self.random.below(open.len() as u64) as usize;
                if self.random.chance(10) {
                    self.close(&open.remove(which)).await;
                } else {
                    self.use_open((parent, &name), &open[which]).await;
                }
            }
            if self.kernel.is_dead() {
                break;
            }
            self.hold_open().await;
        }
        for open in open {
            self.close(&open).await;
        }
    }

    /// Makes a file, and changes its mode while it is open: its maker may hold this back.
    async fn dress(&mut self) {
        let (parent, name) = self.file_place();
        if self.random.chance(60) {
            self.unlink_name(parent, &name).await;
        }
        let flags = libc::O_RDWR | libc::O_CREAT;
        let Some(open) = self.open(parent, &name, flags).await else { return };
        for _ in 0..self.random.between(1, 4) {
            match self.random.below(10) {
                0..5 => self.chmod(parent, &name).await,
                5..7 => {
                    self.write(&open).await;
                }
                7 => {
                    self.fsync(&open).await;
                }
                _ => {
                    self.lookup(parent, &name).await;
                }
            }
            self.hold_open().await;
        }
        self.close(&open).await;
    }

    /// Makes a call on an open file, or on its name.
    async fn use_open(&mut self, (parent, name): (InodeId, &str), open: &Open) {
        let (is_readable, is_writable) = (open.file.is_readable(), open.file.is_writable());
        match self.random.below(20) {
            0..5 if is_writable => {
                self.write(open).await;
            }
            5..8 if is_writable => {
                self.fsync(open).await;
            }
            8 => {
                self.lookup(parent, name).await;
            }
            9 => self.see_size(open).await,
            10 => {
                let size = self.random.below(self.shared.plan.offset_max());
                self.truncate_to((parent, name), size).await;
            }
            _ if is_readable => self.read(open).await,
            _ => self.see_size(open).await,
        }
    }

    /// Pauses between two calls.
    async fn hold_open(&mut self) {
        let longest = self.shared.plan.world.as_ref().map(|world| world.held_max);
        let longest_us = longest.unwrap_or(Duration::from_millis(5)).as_micros() as u64;
        let most_us = *self.random.of(&[1, 100, longest_us / 10, longest_us]);
        sleep(Duration::from_micros(self.random.between(1, most_us.max(1)))).await;
    }
}
