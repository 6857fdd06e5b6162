//! The requests of the control socket.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A request, as a line of JSON. `subsystem` may be omitted if there is only one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub(in crate::commands) enum Request {
    /// Returns the state of the target.
    Show {},
    /// Returns the connected controllers.
    Connections {},
    /// Returns counts and latencies of commands.
    Stats {},
    /// Adds a namespace, in the form of --namespace.
    NamespaceAdd { subsystem: Option<String>, namespace: String },
    /// Removes a namespace.
    NamespaceRemove { subsystem: Option<String>, nsid: u32 },
    /// Gives a namespace a new size, or the present size of its file or device.
    NamespaceResize {
        subsystem: Option<String>,
        nsid: u32,
        size: Option<String>,
        #[serde(default)]
        shrink: bool,
    },
    /// Sets which of the hosts that may connect see a namespace; without a list all of them.
    NamespaceHosts { subsystem: Option<String>, nsid: u32, hosts: Option<Vec<String>> },
    /// Limits the commands and bytes per second of all hosts together on a namespace. Without a
    /// value the limit is removed.
    NamespaceLimit {
        subsystem: Option<String>,
        nsid: u32,
        iops: Option<u64>,
        /// In the form of sizes.
        bytes_per_s: Option<String>,
    },
    /// Adds a subsystem.
    SubsystemAdd {
        nqn: Option<String>,
        serial: Option<String>,
        model: Option<String>,
        #[serde(default)]
        namespaces: Vec<String>,
        #[serde(default)]
        hosts: Vec<String>,
    },
    /// Removes a subsystem and ends its controllers.
    SubsystemRemove { subsystem: String },
    /// Gives a host access, in the form of --host.
    HostAdd {
        subsystem: Option<String>,
        host: String,
        /// Confirms that other hosts lose access if all hosts may connect so far.
        #[serde(default)]
        restrict: bool,
    },
    /// Removes a host's access and ends its controllers.
    HostRemove {
        subsystem: Option<String>,
        host: String,
        /// Confirms that all hosts may connect after the last one is removed.
        #[serde(default)]
        any_host: bool,
    },
    /// Replaces a host's keys in all subsystems, in the form of --host.
    HostKey { host: String },
    /// Listens on an address.
    ListenerAdd { address: String },
    /// Stops listening on an address.
    ListenerRemove { address: String },
    /// Sets states of ANA groups, by the groups' numbers.
    AnaSet { subsystem: Option<String>, states: BTreeMap<String, String> },
    /// Returns the volumes of a pool that the target has open. Here and below `pool` is an absolute
    /// path.
    VolumeList { pool: PathBuf },
    /// Creates a volume.
    VolumeCreate { pool: PathBuf, name: String, size_bytes: u64 },
    /// Makes a snapshot of a volume, which may be exported.
    VolumeSnapshot { pool: PathBuf, source: String, name: String },
    /// Creates a volume from a snapshot.
    VolumeClone { pool: PathBuf, source: String, name: String },
    /// Changes the size of a volume, and of its namespaces.
    VolumeResize { pool: PathBuf, name: String, size_bytes: u64 },
    /// Removes a volume that is not exported.
    VolumeRemove { pool: PathBuf, name: String },
    /// Writes the configuration file.
    Write { path: PathBuf },
    /// Reads the configuration file again, as SIGHUP does.
    Reload {},
}
