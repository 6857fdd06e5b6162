//! A check of all records while the service runs.
//!
//! The check reads a snapshot of the store, on a thread of its own with the lowest priority. The
//! snapshot has all records of a commit or none, so changes by concurrent calls cause no findings.

use super::Shared;
use crate::check::Finding;
use crate::check::store::{Checked, check_records};
use protocol::admin::{Answer, Contradiction};
use std::rc::Rc;

/// Most data of a running pool that is checked: the check keeps a count of four bytes for each live
/// block.
const LIVE_MAX_BYTES: u64 = 1 << 40;

/// Most inodes: the check keeps them all, in some hundred bytes each.
const INODES_MAX: u64 = 4_000_000;

/// Most findings of one answer.
const FOUND_MAX: usize = 1000;

/// Most bytes of findings in one answer: they must fit a frame.
const FOUND_BYTES_MAX: usize = 512 << 10;

impl Shared {
    /// Checks all records, unless a check is under way.
    pub(super) async fn check(self: &Rc<Self>) -> Answer {
        if self.is_checking.replace(true) {
            return Answer::Refused("a check is under way: try again when it has ended".into());
        }
        let checked = self.check_snapshot().await;
        self.is_checking.set(false);
        match checked {
            Ok(checked) => answer(&checked),
            Err(reason) => Answer::Refused(reason),
        }
    }

    async fn check_snapshot(&self) -> Result<Checked, String> {
        let used = self.core.borrow().pool_use();
        let live_bytes = used.total_bytes.saturating_sub(used.free_bytes);
        if live_bytes > LIVE_MAX_BYTES || used.inodes > INODES_MAX {
            return Err(format!(
                "{live_bytes} bytes in {} files are too much for a check in the memory of a running service: \
                 check the store once the service has stopped, or use `tsumugi scrub` for the data alone",
                used.inodes
            ));
        }
        let snapshot = self.core.borrow().snapshot().map_err(|error| error.to_string())?;
        let snapshot = snapshot.ok_or("the store gives no look at one moment of it")?;
        let check = move || async move {
            // On failure the thread competes like any other.
            let _ = reactor::thread::yield_to_all();
            check_records(snapshot)
        };
        let thread = reactor::thread::spawn("check", &reactor::Config::default(), check);
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        match thread.await {
            Ok(checked) => checked.map_err(|error| error.to_string()),
            Err(_) => Err("the check has failed".into()),
        }
    }
}

fn answer(checked: &Checked) -> Answer {
    let mut bytes = 0;
    let fits = |finding: &&Finding| {
        bytes += finding.what.len() + finding.path.as_ref().map_or(0, String::len) + 64;
        bytes <= FOUND_BYTES_MAX
    };
    let found = checked.findings.iter().take(FOUND_MAX).take_while(fits).map(contradiction);
    Answer::Checked {
        inodes: checked.inodes,
        count: checked.findings.len() as u64,
        found: found.collect(),
    }
}

fn contradiction(finding: &Finding) -> Contradiction {
    let Finding { area, inode, path, what, .. } = finding;
    Contradiction {
        area: area.name().into(),
        inode: *inode,
        path: path.clone(),
        what: what.clone(),
    }
}
