//! The mount's thread: a client of the file system with a FUSE front end.

use crate::config::{Checksum, FuseTransport, NodeConfig};
use crate::error::NodeError;
use crate::local::Local;
use client::{ChecksumCounts, ChecksumView, Client, ClientConfig, Damage, SessionConfig};
use fuse::{Mounter, Negotiated, TransportChoice, Unmounter};
use metrics::Value;
use mount::{Mount, MountSettings};
use reactor::local::{Canceled, oneshot};
use reactor::mailbox;
use reactor::{Either, SocketOptions};
use rpc::Credential;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// The configuration of the mount's thread.
pub(crate) struct Mounting {
    pub(crate) config: NodeConfig,
    pub(crate) mountpoint: PathBuf,
    /// The process that mounts, if this one cannot.
    pub(crate) mounter: Option<Arc<Mounter>>,
    pub(crate) credential: Credential,
    /// The node's own namespaces.
    pub(crate) local: Local,
}

/// A report of the mount's thread to the node's main thread.
pub(crate) enum Progress {
    /// The file system is mounted and served.
    Mounted(Served),
    /// It could not be mounted.
    Failed(String),
}

/// A mount that is served.
pub(crate) struct Served {
    /// Ends the mount.
    pub(crate) unmounter: Unmounter,
    /// Receives a message when the mount point is gone.
    pub(crate) unmounted: mailbox::Sender<Unmounted>,
    /// What was agreed with the kernel.
    pub(crate) agreed: Negotiated,
}

/// A message to the mount's thread: its mount point is gone.
pub(crate) struct Unmounted;

/// How long the mount's thread serves an unmounted mount. Processes may still have files open, or a
/// copy of the mount in another mount namespace, as containers have. The kernel ends a mount only
/// with the last of them.
const SERVED_ON: Duration = Duration::from_secs(5);

/// Returns the settings of a node's mount.
fn settings(
    config: &NodeConfig,
    mountpoint: &Path,
    mounter: Option<Arc<Mounter>>,
) -> MountSettings {
    MountSettings {
        mountpoint: mountpoint.to_owned(),
        allow_other: config.allow_other,
        read_only: false,
        transport: match config.transport {
            FuseTransport::Auto => TransportChoice::Auto,
            FuseTransport::Device => TransportChoice::Device,
            FuseTransport::Uring => TransportChoice::IoUring,
        },
        mounter,
    }
}

/// Mounts and unmounts for a node with this configuration, which runs in another process and
/// confines itself. Returns when that process closes the other end of `socket`.
///
/// # Errors
/// [`NodeError::Mount`] if the configuration names no mount point or the socket fails.
pub fn serve_mounter(config: &NodeConfig, socket: &OwnedFd) -> Result<(), NodeError> {
    let none = || NodeError::Mount("the configuration names no mount point".into());
    let mountpoint = config.mount.as_deref().ok_or_else(none)?;
    mount::serve_mounter(socket, &settings(config, mountpoint, None))
        .map_err(|error| NodeError::Mount(error.to_string()))
}

impl Mounting {
    /// Starts the thread; it ends with the mount.
    ///
    /// # Errors
    /// [`NodeError::Thread`].
    pub(crate) fn start(
        self,
        progress: mailbox::Sender<Progress>,
    ) -> Result<reactor::thread::JoinHandle<()>, NodeError> {
        let runtime = reactor::Config {
            sqe128: self.config.transport != FuseTransport::Device,
            spin: self.config.poll_us,
            ..reactor::Config::default()
        };
        let run = move || async move {
            if let Err(error) = self.run(&progress).await {
                let _ = progress.send(Progress::Failed(error)).await;
            }
        };
        reactor::thread::spawn("mount", &runtime, run).map_err(NodeError::Thread)
    }

    async fn run(self, progress: &mailbox::Sender<Progress>) -> Result<(), String> {
        if self.config.transport != FuseTransport::Device {
            serve_on_all_cpus(self.config.poll_us);
        }
        let settings = settings(&self.config, &self.mountpoint, self.mounter.clone());
        let mount = Mount::new(&settings).map_err(|error| error.to_string())?;
        let client = Client::start(self.client_config(&mount)).await?;
        show_checksums(client.checksums());
        let unmounter = mount.unmounter();
        let (ended, mut end) = oneshot();
        let (agreed, agreement) = oneshot();
        let serving = client.clone();
        reactor::spawn(async move {
            let result = mount.run(serving, agreed).await;
            let _ = ended.send(result);
        });
        // Until then the mount may still fail, and answers no requests.
        let agreed = match reactor::race(&mut end, agreement).await {
            Either::Second(Ok(agreed)) => agreed,
            Either::Second(Err(_)) => return Err(never_served(end.await)),
            Either::First(served) => return Err(never_served(served)),
        };
        if let Err(error) = unmounter.widen_read_ahead() {
            tracing::info!(error, "the kernel reads ahead by only 128 KiB");
        }
        let (unmounted, gone) = mailbox::channel(1);
        if progress.send(Progress::Mounted(Served { unmounter, unmounted, agreed })).await.is_err()
        {
            return Err("the node is ending".into());
        }
        let served = match reactor::race(end, pin!(served_on(gone))).await {
            Either::First(served) => {
                let served = served.map_err(|_| "serving the mount was aborted".to_owned())?;
                served.map_err(|error| error.to_string())
            }
            Either::Second(()) => {
                tracing::warn!(
                    mountpoint = %self.mountpoint.display(),
                    "still in use after it was unmounted, by open files or another mount namespace: \
                     what was written is committed, later calls get ENOTCONN"
                );
                Ok(())
            }
        };
        let ended = client.end().await;
        served?;
        ended.map_err(|errno| format!("not all data could be committed at the end: {errno}"))
    }

    fn client_config(&self, mount: &Mount) -> ClientConfig {
        ClientConfig {
            session: SessionConfig {
                meta: self.config.meta,
                credential: self.credential.clone(),
                times: self.config.times(),
                node: self.config.name.clone(),
                sockets: SocketOptions {
                    network_namespace: self.config.network_namespace.clone(),
                    ..SocketOptions::default()
                },
            },
            local: self.local.clone().devices(),
            plain_data: self.config.plain_data,
            changes: Some(mount.changes()),
            inline_bytes: protocol::inline::INLINE_MAX_BYTES,
            checksum: self.config.checksum == Checksum::On,
        }
    }
}

/// Lets a thread for each CPU serve the mount: with FUSE over `io_uring` each has a queue in the
/// kernel.
#[allow(unsafe_code, reason = "threads then share what is one thread's alone otherwise")]
fn serve_on_all_cpus(spin: reactor::Spin) {
    // SAFETY: client, mount and the crates below them keep state of threads only in the places that
    // are named here, and in pools of buffers that any thread may use.
    unsafe { reactor::relay::allow(client::thread_states(), spin) };
}

/// Adds the counts of checksum errors to this process's metrics.
fn show_checksums(view: ChecksumView) {
    let noted = view.clone();
    metrics::add_source(Box::new(move || {
        let ChecksumCounts { checksum_repaired, checksum_wrong, .. } = view.counts();
        let repaired =
            "Blocks that did not have their checksum, and had it when they were read again";
        let wrong = "Reads that failed because data did not have its checksum";
        vec![
            Value::counter("checksum_repaired", repaired, checksum_repaired),
            Value::counter("checksum_wrong", wrong, checksum_wrong),
        ]
    }));
    metrics::add_notes(Box::new(move || checksum_notes(&noted.counts())));
}

/// Returns sentences about data with a wrong checksum.
fn checksum_notes(counts: &ChecksumCounts) -> Vec<String> {
    let ChecksumCounts { checksum_repaired: repaired, checksum_wrong: wrong, checksum_last } =
        counts;
    let mut notes = Vec::new();
    if *wrong > 0 {
        let last = checksum_last.map_or(String::new(), |Damage { device, block, inode }| {
            format!("; the last: block {block} of {device}, {inode}")
        });
        notes.push(format!("DAMAGED DATA: {wrong} reads failed because of a wrong checksum{last}"));
    }
    if *repaired > 0 {
        notes.push(format!(
            "{repaired} blocks were changed on the way and were right when read again"
        ));
    }
    notes
}

/// Returns the reason why a mount was never served.
fn never_served(served: Result<Result<(), fuse::FuseError>, Canceled>) -> String {
    match served {
        Ok(Err(error)) => error.to_string(),
        Ok(Ok(())) => "it was unmounted before it was served".into(),
        Err(Canceled) => "serving the mount was aborted".into(),
    }
}

/// Completes [`SERVED_ON`] after the mount was unmounted.
async fn served_on(mut gone: mailbox::Receiver<Unmounted>) {
    if gone.recv().await.is_none() {
        // The node's thread waits for the mount's end and will not unmount.
        std::future::pending::<()>().await;
    }
    reactor::time::sleep(SERVED_ON).await;
}
