//! Which machines a job runs on: a file, or names on the command line.

use anyhow::{Context, bail};
use std::collections::HashSet;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

/// A machine that ssh reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Host {
    /// What ssh calls it.
    pub(crate) ssh_name: String,
    /// What the pool calls it.
    pub(crate) name: String,
    /// At which the others reach it.
    pub(crate) address: Option<IpAddr>,
    /// A device that is there.
    pub(crate) device: Option<PathBuf>,
    /// Where it is mounted.
    pub(crate) mount: Option<PathBuf>,
    /// Base of the job's directory.
    pub(crate) dir: Option<PathBuf>,
}

/// Reads `--nodes`: the name of a file, or hosts separated by commas.
pub(crate) fn read(text: &str) -> anyhow::Result<Vec<Host>> {
    let path = Path::new(text);
    let hosts = if path.is_file() {
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
        text.split(',').map(|host| parse(host.trim())).collect::<anyhow::Result<_>>()?
    };
    if hosts.is_empty() {
        bail!("{text:?} names no node");
    }
    let mut names = HashSet::new();
    for host in &hosts {
        if !names.insert(&host.name) {
            bail!("two nodes are called {:?}: give one another name with name=", host.name);
        }
    }
    Ok(hosts)
}

fn parse(line: &str) -> anyhow::Result<Host> {
    let mut words = line.split_ascii_whitespace();
    let Some(name) = words.next() else { bail!("a host's name is empty") };
    // ssh would take it for an option.
    if name.starts_with('-') || name.contains('=') {
        bail!("{name:?} is no host: a line starts with the host's name");
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
                    Some(address.with_context(|| format!("{value:?} is no IP address"))?);
            }
            "device" => host.device = Some(absolute(value)?),
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
        bail!("{path:?} has to be an absolute path");
    }
    Ok(path.into())
}

impl Host {
    /// At which the others reach it: as given, or as its name resolves here.
    pub(crate) fn reached_at(&self) -> anyhow::Result<IpAddr> {
        if let Some(address) = self.address {
            return Ok(address);
        }
        let bare = self.ssh_name.rsplit_once('@').map_or(self.ssh_name.as_str(), |(_, host)| host);
        let advice = || {
            format!(
                "{bare} does not resolve here: name its address, `{} address=IP`, in a file of \
                nodes",
                self.ssh_name
            )
        };
        let mut addresses = (bare, 0).to_socket_addrs().with_context(advice)?;
        Ok(addresses.next().with_context(advice)?.ip())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: files and lists are read; what is wrong is named with its line.
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
        assert_eq!(hosts[0].reached_at().unwrap(), IpAddr::from([10, 0, 0, 1]));
        assert_eq!(hosts[0].device.as_deref(), Some(Path::new("/dev/x")));
        std::fs::write(&file, "h1\nh2 color=red\n").unwrap();
        let error = format!("{:#}", read(file.to_str().unwrap()).unwrap_err());
        assert!(error.contains("hosts:2") && error.contains("color"), "{error}");
    }

    /// Goal: what ssh or a path would misunderstand is refused.
    #[test]
    fn bad_nodes_are_refused() {
        for bad in ["", "a,", "-oProxyCommand=x", "a,a", "name=x", "a/b"] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
