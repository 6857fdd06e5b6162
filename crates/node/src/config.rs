//! A node's configuration file.

use crate::error::NodeError;
use protocol::agent::Demand;
use protocol::auth::Secret;
use protocol::times::Times;
use rpc::Credential;
use serde::{Deserialize, Deserializer};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tls::{Holder, JobKey, KeyError, Psk};
use uuid::Uuid;
use zeroize::Zeroizing;

/// The configuration of a node.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// The node's name; devices with the same node name are near.
    pub name: String,
    /// Address of the metadata service.
    pub meta: SocketAddr,
    /// File with the node's key, or with the job's key, from which the node's is derived.
    pub secret: PathBuf,
    /// Connect to the metadata service without TLS, if that was started with `--plain`: for tests
    /// and measurements.
    #[serde(default)]
    pub plain: bool,
    /// Send data between this node and the others in the clear: its target uses no TLS, and its
    /// mount connects to targets without TLS. Without it, and without `plain`, data travels only
    /// under TLS.
    #[serde(default)]
    pub plain_data: bool,
    /// The transport of data between this node and the others. RDMA needs `plain_data`, because it has
    /// no encryption, and the machine's own network namespace.
    #[serde(default)]
    pub fabric: Fabric,
    /// Network namespace in which sockets are opened (such as `/run/netns/node1`).
    #[serde(default)]
    pub network_namespace: Option<PathBuf>,
    /// Address on which the target listens; port 0 takes a free one.
    #[serde(default = "any_port")]
    pub listen: SocketAddr,
    /// The mount point; without it the node only exports its devices.
    #[serde(default)]
    pub mount: Option<PathBuf>,
    /// Lets other users use the mount.
    #[serde(default)]
    pub allow_other: bool,
    /// The transport of FUSE requests.
    #[serde(default)]
    pub transport: FuseTransport,
    /// Whether the mount makes checksums of data that it writes, and checks those of data that it
    /// reads.
    #[serde(default)]
    pub checksum: Checksum,
    /// How long both threads spin before they sleep.
    #[serde(default)]
    pub poll_us: reactor::Spin,
    /// Divides all deadlines, as `tsumugi meta --faster` does: for tests of failures.
    #[serde(default = "as_they_are")]
    pub faster: u32,
    /// Whether the mount stops itself when it has had no contact with the metadata service for a
    /// long time. False is for tests of fencing, which must work even if a client does not stop.
    #[serde(default = "yes")]
    pub stops_itself: bool,
    /// A file that the node locks while it runs, with its process number.
    #[serde(default)]
    pub pid_file: Option<PathBuf>,
    /// A file in which the node notes that a device has failed a flush. Its next start counts as
    /// lost what that device had not flushed. Absent, it is beside the configuration file.
    #[serde(default)]
    pub marks: Option<PathBuf>,
    /// Address at which Prometheus reads the node's counts, over HTTP.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
    /// The node's devices.
    #[serde(default, rename = "device")]
    pub devices: Vec<DeviceConfig>,
}

/// The transport of FUSE requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FuseTransport {
    /// `io_uring` if the kernel has it enabled, otherwise `/dev/fuse`.
    #[default]
    Auto,
    /// `/dev/fuse`.
    Device,
    /// `io_uring`, or an error.
    Uring,
}

/// The transport of data between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fabric {
    /// NVMe/TCP.
    #[default]
    Tcp,
    /// NVMe/RDMA.
    Rdma,
}

/// Whether the mount makes and checks checksums of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Checksum {
    /// Make and check them.
    #[default]
    On,
    /// Do neither: write blocks without checksums, and read without a check.
    Off,
}

/// A device: a file, a block device, or memory.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// File or block device.
    #[serde(default)]
    pub path: Option<PathBuf>,
    /// Size in bytes: of the file, which is created and written once if it is missing; or of
    /// memory, if there is no path.
    #[serde(default, deserialize_with = "bytes")]
    pub size: Option<u64>,
    /// Block size in bytes, 512 to 65536, a power of two.
    #[serde(default = "default_block_size")]
    pub block_size: u32,
    /// The permanent name of the device; made from node and path if absent.
    #[serde(default)]
    pub uuid: Option<Uuid>,
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn yes() -> bool {
    true
}

fn as_they_are() -> u32 {
    1
}

fn default_block_size() -> u32 {
    4096
}

/// Reads a number of bytes: digits with an optional binary suffix `K`, `M`, `G` or `T` (also `KiB`
/// and so on).
///
/// # Errors
/// The reason as text.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size in bytes; write for example 4096, 512M or 2GiB");
    let digits = text.trim().trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text.trim()[digits.len()..] {
        "" | "B" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "m" | "MiB" => 20,
        "G" | "g" | "GiB" => 30,
        "T" | "t" | "TiB" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.trim().parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Bytes {
        Number(u64),
        Text(String),
    }
    match Option::<Bytes>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Bytes::Number(number)) => Ok(Some(number)),
        Some(Bytes::Text(text)) => parse_bytes(&text).map(Some).map_err(serde::de::Error::custom),
    }
}

impl NodeConfig {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// [`NodeError::Read`], [`NodeError::Config`] with line and key.
    pub fn read(path: &Path) -> Result<NodeConfig, NodeError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| NodeError::Read { path: path.into(), source })?;
        let wrong = |reason: String| NodeError::Config { path: path.into(), reason };
        let mut config: NodeConfig =
            toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        // A metadata service without TLS has no keys to hand out.
        config.plain_data |= config.plain;
        config.marks.get_or_insert_with(|| path.with_extension("marks"));
        if config.fabric == Fabric::Rdma {
            config.check_rdma().map_err(|reason| wrong(reason.into()))?;
        }
        for device in &config.devices {
            if device.path.is_none() && device.size.is_none() {
                return Err(wrong("a [[device]] needs a path, or a size in memory".into()));
            }
        }
        Ok(config)
    }

    /// Returns the reason why this node's data cannot go over RDMA, if there is one.
    fn check_rdma(&self) -> Result<(), &'static str> {
        if !self.plain_data {
            return Err(
                "fabric = \"rdma\" has no encryption: add plain_data = true if all machines on the network are \
                 trusted, or use fabric = \"tcp\"",
            );
        }
        if self.network_namespace.is_some() {
            return Err("fabric = \"rdma\" has no network namespaces: leave out network_namespace");
        }
        Ok(())
    }

    /// Returns what the node's target demands of the connections of an admitted host.
    pub(crate) fn demand(&self) -> Demand {
        match self.fabric {
            // A service without TLS has no keys to hand out.
            Fabric::Rdma if self.plain => Demand::Identifier,
            Fabric::Rdma => Demand::Proof,
            Fabric::Tcp if self.plain_data => Demand::Identifier,
            Fabric::Tcp => Demand::Tls,
        }
    }

    /// Returns the times that hold in the pool.
    pub(crate) fn times(&self) -> Times {
        let times = Times::faster(self.faster);
        let self_stop = if self.stops_itself { times.self_stop } else { Duration::MAX };
        Times { self_stop, ..times }
    }

    /// Reads the node's credential: its own key, or one that is derived from the job's.
    ///
    /// # Errors
    /// [`NodeError::Read`], [`NodeError::Config`].
    pub fn read_credential(&self) -> Result<Credential, NodeError> {
        let path = &self.secret;
        let unread = |source| NodeError::Read { path: path.clone(), source };
        let mode = std::fs::metadata(path).map_err(unread)?.permissions().mode();
        let text = std::fs::read_to_string(path).map(Zeroizing::new).map_err(unread)?;
        let wrong = |reason: String| NodeError::Config { path: path.clone(), reason };
        if mode & 0o077 != 0 {
            let reason = format!("other users can open it (mode {:04o}): chmod 600", mode & 0o7777);
            return Err(wrong(reason));
        }
        if self.plain {
            let secret = Secret::from_hex(&text);
            return secret
                .map(Credential::Plain)
                .ok_or_else(|| wrong("a secret is 64 hexadecimal digits".into()));
        }
        let psk = match JobKey::from_hex(&text) {
            Ok(job) => job.of(&Holder::Node(self.name.clone())),
            Err(_) => Psk::from_line(&text),
        };
        let psk = psk.map_err(|error| wrong(error.to_string()))?;
        match Holder::of(psk.identity()) {
            Some(Holder::Node(name)) if name == self.name => Ok(Credential::Tls(psk)),
            Some(holder) => {
                Err(wrong(format!("the key is that of {holder}, and this is node {}", self.name)))
            }
            None => Err(wrong(KeyError::Form.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a node accepts its own key and the job's. It refuses another node's, a tool's, a
    /// damaged one, and a file that other users can open; no message shows any part of the key.
    #[test]
    fn only_its_own_key_is_taken() {
        let directory = std::env::temp_dir().join(format!("tsumugi-key-{}", std::process::id()));
        let path = directory.join("key");
        std::fs::create_dir_all(&directory).unwrap();
        let job = JobKey::generate();
        let config = format!("name='node1'\nmeta='127.0.0.1:1'\nsecret='{}'\n", path.display());
        let config: NodeConfig = toml::from_str(&config).unwrap();
        let of = |holder| job.of(&holder).unwrap().to_line();
        let own = of(Holder::Node("node1".into()));
        let read = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            config.read_credential()
        };
        for text in [own.as_str(), job.to_hex().as_str()] {
            let Credential::Tls(psk) = read(text, 0o600).unwrap() else { panic!("no TLS") };
            assert_eq!(psk.to_line().as_str(), own.as_str());
        }
        let other = of(Holder::Node("node2".into()));
        for (text, mode, reason) in [
            (other.as_str(), 0o600, "node node2"),
            (of(Holder::Tools).as_str(), 0o600, "tools"),
            (&own[..own.len() - 2], 0o600, "hexadecimal"),
            (own.as_str(), 0o640, "chmod 600"),
        ] {
            let said = read(text, mode).unwrap_err().to_string();
            assert!(said.contains(reason), "{said}");
            assert!(!said.contains(&text[text.len() - 16..]), "{said}");
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }

    /// Goal: data over RDMA is in the clear, so that a configuration has to say so, and has no network
    /// namespace. Its target demands a proof of the admission's key, unless there are no keys.
    #[test]
    fn rdma_is_in_the_clear() {
        let directory = std::env::temp_dir().join(format!("tsumugi-fabric-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("node.toml");
        let read = |more: &str| {
            let text = format!("name='a'\nmeta='127.0.0.1:1'\nsecret='s'\n{more}");
            std::fs::write(&path, text).unwrap();
            NodeConfig::read(&path)
        };
        let demand = |more: &str| read(more).unwrap().demand();
        assert_eq!(demand(""), Demand::Tls);
        assert_eq!(demand("plain_data=true"), Demand::Identifier);
        assert_eq!(demand("plain_data=true\nfabric='rdma'"), Demand::Proof);
        assert_eq!(demand("plain=true\nfabric='rdma'"), Demand::Identifier);
        let refused = read("fabric='rdma'").unwrap_err().to_string();
        assert!(refused.contains("no encryption") && refused.contains("plain_data"), "{refused}");
        let refused = read("plain_data=true\nfabric='rdma'\nnetwork_namespace='/n'").unwrap_err();
        assert!(refused.to_string().contains("network_namespace"), "{refused}");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    /// Goal: sizes with the usual suffixes are read, and other texts are refused.
    #[test]
    fn sizes_have_suffixes() {
        assert_eq!(parse_bytes("2G"), Ok(2 << 30));
        assert_eq!(parse_bytes(" 512MiB"), Ok(512 << 20));
        assert_eq!(parse_bytes("4096"), Ok(4096));
        for bad in ["", "G", "2X", "-1", "99999999T"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    /// Goal: the error for an unknown key names it, so that a typing error is found.
    #[test]
    fn unknown_keys_are_refused() {
        let text = "name='a'\nmeta='127.0.0.1:1'\nsecret='s'\nmuont='/mnt'\n";
        let error = toml::from_str::<NodeConfig>(text).unwrap_err().to_string();
        assert!(error.contains("muont") && error.contains("line 4"), "{error}");
    }
}
