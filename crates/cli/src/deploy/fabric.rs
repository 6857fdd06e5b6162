//! Network namespaces for nodes on one machine, joined by a bridge that only they can see.
//!
//! The bridge is in the metadata service's namespace, and each node's link ends there, so nothing
//! appears in the machine's own network, and all links are removed with the namespaces. Files in
//! the job's directory keep the namespaces (as `ip netns` does with `/run/netns`, but without a
//! trace outside the job). `unshare` and `nsenter` create and enter them: the program itself never
//! changes its own namespace.

use super::stop::Stop;
use anyhow::{Context, bail};
use rustix::mount::{UnmountFlags, unmount};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Port of the metadata service in its namespace.
pub(crate) const META_PORT: u16 = 7000;
/// Port of each target in its namespace (the one assigned to NVMe over TCP).
pub(crate) const TARGET_PORT: u16 = 4420;
/// Maximum number of nodes on one machine.
pub(crate) const NODES_MAX: usize = 64;
/// Name of the metadata service's namespace.
const META: &str = "meta";

/// Returns the metadata service's address.
pub(crate) fn meta_address() -> Ipv4Addr {
    Ipv4Addr::new(10, 72, 255, 254)
}

/// Returns the address of node `index`, from 0.
pub(crate) fn node_address(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 72, 0, index as u8 + 1)
}

/// Returns the reason why this machine cannot have namespaces, if there is one.
pub(crate) fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root may make network namespaces whose mounts all can see");
    }
    for program in ["ip", "unshare", "nsenter"] {
        let found = Command::new(program).arg("-V").stdin(Stdio::null()).output();
        if found.is_err() {
            return Some("one of the programs ip (iproute2), unshare, nsenter is missing");
        }
    }
    None
}

/// Creates the namespaces of the metadata service and of these nodes below `directory`, and their
/// links. The job's state already lists their paths.
pub(crate) fn make(directory: &Path, nodes: &[String], stop: &Stop) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let meta = directory.join(META);
    for path in std::iter::once(meta.clone()).chain(nodes.iter().map(|name| directory.join(name))) {
        stop.check()?;
        File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let mut option = std::ffi::OsString::from("--net=");
        option.push(&path);
        run(Command::new("unshare").arg(option).arg("true"), "")?;
    }
    stop.check()?;
    run(&mut inside(&meta), &bridge_script(directory, nodes))?;
    for (index, name) in nodes.iter().enumerate() {
        let script = format!(
            "link set lo up\naddress add {}/16 dev eth0\nlink set eth0 up\n",
            node_address(index)
        );
        run(&mut inside(&directory.join(name)), &script)?;
    }
    Ok(())
}

fn bridge_script(directory: &Path, nodes: &[String]) -> String {
    let mut script = format!(
        "link set lo up\nlink add fabric type bridge\naddress add {}/16 dev fabric\n\
         link set fabric up\n",
        meta_address()
    );
    for (index, name) in nodes.iter().enumerate() {
        let namespace = directory.join(name);
        let _ = writeln!(
            script,
            "link add port{index} type veth peer name eth0 netns {}\n\
             link set port{index} master fabric up",
            namespace.display()
        );
    }
    script
}

/// Returns a command that runs `ip` in a namespace, with a script on its input.
fn inside(namespace: &Path) -> Command {
    let mut option = std::ffi::OsString::from("--net=");
    option.push(namespace);
    let mut command = Command::new("nsenter");
    command.arg(option).args(["ip", "-batch", "-"]);
    command
}

/// Runs a command to its end. The terminal's Ctrl-C does not reach it, so that steps stay whole.
fn run(command: &mut Command, input: &str) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().with_context(|| format!("cannot run {name}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ended early reports the reason on its standard error.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().with_context(|| format!("cannot wait for {name}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("cannot set up network namespaces: {name}: {}", said.trim());
    }
    Ok(())
}

/// Releases the namespaces below `directory`; they end with their last socket. Returns those that
/// could not be unmounted.
pub(crate) fn remove(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut left = Vec::new();
    for mount in super::mounts::below(directory)? {
        if mount.kind != "nsfs" || unmount(&mount.path, UnmountFlags::DETACH).is_err() {
            left.push(mount.path);
        }
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Goal: addresses are inside the private network and differ.
    #[test]
    fn addresses_differ() {
        let mut seen: HashSet<_> = (0..NODES_MAX).map(node_address).collect();
        seen.insert(meta_address());
        assert_eq!(seen.len(), NODES_MAX + 1);
        assert!(seen.iter().all(|address| address.octets()[..2] == [10, 72]));
    }

    /// Goal: namespaces are created, reach each other, leave the machine's own network alone, and
    /// are removed.
    #[test]
    fn namespaces_come_and_go() {
        if let Some(why) = obstacle() {
            println!("skipped: {why}");
            return;
        }
        let links = || std::fs::read_to_string("/proc/net/dev").unwrap().lines().count();
        let before = links();
        let base = tempfile::tempdir().unwrap();
        let names = ["a".to_string(), "b".to_string()];
        make(base.path(), &names, &Stop::default()).unwrap();
        let mut sniff = Command::new("nsenter");
        sniff.arg(format!("--net={}", base.path().join("a").display()));
        sniff.args(["ip", "route", "get", &node_address(1).to_string()]);
        let route = sniff.output().unwrap();
        assert!(String::from_utf8_lossy(&route.stdout).contains("dev eth0 src 10.72.0.1"));
        assert_eq!(links(), before);
        assert_eq!(super::super::mounts::below(base.path()).unwrap().len(), 3);
        assert!(remove(base.path()).unwrap().is_empty());
        assert!(super::super::mounts::below(base.path()).unwrap().is_empty());
    }
}
