//! SMART / health information (base 5.1.12.1.3) and the temperature thresholds for its warnings.

use super::Controller;
use crate::counts::NamespaceCounts;
use nvme::log_page::SmartHealth;
use nvme::{Nsid, Status, U16, U128};

/// The temperature to report, as there is no sensor: 20 °C in kelvins.
const ROOM_TEMPERATURE: u16 = 293;

/// Temperature Threshold (base 5.1.25.1.3) of the composite temperature, in kelvins. There are no
/// other sensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thresholds {
    over: u16,
    under: u16,
}

impl Default for Thresholds {
    /// Returns no threshold, the specification's default if WCTEMP is not reported.
    fn default() -> Self {
        Self { over: u16::MAX, under: 0 }
    }
}

impl Thresholds {
    /// TMPSEL: the composite temperature.
    const COMPOSITE: u32 = 0;
    /// TMPSEL: all temperatures, for Set Features.
    const ALL: u32 = 0xf;

    /// Returns bits 19:16 (TMPSEL) and 21:20 (THSEL) of dword 11.
    fn select(dword11: u32) -> (u32, u32) {
        (dword11 >> 16 & 0xf, dword11 >> 20 & 3)
    }

    /// Returns the threshold that dword 11 selects.
    pub(super) fn get(self, dword11: u32) -> Result<u16, Status> {
        match Self::select(dword11) {
            (Self::COMPOSITE, 0) => Ok(self.over),
            (Self::COMPOSITE, 1) => Ok(self.under),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Sets the threshold that dword 11 selects to its bits 15:0.
    pub(super) fn set(&mut self, dword11: u32) -> Result<(), Status> {
        let kelvins = (dword11 & 0xffff) as u16;
        match Self::select(dword11) {
            (Self::COMPOSITE | Self::ALL, 0) => self.over = kelvins,
            (Self::COMPOSITE | Self::ALL, 1) => self.under = kelvins,
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(())
    }

    /// Returns whether the temperature is at or beyond a threshold.
    pub(super) fn is_warning(self) -> bool {
        ROOM_TEMPERATURE >= self.over || ROOM_TEMPERATURE <= self.under
    }
}

impl Controller {
    pub(super) fn health_page(&self, nsid: Nsid) -> Result<Vec<u8>, Status> {
        // Supported only for the controller as a whole (LPA bit 0 is clear).
        if nsid != Nsid::BROADCAST && nsid != Nsid(0) {
            return Err(Status::INVALID_FIELD);
        }
        let mut sum = NamespaceCounts::default();
        // Only the namespaces that the host sees.
        for counts in self.association.namespaces().iter().map(|namespace| namespace.counts()) {
            sum.read_remote_bytes += counts.read_remote_bytes + counts.read_local_bytes;
            sum.written_remote_bytes += counts.written_remote_bytes + counts.written_local_bytes;
            sum.read_commands += counts.read_commands;
            sum.write_commands += counts.write_commands;
            sum.media_errors += counts.media_errors;
        }
        let big = |number: u64| U128::new(u128::from(number));
        let units = |bytes: u64| U128::new(SmartHealth::data_units(u128::from(bytes)));
        let (_, errors) = self.association.errors();
        let is_warning = self.thresholds.is_warning();
        let page = SmartHealth {
            cw: if is_warning { SmartHealth::WARNING_TEMPERATURE } else { 0 },
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
}
