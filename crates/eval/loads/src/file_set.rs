//! A set of files as the study of containers had it: 1 KB to 4 MB, as many in each power of two.

use crate::keys::{Form, Key, Table};
use base::{Error, Stop};
use stats::random::Random;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Smallest and largest file, in bytes.
const FILE_BYTES: (f64, f64) = (1e3, 4e6);
/// Bytes that are written at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Most files of a process or container.
const ITEMS_MAX: u32 = 10_000_000;

/// The key with the number of files of each process or container.
pub(crate) const ITEMS: Key = Key::new("items", Form::Count);

/// Reads the number of files of each process or container.
pub(crate) fn items(table: &Table<'_>) -> Result<u32, Error> {
    let given = table.count_in(ITEMS.name, (1, ITEMS_MAX))?;
    given.ok_or_else(|| table.missing(ITEMS.name))
}

/// Sizes of files that together have so many bytes or a little more; they follow from the seed.
pub fn sizes(total_bytes: u64, seed: u64) -> Vec<u64> {
    let mut random = Random::of(seed, 0);
    let (least, most) = FILE_BYTES;
    let (mut sizes, mut sum) = (Vec::new(), 0);
    while sum < total_bytes {
        let size = (least * (most / least).powf(random.uniform())) as u64;
        sizes.push(size);
        sum += size;
    }
    sizes
}

/// Makes the files in a directory that is there, and makes them durable together.
pub fn make(directory: &Path, sizes: &[u64], seed: u64, stop: &Stop) -> Result<(), Error> {
    let mut random = Random::of(seed, 1);
    let mut piece = vec![0; PIECE_BYTES];
    for (number, size) in sizes.iter().enumerate() {
        if stop.is_requested() {
            return Err(Error::Interrupted);
        }
        let path = directory.join(format!("{number:05}"));
        let mut file = File::create_new(&path).map_err(Error::io("cannot make", &path))?;
        write_random(&mut file, &mut piece, *size, &mut random)
            .map_err(Error::io("cannot write", &path))?;
    }
    sync(directory)
}

/// Writes so many bytes of random contents. `piece` is room, and a multiple of 8 bytes; the first time it
/// is filled, and then differs in its first bytes, lest storage that finds duplicates shine.
pub fn write_random(
    file: &mut File,
    piece: &mut [u8],
    bytes: u64,
    random: &mut Random,
) -> std::io::Result<()> {
    if piece[8..].iter().all(|byte| *byte == 0) {
        for chunk in piece.chunks_exact_mut(8) {
            chunk.copy_from_slice(&random.next_u64().to_le_bytes());
        }
    }
    let mut left = bytes;
    while left > 0 {
        piece[..8].copy_from_slice(&random.next_u64().to_le_bytes());
        let part = left.min(piece.len() as u64) as usize;
        file.write_all(&piece[..part])?;
        left -= part as u64;
    }
    Ok(())
}

/// Makes the whole file system of a directory durable (syncfs).
pub fn sync(directory: &Path) -> Result<(), Error> {
    let wrong = || Error::io("cannot sync", directory);
    let opened = File::open(directory).map_err(wrong())?;
    rustix::fs::syncfs(&opened).map_err(|errno| wrong()(errno.into()))
}

/// Reads all files, those in directories below too, so that each run finds them in memory, as far as they
/// fit.
pub fn warm(directory: &Path) -> Result<(), Error> {
    for (name, _) in list(directory)? {
        let path = directory.join(name);
        let mut file = File::open(&path).map_err(Error::io("cannot read", &path))?;
        std::io::copy(&mut file, &mut std::io::sink()).map_err(Error::io("cannot read", &path))?;
    }
    Ok(())
}

/// Names of all files in a directory and below it, and their sizes, in order of the names.
pub fn list(directory: &Path) -> Result<Vec<(PathBuf, u64)>, Error> {
    let (mut found, mut left) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(part) = left.pop() {
        let at = directory.join(&part);
        let wrong = || Error::io("cannot read", &at);
        for entry in std::fs::read_dir(&at).map_err(wrong())? {
            let entry = entry.map_err(wrong())?;
            let name = part.join(entry.file_name());
            let metadata = entry.metadata().map_err(wrong())?;
            if metadata.is_dir() {
                left.push(name);
            } else {
                found.push((name, metadata.len()));
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sizes follow from the seed, lie within the study's bounds with about as many in each power of
    /// two, and sum up to what was asked; files have them, and differ.
    #[test]
    fn sets_are_those_of_the_study() {
        let many = sizes(500_000_000, 1);
        assert_eq!(many, sizes(500_000_000, 1));
        assert_ne!(many, sizes(500_000_000, 2));
        let sum: u64 = many.iter().sum();
        assert!((500_000_000..504_000_000).contains(&sum), "{sum}");
        assert!(many.iter().all(|size| (1000..=4_000_000).contains(size)));
        // Twelve powers of two, and about a thousand files.
        assert!((900..1200).contains(&many.len()), "{}", many.len());
        let below = many.iter().filter(|size| **size < 63_246).count() as f64 / many.len() as f64;
        assert!((0.45..0.55).contains(&below), "{below}");
        let directory = tempfile::tempdir().unwrap();
        make(directory.path(), &[5000, 5000, 3_000_000], 1, &Stop::default()).unwrap();
        let read = |name: &str| std::fs::read(directory.path().join(name)).unwrap();
        assert_eq!((read("00000").len(), read("00002").len()), (5000, 3_000_000));
        assert_ne!(read("00000"), read("00001"));
        std::fs::create_dir_all(directory.path().join("b/c")).unwrap();
        std::fs::write(directory.path().join("b/c/d"), "abc").unwrap();
        warm(directory.path()).unwrap();
        let names = list(directory.path()).unwrap();
        assert_eq!((names.len(), &names[3]), (4, &(PathBuf::from("b/c/d"), 3)));
    }
}
