//! Asking the machines of a job for their places in the network. This is their first order, and
//! shows which machines are reached.

use super::BEGIN_WITHIN;
use super::conversation::Conversation;
use super::messages::{Order, Reply};
use crate::deploy::data_fabric::{self, DataFabric, Look};
use crate::deploy::hosts::{Host, Spot};
use crate::deploy::job::JobDir;
use crate::deploy::options::UpArgs;
use crate::deploy::state::HostState;
use crate::deploy::stop::Stop;
use anyhow::bail;
use std::net::IpAddr;
use std::time::Instant;

/// Number of addresses for which machines look up their routes.
const PEERS_MAX: usize = 16;

/// Asks the machines for their places in the network: twice, because the first answers may bring
/// addresses whose routes matter.
pub(super) fn look(
    dir: &JobDir,
    machines: &mut [Conversation],
    (hosts, states): (&[Host], &[HostState]),
    stop: &Stop,
    reached: &mut [bool],
) -> anyhow::Result<Vec<Spot>> {
    let mut spots = vec![Spot::default(); machines.len()];
    let everyone: Vec<_> = (0..machines.len()).collect();
    let unreached = look_at(machines, &everyone, &[], stop, reached, &mut spots)?;
    if let Some((first, why)) = unreached.first() {
        eprintln!(
            "tsumugi: this machine itself reaches {} of {} machines, because others of the job do \
             not reach them ({}: {why})",
            unreached.len(),
            machines.len(),
            machines[*first].host()
        );
        let indices: Vec<_> = unreached.iter().map(|(index, _)| *index).collect();
        let width = u16::try_from(indices.len()).unwrap_or(u16::MAX);
        let flat = |index: &usize| HostState { fan_out: width, ..states[*index].clone() };
        let flat: Vec<_> = indices.iter().map(flat).collect();
        for (index, machine) in indices.iter().zip(Conversation::start(dir.job(), &flat)) {
            machines[*index] = machine;
        }
        look_at(machines, &indices, &[], stop, reached, &mut spots)?;
    }
    let known =
        hosts.iter().zip(&spots).filter_map(|(host, spot)| host.known_address().or(spot.ssh));
    let peers: Vec<_> = known.take(PEERS_MAX).collect();
    look_at(machines, &everyone, &peers, stop, reached, &mut spots)?;
    Ok(spots)
}

/// Chooses the fabric for data, by what the machines have at the addresses of their nodes.
pub(super) fn choose_fabric(
    args: &UpArgs,
    machines: &mut [Conversation],
    hosts: &[Host],
    addresses: &[IpAddr],
    stop: &Stop,
) -> anyhow::Result<DataFabric> {
    if let Some(choice) = data_fabric::of_options(args.fabric, args.plain_data)? {
        return Ok(choice);
    }
    for (machine, &address) in machines.iter_mut().zip(addresses) {
        machine.order(&Order::LookForRdma { address })?;
    }
    let mut looks = Vec::new();
    for (machine, (host, &address)) in machines.iter_mut().zip(hosts.iter().zip(addresses)) {
        match machine.wait(Instant::now() + BEGIN_WITHIN, stop, |_, _| ())? {
            Reply::Rdma(device) => looks.push(Look { node: host.name.clone(), address, device }),
            other => bail!("{}: answered {other:?}", machine.host()),
        }
    }
    data_fabric::of_nodes(args.fabric, &looks)
}

/// Asks some of the machines. Returns those that were not reached, with the reasons.
fn look_at(
    machines: &mut [Conversation],
    indices: &[usize],
    peers: &[IpAddr],
    stop: &Stop,
    reached: &mut [bool],
    spots: &mut [Spot],
) -> anyhow::Result<Vec<(usize, String)>> {
    let mut unreached = Vec::new();
    for index in indices {
        machines[*index].order(&Order::Look { peers: peers.to_vec() })?;
    }
    for index in indices {
        let machine = &mut machines[*index];
        match machine.wait(Instant::now() + BEGIN_WITHIN, stop, |_, _| ())? {
            Reply::Spot(spot) => spots[*index] = spot,
            Reply::Unreached(why) => {
                unreached.push((*index, why));
                continue;
            }
            other => bail!("{}: answered {other:?}", machine.host()),
        }
        reached[*index] = true;
    }
    Ok(unreached)
}
