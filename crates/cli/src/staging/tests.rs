//! Trees copied between directories of the local file system.

use super::*;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

fn options() -> Options {
    Options { threads: 4, checksum: true, recursive: true, xattrs: true }
}

fn run(sources: &[PathBuf], target: &Path) -> Summary {
    let tally = Tally::default();
    let pairs = pairs(sources, target).unwrap();
    copy(&pairs, &options(), &tally, &Stop::default());
    tally.summary()
}

/// Goal: modes, times, links of both kinds, holes, odd names and content are copied.
#[test]
fn tree_arrives_whole() {
    let base = tempfile::tempdir().unwrap();
    let source = base.path().join("source");
    fs::create_dir_all(source.join("a/b")).unwrap();
    let content: Vec<u8> = (0..3_000_001u32).map(|n| ((n * 7) >> 3) as u8).collect();
    fs::write(source.join("a/big"), &content).unwrap();
    fs::write(source.join("a/b/empty"), "").unwrap();
    fs::write(source.join("odd \n name"), "x").unwrap();
    fs::hard_link(source.join("a/big"), source.join("a/b/same")).unwrap();
    symlink("../nowhere", source.join("a/link")).unwrap();
    let holey = fs::File::create(source.join("holey")).unwrap();
    holey.write_all_at(b"end", 64 << 20).unwrap();
    holey.set_len(65 << 20).unwrap();
    let past = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    fs::File::open(source.join("a/big")).unwrap().set_modified(past).unwrap();
    fs::set_permissions(source.join("a/big"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(source.join("a/b"), fs::Permissions::from_mode(0o555)).unwrap();

    let target = base.path().join("target");
    let summary = run(std::slice::from_ref(&source), &target);
    assert_eq!(summary.errors, []);
    assert_eq!((summary.files, summary.verified), (6, 4));
    assert_eq!(fs::read(target.join("a/big")).unwrap(), content);
    let data = fs::metadata(target.join("a/big")).unwrap();
    assert_eq!((data.modified().unwrap(), data.mode() & 0o7777), (past, 0o4751));
    assert_eq!(data.ino(), fs::metadata(target.join("a/b/same")).unwrap().ino());
    assert_eq!(fs::metadata(target.join("a/b")).unwrap().mode() & 0o777, 0o555);
    assert_eq!(fs::read_link(target.join("a/link")).unwrap(), Path::new("../nowhere"));
    let data = fs::metadata(target.join("holey")).unwrap();
    assert!(data.len() == 65 << 20 && data.blocks() * 512 < 1 << 20, "{data:?}");
    // Again, over itself; into a directory it takes its own name.
    assert_eq!(run(std::slice::from_ref(&source), &target).errors, []);
    assert!(target.join("source/a/b/same").exists());
}

/// Goal: extended attributes of files, also read-only ones, and of directories are copied, unless
/// the options exclude them.
#[test]
fn extended_attributes_arrive() {
    let base = tempfile::tempdir().unwrap();
    let source = base.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "x").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    for (path, value) in [(&source, &b"directory"[..]), (&source.join("file"), b"\0file\xff")] {
        match rustix::fs::setxattr(path, "user.test", value, flags) {
            Err(rustix::io::Errno::OPNOTSUPP) => {
                println!("skipped: {} has no extended attributes", base.path().display());
                return;
            }
            result => result.unwrap(),
        }
    }
    fs::set_permissions(source.join("file"), fs::Permissions::from_mode(0o444)).unwrap();
    let value = |path: &Path| {
        let mut value = [0; 64];
        let length = rustix::fs::getxattr(path, "user.test", &mut value[..])?;
        Ok::<_, rustix::io::Errno>(value[..length].to_vec())
    };
    let target = base.path().join("target");
    assert_eq!(run(std::slice::from_ref(&source), &target).errors, []);
    assert_eq!(value(&target).unwrap(), b"directory");
    assert_eq!(value(&target.join("file")).unwrap(), b"\0file\xff");

    let tally = Tally::default();
    let bare = base.path().join("bare");
    let pairs = pairs(std::slice::from_ref(&source), &bare).unwrap();
    copy(&pairs, &Options { xattrs: false, ..options() }, &tally, &Stop::default());
    assert_eq!(tally.summary().errors, []);
    assert_eq!(value(&bare.join("file")), Err(rustix::io::Errno::NODATA));
}

/// Goal: failures are reported by name, and the rest is copied all the same.
#[test]
fn errors_are_collected() {
    let base = tempfile::tempdir().unwrap();
    let source = base.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("good"), "x").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(source.join("socket")).unwrap();
    let summary = run(std::slice::from_ref(&source), &base.path().join("target"));
    assert_eq!((summary.files, summary.failures), (1, 1));
    assert!(summary.errors[0].path.ends_with("source/socket"));
}

/// Goal: a tree is not copied into itself, nor several sources to a file.
#[test]
fn senseless_targets_are_refused() {
    let base = tempfile::tempdir().unwrap();
    let source = base.path().join("a");
    fs::create_dir(&source).unwrap();
    let file = base.path().join("f");
    fs::File::create(&file).unwrap().write_all(b"x").unwrap();
    assert!(pairs(std::slice::from_ref(&source), &source.join("b/c")).is_err());
    assert!(pairs(std::slice::from_ref(&source), &source).is_err());
    assert!(pairs(&[source.clone(), file.clone()], &base.path().join("new")).is_err());
    assert!(pairs(&[base.path().join("missing")], &source).is_err());
}

/// Goal: a stopped copy leaves neither partial files nor temporary names.
#[test]
fn stopped_copy_leaves_nothing_half() {
    let base = tempfile::tempdir().unwrap();
    let source = base.path().join("source");
    fs::create_dir(&source).unwrap();
    for index in 0..64 {
        fs::write(source.join(index.to_string()), vec![index as u8; 1 << 20]).unwrap();
    }
    let target = base.path().join("target");
    let (tally, stop) = (Tally::default(), Stop::default());
    let pairs = pairs(&[source], &target).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| copy(&pairs, &options(), &tally, &stop));
        while tally.summary().bytes < 4 << 20 {
            std::thread::yield_now();
        }
        stop.request();
    });
    for entry in fs::read_dir(&target).unwrap() {
        let entry = entry.unwrap();
        assert!(!entry.file_name().to_string_lossy().starts_with('.'), "{entry:?}");
        assert_eq!(entry.metadata().unwrap().len(), 1 << 20);
    }
}
