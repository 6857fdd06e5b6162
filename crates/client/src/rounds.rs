//! Asking again until what was asked for holds.
//!
//! What a client is granted may be recalled before it can be used, and what it reads may be
//! overtaken by a commit. The operation then begins again; all its rounds together have one deadline, so
//! that it ends even where others are always faster.

use crate::client::Client;
use crate::inode::Inode;
use protocol::client::{Answer, Call, SessionCall};
use protocol::{Errno, FileKind, Rights};
use reactor::time::{Instant, now};
use std::rc::Rc;

/// The rounds of one operation.
#[derive(Debug)]
pub(crate) struct Rounds {
    deadline: Instant,
}

impl Rounds {
    /// Begins a round, the first included.
    ///
    /// # Errors
    /// ETIMEDOUT if all of them together have taken as long as a call may.
    pub(crate) fn begin(&self) -> Result<(), Errno> {
        if now() < self.deadline { Ok(()) } else { Err(Errno::ETIMEDOUT) }
    }
}

impl Client {
    /// Rounds from now on.
    pub(crate) fn rounds(&self) -> Rounds {
        Rounds { deadline: now() + self.session.times().request_deadline }
    }

    /// Takes rights over a regular file unless they are held. A grant may be gone before it can be
    /// used, recalled or, of OPEN, returned because the last handle was closed meanwhile: then it
    /// asks again, for OPEN only while a handle is open.
    ///
    /// # Errors
    /// ETIMEDOUT if the rights are not kept in time, EINVAL if it is no regular file, those of a call.
    pub(crate) async fn acquire(
        self: &Rc<Self>,
        inode: &Inode,
        rights: Rights,
    ) -> Result<(), Errno> {
        self.acquire_with(inode, rights, Rights::NONE).await
    }

    /// As [`Client::acquire`]; asks for what is wished too, and is content without it.
    ///
    /// # Errors
    /// As [`Client::acquire`].
    pub(crate) async fn acquire_with(
        self: &Rc<Self>,
        inode: &Inode,
        rights: Rights,
        wished: Rights,
    ) -> Result<(), Errno> {
        let rounds = self.rounds();
        while inode.state.borrow().lacks(rights) {
            rounds.begin()?;
            let call =
                Call::Session(SessionCall::Acquire { inode: inode.id, rights: rights | wished });
            match self.session.call(call).await? {
                Answer::Attr(attr) if attr.kind == FileKind::File => {}
                Answer::Attr(_) => return Err(Errno::EINVAL),
                _ => return Err(Errno::EPROTO),
            }
        }
        Ok(())
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
