//! Get and Set Features (base 5.1.11, 5.1.25).

use super::health::Thresholds;
use super::{Completion, Controller, Reply};
use crate::queue_pair::Tag;
use nvme::command::{Feature, FeatureSelect, SetFeatures};
use nvme::feature::{AsyncEventConfig, QueueCounts, fid};
use nvme::{HostId, Nsid, Status, SubmissionQueueEntry};
use reactor::Buffer;
use reactor::time::Instant;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The largest timestamp, 48 bits of milliseconds.
const TIMESTAMP_MAX: u64 = (1 << 48) - 1;
/// Power Management: bits 4:0 of dword 11 select the power state.
const POWER_STATE: u32 = 0x1f;
/// Features of a discovery controller.
const DISCOVERY_FEATURES: [u8; 3] = [fid::ASYNC_EVENT_CONFIG, fid::KEEP_ALIVE_TIMER, fid::HOST_ID];

/// Kinds of features. No feature is saveable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FeatureKind {
    /// The feature has one fixed value.
    Fixed,
    /// The host may change the feature for the controller.
    Changeable,
    /// The host may change the feature for each namespace.
    PerNamespace,
}

impl FeatureKind {
    /// Returns the supported capabilities (base figure 193).
    fn capabilities(self) -> u64 {
        const CHANGEABLE: u64 = 1 << 2;
        const PER_NAMESPACE: u64 = 1 << 1;
        match self {
            Self::Fixed => 0,
            Self::Changeable => CHANGEABLE,
            Self::PerNamespace => CHANGEABLE | PER_NAMESPACE,
        }
    }

    fn of(fid: u8) -> Option<Self> {
        Some(match fid {
            fid::NUMBER_OF_QUEUES
            | fid::KEEP_ALIVE_TIMER
            | fid::ASYNC_EVENT_CONFIG
            | fid::TEMPERATURE_THRESHOLD
            | fid::TIMESTAMP => Self::Changeable,
            fid::WRITE_PROTECTION
            | fid::RESERVATION_NOTIFICATION_MASK
            | fid::RESERVATION_PERSISTENCE => Self::PerNamespace,
            fid::VOLATILE_WRITE_CACHE
            | fid::HOST_ID
            | fid::ARBITRATION
            | fid::POWER_MANAGEMENT
            | fid::ERROR_RECOVERY
            | fid::WRITE_ATOMICITY => Self::Fixed,
            _ => return None,
        })
    }
}

impl Controller {
    /// Returns the feature's kind, if this controller has the feature.
    pub(super) fn feature(&self, fid: u8) -> Option<FeatureKind> {
        let has = if self.is_discovery() {
            DISCOVERY_FEATURES.contains(&fid)
        } else {
            let subsystem = &self.association.subsystem;
            match fid {
                fid::VOLATILE_WRITE_CACHE => subsystem.has_write_cache(),
                fid::RESERVATION_NOTIFICATION_MASK | fid::RESERVATION_PERSISTENCE => {
                    subsystem.has_reservations()
                }
                _ => true,
            }
        };
        FeatureKind::of(fid).filter(|_| has)
    }

    pub(super) fn get_features(&mut self, sqe: &SubmissionQueueEntry) -> Reply {
        let (Ok(get), nsid) = (Feature::decode(sqe), sqe.namespace_id()) else {
            return Status::INVALID_FIELD.do_not_retry().into();
        };
        let Some(kind) = self.feature(get.fid) else {
            return Status::INVALID_FIELD.do_not_retry().into();
        };
        // No feature is saveable, so the saved value is the default (base 4.4).
        let is_current = match get.select {
            FeatureSelect::SupportedCapabilities => return Reply::result(kind.capabilities()),
            FeatureSelect::Current => true,
            FeatureSelect::Default | FeatureSelect::Saved => false,
        };
        match get.fid {
            fid::NUMBER_OF_QUEUES => {
                Reply::result(u64::from(self.queue_counts(is_current).to_dword()))
            }
            fid::KEEP_ALIVE_TIMER if is_current => {
                Reply::result(self.keep_alive.as_millis() as u64)
            }
            fid::ASYNC_EVENT_CONFIG if is_current => Reply::result(u64::from(self.events.config.0)),
            fid::TEMPERATURE_THRESHOLD => {
                let thresholds = if is_current { self.thresholds } else { Thresholds::default() };
                match thresholds.get(get.dword11) {
                    Ok(kelvins) => Reply::result(u64::from(kelvins)),
                    Err(status) => status.do_not_retry().into(),
                }
            }
            fid::TIMESTAMP => self.get_timestamp(sqe, is_current),
            fid::HOST_ID => self.get_host_id(sqe, get.dword11, is_current),
            fid::WRITE_PROTECTION => self.get_write_protection(nsid, is_current),
            fid::RESERVATION_NOTIFICATION_MASK => self.get_notification_mask(nsid, is_current),
            fid::RESERVATION_PERSISTENCE => self.get_persistence(nsid, is_current),
            fid => Reply::result(u64::from(fixed_value(fid))),
        }
    }

    pub(super) fn set_features(
        &mut self,
        tag: Tag,
        sqe: &SubmissionQueueEntry,
        data: &[u8],
        now: Instant,
    ) -> Reply {
        match self.check_set_features(sqe) {
            Ok(set) if set.fid == fid::RESERVATION_PERSISTENCE => {
                self.set_persistence(tag, sqe.namespace_id(), set.dword11)
            }
            Ok(set) if set.fid == fid::WRITE_PROTECTION => {
                self.set_write_protection(tag, sqe.namespace_id(), set.dword11)
            }
            Ok(set) => self.set_feature(&set, sqe.namespace_id(), data, now),
            Err(status) => status.do_not_retry().into(),
        }
    }

    fn check_set_features(&self, sqe: &SubmissionQueueEntry) -> Result<SetFeatures, Status> {
        let (set, nsid) = (SetFeatures::decode(sqe), sqe.namespace_id());
        let kind = self.feature(set.fid).ok_or(Status::INVALID_FIELD)?;
        if set.is_saved {
            return Err(Status::FEATURE_NOT_SAVEABLE);
        }
        let is_for_namespace = nsid != Nsid(0) && nsid != Nsid::BROADCAST;
        if is_for_namespace && kind != FeatureKind::PerNamespace {
            return Err(Status::FEATURE_NOT_PER_NAMESPACE);
        }
        Ok(set)
    }

    fn set_feature(&mut self, set: &SetFeatures, nsid: Nsid, data: &[u8], now: Instant) -> Reply {
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
            fid::TEMPERATURE_THRESHOLD => match self.thresholds.set(set.dword11) {
                Ok(()) => {
                    self.events.note_temperature(self.thresholds.is_warning());
                    Reply::result(0)
                }
                Err(status) => status.do_not_retry().into(),
            },
            fid::TIMESTAMP => self.set_timestamp(data),
            // Connect sets it once (base 5.1.25.1.28).
            fid::HOST_ID => Status::COMMAND_SEQUENCE_ERROR.do_not_retry().into(),
            fid::RESERVATION_NOTIFICATION_MASK => self.set_notification_mask(nsid, set.dword11),
            // There is one power state; bits 7:5 only describe the coming load.
            fid::POWER_MANAGEMENT => match set.dword11 & POWER_STATE {
                0 => Reply::result(0),
                _ => Status::INVALID_FIELD.do_not_retry().into(),
            },
            // For example, the cache cannot be turned off. Refusing is better than pretending.
            fid if set.dword11 == fixed_value(fid) => Reply::result(0),
            _ => Status::FEATURE_NOT_CHANGEABLE.do_not_retry().into(),
        }
    }

    fn queue_counts(&self, is_current: bool) -> QueueCounts {
        let granted = self.association.io_queues_granted.load(Ordering::SeqCst);
        let is_granted = is_current && granted != 0;
        let count = if is_granted { granted } else { self.limits().io_queues_max };
        QueueCounts::pairs(u32::from(count))
    }

    fn set_number_of_queues(&mut self, dword11: u32) -> Reply {
        let wanted = QueueCounts::from_dword(dword11);
        // The fields cannot express 65 536 queues (base 5.1.25.1.5).
        if wanted.submission > 0xffff || wanted.completion > 0xffff {
            return Status::INVALID_FIELD.do_not_retry().into();
        }
        if !self.association.io_queue_map().is_empty() {
            return Status::COMMAND_SEQUENCE_ERROR.do_not_retry().into();
        }
        let wanted = wanted.submission.min(wanted.completion).max(1);
        let granted = wanted.min(u32::from(self.limits().io_queues_max)) as u16;
        self.association.io_queues_granted.store(granted, Ordering::SeqCst);
        Reply::result(u64::from(self.queue_counts(true).to_dword()))
    }

    fn get_timestamp(&self, sqe: &SubmissionQueueEntry, is_current: bool) -> Reply {
        // Origin: 0 is the controller's own, 1 is set by the host (base figure 402).
        const SET_BY_HOST: u8 = 1 << 1;
        if !is_current {
            return Self::feature_data(sqe, &[0; 8]);
        }
        let now_ms = (reactor::time::system_time() / 1_000_000) as i64;
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
        self.timestamp_offset_ms = wanted_ms - (reactor::time::system_time() / 1_000_000) as i64;
        self.is_timestamp_set = true;
        Reply::result(0)
    }

    fn get_host_id(&self, sqe: &SubmissionQueueEntry, dword11: u32, is_current: bool) -> Reply {
        // Over fabrics only the extended format of 16 bytes is allowed.
        if dword11 & 1 == 0 {
            return Status::INVALID_FIELD.do_not_retry().into();
        }
        let host = if is_current { self.association.host } else { HostId::default() };
        Self::feature_data(sqe, &host.0)
    }

    fn feature_data(sqe: &SubmissionQueueEntry, data: &[u8]) -> Reply {
        match super::transfer_bytes(sqe) {
            Ok(bytes) if bytes as usize >= data.len() => Reply::data(Buffer::copy_from(data)),
            Ok(_) => Status::SGL_DATA_LENGTH_INVALID.do_not_retry().into(),
            Err(status) => status.into(),
        }
    }

    fn get_write_protection(&self, nsid: Nsid, is_current: bool) -> Reply {
        match self.association.namespace(nsid) {
            Some(namespace) if is_current => {
                Reply::result(u64::from(namespace.is_write_protected()))
            }
            Some(namespace) => Reply::result(u64::from(namespace.is_read_only())),
            None => Status::INVALID_NAMESPACE.do_not_retry().into(),
        }
    }

    /// Protects a namespace, after which all that was written to it is durable (base, "Namespace
    /// Write Protection"), or unprotects it.
    fn set_write_protection(&mut self, tag: Tag, nsid: Nsid, dword11: u32) -> Reply {
        let Some(namespace) = self.association.namespace(nsid) else {
            return Status::INVALID_NAMESPACE.do_not_retry().into();
        };
        let is_protected = match dword11 & 7 {
            0 => false,
            1 => true,
            // Write protection until a power cycle or permanently is not supported (NWPC bit 0
            // only).
            _ => return Status::INVALID_FIELD.do_not_retry().into(),
        };
        let was_protected = namespace.is_write_protected();
        if !namespace.set_write_protected(is_protected) {
            return Status::FEATURE_NOT_CHANGEABLE.do_not_retry().into();
        }
        self.association.subsystem.note_changed(nsid);
        self.target.notify_controllers();
        if !is_protected || was_protected || !namespace.has_write_cache() {
            return Reply::result(0);
        }
        let (later, association) = (self.later.clone(), Arc::clone(&self.association));
        let target = Arc::clone(&self.target);
        reactor::spawn(async move {
            let mut status = Status::SUCCESS;
            if let Err(error) = namespace.backing().attach().flush().await {
                tracing::error!(%nsid, %error, "it is not write protected: the flush before it failed");
                status = Status::INTERNAL_ERROR;
                namespace.set_write_protected(false);
                association.subsystem.note_changed(nsid);
                target.notify_controllers();
            }
            later.ended().push_back(Completion { tag, status, result: 0 });
            association.look_for_events();
        });
        Reply::Held
    }
}

/// Returns the value of a fixed feature, and the default of other features.
fn fixed_value(fid: u8) -> u32 {
    /// Arbitration burst: no limit.
    const NO_BURST_LIMIT: u32 = 7;
    match fid {
        fid::ARBITRATION => NO_BURST_LIMIT,
        fid::VOLATILE_WRITE_CACHE => 1,
        _ => 0,
    }
}
