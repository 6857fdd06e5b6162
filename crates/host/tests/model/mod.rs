//! A small target for tests: a state machine without I/O that answers a host's bytes. Its knobs set
//! everything that a target may choose: R2T or in-capsule data, sizes of PDUs, order, SUCCESS flag.
#![allow(
    dead_code,
    unreachable_pub,
    missing_debug_implementations,
    reason = "each test program uses a part"
)]
#![allow(
    clippy::unwrap_used,
    clippy::needless_pass_by_value,
    clippy::field_reassign_with_default,
    clippy::wildcard_imports,
    reason = "a fault of the model shall stop the test"
)]
mod admin;

use nvme::command::{
    DatasetManagement, DsmRange, Feature, GetLogPage, Identify, ReadWrite, SetFeatures,
};
use nvme::fabrics::{Connect, ConnectResult, PropertyGet, PropertySet};
use nvme::feature::{QueueCounts, fid};
use nvme::identify::{
    IdentifyController, IdentifyNamespace, NamespaceDescriptor, NamespaceList, cns,
};
use nvme::log_page::{
    DISCOVERY_HEADER_BYTES, DiscoveryEntry, DiscoveryHeader, lid, subsystem_type,
};
use nvme::opcode::{AdminOpcode, FabricsType, NvmOpcode};
use nvme::property::{Capabilities, Configuration, ControllerStatus, Version, offset};
use nvme::sgl::Sgl;
use nvme::tcp::{DataDigest, Encoder, IcResp, Parser, ParserConfig, Pdu, Receiver};
use nvme::*;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

pub const BLOCK_SHIFT: u32 = 9;

/// The choices of a target.
#[derive(Clone, Debug)]
pub struct Knobs {
    pub has_header_digest: bool,
    pub has_data_digest: bool,
    pub in_capsule_bytes: u32,
    pub maxh2cdata_bytes: u32,
    pub r2t_bytes: u32,
    pub c2h_bytes: u32,
    pub uses_success: bool,
    pub mdts: u8,
    pub maxcmd: u16,
    pub cpda: u8,
    /// The number of answers to hold before they are sent, in reverse order.
    pub hold: usize,
}

impl Default for Knobs {
    fn default() -> Self {
        Self {
            has_header_digest: false,
            has_data_digest: false,
            in_capsule_bytes: 8192,
            maxh2cdata_bytes: 131_072,
            r2t_bytes: 131_072,
            c2h_bytes: 131_072,
            uses_success: true,
            mdts: 5,
            maxcmd: 0,
            cpda: 0,
            hold: 0,
        }
    }
}

/// The state that connections share.
pub struct Shared {
    pub knobs: Knobs,
    pub memory: RefCell<Vec<u8>>,
    pub incarnation: Cell<u128>,
    pub generation: Cell<u64>,
    pub entries: RefCell<Vec<DiscoveryEntry>>,
    /// The opcode of commands that get no answer.
    pub blackhole: Cell<Option<u8>>,
    /// The dword that completes the outstanding Asynchronous Event Request.
    pub event: Cell<Option<u32>>,
    /// The status of the next I/O command.
    pub status: Cell<Option<Status>>,
    pub commands: Cell<u64>,
    pub flushes: Cell<u64>,
}

impl Shared {
    pub fn new(knobs: Knobs, bytes: usize) -> Rc<Self> {
        Rc::new(Self {
            knobs,
            memory: RefCell::new(vec![0; bytes]),
            incarnation: Cell::new(1),
            generation: Cell::new(1),
            entries: RefCell::default(),
            blackhole: Cell::new(None),
            event: Cell::new(None),
            status: Cell::new(None),
            commands: Cell::new(0),
            flushes: Cell::new(0),
        })
    }

    pub fn add_entry(&self, nqn: &str, address: std::net::SocketAddr) {
        let nqn = Nqn::new(nqn).unwrap();
        let entry = DiscoveryEntry::tcp(&nqn, subsystem_type::NVM, address, 1);
        self.entries.borrow_mut().push(entry);
        self.generation.set(self.generation.get() + 1);
    }
}

struct Write {
    sqe: SubmissionQueueEntry,
    data: Vec<u8>,
    have: usize,
    asked: usize,
}

/// The target's side of one connection.
pub struct Model {
    shared: Rc<Shared>,
    parser: Parser,
    encoder: Encoder,
    pending: Vec<u8>,
    out: Vec<u8>,
    held: Vec<Vec<u8>>,
    writes: Vec<Option<Write>>,
    aer: Option<CommandId>,
    is_io: bool,
    cc: u32,
}

impl Model {
    pub fn new(shared: &Rc<Shared>) -> Self {
        Self {
            shared: Rc::clone(shared),
            parser: Parser::new(config(&shared.knobs, false, false)),
            encoder: Encoder::INITIAL,
            pending: Vec::new(),
            out: Vec::new(),
            held: Vec::new(),
            writes: Vec::new(),
            aer: None,
            is_io: false,
            cc: 0,
        }
    }

    /// Makes this an initialized I/O connection, for tests without Connect.
    pub fn set_io(&mut self) {
        self.is_io = true;
    }

    /// Takes bytes of the host. Panics if they violate the protocol, because the host is under
    /// test.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        let pending = std::mem::take(&mut self.pending);
        let mut rest: &[u8] = &pending;
        while let Some(parsed) = self.parser.parse(rest).expect("the host's PDU is valid") {
            if rest.len() < parsed.pdu_bytes {
                break;
            }
            let data = &rest[parsed.data_offset..parsed.data_offset + parsed.data_bytes];
            if parsed.has_data_digest {
                let at = parsed.data_offset + parsed.data_bytes;
                let mut digest = DataDigest::new();
                digest.update(data);
                assert!(digest.matches(rest[at..at + 4].try_into().unwrap()), "data digest");
            }
            let data = data.to_vec();
            match parsed.pdu {
                Pdu::IcReq(request) => {
                    let knobs = self.shared.knobs.clone();
                    let header = knobs.has_header_digest && request.has_header_digest();
                    let digest = knobs.has_data_digest && request.has_data_digest();
                    let response = IcResp::new(knobs.cpda, header, digest, knobs.maxh2cdata_bytes);
                    self.out.extend_from_slice(response.bytes());
                    self.parser.set_initialized(config(&knobs, header, digest));
                    self.encoder = Encoder {
                        has_header_digest: header,
                        has_data_digest: digest,
                        data_alignment_bytes: 4,
                    };
                }
                Pdu::CapsuleCmd(capsule) => {
                    let sqe = capsule.sqe;
                    self.command(sqe, data);
                }
                Pdu::H2cData(h2c) => {
                    let (tag, at, last) = (h2c.ttag.get(), h2c.datao.get() as usize, h2c.is_last());
                    self.h2c(tag, h2c.command_id(), at, &data, last);
                }
                Pdu::H2cTermReq(request) => {
                    panic!("terminated by the host: {:?}", request.status())
                }
                other => panic!("unexpected {other:?}"),
            }
            rest = &rest[parsed.pdu_bytes..];
        }
        self.pending = rest.to_vec();
    }

    /// Takes the output.
    pub fn output(&mut self) -> Vec<u8> {
        if let (Some(dword), Some(cid)) = (self.shared.event.get(), self.aer) {
            self.shared.event.set(None);
            self.aer = None;
            let cqe = CompletionQueueEntry::new(cid, 0, Status::SUCCESS).with_dword0(dword);
            self.respond(&cqe);
        }
        if self.held.len() >= self.shared.knobs.hold.max(1) {
            self.release();
        }
        std::mem::take(&mut self.out)
    }

    /// Sends all held answers.
    pub fn release(&mut self) {
        for answer in self.held.drain(..).rev() {
            self.out.extend_from_slice(&answer);
        }
    }

    fn h2c(&mut self, tag: u16, cid: CommandId, at: usize, data: &[u8], last: bool) {
        let write = self.writes[usize::from(tag)].as_mut().expect("H2CData names a transfer");
        assert_eq!(write.sqe.command_id(), cid);
        assert_eq!(at, write.have, "data in order");
        assert!(data.len() as u32 <= self.shared.knobs.maxh2cdata_bytes);
        write.data[at..at + data.len()].copy_from_slice(data);
        write.have += data.len();
        assert!(write.have <= write.asked);
        assert_eq!(last, write.have == write.asked, "LAST_PDU ends an R2T");
        if !last {
            return;
        }
        if write.have == write.data.len() {
            let write = self.writes[usize::from(tag)].take().unwrap();
            self.execute(write.sqe, write.data);
        } else {
            self.ask(tag);
        }
    }

    fn ask(&mut self, tag: u16) {
        let r2t_bytes = self.shared.knobs.r2t_bytes as usize;
        let write = self.writes[usize::from(tag)].as_mut().unwrap();
        let len = (write.data.len() - write.asked).min(r2t_bytes);
        let (cid, at) = (write.sqe.command_id(), write.asked as u32);
        write.asked += len;
        let mut header = [0; 256];
        let n = self.encoder.r2t(&mut header, cid, TransferTag(tag), at, len as u32).unwrap();
        self.out.extend_from_slice(&header[..n]);
    }

    fn command(&mut self, sqe: SubmissionQueueEntry, data: Vec<u8>) {
        self.shared.commands.set(self.shared.commands.get() + 1);
        if self.is_io && self.shared.blackhole.get() == Some(sqe.opc) {
            return;
        }
        let wants_data = sqe.data_direction() == nvme::opcode::DataDirection::HostToController;
        match sqe.sgl1.decode().unwrap() {
            Sgl::InCapsule { offset_bytes, length_bytes } => {
                assert_eq!(offset_bytes, 0);
                assert_eq!(length_bytes as usize, data.len());
                self.execute(sqe, data);
            }
            Sgl::Transport { length_bytes } if wants_data => {
                let write = Write { sqe, data: vec![0; length_bytes as usize], have: 0, asked: 0 };
                let tag = self.writes.iter().position(Option::is_none).unwrap_or(self.writes.len());
                if tag == self.writes.len() {
                    self.writes.push(None);
                }
                self.writes[tag] = Some(write);
                self.ask(tag as u16);
            }
            Sgl::Transport { .. } | Sgl::None => self.execute(sqe, data),
        }
    }

    fn execute(&mut self, sqe: SubmissionQueueEntry, data: Vec<u8>) {
        if sqe.is_fabrics() {
            self.fabrics(&sqe, &data);
        } else if self.is_io {
            self.io(&sqe, &data);
        } else {
            self.admin(&sqe);
        }
    }

    fn io(&mut self, sqe: &SubmissionQueueEntry, data: &[u8]) {
        let cid = sqe.command_id();
        if let Some(status) = self.shared.status.take() {
            return self.respond(&CompletionQueueEntry::new(cid, 0, status));
        }
        let ok = CompletionQueueEntry::new(cid, 0, Status::SUCCESS);
        let range = |start: u64, blocks: u64| {
            (start << BLOCK_SHIFT) as usize..((start + blocks) << BLOCK_SHIFT) as usize
        };
        let fields = ReadWrite::decode(sqe);
        let place = range(fields.start_lba, u64::from(fields.blocks));
        match sqe.nvm_opcode() {
            NvmOpcode::READ => {
                let bytes = self.shared.memory.borrow()[place].to_vec();
                self.respond_data(cid, &bytes);
            }
            NvmOpcode::WRITE => {
                self.shared.memory.borrow_mut()[place].copy_from_slice(data);
                self.respond(&ok);
            }
            NvmOpcode::WRITE_ZEROES => {
                self.shared.memory.borrow_mut()[place].fill(0);
                self.respond(&ok);
            }
            NvmOpcode::DATASET_MANAGEMENT => {
                let count = usize::from(DatasetManagement::decode(sqe).ranges);
                for dsm in &DsmRange::list(data)[..count] {
                    let place = range(dsm.slba.get(), u64::from(dsm.nlb.get()));
                    self.shared.memory.borrow_mut()[place].fill(0);
                }
                self.respond(&ok);
            }
            NvmOpcode::FLUSH => {
                self.shared.flushes.set(self.shared.flushes.get() + 1);
                self.respond(&ok);
            }
            other => panic!("{other:?}"),
        }
    }

    fn respond(&mut self, cqe: &CompletionQueueEntry) {
        let mut header = [0; 256];
        let n = self.encoder.capsule_resp(&mut header, cqe).unwrap();
        self.answer(header[..n].to_vec());
    }

    fn respond_data(&mut self, cid: CommandId, data: &[u8]) {
        let mut answer = Vec::new();
        let mut at = 0;
        let uses_success = self.shared.knobs.uses_success;
        for piece in data.chunks(self.shared.knobs.c2h_bytes as usize) {
            let is_last = at + piece.len() == data.len();
            let mut header = [0; 256];
            let n = self
                .encoder
                .c2h_data(
                    &mut header,
                    cid,
                    at as u32,
                    piece.len() as u32,
                    is_last,
                    is_last && uses_success,
                )
                .unwrap();
            answer.extend_from_slice(&header[..n]);
            answer.extend_from_slice(piece);
            if self.encoder.has_data_digest {
                let mut digest = DataDigest::new();
                digest.update(piece);
                answer.extend_from_slice(&digest.to_wire());
            }
            at += piece.len();
        }
        if !uses_success {
            let cqe = CompletionQueueEntry::new(cid, 0, Status::SUCCESS);
            let mut header = [0; 256];
            let n = self.encoder.capsule_resp(&mut header, &cqe).unwrap();
            answer.extend_from_slice(&header[..n]);
        }
        self.answer(answer);
    }

    fn answer(&mut self, answer: Vec<u8>) {
        if self.is_io && self.shared.knobs.hold > 1 {
            self.held.push(answer);
        } else {
            self.out.extend_from_slice(&answer);
        }
    }
}

fn config(knobs: &Knobs, has_header_digest: bool, has_data_digest: bool) -> ParserConfig {
    ParserConfig {
        receiver: Receiver::Controller,
        has_header_digest,
        has_data_digest,
        data_alignment_bytes: (u32::from(knobs.cpda) + 1) * 4,
        in_capsule_data_bytes_max: 8192,
        data_bytes_max: knobs.maxh2cdata_bytes,
    }
}
