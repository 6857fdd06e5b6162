//! The Linux kernel's NVMe host over TCP and RDMA. As with nvme-cli, a line written to `/dev/nvme-fabrics`
//! creates a controller, and `delete_controller` in its sysfs directory removes it.
//!
//! The kernel's options have the names and meanings of nvme-cli's options, and so of ours; its
//! times are whole seconds. A controller outlives the process that created it, so that process must
//! remove it.

use anyhow::{Context, bail, ensure};
use host::{ConnectOptions, Transport};
use nvme::Nsid;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

const FABRICS: &str = "/dev/nvme-fabrics";
const MODULES: &str = "/sys/module";
const CONTROLLERS: &str = "/sys/class/nvme";
/// How long the kernel may take to show a namespace, or to remove a controller.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A controller of the kernel's host, and the block device of its namespace.
#[derive(Debug)]
pub(super) struct Attached {
    /// The controller's directory in sysfs.
    controller: PathBuf,
    /// The block device.
    pub(super) device: PathBuf,
}

/// Returns the transport's name in the kernel's options and modules, and in texts.
pub(super) fn names(transport: Transport) -> (&'static str, &'static str) {
    match transport {
        Transport::Tcp => ("tcp", "NVMe/TCP"),
        Transport::Rdma => ("rdma", "NVMe/RDMA"),
    }
}

/// Returns an error with the reason if the kernel's host cannot be used here.
pub(super) fn check(transport: Transport) -> Result<(), String> {
    let (name, shown) = names(transport);
    let loaded = Path::new(MODULES).join(format!("nvme_{name}"));
    let is_there = || Path::new(FABRICS).exists() && loaded.exists();
    if !rustix::process::geteuid().is_root() {
        return Err("only root may use the kernel's host".into());
    }
    if is_there() {
        return Ok(());
    }
    let module = format!("nvme-{name}");
    let said = match Command::new("modprobe").arg(&module).output() {
        Ok(done) => String::from_utf8_lossy(&done.stderr).trim().to_string(),
        Err(error) => error.to_string(),
    };
    if is_there() {
        return Ok(());
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    Err(format!("Linux {release} has no {shown} host here (modprobe {module}: {said})"))
}

/// Returns the line that creates a controller. Its number of queues is that of the CPUs times
/// `nr_io_queues`; the kernel creates at most one per CPU.
fn line(options: &ConnectOptions, cpus: usize) -> String {
    let uuid = uuid::Uuid::from_bytes(options.hostid.0);
    let queues = cpus.saturating_mul(options.nr_io_queues.into());
    let up = |time: Duration| time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let mut words = vec![format!(
        "nqn={},transport={},traddr={},trsvcid={},hostnqn={},hostid={uuid},nr_io_queues={queues},\
         queue_size={},keep_alive_tmo={},reconnect_delay={}",
        options.subsystem_nqn,
        names(options.transport).0,
        options.address.ip(),
        options.address.port(),
        options.hostnqn,
        options.queue_size,
        up(options.keep_alive_tmo),
        up(options.reconnect_delay).max(1),
    )];
    let loss = options.ctrl_loss_tmo.map_or_else(|| "-1".to_owned(), |time| up(time).to_string());
    words.push(format!("ctrl_loss_tmo={loss}"));
    words.extend(options.fast_io_fail_tmo.map(|time| format!("fast_io_fail_tmo={}", up(time))));
    words.extend(options.hdr_digest.then(|| "hdr_digest".into()));
    words.extend(options.data_digest.then(|| "data_digest".into()));
    words.join(",")
}

/// Returns the part of that line with the keys. Messages and logs omit it.
fn secrets(options: &ConnectOptions) -> Zeroizing<String> {
    let mut words = Zeroizing::new(String::new());
    if let Some(keys) = &options.dhchap {
        words.push_str(",dhchap_secret=");
        words.push_str(&keys.host.to_text());
        if let Some(controller) = &keys.controller {
            words.push_str(",dhchap_ctrl_secret=");
            words.push_str(&controller.to_text());
        }
    }
    words
}

/// Returns the controller's number in the kernel's answer: `instance=3,cntlid=1`.
fn instance(answer: &str) -> Option<u32> {
    answer.split(',').find_map(|word| word.trim().strip_prefix("instance=")?.parse().ok())
}

/// Connects the kernel's host, and waits for the namespace's block device.
pub(super) fn attach(options: &ConnectOptions, nsid: Nsid) -> anyhow::Result<Attached> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let line = line(options, cpus);
    let mut fabrics = OpenOptions::new()
        .read(true)
        .write(true)
        .open(FABRICS)
        .with_context(|| format!("cannot open {FABRICS}"))?;
    let whole = Zeroizing::new([line.as_str(), secrets(options).as_str()].concat());
    fabrics.write_all(whole.as_bytes()).with_context(|| {
        format!("the kernel's host does not connect (its log, dmesg, says why); asked: {line}")
    })?;
    let mut answer = String::new();
    fabrics.read_to_string(&mut answer).with_context(|| format!("cannot read {FABRICS}"))?;
    let number = instance(&answer).with_context(|| format!("{FABRICS} answered {answer:?}"))?;
    let controller = Path::new(CONTROLLERS).join(format!("nvme{number}"));
    let found = wait(|| device(&controller, nsid));
    let mut attached = Attached { controller, device: PathBuf::new() };
    if let Some(device) = found {
        attached.device = device;
        return Ok(attached);
    }
    attached.detach()?;
    bail!("the kernel shows no block device for namespace {} within {PATIENCE:?}", nsid.0)
}

/// Returns the block device of a namespace, once it exists.
fn device(controller: &Path, nsid: Nsid) -> Option<PathBuf> {
    let entries = fs::read_dir(controller).ok()?;
    let device = entries.flatten().find_map(|entry| {
        let is_it = fs::read_to_string(entry.path().join("nsid"))
            .is_ok_and(|text| text.trim().parse() == Ok(nsid.0));
        is_it.then(|| head(&entry.file_name().to_string_lossy())).flatten()
    })?;
    let device = Path::new("/dev").join(device);
    device.exists().then_some(device)
}

/// Returns the device to use for a controller's device. With multipathing a controller's own device
/// (`nvme0c1n1`) is hidden behind the subsystem's (`nvme0n1`).
fn head(name: &str) -> Option<String> {
    let rest = name.strip_prefix("nvme")?;
    let (path, namespace) = rest.split_once('n')?;
    let subsystem = path.split_once('c').map_or(path, |(subsystem, _)| subsystem);
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    (is_number(subsystem) && is_number(namespace)).then(|| format!("nvme{subsystem}n{namespace}"))
}

/// Polls until `look` returns a value, or [`PATIENCE`] ends.
fn wait<T>(look: impl Fn() -> Option<T>) -> Option<T> {
    let begun = Instant::now();
    loop {
        let found = look();
        if found.is_some() || begun.elapsed() > PATIENCE {
            return found;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Removes the controller with this directory.
fn delete(controller: &Path) -> anyhow::Result<()> {
    let path = controller.join("delete_controller");
    fs::write(&path, "1").with_context(|| format!("cannot write {}", path.display()))?;
    wait(|| (!controller.exists()).then_some(()))
        .with_context(|| format!("{} does not go away", controller.display()))
}

impl Attached {
    /// Makes the block device read-only.
    pub(super) fn protect(&self) -> anyhow::Result<()> {
        let done = Command::new("blockdev")
            .arg("--setro")
            .arg(&self.device)
            .output()
            .context("cannot run blockdev")?;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "blockdev --setro: {}", said.trim());
        Ok(())
    }

    /// Returns whether the controller still exists.
    pub(super) fn is_there(&self) -> bool {
        self.controller.exists()
    }

    /// Returns whether a file system or another device uses it.
    pub(super) fn is_in_use(&self) -> bool {
        use std::os::unix::fs::OpenOptionsExt;
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(&self.device);
        opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
    }

    /// Writes the kernel's cached data of the device, and removes the controller.
    pub(super) fn detach(self) -> anyhow::Result<()> {
        let synced = match fs::File::open(&self.device) {
            _ if self.device.as_os_str().is_empty() => Ok(()),
            opened => opened.and_then(|file| file.sync_all()),
        };
        delete(&self.controller)?;
        synced.with_context(|| {
            format!("{} cannot be flushed: its last writes may be lost", self.device.display())
        })
    }
}

/// Returns whether a controller's `address` ("traddr=10.0.0.7,trsvcid=4420,…") is this one.
fn is_at(text: &str, address: SocketAddr) -> bool {
    let field = |name: &str| {
        text.trim().split(',').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    field("traddr").and_then(|it| it.parse().ok()) == Some(address.ip())
        && field("trsvcid").and_then(|it| it.parse().ok()) == Some(address.port())
}

/// Removes the controllers of a subsystem at an address. Returns their number.
pub(super) fn detach(address: SocketAddr, nqn: &str) -> anyhow::Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(CONTROLLERS).into_iter().flatten().flatten() {
        let controller = entry.path();
        let read = |name: &str| fs::read_to_string(controller.join(name)).unwrap_or_default();
        if read("subsysnqn").trim() == nqn && is_at(&read("address"), address) {
            delete(&controller)?;
            count += 1;
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::{HostId, Nqn};

    fn options() -> ConnectOptions {
        let address = "10.0.0.7:4420".parse().unwrap();
        let nqn = Nqn::new("nqn.2026-11.org.example:disk").unwrap();
        let host = Nqn::new("nqn.2026-11.org.example:host").unwrap();
        ConnectOptions::new(address, nqn).with_host(HostId([0x11; 16]), host)
    }

    /// Goal: the kernel gets the keys in its own format, and no message contains them.
    #[test]
    fn keys_are_given_and_not_shown() {
        let mut options = options();
        assert_eq!(secrets(&options).as_str(), "");
        let key = auth::Key::generate(None, 32).unwrap();
        let controller = auth::Key::generate(None, 64).unwrap();
        let (host, ctrl) = (key.to_text(), controller.to_text());
        options.dhchap = Some(auth::KeyPair { host: key, controller: Some(controller) });
        let words =
            format!(",dhchap_secret={},dhchap_ctrl_secret={}", host.as_str(), ctrl.as_str());
        assert_eq!(*secrets(&options), words);
        let shown = format!("{} {options:?}", line(&options, 4));
        assert!(!shown.contains("DHHC") && !shown.contains(&host[10..20]), "{shown}");
    }

    /// Goal: the kernel gets the same options as our host, in its own format; times are rounded up,
    /// because 0 has another meaning.
    #[test]
    fn lines_have_all_options() {
        let mut options = options();
        let plain = "nqn=nqn.2026-11.org.example:disk,transport=tcp,traddr=10.0.0.7,trsvcid=4420,\
                     hostnqn=nqn.2026-11.org.example:host,\
                     hostid=11111111-1111-1111-1111-111111111111,nr_io_queues=4,queue_size=128,\
                     keep_alive_tmo=5,reconnect_delay=10,ctrl_loss_tmo=600";
        assert_eq!(line(&options, 4), plain);
        options.ctrl_loss_tmo = None;
        options.reconnect_delay = Duration::from_millis(200);
        options.fast_io_fail_tmo = Some(Duration::from_millis(1500));
        options.nr_io_queues = 2;
        options.data_digest = true;
        options.transport = Transport::Rdma;
        let line = line(&options, 1);
        assert!(line.contains(",transport=rdma,traddr="), "{line}");
        let end = "nr_io_queues=2,queue_size=128,keep_alive_tmo=5,reconnect_delay=1,ctrl_loss_tmo=-1,\
                   fast_io_fail_tmo=2,data_digest";
        assert!(line.ends_with(end), "{line}");
    }

    /// Goal: the kernel's answers are read, and other text is not mistaken for one.
    #[test]
    fn answers_are_read() {
        assert_eq!(instance("instance=3,cntlid=1\n"), Some(3));
        assert_eq!(instance("instance=-1,cntlid=-1\n"), None);
        assert_eq!(instance(""), None);
        assert_eq!(head("nvme0n1").as_deref(), Some("nvme0n1"));
        assert_eq!(head("nvme3c12n2").as_deref(), Some("nvme3n2"));
        for name in ["nvme0", "power", "nvme0c1", "nvmexn1", "hwmon3"] {
            assert_eq!(head(name), None, "{name}");
        }
        let address = "10.0.0.7:4420".parse().unwrap();
        assert!(is_at("traddr=10.0.0.7,trsvcid=4420,src_addr=10.0.0.9\n", address));
        assert!(!is_at("traddr=10.0.0.7,trsvcid=4421", address));
        assert!(!is_at("traddr=10.0.0.70,trsvcid=4420", address));
        assert!(!is_at("", address));
    }

    /// Goal: the requested namespace is found among those of a controller.
    #[test]
    fn namespaces_are_found_by_number() {
        let controller = tempfile::tempdir().unwrap();
        for (name, nsid) in [("null", "7"), ("nvme0c0n1", "1")] {
            let entry = controller.path().join(name);
            fs::create_dir(&entry).unwrap();
            fs::write(entry.join("nsid"), format!("{nsid}\n")).unwrap();
        }
        // Either result is right: /dev has no such device on a machine without it, or the right
        // one.
        let found = device(controller.path(), Nsid(1));
        assert!(found.is_none_or(|it| it == Path::new("/dev/nvme0n1")));
        assert_eq!(device(controller.path(), Nsid(7)), None);
    }
}
