//! Ranks as threads, for tests of the library, which has no program to start.

use super::{Crew, IorError, Layout, Reply};
use crate::ior::phase::{Answer, Phase};
use crate::ior::rank::{self, Team};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

/// Threads of this process.
#[derive(Debug)]
pub(in crate::ior) struct Threads(pub(in crate::ior) usize);

struct Shared {
    barrier: Arc<Barrier>,
    largest: Arc<AtomicU64>,
}

impl Team for Shared {
    fn barrier(&mut self) -> io::Result<()> {
        self.barrier.wait();
        Ok(())
    }

    fn largest(&mut self, value: u64) -> io::Result<u64> {
        self.largest.fetch_max(value, Ordering::SeqCst);
        self.barrier.wait();
        Ok(self.largest.load(Ordering::SeqCst))
    }
}

impl Crew for Threads {
    fn layout(&self) -> Layout {
        Layout::here(self.0)
    }

    fn describe(&self) -> String {
        "threads".into()
    }

    fn phase(&mut self, phase: &Phase) -> Result<Reply, IorError> {
        let (barrier, largest) = (Arc::new(Barrier::new(phase.ranks)), Arc::default());
        let answers: Vec<io::Result<Result<Answer, String>>> = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..phase.ranks)
                .map(|number| {
                    let mut team =
                        Shared { barrier: Arc::clone(&barrier), largest: Arc::clone(&largest) };
                    scope.spawn(move || rank::run(phase, number, &mut team))
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let mut reply = Reply::default();
        for (rank, answer) in answers.into_iter().enumerate() {
            let answer = answer.map_err(|error| IorError::Gone(error.to_string()))?;
            reply.answers.push(answer.map_err(|message| IorError::Rank { rank, message })?);
        }
        Ok(reply)
    }
}
