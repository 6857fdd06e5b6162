//! Property Get and Set (base 3.1.4, 6.4, 6.5): a host enables, disables and shuts down its
//! controller.

use super::health::Thresholds;
use super::{Controller, Reply};
use nvme::fabrics::{PropertyGet, PropertySet};
use nvme::property::{Configuration, ControllerStatus, ShutdownStatus, offset};
use nvme::{Status, SubmissionQueueEntry};
use std::sync::atomic::Ordering;

/// CSTS.SHST: shutdown processing is occurring.
const SHUTDOWN_OCCURRING: u32 = 1;
/// CSTS.SHST: shutdown processing is complete.
const SHUTDOWN_COMPLETE: u32 = 2;

impl Controller {
    pub(super) fn property_get(&self, sqe: &SubmissionQueueEntry) -> Reply {
        let Ok(get) = PropertyGet::decode(sqe) else {
            return Status::INVALID_FIELD.do_not_retry().into();
        };
        match (get.offset, get.is_8_bytes) {
            (offset::CAP, true) => Reply::result(self.capabilities().0),
            (offset::VS, false) => Reply::result(u64::from(super::identify::VERSION.0)),
            (offset::CC, false) => Reply::result(u64::from(self.configuration.0)),
            (offset::CSTS, false) => Reply::result(u64::from(self.reported_status().0)),
            // CRWMT: ready with media within CAP.TO.
            (offset::CRTO, false) => Reply::result(self.capabilities().to()),
            // NSSR reads as 0 if subsystem reset is not supported (base 3.1.4.9).
            (offset::NSSR, false) => Reply::result(0),
            _ => Status::INVALID_FIELD.do_not_retry().into(),
        }
    }

    pub(super) fn property_set(&mut self, sqe: &SubmissionQueueEntry) -> Reply {
        let Ok(set) = PropertySet::decode(sqe) else {
            return Status::INVALID_FIELD.do_not_retry().into();
        };
        match (set.offset, set.is_8_bytes) {
            (offset::CC, false) => self.configure(Configuration((set.value & 0xffff_ffff) as u32)),
            _ => Status::INVALID_FIELD.do_not_retry().into(),
        }
    }

    /// Returns CSTS as the host sees it. Commands that I/O queue pairs began before a shutdown or
    /// reset may still be in flight. The shutdown completes, and RDY changes, only when nothing of
    /// them is in flight.
    fn reported_status(&self) -> ControllerStatus {
        if !self.association.has_ending_io_queues() {
            return self.status;
        }
        let is_resetting = !self.configuration.is_enabled();
        let status = self.status.with_rdy(u32::from(is_resetting));
        if self.status.shutdown() == ShutdownStatus::Complete {
            self.status.with_shst(SHUTDOWN_OCCURRING)
        } else {
            status
        }
    }

    /// Executes a write to CC (base 3.1.4.5).
    fn configure(&mut self, new: Configuration) -> Reply {
        let old = std::mem::replace(&mut self.configuration, new);
        if new.is_enabled() && !old.is_enabled() {
            let is_supported = new.iosqes() == 6
                && new.iocqes() == 4
                && new.mps() == 0
                && new.ams() == 0
                && new.css() == 0;
            // A controller that does not support the configuration enters the fatal state.
            self.status = self.status.with_cfs(u32::from(!is_supported));
            self.set_ready(is_supported);
        }
        if !new.is_enabled() && old.is_enabled() {
            self.reset();
        }
        if new.is_shutdown() && !old.is_shutdown() {
            // The back end already has all acknowledged writes, and every connection waits for the
            // end of its commands. So only the queue pairs have to be ended.
            self.set_open(false);
            self.association.drop_io_queues();
            self.status = self.status.with_shst(SHUTDOWN_COMPLETE);
        } else if !new.is_shutdown() && old.is_shutdown() {
            self.status = self.status.with_shst(0);
        }
        Reply::result(0)
    }

    fn set_ready(&mut self, is_ready: bool) {
        self.status = self.status.with_rdy(u32::from(is_ready));
        self.set_open(is_ready && !self.configuration.is_shutdown());
    }

    /// Opens or closes the controller for I/O queue pairs.
    fn set_open(&self, is_open: bool) {
        self.association.is_ready.store(is_open, Ordering::SeqCst);
    }

    /// Executes a controller level reset (base 3.7.2): deletes the I/O queue pairs and resets the
    /// features.
    fn reset(&mut self) {
        self.set_ready(false);
        self.status = self.status.with_shst(0).with_cfs(0);
        self.association.drop_io_queues();
        self.association.io_queues_granted.store(0, Ordering::SeqCst);
        self.events.reset();
        self.association.notices().reset();
        self.thresholds = Thresholds::default();
        (self.timestamp_offset_ms, self.is_timestamp_set) = (0, false);
    }
}
