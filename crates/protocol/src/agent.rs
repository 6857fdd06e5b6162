//! What a node's target agent and the metadata service say to each other: the control channel by
//! which targets learn whom to admit.
//!
//! Any message may be late by any time: TCP delivers what was stuck once the way is free again. So
//! no admission counts from the receipt of a message. Each counts from a [`Beat`] of the agent's own
//! clock that the service had received, and names; the service counts from the receipt of that beat,
//! which is later than its sending. Delay can only make an admission shorter, or the service more
//! patient.

use crate::data_key::DataKey;
use crate::ids::{DeviceId, Epoch, HostId};
use crate::space::DeviceInfo;
use serde::{Deserialize, Serialize};

/// When an agent sent a call, in nanoseconds of its own clock, which goes on while the machine is
/// suspended. It means nothing to anybody else; the metadata service hands it back as it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Beat(pub u64);

/// An agent's call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// First call of a connection, and again when a device's incarnation changed: the devices this
    /// target exports (their [`DeviceInfo::device`] is ignored) → [`Answer::Registered`].
    Register {
        /// The node.
        node: String,
        /// Its devices.
        devices: Vec<DeviceInfo>,
        /// When this was sent.
        beat: Beat,
        /// Its target takes connections under TLS alone, each with the key of an admission; else in the clear alone.
        takes_tls: bool,
    },
    /// The target lives, and this is what it has counted → [`Answer::Done`].
    Heartbeat {
        /// When this was sent.
        beat: Beat,
        /// What each device has counted.
        counts: Vec<DeviceCounts>,
    },
    /// A client process of this node died: end its session now → [`Answer::Done`] once fenced.
    HostDied(HostId),
}

/// What a target has counted on one device since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCounts {
    /// The device.
    pub device: DeviceId,
    /// Bytes read by clients of the same node, past the socket.
    pub read_local_bytes: u64,
    /// Bytes read over NVMe/TCP.
    pub read_remote_bytes: u64,
    /// Bytes written by clients of the same node, past the socket.
    pub written_local_bytes: u64,
    /// Bytes written over NVMe/TCP.
    pub written_remote_bytes: u64,
    /// Commands of all kinds.
    pub commands: u64,
    /// Commands and connections refused because their host was not admitted.
    pub refused: u64,
}

/// The metadata service's answer to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Nothing to tell.
    Done,
    /// The devices' numbers, in the order of registration.
    Registered(Vec<DeviceId>),
    /// Not to be done, and why.
    Refused(String),
}

/// What the metadata service asks of a target's agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Push {
    /// Admit a host identifier under an epoch until `lapse_ms` after `beat` → [`PushAnswer::Done`].
    /// A host that was fenced under this or a later epoch is not admitted → [`PushAnswer::Fenced`];
    /// nor is one whose admission would have lapsed already → [`PushAnswer::Lapsed`].
    Admit {
        /// The host.
        host: HostId,
        /// The epoch.
        epoch: Epoch,
        /// The newest beat that the service has of this agent.
        beat: Beat,
        /// Milliseconds until it lapses, counted from the beat.
        lapse_ms: u32,
        /// What the host has to prove that it knows, where the target takes TLS.
        key: Option<DataKey>,
    },
    /// All admissions that have not lapsed do so no sooner than this → [`PushAnswer::Done`].
    Renew {
        /// The newest beat that the service has of this agent.
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
    /// Make all that the device has acknowledged survive power loss → [`PushAnswer::Flushed`],
    /// [`PushAnswer::FlushFailed`], or [`PushAnswer::Done`] if nothing could be done yet.
    Flush(DeviceId),
}

/// An agent's answer to a [`Push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PushAnswer {
    /// Done.
    Done,
    /// The beat was too old: the admission would have lapsed already.
    Lapsed,
    /// The host is fenced: none of its commands is or will be carried out.
    Fenced,
    /// All writes that the device had acknowledged before it was asked survive power loss.
    Flushed,
    /// They may be lost.
    FlushFailed,
}
