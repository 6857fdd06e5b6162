//! The file of marks: a page that names the device, then a bit for each block.
//!
//! ```text
//! tsumugi uncorrectable 1
//! namespace 6b8f6f3e-52f7-4b0c-9d2a-0d1e6a1f4c11
//! block-size 4096
//! ```
//!
//! The page is filled up with zeros. A change writes the pages of bits that it concerns and syncs
//! them. Bits are independent of each other: whatever part of a write survives a crash, only bits
//! of that change are new. The file is sparse and grows to the highest marked block.
//!
//! A write or sync that failed leaves the file in an unknown state, so all later changes fail too,
//! until the target starts anew.

use super::bits::{Bits, PAGE_BYTES, Page};
use crate::device::Geometry;
use crate::error::Error;
use reactor::time::{now, sleep};
use reactor::{Buffer, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use uuid::Uuid;

const HEAD: &str = "tsumugi uncorrectable 1";
/// Bytes to read at a time.
const READ_BYTES: usize = 1 << 20;

/// How long opening waits for a lock of another process.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The open file.
#[derive(Debug)]
pub(super) struct Store {
    file: File,
    has_failed: AtomicBool,
}

impl Store {
    /// Opens the file of a device, or creates it.
    pub(super) async fn open(
        path: &Path,
        uuid: [u8; 16],
        geometry: Geometry,
    ) -> Result<(Self, Bits), Error> {
        let fault = |fault: String| Error::Marks { path: path.to_owned(), fault };
        let failed = |error: io::Error| fault(error.to_string());
        let head = format!(
            "{HEAD}\nnamespace {}\nblock-size {}\n",
            Uuid::from_bytes(uuid),
            geometry.block_size
        );
        if !path.try_exists().map_err(failed)? {
            create(path, &head).await.map_err(failed)?;
        }
        let options = OpenOptions { write: true, ..OpenOptions::READ };
        let file = File::open(path, options).map_err(failed)?;
        lock(&file).await.map_err(|error| {
            fault(format!("another process uses it ({error}); stop that one, or name another file"))
        })?;
        let size = file.size().map_err(failed)?;
        let bits_max = geometry.blocks.div_ceil(8).next_multiple_of(PAGE_BYTES as u64);
        let store = Self { file, has_failed: AtomicBool::new(false) };
        let first = store.read(0, PAGE_BYTES).await.map_err(failed)?;
        let text = first.split(|&byte| byte == 0).next().unwrap_or_default();
        if text != head.as_bytes() || size < PAGE_BYTES as u64 {
            let found = String::from_utf8_lossy(text).trim_end().replace('\n', ", ");
            let wanted = head.trim_end().replace('\n', ", ");
            return Err(fault(format!(
                "it begins with {found:?}, not with {wanted:?}: name the file of this namespace, \
                 or remove it to begin without marks"
            )));
        }
        let bits = store.bits(size.min(PAGE_BYTES as u64 + bits_max)).await.map_err(failed)?;
        Ok((store, bits))
    }

    /// Reads the bits, up to `end`.
    async fn bits(&self, end: u64) -> io::Result<Bits> {
        let mut bits = Bits::default();
        let mut at = PAGE_BYTES as u64;
        while at < end {
            let len = READ_BYTES.min((end - at) as usize);
            let part = self.read(at, len).await?;
            for (index, page) in part.chunks(PAGE_BYTES).enumerate() {
                let mut whole: Page = Box::new([0; PAGE_BYTES]);
                whole[..page.len()].copy_from_slice(page);
                bits.insert(at / PAGE_BYTES as u64 - 1 + index as u64, whole);
            }
            at += len as u64;
        }
        Ok(bits)
    }

    async fn read(&self, offset: u64, len: usize) -> io::Result<Buffer> {
        let mut buffer = Buffer::with_capacity(len);
        buffer.set_len(len);
        let (result, mut buffer) = self.file.read_at(buffer, 0..len, offset).await;
        buffer.truncate(result?);
        Ok(buffer)
    }

    /// Writes pages of bits durably.
    pub(super) async fn save(&self, pages: Vec<(u64, Page)>) -> io::Result<()> {
        if self.has_failed.load(Ordering::SeqCst) {
            return Err(io::Error::other(
                "an earlier change of the marks of uncorrectable blocks failed; start the target anew",
            ));
        }
        let saved = self.write(pages).await;
        if saved.is_err() {
            self.has_failed.store(true, Ordering::SeqCst);
        }
        saved
    }

    async fn write(&self, pages: Vec<(u64, Page)>) -> io::Result<()> {
        for (number, page) in pages {
            let offset = (number + 1) * PAGE_BYTES as u64;
            self.file.write_at(Buffer::copy_from(&page[..]), offset).await.0?;
        }
        self.file.sync_all().await
    }

    /// Makes the next change fail.
    #[cfg(test)]
    pub(super) fn fail(&self) {
        self.has_failed.store(true, Ordering::SeqCst);
    }
}

/// Locks the file. A killed process holds its lock until the kernel has torn down its ring.
async fn lock(file: &File) -> io::Result<()> {
    let deadline = now() + LOCK_PATIENCE;
    loop {
        match file.try_lock_exclusive() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && now() < deadline => {
                sleep(LOCK_PAUSE).await;
            }
            result => return result,
        }
    }
}

/// Creates the file under another name, makes it durable, and gives it its name.
async fn create(path: &Path, head: &str) -> io::Result<()> {
    let mut new = path.to_owned().into_os_string();
    new.push(".new");
    let new = PathBuf::from(new);
    let options = OpenOptions { create: true, truncate: true, write: true, ..OpenOptions::READ };
    let file = File::open(&new, options)?;
    let mut page = head.as_bytes().to_vec();
    page.resize(PAGE_BYTES, 0);
    file.write_at(Buffer::copy_from(&page), 0).await.0?;
    file.sync_all().await?;
    std::fs::rename(&new, path)?;
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    File::open(directory, OpenOptions::READ)?.sync_all().await
}
