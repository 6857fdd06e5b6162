//! Changes of volumes of a pool that the target has open because it exports some of them.

use super::Control;
use super::difference::Wanted;
use super::report::Report;
use super::request::Request;
use crate::commands::target::namespace::{OpenPool, open_pool};
use crate::commands::volume::listing;
use anyhow::Context;
use nvme::{Nqn, Nsid};
use serde_json::{Value, json};
use std::path::Path;

impl Control {
    /// Carries out a request about volumes.
    ///
    /// # Errors
    /// If this process does not have the pool open, or the pool refuses.
    pub(super) fn change_volumes(&self, request: &Request) -> anyhow::Result<Value> {
        self.change(async |this| match request {
            Request::VolumeList { pool } => Ok(listing(&open_pool(pool)?.pool)),
            Request::VolumeCreate { pool, name, size_bytes } => {
                open_pool(pool)?.pool.create(name, *size_bytes).await?;
                Ok(json!({}))
            }
            Request::VolumeSnapshot { pool, source, name } => {
                open_pool(pool)?.pool.snapshot(source, name).await?;
                Ok(json!({}))
            }
            Request::VolumeClone { pool, source, name } => {
                open_pool(pool)?.pool.clone_snapshot(source, name).await?;
                Ok(json!({}))
            }
            Request::VolumeRemove { pool, name } => {
                open_pool(pool)?.pool.remove(name).await?;
                Ok(json!({}))
            }
            Request::VolumeResize { pool, name, size_bytes } => {
                let open = open_pool(pool)?;
                open.pool.resize(name, *size_bytes).await?;
                let report = this.follow_volume(&open, name, *size_bytes).await;
                report.context("the volume has its new size, but its namespace does not")
            }
            _ => anyhow::bail!("this is not a request about volumes"),
        })
    }

    /// Gives the namespaces of a volume its new size.
    async fn follow_volume(
        &self,
        open: &OpenPool,
        name: &str,
        size_bytes: u64,
    ) -> anyhow::Result<Value> {
        let mut whole = Report::default();
        for (subsystem, nsid) in self.exports(&open.path, name) {
            let mut wanted = Wanted::of_live(&self.live());
            wanted.resized = Some((subsystem, nsid, Some(size_bytes)));
            whole.add(self.apply(wanted).await?);
        }
        Ok(serde_json::to_value(whole)?)
    }

    /// Returns the namespaces of this volume.
    fn exports(&self, pool: &Path, name: &str) -> Vec<(Nqn, Nsid)> {
        let live = self.live();
        let subsystems = live.settings.subsystems.iter().zip(&live.names);
        let namespaces = subsystems.flat_map(|(subsystem, nqn)| {
            let own = subsystem.namespaces.iter().filter(|it| it.is_the_volume(pool, name));
            own.filter_map(move |it| Some((nqn.clone(), Nsid(it.nsid?))))
        });
        namespaces.collect()
    }
}
