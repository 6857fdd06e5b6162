//! A controller's reservation notifications: the log page, and the mask that suppresses them.

use nvme::reservation::{ReservationNotice, ReservationNotification};
use nvme::{Nsid, U32, U64};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of kept notifications; later ones are only counted.
const NOTICES_MAX: usize = 64;

/// The notifications of one controller.
#[derive(Debug, Default)]
pub(crate) struct NoticeLog {
    entries: VecDeque<(u64, Nsid, ReservationNotice)>,
    /// Number of notifications so far.
    count: u64,
    masks: BTreeMap<Nsid, u32>,
}

impl NoticeLog {
    /// Adds a notification, unless the host has masked it. Returns true if there is something to
    /// read.
    pub(crate) fn add(&mut self, nsid: Nsid, notice: ReservationNotice) -> bool {
        if self.mask(nsid) & notice.mask() != 0 {
            return false;
        }
        // 0 stands for an empty page.
        self.count = self.count.checked_add(1).unwrap_or(1);
        if self.entries.len() < NOTICES_MAX {
            self.entries.push_back((self.count, nsid, notice));
        }
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the mask of a namespace.
    pub(crate) fn mask(&self, nsid: Nsid) -> u32 {
        self.masks.get(&nsid).copied().unwrap_or_default()
    }

    pub(crate) fn set_mask(&mut self, nsid: Nsid, mask: u32) {
        if mask == 0 {
            self.masks.remove(&nsid);
        } else {
            self.masks.insert(nsid, mask);
        }
    }

    /// Returns the log page: the oldest notification, which is then removed unless `is_retained`.
    pub(crate) fn page(&mut self, is_retained: bool) -> ReservationNotification {
        let Some(&(count, nsid, notice)) = self.entries.front() else {
            return ReservationNotification::default();
        };
        let further = self.entries.len() - 1;
        if !is_retained {
            self.entries.pop_front();
        }
        ReservationNotification {
            lpc: U64::new(count),
            rnlpt: notice.to_u8(),
            nalp: u8::try_from(further).unwrap_or(u8::MAX),
            nsid: U32::new(nsid.get()),
            ..ReservationNotification::default()
        }
    }

    /// Forgets everything at a controller reset.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}
