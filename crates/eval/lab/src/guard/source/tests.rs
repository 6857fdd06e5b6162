use super::*;
use std::os::unix::fs::symlink;

/// A made-up sysfs: directories of devices, with links by number.
struct Fake {
    root: tempfile::TempDir,
    mounts: String,
}

impl Fake {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("dev/block")).unwrap();
        Self { root, mounts: String::new() }
    }

    /// A device below `parent` ("" is the top), with its link by number.
    fn device(&self, parent: &str, name: &str, numbers: &str) -> PathBuf {
        let directory = self.root.path().join("devices").join(parent).join(name);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("dev"), format!("{numbers}\n")).unwrap();
        symlink(&directory, self.root.path().join("dev/block").join(numbers)).unwrap();
        directory
    }

    fn leaves(&self, numbers: Numbers) -> Result<Vec<Numbers>, String> {
        let machine = Machine { sys: self.root.path().into(), mounts: self.mounts.clone() };
        let mut leaves = Leaves::new();
        machine.device(numbers, &mut leaves, 0).map(|()| leaves.into_iter().collect())
    }
}

fn above(upper: &Path, lower: &Path) {
    fs::create_dir_all(upper.join("slaves")).unwrap();
    symlink(lower, upper.join("slaves").join(lower.file_name().unwrap())).unwrap();
}

fn back(device: &Path, file: &str) {
    fs::create_dir_all(device.join("loop")).unwrap();
    fs::write(device.join("loop/backing_file"), format!("{file}\n")).unwrap();
}

/// Goal: a disk and its partition count by themselves; md and dm count by what they lie on, each
/// device once, through partitions of them too.
#[test]
fn stacks_are_followed() {
    let fake = Fake::new();
    let (sda, _) = (fake.device("", "sda", "8:0"), fake.device("", "sdb", "8:16"));
    let part = fake.device("sda", "sda1", "8:1");
    fs::write(part.join("partition"), "1\n").unwrap();
    assert_eq!(fake.leaves((8, 0)), Ok(vec![(8, 0)]));
    assert_eq!(fake.leaves((8, 1)), Ok(vec![(8, 1)]));
    let md = fake.device("", "md0", "9:0");
    above(&md, &part);
    above(&md, &fake.root.path().join("devices/sdb"));
    let (dm, top) = (fake.device("", "dm-0", "253:0"), fake.device("", "dm-1", "253:1"));
    above(&dm, &md);
    above(&top, &dm);
    above(&top, &part);
    assert_eq!(fake.leaves((253, 1)), Ok(vec![(8, 1), (8, 16)]));
    let inner = fake.device("md0", "md0p1", "259:0");
    fs::write(inner.join("partition"), "1\n").unwrap();
    assert_eq!(fake.leaves((259, 0)), Ok(vec![(8, 1), (8, 16)]));
    assert!(sda.exists());
}

/// Goal: a loop device counts by the disk that its file lies on, also below dm; where the file cannot
/// be found, or lies on memory, nothing is claimed, and the reason is given.
#[test]
fn loops_are_followed_to_the_disk() {
    let mut fake = Fake::new();
    let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    let device = numbers(file.as_file().metadata().unwrap().dev());
    let number = format!("{}:{}", device.0, device.1);
    if device.0 != 0 {
        fake.device("", "disk", &number);
    }
    let first = fake.device("", "loop0", "7:0");
    back(&first, &file.path().display().to_string());
    let dm = fake.device("", "dm-0", "253:0");
    above(&dm, &first);
    if device.0 == 0 {
        println!("not available: /var/tmp lies on a file system without a device of its own");
    } else {
        assert_eq!(fake.leaves((7, 0)), Ok(vec![device]));
        assert_eq!(fake.leaves((253, 0)), Ok(vec![device]));
    }
    let gone = fake.device("", "loop1", "7:1");
    back(&gone, "/nowhere/file (deleted)");
    assert!(fake.leaves((7, 1)).unwrap_err().contains("loop1"));
    // Not set up at all, and not there at all.
    fake.device("", "loop2", "7:2");
    assert!(fake.leaves((7, 2)).unwrap_err().contains("shows nothing"));
    assert!(fake.leaves((8, 0)).is_err());
    let memory = fake.device("", "loop3", "7:3");
    let in_memory = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    back(&memory, &in_memory.path().display().to_string());
    fake.mounts = "30 1 0:24 / /dev/shm rw - tmpfs tmpfs rw\n".into();
    assert!(fake.leaves((7, 3)).unwrap_err().contains("tmpfs"));
}

/// Goal: a circle of devices ends with an error.
#[test]
fn circles_end() {
    let fake = Fake::new();
    let (one, other) = (fake.device("", "dm-0", "253:0"), fake.device("", "dm-1", "253:1"));
    above(&one, &other);
    above(&other, &one);
    assert!(fake.leaves((253, 0)).unwrap_err().contains("above each other"));
}

/// Goal: the deepest and last mount holds a path; escapes are undone; tmpfs by itself is storage that
/// nothing caches, while a file on an unknown file system is unknown.
#[test]
fn mounts_are_found() {
    let mounts = "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                  21 20 0:30 / /a\\040b rw shared:1 - btrfs /dev/sdb rw,subvol=/\n\
                  22 20 0:31 / /a\\040b/c rw - fuse.x x rw\n\
                  23 20 0:32 / /a\\040b/c rw - tmpfs tmpfs rw\n";
    let machine = Machine { sys: "/sys".into(), mounts: mounts.into() };
    let kind = |path: &str| machine.mount_of(Path::new(path)).map(|mount| mount.kind.to_string());
    assert_eq!(kind("/x").as_deref(), Some("ext4"));
    assert_eq!(kind("/a b/x").as_deref(), Some("btrfs"));
    assert_eq!(kind("/a b/c/x").as_deref(), Some("tmpfs"));
    assert_eq!(kind("/a bc").as_deref(), Some("ext4"));
    let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    assert_eq!(Source::of_file(file.path()), Source::Uncached);
    assert!(matches!(Source::of_file(Path::new("/proc/self/status")), Source::Unknown(_)));
    assert!(matches!(Source::of_file(Path::new("/nowhere")), Source::Unknown(_)));
}

/// Goal: on this machine, a loop device's reads are those of the disk below it.
#[test]
fn a_real_loop_device_counts_by_its_disk() {
    let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let below = Source::of_file(file.path());
    let found =
        std::process::Command::new("losetup").args(["--find", "--show"]).arg(file.path()).output();
    let Some(device) = found.ok().filter(|it| it.status.success()) else {
        println!("not available: loop devices: run as root on a kernel with the loop module");
        return;
    };
    let device = String::from_utf8(device.stdout).unwrap();
    let source = Source::of_device(numbers(fs::metadata(device.trim()).unwrap().rdev()));
    let detached = std::process::Command::new("losetup").args(["--detach", device.trim()]).status();
    assert!(detached.unwrap().success());
    match below {
        Source::Devices(_) => assert_eq!(source, below),
        _ => assert!(matches!(source, Source::Unknown(_)), "{source:?}"),
    }
}
