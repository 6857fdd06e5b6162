//! The way to a node's own devices past the socket.

use block::Backing;
use client::LocalDevices;
use std::sync::Arc;
use target::{Admissions, LocalAccess, Namespace};
use uuid::Uuid;

/// A node's own namespaces by the device's name, for clients of the same process: the same
/// admission check and counts as over the socket. May be handed to another thread.
#[derive(Clone, Debug)]
pub struct Local {
    pub(crate) admissions: Arc<Admissions>,
    pub(crate) namespaces: Vec<(Uuid, Arc<Namespace>)>,
}

impl Local {
    /// As a client takes it.
    pub fn devices(self) -> LocalDevices {
        Box::new(move |info, host, _epoch| {
            let (_, namespace) = self.namespaces.iter().find(|(uuid, _)| *uuid == info.uuid)?;
            let host = nvme::HostId(host.0);
            Some(LocalAccess::new(&self.admissions, namespace, host).attach())
        })
    }
}
