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
        let unused = self.space.borrow_mut().take_unused();
        for (device, free) in unused {
            if let Err(error) =
                self.session.call(Call::Change(ChangeCall::ReturnSpace { device, free })).await
            {
                tracing::warn!(%device, %error, "unused space could not be returned");
            }
        }
    }
}
