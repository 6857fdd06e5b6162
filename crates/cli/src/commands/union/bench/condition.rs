//! The conditions to compare: how a container's directories are mounted.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;

use super::file_system::{FileSystem, run};
use super::files::BenchDirectory;

/// Longest wait for the background fill.
const FILL_WAIT_MAX: Duration = Duration::from_mins(15);
/// Pause between two looks at its progress.
const FILL_STEP: Duration = Duration::from_millis(2);
/// The pause grows when it is less than this fraction of the time waited so far. Hundreds of
/// containers that look all the time would leave no CPU time to the background fill, which has the
/// lowest priority. So a measured time is at most a tenth too long.
const FILL_STEPS: u32 = 10;

/// A way to mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::commands) enum Condition {
    /// The kernel's overlayfs with its default, fsync=auto
    Kernel,
    /// The kernel's overlayfs with the option volatile, which syncs nothing
    KernelVolatile,
    /// fuse-overlayfs
    FuseOverlayfs,
    /// Ours with chunk=64K,fill=keep: stores only the written chunks
    Keep,
    /// Ours with chunk=64K,fill=background: also completes files at once, without a limit of the
    /// rate
    Background,
    /// Ours with chunk=0: copies whole files
    Whole,
    /// The kernel's overlayfs on xfs with reflinks, on a loop device
    Reflink,
    /// Ours on such an xfs
    ReflinkOurs,
    /// No overlay: a btrfs snapshot for each container, on a loop device
    BtrfsSnapshot,
    /// No layers: only what the upper directory already contains, for example a snapshot
    #[value(hide = true)]
    Bind,
}

impl Condition {
    /// Returns the conditions that this machine supports.
    pub(super) fn available(directory: &BenchDirectory) -> anyhow::Result<Vec<Self>> {
        let mut all = Self::value_variants().to_vec();
        all.retain(|&condition| condition != Self::Bind);
        let systems = std::fs::read_to_string("/proc/filesystems")
            .context("cannot read /proc/filesystems")?;
        if !systems.lines().any(|line| line.ends_with("\toverlay")) {
            tracing::warn!(
                "the kernel has no overlayfs: nothing to compare with (modprobe overlay)"
            );
            all.retain(|condition| !condition.is_kernels());
        }
        all.retain(|condition| condition.file_system().is_available(&systems));
        let runs = Command::new("fuse-overlayfs")
            .arg("--version")
            .current_dir(directory.root())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if !runs.is_ok_and(|status| status.success()) {
            all.retain(|&condition| condition != Self::FuseOverlayfs);
        }
        Ok(all)
    }

    /// Returns the condition's name in tables and on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::KernelVolatile => "kernel-volatile",
            Self::FuseOverlayfs => "fuse-overlayfs",
            Self::Keep => "keep",
            Self::Background => "background",
            Self::Whole => "whole",
            Self::Reflink => "reflink",
            Self::ReflinkOurs => "reflink-ours",
            Self::BtrfsSnapshot => "btrfs-snapshot",
            Self::Bind => "bind",
        }
    }

    /// Returns the file system on which the condition works.
    pub(super) fn file_system(self) -> FileSystem {
        match self {
            Self::Reflink | Self::ReflinkOurs => FileSystem::Xfs,
            Self::BtrfsSnapshot => FileSystem::Btrfs,
            _ => FileSystem::Here,
        }
    }

    fn is_kernels(self) -> bool {
        matches!(self, Self::Kernel | Self::KernelVolatile | Self::Reflink)
    }

    fn is_ours(self) -> bool {
        matches!(self, Self::Keep | Self::Background | Self::Whole | Self::ReflinkOurs)
    }

    /// Mounts the directories below `at` in the caller's mount namespace.
    pub(super) fn mount(self, lower: &Path, at: &Path) -> anyhow::Result<()> {
        if self == Self::BtrfsSnapshot {
            let mount = at.join("mount");
            std::fs::remove_dir(&mount).context("cannot make room for a snapshot")?;
            let mut command = Command::new("btrfs");
            return run(command.args(["subvolume", "snapshot"]).arg(lower).arg(mount));
        }
        let (upper, work) = (at.join("upper"), at.join("work"));
        if self == Self::Bind {
            return run(Command::new("mount").arg("--bind").arg(upper).arg(at.join("mount")));
        }
        let layers = ::union::Options::layers_text(&[lower], Some((&upper, &work)));
        let mut options = layers;
        options.push(match self {
            Self::Kernel | Self::FuseOverlayfs | Self::Reflink | Self::ReflinkOurs => "",
            Self::KernelVolatile => ",volatile",
            Self::Keep => ",chunk=64K,fill=keep",
            Self::Background => ",chunk=64K,fill=background,fill_rate=0,fill_free=0",
            Self::Whole => ",chunk=0",
            Self::BtrfsSnapshot | Self::Bind => bail!("{} has no layers", self.name()),
        });
        let mut command = match self {
            _ if self.is_kernels() => {
                let mut command = Command::new("mount");
                command.args(["-t", "overlay", "overlay"]);
                command
            }
            Self::FuseOverlayfs => Command::new("fuse-overlayfs"),
            _ => {
                let program = std::env::current_exe().context("cannot find this program")?;
                let mut command = Command::new(program);
                command.arg("union");
                command
            }
        };
        run(command.arg("-o").arg(options).arg(at.join("mount")))
            .with_context(|| format!("cannot mount {}", self.name()))
    }

    /// Unmounts, if there is a mount.
    pub(super) fn unmount(self, at: &Path) -> anyhow::Result<()> {
        if self == Self::BtrfsSnapshot {
            return Ok(());
        }
        run(Command::new("umount").arg(at.join("mount")))
    }

    /// Waits until the written data is durable, as far as the mount supports a sync, and until
    /// files are complete, if the mount completes them.
    pub(in crate::commands) fn finish(self, at: &Path) -> anyhow::Result<()> {
        if !self.is_ours() {
            return Ok(());
        }
        ::union::sync_mount(&at.join("mount")).context("cannot sync the union")?;
        let mark = at.join("work/work/incompat/tsumugi");
        let begin = Instant::now();
        while self == Self::Background && mark.exists() {
            let waited = begin.elapsed();
            if waited > FILL_WAIT_MAX {
                bail!("files are not filled after {} s", FILL_WAIT_MAX.as_secs());
            }
            std::thread::sleep(FILL_STEP.max(waited / FILL_STEPS));
        }
        Ok(())
    }
}
