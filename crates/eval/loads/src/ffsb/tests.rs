use super::*;
use crate::ffsb::profile::tests::SMALL;
use std::fs;

fn job(text: &str, roots: &[&Path]) -> Job {
    Job {
        profile: Profile::parse(text, Some(Compat::V6)).unwrap(),
        roots: roots.iter().map(|root| root.to_path_buf()).collect(),
        seed: 1,
        seconds: Some(0.05),
        allows_callout: false,
        finds_files: false,
    }
}

fn files(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).unwrap().map(|it| it.unwrap().path());
    entries.map(|it| if it.is_dir() { files(&it) } else { 1 }).sum()
}

/// Goal: an instance makes its set, loads until its time is over with all of its threads, and tells times
/// in their order.
#[test]
fn an_instance_runs() {
    let root = tempfile::tempdir().unwrap();
    let prepared = job(SMALL, &[&root.path().join("fs")]).prepare().unwrap();
    assert_eq!(files(root.path()), 20);
    let mut has_begun = false;
    let begin = || {
        has_begun = true;
        Ok(())
    };
    let measured = prepared.run(begin, || Ok(())).unwrap();
    assert!(has_begun);
    let total = measured.total();
    let operations = total.tally.total().operations;
    assert!(operations > 0 && total.latencies.count() == operations);
    assert_eq!(measured.series.iter().sum::<u64>(), operations);
    assert!(measured.begun_ns < measured.done_ns && measured.done_ns <= measured.flushed_ns);
    let told = serde_json::to_string(&measured).unwrap();
    let back: account::Measured = serde_json::from_str(&told).unwrap();
    assert_eq!(back.total().tally, total.tally);
}

/// Goal: what is found is never changed or removed: without reuse it is in the way, with reuse it has to be
/// such a set, and FFSB's `rm -rf` does not happen.
#[test]
fn what_is_there_stays() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    fs::create_dir(&data).unwrap();
    let precious = data.join("precious");
    fs::write(&precious, "mine").unwrap();
    let refused = job(SMALL, &[root.path()]).prepare().unwrap_err();
    assert!(matches!(refused, FfsbError::InTheWay(_)), "{refused}");
    let reusing = SMALL.replace("num_dirs=3", "num_dirs=3\nreuse=1");
    let refused = job(&reusing, &[root.path()]).prepare().unwrap_err();
    assert!(matches!(refused, FfsbError::NotReusable(..)), "{refused}");
    assert_eq!(fs::read_to_string(&precious).unwrap(), "mine");
    fs::remove_dir_all(&data).unwrap();
    fs::create_dir(root.path().join("meta")).unwrap();
    assert!(matches!(job(SMALL, &[root.path()]).prepare(), Err(FfsbError::InTheWay(_))));
}

/// Goal: a set that is there is used if it is as it has to be, and the same seed makes the same one.
#[test]
fn sets_are_used_again() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let reusing = SMALL.replace("num_dirs=3", "num_dirs=3\nreuse=1");
    let profile = Profile::parse(&reusing, None).unwrap();
    make_file_sets(&profile, one.path(), 5).unwrap();
    make_file_sets(&profile, other.path(), 5).unwrap();
    let sizes = |root: &Path| {
        let mut sizes: Vec<_> = fs::read_dir(root.join("fs-0/data"))
            .unwrap()
            .map(|it| it.unwrap())
            .map(|it| (it.file_name(), it.metadata().unwrap().len()))
            .filter(|it| it.0.to_string_lossy().starts_with("datafile"))
            .collect();
        sizes.sort();
        sizes
    };
    assert_eq!(sizes(one.path()), sizes(other.path()));
    let set = one.path().join("fs-0");
    job(&reusing, &[&set]).prepare().unwrap();
    let file = set.join("data").join(&sizes(one.path())[0].0);
    fs::write(&file, "short").unwrap();
    let refused = job(&reusing, &[&set]).prepare().unwrap_err();
    assert!(refused.to_string().contains("5 bytes"), "{refused}");
    fs::remove_file(file).unwrap();
    let refused = job(&reusing, &[&set]).prepare().unwrap_err();
    assert!(refused.to_string().contains("19 files"), "{refused}");
}

/// Goal: sizes follow weights, and a set may be as large as asked for instead of having a number of files.
#[test]
fn sizes_follow_weights() {
    let root = tempfile::tempdir().unwrap();
    let text = SMALL
        .replace("num_files=20", "init_size=100k")
        .replace("min_filesize=8192", "size_weight 8k 3")
        .replace("max_filesize=16384", "size_weight 16k 1");
    job(&text, &[root.path()]).prepare().unwrap();
    let mut all = 0;
    let mut open = vec![root.path().join("data")];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
                continue;
            }
            let bytes = entry.metadata().unwrap().len();
            assert!(bytes == 8192 || bytes == 16384, "{bytes}");
            all += bytes;
        }
    }
    assert!((100 << 10..116 << 10).contains(&all), "{all}");
}

/// Goal: a command of a profile is run only if that was allowed; one that fails ends the instance.
#[test]
fn callouts_need_consent() {
    let root = tempfile::tempdir().unwrap();
    let called = root.path().join("called");
    let text = SMALL.replace("time=1", &format!("time=1\ncallout=touch {}", called.display()));
    job(&text, &[&root.path().join("one")]).prepare().unwrap();
    assert!(!called.exists());
    let allowed = |text: &str, name: &str| {
        Job { allows_callout: true, ..job(text, &[&root.path().join(name)]) }.prepare()
    };
    allowed(&text, "two").unwrap();
    assert!(called.exists());
    let failing = text.replace("touch", "false");
    assert!(matches!(allowed(&failing, "three"), Err(FfsbError::Callout(..))));
}

/// Goal: a file system is aged until it is as full as asked, with files of its own names.
#[test]
fn aging_leaves_fill_files() {
    let root = tempfile::tempdir().unwrap();
    // It is as full already: the least that aging does.
    let aging = "agefs=1\n[threadgroup]\nnum_threads=2\ncreate_weight=1\nwrite_blocksize=512\n[end]\n\
                 desired_util=0.000001\nnum_dirs=3";
    job(&SMALL.replace("num_dirs=3", aging), &[root.path()]).prepare().unwrap();
    let names = fs::read_dir(root.path().join("data")).unwrap();
    let fill = names
        .filter(|it| it.as_ref().unwrap().file_name().to_string_lossy().starts_with("fillfile"));
    assert!(fill.count() >= 10);
}
