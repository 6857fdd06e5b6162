//! The discovery service: lists the subsystems of a target and their addresses.

use crate::controller::Controller;
use crate::error::Error;
use nvme::Nsid;
use nvme::log_page::{DISCOVERY_HEADER_BYTES, DiscoveryEntry, DiscoveryHeader, lid};

/// Maximum number of entries that are read from a discovery log page.
pub const DISCOVERY_ENTRIES_MAX: u64 = 4096;
/// Maximum number of times that the page is read again because it has changed meanwhile.
const READS_MAX: usize = 10;

/// A discovery log page.
#[derive(Clone, Debug)]
pub struct DiscoveryLog {
    /// Its generation, which every change of the page changes.
    pub generation: u64,
    /// The entries.
    pub entries: Vec<DiscoveryEntry>,
}

impl Controller {
    /// Reads the discovery log page until header and entries have the same generation.
    pub async fn discover(&self) -> Result<DiscoveryLog, Error> {
        let mut before = self.discovery_header().await?;
        for _ in 0..READS_MAX {
            let count = before.numrec.get();
            if count > DISCOVERY_ENTRIES_MAX {
                return Err(invalid("numrec", count));
            }
            if before.recfmt.get() != 0 {
                return Err(invalid("recfmt", u64::from(before.recfmt.get())));
            }
            let entries = self.discovery_entries(count as usize).await?;
            let after = self.discovery_header().await?;
            if after.genctr == before.genctr && after.numrec == before.numrec {
                return Ok(DiscoveryLog { generation: after.genctr.get(), entries });
            }
            before = after;
        }
        Err(Error::ControllerFailed("changes its discovery log page faster than it can be read"))
    }

    async fn discovery_header(&self) -> Result<DiscoveryHeader, Error> {
        let page = self.log_page(lid::DISCOVERY, Nsid(0), 0, DISCOVERY_HEADER_BYTES).await?;
        let header = DiscoveryHeader::from_prefix(&page).map_err(|source| {
            Error::InvalidResponse { structure: "discovery log page", fault: source }
        })?;
        Ok(*header)
    }

    async fn discovery_entries(&self, count: usize) -> Result<Vec<DiscoveryEntry>, Error> {
        let bytes = count * DiscoveryEntry::BYTES;
        let offset = DISCOVERY_HEADER_BYTES as u64;
        let page = self.log_page(lid::DISCOVERY, Nsid(0), offset, bytes).await?;
        page.chunks_exact(DiscoveryEntry::BYTES)
            .map(|entry| DiscoveryEntry::from_prefix(entry).copied())
            .collect::<Result<_, _>>()
            .map_err(|source| Error::InvalidResponse {
                structure: "discovery log page",
                fault: source,
            })
    }
}

fn invalid(field: &'static str, value: u64) -> Error {
    let source = nvme::Error::InvalidField { field, value };
    Error::InvalidResponse { structure: "discovery log page", fault: source }
}
