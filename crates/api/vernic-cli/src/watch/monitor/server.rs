//! The HTTP server: connections, their limits, and the answers.
//!
//! A connection carries one request, so that none is held for longer than an answer takes.
//!
//! | limit | value |
//! |---|---|
//! | connections at once; further ones wait in the kernel's queue | 64 |
//! | bytes of a request's line and headers | 8192 |
//! | time for these | 5 s |
//! | time for a connection | 20 s |

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::looks::{Look, Looks};
use super::metrics::expose;
use super::request::{Hosts, Refused, Wanted, wanted};
use crate::failure::{Doing, Outcome};

const MAX_CONNECTIONS: usize = 64;
/// The least that hyper takes; a browser's headers are a kilobyte.
const MAX_REQUEST_BYTES: usize = 8192;
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Above the time of headers and that of a sample, which is 2 s at most.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(20);
/// How long no connection is taken after the system had no descriptor for one.
const PAUSE: Duration = Duration::from_millis(100);

/// The page for browsers. All of it is in this file: nothing is loaded from elsewhere.
const PAGE: &str = include_str!("page.html");

/// What the page may do: run the script and the styles in it, and ask this server.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; \
     script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// What requests are answered from.
#[derive(Debug)]
pub(super) struct Monitor {
    pub(super) looks: Looks,
    pub(super) hosts: Hosts,
    pub(super) per_qp: bool,
}

/// A socket that listens, and its address.
///
/// # Errors
/// The address is not of this host, or the port is taken.
pub(super) async fn listen(address: SocketAddr) -> Outcome<(TcpListener, SocketAddr)> {
    let attempt = || format!("listen on {address}");
    let listener = TcpListener::bind(address).await.doing(attempt).map_err(|failure| {
        failure
            .hint("is there another `vernic monitor`? --listen ADDRESS:PORT chooses; port 0 is any")
    })?;
    let address = listener.local_addr().doing(attempt)?;
    Ok((listener, address))
}

/// Answers requests for ever.
pub(super) async fn serve(listener: &TcpListener, monitor: Arc<Monitor>) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    // The semaphore is never closed.
    while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let served = connection(stream, Arc::clone(&monitor));
                tokio::spawn(async move {
                    served.await;
                    drop(slot);
                });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Serves a connection. How it ends is the client's business.
async fn connection(stream: TcpStream, monitor: Arc<Monitor>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (method, uri, headers) = (request.method(), request.uri(), request.headers());
        let wanted = wanted(method, uri, headers, monitor.hosts);
        answer(wanted, Arc::clone(&monitor))
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_REQUEST_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, served).await;
}

async fn answer(
    wanted: Result<Wanted, Refused>,
    monitor: Arc<Monitor>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(match wanted {
        Ok(Wanted::Page) => response(StatusCode::OK, "text/html; charset=utf-8", PAGE.into()),
        Ok(wanted) => match monitor.looks.look().await {
            Ok(look) => monitor.told(wanted, &look),
            Err(why) => plain(StatusCode::INTERNAL_SERVER_ERROR, why + "\n"),
        },
        Err(Refused { status, why }) => plain(status, format!("{why}\n")),
    })
}

impl Monitor {
    /// A sample in the form that is wanted.
    fn told(&self, wanted: Wanted, look: &Look) -> Response<Full<Bytes>> {
        if let Wanted::Metrics(format) = wanted {
            let text = expose(format, look, self.per_qp);
            return response(StatusCode::OK, format.content_type(), text.into());
        }
        match serde_json::to_string(&look.now.view(look.before.as_deref())) {
            Ok(json) => response(StatusCode::OK, "application/json", json.into()),
            Err(why) => {
                plain(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write JSON: {why}\n"))
            }
        }
    }
}

fn plain(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    response(status, "text/plain; charset=utf-8", text.into())
}

fn response(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let fields = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    let headers = response.headers_mut();
    headers.extend(fields.map(|(name, value)| (name, HeaderValue::from_static(value))));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
