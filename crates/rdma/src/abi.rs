//! Structures of rdma-core that the library reads or writes, in the layout of its headers.
//!
//! Fields have the names of `infiniband/verbs.h` and `rdma/rdma_cma.h`. Structures that only the
//! library accesses are opaque; of others only the used head is declared. rdma-core has kept these
//! layouts since the symbol versions `IBVERBS_1.1` and `RDMACM_1.0`, because inline functions of
//! the headers are compiled into every program. `tests/layout.rs` compares sizes and offsets with
//! the installed headers.

use libc::{c_char, c_int, c_uint, c_void};

macro_rules! opaque {
    ($($(#[$meta:meta])* $name:ident,)*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Debug)]
            pub struct $name {
                _opaque: [u8; 0],
            }
        )*
    };
}

opaque! {
    /// `struct ibv_device`.
    IbvDevice,
    /// `struct ibv_pd`.
    IbvPd,
    /// `struct ibv_cq`.
    IbvCq,
    /// `struct ibv_qp`.
    IbvQp,
    /// `struct ibv_srq`.
    IbvSrq,
}

/// `ops.poll_cq`.
pub type PollCq = unsafe extern "C" fn(*mut IbvCq, c_int, *mut IbvWc) -> c_int;
/// `ops.req_notify_cq`.
pub type ReqNotifyCq = unsafe extern "C" fn(*mut IbvCq, c_int) -> c_int;
/// `ops.post_send`.
pub type PostSend = unsafe extern "C" fn(*mut IbvQp, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int;
/// `ops.post_recv`.
pub type PostRecv = unsafe extern "C" fn(*mut IbvQp, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int;

/// `ops.alloc_mw`.
pub type AllocMw = unsafe extern "C" fn(*mut IbvPd, c_int) -> *mut IbvMw;
/// `ops.dealloc_mw`.
pub type DeallocMw = unsafe extern "C" fn(*mut IbvMw) -> c_int;

/// `struct ibv_context_ops` (verbs.h): the functions behind `ibv_poll_cq`, `ibv_req_notify_cq`, `ibv_post_send` and
/// `ibv_post_recv`, which are inline functions of the header.
#[repr(C)]
#[derive(Debug)]
pub struct IbvContextOps {
    /// `_compat_query_device` to `_compat_dereg_mr`.
    _before_alloc_mw: [*const c_void; 7],
    /// `alloc_mw`.
    pub alloc_mw: Option<AllocMw>,
    /// `bind_mw`.
    _bind_mw: *const c_void,
    /// `dealloc_mw`.
    pub dealloc_mw: Option<DeallocMw>,
    /// `_compat_create_cq`.
    _before_poll_cq: *const c_void,
    /// `poll_cq`.
    pub poll_cq: PollCq,
    /// `req_notify_cq`.
    pub req_notify_cq: ReqNotifyCq,
    /// `_compat_cq_event` to `_compat_destroy_qp`.
    _before_post_send: [*const c_void; 12],
    /// `post_send`.
    pub post_send: PostSend,
    /// `post_recv`.
    pub post_recv: PostRecv,
    /// `_compat_create_ah` to `_compat_async_event`.
    _behind: [*const c_void; 5],
}

/// The head of `struct ibv_context` (verbs.h).
#[repr(C)]
#[derive(Debug)]
pub struct IbvContext {
    /// `device`.
    pub device: *mut IbvDevice,
    /// `ops`.
    pub ops: IbvContextOps,
}

/// The head of `struct ibv_comp_channel` (verbs.h).
#[repr(C)]
#[derive(Debug)]
pub struct IbvCompChannel {
    /// `context`.
    pub context: *mut IbvContext,
    /// `fd`.
    pub fd: c_int,
}

/// `struct ibv_mr` (verbs.h).
#[repr(C)]
#[derive(Debug)]
pub struct IbvMr {
    /// `context`.
    pub context: *mut IbvContext,
    /// `pd`.
    pub pd: *mut IbvPd,
    /// `addr`.
    pub addr: *mut c_void,
    /// `length`.
    pub length: usize,
    /// `handle`.
    pub handle: u32,
    /// `lkey`.
    pub lkey: u32,
    /// `rkey`.
    pub rkey: u32,
}

/// `struct ibv_mw` (verbs.h).
#[repr(C)]
#[derive(Debug)]
pub struct IbvMw {
    /// `context`.
    pub context: *mut IbvContext,
    /// `pd`.
    pub pd: *mut IbvPd,
    /// `rkey`.
    pub rkey: u32,
    /// `handle`.
    pub handle: u32,
    /// `type`.
    pub kind: c_int,
}

/// The member `bind_mw` of `struct ibv_send_wr` (verbs.h), with its `bind_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IbvSendBindMw {
    /// `mw`.
    pub mw: *mut IbvMw,
    /// `rkey`.
    pub rkey: u32,
    /// `bind_info.mr`.
    pub mr: *mut IbvMr,
    /// `bind_info.addr`.
    pub addr: u64,
    /// `bind_info.length`.
    pub length: u64,
    /// `bind_info.mw_access_flags`.
    pub mw_access_flags: c_uint,
}

/// `struct ibv_sge` (verbs.h).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct IbvSge {
    /// `addr`.
    pub addr: u64,
    /// `length`.
    pub length: u32,
    /// `lkey`.
    pub lkey: u32,
}

/// `struct ibv_send_wr` (verbs.h), with the union `wr` as its member `rdma`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IbvSendWr {
    /// `wr_id`.
    pub wr_id: u64,
    /// `next`.
    pub next: *mut IbvSendWr,
    /// `sg_list`.
    pub sg_list: *mut IbvSge,
    /// `num_sge`.
    pub num_sge: c_int,
    /// `opcode`.
    pub opcode: c_int,
    /// `send_flags`.
    pub send_flags: c_uint,
    /// `invalidate_rkey`.
    pub invalidate_rkey: u32,
    /// `wr.rdma.remote_addr`.
    pub remote_addr: u64,
    /// `wr.rdma.rkey`.
    pub rkey: u32,
    /// The rest of `wr` (its largest member is `atomic`) and `qp_type`.
    _rest: [u64; 3],
    /// `bind_mw`.
    pub bind_mw: IbvSendBindMw,
}

impl IbvSendWr {
    /// Returns a work request without addresses and list.
    pub fn new(wr_id: u64, opcode: c_int, send_flags: c_uint) -> Self {
        Self {
            wr_id,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
            opcode,
            send_flags,
            invalidate_rkey: 0,
            remote_addr: 0,
            rkey: 0,
            _rest: [0; 3],
            bind_mw: IbvSendBindMw {
                mw: std::ptr::null_mut(),
                rkey: 0,
                mr: std::ptr::null_mut(),
                addr: 0,
                length: 0,
                mw_access_flags: 0,
            },
        }
    }
}

/// `struct ibv_recv_wr` (verbs.h).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IbvRecvWr {
    /// `wr_id`.
    pub wr_id: u64,
    /// `next`.
    pub next: *mut IbvRecvWr,
    /// `sg_list`.
    pub sg_list: *mut IbvSge,
    /// `num_sge`.
    pub num_sge: c_int,
}

/// `struct ibv_wc` (verbs.h).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct IbvWc {
    /// `wr_id`.
    pub wr_id: u64,
    /// `status`.
    pub status: c_int,
    /// `opcode`.
    pub opcode: c_int,
    /// `vendor_err`.
    pub vendor_err: u32,
    /// `byte_len`.
    pub byte_len: u32,
    /// `imm_data` or `invalidated_rkey`.
    pub invalidated_rkey: u32,
    /// `qp_num`.
    pub qp_num: u32,
    /// `src_qp`.
    pub src_qp: u32,
    /// `wc_flags`.
    pub wc_flags: c_uint,
    /// `pkey_index`, `slid`, `sl` and `dlid_path_bits`.
    pub path: [u16; 3],
}

/// `struct ibv_qp_cap` (verbs.h).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct IbvQpCap {
    /// `max_send_wr`.
    pub max_send_wr: u32,
    /// `max_recv_wr`.
    pub max_recv_wr: u32,
    /// `max_send_sge`.
    pub max_send_sge: u32,
    /// `max_recv_sge`.
    pub max_recv_sge: u32,
    /// `max_inline_data`.
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr` (verbs.h).
#[repr(C)]
#[derive(Debug)]
pub struct IbvQpInitAttr {
    /// `qp_context`.
    pub qp_context: *mut c_void,
    /// `send_cq`.
    pub send_cq: *mut IbvCq,
    /// `recv_cq`.
    pub recv_cq: *mut IbvCq,
    /// `srq`.
    pub srq: *mut IbvSrq,
    /// `cap`.
    pub cap: IbvQpCap,
    /// `qp_type`.
    pub qp_type: c_int,
    /// `sq_sig_all`.
    pub sq_sig_all: c_int,
}

/// `struct ibv_device_attr` (verbs.h).
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct IbvDeviceAttr {
    _before_qp: [u32; 27],
    /// `max_qp`.
    pub max_qp: c_int,
    /// `max_qp_wr`.
    pub max_qp_wr: c_int,
    /// `device_cap_flags`.
    pub device_cap_flags: c_uint,
    /// `max_sge`.
    pub max_sge: c_int,
    /// `max_sge_rd`.
    pub max_sge_rd: c_int,
    /// `max_cq`.
    pub max_cq: c_int,
    /// `max_cqe`.
    pub max_cqe: c_int,
    /// `max_mr`.
    pub max_mr: c_int,
    /// `max_pd`.
    pub max_pd: c_int,
    /// `max_qp_rd_atom`.
    pub max_qp_rd_atom: c_int,
    /// `max_ee_rd_atom`.
    pub max_ee_rd_atom: c_int,
    /// `max_res_rd_atom`.
    pub max_res_rd_atom: c_int,
    /// `max_qp_init_rd_atom`.
    pub max_qp_init_rd_atom: c_int,
    _behind: [u32; 18],
}

impl IbvDeviceAttr {
    /// Returns a structure for `ibv_query_device` to fill.
    pub(crate) fn zeroed() -> Self {
        // SAFETY: it consists of integers.
        unsafe { std::mem::zeroed() }
    }
}

/// The head of `struct rdma_event_channel` (`rdma_cma.h`).
#[repr(C)]
#[derive(Debug)]
pub struct RdmaEventChannel {
    /// `fd`.
    pub fd: c_int,
}

/// `struct rdma_addr` (`rdma_cma.h`); only the size of the union `addr` matters.
#[repr(C)]
#[derive(Debug)]
pub struct RdmaAddr {
    /// `src_storage`.
    pub src: libc::sockaddr_storage,
    /// `dst_storage`.
    pub dst: libc::sockaddr_storage,
    _ib: [u64; 5],
}

/// The head of `struct rdma_cm_id` (`rdma_cma.h`), up to `route.addr`.
#[repr(C)]
#[derive(Debug)]
pub struct RdmaCmId {
    /// `verbs`.
    pub verbs: *mut IbvContext,
    /// `channel`.
    pub channel: *mut RdmaEventChannel,
    /// `context`.
    pub context: *mut c_void,
    /// `qp`.
    pub qp: *mut IbvQp,
    /// `route.addr`.
    pub addr: RdmaAddr,
}

/// `struct rdma_conn_param` (`rdma_cma.h`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RdmaConnParam {
    /// `private_data`.
    pub private_data: *const c_void,
    /// `private_data_len`.
    pub private_data_len: u8,
    /// `responder_resources`.
    pub responder_resources: u8,
    /// `initiator_depth`.
    pub initiator_depth: u8,
    /// `flow_control`.
    pub flow_control: u8,
    /// `retry_count`.
    pub retry_count: u8,
    /// `rnr_retry_count`.
    pub rnr_retry_count: u8,
    /// `srq`.
    pub srq: u8,
    /// `qp_num`.
    pub qp_num: u32,
}

/// `struct rdma_cm_event` (`rdma_cma.h`), with the union `param` as its member `conn`.
#[repr(C)]
#[derive(Debug)]
pub struct RdmaCmEvent {
    /// `id`.
    pub id: *mut RdmaCmId,
    /// `listen_id`.
    pub listen_id: *mut RdmaCmId,
    /// `event`.
    pub event: c_int,
    /// `status`.
    pub status: c_int,
    /// `param.conn`.
    pub conn: RdmaConnParam,
}

/// Text that belongs to a library.
pub type Text = *const c_char;

/// `RDMA_PS_TCP`.
pub const PS_TCP: c_int = 0x0106;
/// `IBV_QPT_RC`.
pub const QPT_RC: c_int = 2;
/// `IBV_ACCESS_LOCAL_WRITE`.
pub const ACCESS_LOCAL_WRITE: c_int = 1;
/// `IBV_ACCESS_REMOTE_WRITE`.
pub const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
/// `IBV_ACCESS_REMOTE_READ`.
pub const ACCESS_REMOTE_READ: c_int = 1 << 2;
/// `IBV_ACCESS_MW_BIND`.
pub const ACCESS_MW_BIND: c_int = 1 << 4;
/// `IBV_DEVICE_MEM_WINDOW_TYPE_2A` and `IBV_DEVICE_MEM_WINDOW_TYPE_2B`.
pub const DEVICE_MEM_WINDOW_TYPE_2: c_uint = 3 << 23;
/// `IBV_MW_TYPE_2`.
pub const MW_TYPE_2: c_int = 2;
/// `IBV_SEND_SIGNALED`.
pub const SEND_SIGNALED: c_uint = 2;
/// `IBV_WR_RDMA_WRITE`.
pub const WR_RDMA_WRITE: c_int = 0;
/// `IBV_WR_SEND`.
pub const WR_SEND: c_int = 2;
/// `IBV_WR_RDMA_READ`.
pub const WR_RDMA_READ: c_int = 4;
/// `IBV_WR_LOCAL_INV`.
pub const WR_LOCAL_INV: c_int = 7;
/// `IBV_WR_BIND_MW`.
pub const WR_BIND_MW: c_int = 8;
/// `IBV_WR_SEND_WITH_INV`.
pub const WR_SEND_WITH_INV: c_int = 9;
/// `IBV_WC_SUCCESS`.
pub const WC_SUCCESS: c_int = 0;
/// `IBV_WC_WR_FLUSH_ERR`.
pub const WC_WR_FLUSH_ERR: c_int = 5;
/// `IBV_WC_RECV`.
pub const WC_RECV: c_int = 128;
/// `IB_WC_WITH_INVALIDATE` of the kernel (`ib_verbs.h`), which verbs.h calls `IBV_WC_IP_CSUM_OK`.
pub const WC_KERNEL_WITH_INV: c_uint = 1 << 2;
/// `IBV_WC_WITH_INV`.
pub const WC_WITH_INV: c_uint = 1 << 3;

/// `enum rdma_cm_event_type`.
pub mod event {
    use libc::c_int;
    /// `RDMA_CM_EVENT_ADDR_RESOLVED`.
    pub const ADDR_RESOLVED: c_int = 0;
    /// `RDMA_CM_EVENT_ADDR_ERROR`.
    pub const ADDR_ERROR: c_int = 1;
    /// `RDMA_CM_EVENT_ROUTE_RESOLVED`.
    pub const ROUTE_RESOLVED: c_int = 2;
    /// `RDMA_CM_EVENT_ROUTE_ERROR`.
    pub const ROUTE_ERROR: c_int = 3;
    /// `RDMA_CM_EVENT_CONNECT_REQUEST`.
    pub const CONNECT_REQUEST: c_int = 4;
    /// `RDMA_CM_EVENT_CONNECT_ERROR`.
    pub const CONNECT_ERROR: c_int = 6;
    /// `RDMA_CM_EVENT_UNREACHABLE`.
    pub const UNREACHABLE: c_int = 7;
    /// `RDMA_CM_EVENT_REJECTED`.
    pub const REJECTED: c_int = 8;
    /// `RDMA_CM_EVENT_ESTABLISHED`.
    pub const ESTABLISHED: c_int = 9;
    /// `RDMA_CM_EVENT_DEVICE_REMOVAL`.
    pub const DEVICE_REMOVAL: c_int = 11;
    /// `RDMA_CM_EVENT_ADDR_CHANGE`.
    pub const ADDR_CHANGE: c_int = 14;
    /// `RDMA_CM_EVENT_TIMEWAIT_EXIT`.
    pub const TIMEWAIT_EXIT: c_int = 15;
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(offset_of!(IbvContext, ops) == 8 && size_of::<IbvContextOps>() == 32 * 8);
    assert!(offset_of!(IbvContextOps, alloc_mw) == 7 * 8);
    assert!(offset_of!(IbvContextOps, poll_cq) == 11 * 8);
    assert!(offset_of!(IbvContextOps, post_send) == 25 * 8);
    assert!(size_of::<IbvSendWr>() == 128 && size_of::<IbvRecvWr>() == 32);
    assert!(offset_of!(IbvSendWr, bind_mw) == 80 && size_of::<IbvMw>() == 32);
    assert!(size_of::<IbvWc>() == 48 && size_of::<IbvQpInitAttr>() == 64);
    assert!(size_of::<IbvDeviceAttr>() == 232 && size_of::<RdmaConnParam>() == 24);
    assert!(size_of::<RdmaAddr>() == 296 && offset_of!(RdmaCmId, addr) == 32);
};
