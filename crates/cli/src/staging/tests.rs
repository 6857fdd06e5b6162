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

/// Goal: as with cp(1), "a/." stands for the content of a directory, in every spelling, and a source
/// that is given twice is copied once.
#[test]
fn a_dot_stands_for_the_content() {
    let base = tempfile::tempdir().unwrap();
    let (source, target) = (base.path().join("a"), base.path().join("target"));
    fs::create_dir_all(source.join("b")).unwrap();
    fs::create_dir(&target).unwrap();
    fs::write(source.join("b/file"), "x").unwrap();
    for spelling in ["a/.", "a/./", "a//.", "a/b/.."] {
        let given = base.path().join(spelling);
        let found = pairs(&[given.clone(), given.clone()], &target).unwrap();
        assert_eq!(found, [Pair { source: given, target: target.clone() }]);
    }
    for spelling in ["a", "a/", "a//"] {
        let found = pairs(&[base.path().join(spelling)], &target).unwrap();
        assert_eq!(found[0].target, target.join("a"), "{spelling}");
    }
    assert_eq!(run(&[base.path().join("a/.")], &target).errors, []);
    assert!(target.join("b/file").exists() && !target.join("a").exists());
}

/// Goal: of two sources that would become one file, one is copied and the other is named in an
/// error, also inside directories that are merged; files that are there already are replaced.
#[test]
fn no_source_replaces_another() {
    let base = tempfile::tempdir().unwrap();
    let (one, two, target) =
        (base.path().join("one"), base.path().join("two"), base.path().join("target"));
    for (directory, content) in [(&one, "one"), (&two, "two"), (&target, "before")] {
        fs::create_dir_all(directory.join("both")).unwrap();
        fs::write(directory.join("out"), content).unwrap();
        fs::write(directory.join("both/out"), content).unwrap();
    }
    fs::write(two.join("both/other"), "two").unwrap();
    for name in ["out", "both"] {
        let summary = run(&[one.join(name), two.join(name)], &target);
        assert_eq!(summary.failures, 1, "{name}: {:?}", summary.errors);
        let lost = &summary.errors[0];
        assert!(lost.path.starts_with(two.to_str().unwrap()) && lost.path.ends_with("out"));
        assert!(lost.error.contains(one.to_str().unwrap()), "{}", lost.error);
    }
    for name in ["out", "both/out"] {
        assert_eq!(fs::read_to_string(target.join(name)).unwrap(), "one");
    }
    assert_eq!(fs::read_to_string(target.join("both/other")).unwrap(), "two");
}

/// Goal: a copy that gets another owner or group than its source does not act as this owner.
#[test]
fn privileges_stay_with_their_owner() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("program");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o7755)).unwrap();
    let data = fs::metadata(&path).unwrap();
    let (uid, gid) = (data.uid(), data.gid());
    let mode = |owner, is_root| file::mode_for_owner(&data, owner, is_root);
    assert_eq!(mode((uid, gid), false), 0o7755);
    assert_eq!(mode((uid + 1, gid), false), 0o3755);
    assert_eq!(mode((uid, gid + 1), false), 0o5755);
    assert_eq!(mode((uid + 1, gid + 1), false), 0o1755);
    assert_eq!(mode((uid + 1, gid + 1), true), 0o7755);
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o2770)).unwrap();
    let data = fs::metadata(base.path()).unwrap();
    assert_eq!(file::mode_for_owner(&data, (uid + 1, gid + 1), false), 0o2770, "a directory");
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

/// Goal: a copy with digests stops in the middle of a hole too, which may be larger than any disk.
#[test]
fn a_hole_does_not_keep_a_copy_from_stopping() {
    let base = tempfile::tempdir().unwrap();
    let source = base.path().join("source");
    // With fewer bytes the digest of the hole would be complete before the copy is stopped.
    fs::File::create(&source).unwrap().set_len(4 << 40).unwrap();
    let (tally, stop) = (Tally::default(), Stop::default());
    let pairs = pairs(&[source], &base.path().join("target")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| copy(&pairs, &options(), &tally, &stop));
        while !fs::read_dir(base.path())
            .unwrap()
            .any(|entry| entry.unwrap().file_name().to_string_lossy().starts_with(".tsumugi-cp-"))
        {
            std::thread::yield_now();
        }
        stop.request();
    });
    assert_eq!(tally.summary().files, 0);
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 1);
}
