//! Client of subnet administration: what the programs of a port ask of the subnet's data base, and
//! what they register there (IBTA 15.2, 15.4).
//!
//! Owns the questions that wait for an answer, answers that may be used again, and registrations:
//! memberships of multicast groups, services, subscriptions to notices. There is one client for
//! each port, since the data base knows ports and no programs: its users are the programs, and a
//! registration lasts as long as one of them wants it. Called with commands, answers, reports and
//! time; it answers with datagrams ([`SaClient::poll_send`]) and events
//! ([`SaClient::poll_event`]), to be fetched after each call.
//!
//! Datagrams go by an agent of class 3, version 2, with RMPP, that takes
//! [`Method::REPORT`](vernic_wire::mad::Method::REPORT): timeouts, repeats and transfers are the
//! agent's ([`mad`](crate::mad)), which tells of each request how it ended.
//!
//! # Registrations
//!
//! ```text
//!             nobody wants it                      somebody wants it
//!   not set   forgotten                            Set -> set, or refused: all are told
//!   set       Delete -> not set                    told at once
//! ```
//! One request for a registration is under way at a time, and what is wanted then counts when it
//! is answered. When the port was down, or the subnet manager asks for it (ClientReregister, IBTA
//! 14.4.11), nothing is set any more, and all that is wanted is set again.
//!
//! # Limits
//!
//! All tables are bounded by [`SaConfig`]. An answer is believed if it has the transaction of a
//! request: SA has no authentication but the SM_Key, which we do not have.

mod client;
mod params;
mod paths;
mod records;
mod registrations;
#[cfg(test)]
mod tests;

pub use client::SaClient;
pub use params::{
    PathQuery, SaConfig, SaError, SaEvent, SaPort, SaSend, SaTable, SaUser, ServiceKey, Ticket,
};
