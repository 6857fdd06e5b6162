//! Processes that a job started: their identity, whether they live, and how to end them.
//!
//! A process is identified by its number *and* its start time, so that a recycled number is not
//! mistaken for it. Signals go through a pidfd that is checked after it was opened, so nothing can
//! slip in between.
//!
//! A look at a process may fail, for example when the machine has no free memory or descriptors.
//! That is no evidence of its end: what relies on the end, the removal of files above all, takes the
//! process for alive. A signal needs evidence of the contrary.

use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The environment variable that marks a job's processes, with the job's identifier as its value.
pub(crate) const MARK: &str = "TSUMUGI_JOB_ID";
/// The environment variable with the job's directory.
pub(crate) const DIRECTORY: &str = "TSUMUGI_JOB_DIR";
/// Bytes of a file of `/proc` to read at once.
const PIECE_BYTES: usize = 16 << 10;
/// Pause of a waiting loop.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Its number.
    pub(crate) pid: i32,
    /// Its start time, in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub(crate) start_ticks: u64,
}

impl Process {
    /// Returns the process that has this number now.
    pub(crate) fn of(pid: i32) -> io::Result<Process> {
        let (_, start_ticks) = stat(pid)?;
        Ok(Process { pid, start_ticks })
    }

    /// Returns this process.
    pub(crate) fn current() -> io::Result<Process> {
        Process::of(std::process::id().cast_signed())
    }

    /// Returns whether it may still be running. A zombie is not.
    pub(crate) fn is_alive(&self) -> bool {
        self.look() != Look::Ended
    }

    fn look(&self) -> Look {
        match stat(self.pid) {
            Ok((state, start)) if start == self.start_ticks && !matches!(state, 'Z' | 'X') => {
                Look::Runs
            }
            Ok(_) => Look::Ended,
            Err(error) if is_gone(&error) => Look::Ended,
            // This needs no descriptor and no memory.
            Err(_) => match Pid::from_raw(self.pid).map(test_kill_process) {
                Some(Err(rustix::io::Errno::SRCH)) | None => Look::Ended,
                Some(_) => Look::Unknown,
            },
        }
    }

    /// Sends a signal. Returns whether a process received it.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        self.open().is_some_and(|handle| pidfd_send_signal(handle, signal).is_ok())
    }

    /// Returns a handle that becomes readable at the end of the process; `None` if it has ended, or
    /// cannot be found.
    pub(super) fn open(&self) -> Option<OwnedFd> {
        let handle = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // Checked after opening: from here on the handle means this process and no later one.
        (self.look() == Look::Runs).then_some(handle)
    }
}

/// What a look at a process has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Runs,
    Ended,
    /// A process has this number; whether it is this one could not be read.
    Unknown,
}

/// Returns whether an error of `/proc` means that the process has ended.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Returns the state letter and the start time, from `/proc/PID/stat`.
fn stat(pid: i32) -> io::Result<(char, u64)> {
    let text = read_whole(Path::new(&format!("/proc/{pid}/stat")))?;
    parse_stat(&String::from_utf8_lossy(&text))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/PID/stat is not as known"))
}

/// Reads a file of `/proc`. Such files have no size, so `std::fs::read` reads them in small pieces:
/// dozens of calls for an environment.
fn read_whole(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = std::fs::File::open(path)?;
    let mut text = Vec::with_capacity(PIECE_BYTES);
    file.read_to_end(&mut text)?;
    Ok(text)
}

/// The command's name is in parentheses and may contain any characters, also parentheses and
/// spaces.
fn parse_stat(text: &str) -> Option<(char, u64)> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Returns all of this user's living processes that carry a job's mark, except this one.
///
/// # Errors
/// If a process could not be looked at: it may be one of them.
pub(crate) fn marked(id: &str) -> io::Result<Vec<Process>> {
    let mark = format!("{MARK}={id}");
    let own = std::process::id().cast_signed();
    let user = rustix::process::geteuid().as_raw();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if pid != own {
            found.extend(is_marked(pid, &entry.path(), user, mark.as_bytes())?);
        }
    }
    Ok(found)
}

/// Returns the process with this directory in `/proc` if it is the user's, lives and has the mark.
fn is_marked(pid: i32, path: &Path, user: u32, mark: &[u8]) -> io::Result<Option<Process>> {
    let looked = (|| {
        if std::fs::symlink_metadata(path)?.uid() != user {
            return Ok(None);
        }
        // The start time first: if the number is recycled in between, it no longer matches.
        let process = Process::of(pid)?;
        let environment = read_whole(&path.join("environ"))?;
        let has_mark = environment.split(|byte| *byte == 0).any(|variable| variable == mark);
        Ok((has_mark && process.is_alive()).then_some(process))
    })();
    match looked {
        // A process that this one may not look at is none that it has started.
        Err(error) if is_gone(&error) || error.kind() == io::ErrorKind::PermissionDenied => {
            Ok(None)
        }
        looked => looked,
    }
}

/// Returns the environments of all of this user's marked processes, without parts that are not
/// UTF-8.
pub(crate) fn environments() -> Vec<BTreeMap<String, String>> {
    let user = rustix::process::geteuid().as_raw();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let own = entries.flatten().filter(|e| e.metadata().is_ok_and(|data| data.uid() == user));
    let texts = own.filter_map(|entry| read_whole(&entry.path().join("environ")).ok());
    let parsed = texts.map(|text| {
        let text = String::from_utf8_lossy(&text).into_owned();
        let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.into(), value.into())).collect::<BTreeMap<_, _>>()
    });
    parsed.filter(|environment| environment.contains_key(MARK)).collect()
}

/// Waits until all processes have ended or the deadline has passed. Returns those that are left.
pub(crate) fn wait_for_end(processes: &[Process], deadline: Instant) -> Vec<Process> {
    loop {
        let left: Vec<_> = processes.iter().copied().filter(Process::is_alive).collect();
        if left.is_empty() || Instant::now() >= deadline {
            return left;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Identifies the PID namespace of this process, in which process numbers have their meaning. A
/// container usually has a namespace of its own. 0 if `/proc` does not show it.
pub(crate) fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |data| data.ino())
}

/// Identifies the machine's present boot; process start times count from it.
pub(crate) fn boot_id() -> String {
    let text = std::fs::read_to_string(Path::new("/proc/sys/kernel/random/boot_id"));
    text.unwrap_or_default().trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alone;
    use crate::deploy::files;
    use crate::deploy::job::JobDir;
    use crate::deploy::life::{Held, Holder};
    use crate::deploy::state::State;
    use std::process::Command;

    /// Goal: a command's name cannot fake other fields.
    #[test]
    fn stat_is_read_past_any_name() {
        let fields: Vec<_> = (4..22).map(|n| n.to_string()).collect();
        let text = format!("7 (a) R 1 (b c) S {} 4711 99 100", fields.join(" "));
        assert_eq!(parse_stat(&text), Some(('S', 4711)));
        assert_eq!(parse_stat("7 (a) S 1 2"), None);
        assert_eq!(parse_stat(""), None);
    }

    /// Goal: a recycled number is not mistaken for the process, and gets no signal.
    #[test]
    fn start_time_distinguishes_processes() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id().cast_signed()).unwrap();
        let other = Process { start_ticks: process.start_ticks + 1, ..process };
        assert!(process.is_alive() && !other.is_alive());
        assert!(!other.signal(Signal::KILL));
        assert!(process.is_alive());
        assert!(process.signal(Signal::KILL));
        let deadline = Instant::now() + Duration::from_secs(10);
        assert!(wait_for_end(&[process], deadline).is_empty(), "a zombie counts as ended");
        child.wait().unwrap();
        assert!(!process.is_alive());
    }

    /// Goal: a process is found by its mark alone, and by the complete mark.
    #[test]
    fn marks_are_found() {
        let id = format!("test-{}", std::process::id());
        let mut child = Command::new("sleep").arg("60").env(MARK, &id).spawn().unwrap();
        assert_eq!(marked(&id).unwrap(), vec![Process::of(child.id().cast_signed()).unwrap()]);
        assert!(marked(&id[..id.len() - 1]).unwrap().is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(marked(&id).unwrap().is_empty());
    }

    /// Goal: where a look fails, nothing is taken for dead or unused. Input: a process without free
    /// descriptors. Expected: a living process and a held file count as alive, a search for
    /// processes fails, and a signal is not sent to a process that may be another; a process that
    /// has ended counts as ended even then.
    #[test]
    fn failed_looks_prove_no_end() {
        alone::run("deploy::process::tests::looks_without_descriptors");
    }

    #[test]
    #[ignore = "a part of another test"]
    fn looks_without_descriptors() {
        let base = tempfile::tempdir().unwrap();
        let (life, device) = (base.path().join("a.pid"), base.path().join("device"));
        let _held = Held::take(&life).unwrap();
        std::fs::write(&device, "x").unwrap();
        let own = Process::current().unwrap();
        let mut child = Command::new("true").spawn().unwrap();
        let ended = Process::of(child.id().cast_signed()).unwrap();
        child.wait().unwrap();
        let looks = alone::without_descriptors(|| {
            let removed = files::remove_unused(&device).is_ok();
            (own.is_alive(), ended.is_alive(), own.open().is_some(), Holder::of(&life), removed)
        });
        assert_eq!(looks, (true, false, false, Holder::Unknown, false));
        assert!(alone::without_descriptors(|| marked("x")).is_err());
        assert!(device.exists());
        let dir = JobDir::new(Some("j"), Some(base.path())).unwrap();
        dir.create().unwrap();
        let mut state = State::new(&dir, "looks", false).unwrap();
        state.is_ready = true;
        state.up = Process { pid: i32::MAX, start_ticks: 0 };
        assert!(!state.is_seen_alive());
        assert!(alone::without_descriptors(|| state.is_seen_alive()));
    }
}
