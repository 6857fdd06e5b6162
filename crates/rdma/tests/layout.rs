//! The structures of this crate have the layout of rdma-core's installed headers.

use rdma::abi::{
    self, IbvCompChannel, IbvContext, IbvContextOps, IbvDeviceAttr, IbvMr, IbvMw, IbvQpCap,
    IbvQpInitAttr, IbvRecvWr, IbvSendBindMw, IbvSendWr, IbvSge, IbvWc, RdmaAddr, RdmaCmEvent,
    RdmaCmId, RdmaConnParam, RdmaEventChannel,
};
use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

/// A size or offset, as a C expression and as this crate's value.
struct Fact {
    header: &'static str,
    expression: String,
    value: usize,
}

macro_rules! offsets {
    ($facts:ident, $header:literal, $($kind:ident $c:literal { $($field:ident = $member:literal,)* })*) => {
        $($($facts.push(Fact {
            header: $header,
            expression: format!("offsetof(struct {}, {})", $c, $member),
            value: offset_of!($kind, $field),
        });)*)*
    };
}

macro_rules! sizes {
    ($facts:ident, $header:literal, $($kind:ident = $c:literal,)*) => {
        $($facts.push(Fact {
            header: $header,
            expression: format!("sizeof(struct {})", $c),
            value: size_of::<$kind>(),
        });)*
    };
}

fn facts() -> Vec<Fact> {
    let mut facts = Vec::new();
    sizes!(
        facts,
        "infiniband/verbs.h",
        IbvContextOps = "ibv_context_ops",
        IbvMr = "ibv_mr",
        IbvMw = "ibv_mw",
        IbvSge = "ibv_sge",
        IbvSendWr = "ibv_send_wr",
        IbvRecvWr = "ibv_recv_wr",
        IbvWc = "ibv_wc",
        IbvQpCap = "ibv_qp_cap",
        IbvQpInitAttr = "ibv_qp_init_attr",
        IbvDeviceAttr = "ibv_device_attr",
    );
    sizes!(facts, "rdma/rdma_cma.h", RdmaAddr = "rdma_addr", RdmaConnParam = "rdma_conn_param",);
    offsets!(facts, "infiniband/verbs.h",
        IbvContext "ibv_context" { device = "device", ops = "ops", }
        IbvContextOps "ibv_context_ops" {
            alloc_mw = "alloc_mw", dealloc_mw = "dealloc_mw", poll_cq = "poll_cq", req_notify_cq = "req_notify_cq", post_send = "post_send",
            post_recv = "post_recv",
        }
        IbvCompChannel "ibv_comp_channel" { fd = "fd", }
        IbvMw "ibv_mw" { context = "context", rkey = "rkey", kind = "type", }
        IbvMr "ibv_mr" { lkey = "lkey", rkey = "rkey", }
        IbvSendWr "ibv_send_wr" {
            wr_id = "wr_id", next = "next", sg_list = "sg_list", num_sge = "num_sge",
            opcode = "opcode", send_flags = "send_flags", invalidate_rkey = "invalidate_rkey",
            remote_addr = "wr.rdma.remote_addr", rkey = "wr.rdma.rkey",
            bind_mw = "bind_mw",
        }
        IbvRecvWr "ibv_recv_wr" { next = "next", sg_list = "sg_list", num_sge = "num_sge", }
        IbvWc "ibv_wc" {
            status = "status", opcode = "opcode", byte_len = "byte_len", wc_flags = "wc_flags",
            path = "pkey_index",
        }
        IbvQpInitAttr "ibv_qp_init_attr" {
            send_cq = "send_cq", recv_cq = "recv_cq", srq = "srq", cap = "cap", qp_type = "qp_type",
            sq_sig_all = "sq_sig_all",
        }
        IbvDeviceAttr "ibv_device_attr" {
            device_cap_flags = "device_cap_flags", max_qp_rd_atom = "max_qp_rd_atom", max_qp = "max_qp", max_qp_wr = "max_qp_wr", max_cqe = "max_cqe",
            max_qp_init_rd_atom = "max_qp_init_rd_atom",
        }
    );
    facts.extend(window_members());
    offsets!(facts, "rdma/rdma_cma.h",
        RdmaEventChannel "rdma_event_channel" { fd = "fd", }
        RdmaAddr "rdma_addr" { src = "src_storage", dst = "dst_storage", }
        RdmaCmId "rdma_cm_id" { verbs = "verbs", qp = "qp", addr = "route.addr", }
        RdmaConnParam "rdma_conn_param" {
            private_data_len = "private_data_len", responder_resources = "responder_resources",
            initiator_depth = "initiator_depth", rnr_retry_count = "rnr_retry_count",
            qp_num = "qp_num",
        }
        RdmaCmEvent "rdma_cm_event" {
            id = "id", listen_id = "listen_id", event = "event", status = "status", conn = "param.conn",
        }
    );
    facts.extend(constants());
    facts
}

/// The members of an unnamed structure, whose offsets are those in the work request.
fn window_members() -> Vec<Fact> {
    let bind = offset_of!(IbvSendWr, bind_mw);
    [
        ("mw", offset_of!(IbvSendBindMw, mw)),
        ("rkey", offset_of!(IbvSendBindMw, rkey)),
        ("bind_info.mr", offset_of!(IbvSendBindMw, mr)),
        ("bind_info.addr", offset_of!(IbvSendBindMw, addr)),
        ("bind_info.length", offset_of!(IbvSendBindMw, length)),
        ("bind_info.mw_access_flags", offset_of!(IbvSendBindMw, mw_access_flags)),
    ]
    .map(|(member, value)| Fact {
        header: "infiniband/verbs.h",
        expression: format!("offsetof(struct ibv_send_wr, bind_mw.{member})"),
        value: bind + value,
    })
    .into()
}

/// The constants of memory windows, and of connecting.
fn constants() -> Vec<Fact> {
    let verbs = "infiniband/verbs.h";
    let cm = "rdma/rdma_cma.h";
    [
        (verbs, "IBV_WR_LOCAL_INV", abi::WR_LOCAL_INV as usize),
        (verbs, "IBV_WR_BIND_MW", abi::WR_BIND_MW as usize),
        (verbs, "IBV_ACCESS_REMOTE_WRITE", abi::ACCESS_REMOTE_WRITE as usize),
        (verbs, "IBV_ACCESS_REMOTE_READ", abi::ACCESS_REMOTE_READ as usize),
        (verbs, "IBV_ACCESS_MW_BIND", abi::ACCESS_MW_BIND as usize),
        (verbs, "IBV_MW_TYPE_2", abi::MW_TYPE_2 as usize),
        (verbs, "IBV_WC_WITH_INV", abi::WC_WITH_INV as usize),
        (verbs, "IBV_WC_IP_CSUM_OK", abi::WC_KERNEL_WITH_INV as usize),
        (
            verbs,
            "(IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)",
            abi::DEVICE_MEM_WINDOW_TYPE_2 as usize,
        ),
        (cm, "RDMA_CM_EVENT_ADDR_RESOLVED", abi::event::ADDR_RESOLVED as usize),
        (cm, "RDMA_CM_EVENT_ADDR_ERROR", abi::event::ADDR_ERROR as usize),
        (cm, "RDMA_CM_EVENT_ROUTE_RESOLVED", abi::event::ROUTE_RESOLVED as usize),
        (cm, "RDMA_CM_EVENT_ROUTE_ERROR", abi::event::ROUTE_ERROR as usize),
        (cm, "RDMA_CM_EVENT_CONNECT_ERROR", abi::event::CONNECT_ERROR as usize),
        (cm, "RDMA_CM_EVENT_UNREACHABLE", abi::event::UNREACHABLE as usize),
        (cm, "RDMA_CM_EVENT_REJECTED", abi::event::REJECTED as usize),
    ]
    .into_iter()
    .map(|(header, name, value)| Fact { header, expression: name.to_owned(), value })
    .collect()
}

/// Goal: every size and offset that the crate relies on is that of the installed headers. Without
/// headers or a C compiler only the crate's compile-time assertions check them.
#[test]
fn structures_are_those_of_the_headers() {
    let include =
        std::env::var("TSUMUGI_RDMA_INCLUDE").unwrap_or_else(|_| "/usr/include".to_owned());
    for header in ["infiniband/verbs.h", "rdma/rdma_cma.h"] {
        if !Path::new(&include).join(header).exists() {
            eprintln!("{header} is not installed: its structures are not compared");
            continue;
        }
        let of_header: Vec<Fact> =
            facts().into_iter().filter(|fact| fact.header == header).collect();
        let mut program = format!("#include <stddef.h>\n#include <{header}>\n");
        for Fact { expression, value, .. } in &of_header {
            writeln!(program, "_Static_assert({expression} == {value}, \"{expression}\");")
                .unwrap();
        }
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("layout.c");
        std::fs::write(&source, program).unwrap();
        let compiled = Command::new("cc")
            .args(["-std=gnu11", "-fsyntax-only", "-I", &include])
            .arg(&source)
            .output();
        let Ok(compiled) = compiled else {
            eprintln!("there is no C compiler: structures are not compared");
            return;
        };
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{} facts of {header}:\n{said}", of_header.len());
    }
}
