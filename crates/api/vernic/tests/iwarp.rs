//! Connections of iWARP that programs make themselves.

use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use vernic::iwarp::{IwarpError, Listener, Options};
use vernic::*;

const HOME: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

fn device() -> Device {
    let lo = Device::list().unwrap().into_iter().find(|info| info.port.netdev == "lo").unwrap();
    Device::open(&lo.into_iwarp().name).unwrap()
}

#[test]
fn a_listener_passes_over_what_does_not_speak_mpa_and_takes_who_does() {
    let device = device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let make = || {
        let qp = pd.qp::<Rc>().send_cq(&cq).recv_cq(&cq).create().unwrap();
        qp.init(InitAttr::default()).unwrap()
    };
    let options = Options { patience: Duration::from_secs(20), ..Options::default() };
    let listener = Listener::bind(&device, SocketAddr::from(HOME), &options).unwrap();
    let addr = listener.local_addr().unwrap();
    let stranger = |bytes: &[u8]| {
        let mut socket = TcpStream::connect(addr).unwrap();
        socket.write_all(bytes).unwrap();
        socket
    };
    // One that says nothing and stays, a port scan, a browser, one that ends in the middle of its
    // request.
    let silent = stranger(b"");
    drop(stranger(b""));
    let browser = stranger(b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n");
    stranger(b"MPA ID Req Fr").shutdown(Shutdown::Write).unwrap();
    let (a, b) = std::thread::scope(|scope| {
        let qp = make();
        let b = scope.spawn(|| listener.accept(qp));
        let a = make().connect_tcp(Ipv4Addr::LOCALHOST.into(), addr, &options);
        (a, b.join().unwrap())
    });
    let (_a, _b) = (a.unwrap(), b.unwrap());
    assert_eq!(listener.passed_over(), 3);
    drop((silent, browser));
}

#[test]
fn a_listener_that_nobody_asks_says_who_came_to_nothing() {
    let device = device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let qp = pd.qp::<Rc>().send_cq(&cq).recv_cq(&cq).create().unwrap();
    let options = Options { patience: Duration::from_millis(200), ..Options::default() };
    let listener = Listener::bind(&device, SocketAddr::from(HOME), &options).unwrap();
    let addr = listener.local_addr().unwrap();
    drop(TcpStream::connect(addr).unwrap());
    let error = listener.accept(qp.init(InitAttr::default()).unwrap()).unwrap_err();
    assert!(matches!(error, IwarpError::Nobody { passed_over: 1, .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&addr.to_string()) && text.contains("; 1 so far"), "{text}");
}
