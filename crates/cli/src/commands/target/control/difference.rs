//! The difference between the present and the wanted settings of a target. Nothing is changed here.

use super::Live;
use crate::commands::target::config::{Settings, SubsystemSettings};
use crate::commands::target::hosts::{self, HostSettings};
use crate::commands::target::namespace::NamespaceSettings;
use anyhow::bail;
use nvme::{Nqn, Nsid};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use target::{HostAccess, HostProof, HostTls, RateLimits};

/// The wanted state of the target.
pub(super) struct Wanted {
    /// All settings; the namespaces have identifiers.
    pub(super) settings: Settings,
    /// The NQNs of the subsystems that exist already.
    pub(super) names: Vec<Option<Nqn>>,
    /// Whether the settings come from the configuration file: then key files of hosts with
    /// unchanged settings are read again, too.
    pub(super) is_of_file: bool,
    /// A host with key files to read again although its settings are unchanged.
    pub(super) keys_read: Option<Nqn>,
    /// A namespace that gets a new size without a change of its settings: the bytes, or the present
    /// size of its file or device.
    pub(super) resized: Option<(Nqn, Nsid, Option<u64>)>,
    /// Whether namespaces may lose the data beyond their new end.
    pub(super) may_shrink: bool,
}

impl Wanted {
    /// Returns the present state of the target.
    pub(super) fn of_live(live: &Live) -> Self {
        Self {
            settings: live.settings.clone(),
            names: live.names.iter().cloned().map(Some).collect(),
            is_of_file: false,
            keys_read: None,
            resized: None,
            may_shrink: false,
        }
    }

    /// Returns the state that a configuration file describes. A subsystem without an NQN in the
    /// file is the one that was started for such an entry, in their order, because its derived NQN
    /// depends on the namespaces at that time.
    pub(super) fn of_file(live: &Live, settings: Settings) -> Self {
        let known = live.settings.subsystems.iter().zip(&live.names);
        let mut unnamed = known.filter(|(it, _)| it.nqn.is_none()).map(|(_, name)| name.clone());
        let names = settings.subsystems.iter().map(|it| it.nqn.clone().or_else(|| unnamed.next()));
        let names: Vec<Option<Nqn>> = names.collect();
        Self {
            settings,
            names,
            is_of_file: true,
            keys_read: None,
            resized: None,
            may_shrink: false,
        }
    }

    fn subsystems(&self) -> impl Iterator<Item = (&SubsystemSettings, Option<&Nqn>)> {
        self.settings.subsystems.iter().zip(self.names.iter().map(Option::as_ref))
    }
}

/// A change of a namespace.
#[derive(Debug)]
pub(super) enum NamespaceStep {
    Add {
        nsid: Nsid,
        settings: NamespaceSettings,
    },
    Remove {
        nsid: Nsid,
    },
    /// To these bytes, or to the size of its file or device.
    Resize {
        nsid: Nsid,
        settings: NamespaceSettings,
        bytes: Option<u64>,
    },
}

/// All changes between two states.
#[derive(Default)]
pub(super) struct Difference {
    pub(super) listeners_added: Vec<SocketAddr>,
    /// Addresses as requested.
    pub(super) listeners_removed: Vec<SocketAddr>,
    /// Indices of the settings.
    pub(super) subsystems_added: Vec<usize>,
    pub(super) subsystems_removed: Vec<Nqn>,
    pub(super) namespaces: Vec<(Nqn, NamespaceStep)>,
    /// Namespaces with a change of the hosts that see them.
    pub(super) masks: Vec<(Nqn, Nsid, HostAccess)>,
    /// Namespaces with new rate limits.
    pub(super) limits: Vec<(Nqn, Nsid, RateLimits)>,
    /// Subsystems with different hosts, by indices of the settings.
    pub(super) access: Vec<usize>,
    /// Subsystems with different states of ANA groups, by indices of the settings.
    pub(super) ana: Vec<usize>,
    /// Files, devices and volumes that the target releases.
    pub(super) paths_removed: BTreeSet<PathBuf>,
    /// Settings that differ but take effect only at a restart.
    pub(super) needs_restart: Vec<&'static str>,
}

impl Difference {
    /// Compares the states.
    ///
    /// # Errors
    /// If the settings contradict each other, or require something impossible.
    pub(super) fn new(live: &Live, wanted: &Wanted) -> anyhow::Result<Self> {
        let mut difference =
            Self { needs_restart: fixed(&live.settings, &wanted.settings), ..Self::default() };
        let names: Vec<&Nqn> = wanted.names.iter().flatten().collect();
        if let Some(twice) =
            names.iter().find(|name| names.iter().filter(|it| it == name).count() > 1)
        {
            bail!("there are two subsystems named {twice}");
        }
        let known: BTreeMap<&Nqn, &SubsystemSettings> =
            live.names.iter().zip(&live.settings.subsystems).collect();
        for (index, (settings, name)) in wanted.subsystems().enumerate() {
            let Some((name, former)) = name.and_then(|name| Some((name, *known.get(name)?))) else {
                difference.subsystems_added.push(index);
                continue;
            };
            if (&former.serial, &former.model) != (&settings.serial, &settings.model) {
                difference.needs_restart.push("serial and model of a subsystem");
            }
            if former.ana != settings.ana {
                difference.ana.push(index);
            }
            if former.access() != settings.access() {
                difference.access.push(index);
            }
            difference.compare_namespaces(name, former, settings, wanted)?;
        }
        for (name, former) in &known {
            if !names.contains(name) {
                difference.subsystems_removed.push((*name).clone());
                let paths = former.namespaces.iter().filter_map(real_path);
                difference.paths_removed.extend(paths);
            }
        }
        // Several listeners may ask for port 0.
        difference.listeners_removed.clone_from(&live.settings.listen);
        for address in &wanted.settings.listen {
            let removed = &mut difference.listeners_removed;
            match removed.iter().position(|it| it == address) {
                Some(known) => drop(removed.remove(known)),
                None => difference.listeners_added.push(*address),
            }
        }
        Ok(difference)
    }

    /// Returns whether a namespace can be opened only after the target has released its store: a
    /// file or device because it is locked; a volume because the namespace in use still changes the
    /// file of reservations, or of the marks of uncorrectable blocks.
    pub(super) fn must_wait(&self, settings: &NamespaceSettings) -> bool {
        let is_released = real_path(settings).is_some_and(|it| self.paths_removed.contains(&it));
        let has_files = settings.has_reservations_file() || settings.has_uncorrectable_file();
        is_released && (!settings.is_volume() || has_files)
    }

    fn compare_namespaces(
        &mut self,
        name: &Nqn,
        former: &SubsystemSettings,
        settings: &SubsystemSettings,
        wanted: &Wanted,
    ) -> anyhow::Result<()> {
        let by_nsid = |it: &SubsystemSettings| -> BTreeMap<u32, NamespaceSettings> {
            it.namespaces.iter().filter_map(|it| Some((it.nsid?, it.clone()))).collect()
        };
        let (old, new) = (by_nsid(former), by_nsid(settings));
        let mut steps = Vec::new();
        for (&nsid, old) in &old {
            let is_kept = new.get(&nsid).is_some_and(|new| new.is_same_but_size(old));
            if !is_kept {
                self.paths_removed.extend(real_path(old));
                steps.push(NamespaceStep::Remove { nsid: Nsid(nsid) });
            }
        }
        for (&nsid, settings) in &new {
            let (settings, id) = (settings.clone(), Nsid(nsid));
            let Some(old) = old.get(&nsid).filter(|old| settings.is_same_but_size(old)) else {
                steps.push(NamespaceStep::Add { nsid: id, settings });
                continue;
            };
            if settings.rate_limits()? != old.rate_limits()? {
                self.limits.push((name.clone(), id, settings.rate_limits()?));
            }
            if settings.hosts()? != old.hosts()? {
                self.masks.push((name.clone(), id, settings.hosts()?));
            }
            let explicit = wanted.resized.as_ref().filter(|it| (&it.0, it.1) == (name, id));
            let bytes = match explicit {
                Some((_, _, bytes)) => *bytes,
                None if settings.size_bytes().is_none_or(|it| Some(it) == old.size_bytes()) => {
                    continue;
                }
                None => settings.size_bytes(),
            };
            steps.push(NamespaceStep::Resize { nsid: id, settings, bytes });
        }
        self.namespaces.extend(steps.into_iter().map(|step| (name.clone(), step)));
        Ok(())
    }
}

/// Returns the path of a namespace without symbolic links; for a volume that of its pool with the
/// volume's name.
fn real_path(settings: &NamespaceSettings) -> Option<PathBuf> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    match settings.volume() {
        Some((pool, name)) => Some(real(pool).join(name)),
        None => settings.path().map(real),
    }
}

/// Returns the names of settings that differ but cannot change while the target runs.
fn fixed(old: &Settings, new: &Settings) -> Vec<&'static str> {
    [
        ("listen_rdma", old.listen_rdma != new.listen_rdma),
        ("cores", old.cores != new.cores),
        ("poll_us", old.poll_us != new.poll_us),
        ("data_memory_max", old.data_memory_max != new.data_memory_max),
        ("cntlid_min", old.cntlid_min != new.cntlid_min),
        ("cntlid_max", old.cntlid_max != new.cntlid_max),
        ("connections_max", old.connections_max != new.connections_max),
        ("controllers_max", old.controllers_max != new.controllers_max),
        ("io_queues_max", old.io_queues_max != new.io_queues_max),
        ("queue_size_max", old.queue_size_max != new.queue_size_max),
        ("mdts", old.mdts != new.mdts),
        ("hdr_digest", old.hdr_digest != new.hdr_digest),
        ("data_digest", old.data_digest != new.data_digest),
        ("auth_discovery", old.auth_discovery != new.auth_discovery),
        ("network_namespace", old.network_namespace != new.network_namespace),
        ("control", old.control != new.control),
    ]
    .into_iter()
    .filter_map(|(name, is_changed)| is_changed.then_some(name))
    .collect()
}

impl Settings {
    /// Returns these settings with those of `live` that cannot change while the target runs.
    pub(super) fn with_fixed_of(self, live: &Self) -> Self {
        let Self { listen, insecure, subsystems, .. } = self;
        Self { listen, insecure, subsystems, ..live.clone() }
    }
}

/// The keys of all hosts.
pub(super) struct Keys {
    pub(super) proofs: BTreeMap<Nqn, HostProof>,
    pub(super) tls: BTreeMap<Nqn, HostTls>,
}

impl Keys {
    /// Reads the keys of hosts that are new or have other settings, or of all hosts, and takes the
    /// other keys from `live`.
    ///
    /// # Errors
    /// If a key cannot be read, or a host has two.
    pub(super) fn read(live: &Live, wanted: &Wanted) -> anyhow::Result<Self> {
        let of = |settings: &Settings| -> Vec<HostSettings> {
            settings.subsystems.iter().flat_map(|it| it.hosts.clone()).collect()
        };
        let (old, new) = (of(&live.settings), of(&wanted.settings));
        for (index, host) in new.iter().enumerate() {
            let other = new[..index].iter().find(|it| it.nqn == host.nqn && *it != host);
            if other.is_some_and(|other| other.has_key() && host.has_key()) {
                bail!("host {} has two keys or ways of authentication: one is enough", host.nqn);
            }
        }
        let needs_tls_key = |it: &&HostSettings| it.has_tls() || it.is_concatenated();
        let mut with_tls_keys = new.iter().filter(needs_tls_key);
        if let Some(host) = with_tls_keys.find(|it| it.nqn.as_str().contains(' ')) {
            bail!("host {:?} has a space in its name, and can have no TLS key", host.nqn.as_str());
        }
        let is_read = |host: &&HostSettings| {
            wanted.is_of_file || wanted.keys_read.as_ref() == Some(&host.nqn) || !old.contains(host)
        };
        let mut proofs = hosts::proofs(new.iter().filter(is_read))?;
        let mut tls = hosts::tls(new.iter().filter(is_read))?;
        for host in new.iter().filter(|host| !is_read(host)) {
            if let Some(proof) = live.proofs.get(&host.nqn).filter(|_| host.has_dhchap()) {
                proofs.entry(host.nqn.clone()).or_insert_with(|| proof.clone());
            }
            if let Some(key) = live.tls.get(&host.nqn).filter(|_| host.has_tls()) {
                tls.entry(host.nqn.clone()).or_insert_with(|| key.clone());
            }
        }
        Ok(Self { proofs, tls })
    }
}

/// Returns whether settings have a namespace in the same file as `shrunk`, with another size.
pub(super) fn has_other_size(settings: &Settings, shrunk: &NamespaceSettings) -> bool {
    let absolute = |it: &NamespaceSettings| it.path().and_then(|it| std::path::absolute(it).ok());
    let path = absolute(shrunk);
    let is_other = |it: &NamespaceSettings| {
        it.size_bytes().is_some_and(|bytes| Some(bytes) != shrunk.size_bytes())
            && absolute(it) == path
    };
    let mut all = settings.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
    path.is_some() && all.any(is_other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "listen = [\"127.0.0.1:0\", \"127.0.0.1:0\"]\n[[subsystem]]\n\
        [[subsystem.namespace]]\nmemory = \"1M\"\nnsid = 1\n[[subsystem.namespace]]\npath = \"/x\"\nnsid = 2\nsize = \"1M\"\n\
        [[subsystem]]\nnqn = \"nqn.2026-01.io.tsumugi:b\"\n";

    fn live() -> Live {
        let names = ["a", "b"].map(|it| Nqn::new(&format!("nqn.2026-01.io.tsumugi:{it}")).unwrap());
        Live {
            settings: toml::from_str(TEXT).unwrap(),
            names: names.to_vec(),
            listeners: Vec::new(),
            proofs: BTreeMap::new(),
            tls: BTreeMap::new(),
        }
    }

    fn of(text: &str) -> Difference {
        let live = live();
        let wanted = Wanted::of_file(&live, toml::from_str(text).unwrap());
        Difference::new(&live, &wanted).unwrap()
    }

    fn steps(difference: &Difference) -> String {
        let steps = difference.namespaces.iter().map(|(name, step)| {
            let name = name.as_str().rsplit(':').next().unwrap();
            match step {
                NamespaceStep::Add { nsid, .. } => format!("{name}+{}", nsid.get()),
                NamespaceStep::Remove { nsid } => format!("{name}-{}", nsid.get()),
                NamespaceStep::Resize { nsid, bytes, .. } => {
                    format!("{name}={}:{}", nsid.get(), bytes.unwrap())
                }
            }
        });
        steps.collect::<Vec<_>>().join(" ")
    }

    /// Goal: only differences are changed: a new size is a resize; with another option it is
    /// another namespace, which must wait until its file is free.
    #[test]
    fn only_differences_are_changed() {
        let same = of(TEXT);
        assert!(same.listeners_added.is_empty() && same.listeners_removed.is_empty());
        assert!(same.subsystems_added.is_empty() && same.subsystems_removed.is_empty());
        assert_eq!(
            (steps(&same), same.access.len(), same.needs_restart.len()),
            (String::new(), 0, 0)
        );
        let grown = of(&TEXT.replace("memory = \"1M\"", "memory = \"2M\""));
        assert_eq!(steps(&grown), "a=1:2097152");
        let limited = of(&TEXT.replace("size = \"1M\"", "size = \"1M\"\niops = 5"));
        assert_eq!((steps(&limited), limited.limits.len()), (String::new(), 1));
        assert_eq!(limited.limits[0].2, RateLimits { commands: Some(5), bytes: None });
        let masked = of(&TEXT.replace("size = \"1M\"", "size = \"1M\"\nhosts = []"));
        assert_eq!((steps(&masked), masked.masks.len()), (String::new(), 1));
        let protected = of(&TEXT.replace("size = \"1M\"", "size = \"1M\"\nread_only = true"));
        assert_eq!(steps(&protected), "a-2 a+2");
        assert_eq!(protected.paths_removed, [PathBuf::from("/x")].into());
        assert_eq!(steps(&of(&TEXT.replace("nsid = 2", "nsid = 3"))), "a-2 a+3");
        assert_eq!(
            steps(&of(&TEXT.replace("\nsize = \"1M\"", ""))),
            "",
            "the file's size is as good"
        );
        let one = of(&TEXT.replacen("\"127.0.0.1:0\"", "\"127.0.0.1:1\"", 1));
        assert_eq!((one.listeners_added.len(), one.listeners_removed.len()), (1, 1));
        let fixed = of(&format!("cores = 3\nmdts = \"64K\"\n{TEXT}"));
        assert_eq!(fixed.needs_restart, ["cores", "mdts"]);
        let access = of(&format!("{TEXT}allow_hosts = [\"nqn.2026-01.io.tsumugi:h\"]\n"));
        assert_eq!(access.access, [1]);
        let states = of(&format!("{TEXT}ana = {{ 1 = \"inaccessible\" }}\n"));
        assert_eq!((states.ana, states.needs_restart.len()), (vec![1], 0));
    }

    /// Goal: a changed volume with a file of reservations waits for its former namespace, which
    /// still changes that file; another volume of the pool does not.
    #[test]
    fn reservations_of_volumes_are_read_late() {
        let text = |a: &str, b: &str| {
            format!(
                "{TEXT}[[subsystem.namespace]]\nvolume = \"/p/a\"\nnsid = 7\n{a}\n\
                 [[subsystem.namespace]]\nvolume = \"/p/b\"\nnsid = 8\n{b}\n"
            )
        };
        let kept = "reservations = \"/r\"";
        let changed = format!("{kept}\nread_only = true");
        let wait = |old: &str, new: &str| {
            let mut live = live();
            live.settings = toml::from_str(old).unwrap();
            let wanted = Wanted::of_file(&live, toml::from_str(new).unwrap());
            let difference = Difference::new(&live, &wanted).unwrap();
            let namespaces = wanted.settings.subsystems.iter().flat_map(|it| &it.namespaces);
            let waiting = namespaces.filter(|it| difference.must_wait(it));
            (steps(&difference), waiting.filter_map(|it| it.nsid).collect::<Vec<_>>())
        };
        let (both, other) = (text(kept, kept), text(&changed, kept));
        assert_eq!(wait(&both, &other), ("b-7 b+7".to_owned(), vec![7]));
        let (bare, other) = (text("", ""), text("read_only = true", ""));
        assert_eq!(wait(&bare, &other), ("b-7 b+7".to_owned(), vec![]));
    }

    /// Goal: a configuration file is known to be outdated if it has another size of a shrunk file.
    #[test]
    fn the_size_of_a_shrunk_file_is_compared() {
        let live = live();
        let [memory, file] = &live.settings.subsystems[0].namespaces[..] else { panic!() };
        let is_outdated = |it: &NamespaceSettings| has_other_size(&live.settings, it);
        assert!(!is_outdated(file), "as it is");
        assert!(is_outdated(&file.with_size(1 << 19)));
        assert!(!is_outdated(&memory.with_size(1 << 19)), "memory has no file");
        let mut without = live.settings.clone();
        without.subsystems.clear();
        assert!(!has_other_size(&without, &file.with_size(1 << 19)));
    }

    /// Goal: hosts with names that do not fit into a TLS key's identity are refused before any
    /// change, with a key of their own and with a generated key.
    #[test]
    fn spaces_do_not_go_with_tls_keys() {
        let live = live();
        let error = |key: &str| {
            let host = format!("nqn = \"nqn.2026-01.io.tsumugi:a b\"\n{key}\n");
            let text = format!("{TEXT}[[subsystem.host]]\n{host}");
            let wanted = Wanted::of_file(&live, toml::from_str(&text).unwrap());
            Keys::read(&live, &wanted).err().unwrap().to_string()
        };
        assert!(error("tls_key = \"/k\"").contains("space"));
        assert!(error("dhchap_key = \"/k\"\nconcat = true").contains("space"));
        assert!(!error("dhchap_key = \"/k\"").contains("space"), "there is no such file");
    }

    /// Goal: a subsystem without an NQN in the file keeps its identity when its namespaces change;
    /// others come and go by their NQNs.
    #[test]
    fn subsystems_are_known_by_their_names() {
        let renamed = of(&TEXT.replace("tsumugi:b", "tsumugi:c"));
        assert_eq!((renamed.subsystems_added, renamed.subsystems_removed.len()), (vec![1], 1));
        let first_is_gone = of("[[subsystem]]\nnqn = \"nqn.2026-01.io.tsumugi:b\"\n");
        assert_eq!(first_is_gone.subsystems_removed[0].as_str(), "nqn.2026-01.io.tsumugi:a");
        assert_eq!(first_is_gone.paths_removed.len(), 1);
        let live = live();
        let twice = TEXT.replace(
            "[[subsystem]]\nnqn",
            "[[subsystem]]\nnqn = \"nqn.2026-01.io.tsumugi:b\"\n[[subsystem]]\nnqn",
        );
        let wanted = Wanted::of_file(&live, toml::from_str(&twice).unwrap());
        assert!(Difference::new(&live, &wanted).is_err());
    }
}
