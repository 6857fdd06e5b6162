//! The grammar, and the whole table of differences between the versions.

use super::super::keywords;
use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn script(body: &str) -> Script {
    parse(&format!("IOR START\n{body}\nIOR STOP\n"), &Settings::default(), None).unwrap()
}

fn refused(body: &str) -> ScriptError {
    let text = format!("IOR START\n{body}\nIOR STOP\n");
    parse(&text, &Settings::default(), None).unwrap_err()
}

/// Goal: settings stay, a test is what was set when RUN came, what follows the last RUN is one more,
/// and no RUN is one.
#[test]
fn settings_stay_and_tests_follow_run() {
    let script = script(
        "  API = posix , blockSize=4m\n\ttransferSize =1MiB # comment, with a comma\n#\nRUN\n\
         blocksize=8m\nrun\nfilePerProc=1",
    );
    let sizes: Vec<_> = script.tests.iter().map(|test| test.number("blockSize")).collect();
    assert_eq!(sizes, [Some(4 << 20), Some(8 << 20), Some(8 << 20)]);
    let own: Vec<_> = script.tests.iter().map(|test| test.is_set("filePerProc")).collect();
    assert_eq!(own, [false, false, true]);
    assert!(script.tests.iter().all(|test| test.number("transferSize") == Some(1 << 20)));
    assert_eq!(script.tests[0].text("api"), Some("posix"));
    assert_eq!(self::script("").tests.len(), 1);
    assert_eq!((script.compat, script.notes.len()), (Compat::V4, 0));
}

/// Goal: text around the script is ignored; a script needs its start and its stop.
#[test]
fn scripts_have_a_start_and_a_stop() {
    let text = "#!/bin/sh\nkey without value\n  ior   start  \nRUN\nIor Stop\nnonsense\n";
    assert_eq!(parse(text, &Settings::default(), None).unwrap().tests.len(), 1);
    assert!(parse("api=POSIX\nRUN\n", &Settings::default(), None).is_err());
    assert!(parse("IOR START\nRUN\n", &Settings::default(), None).is_err());
}

/// Goal: defaults of the command line come first, and the script overrides them.
#[test]
fn defaults_come_first() {
    let mut defaults = Settings::default();
    defaults.set("blockSize", "2k").unwrap();
    defaults.set("repetitions", "3").unwrap();
    let script = parse("IOR START\nblockSize=4k\nRUN\nIOR STOP", &defaults, None).unwrap();
    assert_eq!(script.tests[0].number("blockSize"), Some(4096));
    assert_eq!(script.tests[0].number("repetitions"), Some(3));
}

/// Goal: if no phase is asked for, files are written and read.
#[test]
fn phases_have_a_default() {
    let phases = |body: &str| script(body).tests[0].phases();
    let both = Phases { write: true, read: true, ..Phases::default() };
    assert_eq!(phases("RUN"), both);
    assert_eq!(phases("writeFile=0, readFile=0"), both);
    assert_eq!(phases("readFile=1"), Phases { read: true, ..Phases::default() });
    assert_eq!(phases("checkWrite=1"), Phases { check_write: true, ..Phases::default() });
}

/// Goal: each of the eighteen keywords that version 4 refuses is taken, is noted with its line, and
/// makes the script 2.10's; each of version 4's own is taken and noted; the others are not noted.
#[test]
fn all_keywords_of_both_versions_are_taken() {
    let mut counts = [0; 3];
    for (name, kind, known) in keywords::KEYWORDS {
        let value = match kind {
            Kind::Text => "x",
            Kind::Size => "4k",
            Kind::Number | Kind::Flag => "1",
        };
        let script = script(&format!("{} = {value}\nRUN", name.to_uppercase()));
        let said = script.notes.iter().any(|note| note.contains(&format!("{name} (line 2)")));
        assert_eq!(said, known != Known::Both, "{name}");
        assert_eq!(script.compat == Compat::V2, known == Known::Old, "{name}");
        counts[known as usize] += 1;
    }
    assert_eq!(counts, [36, 18, 22]);
}

/// Goal: where the versions mean different things, the meaning follows from the keywords or from the
/// user, and is noted.
#[test]
fn differences_are_decided_and_noted() {
    let twice = "api=POSIX\nRUN\nRUN";
    assert_eq!(script(twice).tests.len(), 2);
    assert_eq!(script(&format!("quitOnError=1\n{twice}")).tests.len(), 1);
    let text = format!("IOR START\n{twice}\nIOR STOP");
    let old = parse(&text, &Settings::default(), Some(Compat::V2)).unwrap();
    assert_eq!((old.tests.len(), old.notes.len()), (1, 1));
    // Version 4 aborts on it; a line with only # does not stop 2.10.3's scripts here.
    assert!(script("#\nRUN").notes.is_empty());
    for (body, note) in [
        ("api=MPIIO\nfsync=1\nRUN", "fsync with MPIIO"),
        ("numTasks=0\nRUN", "numTasks=0"),
        ("segmentCount=2\nRUN", "segmentCount"),
    ] {
        let notes = script(body).notes;
        assert!(notes.len() == 1 && notes[0].contains(note), "{body}: {notes:?}");
    }
    assert!(script("api=POSIX\nfsync=1\nRUN").notes.is_empty());
    assert!(script("useO_DIRECT=1\nRUN").notes.is_empty());
    let module = script("--mpiio.hintsFileName=hints\nRUN");
    assert_eq!(module.tests[0].text("--mpiio.hintsFileName"), Some("hints"));
}

/// Goal: mistakes have their line; sizes are those of IOR.
#[test]
fn mistakes_have_their_line() {
    for (body, message) in [
        ("api=POSIX\nspeed=1", "unknown keyword \"speed\""),
        ("api=POSIX\nblockSize=1.5m", "no fractions"),
        ("api=POSIX\nblockSize=4x", "is no unit"),
        ("api=POSIX\nblockSize=9999999999g", "too large"),
        ("api=POSIX\nrepetitions=x", "whole number"),
        ("api=POSIX\nfsync=2", "is 0 or 1"),
        ("api=POSIX\napi=POSIX,", "KEY = VALUE"),
        ("api=POSIX\nRUN now", "KEY = VALUE"),
        ("api=POSIX\n--foo.bar=1", "modules are"),
    ] {
        let error = refused(body);
        assert!(error.line == 3 && error.message.contains(message), "{body}: {error}");
    }
    let sizes = [("1", 1), ("4k", 4096), ("1MiB", 1 << 20), ("2G", 2 << 30), ("1t", 1 << 40)];
    for (text, bytes) in sizes {
        assert_eq!(size(text), Ok(bytes), "{text}");
    }
}

/// Goal: the script of the TSUBAME3.0 study (its figure 5, with values filled in) is read as it is:
/// a POSIX test, and an MPI-IO test behind the last RUN.
#[test]
fn the_studys_script_is_read() {
    let text = "IOR START\n# common options\nreordertasksconstant=1\nfsync=1\nintraTestBarriers=1\n\
        repetitions=5\nverbose=2\nkeepFile=0\nsegmentCount=1\nblockSize=1024m\nmultiFile=1\n\
        interTestDelay=1\n\n# POSIX dedicated file tests\n filePerProc=1\n api=POSIX\nuseO_DIRECT=1\n\
        testFile = /scratch/a\ntransferSize=4m\nRUN\n\n# MPIIO shared file tests\nfsync=0\n\
        filePerProc=0\napi=MPIIO\ncollective=1\ntestFile = /scratch/b\ntransferSize=4m\n\
        hintsFileName= /scratch/hints\n\nIOR STOP\n";
    let script = parse(text, &Settings::default(), None).unwrap();
    assert_eq!((script.tests.len(), script.compat), (2, Compat::V2));
    assert_eq!(script.notes, ["version 4 would refuse: hintsFileName (line 29)"]);
    let [posix, mpiio] = script.tests.as_slice() else { unreachable!() };
    assert!(posix.is_set("reorderTasksConstant") && posix.is_set("fsync"));
    assert_eq!(posix.number("blockSize"), Some(1 << 30));
    // Settings stay: also that of direct I/O, which MPI-IO does not know.
    assert!(mpiio.is_set("useO_DIRECT") && mpiio.is_set("multiFile") && !mpiio.is_set("fsync"));
    assert_eq!(mpiio.text("hintsFileName"), Some("/scratch/hints"));
}

/// A line of a random script: what it says, and how it is written.
#[derive(Clone, Debug)]
enum Said {
    Run,
    Nothing(&'static str),
    /// Index of the keyword, a number, letters in capitals, blanks.
    Directives(Vec<(usize, i64, u64, u8)>),
}

fn said() -> impl Strategy<Value = Said> {
    let keyword = 0..keywords::KEYWORDS.len();
    let directive = (keyword, 0..2000_i64, any::<u64>(), 0..8_u8);
    let nothing = prop::sample::select(vec!["", "   ", "#", "# RUN, api=POSIX", "\t# IOR STOP"]);
    prop_oneof![
        2 => Just(Said::Run),
        1 => nothing.prop_map(Said::Nothing),
        6 => vec(directive, 1..4).prop_map(Said::Directives),
    ]
}

/// The value as it is written, and as it is meant.
fn value(kind: Kind, number: i64) -> (String, Value) {
    match kind {
        Kind::Flag => ((number % 2).to_string(), Value::Number(number % 2)),
        Kind::Number => (number.to_string(), Value::Number(number)),
        Kind::Text => (format!("x{number}"), Value::Text(format!("x{number}"))),
        Kind::Size => {
            let (unit, shift) =
                [("", 0), ("k", 10), ("KiB", 10), ("m", 20), ("G", 30)][number as usize % 5];
            (format!("{number}{unit}"), Value::Number(number << shift))
        }
    }
}

/// A line as somebody might type it.
fn typed(said: &Said) -> String {
    let Said::Directives(directives) = said else {
        return if let Said::Nothing(text) = said { (*text).into() } else { " rUn # now".into() };
    };
    let typed = directives.iter().map(|(index, number, capitals, blanks)| {
        let (name, kind, _) = keywords::KEYWORDS[*index];
        let letters =
            name.chars().enumerate().map(|(at, letter)| match capitals >> (at % 64) & 1 {
                1 => letter.to_ascii_uppercase(),
                _ => letter.to_ascii_lowercase(),
            });
        let blank = |bit: u8| if blanks >> bit & 1 == 1 { " \t" } else { "" };
        let letters: String = letters.collect();
        let (value, _) = value(kind, *number);
        format!("{}{letters}{}={}{value}", blank(0), blank(1), blank(2))
    });
    typed.collect::<Vec<_>>().join(",") + " # a comment, with commas = and signs"
}

proptest! {
    /// Goal: random scripts of random keywords, cases, blanks and comments give the tests that an
    /// independent reading of the grammar gives, as either version.
    #[test]
    fn random_scripts_are_read(lines in vec(said(), 0..30), is_old in any::<bool>()) {
        let body: Vec<String> = lines.iter().map(typed).collect();
        let text = format!("words, = before\nIOR START\n{}\nIOR STOP\nafter", body.join("\n"));
        let compat = if is_old { Compat::V2 } else { Compat::V4 };
        let script = parse(&text, &Settings::default(), Some(compat)).unwrap();
        let (mut now, mut expected) = (BTreeMap::new(), Vec::new());
        let (mut is_open, mut follows_run) = (false, false);
        for line in &lines {
            match line {
                Said::Nothing(_) => {}
                Said::Run => {
                    if !(is_old && follows_run) {
                        expected.push(Settings(now.clone()));
                    }
                    (is_open, follows_run) = (false, true);
                }
                Said::Directives(directives) => {
                    for (index, number, _, _) in directives {
                        let (name, kind, _) = keywords::KEYWORDS[*index];
                        now.insert(name.to_string(), value(kind, *number).1);
                    }
                    (is_open, follows_run) = (true, false);
                }
            }
        }
        if is_open || expected.is_empty() {
            expected.push(Settings(now));
        }
        prop_assert_eq!(script.tests, expected);
    }

    /// Goal: no text makes the reader panic.
    #[test]
    fn no_text_is_a_panic(text in "(IOR START\n)?([a-zA-Z=,# \n.0-9é-]|RUN\n|IOR STOP\n|blockSize=){0,60}") {
        let _ = parse(&text, &Settings::default(), None);
    }
}
