//! Making storages ready: a file that is written once beforehand, wherever it lies.

use super::network::{Network, TARGET_ADDRESS};
use super::{Stage, StageOptions};
use crate::error::Error;
use crate::experiment::{Network as NetworkKind, Storage};
use crate::own::OwnDirectory;
use crate::plan::Plan;
use crate::process;
use crate::random::Random;
use crate::safety;
use serde::Deserialize;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How long a target or a host may take to be ready.
const READY_PATIENCE: Duration = Duration::from_secs(30);
const PIECE_BYTES: usize = 1 << 20;
const NQN: &str = "nqn.2026-01.io.tsumugi:eval";

/// A storage that can be worked on.
#[derive(Clone, Debug)]
pub(super) struct Ready {
    pub(super) file: PathBuf,
    pub(super) device: Option<(u32, u32)>,
}

#[derive(Deserialize)]
struct TargetSays {
    listening: Vec<std::net::SocketAddr>,
    subsystems: Vec<SubsystemSays>,
}

#[derive(Deserialize)]
struct SubsystemSays {
    namespaces: Vec<NamespaceSays>,
}

#[derive(Deserialize)]
struct NamespaceSays {
    uuid: String,
}

#[derive(Deserialize)]
struct AttachSays {
    file: PathBuf,
    how: String,
}

impl Stage {
    /// Makes a storage of so many bytes ready below `own`, a directory for it. The inner error is why it is not
    /// available.
    pub(super) fn enter_storage(
        &mut self,
        plan: &Plan,
        options: &StageOptions,
        storage: &Storage,
        own: &Path,
        bytes: u64,
    ) -> Result<Result<Ready, String>, Error> {
        match storage {
            Storage::Directory(path) => {
                let directory = self.directory_for(path.as_deref(), own)?;
                Ok(Ok(make_file(&directory.join("file"), bytes)?))
            }
            Storage::BlockDevice { path, destroy } => {
                if plan.experiment.workloads.iter().any(|load| load.pattern.writes()) {
                    safety::check_device_for_writing(path, destroy.as_deref())?;
                }
                Ok(device(path))
            }
            Storage::Target { directory, network } => {
                let directory = self.directory_for(directory.as_deref(), own)?;
                let backing = make_file(&directory.join("namespace"), bytes)?;
                Ok(self.enter_target(options, &backing, *network, own))
            }
            Storage::Command { enter, leave } => {
                let mount = own.join("mount");
                fs::create_dir(&mount).map_err(Error::io("cannot make", &mount))?;
                let fill = |text: &str| text.replace("{directory}", &mount.display().to_string());
                // Noted first: being killed meanwhile must not leave the mount.
                if let Some(directory) = &self.directory {
                    directory.note_leave(&fill(leave))?;
                }
                if let Err(error) = self.enter_command(&fill(enter)) {
                    return Ok(Err(error.to_string()));
                }
                self.leave.push(fill(leave));
                Ok(make_file(&mount.join("file"), bytes).map_err(|error| error.to_string()))
            }
        }
    }

    /// `own`, or a new directory of ours below the one that is asked for.
    fn directory_for(&mut self, asked: Option<&Path>, own: &Path) -> Result<PathBuf, Error> {
        let Some(asked) = asked else { return Ok(own.into()) };
        self.reclaim(asked);
        let owner = self.owner.as_ref().ok_or_else(|| Error::Results("no owner".into()))?;
        let directory = OwnDirectory::make(asked, owner)?;
        if let Some(first) = &self.directory {
            first.note_further(&directory)?;
        }
        let path = directory.path().to_path_buf();
        self.further.push(directory);
        Ok(path)
    }

    /// Runs a command of the experiment; what stays of it is a service.
    fn enter_command(&self, command: &str) -> Result<(), Error> {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]);
        if let Some(owner) = &self.owner {
            owner.mark_service(&mut shell);
        }
        process::succeed(&mut shell).map(drop)
    }

    fn enter_target(
        &mut self,
        options: &StageOptions,
        backing: &Ready,
        network: NetworkKind,
        own: &Path,
    ) -> Result<Ready, String> {
        let network = match network {
            NetworkKind::Loopback => None,
            NetworkKind::Namespace => Some(Network::make(own)?),
        };
        let mut target = Command::new(&options.program);
        let namespace = format!("file:{}", backing.file.display());
        target.args(["target", "--json", "--nqn", NQN, "--namespace", &namespace, "--listen"]);
        match &network {
            Some(network) => {
                target.args([&format!("{TARGET_ADDRESS}:4420"), "--insecure"]);
                target.arg("--network-namespace").arg(&network.target)
            }
            None => target.arg("127.0.0.1:0"),
        };
        let says: TargetSays = self.start(target)?;
        let address = says.listening.first().ok_or("the target listens nowhere")?;
        let mount = own.join("attached");
        fs::create_dir(&mount).map_err(|error| error.to_string())?;
        let mut attach = Command::new(&options.program);
        attach.args(["nvme", "attach", "-a", &address.ip().to_string()]);
        attach.args(["-s", &address.port().to_string(), "-n", NQN, "--json", "--mount"]);
        attach.arg(&mount);
        // The namespace is a file that we have just made.
        let namespaces = says.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
        let namespace = namespaces.last().ok_or("the target has no namespace")?;
        attach.args(["--destroy", &namespace.uuid]);
        if let Some(network) = &network {
            attach.arg("--network-namespace").arg(&network.host);
        }
        let says: AttachSays = self.start(attach)?;
        self.notes.push(format!("{}: {}", own.file_name().unwrap_or_default().display(), says.how));
        // Fabric and file system have no counters; what the target reads is counted by its disk.
        Ok(Ready { file: says.file, device: backing.device })
    }

    /// Starts a process of ours and takes the line that it prints when it is ready.
    fn start<T: for<'de> Deserialize<'de>>(&mut self, mut command: Command) -> Result<T, String> {
        let shown = process::shown(&command);
        if let Some(owner) = &self.owner {
            owner.mark_service(&mut command);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let child = command.spawn().map_err(|error| format!("{shown}: {error}"))?;
        self.children.push(child);
        let child: &mut Child = self.children.last_mut().ok_or("no child")?;
        let (sender, receiver) = mpsc::channel();
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(format!("{shown}: no output"));
        };
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            let mut line = String::new();
            // An end or an error leaves the line empty, which is no JSON.
            let _ = reader.read_line(&mut line);
            let _ = sender.send(line);
            let _ = std::io::copy(&mut reader, &mut std::io::sink());
        });
        let (complain, complaints) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = complain.send(line);
            }
        });
        let line = receiver.recv_timeout(READY_PATIENCE).unwrap_or_default();
        serde_json::from_str(&line).map_err(|_| {
            let said: Vec<String> = complaints.try_iter().collect();
            format!("{shown}: is not ready: {line}{}", said.join(" "))
        })
    }
}

/// Runs a shell command to its end.
pub(super) fn shell(command: &str) -> Result<(), Error> {
    process::output("sh", &["-c", command]).map(drop)
}

/// Makes a file and writes all of it, so that no run is the first to write a block. The contents
/// are random, lest storage that compresses or finds zeros shine.
pub(super) fn make_file(path: &Path, bytes: u64) -> Result<Ready, Error> {
    let wrong = |what| move |source| Error::io(what, path)(source);
    let mut file = fs::File::create_new(path).map_err(wrong("cannot make"))?;
    let mut random = Random::new(bytes);
    let mut piece = vec![0; PIECE_BYTES];
    for chunk in piece.chunks_exact_mut(8) {
        chunk.copy_from_slice(&random.next_u64().to_le_bytes());
    }
    let mut left = bytes;
    while left > 0 {
        // Pieces differ, lest storage that finds duplicates shine.
        piece[..8].copy_from_slice(&random.next_u64().to_le_bytes());
        let part = left.min(PIECE_BYTES as u64) as usize;
        file.write_all(&piece[..part]).map_err(wrong("cannot write"))?;
        left -= part as u64;
    }
    file.sync_all().map_err(wrong("cannot write"))?;
    let device = file.metadata().map_err(wrong("cannot use"))?.dev();
    Ok(Ready { file: path.into(), device: counted(device) })
}

fn device(path: &Path) -> Result<Ready, String> {
    let metadata = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    if !metadata.file_type().is_block_device() {
        return Err(format!("{} is no block device", path.display()));
    }
    Ok(Ready { file: path.into(), device: counted(metadata.rdev()) })
}

/// The device's numbers, if the kernel counts its traffic.
fn counted(device: u64) -> Option<(u32, u32)> {
    let numbers = (rustix::fs::major(device), rustix::fs::minor(device));
    crate::guard::device_counters(numbers).map(|_| numbers)
}
