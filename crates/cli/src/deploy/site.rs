//! A site's devices, defaults and limits: `/etc/tsumugi/site.toml`. Each machine reads its own
//! file.
//!
//! Options on the command line override the defaults. The file grants no access: the permissions of
//! a device decide which users can open it.

pub(crate) mod devices;
mod network;

pub(crate) use network::Subnet;

use crate::deploy::size;
use crate::deploy::users::User;
use anyhow::{Context, bail};
use serde::{Deserialize, Deserializer};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file's path.
const PATH: &str = "/etc/tsumugi/site.toml";
/// The environment variable that names another file.
pub(crate) const VARIABLE: &str = "TSUMUGI_SITE";
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Bytes of a backing file if neither an option nor the site sets the size.
pub(crate) const SIZE_DEFAULT: u64 = 2 << 30;

/// A site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Site {
    /// The subnet in which nodes reach one another.
    pub(crate) data_network: Option<Subnet>,
    /// Values of options that are missing on the command line.
    pub(crate) defaults: Defaults,
    /// Limits of each job.
    pub(crate) limits: Limits,
    /// Devices of nodes. The first entry that matches a node counts.
    pub(crate) node: Vec<NodeEntry>,
}

/// Defaults of options.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Defaults {
    /// `--size`.
    #[serde(deserialize_with = "bytes")]
    pub(crate) size: Option<u64>,
    /// `--prewrite`.
    pub(crate) prewrite: bool,
    /// `--ssh`.
    pub(crate) ssh: Option<String>,
    /// `--remote-binary`.
    pub(crate) remote_binary: Option<String>,
    /// `--fan-out`.
    #[serde(deserialize_with = "fan_out")]
    pub(crate) fan_out: Option<u16>,
}

/// Limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Limits {
    /// Largest backing file, in bytes.
    #[serde(deserialize_with = "bytes")]
    pub(crate) size: Option<u64>,
    /// Users, and groups with an @ before them, that may make file systems. Without it every user
    /// may.
    pub(crate) owners: Option<Vec<String>>,
}

/// Devices of the nodes whose names match a pattern.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct NodeEntry {
    /// Pattern of host names, with the wildcards of a shell.
    pub(crate) name: String,
    /// Patterns of block devices, files and directories. A node gets the first free one.
    pub(crate) devices: Vec<String>,
    /// Overwrite devices that carry a file system, partitions or the like.
    pub(crate) destroy: bool,
}

impl Site {
    /// Returns this machine's address in the network for data, if the site has one.
    pub(crate) fn data_address(&self) -> Option<IpAddr> {
        self.data_network.and_then(Subnet::own_address)
    }

    /// Reads this machine's file. Without a file all settings have their defaults.
    ///
    /// # Errors
    /// If users other than root and the caller can write the file, or its content is invalid.
    pub(crate) fn read() -> anyhow::Result<Site> {
        let Some(path) = path() else { return Ok(Site::default()) };
        let data =
            std::fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let is_trusted = data.uid() == 0 || data.uid() == rustix::process::geteuid().as_raw();
        if !is_trusted || data.mode() & WRITABLE_BY_OTHERS != 0 {
            bail!(
                "{} is not trusted, because other users may write to it: `chown root` and `chmod \
                 644` it",
                path.display()
            );
        }
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Site::parse(&text).with_context(|| format!("cannot use {}", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Site> {
        let site: Site = toml::from_str(text)?;
        for entry in &site.node {
            glob::Pattern::new(&entry.name)
                .with_context(|| format!("node {:?} is not a valid pattern", entry.name))?;
            if let Some(bad) = entry.devices.iter().find(|pattern| !pattern.starts_with('/')) {
                bail!("node {:?}: the device {bad:?} is not an absolute path", entry.name);
            }
        }
        Ok(site)
    }

    /// Returns the entry of a machine, matched by its whole name or by the part before the first
    /// dot.
    pub(crate) fn node(&self, host: &str) -> Option<&NodeEntry> {
        let short = host.split('.').next().unwrap_or(host);
        self.node.iter().find(|entry| {
            glob::Pattern::new(&entry.name)
                .is_ok_and(|pattern| pattern.matches(host) || pattern.matches(short))
        })
    }

    /// Refuses users that are not among the owners.
    pub(crate) fn check_owner(&self, owner: &User) -> anyhow::Result<()> {
        let Some(owners) = &self.limits.owners else { return Ok(()) };
        let groups = owner.groups();
        let is_named = |word: &String| match word.strip_prefix('@') {
            Some(group) => groups.iter().any(|own| own == group),
            None => *word == owner.name,
        };
        if owner.uid == 0 || owners.iter().any(is_named) {
            return Ok(());
        }
        bail!("{} may not make file systems at this site: ask its administrators", owner.name)
    }

    /// Refuses backing files above the size limit.
    pub(crate) fn check_size(&self, bytes: u64) -> anyhow::Result<()> {
        match self.limits.size {
            Some(most) if bytes > most => bail!(
                "{} for each node is more than the {} of this site: choose a smaller --size",
                size::human(bytes),
                size::human(most)
            ),
            _ => Ok(()),
        }
    }
}

/// Returns this machine's name.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the path of the file that [`Site::read`] reads, if there is one.
pub(crate) fn path() -> Option<PathBuf> {
    let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
    named.or_else(|| Path::new(PATH).exists().then(|| PATH.into()))
}

/// Parses a size as the command line does.
fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(from)?;
    size::parse(&text).map(Some).map_err(serde::de::Error::custom)
}

/// Parses a fan-out as the command line does.
fn fan_out<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u16>, D::Error> {
    let width = u16::deserialize(from)?;
    if width < 2 {
        return Err(serde::de::Error::custom("a fan-out is at least 2"));
    }
    Ok(Some(width))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a site's file is parsed, the first matching entry counts, and errors name the bad
    /// part.
    #[test]
    fn sites_are_read() {
        let site = Site::parse(
            r#"
data-network = "10.1.0.0/16"
[defaults]
size = "512M"
[limits]
size = "1G"
owners = ["root", "@hpc"]
[[node]]
name = "gpu*"
devices = ["/dev/disk/by-id/nvme-*-part4"]
[[node]]
name = "*"
devices = ["/nvme"]
"#,
        )
        .unwrap();
        assert_eq!(
            site.node("gpu7.site.example").unwrap().devices[0],
            "/dev/disk/by-id/nvme-*-part4"
        );
        assert_eq!(site.node("cpu1").unwrap().devices, ["/nvme"]);
        assert_eq!(site.defaults.size, Some(512 << 20));
        assert!(site.check_size(1 << 30).is_ok() && site.check_size((1 << 30) + 1).is_err());
        let nobody = User { uid: 65534, gid: 65534, name: "nobody".into(), home: "/".into() };
        assert!(site.check_owner(&nobody).unwrap_err().to_string().contains("nobody"));
        for bad in [
            "colour = 1",
            "[defaults]\nsize = \"much\"",
            "data-network = \"10.0.0.0/40\"",
            "[[node]]\nname = \"a[\"",
            "[[node]]\nname = \"a\"\ndevices = [\"sda\"]",
        ] {
            assert!(Site::parse(bad).is_err(), "{bad}");
        }
    }
}
