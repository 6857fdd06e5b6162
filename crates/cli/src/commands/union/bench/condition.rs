//! What is compared: how a container's directories are mounted.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;

use super::files::Place;

/// Longest wait for what is filled in the background.
const FILL_WAIT_MAX: Duration = Duration::from_mins(15);
/// How often it is looked for.
const FILL_STEP: Duration = Duration::from_millis(2);

/// A way to mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Condition {
    /// The kernel's overlayfs as it is by default (fsync=auto)
    Kernel,
    /// The kernel's overlayfs that syncs nothing (volatile)
    KernelVolatile,
    /// fuse-overlayfs
    FuseOverlayfs,
    /// Ours with chunk=64K,fill=keep: stores what is written
    Keep,
    /// Ours with chunk=64K,fill=background: and makes it whole at once, at any rate
    Background,
    /// Ours with chunk=0: copies whole files
    Whole,
}

impl Condition {
    /// Those that can be had here.
    pub(super) fn available(place: &Place) -> anyhow::Result<Vec<Self>> {
        let mut all = Self::value_variants().to_vec();
        let systems = std::fs::read_to_string("/proc/filesystems")
            .context("cannot read /proc/filesystems")?;
        if !systems.lines().any(|line| line.ends_with("\toverlay")) {
            tracing::warn!(
                "the kernel has no overlayfs: nothing to compare with (modprobe overlay)"
            );
            all.retain(|condition| !matches!(condition, Self::Kernel | Self::KernelVolatile));
        }
        let runs = Command::new("fuse-overlayfs")
            .arg("--version")
            .current_dir(place.root())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if !runs.is_ok_and(|status| status.success()) {
            all.retain(|&condition| condition != Self::FuseOverlayfs);
        }
        Ok(all)
    }

    /// Its name in tables and on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::KernelVolatile => "kernel-volatile",
            Self::FuseOverlayfs => "fuse-overlayfs",
            Self::Keep => "keep",
            Self::Background => "background",
            Self::Whole => "whole",
        }
    }

    fn is_ours(self) -> bool {
        matches!(self, Self::Keep | Self::Background | Self::Whole)
    }

    /// Mounts the directories that are below `at` in the caller's mount namespace.
    pub(super) fn mount(self, lower: &Path, at: &Path) -> anyhow::Result<()> {
        let (upper, work) = (at.join("upper"), at.join("work"));
        let layers = ::union::Options::layers_text(&[lower], Some((&upper, &work)));
        let mut options = layers;
        options.push(match self {
            Self::Kernel | Self::FuseOverlayfs => "",
            Self::KernelVolatile => ",volatile",
            Self::Keep => ",chunk=64K,fill=keep",
            Self::Background => ",chunk=64K,fill=background,fill_rate=0,fill_free=0",
            Self::Whole => ",chunk=0",
        });
        let mut command = match self {
            Self::Kernel | Self::KernelVolatile => {
                let mut command = Command::new("mount");
                command.args(["-t", "overlay", "overlay"]);
                command
            }
            Self::FuseOverlayfs => Command::new("fuse-overlayfs"),
            Self::Keep | Self::Background | Self::Whole => {
                let program = std::env::current_exe().context("cannot find this program")?;
                let mut command = Command::new(program);
                command.arg("union");
                command
            }
        };
        command.arg("-o").arg(options).arg(at.join("mount")).stdout(Stdio::null());
        let status = command.status().context("cannot start what mounts")?;
        if !status.success() {
            bail!("mounting {} failed ({status})", self.name());
        }
        Ok(())
    }

    /// Waits until what was written is durable, as far as the mount can be asked, and whole, if it
    /// becomes that by itself.
    pub(super) fn finish(self, at: &Path) -> anyhow::Result<()> {
        if !self.is_ours() {
            return Ok(());
        }
        ::union::sync_mount(&at.join("mount")).context("cannot sync the union")?;
        let mark = at.join("work/work/incompat/tsumugi");
        let deadline = Instant::now() + FILL_WAIT_MAX;
        while self == Self::Background && mark.exists() {
            if Instant::now() > deadline {
                bail!("files are not filled after {} s", FILL_WAIT_MAX.as_secs());
            }
            std::thread::sleep(FILL_STEP);
        }
        Ok(())
    }
}
