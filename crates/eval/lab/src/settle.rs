//! Lets what earlier runs have left reach storage before the next run begins.
//!
//! A write that returned may still be a dirty page, and the next run shares the device with it.
//! So the file systems that a run works on are synced, and its device has to be idle. What a device does
//! inside (a cache that it empties, blocks that it erases) cannot be seen or waited for: balanced orders
//! spread it evenly, and a carry-over that remains is looked for in the results.

use crate::guard::Numbers;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a device may stay busy.
const PATIENCE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(20);
/// Looks in a row at which it has to be idle.
const IDLE_LOOKS: u32 = 2;

/// Syncs the file systems of directories and waits for devices; gives whether all is quiet.
pub(crate) fn settle(directories: &[&Path], devices: &[Numbers]) -> bool {
    let is_synced = directories
        .iter()
        .all(|directory| File::open(directory).is_ok_and(|it| rustix::fs::syncfs(&it).is_ok()));
    is_synced && devices.iter().all(|device| is_idle_soon(*device))
}

/// Waits until a device has nothing under way, as far as the kernel counts it.
fn is_idle_soon((major, minor): Numbers) -> bool {
    let path = format!("/sys/dev/block/{major}:{minor}/inflight");
    let begun = Instant::now();
    let mut idle = 0;
    while idle < IDLE_LOOKS {
        // What has no counter cannot be waited for.
        let Ok(text) = fs::read_to_string(&path) else { return true };
        idle = if under_way(&text) == 0 { idle + 1 } else { 0 };
        if begun.elapsed() > PATIENCE {
            return false;
        }
        if idle < IDLE_LOOKS {
            std::thread::sleep(STEP);
        }
    }
    true
}

/// Requests that a line of `inflight` counts: reads and writes.
fn under_way(text: &str) -> u64 {
    text.split_whitespace().filter_map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: dirty pages of a file are gone when it is settled (a file on a disk; tmpfs has none to write),
    /// what cannot be synced is told, and a device without counters is not waited for.
    #[test]
    fn what_was_written_is_settled() {
        let scratch = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        fs::write(scratch.path().join("file"), vec![1_u8; 1 << 20]).unwrap();
        assert!(settle(&[scratch.path()], &[(0, 0)]));
        assert!(!settle(&[Path::new("/no/such/directory")], &[]));
        assert_eq!(under_way("       3        4\n"), 7);
        assert_eq!(under_way("0 0"), 0);
    }
}
