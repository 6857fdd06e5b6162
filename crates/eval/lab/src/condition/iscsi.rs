//! A file behind an iSCSI target: Debian's tgt, a daemon of our own with its own control socket.
//!
//! It listens on the loopback device only. SIGTERM does not end it, so we end it by its control socket, or the
//! reaper does if we are killed.

use super::container::which;
use super::storage::{READY_PATIENCE, Ready};
use super::{Stage, StageOptions};
use crate::cpu::Service;
use loads::place::LogicalUnit;
use loads::process;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const TARGET: &str = "iqn.2026-01.io.tsumugi:eval";
/// Unit 0 is tgt's own controller.
const LUN: u16 = 1;
const POLL_PERIOD: Duration = Duration::from_millis(20);
/// The cross-check with libiscsi's own program: operations under way, blocks, seconds.
const CHECK_DEPTH: &str = "16";
const CHECK_BLOCKS: &str = "2";
const CHECK_BYTES: &str = "8KiB";
const CHECK_SECONDS: &str = "2";

/// A daemon's control socket, and the program that uses it.
struct Control {
    program: PathBuf,
    /// What tgt puts the number of its control port behind.
    socket: PathBuf,
}

impl Control {
    /// One call of tgtadm.
    fn call(&self, words: &str) -> Result<String, String> {
        let mut command = Command::new(&self.program);
        command.args(["-C", "0", "--lld", "iscsi"]).args(words.split(' '));
        command.env("TGT_IPC_SOCKET", &self.socket);
        process::succeed(&mut command).map_err(|error| error.to_string())
    }

    /// The shell command that ends the daemon.
    fn leave(&self) -> String {
        let (program, socket) = (self.program.display(), self.socket.display());
        let call = format!("TGT_IPC_SOCKET='{socket}' '{program}' -C 0 --lld iscsi --op delete");
        format!("{call} --force --mode target --tid 1; {call} --mode system")
    }
}

/// A program of tgt, which lies where ordinary users do not look.
fn program(name: &str) -> Result<PathBuf, String> {
    let places = [PathBuf::from(name), Path::new("/usr/sbin").join(name)];
    let found = places.iter().find_map(|place| which(place));
    found.ok_or_else(|| format!("{name} is not installed: install tgt"))
}

impl Stage {
    /// Exports a file, or says why that cannot be here.
    pub(super) fn enter_iscsi(
        &mut self,
        options: &StageOptions,
        file: &Ready,
        own: &Path,
    ) -> Result<Ready, String> {
        let daemon = program("tgtd")?;
        let control = Control { program: program("tgtadm")?, socket: own.join("tgt") };
        let portal = self.start_tgtd(&daemon, &control, own)?;
        let stores = control.call("--op show --mode system")?;
        if !stores.lines().any(|line| line.trim() == "aio" || line.trim().starts_with("aio ")) {
            return Err("this tgtd has no backing store \"aio\", the one with direct I/O".into());
        }
        control.call(&format!("--op new --mode target --tid 1 --targetname {TARGET}"))?;
        let path = file.file.display();
        let path = path.to_string();
        let mut unit = Command::new(&control.program);
        unit.args(["-C", "0", "--lld", "iscsi", "--op", "new", "--mode", "logicalunit"]);
        unit.args(["--tid", "1", "--lun", &LUN.to_string(), "--bstype", "aio"]);
        unit.args(["--blocksize", "4096", "--backing-store", &path]);
        unit.env("TGT_IPC_SOCKET", &control.socket);
        process::succeed(&mut unit).map_err(|error| error.to_string())?;
        control.call("--op bind --mode target --tid 1 --initiator-address 127.0.0.1")?;
        let unit = LogicalUnit { portal, target: TARGET.into(), lun: LUN };
        let probed = probe(options, &unit, &["--rate", "100", "--runtime", "0.05"])?;
        let version = process::output(&daemon.display().to_string(), &["--version"]);
        self.notes.push(format!(
            "{}: tgtd {} (backing store aio, direct I/O) and libiscsi, over the loopback device. Beside \
             NVMe/TCP by our own target and host this compares these implementations, not the \
             protocols{}",
            own.file_name().unwrap_or_default().display(),
            version.unwrap_or_default().trim(),
            cross_check(options, &unit).map_or_else(|why| format!("; {why}"), |it| format!("; {it}")),
        ));
        drop(probed);
        Ok(Ready { source: file.source.clone(), unit: Some(unit), ..Ready::default() })
    }

    /// Starts a daemon and waits until it answers.
    fn start_tgtd(
        &mut self,
        daemon: &Path,
        control: &Control,
        own: &Path,
    ) -> Result<SocketAddr, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", daemon.display());
        // A port that is free now: the daemon takes none by itself.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let portal = listener.local_addr().map_err(failed)?;
        drop(listener);
        let log = own.join("tgtd.log");
        let output = File::create(&log).map_err(failed)?;
        let mut command = Command::new(daemon);
        command.args(["-f", "-C", "0", "--iscsi", &format!("portal={portal}")]);
        command.env("TGT_IPC_SOCKET", &control.socket).stdin(Stdio::null()).process_group(0);
        command.stdout(output.try_clone().map_err(failed)?).stderr(output);
        if let Some(owner) = &self.owner {
            owner.mark_service(&mut command);
        }
        // Noted first: being killed meanwhile must not leave the daemon.
        if let Some(directory) = &self.directory {
            directory.note_leave(&control.leave()).map_err(|error| error.to_string())?;
        }
        let mut child = command.spawn().map_err(failed)?;
        let begun = Instant::now();
        let answered = loop {
            if control.call("--op show --mode system").is_ok() {
                break true;
            }
            if begun.elapsed() > READY_PATIENCE || !matches!(child.try_wait(), Ok(None)) {
                break false;
            }
            std::thread::sleep(POLL_PERIOD);
        };
        self.services.push(Service { name: "tgtd".into(), pid: child.id() });
        self.children.push(child);
        if !answered {
            let said = fs::read_to_string(&log).unwrap_or_default();
            return Err(format!("tgtd does not answer: {}", said.trim()));
        }
        self.leave.push(control.leave());
        Ok(portal)
    }
}

/// Loads the unit for a moment; gives what the load says.
fn probe(options: &StageOptions, unit: &LogicalUnit, words: &[&str]) -> Result<String, String> {
    let mut command = Command::new(&options.program);
    command.args(["eval", "rate", "--json"]).args(words).arg(unit.url());
    process::succeed(&mut command).map_err(|error| error.to_string())
}

/// Sets our load beside libiscsi's own program for two seconds each.
fn cross_check(options: &StageOptions, unit: &LogicalUnit) -> Result<String, String> {
    let program = which(Path::new("iscsi-perf"))
        .ok_or("iscsi-perf is not installed (libiscsi-bin), so nothing was cross-checked")?;
    let mut theirs = Command::new(program);
    theirs.args(["-r", "-m", CHECK_DEPTH, "-b", CHECK_BLOCKS, "-t", CHECK_SECONDS]).arg(unit.url());
    let said = process::succeed(&mut theirs).map_err(|error| error.to_string())?;
    let theirs = average(&said).ok_or("iscsi-perf told no average")?;
    let words = [
        "--iodepth-max",
        CHECK_DEPTH,
        "--bs",
        CHECK_BYTES,
        "--runtime",
        CHECK_SECONDS,
        "--units",
        "1",
    ];
    let said = probe(options, unit, &words)?;
    let said: serde_json::Value = serde_json::from_str(&said).map_err(|error| error.to_string())?;
    let ours = said["iops"].as_f64().ok_or("our load told no rate")?;
    Ok(format!(
        "cross-check of random reads of {CHECK_BYTES} at depth {CHECK_DEPTH} for {CHECK_SECONDS} s: \
         iscsi-perf {theirs:.0}, ours {ours:.0} IOPS"
    ))
}

/// The last average in the output of iscsi-perf.
fn average(said: &str) -> Option<f64> {
    let (_, rest) = said.rsplit_once("iops average ")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the last average counts, of a line that is written over and over.
    #[test]
    fn averages_are_read() {
        let said = "iscsi-perf version 0.1\n\r00:00:01 - lba 7, iops current 9 (1 MB/s), iops average 9 \
                    (1 MB/s), in_flight 16, busy 0 \riops average 1234 (9 MB/s)      \n";
        assert_eq!(average(said), Some(1234.0));
        assert_eq!(average("failed"), None);
    }
}
