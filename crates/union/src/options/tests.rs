use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::*;
use proptest::prelude::*;

fn parse(text: &str) -> Result<Options, OptionError> {
    Options::parse(text.as_bytes())
}

/// Goal: what mount(8), Podman and the test suites pass is understood.
#[test]
fn the_strings_of_real_callers_are_read() {
    let options = parse(
        "rw,lowerdir=/a:/b,upperdir=/u,workdir=/w,dev,suid,lazytime,_netdev,x-systemd.automount",
    )
    .unwrap();
    assert_eq!(options.lower, [Path::new("/a"), Path::new("/b")]);
    assert_eq!(options.upper.as_deref(), Some(Path::new("/u")));
    assert!(!options.read_only && options.redirect == RedirectMode::Follow);
    let podman = "lowerdir=l/ABC:l/DEF,upperdir=/s/diff,workdir=/s/work,volatile,\
        uidmapping=0:1000:1:1:100000:65536,gidmapping=0:1000:1,xattr_permissions=2,\
        context=\"system_u:object_r:container_file_t:s0:c1,c2\",nodev,fsync=0";
    let options = parse(podman).unwrap();
    assert_eq!(options.sync, SyncMode::Volatile);
    assert_eq!(options.uid_map[1], IdRange { disk: 1, shown: 100_000, count: 65_536 });
    assert!(options.owner_xattr == Some(OwnerXattr::Containers) && options.no_devices);
    assert!(parse("lowerdir=/a,writeback=1").unwrap().writeback);
    assert!(!parse("lowerdir=/a,writeback,writeback=0").unwrap().writeback);
    assert_eq!(parse("lowerdir=/a").unwrap().passthrough, Pass::Programs);
    assert_eq!(parse("lowerdir=/a,passthrough=lower").unwrap().passthrough, Pass::Lower);
    assert!(parse("lowerdir=/a,passthrough=all").is_err());
}

/// Goal: unknown and unsupported options are refused by name.
#[test]
fn the_rest_is_refused_by_name() {
    for (text, name) in [
        ("lowerdir=/a,colour=red", "colour=red"),
        ("lowerdir=/a,sync", "sync"),
        ("lowerdir=/a,index=maybe", "index"),
        ("lowerdir=/a,nfs_export=on", "nfs_export"),
        ("lowerdir=/a,uidmapping=1:2", "uidmapping"),
        ("lowerdir=/a,uidmapping=4294967295:0:2", "uidmapping"),
        ("lowerdir=/a,chunk=5000", "chunk"),
        ("lowerdir=/a,chunk=8M", "chunk"),
        ("lowerdir=/a,fill_rate=1T", "fill_rate"),
        ("lowerdir=/a,fill_free=100", "fill_free"),
        ("lowerdir=/a,timeout=-1", "timeout"),
        ("upperdir=/u,workdir=/w", "lowerdir"),
        ("lowerdir=/a,upperdir=/u", "workdir"),
        ("lowerdir=/a,userxattr,redirect_dir=on", "redirect_dir"),
        ("lowerdir=:/a", "lowerdir"),
        ("lowerdir=/a::/b:/c", "lowerdir"),
        ("lowerdir=/a:::/b", "lowerdir"),
        ("lowerdir=/a::", "lowerdir"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(name), "{text}: {error}");
    }
}

/// Goal: `::` and `lowerdir+`/`datadir+` name the same layers.
#[test]
fn data_only_layers_are_distinguished() {
    let options = parse("lowerdir=/a:/b::/c::/d").unwrap();
    assert_eq!((options.lower.len(), options.data_only_count), (4, 2));
    let other = parse("lowerdir+=/a,lowerdir+=/b,datadir+=/c,datadir+=/d").unwrap();
    assert_eq!((&other.lower, other.data_only_count), (&options.lower, 2));
    assert!(parse("lowerdir+=/a,datadir+=/c,lowerdir+=/b").is_err());
    assert!(parse("datadir+=/c").is_err());
}

fn path() -> impl Strategy<Value = PathBuf> {
    proptest::collection::vec(1_u8..=255, 1..20).prop_map(|mut bytes| {
        bytes.insert(0, b'/');
        PathBuf::from(OsString::from_vec(bytes))
    })
}

fn ranges() -> impl Strategy<Value = Vec<IdRange>> {
    let range = (0..1000_u32, 0..1000_u32, 1..1000_u32);
    let range = range.prop_map(|(disk, shown, count)| IdRange { disk, shown, count });
    proptest::collection::vec(range, 0..3)
}

/// Options that a text keeps completely.
fn kept() -> impl Strategy<Value = Options> {
    let layers = (proptest::collection::vec(path(), 1..5), 0..4_usize, path(), path());
    let format = (0..3_usize, any::<bool>(), any::<bool>(), 0..3_usize, any::<bool>(), 0..3_usize);
    let owners = (ranges(), ranges(), any::<[Option<u32>; 2]>(), any::<bool>());
    let partial = (0..3_usize, prop_oneof![Just(0), Just(4096), Just(4 << 20)]);
    (layers, format, owners, partial).prop_map(|(layers, format, owners, partial)| {
        let (lower, data_only, upper, work) = layers;
        let (redirect, index, xino, sync, whole, owner_xattr) = format;
        let is_user = !index && redirect != 0 && whole;
        Options {
            data_only_count: data_only.min(lower.len() - 1),
            lower,
            upper: Some(upper),
            work: Some(work),
            xattrs: if is_user { XattrClass::User } else { XattrClass::Auto },
            redirect: [RedirectMode::On, RedirectMode::Follow, RedirectMode::NoFollow][redirect],
            index,
            xino,
            sync: [SyncMode::Auto, SyncMode::Strict, SyncMode::Volatile][sync],
            sync_whole_file_system: whole,
            uid_map: owners.0,
            gid_map: owners.1,
            squash_uid: owners.2[0],
            squash_gid: owners.2[1],
            no_acl: owners.3,
            owner_xattr: [None, Some(OwnerXattr::Security), Some(OwnerXattr::Containers)]
                [owner_xattr],
            fill: [FillMode::Background, FillMode::Keep, FillMode::Unmount][partial.0],
            chunk_bytes: partial.1,
            ..Options::default()
        }
    })
}

proptest! {
    /// Goal: options that decide the meaning of the layers read back from their text; layers can be
    /// replaced in any string.
    #[test]
    fn texts_read_back(options in kept()) {
        let read = Options::parse(&options.text());
        prop_assert_eq!(read.as_ref(), Ok(&options));
        let text = options.replace_layers(br#"ro,lowerdir=/a\,b:/c,upperdir="/u,v",workdir=/w,noatime"#);
        let read = Options::parse(&text).unwrap();
        prop_assert!(read.read_only && read.no_atime);
        prop_assert_eq!(
            (&read.lower, read.data_only_count, &read.upper, &read.work),
            (&options.lower, options.data_only_count, &options.upper, &options.work)
        );
    }

    /// Goal: any path survives being escaped, with any commas, colons, quotes and backslashes.
    #[test]
    fn escaped_paths_come_back(
        lower in proptest::collection::vec(path(), 1..5),
        upper in path(),
        work in path(),
    ) {
        let layers: Vec<&Path> = lower.iter().map(PathBuf::as_path).collect();
        let text = Options::layers_text(&layers, Some((&upper, &work)));
        let options = Options::parse(text.as_bytes()).unwrap();
        prop_assert_eq!(options.lower, lower);
        prop_assert_eq!(options.upper, Some(upper));
        prop_assert_eq!(options.work, Some(work));
    }

    /// Goal: no string makes the parser panic.
    #[test]
    fn any_bytes_are_read_or_refused(text in proptest::collection::vec(any::<u8>(), 0..80)) {
        let _ = Options::parse(&text);
        let _ = Options::parse(&[b"lowerdir=/a,", &text[..]].concat());
    }
}
