//! Changing a running target to the wanted settings.
//!
//! Steps that may fail come first: opening and enlarging stores, taking addresses, reading keys. If
//! one of them fails, the change is reverted and the target stays unchanged. Later steps cannot
//! fail, except those that wait until the target has released a file: their failures become
//! warnings.

use super::closing::Closing;
use super::difference::{Difference, Keys, NamespaceStep, Wanted, has_other_size};
use super::report::Report;
use super::{Control, Live};
use crate::commands::target::ana;
use crate::commands::target::config::Settings;
use crate::commands::target::namespace::{NamespaceSettings, Resized};
use crate::commands::target::{open_namespace, open_subsystem};
use anyhow::{Context, bail};
use nvme::log_page::AnaState;
use nvme::{Nqn, Nsid};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use target::{AnaGroupId, Namespace, Subsystem};

/// A namespace that gets a new size.
struct Resize {
    subsystem: Arc<Subsystem>,
    settings: NamespaceSettings,
    former: Arc<Namespace>,
    resized: Resized,
}

/// A namespace to open when the target has released its store.
type Later = (Arc<Subsystem>, Nsid, NamespaceSettings);

/// The results of the steps that may fail.
#[derive(Default)]
struct Prepared {
    added: Vec<(Arc<Subsystem>, Namespace)>,
    later: Vec<Later>,
    resizes: Vec<Resize>,
    /// New subsystems, with their indices in the settings.
    subsystems: Vec<(usize, Subsystem)>,
    /// Addresses as requested, and as they are.
    listeners: Vec<(SocketAddr, SocketAddr)>,
    ana: Vec<(Arc<Subsystem>, AnaGroupId, AnaState)>,
}

impl Control {
    /// Applies the difference between the target and `wanted`.
    ///
    /// # Errors
    /// If a step fails; the target then stays unchanged.
    pub(super) async fn apply(&self, wanted: Wanted) -> anyhow::Result<Report> {
        wanted.settings.check_hosts()?;
        let live = self.live().clone();
        let difference = Difference::new(&live, &wanted)?;
        let keys = Keys::read(&live, &wanted)?;
        let mut prepared = Prepared::default();
        let unreported = self.prepare_ana(&wanted, &difference, &mut prepared)?;
        let ready = async {
            self.prepare(&wanted, &difference, &mut prepared).await?;
            for (host, tls) in &keys.tls {
                self.target.require_tls(host.clone(), tls.clone())?;
            }
            anyhow::Ok(())
        };
        if let Err(error) = ready.await {
            self.take_back(prepared).await;
            return Err(error);
        }
        let mut report = Report::default();
        let new = self.commit(&live, wanted, (&difference, &keys), prepared, &mut report).await;
        *self.live() = new;
        for name in difference.needs_restart.iter().chain(&unreported) {
            report.warnings.push(format!("{name}: takes effect at the next start of the target"));
        }
        Ok(report)
    }

    /// Carries out the steps that may fail.
    async fn prepare(
        &self,
        wanted: &Wanted,
        difference: &Difference,
        prepared: &mut Prepared,
    ) -> anyhow::Result<()> {
        for &index in &difference.subsystems_added {
            let settings = &wanted.settings.subsystems[index];
            let is_early = |it: &&NamespaceSettings| it.is_volume() && difference.must_wait(it);
            if let Some(early) = settings.namespaces.iter().find(is_early) {
                bail!(
                    "{} is still exported: remove it first, and add the subsystem in a second \
                    change",
                    early.store()
                );
            }
            let opening = open_subsystem(settings);
            let opened = self.unless_ending(opening).await?;
            prepared.subsystems.push((index, opened));
        }
        for (name, step) in &difference.namespaces {
            let subsystem = self.target.subsystem(name).context("the subsystem has gone")?;
            match step {
                NamespaceStep::Remove { .. } => {}
                NamespaceStep::Add { nsid, settings } => {
                    if difference.must_wait(settings) {
                        prepared.later.push((subsystem, *nsid, settings.clone()));
                    } else {
                        let opening = open_namespace(settings, *nsid);
                        prepared.added.push((subsystem, self.unless_ending(opening).await?));
                    }
                }
                NamespaceStep::Resize { nsid, settings, bytes } => {
                    let former = subsystem.namespace(*nsid).context("the namespace has gone")?;
                    let resized = self.resize(settings, &former, *bytes, wanted.may_shrink).await?;
                    let settings = settings.clone();
                    prepared.resizes.push(Resize { subsystem, settings, former, resized });
                }
            }
        }
        for &address in &difference.listeners_added {
            prepared.listeners.push((address, self.add_listener(address)?));
        }
        Ok(())
    }

    /// Gives the store of a namespace a new size. Fails when the target ends.
    async fn resize(
        &self,
        settings: &NamespaceSettings,
        former: &Namespace,
        bytes: Option<u64>,
        may_shrink: bool,
    ) -> anyhow::Result<Resized> {
        let have = former.backing().geometry().size();
        let is_smaller = |bytes: u64| bytes < have && !may_shrink;
        let refused = || {
            anyhow::anyhow!(
                "{} would lose the data beyond its new end: if you do not need it, give --shrink \
                to `tsumugi target ctl namespace resize`",
                former.nsid()
            )
        };
        if bytes.is_some_and(is_smaller) {
            return Err(refused());
        }
        let resizing = settings.resize(former.backing(), bytes, || self.is_ending());
        let resized = if settings.path().is_some() {
            // It must cut the file again, so it ends early on its own.
            let resized = resizing.await;
            if self.is_ending() { resized.context("the target ends")? } else { resized? }
        } else {
            self.unless_ending(resizing).await?
        };
        if is_smaller(resized.backing.geometry().size()) {
            resized.undo().await;
            return Err(refused());
        }
        Ok(resized)
    }

    /// Finds the ANA groups that change. A subsystem that reports no ANA cannot begin with it,
    /// because hosts ask once, when they connect; its settings take effect later, and their names
    /// are returned.
    fn prepare_ana(
        &self,
        wanted: &Wanted,
        difference: &Difference,
        prepared: &mut Prepared,
    ) -> anyhow::Result<Option<&'static str>> {
        let mut unreported = None;
        for &index in &difference.ana {
            let name = wanted.names[index].as_ref().context("the subsystem has no name")?;
            let subsystem = self.target.subsystem(name).context("the subsystem has gone")?;
            if subsystem.ana_state(AnaGroupId::DEFAULT).is_some() {
                let state = |group| subsystem.ana_state(group);
                for (group, state) in ana::changes(&wanted.settings.subsystems[index], state)? {
                    prepared.ana.push((Arc::clone(&subsystem), group, state));
                }
            } else if wanted.is_of_file {
                unreported = Some("ana of a subsystem that reports no ANA");
            } else {
                bail!(
                    "{name} reports no ANA, and hosts ask for it only when they connect: start the \
                    target with --ana, or with ana-group= for a namespace"
                );
            }
        }
        Ok(unreported)
    }

    /// Reverts the prepared steps.
    async fn take_back(&self, prepared: Prepared) {
        for resize in prepared.resizes {
            resize.resized.undo().await;
        }
        for (_, address) in prepared.listeners {
            if let Err(error) = self.remove_listener(address) {
                tracing::warn!(%address, %error, "a listener stays");
            }
        }
    }

    /// Carries out the rest, and returns the new state of the target.
    async fn commit(
        &self,
        live: &Live,
        wanted: Wanted,
        (difference, keys): (&Difference, &Keys),
        mut prepared: Prepared,
        report: &mut Report,
    ) -> Live {
        let Wanted { mut settings, names, is_of_file, .. } = wanted;
        // A host that is let in never sees a namespace that this change hides from it.
        let mut closing = self.remove(difference, report);
        self.narrow_masks(difference);
        self.change_hosts(live, (&settings, &names), (difference, keys), report);
        let mut names: Vec<Option<Nqn>> = names;
        for (subsystem, namespace) in std::mem::take(&mut prepared.added) {
            let (name, nsid) = (subsystem.nqn().clone(), namespace.nsid());
            match subsystem.add_namespace(namespace) {
                Ok(namespace) => {
                    report.note(&name, &namespace);
                    report.changes.push(format!("{nsid} of {name} was added"));
                }
                Err(error) => report.warnings.push(error.to_string()),
            }
        }
        for resize in std::mem::take(&mut prepared.resizes) {
            closing.extend(self.replace(resize, report));
        }
        for (index, subsystem) in std::mem::take(&mut prepared.subsystems) {
            names[index] = self.add_subsystem(subsystem, report);
            if !is_of_file {
                // No entry of the configuration file describes this subsystem.
                settings.subsystems[index].nqn.clone_from(&names[index]);
            }
        }
        Self::change_ana(std::mem::take(&mut prepared.ana), report);
        self.change_limits(difference, report);
        self.target.notify_controllers();
        if !is_of_file {
            // For a requested port 0, the settings keep the port that the kernel chose.
            for (asked, taken) in &mut prepared.listeners {
                if let Some(it) = settings.listen.iter_mut().rev().find(|it| *it == asked) {
                    *it = *taken;
                }
                *asked = *taken;
            }
        }
        let listeners = self.change_listeners(live, difference, prepared.listeners, report);
        let in_use = self.close(closing, report).await;
        self.open_later((prepared.later, &in_use), &mut settings, &names, report).await;
        let mut settings = settings.with_fixed_of(&live.settings);
        let mut kept = names.iter().map(Option::is_some);
        settings.subsystems.retain(|_| kept.next().unwrap_or(false));
        let names = names.into_iter().flatten().collect();
        let (proofs, tls) = (keys.proofs.clone(), keys.tls.clone());
        Live { settings, names, listeners, proofs, tls }
    }

    /// Sets hosts' keys, and gives access to hosts that have it. Removes the keys of hosts that
    /// have no access any more.
    fn change_hosts(
        &self,
        live: &Live,
        (settings, names): (&Settings, &[Option<Nqn>]),
        (difference, keys): (&Difference, &Keys),
        report: &mut Report,
    ) {
        // Hosts may have come to a new address before they needed their keys.
        let is_open = !difference.listeners_added.is_empty();
        for (host, proof) in &keys.proofs {
            let former = live.proofs.get(host);
            let is_same =
                |it: &target::HostProof| it.keys == proof.keys && it.policy == proof.policy;
            if former.is_some_and(is_same) {
                continue;
            }
            match self.target.require_proof(host.clone(), proof.clone()) {
                Ok(()) => report.changes.push(format!("the key of {host} was set")),
                Err(error) => report.warnings.push(error.to_string()),
            }
            if is_open && former.is_none() {
                report.controllers_ended += self.target.drop_host(host);
            }
        }
        for (host, _) in keys.tls.iter().filter(|(host, key)| live.tls.get(*host) != Some(key)) {
            report.changes.push(format!("the TLS key of {host} was set"));
            if is_open && !live.tls.contains_key(host) {
                report.controllers_ended += self.target.drop_host(host);
            }
        }
        for &index in &difference.access {
            let name = names[index].as_ref();
            let Some(subsystem) = name.and_then(|name| self.target.subsystem(name)) else {
                continue;
            };
            let access = settings.subsystems[index].access();
            report.controllers_ended += self.target.set_access(&subsystem, access);
            report.changes.push(format!("the hosts of {} were changed", subsystem.nqn()));
        }
        for host in live.proofs.keys().filter(|host| !keys.proofs.contains_key(*host)) {
            self.target.forget_proof(host);
            report.changes.push(format!("the key of {host} was removed"));
        }
        for host in live.tls.keys().filter(|host| !keys.tls.contains_key(*host)) {
            self.target.forget_tls(host);
            report.changes.push(format!("the TLS key of {host} was removed"));
        }
    }

    /// Adds a subsystem. Returns its NQN.
    fn add_subsystem(&self, subsystem: Subsystem, report: &mut Report) -> Option<Nqn> {
        subsystem.expect_any_namespace();
        let name = subsystem.nqn().clone();
        match self.target.add_subsystem(subsystem) {
            Ok(subsystem) => {
                for namespace in subsystem.namespaces() {
                    report.note(&name, &namespace);
                }
                report.changes.push(format!("subsystem {name} was added"));
                report.subsystems.push(name.to_string());
                Some(name)
            }
            Err(error) => {
                report.warnings.push(error.to_string());
                None
            }
        }
    }

    /// Removes namespaces and subsystems.
    fn remove(&self, difference: &Difference, report: &mut Report) -> Vec<Arc<Closing>> {
        let mut closing = Vec::new();
        for (name, step) in &difference.namespaces {
            let NamespaceStep::Remove { nsid } = step else { continue };
            let Some(subsystem) = self.target.subsystem(name) else { continue };
            if let Some(namespace) = subsystem.remove_namespace(*nsid) {
                closing.push(self.closings.add(format!("{nsid} of {name}"), &namespace, None));
                report.changes.push(format!("{nsid} of {name} was removed"));
            }
        }
        for name in &difference.subsystems_removed {
            let Some(subsystem) = self.target.remove_subsystem(name) else { continue };
            for namespace in subsystem.namespaces() {
                let name = format!("{} of {name}", namespace.nsid());
                closing.push(self.closings.add(name, &namespace, None));
            }
            report.changes.push(format!("subsystem {name} was removed"));
        }
        closing
    }

    /// Hides namespaces from hosts that do not see them after this change.
    fn narrow_masks(&self, difference: &Difference) {
        for (name, nsid, hosts) in &difference.masks {
            let Some(subsystem) = self.target.subsystem(name) else { continue };
            if let Some(namespace) = subsystem.namespace(*nsid) {
                subsystem.set_namespace_hosts(*nsid, namespace.hosts().both(hosts));
            }
        }
    }

    /// Sets which hosts see namespaces, and rate limits.
    fn change_limits(&self, difference: &Difference, report: &mut Report) {
        for (name, nsid, hosts) in &difference.masks {
            let Some(subsystem) = self.target.subsystem(name) else { continue };
            if subsystem.set_namespace_hosts(*nsid, hosts.clone()) {
                report.changes.push(format!("the hosts that see {nsid} of {name} were changed"));
            }
        }
        for (name, nsid, limits) in &difference.limits {
            let namespace = self.target.subsystem(name).and_then(|it| it.namespace(*nsid));
            let Some(namespace) = namespace else { continue };
            namespace.set_rate_limits(*limits);
            let of = |limit: Option<u64>| limit.map_or("unlimited".into(), |it| it.to_string());
            let (commands, bytes) = (of(limits.commands), of(limits.bytes));
            report.changes.push(format!(
                "{nsid} of {name} is limited: commands/s {commands}, bytes/s {bytes}"
            ));
        }
    }

    /// Sets the states of ANA groups.
    fn change_ana(states: Vec<(Arc<Subsystem>, AnaGroupId, AnaState)>, report: &mut Report) {
        for (subsystem, group, state) in states {
            match subsystem.set_ana_state(group, state) {
                Ok(_) => {
                    let (name, state) = (subsystem.nqn(), state.name());
                    report.changes.push(format!("{group} of {name} is {state}"));
                }
                Err(error) => report.warnings.push(error.to_string()),
            }
        }
    }

    /// Replaces a namespace by one with the new size. Returns the old one, which closes.
    fn replace(&self, resize: Resize, report: &mut Report) -> Option<Arc<Closing>> {
        let Resize { subsystem, settings, former, resized } = resize;
        let (have, bytes) = (former.backing().geometry().size(), resized.backing.geometry().size());
        let name = format!("{} of {}", former.nsid(), subsystem.nqn());
        if have == bytes {
            return None;
        }
        let new = former.on_backing(resized.backing);
        report.note(subsystem.nqn(), &new);
        if let Err(error) = subsystem.replace_namespace(new) {
            report.warnings.push(error.to_string());
            return None;
        }
        report.changes.push(format!("{name} has {bytes} bytes, and had {have}"));
        self.closings.resized(former.uuid(), bytes);
        if bytes < have
            && let Some(file) = self.outdated(&settings)
        {
            report.warnings.push(format!(
                "{} has the former size of {name}, and the next start refuses it: `tsumugi target \
                ctl write` writes the present one",
                file.display()
            ));
        }
        (bytes < have).then(|| self.closings.add(name, &former, Some((settings, bytes))))
    }

    /// Returns the configuration file if it has another size of a shrunk file.
    fn outdated(&self, shrunk: &NamespaceSettings) -> Option<&Path> {
        let file = self.args.config.as_deref()?;
        has_other_size(&self.args.settings().ok()?, shrunk).then_some(file)
    }

    fn change_listeners(
        &self,
        live: &Live,
        difference: &Difference,
        added: Vec<(SocketAddr, SocketAddr)>,
        report: &mut Report,
    ) -> Vec<(SocketAddr, SocketAddr)> {
        let mut listeners = Vec::new();
        let mut removed = difference.listeners_removed.clone();
        for &(wanted, address) in &live.listeners {
            let Some(known) = removed.iter().position(|it| *it == wanted) else {
                listeners.push((wanted, address));
                continue;
            };
            removed.remove(known);
            match self.remove_listener(address) {
                Ok(()) => report.changes.push(format!("{address} is not listened on any more")),
                Err(error) => report.warnings.push(format!("{address}: {error}")),
            }
        }
        for (wanted, address) in added {
            report.changes.push(format!("{address} is listened on"));
            report.listeners.push(address);
            listeners.push((wanted, address));
        }
        listeners
    }

    /// Opens namespaces with stores that were in use until now. Refuses those of `in_use`.
    async fn open_later(
        &self,
        (later, in_use): (Vec<Later>, &[[u8; 16]]),
        settings: &mut Settings,
        names: &[Option<Nqn>],
        report: &mut Report,
    ) {
        for (subsystem, nsid, wanted) in later {
            let added = async {
                let namespace = self.unless_ending(open_namespace(&wanted, nsid)).await?;
                if in_use.contains(&namespace.uuid()) {
                    bail!("commands still run on it as it was before");
                }
                Ok(subsystem.add_namespace(namespace)?)
            };
            let added: anyhow::Result<_> = added.await;
            let name = subsystem.nqn();
            match added {
                Ok(namespace) => {
                    report.note(name, &namespace);
                    report.changes.push(format!("{nsid} of {name} was added"));
                }
                Err(error) => {
                    let error = crate::print::words(&error);
                    report.warnings.push(format!("{nsid} of {name} is not there: {error}"));
                    let own = settings.subsystems.iter_mut().zip(names);
                    for (it, _) in own.filter(|(_, known)| known.as_ref() == Some(name)) {
                        it.namespaces.retain(|it| it.nsid != Some(nsid.get()));
                    }
                }
            }
        }
        self.target.notify_controllers();
    }
}
