//! Levels as files have them: storages, runtimes, and the kinds of level that engines declare.

use crate::engines::ENGINES;
use crate::keys::{Form, Key, Placed, Source, Table, Values, find};
use crate::level::{
    Backing, ContainerKind, FileSystem, Level, LevelKind, Network, Paced, Pool, Runtime, Storage,
    Subsystem,
};
use crate::scheme::Scheme;
use crate::workloads::known;
use base::Error;
use serde::{Deserialize, Deserializer, de};
use std::fmt;
use std::path::PathBuf;
use std::sync::LazyLock;

/// The port of NVMe over TCP.
const PORT_DEFAULT: u16 = 4420;
const POOL_NODES_MAX: u32 = 16;
const POOL_NODES_DEFAULT: u32 = 2;

/// Keys of all levels.
const COMMON: [Key; 22] = [
    Key::new("kind", Form::Text),
    Key::new("label", Form::Text),
    Key::new("path", Form::Text),
    Key::new("destroy", Form::Text),
    Key::new("network", Form::Text),
    Key::new("backing", Form::Text),
    Key::new("address", Form::Text),
    Key::new("nqn", Form::Text),
    Key::new("namespace", Form::Count),
    Key::new("rate", Form::Text),
    Key::new("spread", Form::Number),
    Key::new("scheme", Form::Text),
    Key::new("file-system", Form::Text),
    Key::new("scheduler", Form::Text),
    Key::new("nodes", Form::Count),
    Key::new("device-size", Form::Text),
    Key::new("checksum", Form::Text),
    Key::new("reader", Form::Count),
    Key::new("poll-us", Form::Any),
    Key::new("enter", Form::Text),
    Key::new("leave", Form::Text),
    Key::new("runtimes", Form::Texts),
];

static KEYS: LazyLock<(Vec<Key>, Vec<&'static str>)> = LazyLock::new(|| {
    known(&COMMON, ENGINES.iter().filter_map(|engine| Some(engine.setting?.keys)))
});

/// A level's table, not looked at yet.
#[derive(Clone, Debug)]
pub struct RawLevel(Values);

impl<'de> Deserialize<'de> for RawLevel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> de::Visitor<'de> for Reader {
            type Value = RawLevel;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a level")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<RawLevel, A::Error> {
                let values = Values::read(map, &KEYS.0, &KEYS.1)?;
                values.demand("kind")?;
                Ok(RawLevel(values))
            }
        }

        deserializer.deserialize_map(Reader)
    }
}

/// Returns what kinds of level there are, for an error.
fn kinds() -> String {
    let mut said = vec![
        "directory, block-device, target, nqn, pool, command, paced (storages)".to_string(),
        "native, container (runtimes)".into(),
    ];
    for engine in ENGINES {
        if let Some(setting) = engine.setting {
            said.push(format!("{} ({} of engine {})", setting.kind, setting.noun, engine.name));
        }
        let own: Vec<&str> =
            engine.storages.iter().copied().filter(|storage| *storage != "nqn").collect();
        if !own.is_empty() {
            said.push(format!("{} (storages of engine {})", own.join(", "), engine.name));
        }
    }
    said.join(", ")
}

/// Checks a level. `key` is the table's name in the file, `name` the level's.
pub fn level(
    source: Source<'_>,
    key: &str,
    name: &str,
    placed: &Placed<RawLevel>,
) -> Result<Level, Error> {
    let values = &placed.get_ref().0;
    let table = |owner| Table::new(source, values, placed, (format!("{key}."), owner));
    let kind = table(String::new()).need_text("kind")?.value.to_string();
    let table = table(format!("kind {kind:?}"));
    let setting = ENGINES.iter().filter_map(|engine| engine.setting).find(|it| it.kind == kind);
    let kind = match (kind.as_str(), setting) {
        ("native", _) => LevelKind::Runtime(Runtime::Native),
        ("container", _) => LevelKind::Runtime(container(&table)?),
        (_, Some(setting)) => LevelKind::Setting((setting.read)(&table)?),
        (kind, None) => LevelKind::Storage(storage(&table, kind)?),
    };
    let file_system = file_system(&table, &kind)?;
    let scheduler = scheduler(&table, &kind, file_system)?;
    let label = table.text("label").map_or(name, |given| given.value).to_string();
    Ok(Level { label, kind, file_system, scheduler })
}

/// Returns the error of a level's kind.
pub fn kind_error(
    source: Source<'_>,
    key: &str,
    placed: &Placed<RawLevel>,
    message: String,
) -> Error {
    let values = &placed.get_ref().0;
    let table = Table::new(source, values, placed, (format!("{key}."), String::new()));
    match table.text("kind") {
        Some(given) => table.error(&given, "kind", message),
        None => table.wrong("kind", message),
    }
}

/// A scheduler goes with a block device: one that is named, or the loop device of a file system.
fn scheduler(
    table: &Table<'_>,
    kind: &LevelKind,
    file_system: Option<FileSystem>,
) -> Result<Option<String>, Error> {
    let Some(given) = table.text("scheduler") else { return Ok(None) };
    let is_device = matches!(kind, LevelKind::Storage(Storage::BlockDevice { .. }));
    let name = given.value;
    let is_name =
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    let wrong = |message: &str| Err(table.error(&given, "scheduler", message));
    if !is_device && file_system.is_none() {
        return wrong("goes with kind block-device, or with a file-system");
    }
    if !is_name {
        return wrong("is a name that the kernel has, like \"none\" or \"mq-deadline\"");
    }
    Ok(Some(name.into()))
}

fn storage(table: &Table<'_>, kind: &str) -> Result<Storage, Error> {
    let text = |what: &str| table.text(what).map(|given| given.value.to_string());
    let needed = |what: &str| table.need_text(what).map(|given| given.value.to_string());
    let directory = text("path").map(PathBuf::from);
    Ok(match kind {
        "directory" => Storage::Directory(directory),
        "block-device" => {
            Storage::BlockDevice { path: needed("path")?.into(), destroy: text("destroy") }
        }
        "target" => {
            let networks = [("loopback", Network::Loopback), ("namespace", Network::Namespace)];
            let backings = [("file", Backing::File), ("memory", Backing::Memory)];
            let network = table.choose("network", &networks)?.unwrap_or(Network::Loopback);
            let backing = table.choose("backing", &backings)?.unwrap_or(Backing::File);
            Storage::Target { directory, network, backing, poll_us: table.parsed("poll-us")? }
        }
        "iscsi" => Storage::Iscsi { directory },
        "nqn" => Storage::Subsystem(subsystem(table)?),
        "paced" => Storage::Paced(paced(table)?),
        "pool" => Storage::Pool(pool(table)?),
        "layers" => Storage::Layers(table.need_choice("scheme", &Scheme::ALL)?),
        "null" => Storage::Null,
        "memory" => Storage::Memory,
        "command" => Storage::Command { enter: needed("enter")?, leave: needed("leave")? },
        other => {
            let message = format!("{other:?} is not known: there are {}", kinds());
            return Err(table.error(&table.need_text("kind")?, "kind", message));
        }
    })
}

fn paced(table: &Table<'_>) -> Result<Paced, Error> {
    let rate = table.need_text("rate")?;
    let bytes_per_s = table.bytes("rate")?.unwrap_or_default();
    let spread = table.number_from("spread", 0.0, 0.0)?;
    if bytes_per_s == 0 || spread >= 1.0 {
        let message = "the rate is more than 0, and spread less than 1";
        return Err(table.error(&rate, "rate", message));
    }
    Ok(Paced { bytes_per_s, spread })
}

fn pool(table: &Table<'_>) -> Result<Pool, Error> {
    let nodes = table.count_in("nodes", (1, POOL_NODES_MAX))?.unwrap_or(POOL_NODES_DEFAULT) as u16;
    let size = table.bytes("device-size")?;
    let device_bytes = size.ok_or_else(|| table.missing("device-size"))?;
    let states = [("on", true), ("off", false)];
    let has_checksums = table.choose("checksum", &states)?.unwrap_or(true);
    let reader = table.count_in("reader", (1, u32::from(nodes)))?.unwrap_or(1) as u16;
    Ok(Pool { nodes, device_bytes, has_checksums, poll_us: table.parsed("poll-us")?, reader })
}

/// `address` is ADDRESS or ADDRESS:PORT, with brackets around an IPv6 address that has a port.
fn subsystem(table: &Table<'_>) -> Result<Subsystem, Error> {
    let given = table.need_text("address")?;
    let text = given.value;
    let is_plain_v6 = text.parse::<std::net::Ipv6Addr>().is_ok();
    let (address, port) = match text.rsplit_once(':').filter(|_| !is_plain_v6) {
        Some((address, port)) => {
            let port = port
                .parse()
                .map_err(|_| table.error(&given, "address", format!("{port:?} is no port")))?;
            (address.trim_matches(['[', ']']), port)
        }
        None => (text, PORT_DEFAULT),
    };
    Ok(Subsystem {
        address: address.into(),
        port,
        nqn: table.need_text("nqn")?.value.into(),
        namespace: table.count("namespace").map(|given| *given.value),
        destroy: table.text("destroy").map(|given| given.value.into()),
    })
}

fn container(table: &Table<'_>) -> Result<Runtime, Error> {
    Ok(Runtime::Container(match table.texts("runtimes") {
        Some(given) => {
            let choose = |name: &String| find(name, &ContainerKind::ALL);
            let chosen: Result<Vec<_>, _> = given.value.iter().map(choose).collect();
            chosen.map_err(|why| table.error(&given, "runtimes", why.to_string()))?
        }
        None => ContainerKind::ALL.iter().map(|(_, kind)| *kind).collect(),
    }))
}

fn file_system(table: &Table<'_>, kind: &LevelKind) -> Result<Option<FileSystem>, Error> {
    let Some(given) = table.text("file-system") else { return Ok(None) };
    let is_file =
        matches!(kind, LevelKind::Storage(Storage::Directory(_) | Storage::Target { .. }));
    if !is_file {
        let message = "goes with kinds directory and target only";
        return Err(table.error(&given, "file-system", message));
    }
    table.choose("file-system", &FileSystem::ALL)
}
