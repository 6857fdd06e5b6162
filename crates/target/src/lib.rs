//! The NVMe-oF target over TCP and RDMA: subsystems, controllers, queue pairs, discovery,
//! admission.
//!
//! The protocol is in state machines without I/O: [`QueuePair`] turns received bytes into commands
//! and completions into bytes, [`Controller`] executes the commands of an admin queue pair, and
//! [`Target`] lists the subsystems and controllers. [`Admissions`] decides which hosts may use the
//! target, and proves that a removed host no longer does.

pub mod admission;
mod ana;
mod budget;
pub mod controller;
mod counts;
mod driver;
mod error;
mod exclusion;
mod handshakes;
mod limits;
mod local;
mod namespace;
mod queue_pair;
mod rate;
mod reservation;
mod signal;
mod subsystem;
mod target;

pub use admission::{AdmissionMode, Admissions, Moment, Refusal};
pub use ana::{ANA_GROUPS_MAX, AnaGroupId};
pub use budget::Budget;
pub use controller::Controller;
pub use counts::NamespaceCounts;
pub use driver::{Cores, QueuePairs, Server, ServerOptions};
pub use error::Error;
pub use limits::{Limits, MemoryCost};
pub use local::LocalAccess;
pub use namespace::Namespace;
pub use queue_pair::{CommandState, Event, QueuePair, QueuePairState, Tag};
pub use rate::RateLimits;
pub use reservation::{REGISTRANTS_MAX, Reservations};
pub use signal::Signal;
pub use subsystem::{HostAccess, NAMESPACES_MAX, Subsystem};
pub use target::{
    Attached, ConnectFailure, Connected, HostProof, HostTls, IoQueue, Link, Target, Transport,
};
