//! Get Log Page (base 5.1.12).

use super::{Controller, ERROR_ENTRIES_MAX, Reply};
use crate::counts::NamespaceCounts;
use nvme::command::GetLogPage;
use nvme::identify::NamespaceList;
use nvme::log_page::{CommandEffects, ErrorEntry, FirmwareSlots, SmartHealth, SupportedPages, lid};
use nvme::opcode::{AdminOpcode, NvmOpcode};
use nvme::{Nsid, Status, SubmissionQueueEntry, U16, U32, U128};
use ring::Buffer;

const IO_PAGES: &[u8] = &[
    lid::SUPPORTED_PAGES,
    lid::ERROR,
    lid::SMART_HEALTH,
    lid::FIRMWARE_SLOTS,
    lid::CHANGED_NAMESPACES,
    lid::COMMAND_EFFECTS,
];
const DISCOVERY_PAGES: &[u8] = &[lid::SUPPORTED_PAGES, lid::ERROR, lid::DISCOVERY];

/// A temperature to report where there is no sensor: 20 °C in kelvins.
const ROOM_TEMPERATURE: u16 = 293;

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
        // Past the end of the page there are zeros (base 5.1.12: undefined).
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
        let pages = if self.is_discovery() { DISCOVERY_PAGES } else { IO_PAGES };
        if !pages.contains(&get.lid) {
            return Err(Status::INVALID_LOG_PAGE);
        }
        Ok(match get.lid {
            lid::SUPPORTED_PAGES => SupportedPages::new(pages).bytes().to_vec(),
            lid::ERROR => self.error_page(),
            lid::SMART_HEALTH => self.health_page(nsid)?,
            lid::FIRMWARE_SLOTS => {
                let mut revision = [b' '; 8];
                for (slot, byte) in revision.iter_mut().zip(super::identify::FIRMWARE.bytes()) {
                    *slot = byte;
                }
                FirmwareSlots::single(revision).bytes().to_vec()
            }
            lid::CHANGED_NAMESPACES => self.changed_page(get.is_event_retained),
            lid::COMMAND_EFFECTS => command_effects().bytes().to_vec(),
            _ => {
                let association = &self.association;
                let (page, generation) =
                    self.target.discovery_page(association.host, &association.host_name);
                self.events.note_discovery_read(generation, get.is_event_retained);
                page
            }
        })
    }

    fn error_page(&self) -> Vec<u8> {
        let (entries, _) = self.association.errors();
        let mut page = vec![0; ERROR_ENTRIES_MAX * ErrorEntry::BYTES];
        for (slot, entry) in page.chunks_exact_mut(ErrorEntry::BYTES).zip(&entries) {
            slot.copy_from_slice(entry.bytes());
        }
        page
    }

    fn health_page(&self, nsid: Nsid) -> Result<Vec<u8>, Status> {
        // Only for the controller as a whole (LPA bit 0 is clear).
        if nsid != Nsid::BROADCAST && nsid != Nsid(0) {
            return Err(Status::INVALID_FIELD);
        }
        let mut sum = NamespaceCounts::default();
        for counts in self.association.subsystem.counts() {
            sum.read_remote_bytes += counts.read_remote_bytes + counts.read_local_bytes;
            sum.written_remote_bytes += counts.written_remote_bytes + counts.written_local_bytes;
            sum.read_commands += counts.read_commands;
            sum.write_commands += counts.write_commands;
            sum.media_errors += counts.media_errors;
        }
        let big = |number: u64| U128::new(u128::from(number));
        let units = |bytes: u64| U128::new(SmartHealth::data_units(u128::from(bytes)));
        let (_, errors) = self.association.errors();
        let page = SmartHealth {
            ctemp: U16::new(ROOM_TEMPERATURE),
            avsp: 100,
            avspt: 10,
            dur: units(sum.read_remote_bytes),
            duw: units(sum.written_remote_bytes),
            hrc: big(sum.read_commands),
            hwc: big(sum.write_commands),
            pwrc: big(1),
            poh: big(self.target.uptime().as_secs() / 3600),
            mdie: big(sum.media_errors),
            neile: big(errors),
            ..SmartHealth::default()
        };
        Ok(page.bytes().to_vec())
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

fn command_effects() -> CommandEffects {
    const SUPPORTED: u32 = CommandEffects::SUPPORTED;
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
        effects.acs[usize::from(opcode.0)] = U32::new(SUPPORTED);
    }
    for (opcode, effect) in [
        (NvmOpcode::FLUSH, SUPPORTED),
        (NvmOpcode::WRITE, CHANGES),
        (NvmOpcode::READ, SUPPORTED),
        (NvmOpcode::COMPARE, SUPPORTED),
        (NvmOpcode::WRITE_ZEROES, CHANGES),
        (NvmOpcode::DATASET_MANAGEMENT, CHANGES),
    ] {
        effects.iocs[usize::from(opcode.0)] = U32::new(effect);
    }
    effects
}
