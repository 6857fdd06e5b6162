//! The life file, which shows that a service lives: its process holds a lock on it.
//!
//! The file names the process, however it was started, so that `status` and `down` also find one
//! that a user restarted by hand. A dying process always releases the lock.

use super::place;
use super::process::Process;
use anyhow::{Context, bail};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to try for a lock. A process that looks at the lock holds it for a moment. A killed
/// process keeps it until the kernel has closed its files, which on a busy machine is later than
/// the process's disappearance.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);
/// Longest content.
const BYTES_MAX: u64 = 64 << 10;

/// A service's report about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Life {
    /// Its process.
    pub(crate) process: Process,
    /// Its address, once it listens.
    #[serde(default)]
    pub(crate) address: Option<SocketAddr>,
    /// The FUSE transport of its mount, once it has one: `device` or `io_uring`.
    #[serde(default)]
    pub(crate) transport: Option<String>,
    /// The reason for the transport.
    #[serde(default)]
    pub(crate) transport_reason: Option<String>,
    /// The engine of its reactors: `io_uring` or `epoll`.
    #[serde(default)]
    pub(crate) engine: Option<String>,
    /// The reason for the engine.
    #[serde(default)]
    pub(crate) engine_reason: Option<String>,
}

/// The file, held by this process until it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    path: PathBuf,
    file: File,
    life: Life,
}

impl Held {
    /// Creates the file, or takes over that of a service that has ended.
    ///
    /// # Errors
    /// If another process holds it; the error names the process.
    pub(crate) fn take(path: &Path) -> anyhow::Result<Held> {
        let open = || {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))
        };
        let deadline = Instant::now() + PATIENCE;
        let file = loop {
            let file = open().with_context(|| format!("cannot open {}", path.display()))?;
            let file = File::from(file);
            place::require_own(&file, path)?;
            match file.try_lock() {
                Ok(()) if is_at(&file, path) => break file,
                // Its holder has ended and removed it.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(PAUSE);
                }
                Err(TryLockError::WouldBlock) => bail!(
                    "it is already running{}: {} is locked",
                    read(&file).map_or_else(String::new, |life| {
                        format!(" as process {}", life.process.pid)
                    }),
                    path.display()
                ),
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("cannot lock {}", path.display()));
                }
            }
        };
        let process = Process::current().context("cannot find this process in /proc")?;
        let engine = reactor::engine::choice()?;
        let life = Life {
            process,
            address: None,
            transport: None,
            transport_reason: None,
            engine: Some(engine.kind.name().into()),
            engine_reason: Some(engine.reason.clone()),
        };
        let mut held = Held { path: path.into(), file, life };
        held.write()?;
        Ok(held)
    }

    /// Changes the report.
    pub(crate) fn update(&mut self, change: impl FnOnce(&mut Life)) -> anyhow::Result<()> {
        change(&mut self.life);
        self.write()
    }

    fn write(&mut self) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec(&self.life)?;
        text.push(b'\n');
        self.file
            .rewind()
            .and_then(|()| self.file.write_all(&text))
            .and_then(|()| self.file.set_len(text.len() as u64))
            .context("cannot write the file that shows the process")
    }
}

impl Drop for Held {
    /// A service that ends cleanly leaves no file, unless it has confined itself to other files.
    fn drop(&mut self) {
        if is_at(&self.file, &self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let there = std::fs::symlink_metadata(path).map(|data| (data.dev(), data.ino()));
    there.is_ok_and(|there| file.metadata().is_ok_and(|own| there == (own.dev(), own.ino())))
}

/// The holder of a life file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// No process.
    NoProcess,
    /// A process that has not reported yet, or is out of sight here; or whether there is one could
    /// not be found out.
    Unknown,
    /// This service.
    Service(Life),
}

impl Holder {
    /// Returns the holder of a file. One that cannot be looked at may have a holder.
    pub(crate) fn of(path: &Path) -> Holder {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            // A service opens no link.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Holder::NoProcess,
            Err(_) => return Holder::Unknown,
        };
        match file.try_lock_shared() {
            Ok(()) => return Holder::NoProcess,
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(_)) => return Holder::Unknown,
        }
        match read(&file) {
            Some(life) if life.process.is_alive() => Holder::Service(life),
            _ => Holder::Unknown,
        }
    }

    /// Returns the holder's report.
    pub(crate) fn report(self) -> Option<Life> {
        match self {
            Holder::Service(life) => Some(life),
            Holder::NoProcess | Holder::Unknown => None,
        }
    }

    /// Looks at a file until its holder is known, or has had time to end.
    pub(crate) fn settled(path: &Path) -> Holder {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let holder = Holder::of(path);
            if holder != Holder::Unknown || Instant::now() >= deadline {
                return holder;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns the holder's process.
    pub(crate) fn process(&self) -> Option<Process> {
        match self {
            Holder::Service(life) => Some(life.process),
            Holder::NoProcess | Holder::Unknown => None,
        }
    }
}

fn read(mut file: &File) -> Option<Life> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(BYTES_MAX).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the lock of a dead process, whose files the kernel has not closed yet, is not mistaken
    /// for a process that runs out of sight. Input: a lock with the name of no process, which is
    /// released after a while. Expected: the look waits for that.
    #[test]
    fn a_killed_process_keeps_its_lock_for_a_while() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("service.pid");
        let mut held = Held::take(&path).unwrap();
        held.update(|life| life.process.pid = i32::MAX).unwrap();
        assert_eq!(Holder::of(&path), Holder::Unknown);
        let end = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(held);
        });
        assert_eq!(Holder::settled(&path), Holder::NoProcess);
        end.join().unwrap();
    }

    /// Goal: a held file names its holder, a second holder is refused with the name of the first,
    /// and a file without a holder names none, whatever its content.
    #[test]
    fn a_file_has_one_holder() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("service.pid");
        assert_eq!(Holder::of(&path), Holder::NoProcess);
        let mut held = Held::take(&path).unwrap();
        held.update(|life| life.transport = Some("device".into())).unwrap();
        assert_eq!(Holder::of(&path), Holder::Service(held.life.clone()));
        assert_eq!(Holder::of(&path).process(), Some(Process::current().unwrap()));
        let refused = Held::take(&path).unwrap_err().to_string();
        assert!(refused.contains(&std::process::id().to_string()), "{refused}");
        drop(held);
        assert_eq!(Holder::of(&path), Holder::NoProcess);
        assert!(!path.exists(), "it goes with its holder");
        std::fs::write(&path, "rubbish that is longer than what is written over it".repeat(9))
            .unwrap();
        let held = Held::take(&path).unwrap();
        assert_eq!(Holder::of(&path), Holder::Service(held.life.clone()));
    }
}
