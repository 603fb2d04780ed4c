//! The middlewares around a device's link: capture, trace, fault injection, as configured.
//!
//! The capture is next to the socket: it shows what is on the wire, after faults. Fault injection
//! is outermost: everything below it sees a lossy application.

use std::path::PathBuf;

use vernic_io::Link;
use vernic_io::capture::{CaptureConfig, CaptureLink};
use vernic_io::fault::{FaultConfig, FaultLink};
use vernic_io::trace::TraceLink;

use crate::config::Config;
use crate::error::OpenError;

/// Wraps the link of `device` as the settings say.
pub(crate) fn wrap_link(
    mut link: Box<dyn Link>,
    config: &Config,
    device: &str,
) -> Result<Box<dyn Link>, OpenError> {
    let refuse = |setting, value: &str, error: &dyn std::error::Error| OpenError::Middleware {
        setting,
        value: value.to_owned(),
        reason: error.to_string(),
    };
    if !config.capture.is_empty() {
        let path = capture_path(&config.capture, device);
        let max_bytes = Some(config.capture_max_bytes).filter(|&max| max != 0);
        let capture = CaptureLink::new(link, CaptureConfig { path, max_bytes })
            .map_err(|error| refuse("capture", &config.capture, &error))?;
        link = Box::new(capture);
    }
    if config.trace {
        link = Box::new(TraceLink::new(link));
    }
    if !config.fault.is_empty() {
        let faults: FaultConfig =
            config.fault.parse().map_err(|error| refuse("fault", &config.fault, &error))?;
        tracing::warn!(device, faults = config.fault, "packets are damaged on purpose");
        link = Box::new(FaultLink::new(link, faults));
    }
    Ok(link)
}

/// Returns the configured path with `%p` and `%d` filled in.
fn capture_path(template: &str, device: &str) -> PathBuf {
    template.replace("%p", &std::process::id().to_string()).replace("%d", device).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capture_paths_name_process_and_device() {
        let path = capture_path("/tmp/%d-%p.pcapng", "vernic0");
        let expected = format!("/tmp/vernic0-{}.pcapng", std::process::id());
        assert_eq!(path, PathBuf::from(expected));
    }
}
