//! Histories that are allowed, and histories that are not.

use super::*;

fn path(path: &str) -> String {
    path.to_owned()
}

fn call(op: Op, answer: Answer, begin: u64, end: u64) -> Call {
    Call { who: "n".to_owned(), op, answer, begin, end: Some(end) }
}

fn create(at: &str, inode: u64, begin: u64, end: u64) -> Call {
    let op = Op::Create { path: path(at), exclusive: true };
    call(op, Answer::Inode(inode, None), begin, end)
}

fn look(at: &str, inode: Option<u64>, begin: u64, end: u64) -> Call {
    let answer = inode.map_or(Answer::Absent, |inode| Answer::Inode(inode, None));
    call(Op::Lookup { path: path(at) }, answer, begin, end)
}

fn rename(from: &str, to: &str, mode: Mode, answer: Answer, begin: u64, end: u64) -> Call {
    call(Op::Rename { from: path(from), to: path(to), mode }, answer, begin, end)
}

fn unlink(at: &str, answer: Answer, begin: u64, end: u64) -> Call {
    call(Op::Unlink { path: path(at) }, answer, begin, end)
}

fn holds(calls: &[Call]) -> bool {
    let verdict = check(calls, &[]);
    assert_eq!(verdict.undecided, 0);
    verdict.violations.is_empty()
}

/// Goal: calls one after the other get the answers that a file system gives.
#[test]
fn one_after_the_other() {
    assert!(holds(&[
        create("a", 1, 0, 1),
        look("a", Some(1), 2, 3),
        unlink("a", Answer::Done, 4, 5)
    ]));
    assert!(!holds(&[create("a", 1, 0, 1), look("a", None, 2, 3)]));
    assert!(!holds(&[create("a", 1, 0, 1), look("a", Some(2), 2, 3)]));
    assert!(!holds(&[create("a", 1, 0, 1), create("a", 2, 2, 3)]), "O_EXCL succeeds once");
    let opened = Op::Create { path: path("a"), exclusive: false };
    let opened = |inode| call(opened.clone(), Answer::Inode(inode, None), 2, 3);
    assert!(holds(&[create("a", 1, 0, 1), opened(1)]));
    assert!(!holds(&[create("a", 1, 0, 1), opened(2)]), "it opens what is there");
}

/// Goal: concurrent calls may take effect in any order, but all observers see the same order.
#[test]
fn at_once() {
    let both = [create("a", 1, 0, 10), unlink("a", Answer::Done, 0, 10)];
    for seen in [None, Some(1)] {
        assert!(holds(&[both[0].clone(), both[1].clone(), look("a", seen, 3, 4)]));
    }
    let again = [look("a", Some(1), 3, 4), look("a", None, 5, 6)];
    assert!(holds(&[&both[..], &again[..]].concat()));
    let back = [look("a", Some(1), 3, 4), look("a", None, 5, 6), look("a", Some(1), 7, 8)];
    assert!(!holds(&[&both[..], &back[..]].concat()), "it cannot come again");
    let swap = [create("a", 1, 0, 1), create("b", 2, 2, 3)];
    let exchange = rename("a", "b", Mode::Exchange, Answer::Done, 4, 9);
    let torn = [exchange, look("a", Some(2), 5, 6), look("b", Some(2), 7, 8)];
    assert!(!holds(&[&swap[..], &torn[..]].concat()), "an exchange is one moment");
}

/// Goal: renames act according to their modes, and only one of two renames of one name succeeds.
#[test]
fn renames() {
    let made = [create("a", 1, 0, 1)];
    let take = |to: &str, answer| rename("a", to, Mode::Replace, answer, 2, 9);
    let both = |one, other| [&made[..], &[take("b", one), take("c", other)]].concat();
    assert!(holds(&both(Answer::Done, Answer::Absent)));
    assert!(!holds(&both(Answer::Done, Answer::Done)), "both renames succeed");
    assert!(!holds(&both(Answer::Absent, Answer::Absent)), "the first one finds the name");
    let over = [create("a", 1, 0, 1), create("b", 2, 2, 3)];
    let no_replace =
        |answer| [&over[..], &[rename("a", "b", Mode::NoReplace, answer, 4, 5)]].concat();
    assert!(holds(&no_replace(Answer::Exists)));
    assert!(!holds(&no_replace(Answer::Done)));
    let link = call(Op::Link { inode: 1, path: path("b") }, Answer::Done, 2, 3);
    let same = [create("a", 1, 0, 1), link, rename("a", "b", Mode::Replace, Answer::Done, 4, 5)];
    assert!(
        holds(&[&same[..], &[look("a", Some(1), 6, 7)]].concat()),
        "two names of one file stay"
    );
    assert!(!holds(&[&same[..], &[look("a", None, 6, 7)]].concat()));
    let mkdir = call(Op::Mkdir { path: path("b") }, Answer::Inode(2, None), 2, 3);
    let onto =
        |answer| [made[0].clone(), mkdir.clone(), rename("a", "b", Mode::Replace, answer, 4, 5)];
    assert!(holds(&onto(Answer::IsDirectory)));
    assert!(!holds(&onto(Answer::Done)));
}

/// Goal: a call without an answer may have taken effect, at most once, until it no longer can.
#[test]
fn lost_answers() {
    let lost = |op, end| Call { end, ..call(op, Answer::Lost, 2, 2) };
    let create_lost = lost(Op::Create { path: path("a"), exclusive: true }, None);
    for seen in [None, Some(7)] {
        assert!(holds(&[create_lost.clone(), look("a", seen, 3, 4)]));
    }
    let seen = [look("a", None, 3, 4), look("a", Some(7), 5, 6)];
    assert!(holds(&[&[create_lost.clone()][..], &seen[..]].concat()));
    let other = [look("a", Some(7), 5, 6), look("a", Some(8), 7, 8)];
    assert!(!holds(&[&[create_lost.clone()][..], &other[..]].concat()), "it made one file");
    let ended = Call { end: Some(4), ..create_lost.clone() };
    for seen in [None, Some(7)] {
        let unseen = [ended.clone(), look("a", seen, 5, 6)];
        assert!(holds(&unseen), "it took effect unobserved: {seen:?}");
    }
    assert!(!holds(&[&[ended][..], &[look("a", None, 5, 6), look("a", Some(7), 7, 8)]].concat()));
    let twice = [create("a", 1, 0, 1), lost(Op::Unlink { path: path("a") }, None)];
    let after = [look("a", None, 3, 4), create("a", 2, 5, 6), look("a", None, 7, 8)];
    assert!(!holds(&[&twice[..], &after[..]].concat()), "it takes effect once");
}

/// Goal: after a loss a name may stand for anything, but for one thing only.
#[test]
fn losses() {
    let loss = [Loss { at: 2, paths: [path("a")].into() }];
    for seen in [None, Some(1), Some(3)] {
        let again = [create("a", 1, 0, 1), look("a", seen, 3, 4), look("a", seen, 5, 6)];
        assert!(check(&again, &loss).violations.is_empty());
    }
    let other = [create("a", 1, 0, 1), look("a", Some(1), 3, 4), look("a", None, 5, 6)];
    assert!(!check(&other, &loss).violations.is_empty());
}

/// Goal: content that is changed under locks is changed once. A read without a lock sees what was
/// closed before its open, or what is written during the read.
#[test]
fn content() {
    let swap = |old, new, begin, end| {
        call(Op::Swap { file: path("f"), old, new }, Answer::Done, begin, end)
    };
    let read = |value, locked, begin, end| {
        call(Op::Read { file: path("f"), locked }, Answer::Value(value), begin, end)
    };
    assert!(holds(&[swap(0, 1, 0, 5), swap(1, 2, 0, 5), read(2, true, 6, 7)]));
    assert!(!holds(&[swap(0, 1, 0, 5), swap(0, 2, 0, 5)]), "an update is lost");
    let write = call(Op::Write { file: path("f"), value: 1 }, Answer::Done, 0, 9);
    let inverted = |locked| [write.clone(), read(1, locked, 1, 2), read(0, locked, 3, 4)];
    assert!(holds(&inverted(false)));
    assert!(!holds(&inverted(true)));
    assert!(!holds(&[write, read(0, false, 10, 11)]), "a read sees what was closed");
    let late = Call { answer: Answer::Lost, end: None, ..swap(1, 2, 2, 2) };
    let fenced = [swap(0, 1, 0, 1), late, swap(1, 3, 3, 4), read(2, true, 5, 6)];
    assert!(!holds(&fenced), "a late write of a client that has lost its lock");
}

/// Goal: locks exclude each other byte by byte, waits and refusals need an owner of a conflicting
/// lock, and a lock whose end is unknown may have ended at any time.
#[test]
fn locks() {
    let lockable = |owner, (start, last), exclusive| Lockable { owner, start, last, exclusive };
    let on = |op: fn(String, Lockable) -> Op, lock, answer, begin| {
        call(op(path("f"), lock), answer, begin, begin + 1)
    };
    let lock = |lock, answer, begin| on(|file, lock| Op::Lock { file, lock }, lock, answer, begin);
    let unlock =
        |lock, begin| on(|file, lock| Op::Unlock { file, lock }, lock, Answer::Done, begin);
    let test =
        |lock, answer, begin| on(|file, lock| Op::TestLock { file, lock }, lock, answer, begin);
    let (one, other) = (lockable(1, (0, 7), true), lockable(2, (4, 9), false));
    let first = lock(one, Answer::Done, 0);
    assert!(holds(&[first.clone(), lock(other, Answer::Exists, 2)]));
    assert!(!holds(&[first.clone(), lock(other, Answer::Done, 2)]), "both hold bytes 4 to 7");
    assert!(!holds(&[lock(other, Answer::Exists, 2)]), "no lock conflicts");
    let half = lockable(1, (4, 7), true);
    let freed = [first.clone(), unlock(half, 2)];
    assert!(holds(&[&freed[..], &[lock(other, Answer::Done, 4)]].concat()));
    assert!(!holds(&[&freed[..], &[test(other, Answer::Some, 4)]].concat()));
    let low = lockable(3, (3, 3), false);
    assert!(holds(&[&freed[..], &[test(low, Answer::Some, 4)]].concat()), "bytes 0 to 3 are held");
    assert!(!holds(&[&freed[..], &[test(low, Answer::Absent, 4)]].concat()));
    let weak = lock(lockable(1, (0, 7), false), Answer::Done, 2);
    assert!(holds(&[first.clone(), weak.clone(), lock(other, Answer::Done, 4)]), "both share");
    let own = test(lockable(1, (0, 9), true), Answer::Absent, 4);
    assert!(holds(&[first.clone(), own]), "an owner does not exclude itself");
    let lost = Call { answer: Answer::Lost, end: None, ..unlock(one, 2) };
    let ended = [first, lost];
    for answer in [Answer::Done, Answer::Exists] {
        assert!(holds(&[&ended[..], &[lock(other, answer, 4)]].concat()));
    }
    let back = [lock(other, Answer::Done, 4), unlock(other, 6), lock(other, Answer::Exists, 8)];
    assert!(!holds(&[&ended[..], &back[..]].concat()), "an ended lock does not come back");
}

/// Goal: a search that grows too large is not a proof.
#[test]
fn too_large() {
    let lost = |number| Call {
        end: None,
        ..call(Op::Create { path: format!("{number}"), exclusive: true }, Answer::Lost, 0, 0)
    };
    let join = |number: u64| {
        let (from, to) = (number.to_string(), (number + 1).to_string());
        let lost = rename(&from, &to, Mode::Replace, Answer::Lost, 0, 0);
        Call { end: None, ..lost }
    };
    let mut calls: Vec<Call> = (0..14).flat_map(|number| [lost(number), join(number)]).collect();
    calls.extend((0..14).map(|number| look("7", Some(number + 1), 10 + number, 11 + number)));
    let verdict = check(&calls, &[]);
    assert_eq!((verdict.decided, verdict.undecided), (0, 1), "{verdict:?}");
}

/// Goal: histories are read from lines of JSON.
#[test]
fn lines() {
    let text = r#"{"who":"x","op":"create","path":"a","exclusive":true,"answer":{"inode":[5,"file"]},"begin":1,"end":2}
{"who":"y","op":"rename","from":"a","to":"b","mode":"no-replace","answer":"done","begin":3,"end":4}
{"who":"y","op":"lookup","path":"a","answer":"absent","begin":5,"end":6}
{"who":"y","op":"read","file":"f","locked":false,"answer":{"value":0},"begin":5,"end":6}
{"who":"y","op":"unlink","path":"b","answer":"lost","begin":7,"end":null}"#;
    let recorded = check_lines(text).expect("lines");
    assert_eq!(recorded.calls, 5);
    assert!(recorded.verdict.violations.is_empty(), "{:?}", recorded.verdict);
    assert!(check_lines("{}").is_err());
}

/// Returns many names that renames have joined, and then as many concurrent changes, each observed
/// after its end.
fn all_at_once(count: u64) -> Vec<Call> {
    let name = |number: u64| format!("n{number}");
    let joins = (1..count).map(|number| {
        rename(&name(0), &name(number), Mode::Replace, Answer::Absent, number * 2, number * 2 + 1)
    });
    let begin = 2 * count;
    let made =
        (0..count).map(|number| create(&name(number), number + 1, begin, begin + 1 + 4 * number));
    let seen = (0..count).map(|number| {
        let end = begin + 1 + 4 * number;
        look(&name(number), Some(number + 1), end + 1, end + 2)
    });
    joins.chain(made).chain(seen).collect()
}

/// Goal: when more orders are possible than a search can look at, the search finds the order in
/// which calls ended, and looks at others for the answers that this order does not explain.
#[test]
fn the_order_of_ends_is_tried_first() {
    const COUNT: u64 = 12;
    let calls = all_at_once(COUNT);
    assert!(holds(&calls));
    let group: Vec<&Call> = calls.iter().collect();
    assert!(matches!(Search::new(&group, &[], None).run(), Outcome::TooLarge));
    // The last of them is observed before the first has ended.
    let (last, begin) = (format!("n{}", COUNT - 1), 2 * COUNT);
    let mut calls = all_at_once(COUNT);
    calls.push(look(&last, Some(COUNT), begin, begin + 1));
    assert!(holds(&calls));
    calls.push(look(&last, None, begin + 2, begin + 3));
    let Verdict { violations, undecided, .. } = check(&calls, &[]);
    assert!(!violations.is_empty() || undecided > 0, "it has gone again");
}
