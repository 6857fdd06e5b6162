//! Requests of tools to the metadata service.

use super::state::MetaState;
use crate::keys;
use crate::print::words;
use anyhow::bail;
use protocol::DeviceId;
use protocol::admin::{Answer, Call};
use reactor::{Runtime, SocketOptions};
use rpc::{Admin, Connection, Connector, Credential, Handler, Limits, Nothing, Reply};
use serde::{Deserialize, Serialize};
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
    pub(crate) files_hit: Vec<FileHit>,
    /// Why files may be missing there.
    pub(crate) files_hit_trouble: Option<String>,
}

/// A file with data on an offline device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FileHit {
    /// Path relative to the root; bytes that are not UTF-8 are replaced.
    pub(crate) path: String,
    /// The device.
    pub(crate) device: u32,
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
            let status = connection.call(&Call::Status, Some(DEADLINE)).await;
            anyhow::Ok((status.map_err(|error| without_causes(&error))?, connection))
        };
        let late = || anyhow::anyhow!("the metadata service does not answer within {DEADLINE:?}");
        let asked = reactor::time::timeout(DEADLINE, Box::pin(asking)).await;
        let (status, connection) = asked.map_err(|_| late())??;
        // The search walks through the tree, which may be large: it has a time of its own, and the
        // state does not depend on it.
        let call = Call::FilesHit { count_max: FILES_MAX };
        let searching = connection.call(&call, Some(DEADLINE));
        let found = reactor::time::timeout(DEADLINE, Box::pin(searching)).await;
        let (files_hit, files_hit_trouble) = match found {
            Ok(answer) => files_hit(answer.map_err(|error| without_causes(&error))),
            Err(_) => files_hit(Err(late())),
        };
        Ok(Pool { status, files_hit, files_hit_trouble })
    })
}

/// Returns the files of an answer, and why files may be missing.
fn files_hit(answer: anyhow::Result<Answer>) -> (Vec<FileHit>, Option<String>) {
    let (paths, why) = match answer {
        Ok(Answer::Paths(paths)) => (paths, None),
        Ok(Answer::PathsSoFar(paths)) => {
            (paths, Some("the tree is large, and was not searched to its end".into()))
        }
        Ok(Answer::Refused(why)) => (Vec::new(), Some(why)),
        Ok(_) => (Vec::new(), Some("the metadata service answered something else".into())),
        Err(error) => (Vec::new(), Some(words(&error))),
    };
    let hit = |(path, device): (Vec<u8>, DeviceId)| FileHit {
        path: String::from_utf8_lossy(&path).into_owned(),
        device: device.0,
    };
    (paths.into_iter().map(hit).collect(), why)
}

/// Converts an error of a connection, which cannot leave its thread, to its text.
fn without_causes(error: &rpc::RpcError) -> anyhow::Error {
    anyhow::anyhow!("{error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a search for files that fails or is cut short says so; it is no error of the state.
    #[test]
    fn searches_may_fail() {
        let path = || vec![(b"a".to_vec(), DeviceId(1))];
        let (found, why) = files_hit(Ok(Answer::Paths(path())));
        assert!(found[0].path == "a" && found[0].device == 1 && why.is_none());
        let (found, why) = files_hit(Ok(Answer::PathsSoFar(path())));
        assert!(found.len() == 1 && why.unwrap().contains("large"));
        let (found, why) = files_hit(Err(anyhow::anyhow!("late")));
        assert!(found.is_empty() && why.unwrap() == "late");
    }
}
