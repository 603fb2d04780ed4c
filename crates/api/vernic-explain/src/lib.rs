//! What happened in a capture of RDMA: for each pair of queue pairs its connection, its messages,
//! what was lost, refused and waited for, and advice for the usual mistakes.
//!
//! Owns the reading of capture files and everything that is concluded from them. Called by
//! `vernic explain`; calls `vernic-wire` for the headers and `pcap-file` for the blocks of the
//! files. It reads from what implements `Read`, and does no other input or output; no `unsafe`.
//!
//! | module | owns |
//! |---|---|
//! | `file` | frames out of a pcap or pcapng file |
//! | `frame` | RoCE packets out of a frame |
//! | `log` | a bounded list of what one end sent, for diagrams |
//! | `requests`, `responses`, `transit` | what the packets of one direction tell |
//! | `stream` | one direction of a pair of queue pairs |
//! | `connection` | connections by their CM messages |
//! | `tracker` | all of that, fed with frames; which streams belong together |
//! | `advice` | what is wrong, and what helps |
//! | `story` | the [`Report`] |
//! | `text`, `diagram`, `svg` | the report in words and in pictures |
//!
//! Memory is bounded whatever a file holds: [`MAX_STREAMS`] streams and [`MAX_CONNECTIONS`]
//! connections are followed, and packets of further ones are counted. A file is damaged where its
//! lengths lie: what is before is explained, and the damage is told.
#![forbid(unsafe_code)]

mod advice;
mod connection;
mod diagram;
mod file;
mod frame;
mod log;
mod requests;
mod responses;
mod story;
mod stream;
mod svg;
mod text;
mod tracker;
mod transit;
pub mod units;

use std::io::Read;

pub use advice::{Finding, Severity};
pub use connection::MAX_CONNECTIONS;
pub use diagram::diagram;
pub use file::{CaptureFile, Direction, FileError, FileReport, Frame};
pub use frame::{Icrc, RocePacket, Unread};
pub use story::{
    Answers, Arrow, Connected, End, Flow, Messages, Report, Requested, Silence, Tone, UnreadFrames,
    Way,
};
pub use svg::svg;
pub use text::text;
pub use tracker::{Explainer, MAX_STREAMS};

/// A capture to be explained: its name, as the report calls it, and its bytes.
pub struct Source<R> {
    /// Name of the file.
    pub name: String,
    /// The file.
    pub reader: R,
}

/// Reads captures, merged by the times of their frames, and tells what happened.
///
/// The clocks of captures from several hosts have to agree to about a packet's way.
///
/// # Errors
/// [`FileError`] where a file is not a capture or cannot be read. A file that is damaged is read up
/// to there; [`FileReport::damage`] tells.
pub fn explain<R: Read>(sources: Vec<Source<R>>) -> Result<Report, FileError> {
    let mut explainer = Explainer::new();
    let mut files = Vec::new();
    for Source { name, reader } in sources {
        let mut file = CaptureFile::open(&name, reader)?;
        let has_frame = file.advance()?;
        files.push((file, has_frame));
    }
    loop {
        let ready = files.iter().enumerate().filter(|(_, (_, has_frame))| *has_frame);
        let Some((at, _)) = ready.min_by_key(|(_, (file, _))| file.frame().time_ns) else { break };
        let (file, has_frame) = &mut files[at];
        explainer.take(at, &file.frame());
        *has_frame = file.advance()?;
    }
    Ok(explainer.finish(files.iter().map(|(file, _)| file.report()).collect()))
}
