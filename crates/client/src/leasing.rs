//! Leasing blocks from the service, and returning unused ones.

use crate::client::Client;
use protocol::client::{Answer, Call, ChangeCall};
use protocol::{DeviceId, Errno};
use std::rc::Rc;

/// Fewest bytes that a lease asks for.
const LEASE_BYTES_MIN: u64 = 1 << 20;

impl Client {
    /// Leases more space, on a device or, if that is full, on another one. Returns which.
    pub(crate) async fn lease_space(
        self: &Rc<Self>,
        device: DeviceId,
        bytes: u64,
    ) -> Result<DeviceId, Errno> {
        let wanted_bytes = bytes.max(LEASE_BYTES_MIN);
        match self
            .session
            .call(Call::Change(ChangeCall::LeaseSpace { device, wanted_bytes }))
            .await?
        {
            Answer::Space(grant) => {
                if !self.space.borrow_mut().add(&grant) {
                    tracing::error!(device = %grant.device, "space was granted that is leased here already");
                    return Err(Errno::EPROTO);
                }
                Ok(grant.device)
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// Returns leased space that is not in use.
    pub(crate) async fn return_unused_space(self: &Rc<Self>) {
        let stamp = self.session.life.stamp();
        let unused = self.space.borrow_mut().take_unused();
        for grant in unused {
            let (device, free) = (grant.device, grant.free.clone());
            let call = Call::Change(ChangeCall::ReturnSpace { device, free });
            let Err(failure) = self.session.call_or_failure(call).await else { continue };
            tracing::warn!(%device, error = %failure.errno, "unused space could not be returned");
            let is_unsent = failure.is_refusal && failure.errno == Errno::ETIMEDOUT;
            // The space of a lost session is the service's.
            if is_unsent && self.session.life.is_present(stamp) {
                self.space.borrow_mut().put_back(&grant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::lifecycle::tests::alone;
    use protocol::space::{BlockRange, SpaceGrant};
    use protocol::{DeviceId, Incarnation};

    const DEVICE: DeviceId = DeviceId(1);

    /// Goal: space whose return was never sent can be used again: the service counts it as leased.
    #[test]
    fn unsent_returns_keep_the_space() {
        let scene = async {
            let client = alone();
            let grant = SpaceGrant {
                device: DEVICE,
                incarnation: Incarnation(1),
                free: vec![BlockRange { start: 0, count: 10 }],
            };
            assert!(client.space.borrow_mut().add(&grant));
            client.return_unused_space().await;
            assert!(client.space.borrow().reserve(DEVICE, 10).is_some(), "it is lost");
        };
        reactor::sim::Simulation::new(1).run(scene).unwrap();
    }
}
