//! A small blocking NVMe/TCP host for the tests. It sends exactly what the test specifies, valid or
//! not.

use nvme::fabrics::{Connect, ConnectData, ConnectResult, PropertyGet, PropertySet};
use nvme::property::{Configuration, offset};
use nvme::tcp::{
    DIGEST_BYTES, Encoder, HEADER_BYTES_MAX, IcReq, Parser, ParserConfig, Pdu, Receiver, TermReq,
    crc32c,
};
use nvme::{
    CommandId, CompletionQueueEntry, ControllerId, HostId, Nqn, QueueId, SglDescriptor, Status,
    SubmissionQueueEntry, TransferTag,
};
use std::collections::{HashMap, HashSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The identifier and the name of a host.
#[derive(Clone, Debug)]
pub struct HostIdentity {
    pub host: HostId,
    pub name: Nqn,
}

impl HostIdentity {
    pub fn number(n: u8) -> Self {
        let host = HostId([n; 16]);
        Self { host, name: Nqn::from_uuid(host.0) }
    }
}

/// The transfer of a command's data to the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    InCapsule,
    R2t,
}

pub struct Client {
    pub stream: TcpStream,
    pub encoder: Encoder,
    parser: Parser,
    received: Vec<u8>,
    /// All received bytes.
    pub log: Vec<u8>,
    next_cid: u16,
    /// Data to send when an R2T requests it.
    outgoing: HashMap<u16, Vec<u8>>,
    /// Received data.
    incoming: HashMap<u16, Vec<u8>>,
    completions: HashMap<u16, CompletionQueueEntry>,
    /// R2Ts that were collected because of `hold_r2ts`: command, tag, offset, length.
    pub r2ts: Vec<(u16, u16, u32, u32)>,
    pub hold_r2ts: bool,
    /// Size of the PDUs into which `H2CData` is cut.
    pub h2c_bytes: usize,
    pub term: Option<TermReq>,
    /// Commands that ended by data alone, without a response.
    pub successes: HashSet<u16>,
}

/// The result of a receive.
#[derive(Debug)]
pub enum Got {
    Pdu,
    Closed,
}

impl Client {
    pub fn open(address: SocketAddr) -> Self {
        Self::open_with(address, false, false, 0)
    }

    pub fn raw(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let config = ParserConfig {
            receiver: Receiver::Host,
            has_header_digest: false,
            has_data_digest: false,
            data_alignment_bytes: 4,
            in_capsule_data_bytes_max: 0,
            data_bytes_max: 1 << 20,
        };
        Self {
            stream,
            encoder: Encoder::INITIAL,
            parser: Parser::new(config),
            received: Vec::new(),
            log: Vec::new(),
            next_cid: 0,
            outgoing: HashMap::new(),
            incoming: HashMap::new(),
            completions: HashMap::new(),
            r2ts: Vec::new(),
            hold_r2ts: false,
            h2c_bytes: usize::MAX,
            term: None,
            successes: HashSet::new(),
        }
    }

    pub fn open_with(address: SocketAddr, hdgst: bool, ddgst: bool, hpda: u8) -> Self {
        let mut client = Self::raw(address);
        let mut out = [0; HEADER_BYTES_MAX];
        let request = IcReq::new(hpda, hdgst, ddgst, 15);
        let bytes = Encoder::ic_req(&mut out, &request).unwrap();
        client.stream.write_all(&out[..bytes]).unwrap();
        assert!(matches!(client.receive(), Got::Pdu), "an ICReq is answered");
        let mut config = *client.parser.config();
        config.has_header_digest = hdgst;
        config.has_data_digest = ddgst;
        config.data_alignment_bytes = (u32::from(hpda) + 1) * 4;
        client.parser.set_initialized(config);
        client.encoder =
            Encoder { has_header_digest: hdgst, has_data_digest: ddgst, data_alignment_bytes: 4 };
        client
    }

    /// Receives the answer to an `ICReq` that was sent without digests.
    pub fn expect_ic_resp(&mut self) {
        assert!(matches!(self.receive(), Got::Pdu), "an ICReq is answered");
        let config = *self.parser.config();
        self.parser.set_initialized(config);
    }

    /// Reserves the command identifiers below `next` for commands that the test sends itself.
    pub fn skip_command_ids(&mut self, next: u16) {
        self.next_cid = next;
    }

    /// Connects a queue pair.
    pub fn connect(
        &mut self,
        identity: &HostIdentity,
        subsystem: &Nqn,
        (qid, cntlid): (u16, ControllerId),
        (sq_entries, cattr, keep_alive_ms): (u32, u8, u32),
    ) -> Result<ConnectResult, (Status, u32)> {
        let connect = Connect { qid: QueueId(qid), sq_entries, cattr, keep_alive_ms };
        let data = ConnectData::new(identity.host, cntlid, subsystem, &identity.name);
        let sqe = connect.encode().unwrap();
        let (cqe, _) = self.command(sqe, Some((Transfer::InCapsule, data.bytes())), 0);
        if cqe.status().is_success() {
            Ok(ConnectResult::from_dword(cqe.dword0()))
        } else {
            Err((cqe.status(), cqe.dword0()))
        }
    }

    /// Connects an admin queue pair and enables the controller.
    pub fn admin(
        address: SocketAddr,
        identity: &HostIdentity,
        subsystem: &Nqn,
    ) -> (Self, ControllerId) {
        let mut client = Self::open(address);
        let result = client.connect(identity, subsystem, (0, ControllerId::DYNAMIC), (32, 0, 0));
        let id = result.unwrap().cntlid;
        client.enable();
        (client, id)
    }

    pub fn enable(&mut self) {
        let value = u64::from(Configuration::ENABLE.0);
        let set = PropertySet { offset: offset::CC, is_8_bytes: false, value };
        assert!(self.command(set.encode(), None, 0).0.status().is_success());
        assert_eq!(self.property(offset::CSTS, false) & 1, 1, "the controller is ready");
    }

    pub fn property(&mut self, offset: u32, is_8_bytes: bool) -> u64 {
        let get = PropertyGet { offset, is_8_bytes };
        let (cqe, _) = self.command(get.encode(), None, 0);
        assert!(cqe.status().is_success());
        cqe.result.get()
    }

    /// Sends a command and waits for its end. `expect` is the most data that may be returned.
    pub fn command(
        &mut self,
        sqe: SubmissionQueueEntry,
        data: Option<(Transfer, &[u8])>,
        expect: u32,
    ) -> (CompletionQueueEntry, Vec<u8>) {
        let cid = self.submit(sqe, data, expect);
        self.wait(cid)
    }

    /// Sends a command.
    pub fn submit(
        &mut self,
        sqe: SubmissionQueueEntry,
        data: Option<(Transfer, &[u8])>,
        expect: u32,
    ) -> u16 {
        let cid = self.next_cid;
        self.next_cid = self.next_cid.wrapping_add(1);
        let (sgl, capsule): (_, &[u8]) = match data {
            None => (SglDescriptor::transport(expect), &[]),
            Some((Transfer::InCapsule, data)) => {
                (SglDescriptor::in_capsule(0, data.len() as u32), data)
            }
            Some((Transfer::R2t, data)) => {
                self.outgoing.insert(cid, data.to_vec());
                (SglDescriptor::transport(data.len() as u32), &[])
            }
        };
        self.send(sqe.with_command_id(CommandId(cid)).with_sgl(sgl), capsule);
        cid
    }

    /// Sends the Connect of an admin queue, and other bytes with it.
    pub fn send_connect_with(&mut self, identity: &HostIdentity, subsystem: &Nqn, bytes: &[u8]) {
        let connect = Connect { qid: QueueId(0), sq_entries: 32, cattr: 0, keep_alive_ms: 0 };
        let data =
            ConnectData::new(identity.host, ControllerId::DYNAMIC, subsystem, &identity.name);
        let sgl = SglDescriptor::in_capsule(0, data.bytes().len() as u32);
        let sqe = connect.encode().unwrap().with_command_id(CommandId(0)).with_sgl(sgl);
        let mut out = [0; HEADER_BYTES_MAX];
        let header_bytes =
            self.encoder.capsule_cmd(&mut out, &sqe, data.bytes().len() as u32).unwrap();
        let pdu = [&out[..header_bytes], data.bytes(), bytes].concat();
        self.stream.write_all(&pdu).unwrap();
    }

    /// Sends a command whose descriptor is set already, and returns its completion.
    pub fn command_with_sgl(
        &mut self,
        sqe: SubmissionQueueEntry,
        capsule: &[u8],
    ) -> CompletionQueueEntry {
        let cid = self.next_cid;
        self.next_cid = self.next_cid.wrapping_add(1);
        self.send(sqe.with_command_id(CommandId(cid)), capsule);
        self.wait(cid).0
    }

    fn send(&mut self, sqe: SubmissionQueueEntry, capsule: &[u8]) {
        let mut out = [0; HEADER_BYTES_MAX];
        let bytes = self.encoder.capsule_cmd(&mut out, &sqe, capsule.len() as u32).unwrap();
        let mut pdu = out[..bytes].to_vec();
        self.append(&mut pdu, capsule);
        self.stream.write_all(&pdu).unwrap();
    }

    fn append(&self, pdu: &mut Vec<u8>, data: &[u8]) {
        pdu.extend_from_slice(data);
        if self.encoder.has_data_digest && !data.is_empty() {
            pdu.extend_from_slice(&crc32c(data).to_le_bytes());
        }
    }

    /// Waits for a command's end.
    pub fn wait(&mut self, cid: u16) -> (CompletionQueueEntry, Vec<u8>) {
        loop {
            if let Some(cqe) = self.completions.remove(&cid) {
                return (cqe, self.incoming.remove(&cid).unwrap_or_default());
            }
            match self.receive() {
                Got::Pdu => {}
                Got::Closed => panic!("closed while waiting for command {cid}: {:?}", self.term),
            }
        }
    }

    /// Returns whether a command has ended, without waiting for it.
    pub fn has_ended(&self, cid: u16) -> bool {
        self.completions.contains_key(&cid)
    }

    /// Receives until the peer closes. Returns false if it does not close in time.
    pub fn wait_closed(&mut self, timeout: Duration) -> bool {
        self.stream.set_read_timeout(Some(timeout)).unwrap();
        let start = std::time::Instant::now();
        while start.elapsed() < timeout {
            if matches!(self.receive(), Got::Closed) {
                return start.elapsed() < timeout;
            }
        }
        false
    }

    /// Processes all received PDUs without waiting for more.
    pub fn take_what_has_come(&mut self) {
        self.stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        while matches!(self.receive(), Got::Pdu) {}
        self.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    }

    /// Receives and processes one PDU.
    pub fn receive(&mut self) -> Got {
        loop {
            if let Some(bytes) = self.take_pdu() {
                self.received.drain(..bytes);
                return Got::Pdu;
            }
            let mut chunk = vec![0; 64 << 10];
            match self.stream.read(&mut chunk) {
                Ok(n) if n > 0 => {
                    self.received.extend_from_slice(&chunk[..n]);
                    self.log.extend_from_slice(&chunk[..n]);
                }
                // A ring that this thread has just dropped may interrupt it.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => return Got::Closed,
            }
        }
    }

    fn take_pdu(&mut self) -> Option<usize> {
        let received = std::mem::take(&mut self.received);
        let parsed = self.parser.parse(&received).expect("the controller sends valid PDUs");
        let taken = parsed.filter(|parsed| received.len() >= parsed.pdu_bytes).map(|parsed| {
            let end = parsed.data_offset + parsed.data_bytes;
            let data = &received[parsed.data_offset..end];
            if parsed.has_data_digest {
                let digest = &received[end..end + DIGEST_BYTES];
                assert_eq!(digest, crc32c(data).to_le_bytes(), "the data digest matches");
            }
            self.take_in(parsed.pdu, data);
            parsed.pdu_bytes
        });
        self.received = received;
        taken
    }

    fn take_in(&mut self, pdu: Pdu<'_>, bytes: &[u8]) {
        match pdu {
            Pdu::IcResp(_) => {}
            Pdu::CapsuleResp(response) => {
                let cqe = response.cqe;
                let old = self.completions.insert(cqe.cid.get(), cqe);
                assert!(old.is_none(), "a command ends once");
                self.outgoing.remove(&cqe.cid.get());
            }
            Pdu::C2hData(data) => {
                let cid = data.cccid.get();
                let all = self.incoming.entry(cid).or_default();
                assert_eq!(all.len(), data.datao.get() as usize, "data comes in order");
                all.extend_from_slice(bytes);
                if data.is_success() {
                    let cqe = CompletionQueueEntry::new(CommandId(cid), 0xffff, Status::SUCCESS);
                    self.completions.insert(cid, cqe);
                    self.successes.insert(cid);
                }
            }
            Pdu::R2t(r2t) => {
                let (cid, tag) = (r2t.cccid.get(), r2t.ttag.get());
                let (offset, length) = (r2t.r2to.get(), r2t.r2tl.get());
                if self.hold_r2ts {
                    self.r2ts.push((cid, tag, offset, length));
                } else {
                    self.answer_r2t(cid, tag, offset, length);
                }
            }
            Pdu::C2hTermReq(request) => self.term = Some(*request),
            other => panic!("a controller does not send {other:?}"),
        }
    }

    /// Sends the data that an R2T requested, cut into PDUs of `h2c_bytes`.
    pub fn answer_r2t(&mut self, cid: u16, tag: u16, offset: u32, length: u32) {
        let data = self.outgoing[&cid].clone();
        let (mut at, end) = (offset as usize, (offset + length) as usize);
        while at < end {
            let next = end.min(at.saturating_add(self.h2c_bytes));
            self.h2c_data(cid, tag, at as u32, &data[at..next], next == end);
            at = next;
        }
    }

    pub fn h2c_data(&mut self, cid: u16, tag: u16, offset: u32, data: &[u8], is_last: bool) {
        let mut out = [0; HEADER_BYTES_MAX];
        let (cid, tag) = (CommandId(cid), TransferTag(tag));
        let length = data.len() as u32;
        let bytes = self.encoder.h2c_data(&mut out, cid, tag, offset, length, is_last).unwrap();
        let mut pdu = out[..bytes].to_vec();
        self.append(&mut pdu, data);
        self.stream.write_all(&pdu).unwrap();
    }
}
