//! The model's answers to fabrics and admin commands.

use super::*;

impl Model {
    pub(super) fn fabrics(&mut self, sqe: &SubmissionQueueEntry, data: &[u8]) {
        let cid = sqe.command_id();
        let mut cqe = CompletionQueueEntry::new(cid, 0, Status::SUCCESS);
        match sqe.fabrics_type() {
            FabricsType::CONNECT => {
                assert_eq!(data.len(), 1024);
                self.is_io = !Connect::decode(sqe).unwrap().qid.is_admin();
                let result = ConnectResult { cntlid: ControllerId(1), ..Default::default() };
                cqe = cqe.with_dword0(result.to_dword());
            }
            FabricsType::PROPERTY_GET => {
                let get = PropertyGet::decode(sqe).unwrap();
                let shn = Configuration(self.cc).shn();
                let csts = ControllerStatus(0).with_rdy(self.cc & 1);
                let csts = if shn == 0 { csts } else { csts.with_shst(2) };
                cqe = cqe.with_result(match get.offset {
                    offset::CAP => Capabilities(0).with_mqes(127).with_to(4).with_css(1).0,
                    offset::VS => u64::from(Version::V2_0.0),
                    offset::CC => u64::from(self.cc),
                    offset::CSTS => u64::from(csts.0),
                    other => panic!("property {other:#x}"),
                });
            }
            FabricsType::PROPERTY_SET => {
                self.cc = PropertySet::decode(sqe).unwrap().value as u32;
            }
            other => panic!("{other:?}"),
        }
        self.respond(&cqe);
    }

    pub(super) fn admin(&mut self, sqe: &SubmissionQueueEntry) {
        let cid = sqe.command_id();
        let ok = CompletionQueueEntry::new(cid, 0, Status::SUCCESS);
        match sqe.admin_opcode() {
            AdminOpcode::IDENTIFY => match self.identify(sqe) {
                Ok(data) => self.respond_data(cid, &data),
                Err(status) => self.respond(&CompletionQueueEntry::new(cid, 0, status)),
            },
            AdminOpcode::SET_FEATURES => {
                let set = SetFeatures::decode(sqe);
                let dword = match set.fid {
                    fid::NUMBER_OF_QUEUES => QueueCounts::pairs(4).to_dword(),
                    _ => 0,
                };
                self.respond(&ok.with_dword0(dword));
            }
            AdminOpcode::GET_FEATURES => {
                Feature::decode(sqe).unwrap();
                self.respond(&ok);
            }
            AdminOpcode::KEEP_ALIVE => self.respond(&ok),
            AdminOpcode::ASYNC_EVENT_REQUEST => self.aer = Some(cid),
            AdminOpcode::GET_LOG_PAGE => {
                let get = GetLogPage::decode(sqe);
                let mut page = self.log_page(get.lid);
                page.resize((get.offset + get.data_bytes()) as usize + page.len(), 0);
                let data = &page[get.offset as usize..(get.offset + get.data_bytes()) as usize];
                self.respond_data(cid, data);
            }
            other => panic!("{other:?}"),
        }
    }

    fn log_page(&self, page: u8) -> Vec<u8> {
        match page {
            lid::DISCOVERY => {
                let entries = self.shared.entries.borrow();
                let mut header = DiscoveryHeader::default();
                header.genctr = U64::new(self.shared.generation.get());
                header.numrec = U64::new(entries.len() as u64);
                let mut bytes = header.bytes().to_vec();
                assert_eq!(bytes.len(), DISCOVERY_HEADER_BYTES);
                entries.iter().for_each(|entry| bytes.extend_from_slice(entry.bytes()));
                bytes
            }
            lid::CHANGED_NAMESPACES => NamespaceList::new(Nsid(0), [Nsid(1)]).bytes().to_vec(),
            _ => vec![0; 512],
        }
    }

    fn identify(&self, sqe: &SubmissionQueueEntry) -> Result<Vec<u8>, Status> {
        let knobs = &self.shared.knobs;
        match Identify::decode(sqe).cns {
            cns::CONTROLLER => {
                let mut data = IdentifyController::default();
                data.set_serial("MODEL");
                data.mdts = knobs.mdts;
                data.maxcmd = U16::new(knobs.maxcmd);
                data.ioccsz = U32::new((64 + knobs.in_capsule_bytes) / 16);
                data.oncs = U16::new(
                    IdentifyController::ONCS_WRITE_ZEROES
                        | IdentifyController::ONCS_DATASET_MANAGEMENT,
                );
                data.oaes = U32::new(1 << 8 | 1 << 31);
                data.vwc = IdentifyController::VWC_PRESENT;
                Ok(data.bytes().to_vec())
            }
            cns::ACTIVE_NAMESPACES => {
                Ok(NamespaceList::new(sqe.namespace_id(), [Nsid(1)]).bytes().to_vec())
            }
            _ if sqe.namespace_id() != Nsid(1) => Err(Status::INVALID_NAMESPACE.do_not_retry()),
            cns::NAMESPACE => {
                let blocks = self.shared.memory.borrow().len() as u64 >> BLOCK_SHIFT;
                let mut data = IdentifyNamespace::new(blocks, BLOCK_SHIFT as u8).unwrap();
                data.dlfeat = 1;
                data.set_incarnation(self.shared.incarnation.get());
                Ok(data.bytes().to_vec())
            }
            cns::NAMESPACE_DESCRIPTORS => {
                let mut out = [0; 4096];
                nvme::identify::NamespaceDescriptorWriter::new(&mut out)
                    .push(&NamespaceDescriptor::Uuid([7; 16]))
                    .unwrap();
                Ok(out.to_vec())
            }
            other => panic!("Identify {other:#x}"),
        }
    }
}
