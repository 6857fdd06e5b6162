//! Chooses a node's device among block devices, files and directories that match patterns. Devices
//! that are in use or carry data are refused.

use super::{Site, host_name};
use crate::deploy::plan::{DevicePlan, Plan};
use anyhow::{Context, bail};
use rustix::fs::{Mode, OFlags};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Paths of `wipefs` (util-linux). The PATH of ordinary users often lacks the last two.
const WIPEFS: [&str; 3] = ["wipefs", "/usr/sbin/wipefs", "/sbin/wipefs"];

/// The storage of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// A backing file that the node creates.
    File {
        /// The directory to create it in.
        directory: PathBuf,
        /// Its size in bytes.
        size: u64,
    },
    /// An existing block device or file. Tsumugi never removes it.
    Existing {
        /// Its path.
        path: PathBuf,
    },
    /// Memory.
    Memory {
        /// Its size in bytes.
        size: u64,
    },
}

/// Chooses a different device for each node of a machine.
///
/// # Errors
/// If no device is free; the error lists the reason for each.
pub(crate) fn choose(plan: &Plan, site: &Site) -> anyhow::Result<Vec<Chosen>> {
    let given = site.node(&host_name()).filter(|entry| !entry.devices.is_empty());
    let mut taken: Vec<PathBuf> = Vec::new();
    let mut chosen = Vec::new();
    for node in &plan.nodes {
        let one = match (&node.device, given) {
            (DevicePlan::Memory { size }, _) => Chosen::Memory { size: *size },
            (DevicePlan::Existing { patterns, size, destroy }, _) => {
                first_free(patterns, *size, *destroy, &taken)?
            }
            (DevicePlan::File { size }, Some(entry)) if plan.device_dir.is_none() => {
                first_free(&entry.devices, *size, entry.destroy, &taken)
                    .context("this site's devices")?
            }
            (DevicePlan::File { size }, _) => {
                Chosen::File { directory: plan.device_dir(), size: *size }
            }
        };
        match &one {
            Chosen::File { size, .. } => site.check_size(*size)?,
            Chosen::Existing { path } => taken.push(path.clone()),
            Chosen::Memory { .. } => {}
        }
        chosen.push(one);
    }
    Ok(chosen)
}

/// Returns the first usable path that matches one of the patterns.
pub(crate) fn first_free(
    patterns: &[String],
    size: u64,
    destroy: bool,
    taken: &[PathBuf],
) -> anyhow::Result<Chosen> {
    let mut reasons = Vec::new();
    for path in expand(patterns)? {
        match examine(&path, destroy, taken) {
            Ok(true) => return Ok(Chosen::File { directory: path, size }),
            // Names by-id are symbolic links: the node gets the device to which the link points
            // now.
            Ok(false) => return Ok(Chosen::Existing { path: std::fs::canonicalize(path)? }),
            Err(reason) => reasons.push(format!("{reason:#}")),
        }
    }
    match reasons.as_slice() {
        [] => bail!("no device matches {}", patterns.join(" or ")),
        [only] => bail!("{only}"),
        all => bail!("no device is free: {}", all.join("; ")),
    }
}

/// Returns the paths that match the patterns, in order. A path without wildcards matches itself.
fn expand(patterns: &[String]) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for pattern in patterns {
        if !pattern.contains(['*', '?', '[']) {
            paths.push(PathBuf::from(pattern));
            continue;
        }
        let found =
            glob::glob(pattern).with_context(|| format!("{pattern:?} is not a valid pattern"))?;
        paths.extend(found.flatten());
    }
    Ok(paths)
}

/// Checks that a path can be used. Returns whether it is a directory.
fn examine(path: &Path, destroy: bool, taken: &[PathBuf]) -> anyhow::Result<bool> {
    let shown = path.display();
    let data = std::fs::metadata(path).with_context(|| format!("cannot use the device {shown}"))?;
    if data.is_dir() {
        return Ok(true);
    }
    let kind = data.file_type();
    if !kind.is_block_device() && !kind.is_file() {
        bail!("{shown} is not a block device, file or directory");
    }
    let real = std::fs::canonicalize(path).with_context(|| format!("cannot examine {shown}"))?;
    if taken.contains(&real) {
        bail!("{shown} is in use by another node");
    }
    if kind.is_block_device() {
        refuse_used(&real).with_context(|| format!("cannot use the device {shown}"))?;
    }
    if destroy {
        return Ok(false);
    }
    match signatures(&real)
        .with_context(|| format!("cannot determine whether {shown} is empty"))?
        .as_slice()
    {
        [] => Ok(false),
        found => bail!(
            "{shown} is not empty, it carries {}: --destroy uses it all the same, and all on it is \
             lost",
            found.join(", ")
        ),
    }
}

/// Refuses a block device that the kernel or another process holds exclusively.
fn refuse_used(path: &Path) -> anyhow::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::EXCL;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(_) => Ok(()),
        Err(rustix::io::Errno::BUSY) => {
            bail!("it is in use: mounted, swap, part of RAID or LVM, or another job's (see lsblk)")
        }
        Err(error) => Err(std::io::Error::from(error).into()),
    }
}

/// Returns the signatures that `wipefs` finds: file systems, RAID members, partition tables.
fn signatures(path: &Path) -> anyhow::Result<Vec<String>> {
    for program in WIPEFS {
        let mut command = Command::new(program);
        command.args(["--no-act", "--noheadings", "--output", "TYPE", "--"]).arg(path);
        let output = match command.env("LC_ALL", "C").stdin(Stdio::null()).output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            output => output.with_context(|| format!("cannot run {program}"))?,
        };
        if !output.status.success() {
            bail!("wipefs: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let mut found: Vec<String> =
            String::from_utf8_lossy(&output.stdout).split_whitespace().map(String::from).collect();
        found.dedup();
        return Ok(found);
    }
    bail!("wipefs is missing: install util-linux, or use the device with --destroy")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a node gets the first free device; a device with a file system is refused without
    /// `destroy`; two nodes never share a device.
    #[test]
    fn the_first_free_device_is_used() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        // The magic number of ext4 lies in its superblock.
        let mut carrying = vec![0_u8; 1 << 20];
        carrying[1024 + 56..1024 + 58].copy_from_slice(&0xef53_u16.to_le_bytes());
        // Inodes, blocks, state: the fields that libblkid reads.
        carrying[1024..1028].copy_from_slice(&64_u32.to_le_bytes());
        carrying[1028..1032].copy_from_slice(&1024_u32.to_le_bytes());
        std::fs::write(at("a"), &carrying).unwrap();
        std::fs::write(at("b"), vec![0; 1 << 20]).unwrap();
        std::fs::create_dir(at("c")).unwrap();
        let all = [at("?").to_string_lossy().into_owned()];
        let b = Chosen::Existing { path: std::fs::canonicalize(at("b")).unwrap() };
        if signatures(&at("a")).unwrap().is_empty() {
            // For a wipefs that reads more of a superblock.
            carrying[..8].copy_from_slice(b"LUKS\xba\xbe\0\x01");
            std::fs::write(at("a"), &carrying).unwrap();
        }
        assert_eq!(first_free(&all, 1, false, &[]).unwrap(), b);
        let Chosen::Existing { path: taken } = b else { panic!("an existing one") };
        let c = Chosen::File { directory: at("c"), size: 1 };
        assert_eq!(first_free(&all, 1, false, &[taken]).unwrap(), c);
        let a = at("a").to_string_lossy().into_owned();
        let error = first_free(std::slice::from_ref(&a), 1, false, &[]).unwrap_err().to_string();
        assert!(error.contains("--destroy"), "{error}");
        assert!(matches!(first_free(&[a], 1, true, &[]).unwrap(), Chosen::Existing { .. }));
        let error = first_free(&["/nonexistent/*".into()], 1, false, &[]).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/*"), "{error}");
        assert!(first_free(&["/dev/null".into()], 1, true, &[]).is_err());
    }
}
