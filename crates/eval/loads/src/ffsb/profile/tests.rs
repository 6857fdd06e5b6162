use super::*;
use proptest::prelude::*;

/// One file system, one group.
pub(in crate::ffsb) const SMALL: &str = "
time=1
[filesystem0]
    location=/mnt/test
    num_files=20
    num_dirs=3
    min_filesize=8192
    max_filesize=16384
[end0]
[threadgroup0]
    num_threads=2
    read_weight=2
    append_weight=1
    stat_weight=1
    read_size=4096
    read_blocksize=1024
    write_size=2048
    write_blocksize=512
[end0]
";

/// As version 5 has them: sections by number, inheritance, its own keys.
const OLD: &str = "
# two disks
num_filesystems=2
num_threadgroups=2
directio=0
time=600
callout=echo a # b

[filesystem0]
	location=/mnt/one/
	num_files=1000
	num_dirs=10
	max_filesize=4096
	min_filesize=4096
	agefs=1
	[threadgroup0]
		num_threads=10
		write_size=40960
		write_blocksize=4096
		create_weight=10
		delete_weight=1
	[end0]
	desired_util=0.02
[end0]

[filesystem1]
	num_files=5
	location=/mnt/two
[end1]

[threadgroup0]
	num_threads=10
	write_weight=1
	append_weight=1
	write_random=1
	fsync_file=1
	write_size=1024
	write_blocksize=512
	bindfs=1
[end0]

[threadgroup1]
	meta_weight=3
[end1]
";

/// As version 6 has them: units, weights of sizes, clones, statistics.
const NEW: &str = "
directio	= 1   # no cache
time		= 10
callout		= sync now # not this
[filesystem]
	location	= /mnt/one
	num_dirs	= 100
	size_weight	4k	33
	size_weight	1MB	1   # large
	init_size	= 2g
	reuse		= 1
[end]
[filesystem]
	location	= /mnt/two
	clone		= /mnt/one
[end]
[threadgroup]
	num_threads	= 4
	bindfs		= /mnt/two
	write_fsync_weight	= 1
	createdir_weight	= 2
	write_size	= 40k
	write_blocksize	= 4KB
	op_delay	= 7
	[stats]
		enable_stats	= 1
		enable_range	= 1
		ignore		= lseek
		msec_range	0.00 0.01
		msec_range	0.01 5.5
	[end]
[end]
";

fn read(text: &str) -> Profile {
    Profile::parse(text, None).unwrap()
}

/// Goal: version 5 is found from its keys, clauses inherit, its keys are mapped.
#[test]
fn version_5_is_read() {
    let profile = read(OLD);
    assert_eq!((profile.compat, profile.time_s, profile.is_aligned), (Compat::V5, 600, false));
    assert_eq!(profile.callout.as_deref(), Some("echo a # b"));
    let [one, two] = profile.file_systems.as_slice() else { panic!("two file systems") };
    assert_eq!((one.location.as_str(), two.location.as_str()), ("/mnt/one", "/mnt/two"));
    assert_eq!((one.files, two.files, two.directories, two.max_bytes), (1000, 5, 10, 4096));
    let aging = one.aging.as_ref().unwrap();
    assert_eq!((aging.group.threads, aging.share), (10, 0.02));
    assert_eq!(
        aging.group.mix().collect::<Vec<_>>(),
        [(Operation::Create, 10), (Operation::Delete, 1)]
    );
    let [first, second] = profile.groups.as_slice() else { panic!("two groups") };
    assert_eq!(
        first.mix().collect::<Vec<_>>(),
        [(Operation::Append, 1), (Operation::WriteFsync, 1)]
    );
    assert_eq!((first.bound, second.bound), (Some(1), None));
    assert_eq!(second.mix().collect::<Vec<_>>(), [(Operation::Metaop, 3)]);
    assert_eq!((second.threads, second.write.size_bytes), (10, 1024));
    assert!(profile.notes.iter().any(|note| note.contains("write_fsync")), "{:?}", profile.notes);
}

/// Goal: version 6 is found, with units, weights, clones, statistics, blanks and comments.
#[test]
fn version_6_is_read() {
    let profile = read(NEW);
    assert_eq!((profile.compat, profile.is_direct, profile.is_aligned), (Compat::V6, true, true));
    assert_eq!(profile.callout.as_deref(), Some("sync now"));
    let [one, two] = profile.file_systems.as_slice() else { panic!("two file systems") };
    let weights = [(4096, 33), (1 << 20, 1)].map(|(bytes, weight)| SizeWeight { bytes, weight });
    assert_eq!((one.weights.as_slice(), one.init_bytes), (weights.as_slice(), 2 << 30));
    assert_eq!(*two, FileSystem { location: "/mnt/two".into(), ..one.clone() });
    let group = &profile.groups[0];
    assert_eq!((group.bound, group.delay_ms, group.write.block_bytes), (Some(1), 7, 4096));
    let statistics = group.statistics.as_ref().unwrap();
    assert_eq!(statistics.ranges_us, [(0, 10), (10, 5500)]);
    assert!(statistics.ignored.contains(&Call::Lseek));
    assert!(!profile.only_reads());
    // Without numbers of clauses nothing is inherited.
    let two_groups = format!("{SMALL}[threadgroup]\nstat_weight=1\n[end]");
    assert!(Profile::parse(&two_groups, Some(Compat::V6)).is_err());
    assert_eq!(Profile::parse(&two_groups, Some(Compat::V5)).unwrap().groups[1].threads, 2);
}

/// Goal: what only the other version takes counts, and is told.
#[test]
fn differences_are_told() {
    let mixed = SMALL.replace("time=1", "num_filesystems=1\ntime=1");
    let mixed = mixed.replace("max_filesize=16384", "max_filesize=16k");
    let profile = read(&mixed);
    assert_eq!((profile.compat, profile.file_systems[0].max_bytes), (Compat::V6, 16384));
    assert!(profile.notes[0].contains("6.0-RC2") && profile.notes[0].contains("num_filesystems"));
    let profile = Profile::parse(SMALL, Some(Compat::V5)).unwrap();
    assert!(profile.notes[0].contains("5.2.1") && profile.notes[0].contains("stat_weight"));
}

/// Goal: each mistake is told with its line and key.
#[test]
fn mistakes_have_line_and_key() {
    for (from, to, line, key, words) in [
        ("num_dirs", "num_dears", 6, "num_dears", "unknown in [filesystem]"),
        ("read_weight", "reed_weight", 12, "reed_weight", "unknown in [threadgroup]"),
        ("time=1", "time=soon", 2, "time", "no whole number"),
        ("time=1", "num_filesystems=2", 2, "num_filesystems", "says 2, but there are 1"),
        ("time=1", "numconfigs=1", 2, "numconfigs", "FFSB 4"),
        ("time=1", "size_weight 4k 1", 2, "size_weight", "unknown in the profile"),
        ("location=/mnt/test", "reuse=1", 3, "[filesystem]", "location"),
        ("location=/mnt/test", "location=/mnt/a b", 4, "location", "blanks"),
        ("min_filesize=8192", "min_filesize=8x", 7, "min_filesize", "is no size"),
        ("min_filesize=8192", "min_filesize=32k", 8, "max_filesize", "below"),
        ("min_filesize=8192", "size_weight=4k 3", 7, "size_weight", "without ="),
        ("min_filesize=8192", "size_weight 4k", 7, "size_weight", "SIZE WEIGHT"),
        ("min_filesize=8192", "agefs=1", 3, "[filesystem]", "needs a [threadgroup]"),
        ("num_threads=2", "num_threads=0", 10, "[threadgroup]", "num_threads"),
        ("num_threads=2", "read_random=7", 11, "read_random", "0 or 1"),
        ("read_blocksize=1024", "", 10, "[threadgroup]", "read_blocksize"),
        ("write_blocksize=512", "", 10, "[threadgroup]", "write_blocksize"),
        ("write_blocksize=512", "bindfs=/other", 18, "bindfs", "location or number"),
        ("[filesystem0]", "[files]", 3, "[files]", "unknown clause"),
        ("[filesystem0]", "[stats]", 3, "[stats]", "has no place"),
        ("[filesystem0]", "[filesystem0", 3, "[filesystem0", "no ]"),
        ("write_size=2048", "write_size", 17, "write_size", "neither"),
        ("read_size=4096", "read_skip=1", 10, "[threadgroup]", "read_skipsize"),
    ] {
        assert!(SMALL.contains(from), "{from}");
        let error = Profile::parse(&SMALL.replacen(from, to, 1), Some(Compat::V6)).unwrap_err();
        assert_eq!((error.line, error.key.as_str()), (line, key), "{to}: {error}");
        assert!(error.message.contains(words), "{to}: {error}");
    }
    let open = SMALL.trim_end().trim_end_matches("[end0]");
    assert!(Profile::parse(open, None).unwrap_err().to_string().contains("no [end]"));
    assert!(Profile::parse("[end]", None).is_err() && Profile::parse("", None).is_err());
    let units = SMALL.replace("max_filesize=16384", "max_filesize=16k");
    let error = Profile::parse(&units, Some(Compat::V5)).unwrap_err();
    assert!(error.message.contains("reads \"16\" here"), "{error}");
}

fn access() -> impl Strategy<Value = Access> {
    (any::<bool>(), 0..1_u64 << 40, 1..1_u32 << 30).prop_map(
        |(is_random, size_bytes, block_bytes)| Access { is_random, size_bytes, block_bytes },
    )
}

fn statistics() -> impl Strategy<Value = Statistics> {
    let calls = prop::collection::btree_set(0..Call::ALL.len(), 0..4);
    let ranges = prop::collection::vec((0..2_000_000_u32, 0..2_000_000_u32), 0..4);
    (calls, ranges).prop_map(|(calls, ranges)| Statistics {
        ignored: calls.into_iter().map(|it| Call::ALL[it].1).collect(),
        ranges_us: ranges.into_iter().map(|(from, more)| (from, from + more)).collect(),
    })
}

fn group(file_systems: usize) -> impl Strategy<Value = ThreadGroup> {
    let numbers = (1..=4096_u32, 0..1000_u32, 0..4096_u32);
    let mut weights = prop::array::uniform15(0..100_u32).boxed();
    if file_systems == 0 {
        // An aging group.
        weights = weights
            .prop_map(|mut weights| {
                for (name, it) in Operation::ALL {
                    assert!(!name.is_empty());
                    weights[it.index()] *= u32::from(it.ages());
                }
                weights
            })
            .boxed();
    }
    let bound = prop::option::of(0..file_systems.max(1))
        .prop_map(move |it| it.filter(|_| file_systems > 0));
    let statistics =
        prop::option::of(statistics()).prop_map(move |it| it.filter(|_| file_systems > 0));
    (numbers, weights, access(), access(), bound, statistics).prop_map(
        |((threads, delay_ms, skip), mut weights, read, write, bound, statistics)| {
            weights[Operation::Append.index()] += 1;
            let read_skip_bytes = if read.is_random { 0 } else { skip };
            ThreadGroup {
                threads,
                weights,
                read,
                read_skip_bytes,
                write,
                delay_ms,
                bound,
                statistics,
            }
        },
    )
}

fn file_system(number: usize) -> impl Strategy<Value = FileSystem> {
    let counts = (0..1_000_000_u32, 0..1000_u32, 1..1_u32 << 30, 1..1_u32 << 30);
    let sizes = (0..1_u64 << 40, 0..1_u64 << 40, 0..1_u64 << 40, 0.0..=1.0);
    let weight = (0..1_u64 << 40, 1..1000_u32);
    let weights = prop::collection::vec(
        weight.prop_map(|(bytes, weight)| SizeWeight { bytes, weight }),
        0..4,
    );
    let aging = prop::option::of((group(0), 0.01..=1.0));
    (counts, sizes, weights, any::<bool>(), aging).prop_map(
        move |(
            (files, directories, create, age),
            (min, more, init, share),
            weights,
            reuses,
            aging,
        )| {
            FileSystem {
                location: format!("/mnt/{number}"),
                files,
                directories,
                min_bytes: min,
                max_bytes: min + more,
                weights,
                create_block_bytes: create,
                age_block_bytes: age,
                init_bytes: init,
                init_share: share,
                reuses: reuses && aging.is_none(),
                aging: aging.map(|(group, share)| Aging { group, share }),
            }
        },
    )
}

fn profile() -> impl Strategy<Value = Profile> {
    let groups = prop::collection::vec(group(2), 1..4);
    let flags = (any::<bool>(), any::<bool>(), prop::option::of("[a-z]{1,9}( [a-z]{1,9})?"));
    let rest = (file_system(0), file_system(1), groups, flags, 0..100_000_u32);
    (any::<bool>(), rest).prop_map(
        |(is_old, (one, two, groups, (is_direct, is_aligned, callout), time_s))| {
            let mut file_systems = vec![one, two];
            if is_old {
                // What version 5 does not have cannot be taken back by a clause that inherits.
                for file_system in &mut file_systems {
                    file_system.weights.clear();
                }
            }
            Profile {
                compat: if is_old { Compat::V5 } else { Compat::V6 },
                time_s,
                is_direct,
                is_aligned: is_aligned || is_direct,
                callout,
                file_systems,
                groups,
                notes: Vec::new(),
            }
        },
    )
}

proptest! {
    /// Goal: what is written is read as the same, in the meaning of either version.
    #[test]
    fn profiles_survive_writing(profile in profile()) {
        let text = profile.to_string();
        let mut read = Profile::parse(&text, Some(profile.compat)).unwrap();
        read.notes.clear();
        prop_assert_eq!(read, profile);
    }

    /// Goal: nothing makes the parser panic.
    #[test]
    fn garbage_is_refused_or_read(
        lines in prop::collection::vec("[\\[\\]=a-z_0-9 #]{0,20}|\\[(filesystem|threadgroup|end|stats)[0-9]?\\]|(num_files|time|read_size|location|clone)=[0-9a-z/]{0,12}", 0..12)
    ) {
        let _ = Profile::parse(&lines.join("\n"), None);
    }
}
