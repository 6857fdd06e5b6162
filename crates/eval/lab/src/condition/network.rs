//! A network for one target and one host: two namespaces, joined by a veth pair that only they see.
//!
//! The namespaces are kept by files in the experiment's directory and end when those are unmounted.

use base::Error;
use loads::process;
use std::path::{Path, PathBuf};

/// The target's address in its namespace.
pub(super) const TARGET_ADDRESS: &str = "10.73.0.1";
const HOST_ADDRESS: &str = "10.73.0.2";

/// The two namespaces.
#[derive(Clone, Debug)]
pub(super) struct Network {
    /// The target's.
    pub(super) target: PathBuf,
    /// The host's.
    pub(super) host: PathBuf,
}

impl Network {
    /// Makes them below `directory`, or says why that cannot be.
    pub(super) fn make(directory: &Path) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root may make network namespaces".into());
        }
        let network =
            Self { target: directory.join("net-target"), host: directory.join("net-host") };
        network.build().map_err(|error| error.to_string())?;
        Ok(network)
    }

    fn build(&self) -> Result<(), Error> {
        for path in [&self.target, &self.host] {
            std::fs::File::create(path).map_err(Error::io("cannot make", path))?;
            process::output("unshare", &[&format!("--net={}", path.display()), "true"])?;
        }
        let host = self.host.display().to_string();
        let link = format!("link add eth0 type veth peer name eth0 netns {host}");
        ip(&self.target, &link)?;
        for (path, address) in [(&self.target, TARGET_ADDRESS), (&self.host, HOST_ADDRESS)] {
            ip(path, "link set lo up")?;
            ip(path, &format!("address add {address}/24 dev eth0"))?;
            ip(path, "link set eth0 up")?;
        }
        Ok(())
    }
}

fn ip(namespace: &Path, line: &str) -> Result<(), Error> {
    let option = format!("--net={}", namespace.display());
    let mut words = vec![option.as_str(), "ip"];
    words.extend(line.split(' '));
    process::output("nsenter", &words).map(drop)
}
