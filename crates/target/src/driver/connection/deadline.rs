//! The deadlines of a connection and its timer.

use super::{Connection, Role};
use reactor::time::Instant;
use std::pin::Pin;
use std::task::Context;

impl Connection {
    /// Checks the deadlines and sets the timer for the next one.
    pub(super) fn check_time(&mut self, cx: &mut Context<'_>) -> Result<(), &'static str> {
        loop {
            let deadline = self.next_deadline()?;
            let Some(deadline) = deadline else {
                self.timer = None;
                return Ok(());
            };
            match &mut self.timer {
                // A wake-up before the deadline does no harm, so the timer is not set again for
                // each command.
                Some((_, armed)) if *armed <= deadline && *armed > self.now => return Ok(()),
                Some((sleep, armed)) => {
                    sleep.reset(deadline);
                    *armed = deadline;
                }
                None => self.timer = Some((reactor::time::sleep_until(deadline), deadline)),
            }
            if let Some((sleep, _)) = &mut self.timer
                && Pin::new(sleep).poll(cx).is_pending()
            {
                return Ok(());
            }
            self.now = reactor::time::now();
        }
    }

    /// Returns the earliest deadline. Fails if one has passed.
    fn next_deadline(&mut self) -> Result<Option<Instant>, &'static str> {
        let mut earliest: Option<Instant> = None;
        let mut note = |deadline: Instant| {
            earliest = Some(earliest.map_or(deadline, |earliest| earliest.min(deadline)));
        };
        if let Some(deadline) = self.linger_deadline {
            if self.now >= deadline {
                return Err("the peer did not close after a terminate request");
            }
            note(deadline);
        }
        let (limits, budget) = (&self.limits, self.target.budget());
        for (since, reason) in [
            (self.sending_since(), "the peer does not receive what the target sends"),
            (self.data_since, "the peer does not send the data that it announced"),
        ] {
            let Some(since) = since else { continue };
            let is_short = self.pair.reserved_bytes() > 0 && budget.is_short();
            let deadline = since + if is_short { limits.send_when_short } else { limits.send };
            if self.now >= deadline {
                return Err(reason);
            }
            // Memory may become short meanwhile.
            note(deadline.min(self.now + limits.send_when_short));
        }
        if let Some(deadline) = self.door.as_ref().and_then(|door| door.deadline()) {
            if self.now >= deadline {
                return Err("its host did not prove itself in time");
            }
            note(deadline);
        }
        match &mut self.role {
            Role::Unconnected => {
                if self.now >= self.handshake_deadline {
                    return Err("it did not connect in time");
                }
                note(self.handshake_deadline);
            }
            Role::Admin(controller, _) => {
                if !controller.check_keep_alive(self.now) {
                    return Err("its keep alive timer has expired");
                }
                if let Some(deadline) = controller.deadline() {
                    note(deadline);
                }
            }
            Role::Io(executor) => executor.next_limited(self.now).into_iter().for_each(&mut note),
            Role::Proving(_) => {}
        }
        Ok(earliest)
    }
}
