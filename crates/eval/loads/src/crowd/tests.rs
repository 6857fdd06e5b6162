use super::*;
use base::Error;
use base::Stop;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// An instance in the shell's words: it takes its seat, reads when it begins, and tells when it did.
fn instance(seat: &Seat, before: &str, after: &str) -> Command {
    let directory = seat.directory.display();
    let number = seat.number;
    let now = "cut -d' ' -f1 /proc/uptime";
    let script = format!(
        "{before}; echo 1{number} >{directory}/ready-{number}; read x <{directory}/go; {after}; {now}"
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    command
}

fn crowd(scratch: &Path, count: u32, before: &str, after: &str) -> (Meeting, Vec<Command>) {
    let meeting = Meeting::make(scratch).unwrap();
    let commands = (0..count)
        .map(|number| {
            let before = if number == 1 { before } else { "true" };
            instance(&meeting.seat(scratch, number), before, after)
        })
        .collect();
    (meeting, commands)
}

/// Goal: nobody begins before the last one is ready, however late that is; what each said comes back in
/// order, and nothing is left of the meeting.
#[test]
fn nobody_begins_before_all_are_ready() {
    let scratch = tempfile::tempdir().unwrap();
    let ready = scratch.path().join("late");
    let late = format!("sleep 0.2; touch {}", ready.display());
    // Whoever begins before the late one was ready fails.
    let check = format!("test -e {} || exit 1", ready.display());
    let (meeting, commands) = crowd(scratch.path(), 5, &late, &check);
    let mut heard = Vec::new();
    let mut tell = |progress| heard.push(progress);
    let gathered =
        meeting.hold(commands, &Patience::default(), &Stop::default(), &mut tell).unwrap();
    assert_eq!(gathered.ready_ns, [10, 11, 12, 13, 14]);
    assert_eq!(gathered.outputs.len(), 5);
    let begun = heard.iter().position(|it| *it == Progress::Begun).unwrap();
    assert!(heard[..begun].contains(&Progress::Ready(5)));
    assert!(heard[begun..].contains(&Progress::Ended(5)));
    drop(meeting);
    fs::remove_file(ready).unwrap();
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
}

/// Goal: a seat lets its instance go at the instant that all are told, not before.
#[test]
fn seats_keep_until_the_instant() {
    let scratch = tempfile::tempdir().unwrap();
    let meeting = Meeting::make(scratch.path()).unwrap();
    let seat = meeting.seat(scratch.path(), 1);
    let waiter = std::thread::spawn(move || (seat.take().unwrap(), base::clock::now_ns()));
    // The other one is late. The thread has the seat of the second process, which only lives meanwhile.
    let late = instance(&meeting.seat(scratch.path(), 0), "sleep 0.1", "true");
    let go = meeting.seat(scratch.path(), 1).directory.join("go");
    let mut alive = Command::new("sh");
    alive.args(["-c", &format!("read x <{}; true", go.display())]);
    let commands = vec![late, alive];
    let gathered =
        meeting.hold(commands, &Patience::default(), &Stop::default(), &mut |_| {}).unwrap();
    let (start, went) = waiter.join().unwrap();
    assert_eq!(start, gathered.start_ns);
    assert!(went >= start && start > gathered.ready_ns[1]);
}

/// Goal: one that fails before or after the barrier ends all, with its words; a stop ends all; patience
/// ends.
#[test]
fn a_crowd_ends_together() {
    let scratch = tempfile::tempdir().unwrap();
    let hold = |before: &str, after: &str, stop: &Stop, ready| {
        let (meeting, commands) = crowd(scratch.path(), 3, before, after);
        let patience = Patience { ready, ..Patience::default() };
        meeting.hold(commands, &patience, stop, &mut |_| {})
    };
    let long = Duration::from_mins(1);
    let said = |result: Result<Gathered, Error>| result.unwrap_err().to_string();
    let early = said(hold("echo broken >&2; exit 3", "sleep 1000", &Stop::default(), long));
    assert!(early.contains("instance 1") && early.contains("broken"), "{early}");
    let late = said(hold("true", "echo worn >&2; exit 4", &Stop::default(), long));
    assert!(late.contains("worn"), "{late}");
    let stop = Stop::default();
    stop.request();
    assert!(matches!(hold("true", "true", &stop, long), Err(Error::Interrupted)));
    let late = said(hold("sleep 1000", "true", &Stop::default(), Duration::from_millis(100)));
    assert!(late.contains("ready in time"), "{late}");
}

/// Goal: plain shares are new directories, never one that is there, and are gone afterwards.
#[test]
fn plain_shares_are_new_and_go() {
    let parent = tempfile::tempdir().unwrap();
    let shares = PlainShares { parent: parent.path().into() };
    let base = Base { key: "", fill: &|_| Ok(()) };
    let made = shares.make(3, &base, &Stop::default()).unwrap();
    fs::write(made[2].join("file"), "x").unwrap();
    shares.take_back(&made).unwrap();
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    let theirs = parent.path().join("instance-1");
    fs::create_dir(&theirs).unwrap();
    fs::write(theirs.join("precious"), "x").unwrap();
    assert!(shares.make(3, &base, &Stop::default()).is_err());
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    assert!(theirs.join("precious").exists());
}

/// Goal: the index is 1 for equals, 1/n where one has all, and none of nothing.
#[test]
fn fairness_is_jains() {
    assert!((fairness(&[3.0, 3.0, 3.0]).unwrap() - 1.0).abs() < 1e-12);
    assert!((fairness(&[1.0, 0.0, 0.0, 0.0]).unwrap() - 0.25).abs() < 1e-12);
    assert!((fairness(&[1.0, 2.0, 3.0]).unwrap() - 36.0 / 42.0).abs() < 1e-12);
    assert_eq!(fairness(&[0.0, 0.0]), None);
}
