//! The kinds of file systems that conditions need.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// A kind of file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileSystem {
    /// The file system of the bench's directory.
    Here,
    /// xfs with reflinks, on a loop device.
    Xfs,
    /// btrfs, on a loop device.
    Btrfs,
}

impl FileSystem {
    /// Returns whether this machine supports it.
    pub(super) fn is_available(self, systems: &str) -> bool {
        let Some(program) = self.mkfs().first().copied() else { return true };
        let is_known = systems.lines().any(|line| line == format!("\t{}", self.name()));
        let version =
            Command::new(program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        is_known && version.is_ok_and(|status| status.success())
    }

    /// Returns its name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Here => "here",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// Returns the command that formats an image, without the image's name.
    pub(super) fn mkfs(self) -> &'static [&'static str] {
        match self {
            Self::Here => &[],
            Self::Xfs => &["mkfs.xfs", "-q", "-m", "reflink=1"],
            Self::Btrfs => &["mkfs.btrfs", "-q"],
        }
    }

    /// Creates the directory of the lower files, where possible as a subvolume for snapshots.
    pub(super) fn make_lower(self, path: &Path) -> anyhow::Result<()> {
        if self == Self::Btrfs {
            let mut command = Command::new("btrfs");
            return run(command.args(["subvolume", "create"]).arg(path));
        }
        std::fs::create_dir(path).with_context(|| format!("cannot make {}", path.display()))
    }
}

/// Runs a command that prints nothing on success.
pub(super) fn run(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.stdout(Stdio::null()).status();
    let status = status.with_context(|| format!("cannot run {name}"))?;
    if !status.success() {
        bail!("{name} failed ({status})");
    }
    Ok(())
}
