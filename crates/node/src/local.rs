//! Access to a node's own devices without a socket.

use block::Backing;
use client::LocalDevices;
use std::sync::Arc;
use target::{Admissions, LocalAccess, Namespace};
use uuid::Uuid;

/// A node's own namespaces by the device's name, for clients in the same process, with the same
/// admission check and counts as over the socket. Can be sent to another thread.
#[derive(Clone, Debug)]
pub struct Local {
    pub(crate) admissions: Arc<Admissions>,
    pub(crate) namespaces: Vec<(Uuid, Arc<Namespace>)>,
}

impl Local {
    /// Returns the devices in the form that a client takes.
    pub fn devices(self) -> LocalDevices {
        Box::new(move |info, host, _epoch| {
            let (_, namespace) = self.namespaces.iter().find(|(uuid, _)| *uuid == info.uuid)?;
            let host = nvme::HostId(host.0);
            Some(LocalAccess::new(&self.admissions, namespace, host).attach())
        })
    }
}
