//! Asking the metadata service about the pool.

use super::state::MetaState;
use crate::keys;
use anyhow::bail;
use protocol::admin::{Answer, Call};
use ring::{Runtime, SocketOptions};
use rpc::{Admin, Connection, Connector, Credential, Handler, Limits, Nothing, Reply};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use tls::Holder;

/// How long the whole of it may take.
const DEADLINE: Duration = Duration::from_secs(3);
/// Most files that are named.
const FILES_MAX: u32 = 1000;

/// The pool, and the files that have data on devices that are offline.
#[derive(Debug)]
pub(crate) struct Pool {
    /// [`Answer::Status`].
    pub(crate) status: Answer,
    /// [`Answer::Paths`].
    pub(crate) files_hit: Vec<(Vec<u8>, protocol::ids::DeviceId)>,
}

/// The metadata service never calls a tool.
struct Silent;

impl Handler<Connector<Admin>> for Silent {
    fn called(&self, call: Nothing, _reply: Reply<Connector<Admin>>) {
        match call {}
    }
}

/// Asks for the state of the pool, with the tools' key, which is derived from the job's in the file `secret`.
pub(crate) fn ask(meta: &MetaState, secret: &Path) -> anyhow::Result<Pool> {
    let Some(address) = meta.address else { bail!("the metadata service was never ready") };
    let credential = Credential::Tls(keys::read_job(secret)?.of(&Holder::Tools)?);
    let options =
        SocketOptions { network_namespace: meta.namespace.clone(), ..SocketOptions::default() };
    Runtime::new(&ring::Config::default())?.block_on(async {
        let asking = async {
            let limits = Limits::default();
            let connection = Connection::<Connector<Admin>>::connect(
                address,
                &options,
                &credential,
                limits,
                Rc::new(Silent),
            )
            .await
            .map_err(|error| told(&error))?;
            let status = connection
                .call(&Call::Status, Some(DEADLINE))
                .await
                .map_err(|error| told(&error))?;
            let call = Call::FilesHit { count_max: FILES_MAX };
            let files_hit =
                match connection.call(&call, Some(DEADLINE)).await.map_err(|error| told(&error))? {
                    Answer::Paths(paths) => paths,
                    other => bail!("the metadata service answered {other:?}"),
                };
            Ok(Pool { status, files_hit })
        };
        match ring::time::timeout(DEADLINE, Box::pin(asking)).await {
            Ok(result) => result,
            Err(_) => bail!("the metadata service does not answer within {DEADLINE:?}"),
        }
    })
}

/// Connections' errors stay on their thread; their words need not.
fn told(error: &rpc::RpcError) -> anyhow::Error {
    anyhow::anyhow!("{error}")
}
