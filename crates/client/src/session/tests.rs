//! Tests of a session against a service of their own.

use super::call::Failure;
use super::handler::PushReply;
use super::*;
use protocol::auth::Secret;
use protocol::client::{
    Answer, Call, ChangeCall, Push, PushAnswer, Request, Response, SessionCall,
};
use protocol::space::{DeviceAddress, DeviceInfo, Transport};
use protocol::{DeviceId, Errno, Incarnation, InodeId, Rights};
use reactor::JoinHandle;
use reactor::time::sleep;
use rpc::{Acceptor, Credential, Guard, Limits, Listener};
use std::net::SocketAddr;

const SECRET: Secret = Secret([7; 32]);

/// A device as the service reports it.
fn device(online: bool) -> DeviceInfo {
    DeviceInfo {
        device: DeviceId(1),
        uuid: uuid::Uuid::from_u128(1),
        node: "node".into(),
        address: DeviceAddress {
            traddr: String::new(),
            subnqn: String::new(),
            nsid: 1,
            transport: Transport::Tcp,
        },
        block_size: 4096,
        blocks: 1,
        incarnation: Incarnation(1),
        is_volatile: false,
        online,
    }
}

/// A service whose device comes online right after it has welcomed a session. It refuses to take
/// space back, and breaks the connection when it is asked for some.
#[derive(Default)]
struct Service {
    connection: RefCell<Option<rpc::Connection<Acceptor<rpc::Client>>>>,
}

impl rpc::Handler<Acceptor<rpc::Client>> for Service {
    fn called(&self, request: Request, reply: rpc::Reply<Acceptor<rpc::Client>>) {
        let answer = |result| Response { result, grants: Vec::new(), changed: Vec::new() };
        match request.call {
            Call::Session(SessionCall::Start { .. }) => {}
            Call::Change(ChangeCall::ReturnSpace { .. }) => {
                let _ = reply.send(&answer(Err(Errno::EINVAL)));
                return;
            }
            Call::Change(ChangeCall::LeaseSpace { .. }) => {
                self.connection.borrow().clone().unwrap().close("it gives no answer");
                return;
            }
            _ => {
                let _ = reply.send(&answer(Ok(Answer::Done)));
                return;
            }
        }
        let welcome = Answer::Welcome {
            session: SessionId(1),
            epoch: Epoch(1),
            resumed: false,
            file_system: uuid::Uuid::nil(),
            devices: vec![device(false)],
            free_epoch: FreeEpoch(0),
        };
        reply.send(&answer(Ok(welcome))).unwrap();
        let connection = self.connection.borrow().clone().unwrap();
        drop(connection.call(&Push::Devices(vec![device(true)]), None));
    }
}

/// Records what is reported of devices.
#[derive(Default)]
struct DeviceLog(RefCell<Vec<bool>>);

impl Handler for DeviceLog {
    fn answered(self: Rc<Self>, _: &Call, _: &Response, _: bool) {}
    fn pushed(self: Rc<Self>, push: Push, reply: PushReply) {
        if let Push::Devices(devices) = push {
            self.devices(devices);
        }
        let _ = reply.send(&PushAnswer::Done);
    }
    fn disconnected(self: Rc<Self>) {}
    fn held(&self) -> Vec<(InodeId, Rights)> {
        Vec::new()
    }
    fn working_on(&self) -> Vec<protocol::LeaseStamp> {
        Vec::new()
    }
    fn lost(&self) {}
    fn devices(&self, devices: Vec<DeviceInfo>) {
        self.0.borrow_mut().extend(devices.iter().map(|device| device.online));
    }
}

/// Serves all connections.
async fn serve(listener: Listener) {
    while let Ok(knock) = listener.accept().await {
        let authenticated =
            knock.authenticate(&Guard::Plain(SECRET), Limits::default()).await.unwrap();
        let service = Rc::new(Service::default());
        let connection = authenticated.start::<rpc::Client>(Rc::clone(&service) as Rc<_>);
        *service.connection.borrow_mut() = Some(connection);
    }
}

/// Runs a scene with a session that is connected to a [`Service`], with the record of devices, and
/// with the task of the service, which serves for as long as it lives.
fn with_session<F>(
    times: Times,
    scene: impl FnOnce(Rc<Session>, Rc<DeviceLog>, JoinHandle<()>) -> F,
) where
    F: Future<Output = ()>,
{
    let mut runtime = reactor::Runtime::new(&reactor::Config::default()).unwrap();
    runtime.block_on(async {
        let sockets = SocketOptions::default();
        let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0)), &sockets).unwrap();
        let meta = listener.local_addr();
        let server = reactor::spawn(serve(listener));
        let config = SessionConfig {
            meta,
            credential: Credential::Plain(SECRET),
            node: "node".into(),
            times,
            sockets,
        };
        let log = Rc::new(DeviceLog::default());
        let weak: Weak<dyn Handler> = Rc::downgrade(&(Rc::clone(&log) as Rc<dyn Handler>));
        let session = Session::new(config);
        session.start(weak).await.unwrap();
        scene(session, log, server).await;
    });
}

/// Goal: news of devices that follow the welcome in the stream, even in the same segment, are not
/// undone by the older list in the welcome. (A client that missed such news took devices for
/// offline for good, and its writes failed with EIO when the service gave it space there.)
#[test]
fn welcome_does_not_undo_later_news() {
    with_session(Times::default(), async |session, log, server| {
        while log.0.borrow().len() < 2 {
            sleep(Duration::from_millis(1)).await;
        }
        sleep(Duration::from_millis(50)).await;
        assert_eq!(*log.0.borrow(), [false, true], "what was said last holds");
        session.end().await;
        server.abort();
    });
}

/// Goal: a caller learns whether a failed call may have been carried out: not if the service
/// refused it or it was never sent, but if no answer came.
#[test]
fn a_refusal_is_log_from_silence() {
    let times = Times { request_deadline: Duration::from_millis(200), ..Times::default() };
    with_session(times, async |session, _log, server| {
        let device = DeviceId(1);
        let refused = session
            .call_or_failure(Call::Change(ChangeCall::ReturnSpace { device, free: Vec::new() }))
            .await;
        assert_eq!(refused, Err(Failure { errno: Errno::EINVAL, is_refusal: true }));
        let silent = session
            .call_or_failure(Call::Change(ChangeCall::LeaseSpace { device, wanted_bytes: 1 }))
            .await;
        assert_eq!(silent, Err(Failure { errno: Errno::ETIMEDOUT, is_refusal: false }));
        // The service broke the link, and may have let the session in again already.
        session.linked().await.unwrap();
        server.abort();
        session.drop_link("the service is gone");
        let unsent = session
            .call_or_failure(Call::Change(ChangeCall::ReturnSpace { device, free: Vec::new() }))
            .await;
        assert_eq!(unsent, Err(Failure { errno: Errno::ETIMEDOUT, is_refusal: true }));
    });
}
