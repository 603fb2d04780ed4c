//! What a request asks for, and whether it is answered.
//!
//! Owns the paths, the check of the header `Host`, and the choice of a text format. Knows no
//! connection: `server` has these.

use std::net::IpAddr;

use hyper::header::{ACCEPT, HOST, HeaderMap};
use hyper::{Method, StatusCode, Uri};

use super::exposition::Format;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The page for browsers.
    Page,
    /// What all processes told, as JSON.
    Sample,
    /// Metrics of what all processes told.
    Metrics(Format),
}

/// A request that is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    /// The reason and what helps, for the person at the other end.
    pub(super) why: &'static str,
}

/// The names that requests may call this server by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hosts {
    /// `localhost` and loopback addresses. A page of a stranger whose name leads to 127.0.0.1 (DNS
    /// rebinding) has another name in its requests.
    Local,
    /// Any name, since other hosts may ask.
    Any,
}

const WRONG_HOST: Refused = Refused {
    status: StatusCode::MISDIRECTED_REQUEST,
    why: "This server answers to localhost and loopback addresses only, and the request names \
          another host. Ask by http://127.0.0.1 or http://localhost.",
};

const WRONG_METHOD: Refused = Refused {
    status: StatusCode::METHOD_NOT_ALLOWED,
    why: "Nothing can be changed here: GET and HEAD only.",
};

const WRONG_PATH: Refused = Refused {
    status: StatusCode::NOT_FOUND,
    why: "There are / for browsers, /metrics for Prometheus, and /api/sample for programs.",
};

/// Returns what a request asks for.
///
/// # Errors
/// The host is not one of `hosts`, the method changes something, or there is no such path.
pub(super) fn wanted(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    hosts: Hosts,
) -> Result<Wanted, Refused> {
    if hosts == Hosts::Local && !is_local(uri, headers) {
        return Err(WRONG_HOST);
    }
    if ![Method::GET, Method::HEAD].contains(method) {
        return Err(WRONG_METHOD);
    }
    match uri.path() {
        "/" => Ok(Wanted::Page),
        "/api/sample" => Ok(Wanted::Sample),
        "/metrics" => Ok(Wanted::Metrics(format(headers))),
        _ => Err(WRONG_PATH),
    }
}

/// Whether a request names this host by a loopback address or as `localhost`, in its one header
/// `Host` and, if it is there, in the URI.
fn is_local(uri: &Uri, headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(HOST).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return false };
    let named = value.to_str().ok().and_then(|text| text.parse::<Uri>().ok());
    let named = named.filter(|named| named.scheme().is_none());
    let is_one = named.is_some_and(|named| named.host().is_some_and(is_local_name));
    is_one && uri.host().is_none_or(is_local_name)
}

fn is_local_name(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
    bare.eq_ignore_ascii_case("localhost") || bare.parse().is_ok_and(is_loopback)
}

/// The text format that the header `Accept` prefers: OpenMetrics where it is named, and nothing
/// else is wanted more.
fn format(headers: &HeaderMap) -> Format {
    let lines = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let (mut open, mut plain) = (0.0_f32, 0.0_f32);
    for range in lines.flat_map(|line| line.split(',')) {
        let mut parts = range.split(';').map(|part| part.trim().to_ascii_lowercase());
        let name = parts.next().unwrap_or_default();
        let (mut quality, mut is_known) = (1.0, true);
        for part in parts {
            match part.split_once('=') {
                Some(("q", value)) => quality = value.parse().unwrap_or(0.0),
                Some(("version", value)) => {
                    is_known = ["1.0.0", "0.0.1"].contains(&value.trim_matches('"'));
                }
                _ => {}
            }
        }
        match &*name {
            "application/openmetrics-text" if is_known => open = open.max(quality),
            "text/plain" | "text/*" | "*/*" => plain = plain.max(quality),
            _ => {}
        }
    }
    if open > 0.0 && open >= plain { Format::OpenMetrics } else { Format::Prometheus }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(method: Method, uri: &str, headers: &[(&str, &str)]) -> Result<Wanted, StatusCode> {
        asked(method, uri, headers, Hosts::Local)
    }

    fn asked(
        method: Method,
        uri: &str,
        headers: &[(&str, &str)],
        hosts: Hosts,
    ) -> Result<Wanted, StatusCode> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = hyper::header::HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.append(name, value.parse().unwrap());
        }
        wanted(&method, &uri.parse().unwrap(), &map, hosts).map_err(|refused| refused.status)
    }

    #[test]
    fn paths_and_methods_that_do_not_exist_are_refused() {
        let host = [("host", "127.0.0.1:9477")];
        assert_eq!(ask(Method::GET, "/", &host), Ok(Wanted::Page));
        assert_eq!(ask(Method::HEAD, "/api/sample?x=1", &host), Ok(Wanted::Sample));
        let metrics = Ok(Wanted::Metrics(Format::Prometheus));
        assert_eq!(ask(Method::GET, "/metrics", &host), metrics);
        for path in ["/metrics/", "/../etc/passwd", "//", "/favicon.ico", "*"] {
            assert_eq!(ask(Method::GET, path, &host), Err(StatusCode::NOT_FOUND), "{path}");
        }
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS, Method::TRACE] {
            assert_eq!(ask(method, "/", &host), Err(StatusCode::METHOD_NOT_ALLOWED));
        }
    }

    #[test]
    fn a_request_must_name_a_loopback_address_or_localhost_once() {
        let own = ["localhost", "LOCALHOST:1", "127.0.0.1", "127.9.9.9:80", "[::1]:9477"];
        for host in own {
            assert_eq!(ask(Method::GET, "/", &[("host", host)]), Ok(Wanted::Page), "{host}");
        }
        let strange = [
            "attacker.example",
            "localhost.attacker.example:9477",
            "10.0.0.1",
            "0.0.0.0:9477",
            "[::]",
            "localhost@attacker.example",
            "http://localhost/",
            "/localhost",
            "",
        ];
        for host in strange {
            let answer = ask(Method::GET, "/", &[("host", host)]);
            assert_eq!(answer, Err(StatusCode::MISDIRECTED_REQUEST), "{host}");
            let answer = asked(Method::GET, "/", &[("host", host)], Hosts::Any);
            assert_eq!(answer, Ok(Wanted::Page), "{host}");
        }
        let twice = [("host", "localhost"), ("host", "attacker.example")];
        let answers = [
            ask(Method::GET, "/", &[]),
            ask(Method::GET, "/", &twice),
            ask(Method::GET, "http://attacker.example/", &twice[..1]),
        ];
        assert_eq!(answers, [Err(StatusCode::MISDIRECTED_REQUEST); 3]);
        assert_eq!(ask(Method::GET, "http://localhost/", &twice[..1]), Ok(Wanted::Page));
    }

    #[test]
    fn openmetrics_is_sent_to_those_that_want_it_at_least_as_much() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.2,\
            */*;q=0.1";
        for (accept, expected) in [
            (prometheus, Format::OpenMetrics),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("Application/OpenMetrics-Text; Version=\"1.0.0\", */*", Format::OpenMetrics),
            ("application/openmetrics-text;version=2.0.0", Format::Prometheus),
            ("application/openmetrics-text;q=0", Format::Prometheus),
            ("application/openmetrics-text;q=nan", Format::Prometheus),
            ("application/openmetrics-text;q=0.3, text/plain", Format::Prometheus),
            ("text/html,*/*;q=0.8", Format::Prometheus),
            ("", Format::Prometheus),
            (";;=,,;q", Format::Prometheus),
        ] {
            let headers = [("host", "localhost"), ("accept", accept)];
            let answer = ask(Method::GET, "/metrics", &headers);
            assert_eq!(answer, Ok(Wanted::Metrics(expected)), "{accept}");
        }
    }
}
