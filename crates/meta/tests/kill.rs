//! The embedded store under `kill -9`: a child process creates files and prints each one that it
//! flushed. Killed at a random moment and opened again, the store must have every printed file.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use meta::store::{FjallStore, Opening};
use meta::tree::{Boot, Context, Core};
use protocol::client::{Answer, Call, ChangeCall, Creation, ReadCall};
use protocol::{InodeId, Rights, SessionId, Timestamp};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use uuid::Uuid;

/// The child finds its store here; without it, it is an ordinary run of the tests.
const DIRECTORY: &str = "TSUMUGI_TEST_KILL_DIRECTORY";

/// Calls per flush.
const GROUP: u32 = 5;

fn open(directory: &Path) -> Core {
    let boot = Boot {
        boot: Uuid::from_u128(1),
        file_system: Uuid::from_u128(2),
        now: Timestamp(0),
        root: (0o755, 0, 0),
    };
    Core::open(
        Box::new(
            FjallStore::open(directory, Opening { boot: boot.boot, accept_loss: false }).unwrap(),
        ),
        &boot,
    )
    .unwrap()
    .0
}

fn call(core: &mut Core, call: &Call) -> Answer {
    let openers = |_: InodeId| Vec::new();
    let context = Context { session: SessionId(1), now: Timestamp(1), openers: &openers };
    core.execute(&context, call).unwrap().answer
}

fn name(number: u32) -> Vec<u8> {
    format!("file-{number}").into_bytes()
}

/// Goal: none by itself; this is the process that is killed.
#[test]
fn child() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let mut core = open(&PathBuf::from(directory));
    let Answer::Attr(root) = call(&mut core, &Call::Read(ReadCall::GetAttr(InodeId::ROOT))) else {
        panic!()
    };
    let mut out = std::io::stdout().lock();
    let mut number = root.size as u32;
    loop {
        for _ in 0..GROUP {
            call(
                &mut core,
                &Call::Change(ChangeCall::Create {
                    parent: InodeId::ROOT,
                    name: name(number),
                    creation: Creation::File,
                    mode: 0o644,
                    uid: 0,
                    gid: 0,
                    rights: Rights::NONE,
                }),
            );
            number += 1;
        }
        core.flush().unwrap();
        writeln!(out, "flushed {number}").unwrap();
        out.flush().unwrap();
    }
}

/// Goal: a kill at any moment loses no flushed file, and leaves no half of a group.
#[test]
fn flushed_files_survive_a_kill() {
    let directory = std::env::temp_dir().join(format!("tsumugi-kill-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    let mut last = 0;
    for round in 0..5 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(DIRECTORY, &directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = last;
        let enough = last + 300 + 177 * round;
        while said < enough {
            let line = lines.next().expect("the child goes on until it is killed").unwrap();
            if let Some((_, number)) = line.split_once("flushed ") {
                said = number.parse().unwrap();
            }
        }
        // Still running, most likely in the middle of a commit.
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines {
            if let Some((_, number)) = line.unwrap_or_default().split_once("flushed ") {
                said = number.parse().unwrap_or(said);
            }
        }
        let mut core = open(&directory);
        assert_eq!(core.check().unwrap(), Vec::<String>::new());
        let Answer::Attr(root) = call(&mut core, &Call::Read(ReadCall::GetAttr(InodeId::ROOT)))
        else {
            panic!()
        };
        last = root.size as u32;
        assert!(last >= said && last.is_multiple_of(GROUP), "{last} of {said}");
        for number in 0..last {
            let parent = InodeId::ROOT;
            let found =
                call(&mut core, &Call::Read(ReadCall::Lookup { parent, name: name(number) }));
            assert!(matches!(found, Answer::Entry(_)), "file {number}");
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
