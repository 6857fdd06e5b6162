//! Tests of every operation that programs can cause, against a small file system in memory. It is
//! mounted with both transports, and answers at once or later and out of order.

mod support;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{
    FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink,
};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;

use rustix::fs::{
    Access, AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags,
    StatxFlags, Timespec, Timestamps, XattrFlags,
};
use rustix::io::Errno;
use support::harness::{Mounted, with_all};

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|index| ((index * 31 + seed * 7 + index / 4096) % 251) as u8).collect()
}

fn names(path: &Path) -> BTreeSet<String> {
    fs::read_dir(path)
        .expect("the directory is listed")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect()
}

/// Goal: names are made, found, moved, linked and removed, and each refusal has its error.
#[test]
fn names_and_directories() {
    with_all(|mounted| {
        let at = |name: &str| mounted.join(name);
        fs::create_dir(at("d")).expect("mkdir");
        assert_eq!(fs::create_dir(at("d")).expect_err("exists").kind(), ErrorKind::AlreadyExists);
        fs::write(at("d/f"), b"one").expect("create");
        let exclusive = OpenOptions::new().write(true).create_new(true).open(at("d/f"));
        assert_eq!(exclusive.expect_err("exists").kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read(at("missing")).expect_err("none").kind(), ErrorKind::NotFound);
        let not_empty = fs::remove_dir(at("d")).expect_err("not empty");
        assert_eq!(not_empty.kind(), ErrorKind::DirectoryNotEmpty);

        symlink("d/f", at("s")).expect("symlink");
        assert_eq!(fs::read_link(at("s")).expect("readlink"), Path::new("d/f"));
        assert_eq!(fs::read(at("s")).expect("through the link"), b"one");
        fs::hard_link(at("d/f"), at("h")).expect("link");
        assert_eq!(fs::metadata(at("h")).expect("stat").nlink(), 2);

        fs::rename(at("d/f"), at("g")).expect("rename");
        assert_eq!(names(mounted.path()), ["d", "g", "h", "s"].map(String::from).into());
        fs::write(at("other"), b"two").expect("create");
        let root = File::open(mounted.path()).expect("open the root");
        let rename =
            |from: &str, to: &str, flags| rustix::fs::renameat_with(&root, from, &root, to, flags);
        assert_eq!(rename("g", "other", RenameFlags::NOREPLACE), Err(Errno::EXIST));
        rename("g", "other", RenameFlags::EXCHANGE).expect("exchange");
        assert_eq!(fs::read(at("g")).expect("read"), b"two");
        assert_eq!(fs::read(at("other")).expect("read"), b"one");

        fs::remove_file(at("g")).expect("unlink");
        fs::remove_file(at("h")).expect("unlink");
        fs::remove_dir(at("d")).expect("rmdir");
        let long = "x".repeat(256);
        let error = fs::write(at(&long), b"").expect_err("the name is too long");
        assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG));
        let mode = Mode::from_raw_mode(0o644);
        rustix::fs::mknodat(&root, "fifo", FileType::Fifo, mode, 0).expect("mknod");
        assert!(fs::symlink_metadata(at("fifo")).expect("stat").file_type().is_fifo());
    });
}

/// Goal: a directory that needs many answers is listed completely and without duplicates, with the
/// right subdirectories and types.
#[test]
fn large_directories() {
    with_all(|mounted| {
        let expected: BTreeSet<String> = (0..2000).map(|n| format!("file-{n:05}-{n:x}")).collect();
        for name in &expected {
            File::create(mounted.join(name)).expect("create");
        }
        let mut seen = Vec::new();
        for entry in fs::read_dir(mounted.path()).expect("list") {
            let entry = entry.expect("an entry");
            assert!(entry.file_type().expect("type").is_file());
            assert!(entry.metadata().expect("stat").is_file());
            seen.push(entry.file_name().into_string().expect("UTF-8"));
        }
        assert_eq!(seen.len(), expected.len(), "no duplicates");
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), expected);
    });
}

/// Goal: bytes are read as they were written, for all sizes, offsets and ways of writing; the data
/// of writes lies aligned in the daemon's memory.
#[test]
fn reads_and_writes() {
    with_all(|mounted| {
        let path = mounted.join("data");
        for (seed, len) in [0, 1, 4095, 4096, 4097, 1 << 20, (3 << 20) + 17].into_iter().enumerate()
        {
            let content = bytes(len, seed);
            fs::write(&path, &content).expect("write");
            assert_eq!(fs::read(&path).expect("read"), content, "{len} bytes");
            assert_eq!(fs::metadata(&path).expect("stat").len(), len as u64);
        }
        let mut expected = bytes((3 << 20) + 17, 6);
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("open");
        for (offset, len) in [(1, 1), (4095, 2), (100_001, 200_003), ((1 << 20) - 1, 65_537)] {
            let part = bytes(len, offset);
            file.write_all_at(&part, offset as u64).expect("pwrite");
            expected[offset..offset + len].copy_from_slice(&part);
            let mut back = vec![0; len + 2];
            file.read_exact_at(&mut back, offset as u64 - 1).expect("pread");
            assert_eq!(back, expected[offset - 1..=offset + len]);
        }
        file.set_len(1000).expect("truncate");
        file.set_len(2000).expect("extend");
        expected.truncate(1000);
        expected.resize(2000, 0);
        assert_eq!(fs::read(&path).expect("read"), expected);
        file.sync_all().expect("fsync");
        file.sync_data().expect("fdatasync");

        let mut append = OpenOptions::new().append(true).open(&path).expect("open");
        append.write_all(b"tail").expect("append");
        expected.extend_from_slice(b"tail");
        assert_eq!(fs::read(&path).expect("read"), expected);
        drop(OpenOptions::new().write(true).truncate(true).open(&path).expect("open"));
        assert_eq!(fs::read(&path).expect("read"), b"");
        assert_eq!(mounted.observed.misaligned_writes.load(Ordering::SeqCst), 0);
    });
}

/// Goal: direct I/O reaches the daemon with whole buffers, in parallel, and reads them back.
#[test]
fn direct_io_in_parallel() {
    with_all(|mounted| {
        const PART: usize = 1 << 20;
        let path = mounted.join("direct");
        File::create(&path).expect("create").set_len(8 * PART as u64).expect("truncate");
        let custom = i32::try_from(OFlags::DIRECT.bits()).expect("fits");
        thread::scope(|scope| {
            for part in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    let file =
                        OpenOptions::new().read(true).write(true).custom_flags(custom).open(path);
                    let file = file.expect("open");
                    // Page-aligned memory for O_DIRECT.
                    let mut buffer = reactor::Buffer::copy_from(&bytes(PART, part));
                    let offset = (part * PART) as u64;
                    file.write_all_at(&buffer, offset).expect("write");
                    buffer.fill(0);
                    file.read_exact_at(&mut buffer, offset).expect("read");
                    assert_eq!(*buffer, bytes(PART, part));
                });
            }
        });
        let content = fs::read(&path).expect("read");
        for part in 0..8 {
            assert_eq!(content[part * PART..(part + 1) * PART], bytes(PART, part));
        }
        assert_eq!(mounted.observed.misaligned_writes.load(Ordering::SeqCst), 0);
    });
}

/// Goal: attributes are set and read, with nanoseconds and times before 1970, and birth time by
/// statx.
#[test]
fn attributes() {
    with_all(|mounted| {
        let path = mounted.join("a");
        let file = File::create(&path).expect("create");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).expect("chmod");
        assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o4751);
        std::os::unix::fs::chown(&path, Some(12), Some(34)).expect("chown");
        let metadata = fs::metadata(&path).expect("stat");
        assert_eq!((metadata.uid(), metadata.gid()), (12, 34));
        let times = Timestamps {
            last_access: Timespec { tv_sec: -5, tv_nsec: 999_999_999 },
            last_modification: Timespec { tv_sec: 1_234_567_890, tv_nsec: 123_456_789 },
        };
        rustix::fs::futimens(&file, &times).expect("futimens");
        let metadata = file.metadata().expect("fstat");
        assert_eq!((metadata.atime(), metadata.atime_nsec()), (-5, 999_999_999));
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (1_234_567_890, 123_456_789));
        let statx = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
        let statx = statx.expect("statx");
        assert!(statx.stx_mask & StatxFlags::BTIME.bits() != 0, "birth time is known");
        assert!(statx.stx_btime.tv_sec > 1_500_000_000);
        let statfs = rustix::fs::statvfs(mounted.path()).expect("statfs");
        assert_eq!((statfs.f_blocks, statfs.f_bfree, statfs.f_bavail), (1 << 20, 1 << 19, 1 << 18));
        assert_eq!((statfs.f_namemax, statfs.f_files), (255, 1000));
        rustix::fs::access(&path, Access::READ_OK).expect("access");
        let umasked = mounted.join("u");
        OpenOptions::new().write(true).create_new(true).mode(0o666).open(&umasked).expect("create");
        assert_eq!(fs::metadata(&umasked).expect("stat").mode() & 0o777, 0o644, "umask is applied");
    });
}

/// Goal: extended attributes are set, listed, read in two steps and removed, up to 64 KiB.
#[test]
fn extended_attributes() {
    with_all(|mounted| {
        let path = mounted.join("x");
        File::create(&path).expect("create");
        let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
        set("user.small", b"1", XattrFlags::CREATE).expect("set");
        assert_eq!(set("user.small", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
        assert_eq!(set("user.none", b"2", XattrFlags::REPLACE), Err(Errno::NODATA));
        let large = bytes(65_536, 3);
        set("user.large", &large, XattrFlags::empty()).expect("set");
        let get = |name: &str, buffer: &mut [u8]| rustix::fs::getxattr(&path, name, buffer);
        assert_eq!(rustix::fs::getxattr_query(&path, "user.large"), Ok(65_536));
        let mut buffer = vec![0; 65_536];
        assert_eq!(get("user.large", &mut buffer), Ok(65_536));
        assert_eq!(buffer, large);
        assert_eq!(get("user.large", &mut [0; 10]), Err(Errno::RANGE));
        assert_eq!(get("user.none", &mut [0; 10]), Err(Errno::NODATA));
        let mut list = [0; 100];
        let len = rustix::fs::listxattr(&path, &mut list[..]).expect("list");
        assert_eq!(&list[..len], b"user.large\0user.small\0");
        rustix::fs::removexattr(&path, "user.large").expect("remove");
        assert_eq!(rustix::fs::getxattr_query(&path, "user.large"), Err(Errno::NODATA));
    });
}

/// Goal: fallocate, holes, and copying within the file system arrive with their arguments.
#[test]
fn ranges() {
    with_all(|mounted| {
        let path = mounted.join("r");
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        let mut file = file.expect("create");
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 65_536).expect("allocate");
        assert_eq!(file.metadata().expect("stat").len(), 65_536);
        file.write_all_at(&[7; 8192], 16_384).expect("write");
        assert_eq!(seek(&mut file, rustix::fs::SeekFrom::Data(0)), Ok(16_384));
        assert_eq!(seek(&mut file, rustix::fs::SeekFrom::Hole(16_384)), Ok(24_576));
        assert_eq!(seek(&mut file, rustix::fs::SeekFrom::Data(30_000)), Err(Errno::NXIO));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 16_384, 4096).expect("punch");
        assert_eq!(seek(&mut file, rustix::fs::SeekFrom::Data(0)), Ok(20_480));

        let copy = File::create(mounted.join("c")).expect("create");
        let (mut from, mut to) = (20_000, 5);
        let copied =
            rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), 1000);
        assert_eq!(copied, Ok(1000));
        let mut expected = vec![0; 5 + 480];
        expected.resize(1005, 7);
        assert_eq!(fs::read(mounted.join("c")).expect("read"), expected);
    });
}

fn seek(file: &mut File, position: rustix::fs::SeekFrom) -> Result<u64, Errno> {
    rustix::fs::seek(file, position)
}

/// Goal: a file without a name (removed, or never named) works until it is closed; a nameless one
/// can be given a name.
#[test]
fn files_without_names() {
    with_all(|mounted| {
        let path = mounted.join("gone");
        let mut file =
            OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("create");
        fs::remove_file(&path).expect("unlink");
        file.write_all(b"still here").expect("write");
        file.seek(SeekFrom::Start(0)).expect("seek");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read");
        assert_eq!(text, "still here");
        assert_eq!(file.metadata().expect("fstat").nlink(), 0);

        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let nameless = rustix::fs::open(mounted.path(), flags, Mode::from_raw_mode(0o600));
        let nameless = File::from(nameless.expect("tmpfile"));
        nameless.write_all_at(b"named later", 0).expect("write");
        let proc = format!("/proc/self/fd/{}", nameless.as_raw_fd());
        let follow = AtFlags::SYMLINK_FOLLOW;
        rustix::fs::linkat(rustix::fs::CWD, proc, rustix::fs::CWD, mounted.join("named"), follow)
            .expect("linkat");
        assert_eq!(fs::read(mounted.join("named")).expect("read"), b"named later");
    });
}

/// Goal: flock and fcntl locks exclude each other between owners and are released at close; a
/// waiting lock is granted when the holder releases its lock.
#[test]
fn locks() {
    with_all(|mounted| {
        let path = mounted.join("l");
        File::create(&path).expect("create");
        let open = || OpenOptions::new().read(true).write(true).open(&path).expect("open");
        let (one, two) = (open(), open());
        rustix::fs::flock(&one, FlockOperation::LockExclusive).expect("flock");
        let shared = FlockOperation::NonBlockingLockShared;
        assert_eq!(rustix::fs::flock(&two, shared), Err(Errno::WOULDBLOCK));
        thread::scope(|scope| {
            let waiter = scope.spawn(|| rustix::fs::flock(&two, FlockOperation::LockExclusive));
            thread::sleep(std::time::Duration::from_millis(20));
            drop(one);
            waiter.join().expect("no panic").expect("granted at the other's close");
        });
        // POSIX locks belong to the process, so another process has to try.
        let script = "import fcntl,sys\nf=open(sys.argv[1],'r+')\n\
            try:\n fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB,10,5)\n print('got')\n\
            except OSError as e: print(e.errno)\n";
        let attempt = || {
            let output =
                std::process::Command::new("python3").args(["-c", script]).arg(&path).output();
            String::from_utf8(output.expect("python3 runs").stdout).expect("UTF-8")
        };
        let file = open();
        rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).expect("lock");
        assert_eq!(attempt().trim(), libc::EAGAIN.to_string());
        rustix::fs::fcntl_lock(&file, FlockOperation::Unlock).expect("unlock");
        assert_eq!(attempt().trim(), "got");
    });
}

/// Goal: answers that overtake each other reach their own callers.
#[test]
fn many_callers_at_once() {
    with_all(|mounted| {
        thread::scope(|scope| {
            for caller in 0..12 {
                scope.spawn(move || one_caller(mounted, caller));
            }
        });
        assert_eq!(names(mounted.path()).len(), 12);
    });
}

fn one_caller(mounted: &Mounted, caller: usize) {
    let directory = mounted.join(&format!("caller-{caller}"));
    fs::create_dir(&directory).expect("mkdir");
    for round in 0..15 {
        let path = directory.join(format!("f{round}"));
        let content = bytes(caller * 1000 + round * 5000, caller + round);
        fs::write(&path, &content).expect("write");
        assert_eq!(fs::read(&path).expect("read"), content);
        if round % 3 == 0 {
            fs::rename(&path, directory.join(OsStr::new("moved"))).expect("rename");
        }
    }
    assert_eq!(names(&directory).len(), 11);
}
