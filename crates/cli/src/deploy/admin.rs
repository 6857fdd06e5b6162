//! Requests of tools to the metadata service.

use super::state::MetaState;
use crate::keys;
use anyhow::bail;
use protocol::admin::{Answer, Call};
use reactor::{Runtime, SocketOptions};
use rpc::{Admin, Connection, Connector, Credential, Handler, Limits, Nothing, Reply};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use tls::{Holder, JobKey};

/// How long the request for the pool's state may take.
const DEADLINE: Duration = Duration::from_secs(3);
/// Maximum number of files in the answer.
const FILES_MAX: u32 = 1000;

/// The state of the pool, and the files with data on offline devices.
#[derive(Debug)]
pub(crate) struct Pool {
    /// [`Answer::Status`].
    pub(crate) status: Answer,
    /// [`Answer::Paths`].
    pub(crate) files_hit: Vec<(Vec<u8>, protocol::ids::DeviceId)>,
}

type Link = Connection<Connector<Admin>>;

/// The metadata service never calls a tool.
struct Silent;

impl Handler<Connector<Admin>> for Silent {
    fn called(&self, call: Nothing, _reply: Reply<Connector<Admin>>) {
        match call {}
    }
}

/// How tools reach a job's metadata service.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// Its address.
    pub(crate) address: SocketAddr,
    namespace: Option<PathBuf>,
    secret: PathBuf,
}

impl Access {
    /// Returns the access to a service, with the job's key in the file `secret`.
    pub(crate) fn new(meta: &MetaState, secret: &Path) -> anyhow::Result<Access> {
        let Some(address) = meta.address else { bail!("the metadata service was never ready") };
        Ok(Access { address, namespace: meta.namespace.clone(), secret: secret.into() })
    }

    /// Returns the options of sockets to it.
    pub(crate) fn sockets(&self) -> SocketOptions {
        let network_namespace = self.namespace.clone();
        SocketOptions { network_namespace, ..SocketOptions::default() }
    }

    /// Returns the job's key.
    pub(crate) fn job_key(&self) -> anyhow::Result<JobKey> {
        keys::read_job(&self.secret)
    }

    /// Connects with the tools' key, which is derived from the job's key.
    async fn connect(&self) -> anyhow::Result<Link> {
        let credential = Credential::Tls(self.job_key()?.of(&Holder::Tools)?);
        let (limits, silent) = (Limits::default(), Rc::new(Silent));
        Link::connect(self.address, &self.sockets(), &credential, limits, silent)
            .await
            .map_err(|error| without_causes(&error))
    }

    /// Makes one call on a connection of its own. The answer has no deadline; if the service dies,
    /// the connection ends.
    pub(crate) async fn call(&self, call: &Call) -> anyhow::Result<Answer> {
        let connection = match reactor::time::timeout(DEADLINE, Box::pin(self.connect())).await {
            Ok(connection) => connection?,
            Err(_) => bail!("the metadata service does not answer within {DEADLINE:?}"),
        };
        connection.call(call, None).await.map_err(|error| without_causes(&error))
    }
}

/// Returns the state of the pool.
pub(crate) fn ask(meta: &MetaState, secret: &Path) -> anyhow::Result<Pool> {
    let access = Access::new(meta, secret)?;
    Runtime::new(&reactor::Config::default())?.block_on(async {
        let asking = async {
            let connection = access.connect().await?;
            let status = connection
                .call(&Call::Status, Some(DEADLINE))
                .await
                .map_err(|error| without_causes(&error))?;
            let call = Call::FilesHit { count_max: FILES_MAX };
            let files_hit = match connection
                .call(&call, Some(DEADLINE))
                .await
                .map_err(|error| without_causes(&error))?
            {
                Answer::Paths(paths) => paths,
                other => bail!("the metadata service answered {other:?}"),
            };
            Ok(Pool { status, files_hit })
        };
        match reactor::time::timeout(DEADLINE, Box::pin(asking)).await {
            Ok(result) => result,
            Err(_) => bail!("the metadata service does not answer within {DEADLINE:?}"),
        }
    })
}

/// Converts an error of a connection, which cannot leave its thread, to its text.
fn without_causes(error: &rpc::RpcError) -> anyhow::Error {
    anyhow::anyhow!("{error}")
}
