//! Facts about this process and host that may have caused a queue pair's failure.

use vernic_io::TxPath;
use vernic_proto::Cause;
use vernic_proto::iwarp::StreamEnd;

use crate::device::explanation::Circumstances;
use crate::device::opened::Device;

impl Device {
    /// Returns the present circumstances, for a failure on `path`.
    pub(crate) fn circumstances(&self, path: Option<TxPath>, cause: &Cause) -> Circumstances {
        let port = path.as_ref().map_or(&self.ports()[0], |path| self.port_of(path));
        let (is_up, refusal) = (port.is_up(), port.refusal());
        let (fault, rules) = (&self.config().fault, self.rules());
        let is_late = matches!(cause, Cause::ConnectionLost(StreamEnd::TimedOut));
        let patience_s = self.config().iwarp_peer_timeout_s;
        Circumstances {
            patience_s: (is_late && patience_s > 0).then_some(patience_s),
            floor_us: None,
            live_peer: None,
            peer_qp: None,
            peer_end: None,
            down: (!is_up).then(|| rules.down_text(port.number(), port.netdev(), self.config())),
            silence: matches!(cause, Cause::AckTimeout { heard: false, .. })
                .then(|| rules.silence_text(self.config()))
                .flatten(),
            refused: refusal.filter(|(on, _)| Some(*on) == path).map(|(_, errno)| errno),
            faults: (!fault.is_empty() && misses_packets(cause)).then(|| fault.clone()),
        }
    }
}

/// Whether packets were missed, for which deliberate damage may be the reason.
fn misses_packets(cause: &Cause) -> bool {
    matches!(cause, Cause::AckTimeout { .. } | Cause::SequenceNak { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn injected_faults_count_where_packets_were_missed_and_nowhere_else() {
        assert!(misses_packets(&Cause::AckTimeout { tries: 8, waited: 1, heard: true }));
        assert!(!misses_packets(&Cause::BadResponse("x")));
    }
}
