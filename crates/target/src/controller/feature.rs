//! Get and Set Features (base 5.1.11, 5.1.25).

use super::{Controller, Reply};
use nvme::command::{Feature, FeatureSelect, SetFeatures};
use nvme::feature::{AsyncEventConfig, QueueCounts, fid};
use nvme::{Nsid, Status, SubmissionQueueEntry};
use ring::Buffer;
use ring::time::Instant;
use std::sync::atomic::Ordering;

/// Supported capabilities of a feature (base figure 193): changeable.
const CHANGEABLE: u64 = 1 << 2;
/// Supported capabilities of a feature: namespace specific.
const PER_NAMESPACE: u64 = 1 << 1;
/// The largest timestamp, 48 bits of milliseconds.
const TIMESTAMP_MAX: u64 = (1 << 48) - 1;

impl Controller {
    pub(super) fn get_features(&mut self, sqe: &SubmissionQueueEntry) -> Reply {
        let Ok(get) = Feature::decode(sqe) else {
            return Status::INVALID_FIELD.do_not_retry().into();
        };
        if get.select == FeatureSelect::SupportedCapabilities {
            return feature_capabilities(get.fid)
                .map_or(Status::INVALID_FIELD.do_not_retry().into(), Reply::result);
        }
        let is_current = get.select == FeatureSelect::Current;
        match get.fid {
            fid::NUMBER_OF_QUEUES => Reply::result(u64::from(self.queue_counts().to_dword())),
            fid::KEEP_ALIVE_TIMER if is_current => {
                Reply::result(self.keep_alive.as_millis() as u64)
            }
            fid::ASYNC_EVENT_CONFIG if is_current => Reply::result(u64::from(self.events.config.0)),
            fid::VOLATILE_WRITE_CACHE if self.association.subsystem.has_write_cache() => {
                Reply::result(1)
            }
            // Of the first two the default.
            fid::KEEP_ALIVE_TIMER
            | fid::ASYNC_EVENT_CONFIG
            | fid::ARBITRATION
            | fid::POWER_MANAGEMENT
            | fid::ERROR_RECOVERY
            | fid::WRITE_ATOMICITY => Reply::result(0),
            fid::TIMESTAMP => self.get_timestamp(sqe),
            fid::HOST_ID => self.get_host_id(sqe, get.dword11),
            fid::WRITE_PROTECTION => self.get_write_protection(sqe.namespace_id()),
            _ => Status::INVALID_FIELD.do_not_retry().into(),
        }
    }

    pub(super) fn set_features(
        &mut self,
        sqe: &SubmissionQueueEntry,
        data: &[u8],
        now: Instant,
    ) -> Reply {
        let set = SetFeatures::decode(sqe);
        if set.is_saved {
            return Status::FEATURE_NOT_SAVEABLE.do_not_retry().into();
        }
        match set.fid {
            fid::NUMBER_OF_QUEUES => self.set_number_of_queues(set.dword11),
            fid::KEEP_ALIVE_TIMER => match self.set_keep_alive(set.dword11, now) {
                Ok(()) => Reply::result(0),
                Err(status) => status.do_not_retry().into(),
            },
            fid::ASYNC_EVENT_CONFIG => {
                if set.dword11 & !self.events.supported() & !AsyncEventConfig::SMART_WARNINGS != 0 {
                    return Status::INVALID_FIELD.do_not_retry().into();
                }
                self.events.config = AsyncEventConfig(set.dword11);
                Reply::result(0)
            }
            // The cache cannot be turned off: saying so is better than pretending.
            fid::VOLATILE_WRITE_CACHE if self.association.subsystem.has_write_cache() => {
                let is_enabled = set.dword11 & 1 != 0;
                if is_enabled {
                    Reply::result(0)
                } else {
                    Status::FEATURE_NOT_CHANGEABLE.do_not_retry().into()
                }
            }
            fid::TIMESTAMP => self.set_timestamp(data),
            // Given by Connect, once and for all (base 5.1.25.1.28).
            fid::HOST_ID => Status::COMMAND_SEQUENCE_ERROR.do_not_retry().into(),
            fid::WRITE_PROTECTION => self.set_write_protection(sqe.namespace_id(), set.dword11),
            fid::ARBITRATION
            | fid::POWER_MANAGEMENT
            | fid::ERROR_RECOVERY
            | fid::WRITE_ATOMICITY => Status::FEATURE_NOT_CHANGEABLE.do_not_retry().into(),
            _ => Status::INVALID_FIELD.do_not_retry().into(),
        }
    }

    fn queue_counts(&self) -> QueueCounts {
        let granted = self.association.io_queues_granted.load(Ordering::SeqCst);
        let count = if granted == 0 { self.limits().io_queues_max } else { granted };
        QueueCounts::pairs(u32::from(count))
    }

    fn set_number_of_queues(&mut self, dword11: u32) -> Reply {
        if self.is_discovery() {
            return Status::INVALID_FIELD.do_not_retry().into();
        }
        let wanted = QueueCounts::from_dword(dword11);
        // 65 536 of either cannot be said (base 5.1.25.1.5).
        if wanted.submission > 0xffff || wanted.completion > 0xffff {
            return Status::INVALID_FIELD.do_not_retry().into();
        }
        if !self.association.io_queue_map().is_empty() {
            return Status::COMMAND_SEQUENCE_ERROR.do_not_retry().into();
        }
        let wanted = wanted.submission.min(wanted.completion).max(1);
        let granted = wanted.min(u32::from(self.limits().io_queues_max)) as u16;
        self.association.io_queues_granted.store(granted, Ordering::SeqCst);
        Reply::result(u64::from(self.queue_counts().to_dword()))
    }

    fn get_timestamp(&self, sqe: &SubmissionQueueEntry) -> Reply {
        // Origin: 0 the controller's own, 1 set by the host (base figure 402).
        const SET_BY_HOST: u8 = 1 << 1;
        let now_ms = (ring::time::system_time() / 1_000_000) as i64;
        let ms = (now_ms.saturating_add(self.timestamp_offset_ms)).max(0) as u64 & TIMESTAMP_MAX;
        let mut data = [0; 8];
        data[..6].copy_from_slice(&ms.to_le_bytes()[..6]);
        data[6] = if self.is_timestamp_set { SET_BY_HOST } else { 0 };
        Self::feature_data(sqe, &data)
    }

    fn set_timestamp(&mut self, data: &[u8]) -> Reply {
        let Some(stamp) = data.first_chunk::<8>() else {
            return Status::SGL_DATA_LENGTH_INVALID.do_not_retry().into();
        };
        let wanted_ms = (u64::from_le_bytes(*stamp) & TIMESTAMP_MAX) as i64;
        self.timestamp_offset_ms = wanted_ms - (ring::time::system_time() / 1_000_000) as i64;
        self.is_timestamp_set = true;
        Reply::result(0)
    }

    fn get_host_id(&self, sqe: &SubmissionQueueEntry, dword11: u32) -> Reply {
        // Over fabrics only the extended format of 16 bytes is allowed.
        if dword11 & 1 == 0 {
            return Status::INVALID_FIELD.do_not_retry().into();
        }
        Self::feature_data(sqe, &self.association.host.0)
    }

    fn feature_data(sqe: &SubmissionQueueEntry, data: &[u8]) -> Reply {
        match super::transfer_bytes(sqe) {
            Ok(bytes) if bytes as usize >= data.len() => Reply::data(Buffer::copy_from(data)),
            Ok(_) => Status::SGL_DATA_LENGTH_INVALID.do_not_retry().into(),
            Err(status) => status.into(),
        }
    }

    fn get_write_protection(&self, nsid: Nsid) -> Reply {
        match self.association.subsystem.namespace(nsid) {
            Some(namespace) => Reply::result(u64::from(namespace.is_write_protected())),
            None => Status::INVALID_NAMESPACE.do_not_retry().into(),
        }
    }

    fn set_write_protection(&mut self, nsid: Nsid, dword11: u32) -> Reply {
        let Some(namespace) = self.association.subsystem.namespace(nsid) else {
            return Status::INVALID_NAMESPACE.do_not_retry().into();
        };
        let is_protected = match dword11 & 7 {
            0 => false,
            1 => true,
            // Until a power cycle, or for good: not supported (NWPC bit 0 only).
            _ => return Status::INVALID_FIELD.do_not_retry().into(),
        };
        if !namespace.set_write_protected(is_protected) {
            return Status::FEATURE_NOT_CHANGEABLE.do_not_retry().into();
        }
        self.association.subsystem.note_changed(nsid);
        self.target.tell_controllers();
        Reply::result(0)
    }
}

fn feature_capabilities(fid: u8) -> Option<u64> {
    Some(match fid {
        fid::NUMBER_OF_QUEUES
        | fid::KEEP_ALIVE_TIMER
        | fid::ASYNC_EVENT_CONFIG
        | fid::TIMESTAMP => CHANGEABLE,
        fid::WRITE_PROTECTION => CHANGEABLE | PER_NAMESPACE,
        fid::VOLATILE_WRITE_CACHE
        | fid::HOST_ID
        | fid::ARBITRATION
        | fid::POWER_MANAGEMENT
        | fid::ERROR_RECOVERY
        | fid::WRITE_ATOMICITY => 0,
        _ => return None,
    })
}
