//! A namespace through one target or several: shared code of the commands that move data.

use super::args::{ConnectArgs, NamespaceArgs};
use anyhow::bail;
use clap::Args;
use host::{Controller, IoPolicy, Namespace};
use nvme::Nsid;
use std::net::SocketAddr;

/// Further paths to the namespace.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct PathArgs {
    /// Address and port of another target that exports the same namespace of the same subsystem;
    /// may be repeated
    #[arg(long, value_name = "ADDR:PORT")]
    path: Vec<SocketAddr>,
    /// Policy that distributes commands over the paths: numa (a target on this machine, else the
    /// first; the others take over if it fails), round-robin or queue-depth
    #[arg(long, value_name = "POLICY", requires = "path", default_value = "numa")]
    iopolicy: IoPolicy,
}

impl PathArgs {
    /// Returns whether there is more than one path.
    pub(super) fn is_given(&self) -> bool {
        !self.path.is_empty()
    }
}

/// The controllers of a namespace, one per path.
pub(crate) struct Controllers(Vec<Controller>);

impl Controllers {
    /// Returns the number of reconnects of all controllers.
    pub(crate) fn reconnects(&self) -> u64 {
        self.0.iter().map(Controller::reconnects).sum()
    }

    /// Shuts the connected controllers down. With several paths, an unreachable one is not an
    /// error.
    pub(crate) async fn disconnect(self) -> anyhow::Result<()> {
        let is_only = self.0.len() == 1;
        for controller in self.0 {
            if is_only || controller.info().is_some() {
                let ended = controller.disconnect().await;
                if is_only {
                    ended?;
                }
            }
        }
        Ok(())
    }

    async fn connect(connect: &ConnectArgs, paths: &PathArgs) -> anyhow::Result<Self> {
        let options = connect.options()?;
        if !paths.is_given() {
            return Ok(Self(vec![Controller::connect(options).await?]));
        }
        let mut controllers = Vec::new();
        let mut failed = None;
        for address in [options.address].iter().chain(&paths.path) {
            let mut options = options.clone();
            options.address = *address;
            match Controller::connect(options).await {
                Ok(controller) => controllers.push(controller),
                Err(error) => {
                    eprintln!("tsumugi: the path through {address} is left out: {error}");
                    failed = Some(error);
                }
            }
        }
        match (controllers.is_empty(), failed) {
            (true, Some(error)) => Err(error.into()),
            _ => Ok(Self(controllers)),
        }
    }
}

/// Connects to the subsystem and opens the namespace; without a given one, the only namespace.
pub(super) async fn open(
    connect: &ConnectArgs,
    paths: &PathArgs,
    namespace: &NamespaceArgs,
) -> anyhow::Result<(Controllers, Namespace)> {
    let controllers = Controllers::connect(connect, paths).await?;
    let Some(first) = controllers.0.first() else { bail!("there is no path") };
    let nsid = namespace.choose(first).await?;
    let namespace = open_on(&controllers, paths, nsid).await?;
    Ok((controllers, namespace))
}

/// As [`open`], for a known namespace.
pub(super) async fn open_namespace(
    connect: &ConnectArgs,
    paths: &PathArgs,
    nsid: Nsid,
) -> anyhow::Result<(Controllers, Namespace)> {
    let controllers = Controllers::connect(connect, paths).await?;
    let namespace = open_on(&controllers, paths, nsid).await?;
    Ok((controllers, namespace))
}

async fn open_on(
    controllers: &Controllers,
    paths: &PathArgs,
    nsid: Nsid,
) -> anyhow::Result<Namespace> {
    match controllers.0.as_slice() {
        [only] if !paths.is_given() => Ok(Namespace::open(only, nsid).await?),
        all => Ok(Namespace::open_paths(all, nsid, paths.iopolicy).await?),
    }
}
