//! Making storages ready: a file that is written once beforehand, wherever it lies.

use super::network::{Network, TARGET_ADDRESS};
use super::{Layers, Stage, StageOptions};
use crate::cpu::Service;
use crate::guard::Source;
use crate::own::OwnDirectory;
use crate::plan::Plan;
use crate::safety;
use base::Error;
use base::statistics::random::Random;
use loads::crowd::Shares;
use loads::file_set::write_random;
use loads::level::{Backing, Network as NetworkKind, Paced, Storage, Subsystem};
use loads::place::{Fabric, LogicalUnit};
use loads::process;
use loads::workload::Workload;
use reactor::Spin;
use serde::Deserialize;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How long a target or a host may take to be ready.
pub(super) const READY_PATIENCE: Duration = Duration::from_secs(30);
const PIECE_BYTES: usize = 1 << 20;
const NQN: &str = "nqn.2026-01.io.tsumugi:eval";

/// A storage that can be worked on.
#[derive(Clone, Debug, Default)]
pub(super) struct Ready {
    pub(super) file: PathBuf,
    /// Where its data lies in the end.
    pub(super) source: Source,
    /// For engines that are hosts themselves; there is no file then.
    pub(super) fabric: Option<Fabric>,
    /// For engines that are initiators themselves; there is no file then either.
    pub(super) unit: Option<LogicalUnit>,
    /// The block device of its own, whose scheduler may be set.
    pub(super) queue: Option<(u32, u32)>,
    /// Mounts of one file system, if it has several; the file is in the first.
    pub(super) mounts: Vec<PathBuf>,
    /// What gives instances a directory each, if it is more than plain directories.
    pub(super) shares: Option<Arc<dyn Shares>>,
    /// Changeable copies of one set of files; there is no file of its own then.
    pub(super) layers: Option<Layers>,
}

impl Ready {
    /// A file or a block device.
    pub(super) fn file(file: PathBuf, source: Source) -> Self {
        Self { file, source, ..Self::default() }
    }

    /// A namespace, for hosts.
    fn fabric(fabric: Fabric, source: Source) -> Self {
        Self { source, fabric: Some(fabric), ..Self::default() }
    }
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
                if plan.experiment.workloads.iter().any(Workload::writes) {
                    safety::check_device_for_writing(path, destroy.as_deref())?;
                }
                Ok(device(path))
            }
            Storage::Target { directory, network, backing, poll_us } => {
                let backing = match backing {
                    Backing::File => {
                        let made = self.exported_file(directory.as_deref(), own, bytes, false)?;
                        (format!("file:{}", made.file.display()), made.source)
                    }
                    Backing::Memory => (format!("memory:{bytes}"), Source::Uncached),
                };
                let is_host = plan.experiment.engine.is_host;
                Ok(self
                    .enter_target(options, backing, (*network, *poll_us), own)
                    .and_then(|it| if is_host { Ok(it) } else { self.attach(options, it, own) }))
            }
            Storage::Iscsi { directory } => {
                let file = self.exported_file(directory.as_deref(), own, bytes, true)?;
                Ok(self.enter_iscsi(options, &file, own))
            }
            Storage::Subsystem(subsystem) => {
                let fabric = Fabric { subsystem: subsystem.clone(), network_namespace: None };
                Ok(Ok(Ready::fabric(fabric, Source::Uncached)))
            }
            // What it is stands in the load's own process.
            Storage::Null | Storage::Memory => {
                Ok(Ok(Ready { source: Source::Uncached, ..Ready::default() }))
            }
            Storage::Paced(paced) => {
                // Of the experiment's seed, but another for each device.
                let name = blake3::hash(own.file_name().unwrap_or_default().as_encoded_bytes());
                let part =
                    name.as_bytes().iter().take(8).fold(0, |all, byte| all << 8 | u64::from(*byte));
                let seed = Random::of(plan.experiment.seed, part).next_u64();
                Ok(self.enter_paced(options, *paced, own, (bytes, seed)))
            }
            Storage::Pool(pool) => self.enter_pool(options, pool, own, bytes),
            Storage::Layers(scheme) => self.enter_layers(plan, options, *scheme, own),
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

    /// A file for a target. A target of ours and one of tgt share theirs, so that both are measured on
    /// the same file.
    fn exported_file(
        &mut self,
        asked: Option<&Path>,
        own: &Path,
        bytes: u64,
        is_of_tgt: bool,
    ) -> Result<Ready, Error> {
        let is_other = |(is_of_tgt_there, _): &mut (bool, Ready)| *is_of_tgt_there != is_of_tgt;
        if asked.is_none()
            && let Some((_, file)) = self.unshared.take_if(is_other)
        {
            return Ok(file);
        }
        let directory = self.directory_for(asked, own)?;
        let made = make_file(&directory.join("namespace"), bytes)?;
        if asked.is_none() {
            self.unshared = Some((is_of_tgt, made.clone()));
        }
        Ok(made)
    }

    /// `own`, or a new directory of ours below the one that is asked for.
    fn directory_for(&mut self, asked: Option<&Path>, own: &Path) -> Result<PathBuf, Error> {
        let Some(asked) = asked else { return Ok(own.into()) };
        self.reclaim(asked);
        let owner = self
            .owner
            .as_ref()
            .ok_or_else(|| Error::Refused("the experiment has no owner".into()))?;
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

    /// Starts a target of ours on a namespace: its specification, and where its data lies.
    fn enter_target(
        &mut self,
        options: &StageOptions,
        (namespace, source): (String, Source),
        (network, poll_us): (NetworkKind, Option<Spin>),
        own: &Path,
    ) -> Result<Ready, String> {
        let network = match network {
            NetworkKind::Loopback => None,
            NetworkKind::Namespace => Some(Network::make(own)?),
        };
        let mut target = Command::new(&options.program);
        target.args(["target", "--json", "--nqn", NQN, "--namespace", &namespace, "--listen"]);
        match &network {
            Some(network) => {
                target.args([&format!("{TARGET_ADDRESS}:4420"), "--insecure"]);
                target.arg("--network-namespace").arg(&network.target)
            }
            None => target.arg("127.0.0.1:0"),
        };
        if let Some(poll_us) = poll_us {
            target.args(["--poll-us", &poll_us.to_string()]);
        }
        let says: TargetSays = self.start(target)?;
        let address = says.listening.first().ok_or("the target listens nowhere")?;
        let namespaces = says.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
        let namespace = namespaces.last().ok_or("the target has no namespace")?;
        let subsystem = Subsystem {
            address: address.ip().to_string(),
            port: address.port(),
            nqn: NQN.into(),
            namespace: None,
            // The namespace is one that we have just made.
            destroy: Some(namespace.uuid.clone()),
        };
        let network_namespace = network.map(|network| network.host);
        // The fabric has no counters; what the target reads is counted by its disk.
        Ok(Ready::fabric(Fabric { subsystem, network_namespace }, source))
    }

    /// Makes a namespace a file: a block device of the kernel's host, or one through FUSE.
    fn attach(
        &mut self,
        options: &StageOptions,
        ready: Ready,
        own: &Path,
    ) -> Result<Ready, String> {
        let fabric = ready.fabric.ok_or("there is no namespace")?;
        let mount = own.join("attached");
        fs::create_dir(&mount).map_err(|error| error.to_string())?;
        let mut attach = Command::new(&options.program);
        attach.args(["nvme", "attach", "--json", "--mount"]).arg(&mount);
        attach.args(fabric.arguments());
        if let (Some(directory), None) = (&self.directory, &fabric.network_namespace) {
            // A controller of the kernel's host outlives us and whoever attached it.
            let mut detach = Command::new(&options.program);
            detach.args(["nvme", "detach", "-n", &fabric.subsystem.nqn]).args(fabric.reach());
            let noted = directory.note_leave(&process::shown(&detach));
            noted.map_err(|error| error.to_string())?;
        }
        let says: AttachSays = self.start(attach)?;
        self.notes.push(format!("{}: {}", own.file_name().unwrap_or_default().display(), says.how));
        Ok(Ready::file(says.file, ready.source))
    }

    /// Starts a device of known speed.
    fn enter_paced(
        &mut self,
        options: &StageOptions,
        paced: Paced,
        own: &Path,
        (bytes, seed): (u64, u64),
    ) -> Result<Ready, String> {
        let mount = own.join("paced");
        fs::create_dir(&mount).map_err(|error| error.to_string())?;
        let mut serve = Command::new(&options.program);
        serve.args(["eval", "paced", "--size", &bytes.to_string()]);
        serve.args(["--seed", &seed.to_string(), "--rate", &paced.bytes_per_s.to_string()]);
        serve.args(["--spread", &paced.spread.to_string()]).arg(&mount);
        let says: AttachSays = self.start(serve)?;
        self.notes.push(format!("{}: {}", own.file_name().unwrap_or_default().display(), says.how));
        // Its server makes every answer itself, at its own rate.
        Ok(Ready::file(says.file, Source::Uncached))
    }

    /// Starts a process of ours and takes the JSON that it prints when it is ready.
    fn start<T: for<'de> Deserialize<'de>>(&mut self, command: Command) -> Result<T, String> {
        self.start_until(command, |line| serde_json::from_str(line).ok())
    }

    /// Starts a process of ours; `read` takes the line that it prints when it is ready. Lines before it
    /// say what it does meanwhile.
    pub(super) fn start_until<T>(
        &mut self,
        mut command: Command,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<T, String> {
        let shown = process::shown(&command);
        if let Some(owner) = &self.owner {
            owner.mark_service(&mut command);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let child = command.spawn().map_err(|error| format!("{shown}: {error}"))?;
        self.services.push(Service { name: service_name(&command), pid: child.id() });
        self.children.push(child);
        let child: &mut Child = self.children.last_mut().ok_or("no child")?;
        let (sender, receiver) = mpsc::channel();
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(format!("{shown}: no output"));
        };
        std::thread::spawn(move || {
            // Read to the end also when no line is wanted any more, or the process would wait.
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let (complain, complaints) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = complain.send(line);
            }
        });
        let deadline = std::time::Instant::now() + READY_PATIENCE;
        let mut said = Vec::new();
        let left = || deadline.saturating_duration_since(std::time::Instant::now());
        while let Ok(line) = receiver.recv_timeout(left()) {
            if let Some(ready) = read(&line) {
                return Ok(ready);
            }
            said.push(line);
        }
        said.extend(complaints.try_iter());
        Err(format!("{shown}: is not ready: {}", said.join(" ")))
    }
}

/// What a command of ours is: its last word before the options.
fn service_name(command: &Command) -> String {
    let words = command.get_args().map(|word| word.to_string_lossy());
    words.take_while(|word| !word.starts_with('-')).last().unwrap_or_default().into_owned()
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
    write_random(&mut file, &mut piece, bytes, &mut random).map_err(wrong("cannot write"))?;
    file.sync_all().map_err(wrong("cannot write"))?;
    Ok(Ready::file(path.into(), Source::of_file(path)))
}

pub(super) fn device(path: &Path) -> Result<Ready, String> {
    let metadata = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    if !metadata.file_type().is_block_device() {
        return Err(format!("{} is no block device", path.display()));
    }
    let numbers = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let ready = Ready::file(path.into(), Source::of_device(numbers));
    Ok(Ready { queue: Some(numbers), ..ready })
}
