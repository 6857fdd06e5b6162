//! The files in which nvme-cli keeps the host's name and identifier.

/// The file with the host's NQN.
pub(super) const HOSTNQN_FILE: &str = "/etc/nvme/hostnqn";
/// The file with the host's identifier, a UUID.
pub(super) const HOSTID_FILE: &str = "/etc/nvme/hostid";
