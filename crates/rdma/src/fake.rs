//! Fake libraries with this test as the adapter: posted requests are recorded, and complete when
//! the test decides.

use crate::abi::{
    DEVICE_MEM_WINDOW_TYPE_2, IbvCompChannel, IbvContext, IbvCq, IbvDevice, IbvDeviceAttr, IbvMr,
    IbvMw, IbvPd, IbvQp, IbvQpInitAttr, IbvRecvWr, IbvSendWr, IbvWc, RdmaCmEvent, RdmaCmId,
    RdmaConnParam, RdmaEventChannel, SEND_SIGNALED, Text, WC_RECV,
};
use crate::device::{Device, Use};
use crate::library::Library;
use libc::{c_int, c_uint, c_void};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

thread_local! {
    static LISTED: Cell<*mut IbvContext> = const { Cell::new(ptr::null_mut()) };
    static LISTS: Cell<usize> = const { Cell::new(0) };
    static RECEIVES: RefCell<VecDeque<u64>> = RefCell::default();
    static SENDS: RefCell<VecDeque<IbvSendWr>> = RefCell::default();
    static WINDOWS: Cell<c_uint> = const { Cell::new(0) };
    static FREED: Cell<usize> = const { Cell::new(0) };
    static COMPLETIONS: RefCell<VecDeque<IbvWc>> = RefCell::default();
    static EVENTS: Cell<usize> = const { Cell::new(0) };
    static SCRIPT: RefCell<VecDeque<(c_int, c_int, &'static [u8])>> = RefCell::default();
    static ARRIVED: RefCell<VecDeque<RdmaCmEvent>> = RefCell::default();
    static REQUESTED: RefCell<Vec<u8>> = RefCell::default();
    static PRESENT: Cell<c_int> = const { Cell::new(1) };
    static IS_ADDRESS: Cell<bool> = const { Cell::new(true) };
    static REGIONS: Cell<usize> = const { Cell::new(0) };
    static REGIONS_MAX: Cell<usize> = const { Cell::new(usize::MAX) };
    static NO_EVENT: Cell<c_int> = const { Cell::new(libc::EAGAIN) };
}

/// Makes the connection manager return this number of irrelevant events, then this error.
pub(crate) fn events(count: usize, errno: c_int) {
    EVENTS.set(count);
    NO_EVENT.set(errno);
}

/// Makes the connection manager answer each of a connection's calls with the next of these events:
/// kind, status, private data.
pub(crate) fn answers(script: &[(c_int, c_int, &'static [u8])]) {
    SCRIPT.with_borrow_mut(|answers| *answers = script.iter().copied().collect());
}

/// Returns the private data of the latest request for a connection.
pub(crate) fn requested() -> Vec<u8> {
    REQUESTED.with_borrow(Vec::clone)
}

/// Queues the next answer for an identifier.
fn answer(id: *mut RdmaCmId) -> c_int {
    let next = SCRIPT.with_borrow_mut(VecDeque::pop_front);
    let Some((event, status, private_data)) = next else { return 0 };
    // SAFETY: it consists of integers and pointers.
    let blank: RdmaCmEvent = unsafe { std::mem::zeroed() };
    let (data, bytes) = (private_data.as_ptr().cast(), private_data.len() as u8);
    let conn = RdmaConnParam { private_data: data, private_data_len: bytes, ..blank.conn };
    ARRIVED.with_borrow_mut(|it| it.push_back(RdmaCmEvent { id, event, status, conn, ..blank }));
    // SAFETY: the identifier's channel is open, and its descriptor is an eventfd.
    unsafe { libc::eventfd_write((*(*id).channel).fd, 1) }
}

/// Returns the number of device lists that were not freed.
pub(crate) fn lists_held() -> usize {
    LISTS.get()
}

/// Returns the number of posted receives.
pub(crate) fn receives() -> usize {
    RECEIVES.with_borrow(VecDeque::len)
}

/// Completes the oldest posted receive, with this opcode and these bytes.
pub(crate) fn receive(opcode: c_int, byte_len: u32) {
    let wr_id = RECEIVES.with_borrow_mut(VecDeque::pop_front).expect("no receive is posted");
    complete(IbvWc { wr_id, opcode, byte_len, ..IbvWc::default() });
}

/// Completes the oldest posted send, and returns it.
pub(crate) fn take_send() -> IbvSendWr {
    let request = SENDS.with_borrow_mut(VecDeque::pop_front).expect("no send is posted");
    if request.send_flags & SEND_SIGNALED != 0 {
        complete(IbvWc { wr_id: request.wr_id, ..IbvWc::default() });
    }
    request
}

/// Completes the oldest posted receive with an answer that has these flags and this key.
pub(crate) fn receive_invalidating(wc_flags: c_uint, key: u32) {
    let wr_id = RECEIVES.with_borrow_mut(VecDeque::pop_front).expect("no receive is posted");
    let received = IbvWc { wr_id, opcode: WC_RECV, byte_len: 16, ..IbvWc::default() };
    complete(IbvWc { wc_flags, invalidated_rkey: key, ..received });
}

/// Gives the devices memory windows, or takes them.
pub(crate) fn windows(are_there: bool) {
    WINDOWS.set(if are_there { DEVICE_MEM_WINDOW_TYPE_2 } else { 0 });
}

/// Gives the machine this number of devices.
pub(crate) fn present(count: c_int) {
    PRESENT.set(count);
}

/// Makes addresses be those of the device, or of none.
pub(crate) fn serves(is_address: bool) {
    IS_ADDRESS.set(is_address);
}

/// Returns the number of registrations.
pub(crate) fn regions() -> usize {
    REGIONS.get()
}

/// Sets the number of registrations that the user may have.
pub(crate) fn regions_max(count: usize) {
    REGIONS_MAX.set(count);
}

/// Returns the number of windows that were freed.
pub(crate) fn windows_freed() -> usize {
    FREED.get()
}

fn complete(completion: IbvWc) {
    COMPLETIONS.with_borrow_mut(|completions| completions.push_back(completion));
}

/// A library with one device. Its context lives as long as the test's thread.
pub(crate) struct Fake {
    pub(crate) library: Arc<Library>,
    pub(crate) context: *mut IbvContext,
}

impl Fake {
    /// Makes a library with an empty adapter. Only the device of a thread's latest library is
    /// listed.
    pub(crate) fn new() -> Self {
        let context = Box::leak(Box::new(MaybeUninit::<IbvContext>::zeroed())).as_mut_ptr();
        // SAFETY: the memory exists; only what is written here is read.
        unsafe {
            (&raw mut (*context).ops.alloc_mw).write(Some(alloc_mw));
            (&raw mut (*context).ops.dealloc_mw).write(Some(dealloc_mw));
            (&raw mut (*context).ops.poll_cq).write(poll_cq);
            (&raw mut (*context).ops.req_notify_cq).write(req_notify_cq);
            (&raw mut (*context).ops.post_send).write(post_send);
            (&raw mut (*context).ops.post_recv).write(post_recv);
        }
        LISTED.set(context);
        windows(true);
        FREED.set(0);
        RECEIVES.take();
        SENDS.take();
        COMPLETIONS.take();
        events(0, libc::EAGAIN);
        let mut library = Library::without_functions();
        library.get_device_list = get_device_list;
        library.free_device_list = free_device_list;
        library.query_device = query_device;
        library.device_name = device_name;
        library.alloc_pd = alloc_pd;
        library.dealloc_pd = dealloc_pd;
        library.reg_mr = reg_mr;
        library.dereg_mr = dereg_mr;
        library.create_comp_channel = create_comp_channel;
        library.destroy_comp_channel = destroy_comp_channel;
        library.create_cq = create_cq;
        library.destroy_cq = destroy_cq;
        library.create_event_channel = create_event_channel;
        library.destroy_event_channel = destroy_event_channel;
        library.get_cm_event = get_cm_event;
        library.ack_cm_event = ack_cm_event;
        library.create_id = create_id;
        library.bind_addr = bind_addr;
        library.listen = listen;
        library.resolve_addr = resolve_addr;
        library.resolve_route = resolve_route;
        library.connect = connect;
        library.destroy_id = destroy_id;
        library.create_qp = create_qp;
        library.destroy_qp = destroy_qp;
        library.disconnect = disconnect;
        library.get_devices = get_devices;
        library.free_devices = free_devices;
        Self { library: Arc::new(library), context }
    }

    pub(crate) fn device(&self) -> Arc<Device> {
        // SAFETY: the context is never freed.
        unsafe { Device::open(&self.library, self.context, Use::Lent) }.unwrap()
    }

    /// Returns an identifier of a connection on the device; it is never freed.
    pub(crate) fn identifier(&self) -> *mut RdmaCmId {
        let identifier = Box::leak(Box::new(MaybeUninit::<RdmaCmId>::zeroed())).as_mut_ptr();
        // SAFETY: the memory exists.
        unsafe { (*identifier).verbs = self.context };
        identifier
    }
}

fn eventfd() -> c_int {
    // SAFETY: the function takes numbers.
    unsafe { libc::eventfd(0, libc::EFD_NONBLOCK) }
}

unsafe extern "C" fn query_device(_: *mut IbvContext, into: *mut IbvDeviceAttr) -> c_int {
    // SAFETY: the caller has space for it.
    unsafe { (*into).device_cap_flags = WINDOWS.get() };
    0
}

unsafe extern "C" fn alloc_mw(pd: *mut IbvPd, kind: c_int) -> *mut IbvMw {
    Box::into_raw(Box::new(IbvMw { context: LISTED.get(), pd, rkey: 0x1ff, handle: 0, kind }))
}

unsafe extern "C" fn dealloc_mw(window: *mut IbvMw) -> c_int {
    // SAFETY: it was made by `alloc_mw`.
    drop(unsafe { Box::from_raw(window) });
    FREED.set(FREED.get() + 1);
    0
}

unsafe extern "C" fn device_name(_: *mut IbvDevice) -> Text {
    c"fake".as_ptr()
}

unsafe extern "C" fn alloc_pd(_: *mut IbvContext) -> *mut IbvPd {
    ptr::dangling_mut()
}

unsafe extern "C" fn dealloc_pd(_: *mut IbvPd) -> c_int {
    assert!(lists_held() > 0, "the context may be closed already");
    0
}

unsafe extern "C" fn reg_mr(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    _: c_int,
) -> *mut IbvMr {
    if REGIONS.get() >= REGIONS_MAX.get() {
        return ptr::null_mut();
    }
    REGIONS.set(REGIONS.get() + 1);
    let context = ptr::null_mut();
    Box::into_raw(Box::new(IbvMr { context, pd, addr, length, handle: 0, lkey: 1, rkey: 1 }))
}

unsafe extern "C" fn dereg_mr(region: *mut IbvMr) -> c_int {
    // SAFETY: it was made by `reg_mr`.
    drop(unsafe { Box::from_raw(region) });
    REGIONS.set(REGIONS.get() - 1);
    0
}

unsafe extern "C" fn create_comp_channel(context: *mut IbvContext) -> *mut IbvCompChannel {
    Box::into_raw(Box::new(IbvCompChannel { context, fd: eventfd() }))
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut IbvCompChannel) -> c_int {
    // SAFETY: it was made by `create_comp_channel`.
    let channel = unsafe { Box::from_raw(channel) };
    // SAFETY: the descriptor is the channel's.
    unsafe { libc::close(channel.fd) }
}

unsafe extern "C" fn create_cq(
    _: *mut IbvContext,
    _: c_int,
    _: *mut c_void,
    _: *mut IbvCompChannel,
    _: c_int,
) -> *mut IbvCq {
    ptr::dangling_mut()
}

unsafe extern "C" fn destroy_cq(_: *mut IbvCq) -> c_int {
    0
}

unsafe extern "C" fn create_event_channel() -> *mut RdmaEventChannel {
    Box::into_raw(Box::new(RdmaEventChannel { fd: eventfd() }))
}

unsafe extern "C" fn destroy_event_channel(channel: *mut RdmaEventChannel) {
    // SAFETY: it was made by `create_event_channel`.
    let channel = unsafe { Box::from_raw(channel) };
    // SAFETY: the descriptor is the channel's.
    unsafe { libc::close(channel.fd) };
}

unsafe extern "C" fn get_cm_event(
    channel: *mut RdmaEventChannel,
    into: *mut *mut RdmaCmEvent,
) -> c_int {
    if let Some(event) = ARRIVED.with_borrow_mut(VecDeque::pop_front) {
        let mut count = 0;
        // SAFETY: the channel is open, its descriptor is an eventfd, and the caller has space for
        // an event.
        unsafe {
            libc::eventfd_read((*channel).fd, &raw mut count);
            *into = Box::into_raw(Box::new(event));
        }
        return 0;
    }
    if EVENTS.get() == 0 {
        // SAFETY: the memory is this thread's.
        unsafe { *libc::__errno_location() = NO_EVENT.get() };
        return -1;
    }
    EVENTS.set(EVENTS.get() - 1);
    // SAFETY: it consists of integers and pointers.
    let event: RdmaCmEvent = unsafe { std::mem::zeroed() };
    let event = RdmaCmEvent { id: ptr::dangling_mut(), ..event };
    // SAFETY: the caller has space for it.
    unsafe { *into = Box::into_raw(Box::new(event)) };
    0
}

unsafe extern "C" fn ack_cm_event(event: *mut RdmaCmEvent) -> c_int {
    // SAFETY: it was made by `get_cm_event`.
    drop(unsafe { Box::from_raw(event) });
    0
}

unsafe extern "C" fn create_id(
    channel: *mut RdmaEventChannel,
    into: *mut *mut RdmaCmId,
    _: *mut c_void,
    _: c_int,
) -> c_int {
    let identifier = Box::leak(Box::new(MaybeUninit::<RdmaCmId>::zeroed())).as_mut_ptr();
    // SAFETY: the memory exists, and the caller has space for its address.
    unsafe {
        ((*identifier).channel, (*identifier).verbs) = (channel, LISTED.get());
        *into = identifier;
    }
    0
}

unsafe extern "C" fn resolve_addr(
    id: *mut RdmaCmId,
    _: *mut libc::sockaddr,
    _: *mut libc::sockaddr,
    _: c_int,
) -> c_int {
    answer(id)
}

unsafe extern "C" fn resolve_route(id: *mut RdmaCmId, _: c_int) -> c_int {
    answer(id)
}

unsafe extern "C" fn connect(id: *mut RdmaCmId, parameters: *mut RdmaConnParam) -> c_int {
    // SAFETY: the caller's parameters have this number of bytes of private data.
    let bytes = unsafe { crate::events::private_data_of(&*parameters) };
    REQUESTED.set(bytes);
    answer(id)
}

unsafe extern "C" fn bind_addr(_: *mut RdmaCmId, _: *mut libc::sockaddr) -> c_int {
    if IS_ADDRESS.get() { 0 } else { -1 }
}

unsafe extern "C" fn listen(_: *mut RdmaCmId, _: c_int) -> c_int {
    0
}

unsafe extern "C" fn destroy_id(_: *mut RdmaCmId) -> c_int {
    0
}

unsafe extern "C" fn create_qp(id: *mut RdmaCmId, _: *mut IbvPd, _: *mut IbvQpInitAttr) -> c_int {
    // SAFETY: the identifier is never freed.
    unsafe { (*id).qp = ptr::dangling_mut() };
    0
}

unsafe extern "C" fn destroy_qp(_: *mut RdmaCmId) {}

unsafe extern "C" fn disconnect(_: *mut RdmaCmId) -> c_int {
    0
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut IbvDevice {
    // SAFETY: the caller has space for it.
    unsafe { *count = PRESENT.get() };
    LISTS.set(LISTS.get() + 1);
    ptr::dangling_mut()
}

unsafe extern "C" fn free_device_list(_: *mut *mut IbvDevice) {
    LISTS.set(LISTS.get() - 1);
}

unsafe extern "C" fn get_devices(_: *mut c_int) -> *mut *mut IbvContext {
    LISTS.set(LISTS.get() + 1);
    Box::into_raw(Box::new([LISTED.get(), ptr::null_mut()])).cast()
}

unsafe extern "C" fn free_devices(list: *mut *mut IbvContext) {
    // SAFETY: it was made by `get_devices`.
    drop(unsafe { Box::from_raw(list.cast::<[*mut IbvContext; 2]>()) });
    LISTS.set(LISTS.get() - 1);
}

unsafe extern "C" fn poll_cq(_: *mut IbvCq, most: c_int, into: *mut IbvWc) -> c_int {
    COMPLETIONS.with_borrow_mut(|completions| {
        let count = completions.len().min(most as usize);
        for (index, completion) in completions.drain(..count).enumerate() {
            // SAFETY: the caller has space for this number.
            unsafe { into.add(index).write(completion) };
        }
        count as c_int
    })
}

unsafe extern "C" fn req_notify_cq(_: *mut IbvCq, _: c_int) -> c_int {
    0
}

unsafe extern "C" fn post_send(
    _: *mut IbvQp,
    mut request: *mut IbvSendWr,
    _: *mut *mut IbvSendWr,
) -> c_int {
    // SAFETY: the caller's list ends with null.
    while let Some(it) = unsafe { request.as_ref() } {
        SENDS.with_borrow_mut(|sends| sends.push_back(*it));
        request = it.next;
    }
    0
}

unsafe extern "C" fn post_recv(
    _: *mut IbvQp,
    mut request: *mut IbvRecvWr,
    _: *mut *mut IbvRecvWr,
) -> c_int {
    // SAFETY: the caller's list ends with null.
    while let Some(it) = unsafe { request.as_ref() } {
        RECEIVES.with_borrow_mut(|receives| receives.push_back(it.wr_id));
        request = it.next;
    }
    0
}
