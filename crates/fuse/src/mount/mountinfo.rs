//! Looks up mounts in `/proc/self/mountinfo` (proc(5)).

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the connection number (minor device number) of the FUSE file system on top at `path`;
/// `None` if there is none.
pub(super) fn find(path: &Path) -> io::Result<Option<u32>> {
    Ok(find_in(&fs::read("/proc/self/mountinfo")?, path))
}

/// Returns whether there is a mount below `path`, in the mount namespace of this process.
///
/// # Errors
/// Those of reading `/proc/self/mountinfo`.
pub fn has_mounts_below(path: &Path) -> io::Result<bool> {
    Ok(has_below(&fs::read("/proc/self/mountinfo")?, path))
}

fn has_below(table: &[u8], path: &Path) -> bool {
    table.split(|&byte| byte == b'\n').filter_map(parse).any(|(_, mountpoint, _)| {
        let mountpoint = Path::new(OsStr::from_bytes(&mountpoint));
        mountpoint != path && mountpoint.starts_with(path)
    })
}

fn find_in(table: &[u8], path: &Path) -> Option<u32> {
    let last = table
        .split(|&byte| byte == b'\n')
        .filter_map(parse)
        .rfind(|(_, mountpoint, _)| Path::new(OsStr::from_bytes(mountpoint)) == path);
    last.and_then(|(minor, _, is_fuse)| is_fuse.then_some(minor))
}

/// Returns the minor number, the mount point and whether it is FUSE, from one line.
fn parse(line: &[u8]) -> Option<(u32, Vec<u8>, bool)> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (_, minor) = device.split_once(':')?;
    let mountpoint = unescape(fields.nth(1)?);
    let kind = fields.skip_while(|&field| field != b"-").nth(1)?;
    let is_fuse = kind == b"fuse" || kind.starts_with(b"fuse.");
    Some((minor.parse().ok()?, mountpoint, is_fuse))
}

/// Decodes the octal escapes of blanks and backslashes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|digits| digits.iter().all(|d| (b'0'..b'8').contains(d)));
        match digits {
            Some(digits) if byte == b'\\' => {
                out.push(digits.iter().fold(0, |sum: u8, d| (sum << 3) | (d - b'0')));
                rest = &tail[3..];
            }
            _ => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
        40 22 0:51 / /mnt/a\\040b rw,nosuid shared:7 master:2 - fuse.tsumugi tsumugi rw\n\
        41 22 0:52 / /mnt/c rw - fuse x rw\n\
        42 22 0:53 / /mnt/c rw - tmpfs x rw\n\
        not a line\n";

    /// Goal: mounts below a path count, mounts at it or beside it do not.
    #[test]
    fn sees_mounts_below() {
        assert!(has_below(TABLE, Path::new("/mnt")));
        assert!(!has_below(TABLE, Path::new("/mnt/c")));
        assert!(!has_below(TABLE, Path::new("/mn")));
    }

    /// Goal: FUSE mounts are found by path, with blanks; a mount on top of one hides it.
    #[test]
    fn finds_the_topmost_mount() {
        assert_eq!(find_in(TABLE, Path::new("/mnt/a b")), Some(51));
        assert_eq!(find_in(TABLE, Path::new("/mnt/c")), None);
        assert_eq!(find_in(TABLE, Path::new("/")), None);
        assert_eq!(find_in(TABLE, Path::new("/nowhere")), None);
    }
}
