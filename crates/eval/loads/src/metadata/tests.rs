use super::*;
use std::collections::BTreeSet;
use std::io::Cursor;

fn files(changes: impl Fn(&mut Files)) -> Files {
    let mut files = Files {
        items: 20,
        write_bytes: 100,
        has_own_directories: false,
        shifts: false,
        syncs: false,
    };
    changes(&mut files);
    files
}

/// One process's answers to these lines.
fn answers(files: &Files, rank: (u32, u32), root: &Path, lines: &str) -> Vec<Answer> {
    let mut said = Vec::new();
    work(files, rank, root, Cursor::new(lines), &mut said).unwrap();
    String::from_utf8(said).unwrap().lines().map(|line| line.parse().unwrap()).collect()
}

fn names(root: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(root).unwrap().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

/// Goal: phases do what they are called: files of the size that was asked for, by rank; shifted
/// processes work on their neighbour's; nothing is left.
#[test]
fn phases_do_what_they_are_called() {
    for (own, shifts) in [(false, false), (true, false), (false, true), (true, true)] {
        let files = files(|files| {
            files.has_own_directories = own;
            files.shifts = shifts;
            files.syncs = own;
        });
        let root = tempfile::tempdir().unwrap();
        for rank in 0..2 {
            let at = worker::directory(root.path(), &files, rank);
            if own {
                std::fs::create_dir(&at).unwrap();
            }
            let said = answers(&files, (rank, 2), root.path(), "create\n");
            assert!(matches!(said[1], Answer::Done { begun_ns, ended_ns } if begun_ns < ended_ns));
            let first = at.join(format!("file.{rank}.0"));
            assert_eq!(std::fs::metadata(first).unwrap().len(), 100);
        }
        let first = worker::directory(root.path(), &files, 0);
        assert_eq!(names(&first).len(), if own { 20 } else { 40 });
        let said = answers(&files, (0, 2), root.path(), "stat\nread\nremove\n");
        assert!(said.iter().all(|it| matches!(it, Answer::Done { .. })), "{said:?}");
        let removed = u32::from(shifts);
        let at = worker::directory(root.path(), &files, removed);
        assert!(names(&at).iter().all(|name| !name.starts_with(&format!("file.{removed}."))));
        let kept = worker::directory(root.path(), &files, 1 - removed);
        assert_eq!(names(&kept).len(), 20);
    }
}

/// Goal: what is missing, there already, or not what was written, is a failure and no fast result.
#[test]
fn failures_are_told() {
    let files = files(|_| {});
    let root = tempfile::tempdir().unwrap();
    for (lines, bad) in
        [("stat\n", 1), ("create\ncreate\n", 2), ("frobnicate\n", 1), ("remove\nremove\n", 2)]
    {
        let said = answers(&files, (0, 1), root.path(), lines);
        assert!(matches!(said[bad], Answer::Failed(_)), "{lines}: {said:?}");
    }
    answers(&files, (0, 1), root.path(), "create\n");
    std::fs::write(root.path().join("file.0.7"), "short").unwrap();
    for phase in ["stat\n", "read\n"] {
        let said = answers(&files, (0, 1), root.path(), phase);
        assert!(matches!(said[1], Answer::Failed(_)), "{phase}: {said:?}");
    }
}

/// Goal: rates are all files by the time from the first to the last.
#[test]
fn rates_span_all_processes() {
    let load = Load { files: files(|_| {}), processes: 2, directories: vec!["/".into()] };
    let second = 1_000_000_000;
    let spans = [(second, 3 * second), (2 * second, 5 * second)];
    let done = spans.map(|(begun_ns, ended_ns)| Answer::Done { begun_ns, ended_ns });
    let result = sum(Phase::Stat, &load, &done).unwrap();
    assert!((result.rate - 10.0).abs() < 1e-9 && (result.seconds - 4.0).abs() < 1e-9);
    assert!((result.fastest_seconds - 2.0).abs() < 1e-9);
    assert!((result.slowest_seconds - 3.0).abs() < 1e-9);
    let failed = [done[0].clone(), Answer::Failed("no space".into())];
    let error = sum(Phase::Create, &load, &failed).unwrap_err().to_string();
    assert!(error.contains("create") && error.contains("no space"), "{error}");
    let text = serde_json::to_string(&[result]).unwrap();
    let outcome = parse(&text, &load.files, 2).unwrap();
    assert!((outcome.metrics[&Metric::StatRate] - 10.0).abs() < 1e-9);
}

/// Goal: answers survive the pipe.
#[test]
fn answers_are_read_as_written() {
    for answer in [Answer::Done { begun_ns: 1, ended_ns: 2 }, Answer::Failed("no way".into())] {
        assert_eq!(answer.to_string().parse::<Answer>().unwrap(), answer);
    }
    assert!("done 1".parse::<Answer>().is_err() && "".parse::<Answer>().is_err());
}

/// Goal: processes use the names of the directory in turn, and it is made and removed by its first name.
/// (A link stands for a second mount.)
#[test]
fn processes_use_mounts_in_turn() {
    let top = tempfile::tempdir().unwrap();
    let (first, second) = (top.path().join("first"), top.path().join("second"));
    std::fs::create_dir(&first).unwrap();
    std::os::unix::fs::symlink(&first, &second).unwrap();
    let directories = vec![first.clone(), second.clone()];
    let load =
        Load { files: files(|files| files.has_own_directories = true), processes: 3, directories };
    let seen = std::cell::RefCell::new(Vec::new());
    let result = run(&load, |rank, root| {
        seen.borrow_mut().push((rank, root.parent().unwrap().to_path_buf()));
        Command::new("false")
    });
    assert!(result.is_err());
    assert_eq!(seen.into_inner(), [(0, first.clone()), (1, second), (2, first.clone())]);
    assert!(names(&first).is_empty());
}
