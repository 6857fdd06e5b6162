//! The limits of a target, from its settings.

use super::ana;
use super::config::Settings;
use target::Limits;

/// Returns the limits that the settings ask for.
///
/// # Errors
/// If a value is out of range.
pub(super) fn limits_of(settings: &Settings) -> anyhow::Result<Limits> {
    let defaults = Limits::default();
    let transfer = settings.mdts.map_or(defaults.transfer_bytes_max.into(), |bytes| bytes);
    let Ok(transfer_bytes_max) = u32::try_from(transfer) else {
        anyhow::bail!("mdts must be at most 64M");
    };
    let connections_max = settings.connections_max.unwrap_or(defaults.connections_max);
    let limits = Limits {
        connections_max,
        controller_ids: ana::controller_ids(settings.cntlid_min, settings.cntlid_max),
        controllers_max: settings
            .controllers_max
            .unwrap_or_else(|| connections_max.min(defaults.controllers_max)),
        io_queues_max: settings.io_queues_max.unwrap_or(defaults.io_queues_max),
        queue_entries_max: settings.queue_size_max.unwrap_or(defaults.queue_entries_max),
        transfer_bytes_max,
        data_bytes_in_flight_max: defaults
            .data_bytes_in_flight_max
            .max(transfer_bytes_max as usize),
        data_bytes_total_max: settings
            .data_memory_max
            .map_or(defaults.data_bytes_total_max, |bytes| bytes as usize),
        allows_header_digest: settings.hdr_digest,
        allows_data_digest: settings.data_digest,
        ..defaults
    };
    if let Some(fault) = limits.fault() {
        let fault = fault
            .replace("queue_entries_max", "queue_size_max")
            .replace("transfer_bytes_max", "mdts")
            .replace("data_bytes_total_max", "data_memory_max");
        anyhow::bail!("{fault}");
    }
    Ok(limits)
}
