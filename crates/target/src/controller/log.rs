//! Get Log Page (base 5.1.12).

use super::feature::FeatureKind;
use super::{Controller, ERROR_ENTRIES_MAX, Reply};
use nvme::command::GetLogPage;
use nvme::identify::NamespaceList;
use nvme::log_page::{
    CommandEffects, ErrorEntry, FeatureEffects, FirmwareSlots, SupportedPages, lid,
};
use nvme::opcode::{AdminOpcode, NvmOpcode};
use nvme::{Nsid, Status, SubmissionQueueEntry, U32};
use reactor::Buffer;

const IO_PAGES: &[u8] = &[
    lid::SUPPORTED_PAGES,
    lid::ERROR,
    lid::SMART_HEALTH,
    lid::FIRMWARE_SLOTS,
    lid::CHANGED_NAMESPACES,
    lid::COMMAND_EFFECTS,
    lid::FEATURE_EFFECTS,
    lid::MANAGEMENT_EFFECTS,
];
/// Log pages of a subsystem whose namespaces can be reserved.
const RESERVATION_PAGES: &[u8] = &[lid::RESERVATION_NOTIFICATION];
/// Log page of a controller that reports asymmetric access.
const ANA_PAGES: &[u8] = &[lid::ANA];
/// Return Groups Only (base figure 216): bit 0 of the log specific parameter.
const GROUPS_ONLY: u8 = 1;
const DISCOVERY_PAGES: &[u8] =
    &[lid::SUPPORTED_PAGES, lid::ERROR, lid::FEATURE_EFFECTS, lid::DISCOVERY];

impl Controller {
    pub(super) fn get_log_page(&mut self, sqe: &SubmissionQueueEntry) -> Reply {
        let get = GetLogPage::decode(sqe);
        let bytes = get.data_bytes();
        match super::transfer_bytes(sqe) {
            Ok(room) if u64::from(room) >= bytes => {}
            Ok(_) => return Status::SGL_DATA_LENGTH_INVALID.do_not_retry().into(),
            Err(status) => return status.into(),
        }
        if bytes > u64::from(self.limits().transfer_bytes_max)
            || get.is_offset_index
            || !get.offset.is_multiple_of(4)
        {
            return Status::INVALID_FIELD.do_not_retry().into();
        }
        let page = match self.log_page(&get, sqe.namespace_id()) {
            Ok(page) => page,
            Err(status) => return status.do_not_retry().into(),
        };
        // Zeros follow the end of the page (base 5.1.12: undefined).
        let Some(rest) = usize::try_from(get.offset).ok().and_then(|offset| page.get(offset..))
        else {
            return Status::INVALID_FIELD.do_not_retry().into();
        };
        let mut data = Buffer::zeroed(bytes as usize);
        let here = rest.len().min(data.len());
        data[..here].copy_from_slice(&rest[..here]);
        Reply::data(data)
    }

    fn log_page(&mut self, get: &GetLogPage, nsid: Nsid) -> Result<Vec<u8>, Status> {
        let has_reservations = self.association.subsystem.has_reservations();
        let mut pages = if self.is_discovery() { DISCOVERY_PAGES } else { IO_PAGES }.to_vec();
        if has_reservations && !self.is_discovery() {
            pages.extend_from_slice(RESERVATION_PAGES);
        }
        if self.association.subsystem.ana().is_some() && !self.is_discovery() {
            pages.extend_from_slice(ANA_PAGES);
        }
        if !pages.contains(&get.lid) {
            return Err(Status::INVALID_LOG_PAGE);
        }
        Ok(match get.lid {
            lid::SUPPORTED_PAGES => SupportedPages::new(&pages).bytes().to_vec(),
            lid::ERROR => self.error_page(),
            lid::SMART_HEALTH => {
                let page = self.health_page(nsid)?;
                self.events.note_health_read(get.is_event_retained);
                page
            }
            lid::FIRMWARE_SLOTS => {
                let mut revision = [b' '; 8];
                for (slot, byte) in revision.iter_mut().zip(super::identify::FIRMWARE.bytes()) {
                    *slot = byte;
                }
                FirmwareSlots::single(revision).bytes().to_vec()
            }
            lid::CHANGED_NAMESPACES => self.changed_page(get.is_event_retained),
            lid::ANA => self.ana_page(get)?,
            lid::COMMAND_EFFECTS => {
                let can_mark = self.association.subsystem.allows_write_uncorrectable();
                command_effects(has_reservations, can_mark).bytes().to_vec()
            }
            lid::RESERVATION_NOTIFICATION => {
                self.events.note_reservation_read(get.is_event_retained);
                self.association.notices().page(get.is_event_retained).bytes().to_vec()
            }
            lid::FEATURE_EFFECTS => self.feature_effects().bytes().to_vec(),
            // The controller supports no command of NVMe-MI.
            lid::MANAGEMENT_EFFECTS => vec![0; 4096],
            _ => {
                let (page, generation) = self.target.discovery_page(&self.association);
                self.events.note_discovery_read(generation, get.is_event_retained);
                page
            }
        })
    }

    fn ana_page(&mut self, get: &GetLogPage) -> Result<Vec<u8>, Status> {
        let subsystem = &self.association.subsystem;
        let ana = subsystem.ana().ok_or(Status::INVALID_LOG_PAGE)?;
        let (page, generation) =
            subsystem.ana_page(ana, &self.association.namespaces(), get.lsp & GROUPS_ONLY != 0);
        // A change between two reads of one page causes an event, so that the host reads it again.
        if get.offset == 0 {
            self.events.note_ana_read(generation, get.is_event_retained);
        }
        Ok(page)
    }

    fn error_page(&self) -> Vec<u8> {
        let (entries, _) = self.association.errors();
        let mut page = vec![0; ERROR_ENTRIES_MAX * ErrorEntry::BYTES];
        for (slot, entry) in page.chunks_exact_mut(ErrorEntry::BYTES).zip(&entries) {
            slot.copy_from_slice(entry.bytes());
        }
        page
    }

    fn feature_effects(&self) -> FeatureEffects {
        let mut effects = FeatureEffects::default();
        for fid in 0..=u8::MAX {
            let effect = match self.feature(fid) {
                None => continue,
                Some(FeatureKind::PerNamespace) => {
                    FeatureEffects::NAMESPACE_CAPABILITY_CHANGE | FeatureEffects::SCOPE_NAMESPACE
                }
                Some(_) => FeatureEffects::SCOPE_CONTROLLER,
            };
            effects.fids[usize::from(fid)] = U32::new(FeatureEffects::SUPPORTED | effect);
        }
        effects
    }

    fn changed_page(&mut self, is_retained: bool) -> Vec<u8> {
        let list = self.events.read_changed(is_retained).map_or_else(
            || {
                let mut many = NamespaceList::default();
                many.nsids[0] = U32::new(u32::MAX);
                many
            },
            |nsids| NamespaceList::new(Nsid(0), nsids),
        );
        list.bytes().to_vec()
    }
}

fn command_effects(has_reservations: bool, can_mark: bool) -> CommandEffects {
    const ADMIN: u32 = CommandEffects::SUPPORTED | CommandEffects::SCOPE_CONTROLLER;
    const SUPPORTED: u32 = CommandEffects::SUPPORTED | CommandEffects::SCOPE_NAMESPACE;
    const CHANGES: u32 = SUPPORTED | CommandEffects::LOGICAL_BLOCK_CONTENT_CHANGE;
    let mut effects = CommandEffects::default();
    for opcode in [
        AdminOpcode::GET_LOG_PAGE,
        AdminOpcode::IDENTIFY,
        AdminOpcode::ABORT,
        AdminOpcode::SET_FEATURES,
        AdminOpcode::GET_FEATURES,
        AdminOpcode::ASYNC_EVENT_REQUEST,
        AdminOpcode::KEEP_ALIVE,
    ] {
        effects.acs[usize::from(opcode.0)] = U32::new(ADMIN);
    }
    for (opcode, effect) in [
        (NvmOpcode::FLUSH, SUPPORTED),
        (NvmOpcode::WRITE, CHANGES),
        (NvmOpcode::READ, SUPPORTED),
        (NvmOpcode::COMPARE, SUPPORTED),
        (NvmOpcode::WRITE_ZEROES, CHANGES),
        (NvmOpcode::DATASET_MANAGEMENT, CHANGES),
        (NvmOpcode::VERIFY, SUPPORTED),
        (NvmOpcode::COPY, CHANGES),
    ] {
        effects.iocs[usize::from(opcode.0)] = U32::new(effect);
    }
    if can_mark {
        effects.iocs[usize::from(NvmOpcode::WRITE_UNCORRECTABLE.0)] = U32::new(CHANGES);
    }
    if has_reservations {
        for opcode in [
            NvmOpcode::RESERVATION_REGISTER,
            NvmOpcode::RESERVATION_REPORT,
            NvmOpcode::RESERVATION_ACQUIRE,
            NvmOpcode::RESERVATION_RELEASE,
        ] {
            effects.iocs[usize::from(opcode.0)] = U32::new(SUPPORTED);
        }
    }
    effects
}
