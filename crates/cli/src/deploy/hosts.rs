//! The machines of a job: a file, or names on the command line.

use crate::deploy::site::Site;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};

/// A machine that ssh or srun reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Host {
    /// Its name for ssh.
    pub(crate) ssh_name: String,
    /// Its name in the pool.
    pub(crate) name: String,
    /// The address at which the others reach it.
    pub(crate) address: Option<IpAddr>,
    /// An existing device, or a pattern.
    pub(crate) device: Option<String>,
    /// Its mount point.
    pub(crate) mount: Option<PathBuf>,
    /// Base of the job's directory.
    pub(crate) dir: Option<PathBuf>,
}

/// Reads `--nodes`: the name of a file, or hosts separated by commas.
pub(crate) fn read(text: &str) -> anyhow::Result<Vec<Host>> {
    let path = Path::new(text);
    let is_file = path.is_file() || (text.contains('/') && !text.contains(','));
    let hosts = if is_file {
        let lines = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let mut hosts = Vec::new();
        for (number, line) in lines.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                let at = || format!("{}:{}", path.display(), number + 1);
                hosts.push(parse(line).with_context(at)?);
            }
        }
        hosts
    } else {
        return list(text);
    };
    checked(text, hosts)
}

/// Reads hosts separated by commas.
pub(crate) fn list(text: &str) -> anyhow::Result<Vec<Host>> {
    let hosts = text.split(',').map(|host| parse(host.trim())).collect::<anyhow::Result<_>>()?;
    checked(text, hosts)
}

fn checked(text: &str, hosts: Vec<Host>) -> anyhow::Result<Vec<Host>> {
    if hosts.is_empty() {
        bail!("{text:?} contains no node");
    }
    let mut names = HashSet::new();
    for host in &hosts {
        if !names.insert(&host.name) {
            bail!("two nodes have the name {:?}: rename one with name=", host.name);
        }
    }
    Ok(hosts)
}

fn parse(line: &str) -> anyhow::Result<Host> {
    let mut words = line.split_ascii_whitespace();
    let Some(name) = words.next() else { bail!("a host's name is empty") };
    // ssh would treat it as an option.
    if name.starts_with('-') || name.contains('=') {
        bail!("{name:?} is not a host: a line starts with the host's name");
    }
    let bare = name.rsplit_once('@').map_or(name, |(_, host)| host);
    let mut host = Host { ssh_name: name.into(), name: bare.into(), ..Host::default() };
    for word in words {
        let Some((key, value)) = word.split_once('=').filter(|(_, value)| !value.is_empty()) else {
            bail!("{word:?} is not of the form key=value");
        };
        match key {
            "name" => host.name = value.into(),
            "address" => {
                let address = value.parse();
                host.address =
                    Some(address.with_context(|| format!("{value:?} is not an IP address"))?);
            }
            "device" => {
                absolute(value)?;
                host.device = Some(value.into());
            }
            "mount" => host.mount = Some(absolute(value)?),
            "dir" => host.dir = Some(absolute(value)?),
            _ => bail!("{key:?} is not known; name, address, device, mount, dir are"),
        }
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !host.name.chars().all(is_plain) || host.name.starts_with('.') || host.name == "meta" {
        bail!("{:?} cannot be a node's name: letters, digits, '-', '_', '.'", host.name);
    }
    Ok(host)
}

fn absolute(path: &str) -> anyhow::Result<PathBuf> {
    if !path.starts_with('/') {
        bail!("{path:?} must be an absolute path");
    }
    Ok(path.into())
}

impl Host {
    /// Returns the address at which the others reach it, as far as this machine knows: the given
    /// one, or the one to which its name resolves. An address of the machine itself, such as
    /// Debian's 127.0.1.1, does not count.
    pub(crate) fn known_address(&self) -> Option<IpAddr> {
        self.address.or_else(|| self.resolved().into_iter().find(|ip| is_reachable(*ip)))
    }

    /// Returns the addresses of its name on this machine.
    fn resolved(&self) -> Vec<IpAddr> {
        let bare = self.ssh_name.rsplit_once('@').map_or(self.ssh_name.as_str(), |(_, host)| host);
        let addresses = (bare, 0).to_socket_addrs();
        addresses.map(|all| all.map(|address| address.ip()).collect()).unwrap_or_default()
    }

    /// Returns an error with the reason why no address is known, and the fix.
    fn nowhere(&self) -> anyhow::Error {
        let here = match self.resolved().first() {
            Some(address) => format!("its name is {address} here"),
            None => "its name does not resolve here".into(),
        };
        anyhow::anyhow!(
            "no address is known at which the other nodes reach {}: {here}, and its own routes and \
             ssh show none either. Give one in a file of nodes: `{0} address=IP`",
            self.ssh_name
        )
    }
}

/// Returns whether another machine could reach this address.
pub(crate) fn is_reachable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_unspecified(),
        // A link-local address needs its link.
        IpAddr::V6(address) => {
            !address.is_loopback() && !address.is_unspecified() && !address.is_unicast_link_local()
        }
    }
}

/// A machine's place in the network, as it reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spot {
    /// Identifies its kernel and network namespace.
    pub(crate) machine: String,
    /// The address at which ssh reached it.
    pub(crate) ssh: Option<IpAddr>,
    /// Its own address in the site's network for data.
    #[serde(default)]
    pub(crate) data: Option<IpAddr>,
    /// Its own addresses on the routes to its peers.
    pub(crate) routes: Vec<IpAddr>,
}

impl Spot {
    /// Returns this machine's place.
    ///
    /// # Errors
    /// If the site's file cannot be used, or has a network for data in which the machine has no
    /// address.
    pub(crate) fn here(peers: &[IpAddr]) -> anyhow::Result<Spot> {
        let data = match Site::read()?.data_network {
            Some(subnet) => Some(subnet.own_address().with_context(|| {
                format!("this machine has no address in the site's data-network, {subnet}")
            })?),
            None => None,
        };
        let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        // client address, client port, server address, server port: sshd(8)
        let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
        let server = connection.split_ascii_whitespace().nth(2).and_then(|ip| ip.parse().ok());
        Ok(Spot {
            data,
            machine: format!("{} {}", super::process::boot_id(), network.display()),
            ssh: server.filter(|address| is_reachable(*address)),
            routes: peers.iter().filter_map(|peer| source(*peer)).collect(),
        })
    }
}

/// Returns this machine's address on its route to another. Sends nothing.
fn source(peer: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match peer {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((peer, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| is_reachable(*address))
}

/// Returns the addresses at which the nodes reach one another, from known addresses and the
/// machines' reports. Nodes on one machine may use loopback.
pub(crate) fn addresses(hosts: &[Host], spots: &[Spot]) -> anyhow::Result<Vec<IpAddr>> {
    let is_one = spots.iter().all(|spot| spot.machine == spots[0].machine);
    let one = |(host, spot): (&Host, &Spot)| {
        let known = host.address.or(spot.data).or_else(|| host.known_address());
        let found = known.or_else(|| spot.routes.first().copied()).or(spot.ssh);
        match found {
            Some(address) => Ok(address),
            None if is_one => Ok(Ipv4Addr::LOCALHOST.into()),
            None => Err(host.nowhere()),
        }
    };
    hosts.iter().zip(spots).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: files and lists are read; errors name the line.
    #[test]
    fn nodes_are_read() {
        let hosts = read("a,me@b").unwrap();
        assert_eq!((hosts[1].ssh_name.as_str(), hosts[1].name.as_str()), ("me@b", "b"));
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("hosts");
        std::fs::write(
            &file,
            "# all\nh1 name=n1 address=10.0.0.1 device=/dev/x # one\n\nh2 mount=/m\n",
        )
        .unwrap();
        let hosts = read(file.to_str().unwrap()).unwrap();
        assert_eq!(hosts.len(), 2);
        assert_eq!(hosts[0].known_address(), Some(IpAddr::from([10, 0, 0, 1])));
        assert_eq!(hosts[0].device.as_deref(), Some("/dev/x"));
        std::fs::write(&file, "h1\nh2 color=red\n").unwrap();
        let error = format!("{:#}", read(file.to_str().unwrap()).unwrap_err());
        assert!(error.contains("hosts:2") && error.contains("color"), "{error}");
    }

    /// Goal: a node with a name that resolves to loopback here gets the address of its route to the
    /// others, else the one at which ssh reached it; nodes of one machine may stay on loopback,
    /// others are refused with a fix.
    #[test]
    fn loopback_is_for_one_machine_only() {
        let hosts = read("localhost,me@192.0.2.7").unwrap();
        assert_eq!(hosts[0].known_address(), None);
        assert_eq!(hosts[1].known_address(), Some(IpAddr::from([192, 0, 2, 7])));
        let spot = |machine: &str| Spot { machine: machine.into(), ..Spot::default() };
        let error = addresses(&hosts, &[spot("a"), spot("b")]).unwrap_err().to_string();
        assert!(error.contains("localhost address=IP") && error.contains("127.0.0.1"), "{error}");
        assert!(addresses(&hosts, &[spot("a"), spot("a")]).unwrap()[0].is_loopback());
        let (route, ssh) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([198, 51, 100, 1]));
        let mut first = Spot { ssh: Some(ssh), ..spot("a") };
        assert_eq!(addresses(&hosts, &[first.clone(), spot("b")]).unwrap()[0], ssh);
        first.routes.push(route);
        assert_eq!(addresses(&hosts, &[first.clone(), spot("b")]).unwrap()[0], route);
        let data = IpAddr::from([10, 1, 0, 1]);
        first.data = Some(data);
        assert_eq!(addresses(&hosts, &[first, spot("b")]).unwrap()[0], data);
        let missing = read("/nonexistent/hosts").unwrap_err();
        assert!(format!("{missing:#}").contains("cannot read /nonexistent/hosts"), "{missing:#}");
    }

    /// Goal: nodes that ssh or a path would misunderstand are refused.
    #[test]
    fn bad_nodes_are_refused() {
        for bad in ["", "a,", "-oProxyCommand=x", "a,a", "name=x", "a/b", "a/b,c"] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
