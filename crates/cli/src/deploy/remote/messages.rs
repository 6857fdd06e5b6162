//! The orders of `up` to the agents, and their answers: one line of JSON each.

use crate::deploy::hosts::Spot;
use crate::deploy::plan::Plan;
use crate::deploy::services::ReadyNode;
use crate::deploy::state::HostState;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zeroize::Zeroizing;

/// Longest line either side accepts.
pub(super) const LINE_BYTES_MAX: u64 = 1 << 20;

/// Receives lines from agents, with their line breaks.
pub(super) type Sink = Arc<dyn Fn(&str) + Send + Sync>;

/// An order to an agent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Also start the agents of these machines, and pass their orders on to them.
    Spread {
        /// The job.
        job: String,
        /// The machines.
        rest: Vec<HostState>,
    },
    /// Report where the machine is in the network → [`Reply::Spot`].
    Look {
        /// Addresses of others.
        peers: Vec<IpAddr>,
    },
    /// Report whether the machine has RDMA at the address of its node → [`Reply::Rdma`].
    LookForRdma {
        /// The address.
        address: IpAddr,
    },
    /// Create the job's directory → [`Reply::Done`].
    Begin(Box<Plan>),
    /// Create backing files → [`Reply::Progress`], then [`Reply::Done`].
    Prepare,
    /// Start the metadata service → [`Reply::Meta`].
    StartMeta {
        /// Time limit in milliseconds.
        within_ms: u64,
    },
    /// Start the node → [`Reply::Nodes`].
    StartNodes {
        /// The address of the metadata service.
        meta: SocketAddr,
        /// Time limit in milliseconds.
        within_ms: u64,
    },
    /// All machines are ready: leave the processes running, and end → [`Reply::Done`].
    Finish,
}

/// An agent's answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The machine's place in the network.
    Spot(Spot),
    /// The name of the machine's RDMA device, or the reason why it has none.
    Rdma(Result<String, String>),
    /// Done.
    Done,
    /// The address of the metadata service.
    Meta(SocketAddr),
    /// The nodes are ready.
    Nodes(Vec<ReadyNode>),
    /// Bytes of backing files written.
    Progress {
        /// So far.
        done: u64,
        /// Of all.
        all: u64,
    },
    /// It failed; the agent undoes its work and ends.
    Failed(String),
    /// The machine above it in the tree has not reached it.
    Unreached(String),
}

/// An order for one of several nodes, or an answer of one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Addressed<T> {
    /// The node.
    pub(crate) node: String,
    /// The order or the answer.
    pub(crate) content: T,
}

/// Returns a message as a line.
pub(super) fn line<T: serde::Serialize>(
    message: &Addressed<T>,
) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let mut line = Zeroizing::new(serde_json::to_vec(message)?);
    line.push(b'\n');
    Ok(line)
}

/// Locks a value that stays valid when a thread panics.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
