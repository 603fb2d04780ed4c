//! The interface to a RoCE device's exchange of messages.
//!
//! Owns nothing: the engine's [`CmAgent`](vernic_engine::CmAgent) does the work, and documents the
//! calls. The trait exists for tests, whose agent only notes the calls.

use std::fmt;

use vernic_engine::{CmCallError, Context, ListenError};
use vernic_io::ServiceScope;
use vernic_proto::cm::{
    AcceptParams, ConnId, ConnectParams, LapParams, ListenerId, SidrParams, SidrReply,
};
use vernic_wire::cm::{AprStatus, RejReason, ServiceId};

type Called<T = ()> = Result<T, CmCallError>;

/// The agent of communication management of a device.
pub(crate) trait Agent: fmt::Debug + Send + Sync {
    fn reserve(&self, service: ServiceId, scope: ServiceScope) -> Result<(), ListenError>;
    fn release(&self, service: ServiceId, scope: ServiceScope);
    fn listen(
        &self,
        service: ServiceId,
        scope: ServiceScope,
        backlog: usize,
    ) -> Result<ListenerId, ListenError>;
    fn stop_listening(&self, listener: ListenerId);
    fn connect(&self, params: &ConnectParams<'_>) -> Called<ConnId>;
    fn connect_now(&self, params: &ConnectParams<'_>) -> Called<ConnId>;
    fn refuse(&self, conn: ConnId) -> Called<bool>;
    fn sent_unanswered(&self, conn: ConnId) -> Called<Option<u32>>;
    fn accept(&self, conn: ConnId, params: &AcceptParams<'_>) -> Called;
    fn ready_to_use(&self, conn: ConnId) -> Called;
    fn load_alternate_path(&self, conn: ConnId, params: &LapParams) -> Called;
    fn answer_lap(&self, conn: ConnId, status: AprStatus) -> Called;
    fn about_to_wait(&self);
    fn reject(&self, conn: ConnId, reason: RejReason, info: &[u8], data: &[u8]) -> Called;
    fn disconnect(&self, conn: ConnId) -> Called;
    fn notify_established(&self, conn: ConnId) -> Called;
    fn sidr_request(&self, params: &SidrParams<'_>) -> Called<ConnId>;
    fn sidr_reply(&self, conn: ConnId, reply: &SidrReply<'_>) -> Called;
    fn request_taken(&self, conn: ConnId);
    fn ignore(&self, conn: ConnId);
    fn destroy(&self, conn: ConnId);
}

impl Agent for Context {
    fn reserve(&self, service: ServiceId, scope: ServiceScope) -> Result<(), ListenError> {
        self.cm().reserve(service, scope)
    }
    fn release(&self, service: ServiceId, scope: ServiceScope) {
        self.cm().release(service, scope);
    }
    fn listen(
        &self,
        service: ServiceId,
        scope: ServiceScope,
        backlog: usize,
    ) -> Result<ListenerId, ListenError> {
        self.cm().listen(service, scope, backlog)
    }
    fn stop_listening(&self, listener: ListenerId) {
        self.cm().stop_listening(listener);
    }
    fn connect(&self, params: &ConnectParams<'_>) -> Called<ConnId> {
        self.cm().connect(params)
    }
    fn connect_now(&self, params: &ConnectParams<'_>) -> Called<ConnId> {
        self.cm().connect_now(params)
    }
    fn refuse(&self, conn: ConnId) -> Called<bool> {
        self.cm().refuse(conn)
    }
    fn sent_unanswered(&self, conn: ConnId) -> Called<Option<u32>> {
        self.cm().sent_unanswered(conn)
    }
    fn accept(&self, conn: ConnId, params: &AcceptParams<'_>) -> Called {
        self.cm().accept(conn, params)
    }
    fn ready_to_use(&self, conn: ConnId) -> Called {
        self.cm().ready_to_use(conn, &[])
    }
    fn load_alternate_path(&self, conn: ConnId, params: &LapParams) -> Called {
        self.cm().load_alternate_path(conn, params)
    }
    fn answer_lap(&self, conn: ConnId, status: AprStatus) -> Called {
        self.cm().answer_lap(conn, status)
    }
    fn about_to_wait(&self) {
        self.cm().about_to_wait();
    }
    fn reject(&self, conn: ConnId, reason: RejReason, info: &[u8], data: &[u8]) -> Called {
        self.cm().reject(conn, reason, info, data)
    }
    fn disconnect(&self, conn: ConnId) -> Called {
        self.cm().disconnect(conn, &[])
    }
    fn notify_established(&self, conn: ConnId) -> Called {
        self.cm().notify_established(conn)
    }
    fn sidr_request(&self, params: &SidrParams<'_>) -> Called<ConnId> {
        self.cm().sidr_request(params)
    }
    fn sidr_reply(&self, conn: ConnId, reply: &SidrReply<'_>) -> Called {
        self.cm().sidr_reply(conn, reply)
    }
    fn request_taken(&self, conn: ConnId) {
        self.cm().request_taken(conn);
    }
    fn ignore(&self, conn: ConnId) {
        self.cm().ignore(conn);
    }
    fn destroy(&self, conn: ConnId) {
        self.cm().destroy(conn);
    }
}
