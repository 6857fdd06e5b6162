//! The lease of a job: its owner renews it from time to time as long as the job is wanted.
//!
//! A file in the job's directory has the end of the lease, as time since the machine's boot,
//! including suspended time. A job does not survive a reboot, so no other clock is needed.

use super::job::JobDir;
use super::place;
use anyhow::Context;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

const FILE: &str = "lease";
/// Digits of all leases, so that one fits in the place of another.
const DIGITS: usize = 20;
/// Longest content.
const BYTES_MAX: u64 = 64;

/// Makes the lease last for this time from now on. On a full file system, which any user may have
/// filled, it overwrites the earlier lease, whose bytes have their place: a reader that sees a part
/// of each sees no lease that has lapsed.
///
/// # Errors
/// If its file cannot be written.
pub(crate) fn renew(dir: &JobDir, lasts: Duration) -> anyhow::Result<()> {
    let until = reactor::time::boot_time().saturating_add(lasts.as_nanos() as u64);
    let text = format!("{until:0DIGITS$}");
    let (path, beside) = (dir.join(FILE), dir.join("lease.new"));
    let replaced = write(&beside, OFlags::CREATE | OFlags::TRUNC, &text)
        .and_then(|()| std::fs::rename(&beside, &path));
    let result = replaced.or_else(|error| {
        // The first lease has no place.
        write(&path, OFlags::empty(), &text).map_err(|_| error)
    });
    result.with_context(|| format!("cannot write {}", path.display()))
}

fn write(path: &Path, how: OFlags, text: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | how;
    let opened = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?;
    File::from(opened).write_all(text.as_bytes())
}

/// Returns the time left; zero if the lease has lapsed, `None` if it was never written.
///
/// # Errors
/// If its file cannot be read, or is not a lease.
pub(crate) fn left(dir: &JobDir) -> anyhow::Result<Option<Duration>> {
    let path = dir.join(FILE);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut text = String::new();
    let opened = rustix::fs::open(&path, flags, Mode::empty()).map_err(io::Error::from);
    match opened.and_then(|file| File::from(file).take(BYTES_MAX).read_to_string(&mut text)) {
        Ok(_) => {}
        Err(error) if place::is_absent(&error) => return Ok(None),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", path.display()));
        }
    }
    let until: u64 = text.parse().with_context(|| format!("{} is not a lease", path.display()))?;
    Ok(Some(Duration::from_nanos(until.saturating_sub(reactor::time::boot_time()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a lease lasts as long as its renewal says; a missing or invalid one has not lapsed.
    #[test]
    fn a_lease_lasts_as_long_as_renewed() {
        let base = tempfile::tempdir().unwrap();
        let dir = JobDir::new(Some("j"), Some(base.path())).unwrap();
        dir.create().unwrap();
        assert_eq!(left(&dir).unwrap(), None);
        renew(&dir, Duration::from_mins(1)).unwrap();
        let first = left(&dir).unwrap().unwrap();
        assert!(first > Duration::from_secs(50) && first <= Duration::from_mins(1), "{first:?}");
        renew(&dir, Duration::ZERO).unwrap();
        assert_eq!(left(&dir).unwrap(), Some(Duration::ZERO));
        std::fs::write(dir.join(FILE), "never").unwrap();
        assert!(left(&dir).is_err());
    }

    /// Goal: a full file system does not end a lease. Input: a lease beside which no other can be
    /// written. Expected: it is renewed in its place, for longer and for shorter times.
    #[test]
    fn a_lease_is_renewed_on_a_full_disk() {
        let base = tempfile::tempdir().unwrap();
        let dir = JobDir::new(Some("j"), Some(base.path())).unwrap();
        dir.create().unwrap();
        renew(&dir, Duration::ZERO).unwrap();
        std::fs::create_dir(dir.join("lease.new")).unwrap();
        for seconds in [60, 1_000_000_000, 30] {
            renew(&dir, Duration::from_secs(seconds)).unwrap();
            assert!(left(&dir).unwrap().unwrap() > Duration::from_secs(seconds - 10));
        }
    }
}
