//! Rounds of an operation that begins again, under one deadline.
//!
//! The service may recall a right before the client can use it, and a commit may overtake what a
//! read was planned by. The operation then begins again. All its rounds share one deadline, so that
//! it ends even where others are always faster.

use crate::client::Client;
use protocol::Errno;
use reactor::time::{Instant, now};

/// The rounds of one operation.
#[derive(Debug)]
pub(crate) struct Rounds {
    deadline: Instant,
}

impl Rounds {
    /// Begins a round, the first included.
    ///
    /// # Errors
    /// ETIMEDOUT if all rounds together have taken as long as a call may.
    pub(crate) fn begin(&self) -> Result<(), Errno> {
        if now() < self.deadline { Ok(()) } else { Err(Errno::ETIMEDOUT) }
    }
}

impl Client {
    /// Returns the rounds of an operation that begins now.
    pub(crate) fn rounds(&self) -> Rounds {
        Rounds { deadline: now() + self.session.times().request_deadline }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: rounds end together, however short each of them is.
    #[test]
    fn no_round_begins_after_the_deadline() {
        let mut simulation = reactor::sim::Simulation::new(1);
        let rounds = async {
            let rounds = Rounds { deadline: now() + std::time::Duration::from_millis(10) };
            let mut begun = 0;
            while rounds.begin().is_ok() {
                begun += 1;
                reactor::time::sleep(std::time::Duration::from_millis(3)).await;
            }
            begun
        };
        assert_eq!(simulation.run(rounds).unwrap(), 4);
    }
}
