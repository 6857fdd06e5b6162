//! Default names of the namespaces and the subsystem that a target exports.
//!
//! A host with several paths treats two subsystems with one NQN, or two namespaces with one UUID,
//! as two paths to the same blocks, and writes to either. So a default must never be the same for
//! two stores, and must stay the same for one store over restarts. It is derived from the machine
//! and from the store:
//!
//! - a file by its path, inode and time of birth, so that neither a new file nor a snapshot of it
//!   inherits the name;
//! - a disk by its own identifiers (WWID, serial number, device mapper's or md's UUID), because
//!   names such as /dev/sdb may change at a boot; else by its path;
//! - memory at random, because its content is new at each start.
//!
//! The machine's identity (/etc/machine-id) is confidential (machine-id(5)): only a keyed hash of
//! it leaves this module. Machines that were cloned with their machine-id and disks have equal
//! names until they get machine-ids of their own, or `uuid=` and `--nqn`.

use anyhow::Context;
use nvme::Nqn;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Names the purpose of the hash, so that the hash has no other use.
const PURPOSE: &str = "tsumugi 2026-11-22 identities of a target";
/// Where a machine keeps its identity.
const MACHINE_ID_FILES: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];

/// A hash over parts and the borders between them.
struct Digest(blake3::Hasher);

impl Digest {
    /// Returns a hash that includes the machine's identity.
    fn of_machine(machine: &[u8], kind: &str) -> Self {
        Self(blake3::Hasher::new_derive_key(PURPOSE)).with(machine).with(kind.as_bytes())
    }

    fn with(mut self, part: &[u8]) -> Self {
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part);
        self
    }

    fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&self.0.finalize().as_bytes()[..16]);
        bytes
    }

    fn uuid(&self) -> Uuid {
        uuid::Builder::from_custom_bytes(self.bytes()).into_uuid()
    }
}

/// Returns the identity of this machine: its machine-id, else its host name.
fn machine() -> Vec<u8> {
    let id = MACHINE_ID_FILES.iter().find_map(|path| {
        let text = std::fs::read_to_string(path).ok()?;
        let id = text.trim();
        let is_set = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_set && id.bytes().any(|byte| byte != b'0')).then(|| id.as_bytes().to_vec())
    });
    id.unwrap_or_else(|| rustix::system::uname().nodename().to_bytes().to_vec())
}

/// Returns a new random name.
pub(super) fn random() -> Uuid {
    let mut bytes = [0; 16];
    reactor::random::fill(&mut bytes);
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

/// Returns the name of an existing file or disk.
///
/// # Errors
/// If it cannot be examined.
pub(super) fn of_path(path: &Path) -> anyhow::Result<Uuid> {
    let examined = || format!("cannot examine {}", path.display());
    let metadata = std::fs::metadata(path).with_context(examined)?;
    let machine = machine();
    if metadata.file_type().is_block_device() {
        let path = std::path::absolute(path).with_context(examined)?;
        return Ok(of_disk(&machine, &path, Path::new("/sys/dev/block"), metadata.rdev()));
    }
    let path = path.canonicalize().with_context(examined)?;
    // On a union, opening for writing copies the file up, which gives it another inode: the name
    // must be that of the copy from the start.
    let opened = std::fs::File::options().append(true).open(&path);
    let metadata = opened.and_then(|file| file.metadata()).unwrap_or(metadata);
    let born = metadata.created().ok().and_then(|it| it.duration_since(std::time::UNIX_EPOCH).ok());
    let digest = Digest::of_machine(&machine, "file")
        .with(path.as_os_str().as_encoded_bytes())
        .with(&metadata.ino().to_le_bytes());
    Ok(match born {
        Some(born) => digest.with(&born.as_nanos().to_le_bytes()),
        // Files of two file systems may have one inode number; the device number differs.
        None => digest.with(&metadata.dev().to_le_bytes()),
    }
    .uuid())
}

/// Returns the name of a disk with the device number `device`, from its entry in `sysfs`.
fn of_disk(machine: &[u8], path: &Path, sysfs: &Path, device: u64) -> Uuid {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let entry = sysfs.join(format!("{major}:{minor}"));
    let entry = entry.canonicalize().unwrap_or(entry);
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(path).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    };
    let partition = read(entry.join("partition"));
    let disk = if partition.is_some() { entry.join("..") } else { entry };
    let own = ["wwid", "device/wwid", "dm/uuid", "md/uuid", "loop/backing_file", "serial"]
        .into_iter()
        .chain(["device/serial"])
        .find_map(|name| read(disk.join(name)).map(|value| (name, value)));
    let Some((name, value)) = own else {
        return Digest::of_machine(machine, "device")
            .with(path.as_os_str().as_encoded_bytes())
            .uuid();
    };
    Digest::of_machine(machine, "disk")
        .with(name.as_bytes())
        .with(value.as_bytes())
        .with(read(disk.join("loop/offset")).unwrap_or_default().as_bytes())
        .with(partition.unwrap_or_default().as_bytes())
        .uuid()
}

/// Returns the NQN of a subsystem with these persistent namespaces; without any, a new one at each
/// call.
///
/// # Errors
/// None in practice: the name is always well formed.
pub(super) fn nqn(persistent: &[Uuid]) -> anyhow::Result<Nqn> {
    let name = if persistent.is_empty() {
        random()
    } else {
        let digest = Digest::of_machine(&machine(), "subsystem");
        persistent.iter().fold(digest, |digest, uuid| digest.with(uuid.as_bytes())).uuid()
    };
    Ok(Nqn::new(&format!("nqn.2026-01.io.tsumugi:target:{}", name.simple()))?)
}

/// Returns the serial number of a subsystem: 20 characters, from the machine and the NQN.
pub(super) fn serial(nqn: &Nqn) -> String {
    let digest = Digest::of_machine(&machine(), "serial").with(nqn.as_str().as_bytes());
    digest.uuid().simple().to_string()[..20].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a file has the same name by each of its paths; another file, and a new file at its
    /// path, have other names.
    #[test]
    fn files_have_names_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let [one, two, link] = ["one", "two", "link"].map(|name| dir.path().join(name));
        std::fs::write(&one, "1").unwrap();
        std::fs::write(&two, "1").unwrap();
        std::os::unix::fs::symlink(&one, &link).unwrap();
        let first = of_path(&one).unwrap();
        assert_eq!(first, of_path(&one).unwrap());
        assert_eq!(first, of_path(&link).unwrap());
        assert_ne!(first, of_path(&two).unwrap());
        std::fs::write(&one, "other content").unwrap();
        assert_eq!(first, of_path(&one).unwrap());
        let new = dir.path().join("new");
        std::fs::write(&new, "1").unwrap();
        std::fs::rename(&new, &one).unwrap();
        assert_ne!(first, of_path(&one).unwrap());
        assert!(of_path(&dir.path().join("nothing")).is_err());
        let nqn = nqn(&[first]).unwrap();
        assert_eq!(nqn, super::nqn(&[first]).unwrap());
        assert_ne!(nqn, super::nqn(&[of_path(&two).unwrap()]).unwrap());
        assert_ne!(super::nqn(&[]).unwrap(), super::nqn(&[]).unwrap());
        assert_eq!(serial(&nqn).len(), 20);
    }

    /// Goal: a disk is known by its own identifiers, its partitions have different names, and equal
    /// disks of two machines have two names.
    #[test]
    fn disks_have_names_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("sda/device/wwid", "naa.5000\n");
        put("sda/sda1/partition", "1\n");
        put("sda/sda2/partition", "2\n");
        put("vdb/size", "8\n");
        for (number, name) in [("8:0", "sda"), ("8:1", "sda/sda1"), ("8:2", "sda/sda2")] {
            std::os::unix::fs::symlink(dir.path().join(name), dir.path().join(number)).unwrap();
        }
        std::os::unix::fs::symlink(dir.path().join("vdb"), dir.path().join("254:16")).unwrap();
        let of = |machine: &str, path: &str, major, minor| {
            let device = rustix::fs::makedev(major, minor);
            of_disk(machine.as_bytes(), Path::new(path), dir.path(), device)
        };
        let disk = of("m", "/dev/sda", 8, 0);
        assert_eq!(disk, of("m", "/dev/renamed-at-boot", 8, 0));
        let all = [
            disk,
            of("m", "/dev/sda1", 8, 1),
            of("m", "/dev/sda2", 8, 2),
            of("m", "/dev/vdb", 254, 16),
            of("m", "/dev/vdc", 254, 32),
            of("another machine", "/dev/sda", 8, 0),
        ];
        let different: std::collections::BTreeSet<Uuid> = all.into_iter().collect();
        assert_eq!(different.len(), all.len());
    }
}
