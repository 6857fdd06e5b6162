//! The file of reservations that survive a restart.
//!
//! The file is text, with one fact per line and a checksum of all lines before it:
//!
//! ```text
//! tsumugi reservations 1
//! namespace 6b8f6f3e-52f7-4b0c-9d2a-0d1e6a1f4c11
//! registrant 01010101-0101-0101-0101-010101010101 00000000000000ab
//! holder 01010101-0101-0101-0101-010101010101 3
//! crc32c 8a9136aa
//! ```
//!
//! Without persistence the line `volatile` replaces registrants and holder. A change writes a new
//! file beside the old one, syncs it, renames it and syncs the directory: after a crash either the
//! old file or the new one is there. Any other content is an error; a target does not start without
//! its reservations.
//!
//! If the sync of the directory fails, the new file is there although the change is refused. Then
//! the old content is saved again. If that fails too, every further change has to save its state
//! first, until one of them succeeds.

use super::state::{Held, State};
use crate::error::Error;
use nvme::HostId;
use nvme::reservation::ReservationType;
use nvme::tcp::crc32c;
use reactor::{Buffer, File, OpenOptions};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use uuid::Uuid;

const HEAD: &str = "tsumugi reservations 1";
/// Longer than a file with the maximum number of registrants.
const BYTES_MAX: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    uuid: [u8; 16],
    /// Whether the file may have the content of a refused change.
    is_uncertain: AtomicBool,
    /// Number of the next syncs of the directory that fail.
    #[cfg(test)]
    pub(super) failures: std::sync::atomic::AtomicU32,
}

impl Store {
    /// Reads the file of a namespace, and creates it if it is missing.
    pub(super) async fn open(path: &Path, uuid: [u8; 16]) -> Result<(Self, State), Error> {
        let failed = |fault: String| Error::Reservations { path: path.to_owned(), fault };
        let store = Self {
            path: path.to_owned(),
            uuid,
            is_uncertain: AtomicBool::new(false),
            #[cfg(test)]
            failures: std::sync::atomic::AtomicU32::default(),
        };
        let state = match File::open(path, OpenOptions::READ) {
            Ok(file) => {
                let text = read(&file).await.map_err(|error| failed(error.to_string()))?;
                decode(&text, uuid).map_err(failed)?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let state = State::default();
                store.save(&state).await.map_err(|error| failed(error.to_string()))?;
                state
            }
            Err(error) => return Err(failed(error.to_string())),
        };
        Ok((store, state))
    }

    /// Returns whether the next change has to be saved even if it does not change the content.
    pub(super) fn is_uncertain(&self) -> bool {
        self.is_uncertain.load(Ordering::Relaxed)
    }

    /// Replaces the content `old` durably by `new`. If that fails, the file has the old content,
    /// or is [uncertain](Self::is_uncertain).
    pub(super) async fn replace(&self, old: &State, new: &State) -> io::Result<()> {
        let result = self.save(new).await;
        if result.is_err()
            && self.is_uncertain()
            && let Err(error) = self.save(old).await
        {
            let path = self.path.display();
            tracing::error!(%path, %error, "the file may contain a refused change of reservations");
        }
        result
    }

    async fn save(&self, state: &State) -> io::Result<()> {
        let mut new = self.path.clone().into_os_string();
        new.push(".new");
        let new = PathBuf::from(new);
        let text = encode(state, self.uuid);
        assert!(
            text.len() as u64 <= BYTES_MAX,
            "a file of {} bytes would be too long to read",
            text.len()
        );
        let options =
            OpenOptions { create: true, truncate: true, write: true, ..OpenOptions::READ };
        let file = File::open(&new, options)?;
        file.write_at(Buffer::copy_from(text.as_bytes()), 0).await.0?;
        file.sync_all().await?;
        self.is_uncertain.store(true, Ordering::Relaxed);
        std::fs::rename(&new, &self.path)?;
        self.sync_directory().await?;
        self.is_uncertain.store(false, Ordering::Relaxed);
        Ok(())
    }

    async fn sync_directory(&self) -> io::Result<()> {
        #[cfg(test)]
        if self.failures.load(Ordering::Relaxed) > 0 {
            self.failures.fetch_sub(1, Ordering::Relaxed);
            return Err(io::Error::from_raw_os_error(5));
        }
        let directory = match self.path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        File::open(directory, OpenOptions::READ)?.sync_all().await
    }
}

async fn read(file: &File) -> io::Result<Vec<u8>> {
    let size = file.size()?;
    if size > BYTES_MAX {
        return Err(io::Error::other(format!(
            "it has {size} bytes; at most {BYTES_MAX} are allowed"
        )));
    }
    let size = size as usize;
    let (result, buffer) = file.read_at(Buffer::with_capacity(size), 0..size, 0).await;
    let bytes = result?;
    Ok(buffer[..bytes].to_vec())
}

fn encode(state: &State, uuid: [u8; 16]) -> String {
    let mut text = format!("{HEAD}\nnamespace {}\n", Uuid::from_bytes(uuid));
    // Writing to a string does not fail.
    if state.is_persistent {
        for (host, key) in state.registrants() {
            let _ = writeln!(text, "registrant {host} {key:016x}");
        }
        if let Some(Held { kind, by }) = state.held() {
            let _ = writeln!(text, "holder {by} {}", kind.to_u8());
        }
    } else {
        text.push_str("volatile\n");
    }
    let checksum = crc32c(text.as_bytes());
    let _ = writeln!(text, "crc32c {checksum:08x}");
    text
}

/// Returns the state in a file's content, or the fault of the content.
fn decode(text: &[u8], uuid: [u8; 16]) -> Result<State, String> {
    let damaged = || "it is damaged".to_owned();
    let text = std::str::from_utf8(text).map_err(|_| damaged())?;
    let start = text.rfind("crc32c ").ok_or_else(damaged)?;
    let (body, end) = text.split_at(start);
    if end != format!("crc32c {:08x}\n", crc32c(body.as_bytes())) {
        return Err(damaged());
    }
    let mut lines = body.lines();
    if lines.next() != Some(HEAD) {
        return Err("it was written by an unknown version of this program".to_owned());
    }
    let owner =
        lines.next().and_then(|line| line.strip_prefix("namespace ")).ok_or_else(damaged)?;
    if owner != Uuid::from_bytes(uuid).to_string() {
        let own = Uuid::from_bytes(uuid);
        return Err(format!("it belongs to namespace {owner}, not to this one ({own})"));
    }
    let mut lines = lines.peekable();
    if lines.next_if_eq(&"volatile").is_some() {
        return if lines.next().is_none() { Ok(State::default()) } else { Err(damaged()) };
    }
    let (mut registrants, mut held) = (BTreeMap::new(), None);
    for line in lines {
        let mut words = line.split(' ');
        let (what, host) = (words.next(), words.next().and_then(host));
        let (host, value) = host.zip(words.next()).ok_or_else(damaged)?;
        match what {
            Some("registrant") if held.is_none() => {
                let key = u64::from_str_radix(value, 16).map_err(|_| damaged())?;
                registrants.insert(host, key);
            }
            Some("holder") if held.is_none() => {
                let kind = value.parse().ok().and_then(|it| ReservationType::from_u8(it).ok());
                held = Some(Held { kind: kind.ok_or_else(damaged)?, by: host });
            }
            _ => return Err(damaged()),
        }
    }
    State::restored(registrants, held).ok_or_else(damaged)
}

fn host(text: &str) -> Option<HostId> {
    Uuid::parse_str(text).ok().map(|uuid| HostId(uuid.into_bytes()))
}
