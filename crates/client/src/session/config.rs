//! Address, credential and times of a session.

use protocol::times::Times;
use reactor::SocketOptions;
use rpc::Credential;
use std::net::SocketAddr;

/// How to reach the metadata service, and with which identity.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Address of the metadata service.
    pub meta: SocketAddr,
    /// Proof of this client's identity.
    pub credential: Credential,
    /// The node this client runs on.
    pub node: String,
    /// The times that apply in the pool.
    pub times: Times,
    /// Options of sockets.
    pub sockets: SocketOptions,
}
