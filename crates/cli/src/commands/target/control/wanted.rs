//! The settings that each request of the control socket asks for.

use super::difference::Wanted;
use super::request::Request;
use super::{Control, Live, number_namespaces};
use crate::commands::target::config::SubsystemSettings;
use crate::commands::target::hosts::HostSettings;
use crate::commands::target::namespace::NamespaceSettings;
use crate::commands::target::size;
use anyhow::{Context, anyhow, bail};
use nvme::{Nqn, Nsid};
use serde_json::Value;
use std::net::SocketAddr;
use std::str::FromStr;
use target::RateLimits;

fn parsed<T: FromStr<Err: std::fmt::Display>>(text: &str) -> anyhow::Result<T> {
    text.parse().map_err(|error| anyhow!("{text:?}: {error}"))
}

fn nqn(text: &str) -> anyhow::Result<Nqn> {
    Nqn::new(text).with_context(|| format!("{text:?} is not an NQN"))
}

fn size(text: &str) -> anyhow::Result<u64> {
    size::parse(text).map_err(|error| anyhow!(error))
}

/// Files in a request are on the target's machine, and have absolute paths.
fn namespace(text: &str) -> anyhow::Result<NamespaceSettings> {
    let namespace: NamespaceSettings = parsed(text)?;
    if namespace.path().is_some_and(|path| !path.is_absolute()) {
        bail!(
            "{text:?}: give an absolute path, because the target may have another working directory"
        );
    }
    Ok(namespace)
}

fn host(text: &str) -> anyhow::Result<HostSettings> {
    let mut host: HostSettings = parsed(text)?;
    if host.files_mut().any(|file| !file.is_absolute()) {
        bail!(
            "{text:?}: give absolute paths of key files, because the target may have another \
            working directory"
        );
    }
    Ok(host)
}

impl Wanted {
    /// Returns the index of the subsystem that a request concerns.
    fn place(&self, name: Option<&str>) -> anyhow::Result<usize> {
        match (name, &self.names[..]) {
            (None, [_]) => Ok(0),
            (None, []) => bail!("the target has no subsystem"),
            (None, _) => bail!("the target has several subsystems: name one with --subsystem"),
            (Some(name), names) => {
                let is_it =
                    |known: &Option<Nqn>| known.as_ref().is_some_and(|it| it.as_str() == name);
                names
                    .iter()
                    .position(is_it)
                    .with_context(|| format!("there is no subsystem {name}"))
            }
        }
    }

    fn subsystem(&mut self, name: Option<&str>) -> anyhow::Result<&mut SubsystemSettings> {
        let place = self.place(name)?;
        Ok(&mut self.settings.subsystems[place])
    }

    fn add_namespace(&mut self, subsystem: Option<&str>, text: &str) -> anyhow::Result<()> {
        let mut namespace = namespace(text)?;
        let subsystem = self.subsystem(subsystem)?;
        if namespace.nsid.is_none() {
            let is_free = |nsid: &u32| subsystem.namespaces.iter().all(|it| it.nsid != Some(*nsid));
            namespace.nsid = (1..=target::NAMESPACES_MAX).find(is_free);
        }
        subsystem.namespaces.push(namespace);
        number_namespaces(&mut self.settings)
    }

    fn remove_namespace(&mut self, subsystem: Option<&str>, nsid: u32) -> anyhow::Result<()> {
        let subsystem = self.subsystem(subsystem)?;
        let before = subsystem.namespaces.len();
        subsystem.namespaces.retain(|it| it.nsid != Some(nsid));
        if subsystem.namespaces.len() == before {
            bail!("there is no {}", Nsid(nsid));
        }
        Ok(())
    }

    fn resize_namespace(
        &mut self,
        subsystem: Option<&str>,
        nsid: u32,
        bytes: Option<u64>,
    ) -> anyhow::Result<()> {
        let place = self.place(subsystem)?;
        let name = self.names[place].clone().context("the subsystem has no name")?;
        let namespaces = &mut self.settings.subsystems[place].namespaces;
        let namespace = namespaces.iter_mut().find(|it| it.nsid == Some(nsid));
        let namespace = namespace.with_context(|| format!("there is no {}", Nsid(nsid)))?;
        if let Some(bytes) = bytes {
            *namespace = namespace.with_size(bytes);
        } else if namespace.path().is_none() {
            bail!("give the size");
        } else {
            namespace.forget_size();
        }
        self.resized = Some((name, Nsid(nsid), bytes));
        Ok(())
    }

    fn limit_namespace(
        &mut self,
        subsystem: Option<&str>,
        nsid: u32,
        limits: RateLimits,
    ) -> anyhow::Result<()> {
        if limits.commands == Some(0) || limits.bytes == Some(0) {
            bail!("a limit is at least 1; `none` removes it");
        }
        self.namespace(subsystem, nsid)?.set_rate_limits(limits);
        Ok(())
    }

    fn namespace(
        &mut self,
        subsystem: Option<&str>,
        nsid: u32,
    ) -> anyhow::Result<&mut NamespaceSettings> {
        let namespaces = &mut self.subsystem(subsystem)?.namespaces;
        let namespace = namespaces.iter_mut().find(|it| it.nsid == Some(nsid));
        namespace.with_context(|| format!("there is no {}", Nsid(nsid)))
    }

    fn add_host(
        &mut self,
        subsystem: Option<&str>,
        text: &str,
        restrict: bool,
    ) -> anyhow::Result<()> {
        let host = host(text)?;
        let subsystem = self.subsystem(subsystem)?;
        if subsystem.access() == target::HostAccess::Any && !restrict {
            bail!(
                "all hosts may connect now, and only {} could then: give --restrict to confirm",
                host.nqn
            );
        }
        if subsystem.access().allows(Some(&host.nqn))
            && subsystem.access() != target::HostAccess::Any
        {
            bail!("host {} may connect already; `host key` changes its keys", host.nqn);
        }
        subsystem.hosts.push(host);
        Ok(())
    }

    fn remove_host(
        &mut self,
        subsystem: Option<&str>,
        text: &str,
        any_host: bool,
    ) -> anyhow::Result<()> {
        let name = nqn(text)?;
        let subsystem = self.subsystem(subsystem)?;
        let before = subsystem.hosts.len() + subsystem.allow_hosts.len();
        subsystem.hosts.retain(|host| host.nqn != name);
        subsystem.allow_hosts.retain(|host| *host != name);
        let after = subsystem.hosts.len() + subsystem.allow_hosts.len();
        if before == after {
            bail!("{name} is not in the subsystem's list of hosts");
        }
        if after == 0 && !any_host {
            bail!(
                "{name} is the last host, and without hosts in its list a subsystem accepts all: \
                remove the subsystem, or confirm with --any-host"
            );
        }
        Ok(())
    }

    fn set_key(&mut self, text: &str) -> anyhow::Result<()> {
        let host = host(text)?;
        let mut is_known = false;
        for subsystem in &mut self.settings.subsystems {
            let had = subsystem.hosts.len() + subsystem.allow_hosts.len();
            subsystem.hosts.retain(|it| it.nqn != host.nqn);
            subsystem.allow_hosts.retain(|it| *it != host.nqn);
            if subsystem.hosts.len() + subsystem.allow_hosts.len() < had {
                subsystem.hosts.push(host.clone());
                is_known = true;
            }
        }
        if !is_known {
            bail!("{} is not in the list of hosts of any subsystem", host.nqn);
        }
        // Also if the file has the same path and another key in it.
        self.keys_read = Some(host.nqn);
        Ok(())
    }

    /// Returns the wanted state after a request.
    fn after(live: &Live, request: &Request) -> anyhow::Result<Self> {
        let mut wanted = Self::of_live(live);
        match request {
            Request::NamespaceAdd { subsystem, namespace } => {
                wanted.add_namespace(subsystem.as_deref(), namespace)?;
            }
            Request::NamespaceRemove { subsystem, nsid } => {
                wanted.remove_namespace(subsystem.as_deref(), *nsid)?;
            }
            Request::NamespaceResize { subsystem, nsid, size: text, shrink } => {
                let bytes = text.as_deref().map(size).transpose()?;
                wanted.resize_namespace(subsystem.as_deref(), *nsid, bytes)?;
                wanted.may_shrink = *shrink;
            }
            Request::NamespaceHosts { subsystem, nsid, hosts } => {
                let namespace = wanted.namespace(subsystem.as_deref(), *nsid)?;
                namespace.set_hosts(hosts.clone());
                namespace.hosts()?;
            }
            Request::NamespaceLimit { subsystem, nsid, iops, bytes_per_s } => {
                let bytes = bytes_per_s.as_deref().map(size).transpose()?;
                let limits = RateLimits { commands: *iops, bytes };
                wanted.limit_namespace(subsystem.as_deref(), *nsid, limits)?;
            }
            Request::SubsystemAdd { nqn: name, serial, model, namespaces, hosts } => {
                let name = name.as_deref().map(nqn).transpose()?;
                let namespaces: anyhow::Result<Vec<_>> =
                    namespaces.iter().map(|it| namespace(it)).collect();
                let hosts: anyhow::Result<Vec<_>> = hosts.iter().map(|it| host(it)).collect();
                let mut subsystem =
                    SubsystemSettings::new(name.clone(), &[], &hosts?, &namespaces?);
                (subsystem.serial, subsystem.model) = (serial.clone(), model.clone());
                if name.as_ref().is_some_and(|name| live.names.contains(name)) {
                    bail!("a subsystem with this NQN exists already");
                }
                wanted.settings.subsystems.push(subsystem);
                wanted.names.push(name);
                number_namespaces(&mut wanted.settings)?;
            }
            Request::SubsystemRemove { subsystem } => {
                let place = wanted.place(Some(subsystem))?;
                wanted.settings.subsystems.remove(place);
                wanted.names.remove(place);
            }
            Request::HostAdd { subsystem, host, restrict } => {
                wanted.add_host(subsystem.as_deref(), host, *restrict)?;
            }
            Request::HostRemove { subsystem, host, any_host } => {
                wanted.remove_host(subsystem.as_deref(), host, *any_host)?;
            }
            Request::HostKey { host } => wanted.set_key(host)?,
            Request::AnaSet { subsystem, states } => {
                wanted.subsystem(subsystem.as_deref())?.set_ana(states)?;
            }
            Request::ListenerAdd { address } => wanted.add_listener(parsed(address)?)?,
            Request::ListenerRemove { address } => {
                wanted.remove_listener(live, parsed(address)?)?;
            }
            Request::VolumeList { .. }
            | Request::VolumeCreate { .. }
            | Request::VolumeSnapshot { .. }
            | Request::VolumeClone { .. }
            | Request::VolumeResize { .. }
            | Request::VolumeRemove { .. }
            | Request::Show {}
            | Request::Connections {}
            | Request::Stats {}
            | Request::Write { .. }
            | Request::Reload {} => {}
        }
        Ok(wanted)
    }

    fn add_listener(&mut self, address: SocketAddr) -> anyhow::Result<()> {
        if address.port() != 0 && self.settings.listen.contains(&address) {
            bail!("{address} is listened on already");
        }
        self.settings.listen.push(address);
        Ok(())
    }

    /// Finds the listener by the requested address, or by the address that it got.
    fn remove_listener(&mut self, live: &Live, address: SocketAddr) -> anyhow::Result<()> {
        let known = live.listeners.iter().find(|known| known.0 == address || known.1 == address);
        let Some((wanted, _)) = known else { bail!("{address} is not listened on") };
        if let Some(place) = self.settings.listen.iter().rposition(|it| it == wanted) {
            self.settings.listen.remove(place);
        }
        if self.settings.listen.is_empty() {
            bail!("{address} is the last address: add another one first");
        }
        Ok(())
    }
}

impl Control {
    /// Carries a request out and returns its result.
    ///
    /// # Errors
    /// The reason of the refusal or failure.
    pub(super) fn carry_out(&self, request: &Request) -> anyhow::Result<Value> {
        match request {
            Request::Show {} => Ok(self.show()),
            Request::Connections {} => Ok(self.connections()),
            Request::Stats {} => super::show::stats(),
            Request::Write { path } => {
                let path = self.write(path)?;
                Ok(serde_json::json!({ "path": path }))
            }
            Request::Reload {} => Ok(serde_json::to_value(self.reload()?)?),
            Request::VolumeList { .. }
            | Request::VolumeCreate { .. }
            | Request::VolumeSnapshot { .. }
            | Request::VolumeClone { .. }
            | Request::VolumeResize { .. }
            | Request::VolumeRemove { .. } => self.change_volumes(request),
            _ => {
                let report = self.change(async |this| {
                    let wanted = Wanted::after(&this.live(), request)?;
                    this.apply(wanted).await
                })?;
                Ok(serde_json::to_value(report)?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::target::config::Settings;
    use std::collections::BTreeMap;

    fn live() -> Live {
        let text = "listen = [\"127.0.0.1:0\"]\n[[subsystem]]\n\
            allow_hosts = [\"nqn.2026-01.io.tsumugi:a\", \"nqn.2026-01.io.tsumugi:b\"]\n\
            [[subsystem.namespace]]\nmemory = \"1M\"\nnsid = 1\n[[subsystem.namespace]]\npath = \"/x\"\nsize = \"1M\"\nnsid = 3\n";
        let settings: Settings = toml::from_str(text).unwrap();
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Live {
            settings,
            names: vec![Nqn::new("nqn.2026-01.io.tsumugi:s").unwrap()],
            listeners: vec![(address(0), address(4711))],
            proofs: BTreeMap::new(),
            tls: BTreeMap::new(),
        }
    }

    fn after(text: &str) -> anyhow::Result<Wanted> {
        Wanted::after(&live(), &serde_json::from_str(text)?)
    }

    /// Goal: each request changes only what it names; surprising effects need a confirmation.
    #[test]
    fn requests_change_the_settings() {
        let of = |text: &str| after(text).unwrap().settings;
        let added = of(r#"{"do":"namespace-add","namespace":"memory:2M"}"#);
        assert_eq!(added.subsystems[0].namespaces[2].nsid, Some(2), "the first that is free");
        let removed =
            of(r#"{"do":"namespace-remove","nsid":1,"subsystem":"nqn.2026-01.io.tsumugi:s"}"#);
        assert_eq!(removed.subsystems[0].namespaces.len(), 1);
        let resized = of(r#"{"do":"namespace-resize","nsid":3,"size":"2M"}"#);
        assert_eq!(resized.subsystems[0].namespaces[1].size_bytes(), Some(2 << 20));
        let as_it_is = of(r#"{"do":"namespace-resize","nsid":3}"#);
        assert_eq!(as_it_is.subsystems[0].namespaces[1].size_bytes(), None);
        let limited = of(r#"{"do":"namespace-limit","nsid":3,"bytes_per_s":"1M"}"#);
        let limits = limited.subsystems[0].namespaces[1].rate_limits().unwrap();
        assert_eq!(limits, RateLimits { commands: None, bytes: Some(1 << 20) });
        let host = of(r#"{"do":"host-add","host":"nqn.2026-01.io.tsumugi:c"}"#);
        assert_eq!(host.subsystems[0].hosts.len(), 1);
        let keyed = of(r#"{"do":"host-key","host":"nqn.2026-01.io.tsumugi:a,dhchap-key=/k"}"#);
        assert!(
            keyed.subsystems[0].hosts[0].has_dhchap() && keyed.subsystems[0].allow_hosts.len() == 1
        );
        assert_eq!(of(r#"{"do":"listener-add","address":"127.0.0.1:1"}"#).listen.len(), 2);
        let states = of(r#"{"do":"ana-set","states":{"07":"change","1":"inaccessible"}}"#);
        let expected = [("1", "inaccessible"), ("7", "change")];
        let expected = expected.map(|(group, state)| (group.to_owned(), state.to_owned()));
        assert_eq!(states.subsystems[0].ana, expected.into());
        assert!(
            of(r#"{"do":"subsystem-remove","subsystem":"nqn.2026-01.io.tsumugi:s"}"#)
                .subsystems
                .is_empty()
        );
        for (wrong, reason) in [
            (r#"{"do":"dance"}"#, "unknown variant"),
            (r#"{"do":"show","x":1}"#, "unknown field"),
            (r#"{"do":"namespace-add","namespace":"file:x"}"#, "an absolute path"),
            (r#"{"do":"namespace-add","namespace":"memory:1M,nsid=3"}"#, "at most once"),
            (r#"{"do":"namespace-add","namespace":"memory:1M,nsid=1025"}"#, "1 to 1024"),
            (r#"{"do":"namespace-add","namespace":"memory:1M","subsystem":"x"}"#, "no subsystem"),
            (r#"{"do":"namespace-remove","nsid":2}"#, "there is no"),
            (r#"{"do":"namespace-remove","nsid":-1}"#, "integer"),
            (r#"{"do":"namespace-resize","nsid":1}"#, "give the size"),
            (r#"{"do":"namespace-resize","nsid":1,"size":"big"}"#, "is not a size"),
            (r#"{"do":"namespace-limit","nsid":1,"iops":0}"#, "at least 1"),
            (r#"{"do":"namespace-hosts","nsid":1,"hosts":["x"]}"#, "not an NQN"),
            (r#"{"do":"namespace-limit","nsid":2,"iops":5}"#, "there is no"),
            (r#"{"do":"host-add","host":"nqn.2026-01.io.tsumugi:a"}"#, "already"),
            (
                r#"{"do":"host-add","host":"nqn.2026-01.io.tsumugi:c,dhchap-key=k"}"#,
                "absolute paths",
            ),
            (r#"{"do":"host-remove","host":"nqn.2026-01.io.tsumugi:c"}"#, "not in the"),
            (r#"{"do":"host-key","host":"nqn.2026-01.io.tsumugi:c"}"#, "not in the"),
            (r#"{"do":"listener-remove","address":"127.0.0.1:4711"}"#, "last address"),
            (r#"{"do":"listener-remove","address":"127.0.0.1:1"}"#, "not listened"),
            (r#"{"do":"listener-add","address":"here"}"#, "here"),
            (r#"{"do":"ana-set","states":{"1":"good"}}"#, "optimized, non-optimized"),
            (r#"{"do":"ana-set","states":{"129":"optimized"}}"#, "1 to 128"),
            (r#"{"do":"ana-set","states":{"1":"change","01":"optimized"}}"#, "two states"),
            (r#"{"do":"ana-set","states":{}}"#, "at least one GROUP"),
        ] {
            let said = after(wrong).err().map(|error| format!("{error:#}")).unwrap_or_default();
            assert!(said.contains(reason), "{wrong}: {said}");
        }
    }

    /// Goal: neither the first host nor the removal of the last one changes access without a
    /// confirmation.
    #[test]
    fn access_for_all_is_confirmed() {
        let mut live = live();
        let request = |text: &str| serde_json::from_str::<Request>(text).unwrap();
        live.settings.subsystems[0].allow_hosts.truncate(1);
        let remove = r#"{"do":"host-remove","host":"nqn.2026-01.io.tsumugi:a"}"#;
        assert!(Wanted::after(&live, &request(remove)).is_err());
        let sure = r#"{"do":"host-remove","host":"nqn.2026-01.io.tsumugi:a","any_host":true}"#;
        live.settings = Wanted::after(&live, &request(sure)).unwrap().settings;
        assert_eq!(live.settings.subsystems[0].access(), target::HostAccess::Any);
        let add = r#"{"do":"host-add","host":"nqn.2026-01.io.tsumugi:a"}"#;
        assert!(Wanted::after(&live, &request(add)).is_err());
        let sure = r#"{"do":"host-add","host":"nqn.2026-01.io.tsumugi:a","restrict":true}"#;
        assert!(Wanted::after(&live, &request(sure)).is_ok());
    }
}
