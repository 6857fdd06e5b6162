//! The fabric that carries data between a job's nodes: TCP, or RDMA where every node has it.
//!
//! The choice is made while the job is created: `up` asks each node for an RDMA device at the address
//! at which the others reach it. All nodes get the same fabric, and keep it as long as the job lives.

use anyhow::bail;
use clap::ValueEnum;
use protocol::space::Transport;
use rdma::Library;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;

/// Number of nodes that messages name.
const NAMED_MAX: usize = 4;

/// The value of `--fabric`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wanted {
    /// NVMe/TCP.
    #[default]
    Tcp,
    /// NVMe/RDMA, or fail; needs --plain-data.
    Rdma,
    /// NVMe/RDMA if all nodes have it and --plain-data is given, else NVMe/TCP.
    Auto,
}

/// A fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// NVMe/TCP.
    #[default]
    Tcp,
    /// NVMe/RDMA.
    Rdma,
}

impl From<Transport> for Kind {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Tcp => Self::Tcp,
            Transport::Rdma => Self::Rdma,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Rdma => "RDMA",
        })
    }
}

/// The fabric of a job, and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DataFabric {
    /// The fabric.
    pub(crate) transport: Kind,
    /// The reason, as text.
    pub(crate) reason: String,
}

impl Default for DataFabric {
    fn default() -> Self {
        Self { transport: Kind::Tcp, reason: "the default".into() }
    }
}

/// Whether a node has RDMA at its address.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Look {
    /// The node.
    pub(crate) node: String,
    /// The address at which other nodes reach it.
    pub(crate) address: IpAddr,
    /// The name of its device, or the reason why it has none.
    pub(crate) device: Result<String, String>,
}

/// Returns the choice if it does not depend on the nodes.
///
/// # Errors
/// If RDMA is demanded for data that has to be encrypted.
pub(crate) fn of_options(wanted: Wanted, plain_data: bool) -> anyhow::Result<Option<DataFabric>> {
    let tcp = |reason: &str| DataFabric { transport: Kind::Tcp, reason: reason.into() };
    match (wanted, plain_data) {
        (Wanted::Tcp, _) => Ok(Some(DataFabric::default())),
        (Wanted::Rdma, false) => bail!(
            "--fabric rdma: RDMA has no encryption, and data between nodes is encrypted unless you say \
             otherwise. Add --plain-data if all machines on the network are trusted, or leave out --fabric"
        ),
        (Wanted::Auto, false) => {
            Ok(Some(tcp("data is encrypted, and RDMA has no encryption (see --plain-data)")))
        }
        (Wanted::Rdma | Wanted::Auto, true) => Ok(None),
    }
}

/// Returns the choice by what the nodes have.
///
/// # Errors
/// If RDMA is demanded and a node lacks it: names the nodes, with what they lack and the fix.
pub(crate) fn of_nodes(wanted: Wanted, looks: &[Look]) -> anyhow::Result<DataFabric> {
    let lack = |look: &Look| {
        let why = look.device.as_ref().err()?;
        Some(format!("{} ({}): {why}", look.node, look.address))
    };
    let lacking: Vec<_> = looks.iter().filter_map(lack).collect();
    if lacking.is_empty() {
        let device = |look: &Look| {
            let device = look.device.as_ref().map_or("-", String::as_str);
            format!("{} {device}", look.node)
        };
        let devices: Vec<_> = looks.iter().map(device).collect();
        let reason = format!("all nodes have it: {}", first(&devices, ", "));
        return Ok(DataFabric { transport: Kind::Rdma, reason });
    }
    match wanted {
        Wanted::Rdma => bail!(
            "--fabric rdma: {} of {} nodes cannot use it. --fabric auto would use TCP\n  {}",
            lacking.len(),
            looks.len(),
            first(&lacking, "\n  ")
        ),
        Wanted::Tcp | Wanted::Auto => {
            let reason = format!("not all nodes have RDMA: {}", first(&lacking, "; "));
            Ok(DataFabric { transport: Kind::Tcp, reason })
        }
    }
}

/// Joins the first texts, and counts the rest.
fn first(texts: &[String], separator: &str) -> String {
    let named = texts[..texts.len().min(NAMED_MAX)].join(separator);
    match texts.len() - texts.len().min(NAMED_MAX) {
        0 => named,
        more => format!("{named}{separator}and {more} more"),
    }
}

/// Returns the name of this machine's RDMA device at an address, or what is missing.
pub(crate) fn device_at(address: IpAddr) -> Result<String, String> {
    let library = Library::load().map_err(|error| error.to_string())?;
    rdma::device_at(&library, address).map_err(|error| error.to_string())
}

/// Returns an address of this machine with an RDMA device, and the device's name. `data` is the
/// machine's address in the site's network for data, if there is one.
pub(crate) fn device_here(data: Option<IpAddr>) -> Result<(IpAddr, String), String> {
    if let Some(address) = data {
        return Ok((address, device_at(address)?));
    }
    let library = Library::load().map_err(|error| error.to_string())?;
    rdma::device_here(&library).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(node: &str, device: Result<&str, &str>) -> Look {
        let device = device.map(Into::into).map_err(Into::into);
        Look { node: node.into(), address: [10, 0, 0, 1].into(), device }
    }

    /// Goal: TCP is the default and asks no node. Data that has to be encrypted never goes over
    /// RDMA: `rdma` is refused with the fix, and `auto` stays on TCP and gives the reason.
    #[test]
    fn encrypted_data_stays_on_tcp() {
        for plain in [false, true] {
            assert_eq!(of_options(Wanted::Tcp, plain).unwrap(), Some(DataFabric::default()));
        }
        let refused = of_options(Wanted::Rdma, false).unwrap_err().to_string();
        assert!(refused.contains("no encryption") && refused.contains("--plain-data"), "{refused}");
        let auto = of_options(Wanted::Auto, false).unwrap().unwrap();
        assert_eq!(auto.transport, Kind::Tcp);
        assert!(auto.reason.contains("encrypt") && auto.reason.contains("--plain-data"));
        assert_eq!(of_options(Wanted::Rdma, true).unwrap(), None);
        assert_eq!(of_options(Wanted::Auto, true).unwrap(), None);
    }

    /// Goal: RDMA is used if all nodes have it, and only then. Otherwise `auto` uses TCP and `rdma`
    /// is refused; both name the node and what it lacks.
    #[test]
    fn one_node_without_rdma_decides() {
        let both = [look("node1", Ok("mlx5_0")), look("node2", Ok("rxe0"))];
        for wanted in [Wanted::Rdma, Wanted::Auto] {
            let choice = of_nodes(wanted, &both).unwrap();
            assert_eq!(choice.transport, Kind::Rdma);
            assert!(choice.reason.contains("node1 mlx5_0, node2 rxe0"), "{}", choice.reason);
        }
        let one = [look("node1", Ok("mlx5_0")), look("node2", Err("no device: make one"))];
        let auto = of_nodes(Wanted::Auto, &one).unwrap();
        assert_eq!(auto.transport, Kind::Tcp);
        assert!(auto.reason.contains("node2 (10.0.0.1): no device: make one"), "{}", auto.reason);
        assert!(!auto.reason.contains("node1"), "{}", auto.reason);
        let refused = of_nodes(Wanted::Rdma, &one).unwrap_err().to_string();
        assert!(
            refused.contains("1 of 2") && refused.contains("node2 (10.0.0.1): no device: make")
        );
        let many: Vec<_> = (0..9).map(|n| look(&format!("node{n}"), Err("none"))).collect();
        let refused = of_nodes(Wanted::Rdma, &many).unwrap_err().to_string();
        assert!(refused.contains("9 of 9") && refused.contains("and 5 more"), "{refused}");
    }
}
