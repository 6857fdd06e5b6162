//! Address, credential and times of a session.

use protocol::times::Times;
use reactor::SocketOptions;
use rpc::Credential;
use std::net::SocketAddr;

/// How to reach the metadata service, and as whom.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Address of the metadata service.
    pub meta: SocketAddr,
    /// What it proves itself with.
    pub credential: Credential,
    /// The node this client runs on.
    pub node: String,
    /// The times that the pool goes by.
    pub times: Times,
    /// How sockets are made.
    pub sockets: SocketOptions,
}
