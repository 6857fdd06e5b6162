//! The fabrics that carry a target's commands.

use clap::ValueEnum;

/// The fabric that carries a target's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fabric {
    /// NVMe/TCP.
    Tcp,
    /// NVMe/RDMA.
    Rdma,
}

impl Fabric {
    /// Returns its name in configfs, in nvme-cli and in the kernel's modules.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }
}
