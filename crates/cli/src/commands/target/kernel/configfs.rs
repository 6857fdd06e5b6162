//! Objects of configfs, each noted in a journal before it is created.
//!
//! The journal lists the objects that must be removed again, in the order of their creation:
//! directories and links. It holds no attributes, and so no secret.

use anyhow::{Context, bail};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Where configfs is mounted.
pub(super) const ROOT: &str = "/sys/kernel/config";

/// The objects to create, and their journal.
pub(super) struct Tree<'a> {
    root: &'a Path,
    journal: File,
}

impl<'a> Tree<'a> {
    /// Returns a tree of objects below `root`, noted in `journal`.
    pub(super) fn new(root: &'a Path, journal: File) -> Self {
        Self { root, journal }
    }

    /// Returns the path of an object.
    pub(super) fn path(&self, object: impl AsRef<Path>) -> PathBuf {
        self.root.join(object)
    }

    /// Creates an object.
    ///
    /// # Errors
    /// If the object exists, because another program created it; errors of its creation.
    pub(super) fn make(&mut self, object: impl AsRef<Path>) -> anyhow::Result<PathBuf> {
        let path = self.path(object);
        if path.exists() {
            bail!(
                "{} is there already: another program set it up; choose another name or address, or end \
                 that program",
                path.display()
            );
        }
        self.note('d', &path)?;
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// Links `from` to the object at `to`.
    pub(super) fn link(&mut self, from: &Path, to: &Path) -> anyhow::Result<()> {
        self.note('l', from)?;
        symlink(to, from)
            .with_context(|| format!("cannot link {} to {}", from.display(), to.display()))
    }

    fn note(&mut self, kind: char, path: &Path) -> anyhow::Result<()> {
        let mut line = format!("{kind} ").into_bytes();
        line.extend_from_slice(path.as_os_str().as_bytes());
        line.push(b'\n');
        self.journal.write_all(&line).context("cannot write the journal of the kernel's target")
    }
}

/// Sets an attribute.
pub(super) fn set(object: &Path, attribute: &str, value: &str) -> anyhow::Result<()> {
    let path = object.join(attribute);
    write(&path, value).with_context(|| format!("cannot set {} to {value:?}", path.display()))
}

/// Sets an attribute that only root may read. Errors do not contain the value.
pub(super) fn set_secret(object: &Path, attribute: &str, value: &str) -> anyhow::Result<()> {
    let path = object.join(attribute);
    fs::set_permissions(&path, Permissions::from_mode(0o600))
        .with_context(|| format!("cannot hide {}", path.display()))?;
    write(&path, value).with_context(|| format!("cannot set {}", path.display()))
}

/// Writes an existing attribute.
fn write(path: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

/// Removes the objects in a journal, the latest first. A missing object is not an error.
///
/// # Errors
/// The first object that stays, after trying all.
pub(super) fn remove(journal: &Path) -> anyhow::Result<()> {
    let text = fs::read(journal).with_context(|| format!("cannot read {}", journal.display()))?;
    let mut result = Ok(());
    // An object after the last line break was not created: its note is completed first.
    let lines =
        text.split_inclusive(|&byte| byte == b'\n').filter_map(|line| line.strip_suffix(b"\n"));
    for line in lines.collect::<Vec<_>>().into_iter().rev() {
        let Some((kind, path)) = line.split_at_checked(2) else { continue };
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        let removed = match kind {
            b"l " => fs::remove_file(path),
            b"d " => fs::remove_dir(path),
            _ => Err(io::Error::other("the journal has an unknown line")),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let error = anyhow::Error::new(error)
                    .context(format!("cannot remove {} of the kernel's target", path.display()));
                result = result.and(Err(error));
            }
            _ => {}
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: created objects are removed in the right order, foreign objects are neither taken nor
    /// removed, and a torn last line changes nothing.
    #[test]
    fn what_was_made_goes() {
        let dir = tempfile::tempdir().unwrap();
        let (root, journal) = (dir.path().join("root"), dir.path().join("journal"));
        fs::create_dir_all(root.join("others")).unwrap();
        let mut tree = Tree::new(&root, File::create(&journal).unwrap());
        let one = tree.make("one").unwrap();
        tree.make("one/two").unwrap();
        tree.link(&one.join("link"), &root.join("others")).unwrap();
        assert!(tree.make("others").unwrap_err().to_string().contains("is there already"));
        assert!(tree.make("none/below").is_err());
        let mut file = OpenOptions::new().append(true).open(&journal).unwrap();
        file.write_all(format!("d {}", root.join("others").display()).as_bytes()).unwrap();
        remove(&journal).unwrap();
        let left: Vec<_> = fs::read_dir(&root).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(left, ["others"]);
        remove(&journal).unwrap();
    }

    /// Goal: an object that cannot be removed is reported, and the others are removed all the same.
    #[test]
    fn what_stays_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let (root, journal) = (dir.path().join("root"), dir.path().join("journal"));
        fs::create_dir(&root).unwrap();
        let mut tree = Tree::new(&root, File::create(&journal).unwrap());
        tree.make("free").unwrap();
        tree.make("used").unwrap();
        fs::create_dir(root.join("used/by-others")).unwrap();
        assert!(format!("{:#}", remove(&journal).unwrap_err()).contains("root/used"));
        assert!(root.join("used").exists() && !root.join("free").exists());
    }

    /// Goal: no message contains a secret, and its attribute is hidden first.
    #[test]
    fn secrets_are_hidden() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("key"), "").unwrap();
        set_secret(dir.path(), "key", "DHHC-1:secret").unwrap();
        let metadata = fs::metadata(dir.path().join("key")).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        fs::create_dir(dir.path().join("not")).unwrap();
        let error = format!("{:#}", set_secret(dir.path(), "not", "DHHC-1:secret").unwrap_err());
        assert!(!error.contains("secret"), "{error}");
    }
}
