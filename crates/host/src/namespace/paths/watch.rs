//! The task that watches one path: before commands use a new connection, and after a change of its
//! access.

use super::{Inner, Namespace, Path};
use crate::controller::Link;
use crate::error::Error;
use crate::namespace::Found;
use nvme::Nsid;
use nvme::identify::IdentifyController;
use nvme::log_page::{AnaGroup, AnaHeader, AnaState, lid};
use reactor::{Buffer, time};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Return Groups Only: no namespace identifiers.
const GROUPS_ONLY: u8 = 1;
/// Most bytes of the log page that one command reads.
const PAGE_BYTES_MAX: usize = 64 << 10;
/// Maximum number of times that the log page is read again because it has changed meanwhile.
const READS_MAX: usize = 10;
/// Pause before the page is read because a command was refused.
const STALE_PAUSE: Duration = Duration::from_millis(10);
/// Interval of checks of a path without access, or of one that failed, without a report.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// Starts the task, which ends with the namespace.
pub(super) fn start(inner: &Rc<Inner>, index: usize) {
    let Some(path) = inner.paths.as_ref().and_then(|paths| paths.all.get(index)) else { return };
    // The task holds no handle: dropping the last handle ends the controller, which wakes this
    // task.
    let controller = Rc::clone(path.controller.inner());
    let inner = Rc::downgrade(inner);
    let _watcher = reactor::spawn(async move {
        loop {
            let changed = controller.link_changed.notified();
            let Some(pause) = look(&inner, index).await else { return };
            match pause {
                None => changed.await,
                // It checks again in either case.
                Some(pause) => drop(time::timeout(pause, changed).await),
            }
        }
    });
}

/// Checks the path if there is a reason. Returns the time until the next check, if that does not
/// depend on a report alone, or [`None`] if the namespace was dropped.
async fn look(inner: &Weak<Inner>, index: usize) -> Option<Option<Duration>> {
    let namespace = Namespace(inner.upgrade()?);
    let paths = namespace.0.paths.as_ref()?;
    let path = paths.all.get(index)?;
    let controller = path.controller.inner();
    let Ok(Some(link)) = controller.live_link_now() else {
        paths.changed.notify();
        return Some(None);
    };
    let changes = controller.ana_changes.get();
    let sight = controller.sight(&link);
    let is_new = sight != path.checked.get();
    let is_open = matches!(path.access.get(), AnaState::Optimized | AnaState::NonOptimized);
    let is_reported = changes == path.ana_changes_seen.get() && !path.is_stale.get();
    if !is_new && is_open && is_reported && path.fault.borrow().is_none() {
        return Some(None);
    }
    if path.is_stale.replace(false) {
        time::sleep(STALE_PAUSE).await;
    }
    let result = check(&namespace, path, &link).await;
    let pause = match &result {
        Ok(AnaState::Optimized | AnaState::NonOptimized) => None,
        Ok(_) | Err(_) => Some(LOOK_PERIOD),
    };
    match result {
        Ok(access) => {
            path.access.set(access);
            path.is_local.set(link.is_local());
            *path.fault.borrow_mut() = None;
            path.checked.set(sight);
            path.ana_changes_seen.set(changes);
        }
        Err(error @ Error::WritesLost { .. }) => {
            // Logs once, not at each check.
            if namespace.0.failed.replace(Some(error.clone())).is_none() {
                tracing::error!(address = %path.address(), %error, "the namespace cannot be used");
            }
        }
        // That link has ended: the next one will be checked.
        Err(error) if error.is_connection_error() => {}
        Err(error) => {
            // Logs once, not at each check.
            if path.fault.replace(Some(error.clone())).is_none() {
                tracing::warn!(address = %path.address(), %error, "the path cannot be used");
            }
        }
    }
    paths.changed.notify();
    Some(pause)
}

/// Returns the access through the link, if it leads to the same namespace.
async fn check(namespace: &Namespace, path: &Path, link: &Link) -> Result<AnaState, Error> {
    let nsid = namespace.0.nsid;
    let found = Found::look(link, nsid).await?;
    let known = &namespace.0.identity;
    let now = &found.identity;
    if (known.uuid, known.nguid, known.eui64) != (now.uuid, now.nguid, now.eui64) {
        return Err(Error::NamespaceReplaced(nsid));
    }
    let geometry = &namespace.0.geometry;
    let is_shaped = found.geometry.block_size == geometry.block_size
        && found.geometry.blocks >= geometry.blocks
        && found.transfer_bytes_max >= namespace.0.transfer_bytes_max;
    if !is_shaped {
        let what = "blocks, size or largest transfer differ from those of the other paths";
        return Err(Error::PathMismatch { address: path.address(), what });
    }
    if found.geometry.has_volatile_cache {
        namespace.0.must_flush.set(true);
    }
    match (path.incarnation.get(), now.incarnation) {
        (Some(was), Some(now)) if was != now => Err(Error::WritesLost {
            was: uuid::Uuid::from_u128(was),
            now: uuid::Uuid::from_u128(now),
        }),
        _ => access(link, nsid, found.ana_group).await,
    }
}

/// Returns the state of the namespace's group in the ANA log page, or optimized if the controller
/// has no such page.
pub(super) async fn access(link: &Link, nsid: Nsid, group: u32) -> Result<AnaState, Error> {
    let identify = &link.info.identify;
    if identify.cmic & IdentifyController::CMIC_ANA == 0 {
        return Ok(AnaState::Optimized);
    }
    for _ in 0..READS_MAX {
        let page = read_page(link, identify.nanagrpid.get()).await?;
        let count = header(&page)?.ngrps.get();
        if u32::from(count) > identify.nanagrpid.get() {
            return Err(invalid("ngrps", u64::from(count)));
        }
        let bytes = usize::from(count) * AnaGroup::BYTES;
        let mut rest = Vec::new();
        if page.len() < AnaHeader::BYTES + bytes {
            // More than one command can transfer: such a target has to obey offsets.
            let offset = AnaHeader::BYTES as u64;
            rest = link.log_page_of(lid::ANA, GROUPS_ONLY, Nsid(0), offset, bytes).await?;
            if header(&read_page(link, 0).await?)?.chgcnt != header(&page)?.chgcnt {
                continue;
            }
        }
        let whole = page.get(AnaHeader::BYTES..AnaHeader::BYTES + bytes);
        let descriptors = whole.unwrap_or(&rest);
        for descriptor in descriptors.chunks_exact(AnaGroup::BYTES) {
            let descriptor = AnaGroup::from_prefix(descriptor)
                .map_err(|_| invalid("descriptor", u64::from(group)))?;
            if descriptor.agid.get() == group {
                return Ok(descriptor.ana_state().unwrap_or(AnaState::Inaccessible));
            }
        }
        tracing::debug!(%nsid, group, "the ANA log page lacks the namespace's group");
        return Ok(AnaState::Inaccessible);
    }
    Err(Error::ControllerFailed("changes its ANA log page faster than it can be read"))
}

/// Reads the log page from its start, with room for this number of groups, by one command: Linux's
/// target ignores the offset and begins with the header each time.
async fn read_page(link: &Link, groups: u32) -> Result<Buffer, Error> {
    let whole = AnaHeader::BYTES + groups as usize * AnaGroup::BYTES;
    let bytes = whole.min(PAGE_BYTES_MAX).min(link.transfer_bytes_max as usize);
    link.log_page_piece(lid::ANA, GROUPS_ONLY, Nsid(0), 0, bytes).await
}

fn header(page: &[u8]) -> Result<&AnaHeader, Error> {
    AnaHeader::from_prefix(page)
        .map_err(|fault| Error::InvalidResponse { structure: "ANA log page", fault })
}

fn invalid(field: &'static str, value: u64) -> Error {
    let fault = nvme::Error::InvalidField { field, value };
    Error::InvalidResponse { structure: "ANA log page", fault }
}
