//! Creating backing files. Their space is reserved. On request they are also written once, so that
//! unwritten extents do not slow down their first use.
//!
//! A file is created under a temporary name and renamed when it is complete, so that an interrupted
//! preparation is never mistaken for a device. Files are created in parallel, with one thread each.

use super::stop::{Stop, Stopped};
use anyhow::{Context, bail};
use block::Fill;
use reactor::{Either, Runtime};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Interval of progress reports and of looks at the stop flag.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A backing file to create.
#[derive(Clone, Debug)]
pub(crate) struct Backing {
    /// Its path.
    pub(crate) path: PathBuf,
    /// Its size in bytes.
    pub(crate) size: u64,
}

impl Backing {
    /// Returns the temporary name of a backing file.
    pub(crate) fn unfinished(path: &Path) -> PathBuf {
        let mut name = path.as_os_str().to_owned();
        name.push(".part");
        name.into()
    }
}

/// Creates the missing files. Reports to `progress` the bytes done, and the bytes of all.
pub(crate) fn prepare(
    files: &[Backing],
    fill: Fill,
    stop: &Stop,
    mut progress: impl FnMut(u64, u64),
) -> anyhow::Result<()> {
    let mut missing = Vec::new();
    for file in files {
        match std::fs::metadata(&file.path) {
            Ok(data) if data.len() == file.size => {}
            Ok(data) => bail!(
                "{} has {} bytes, not the requested {}: remove it, or give its size with --size",
                file.path.display(),
                data.len(),
                file.size
            ),
            Err(_) => missing.push(file),
        }
    }
    let all = missing.iter().map(|file| file.size).sum();
    let done = AtomicU64::new(0);
    // A failure of one file stops the others.
    let failed = Stop::default();
    std::thread::scope(|scope| {
        let started: Vec<_> = missing
            .iter()
            .map(|file| scope.spawn(|| make(file, fill, &done, [stop, &failed])))
            .collect();
        while !missing.is_empty() && started.iter().any(|thread| !thread.is_finished()) {
            progress(done.load(Ordering::Relaxed), all);
            std::thread::sleep(LOOK_EVERY);
        }
        // The first error other than the order to stop is the cause.
        let mut result = Ok(());
        for thread in started {
            let one = thread.join().unwrap_or_else(|_| bail!("a thread panicked"));
            if result.as_ref().err().is_none_or(|e: &anyhow::Error| e.is::<Stopped>()) {
                result = one.and(result);
            }
        }
        result
    })?;
    progress(all, all);
    Ok(())
}

fn make(file: &Backing, fill: Fill, done: &AtomicU64, stops: [&Stop; 2]) -> anyhow::Result<()> {
    let result = try_make(file, fill, done, stops);
    if result.is_err() {
        stops[1].request();
        let _ = std::fs::remove_file(Backing::unfinished(&file.path));
    }
    result.with_context(|| format!("cannot prepare {}", file.path.display()))
}

fn try_make(file: &Backing, fill: Fill, done: &AtomicU64, stops: [&Stop; 2]) -> anyhow::Result<()> {
    let unfinished = Backing::unfinished(&file.path);
    let mut runtime = Runtime::new(&reactor::Config::default())?;
    let mut reported = 0;
    let progress = |bytes| {
        done.fetch_add(bytes - reported, Ordering::Relaxed);
        reported = bytes;
    };
    let stopped = async {
        loop {
            for stop in stops {
                if let Err(error) = stop.check() {
                    return error;
                }
            }
            reactor::time::sleep(LOOK_EVERY).await;
        }
    };
    runtime.block_on(async {
        let created = std::pin::pin!(block::create(&unfinished, file.size, true, fill, progress));
        match reactor::race(created, std::pin::pin!(stopped)).await {
            Either::First(result) => result.map_err(anyhow::Error::new),
            Either::Second(stopped) => Err(stopped.into()),
        }
    })?;
    std::fs::set_permissions(&unfinished, Permissions::from_mode(0o600))?;
    std::fs::rename(&unfinished, &file.path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    /// Goal: a file with its final name is complete; a file of another size is not touched; an
    /// interrupted preparation leaves nothing.
    #[test]
    fn files_are_whole_or_absent() {
        let directory = tempfile::tempdir_in(std::env::temp_dir()).unwrap();
        let file = |name: &str, size| Backing { path: directory.path().join(name), size };
        let files = [file("a", 3 << 20), file("b", 1 << 20)];
        let mut last = 0;
        prepare(&files, Fill::Written, &Stop::default(), |done, all| {
            assert!(done >= last && done <= all && all == 4 << 20);
            last = done;
        })
        .unwrap();
        assert_eq!(last, 4 << 20);
        for file in &files {
            let data = std::fs::metadata(&file.path).unwrap();
            assert_eq!((data.len(), data.permissions().mode() & 0o777), (file.size, 0o600));
        }
        assert!(
            prepare(&[file("a", 1 << 20)], Fill::Written, &Stop::default(), |_, _| {}).is_err()
        );
        let reserved = file("d", 2 << 20);
        prepare(std::slice::from_ref(&reserved), Fill::Reserved, &Stop::default(), |_, _| {})
            .unwrap();
        let data = std::fs::metadata(&reserved.path).unwrap();
        assert!(data.len() == 2 << 20 && data.blocks() * 512 >= 2 << 20, "{data:?}");
        std::fs::remove_file(&reserved.path).unwrap();
        let stop = Stop::default();
        stop.request();
        let long = [file("c", 64 << 20)];
        let error = prepare(&long, Fill::Written, &stop, |_, _| {}).unwrap_err();
        assert!(error.is::<Stopped>(), "{error:#}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
