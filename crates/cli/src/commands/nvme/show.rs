//! `discover`, `list`, `id-ctrl`, `id-ns`: the subsystems and namespaces of a target.

use super::args::{ConnectArgs, NamespaceArgs, TargetArgs, hex};
use super::foreign::OutputArgs;
use super::print_json;
use clap::Args;
use host::{Controller, DiscoveryLog};
use nvme::identify::{IdentifyController, IdentifyNamespace};
use nvme::log_page::{
    DiscoveryEntry, security_type, subsystem_type, transport_requirements, transport_type,
};
use nvme::{Nqn, Nsid};
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct DiscoverArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// NQN of the only subsystem to list [default: all that the target's discovery service offers]
    #[arg(short = 'n', long, value_name = "NQN")]
    nqn: Option<Nqn>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct IdControllerArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct IdNamespaceArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    namespace: NamespaceArgs,
    #[command(flatten)]
    output: OutputArgs,
}

async fn read_discovery(target: &TargetArgs) -> anyhow::Result<DiscoveryLog> {
    let mut options = target.options(Nqn::discovery())?;
    // The connection is short, and some discovery controllers refuse a keep-alive timeout.
    options.keep_alive_tmo = Duration::ZERO;
    let controller = Controller::connect_discovery(options).await?;
    let log = controller.discover().await?;
    controller.disconnect().await?;
    Ok(log)
}

fn transport_name(trtype: u8) -> &'static str {
    match trtype {
        transport_type::RDMA => "rdma",
        transport_type::FC => "fc",
        transport_type::TCP => "tcp",
        transport_type::LOOP => "loop",
        _ => "unknown",
    }
}

fn subsystem_type_name(subtype: u8) -> &'static str {
    match subtype {
        subsystem_type::REFERRAL => "discovery subsystem referral",
        subsystem_type::NVM => "nvme subsystem",
        subsystem_type::CURRENT_DISCOVERY => "current discovery subsystem",
        _ => "unknown",
    }
}

/// Returns SECTYPE in the words of nvme-cli.
fn security_name(entry: &DiscoveryEntry) -> &'static str {
    match entry.security_type() {
        security_type::NONE => "none",
        security_type::TLS => "tls",
        security_type::TLS13 => "tls13",
        _ => "unknown",
    }
}

/// Returns TSC in the words of nvme-cli.
fn requirement_name(entry: &DiscoveryEntry) -> &'static str {
    match entry.secure_channel() {
        transport_requirements::SECURE_CHANNEL_NOT_SPECIFIED => "not specified",
        transport_requirements::SECURE_CHANNEL_REQUIRED => "required",
        transport_requirements::SECURE_CHANNEL_NOT_REQUIRED => "not required",
        _ => "unknown",
    }
}

fn entry_json(entry: &DiscoveryEntry) -> Value {
    json!({
        "trtype": transport_name(entry.trtype),
        "subtype": subsystem_type_name(entry.subtype),
        "subnqn": entry.subsystem_nqn().map(|nqn| nqn.to_string()).ok(),
        "traddr": entry.address(),
        "trsvcid": entry.service(),
        "portid": entry.portid.get(),
        "cntlid": entry.cntlid.get(),
        "asqsz": entry.asqsz.get(),
        "treq": requirement_name(entry),
        "sectype": security_name(entry),
    })
}

/// Shows the discovery log page.
pub(crate) async fn discover(args: DiscoverArgs) -> anyhow::Result<()> {
    let is_json = args.output.is_json()?;
    let log = read_discovery(&args.target).await?;
    if is_json {
        let records: Vec<_> = log.entries.iter().map(entry_json).collect();
        return print_json(&json!({ "genctr": log.generation, "records": records }));
    }
    println!("{} subsystem(s), generation {}", log.entries.len(), log.generation);
    for entry in &log.entries {
        let nqn = entry.subsystem_nqn().map_or_else(|error| error.to_string(), |it| it.to_string());
        let subtype = subsystem_type_name(entry.subtype);
        let transport = transport_name(entry.trtype);
        let security = match entry.security_type() {
            security_type::NONE => String::new(),
            _ => format!(", {} {}", security_name(entry), requirement_name(entry)),
        };
        let (address, service) = (entry.address(), entry.service());
        println!("{nqn}\n    {subtype}, {transport} {address} {service}{security}");
    }
    Ok(())
}

/// Returns the NVM subsystems that the discovery service offers, each once.
async fn offered(target: &TargetArgs) -> anyhow::Result<Vec<Nqn>> {
    let log = read_discovery(target).await?;
    let mut nqns: Vec<Nqn> = Vec::new();
    for entry in log.entries.iter().filter(|it| it.subtype == subsystem_type::NVM) {
        let nqn = entry.subsystem_nqn()?;
        if !nqns.contains(&nqn) {
            nqns.push(nqn);
        }
    }
    Ok(nqns)
}

/// Shows subsystems and their namespaces.
pub(crate) async fn list(args: ListArgs) -> anyhow::Result<()> {
    let is_json = args.output.is_json()?;
    let nqns = if let Some(nqn) = args.nqn { vec![nqn] } else { offered(&args.target).await? };
    let mut subsystems = Vec::new();
    for nqn in nqns {
        subsystems.push(list_subsystem(&args.target, nqn).await?);
    }
    if is_json {
        return print_json(&json!({ "subsystems": subsystems }));
    }
    for subsystem in &subsystems {
        println!("{} (serial {})", text(&subsystem["subnqn"]), text(&subsystem["serial"]));
        for namespace in subsystem["namespaces"].as_array().into_iter().flatten() {
            println!(
                "    namespace {}: {} bytes in blocks of {}, uuid {}",
                namespace["nsid"],
                namespace["bytes"],
                namespace["block_bytes"],
                text(&namespace["uuid"]),
            );
        }
    }
    Ok(())
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| "-".to_owned(), str::to_owned)
}

async fn list_subsystem(target: &TargetArgs, nqn: Nqn) -> anyhow::Result<Value> {
    let controller = Controller::connect(target.options(nqn.clone())?).await?;
    let serial = controller.info().map(|info| info.identify.serial());
    let mut namespaces = Vec::new();
    for nsid in controller.namespace_ids().await? {
        namespaces.push(namespace_json(&controller, nsid).await?);
    }
    controller.disconnect().await?;
    Ok(json!({ "subnqn": nqn.as_str(), "serial": serial, "namespaces": namespaces }))
}

async fn namespace_json(controller: &Controller, nsid: Nsid) -> anyhow::Result<Value> {
    let identify = controller.identify_namespace(nsid).await?;
    let identity = controller.namespace_identity(nsid).await?;
    let block_bytes = 1_u64 << identify.block_shift()?;
    Ok(json!({
        "nsid": nsid.get(),
        "bytes": identify.nsze.get().saturating_mul(block_bytes),
        "block_bytes": block_bytes,
        "uuid": identity.uuid.map(|uuid| uuid.to_string()),
        "nguid": identity.nguid.map(|id| hex(&id)),
        "eui64": identity.eui64.map(|id| hex(&id)),
        "incarnation": identity.incarnation.map(|it| format!("{it:032x}")),
    }))
}

/// Shows Identify Controller.
pub(crate) async fn id_controller(args: IdControllerArgs) -> anyhow::Result<()> {
    let is_json = args.output.is_json()?;
    let controller = Controller::connect(args.connect.options()?).await?;
    let identify = controller.info().map(|info| info.identify);
    controller.disconnect().await?;
    let Some(identify) = identify else { anyhow::bail!("the connection was lost") };
    show(&controller_json(&identify), is_json)
}

/// Shows Identify Namespace.
pub(crate) async fn id_namespace(args: IdNamespaceArgs) -> anyhow::Result<()> {
    let is_json = args.output.is_json()?;
    let controller = Controller::connect(args.connect.options()?).await?;
    let nsid = args.namespace.choose(&controller).await?;
    let identify = controller.identify_namespace(nsid).await?;
    let identity = controller.namespace_identity(nsid).await?;
    controller.disconnect().await?;
    let mut value = identify_namespace_json(&identify);
    value["uuid"] = json!(identity.uuid.map(|uuid| uuid.to_string()));
    value["incarnation"] = json!(identity.incarnation.map(|it| format!("{it:032x}")));
    show(&value, is_json)
}

/// Prints JSON, or one field per line as nvme-cli does.
fn show(value: &Value, is_json: bool) -> anyhow::Result<()> {
    if is_json {
        return print_json(value);
    }
    for (name, value) in value.as_object().into_iter().flatten() {
        match value {
            Value::String(text) => println!("{name:<12}: {text}"),
            other => println!("{name:<12}: {other}"),
        }
    }
    Ok(())
}

fn controller_json(id: &IdentifyController) -> Value {
    let fields: Vec<(&str, Value)> = vec![
        ("vid", id.vid.get().into()),
        ("ssvid", id.ssvid.get().into()),
        ("sn", id.serial().into()),
        ("mn", id.model().into()),
        ("fr", id.firmware().into()),
        ("rab", id.rab.into()),
        ("cmic", id.cmic.into()),
        ("mdts", id.mdts.into()),
        ("cntlid", id.cntlid.get().into()),
        ("ver", id.ver.get().into()),
        ("oaes", id.oaes.get().into()),
        ("ctratt", id.ctratt.get().into()),
        ("cntrltype", id.cntrltype.into()),
        ("crdt1", id.crdt1.get().into()),
        ("crdt2", id.crdt2.get().into()),
        ("crdt3", id.crdt3.get().into()),
        ("oacs", id.oacs.get().into()),
        ("acl", id.acl.into()),
        ("aerl", id.aerl.into()),
        ("lpa", id.lpa.into()),
        ("elpe", id.elpe.into()),
        ("npss", id.npss.into()),
        ("kas", id.kas.get().into()),
        ("anatt", id.anatt.into()),
        ("anacap", id.anacap.into()),
        ("anagrpmax", id.anagrpmax.get().into()),
        ("nanagrpid", id.nanagrpid.get().into()),
        ("sqes", id.sqes.into()),
        ("cqes", id.cqes.into()),
        ("maxcmd", id.maxcmd.get().into()),
        ("nn", id.nn.get().into()),
        ("oncs", id.oncs.get().into()),
        ("fuses", id.fuses.get().into()),
        ("vwc", id.vwc.into()),
        ("awun", id.awun.get().into()),
        ("awupf", id.awupf.get().into()),
        ("acwu", id.acwu.get().into()),
        ("sgls", id.sgls.get().into()),
        ("mnan", id.mnan.get().into()),
        ("subnqn", json!(id.subsystem_nqn().map(|nqn| nqn.to_string()).ok())),
        ("ioccsz", id.ioccsz.get().into()),
        ("iorcsz", id.iorcsz.get().into()),
        ("icdoff", id.icdoff.get().into()),
        ("fcatt", id.fcatt.into()),
        ("msdbd", id.msdbd.into()),
        ("ofcs", id.ofcs.get().into()),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn identify_namespace_json(id: &IdentifyNamespace) -> Value {
    let formats: Vec<_> = id
        .lbaf
        .iter()
        .take(usize::from(id.nlbaf).min(63) + 1)
        .map(|format| json!({ "ms": format.ms.get(), "lbads": format.lbads, "rp": format.rp }))
        .collect();
    json!({
        "nsze": id.nsze.get(), "ncap": id.ncap.get(), "nuse": id.nuse.get(),
        "nsfeat": id.nsfeat, "nlbaf": id.nlbaf, "flbas": id.flbas, "mc": id.mc, "dpc": id.dpc,
        "dps": id.dps, "nmic": id.nmic, "rescap": id.rescap, "dlfeat": id.dlfeat,
        "nawun": id.nawun.get(), "nawupf": id.nawupf.get(), "nacwu": id.nacwu.get(),
        "noiob": id.noiob.get(), "npwg": id.npwg.get(), "npwa": id.npwa.get(),
        "npdg": id.npdg.get(), "npda": id.npda.get(), "nows": id.nows.get(),
        "anagrpid": id.anagrpid.get(), "nsattr": id.nsattr, "nguid": hex(&id.nguid),
        "eui64": hex(&id.eui64), "lbafs": formats,
    })
}
