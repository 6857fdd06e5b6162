//! The messages between a node's target agent and the metadata service: the control channel that
//! brings admissions to targets.
//!
//! Any message may be late by any time, because TCP delivers delayed bytes once the way is free
//! again. So no admission counts from the receipt of a message. It counts from a [`Beat`] of the
//! agent's own clock that the service has received and names. The service counts from its receipt
//! of that beat, which is later than its sending. A delay can only make an admission shorter, or
//! the service more patient.

use crate::data_key::DataKey;
use crate::ids::{DeviceId, Epoch, HostId};
use crate::space::DeviceInfo;
use serde::{Deserialize, Serialize};

/// The time at which an agent sent a call, in nanoseconds of its own clock, which includes the time
/// that the machine is suspended. Only that agent can interpret it; the metadata service returns it
/// unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Beat(pub u64);

/// What a target demands of the connections of an admitted host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Demand {
    /// The admitted host identifier alone; data travels in the clear.
    #[default]
    Identifier,
    /// TLS with the key of the admission.
    Tls,
    /// A proof of the key of the admission (DH-HMAC-CHAP); data travels in the clear.
    Proof,
}

impl Demand {
    /// Returns whether hosts need the key of their admission.
    pub fn has_key(self) -> bool {
        self != Self::Identifier
    }

    /// Returns whether data travels in the clear.
    pub fn is_plain(self) -> bool {
        self != Self::Tls
    }
}

/// An agent's call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// First call of a connection, repeated when a device's incarnation changes: the devices that
    /// this target exports → [`Answer::Registered`]. Their [`DeviceInfo::device`] is ignored; their
    /// [`DeviceInfo::online`] is false after a failed flush, so that they get no new data.
    Register {
        /// The node.
        node: String,
        /// Its devices.
        devices: Vec<DeviceInfo>,
        /// The time of sending.
        beat: Beat,
        /// What the target demands of each connection.
        demand: Demand,
    },
    /// The target lives, and reports its counts → [`Answer::Done`].
    Heartbeat {
        /// The time of sending.
        beat: Beat,
        /// The counts of each device.
        counts: Vec<DeviceCounts>,
    },
    /// A client process of this node died: end its session now → [`Answer::Done`] once fenced.
    HostDied(HostId),
}

/// A target's counts for one device since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCounts {
    /// The device.
    pub device: DeviceId,
    /// Bytes read by clients of the same node, without the network.
    pub read_local_bytes: u64,
    /// Bytes read over the network.
    pub read_remote_bytes: u64,
    /// Bytes written by clients of the same node, without the network.
    pub written_local_bytes: u64,
    /// Bytes written over the network.
    pub written_remote_bytes: u64,
    /// Commands of all kinds.
    pub commands: u64,
    /// Commands and connections refused because their host was not admitted.
    pub refused: u64,
}

/// The metadata service's answer to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Success, without a result.
    Done,
    /// The devices' numbers, in the order of registration.
    Registered(Vec<DeviceId>),
    /// The call is refused, with the reason.
    Refused(String),
}

/// A request of the metadata service to a target's agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Push {
    /// Admit a host identifier under an epoch until `lapse_ms` after `beat` → [`PushAnswer::Done`].
    /// A host that was fenced under this or a later epoch is not admitted → [`PushAnswer::Fenced`].
    /// A host whose admission would have lapsed already is not admitted either →
    /// [`PushAnswer::Lapsed`].
    Admit {
        /// The host.
        host: HostId,
        /// The epoch.
        epoch: Epoch,
        /// The newest beat that the service has received from this agent.
        beat: Beat,
        /// Milliseconds until it lapses, counted from the beat.
        lapse_ms: u32,
        /// The key that the host has to prove, if the target takes TLS.
        key: Option<DataKey>,
    },
    /// Extend all admissions that have not lapsed: they lapse no sooner than this →
    /// [`PushAnswer::Done`].
    Renew {
        /// The newest beat that the service has received from this agent.
        beat: Beat,
        /// Milliseconds until they lapse, counted from the beat.
        lapse_ms: u32,
    },
    /// Remove the admission, drop the controllers, wait for the end of the last back-end I/O, then
    /// → [`PushAnswer::Fenced`].
    Fence {
        /// The host.
        host: HostId,
        /// This and all earlier epochs.
        epoch: Epoch,
    },
    /// Make all data that the device has acknowledged survive a loss of power →
    /// [`PushAnswer::Flushed`], [`PushAnswer::FlushFailed`], or [`PushAnswer::Done`] if nothing
    /// could be done yet.
    Flush(DeviceId),
}

/// An agent's answer to a [`Push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PushAnswer {
    /// Done.
    Done,
    /// The beat was too old: the admission would have lapsed already.
    Lapsed,
    /// The host is fenced: none of its commands is or will be executed.
    Fenced,
    /// All writes that the device had acknowledged before the request survive a loss of power.
    Flushed,
    /// They may be lost.
    FlushFailed,
}
