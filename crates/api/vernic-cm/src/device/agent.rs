//! What the manager asks of a RoCE device's exchange of messages.
//!
//! Owns nothing: [`CmAgent`](vernic_engine::CmAgent) of the engine does it all, and says what each
//! call does. The trait is the seam at which tests put an agent that only notes what it is asked.

use std::fmt;
use std::sync::Arc;

use vernic_engine::{CmCallError, Context, ListenError};
use vernic_io::Place;
use vernic_proto::cm::{AcceptParams, ConnId, ConnectParams, ListenerId, SidrParams, SidrReply};
use vernic_wire::cm::{RejReason, ServiceId};

type Called<T = ()> = Result<T, CmCallError>;

/// A device's agent of communication management.
pub(crate) trait Agent: fmt::Debug + Send + Sync {
    fn reserve(&self, service: ServiceId, place: Place) -> Result<(), ListenError>;
    fn release(&self, service: ServiceId, place: Place);
    fn listen(
        &self,
        service: ServiceId,
        place: Place,
        backlog: usize,
    ) -> Result<ListenerId, ListenError>;
    fn stop_listening(&self, listener: ListenerId);
    fn connect(&self, params: &ConnectParams<'_>) -> Called<ConnId>;
    fn connect_now(&self, params: &ConnectParams<'_>) -> Called<ConnId>;
    fn refuse(&self, conn: ConnId) -> Called<bool>;
    fn accept(&self, conn: ConnId, params: &AcceptParams<'_>) -> Called;
    fn ready_to_use(&self, conn: ConnId) -> Called;
    fn reject(&self, conn: ConnId, reason: RejReason, info: &[u8], data: &[u8]) -> Called;
    fn disconnect(&self, conn: ConnId) -> Called;
    fn notify_established(&self, conn: ConnId) -> Called;
    fn sidr_request(&self, params: &SidrParams<'_>) -> Called<ConnId>;
    fn sidr_reply(&self, conn: ConnId, reply: &SidrReply<'_>) -> Called;
    fn request_taken(&self, conn: ConnId);
    fn ignore(&self, conn: ConnId);
    fn destroy(&self, conn: ConnId);
}

/// The agent of an open device.
#[derive(Debug)]
pub(crate) struct EngineAgent(pub(crate) Arc<Context>);

impl Agent for EngineAgent {
    fn reserve(&self, service: ServiceId, place: Place) -> Result<(), ListenError> {
        self.0.cm().reserve(service, place)
    }
    fn release(&self, service: ServiceId, place: Place) {
        self.0.cm().release(service, place);
    }
    fn listen(
        &self,
        service: ServiceId,
        place: Place,
        backlog: usize,
    ) -> Result<ListenerId, ListenError> {
        self.0.cm().listen(service, place, backlog)
    }
    fn stop_listening(&self, listener: ListenerId) {
        self.0.cm().stop_listening(listener);
    }
    fn connect(&self, params: &ConnectParams<'_>) -> Called<ConnId> {
        self.0.cm().connect(params)
    }
    fn connect_now(&self, params: &ConnectParams<'_>) -> Called<ConnId> {
        self.0.cm().connect_now(params)
    }
    fn refuse(&self, conn: ConnId) -> Called<bool> {
        self.0.cm().refuse(conn)
    }
    fn accept(&self, conn: ConnId, params: &AcceptParams<'_>) -> Called {
        self.0.cm().accept(conn, params)
    }
    fn ready_to_use(&self, conn: ConnId) -> Called {
        self.0.cm().ready_to_use(conn, &[])
    }
    fn reject(&self, conn: ConnId, reason: RejReason, info: &[u8], data: &[u8]) -> Called {
        self.0.cm().reject(conn, reason, info, data)
    }
    fn disconnect(&self, conn: ConnId) -> Called {
        self.0.cm().disconnect(conn, &[])
    }
    fn notify_established(&self, conn: ConnId) -> Called {
        self.0.cm().notify_established(conn)
    }
    fn sidr_request(&self, params: &SidrParams<'_>) -> Called<ConnId> {
        self.0.cm().sidr_request(params)
    }
    fn sidr_reply(&self, conn: ConnId, reply: &SidrReply<'_>) -> Called {
        self.0.cm().sidr_reply(conn, reply)
    }
    fn request_taken(&self, conn: ConnId) {
        self.0.cm().request_taken(conn);
    }
    fn ignore(&self, conn: ConnId) {
        self.0.cm().ignore(conn);
    }
    fn destroy(&self, conn: ConnId) {
        self.0.cm().destroy(conn);
    }
}
