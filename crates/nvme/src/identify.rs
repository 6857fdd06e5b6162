//! Identify data structures (base 5.1.13, NVM 4.1.5), which describe controllers and namespaces.

mod controller;
mod namespace;

pub use controller::{IdentifyController, IdentifyControllerNvm, PowerState};
pub use namespace::{
    IdentifyNamespace, IdentifyNamespaceIndependent, IdentifyNamespaceNvm, IoCommandSets,
    LbaFormat, NamespaceDescriptor, NamespaceDescriptorWriter, NamespaceDescriptors, NamespaceList,
};

/// Size of every Identify data structure in bytes.
pub const IDENTIFY_BYTES: usize = 4096;

/// CNS values (base figure 310): the requested structure.
pub mod cns {
    /// Identify namespace, of the NVM command set.
    pub const NAMESPACE: u8 = 0x00;
    /// Identify controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Active namespace identifiers above NSID.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Namespace identification descriptors.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// Identify namespace, specific to the command set CSI.
    pub const NAMESPACE_BY_COMMAND_SET: u8 = 0x05;
    /// Identify controller, specific to the command set CSI.
    pub const CONTROLLER_BY_COMMAND_SET: u8 = 0x06;
    /// Active namespace identifiers above NSID with the command set CSI.
    pub const ACTIVE_NAMESPACES_BY_COMMAND_SET: u8 = 0x07;
    /// Identify namespace, independent of the command set.
    pub const NAMESPACE_INDEPENDENT: u8 = 0x08;
    /// Allocated namespace identifiers above NSID.
    pub const ALLOCATED_NAMESPACES: u8 = 0x10;
    /// Identify namespace for an allocated namespace.
    pub const ALLOCATED_NAMESPACE: u8 = 0x11;
    /// Controllers that a namespace is attached to.
    pub const NAMESPACE_CONTROLLERS: u8 = 0x12;
    /// Controllers of the subsystem.
    pub const CONTROLLERS: u8 = 0x13;
    /// I/O command sets that the controller supports together.
    pub const IO_COMMAND_SETS: u8 = 0x1c;
}

/// CSI values (base figure 311): command sets.
pub mod csi {
    /// The NVM command set.
    pub const NVM: u8 = 0x00;
    /// Key value.
    pub const KEY_VALUE: u8 = 0x01;
    /// Zoned namespaces.
    pub const ZONED: u8 = 0x02;
}

wire_struct! {
    /// Controller list (base figure 137): up to 2047 identifiers in ascending order.
    pub struct ControllerList[4096] {
        /// Number of identifiers.
        pub numid: crate::U16,
        /// The identifiers; the rest is 0.
        pub ids: [crate::U16; 2047],
    }
}

impl ControllerList {
    /// Returns a list of the first 2047 of `ids`, which must ascend.
    pub fn new(ids: impl IntoIterator<Item = crate::ControllerId>) -> Self {
        let mut list = Self::default();
        let mut count = 0u16;
        for (slot, id) in list.ids.iter_mut().zip(ids) {
            *slot = crate::U16::new(id.get());
            count += 1;
        }
        list.numid = crate::U16::new(count);
        list
    }

    /// Returns the identifiers; a count above 2047 is taken as 2047.
    pub fn iter(&self) -> impl Iterator<Item = crate::ControllerId> + '_ {
        self.ids.iter().take(usize::from(self.numid.get())).map(|id| crate::ControllerId(id.get()))
    }
}
