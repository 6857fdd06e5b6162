//! A session with a real target (Debian's tgt), on a file with known contents.
//!
//! Without tgt or libiscsi the test is skipped with a message; with `CI=true` it fails.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use block::{Access, Device, Error};
use iscsi::{Address, Library, Session};
use reactor::{Buffer, Chunk};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const TARGET: &str = "iqn.2026-01.io.tsumugi:test";
const FILE_BYTES: usize = 4 << 20;
const BLOCK_BYTES: usize = 4096;

/// A daemon of our own; it ends when this is dropped.
struct Tgt {
    daemon: Child,
    directory: tempfile::TempDir,
    address: Address,
}

fn tgtadm(socket: &Path, words: &str) -> bool {
    let mut command = Command::new("/usr/sbin/tgtadm");
    command.args(["-C", "0", "--lld", "iscsi"]).args(words.split(' '));
    command.env("TGT_IPC_SOCKET", socket).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Tgt {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("disk"), contents()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let portal = listener.local_addr().unwrap().to_string();
        drop(listener);
        let socket = directory.path().join("tgt");
        let mut command = Command::new("/usr/sbin/tgtd");
        command.args(["-f", "-C", "0", "--iscsi", &format!("portal={portal}")]);
        command.env("TGT_IPC_SOCKET", &socket).stdout(Stdio::null()).stderr(Stdio::null());
        let daemon = command.spawn().unwrap();
        let address = Address { portal, target: TARGET.into(), lun: 1 };
        let tgt = Self { daemon, directory, address };
        while !tgtadm(&socket, "--op show --mode system") {
            std::thread::sleep(Duration::from_millis(10));
        }
        let disk = tgt.disk().display().to_string();
        for words in [
            format!("--op new --mode target --tid 1 --targetname {TARGET}"),
            format!(
                "--op new --mode logicalunit --tid 1 --lun 1 --bstype rdwr --blocksize {BLOCK_BYTES} \
                 --backing-store {disk}"
            ),
            "--op bind --mode target --tid 1 --initiator-address ALL".into(),
        ] {
            assert!(tgtadm(&socket, &words), "{words}");
        }
        tgt
    }

    fn disk(&self) -> PathBuf {
        self.directory.path().join("disk")
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        // It may already be dead.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// Returns contents in which each 8 bytes are their offset.
fn contents() -> Vec<u8> {
    (0..FILE_BYTES as u64).step_by(8).flat_map(u64::to_le_bytes).collect()
}

/// Returns the library, or prints why the test cannot run.
fn library() -> Option<Arc<Library>> {
    let found = match (Path::new("/usr/sbin/tgtd").exists(), Library::load()) {
        (true, Ok(library)) => return Some(library),
        (false, _) => "tgt is not installed".to_string(),
        (_, Err(error)) => error.to_string(),
    };
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{found}");
    eprintln!("not available: {found}");
    None
}

/// Goal: reads return the file's content and writes change it, many at a time. Geometry and limits
/// are the unit's. When a target is killed, commands under way and all later ones end with an
/// error.
#[test]
fn units_are_devices() {
    let Some(library) = library() else { return };
    let mut tgt = Tgt::start();
    let mut wrong = tgt.address.clone();
    wrong.target.push('x');
    reactor::Runtime::new(&reactor::Config::default()).unwrap().block_on(async {
        assert!(Session::connect(&library, &wrong).is_err());
        let session = Session::connect(&library, &tgt.address).unwrap();
        let geometry = session.geometry();
        assert_eq!(
            (geometry.block_size as usize, geometry.size() as usize),
            (BLOCK_BYTES, FILE_BYTES)
        );
        let mut expected = contents();
        let reads: Vec<_> = (0..64_u64).map(|index| session.read(index * 65536, 65536)).collect();
        for (index, read) in reads.into_iter().enumerate() {
            let chunk = read.await.unwrap();
            assert_eq!(chunk.to_bytes(), &expected[index * 65536..][..65536], "{index}");
        }
        let writes: Vec<_> = (0..16_u64)
            .map(|index| {
                let chunk = Chunk::from(Buffer::copy_from(&[index as u8 + 1; BLOCK_BYTES]));
                session.write(index * 65536, chunk)
            })
            .collect();
        for (index, write) in writes.into_iter().enumerate() {
            write.await.unwrap();
            expected[index * 65536..][..BLOCK_BYTES].fill(index as u8 + 1);
        }
        // Larger than a burst: the target requests it in parts.
        let large = vec![0x5a; 1 << 20];
        let half = large.len() / 2;
        let chunks = vec![Chunk::copy_from(&large[..half]), Chunk::copy_from(&large[half..])];
        session.write_chunks(2 << 20, chunks).await.unwrap();
        expected[2 << 20..3 << 20].copy_from_slice(&large);
        session.flush().await.unwrap();
        let all = session.read(0, FILE_BYTES).await.unwrap();
        assert!(all.to_bytes() == expected && fs::read(tgt.disk()).unwrap() == expected);
        let outside = session.read(FILE_BYTES as u64, BLOCK_BYTES).await;
        assert!(matches!(outside, Err(Error::OutOfRange { access: Access::Read, .. })));
        assert!(matches!(session.read(1, BLOCK_BYTES).await, Err(Error::Unaligned { .. })));
        // Stopped first, so that it cannot answer commands under way.
        let pid = rustix::process::Pid::from_child(&tgt.daemon);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        let under_way = session.read(0, BLOCK_BYTES);
        reactor::yield_now().await;
        tgt.daemon.kill().unwrap();
        tgt.daemon.wait().unwrap();
        assert!(under_way.await.is_err());
        assert!(session.read(0, BLOCK_BYTES).await.is_err());
    });
}
