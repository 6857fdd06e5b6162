//! Asking the metadata service about the pool.

use super::state::MetaState;
use anyhow::{Context, bail};
use protocol::admin::{Answer, Call};
use protocol::auth::Secret;
use ring::{Runtime, SocketOptions};
use rpc::{Admin, Connection, Connector, Handler, Limits, Nothing, Reply};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

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

/// Asks for the state of the pool.
pub(crate) fn ask(meta: &MetaState, secret: &Path) -> anyhow::Result<Pool> {
    let Some(address) = meta.address else { bail!("the metadata service was never ready") };
    let text = std::fs::read_to_string(secret)
        .with_context(|| format!("cannot read {}", secret.display()))?;
    let secret = Secret::from_hex(&text).context("the job's secret is damaged")?;
    let options =
        SocketOptions { network_namespace: meta.namespace.clone(), ..SocketOptions::default() };
    Runtime::new(&ring::Config::default())?.block_on(async {
        let asking = async {
            let limits = Limits::default();
            let connection = Connection::<Connector<Admin>>::connect(
                address,
                &options,
                &secret,
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
