//! Connections of iWARP that programs make themselves.

use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

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

#[test]
fn the_kernel_keeps_to_the_rate_limit_of_a_queue_pair() {
    const KBPS: u32 = 20_000;
    const BYTES: usize = 8 << 10;
    let device = device();
    let (pd, cq_a) = (device.alloc_pd().unwrap(), device.create_cq(256).unwrap());
    let cq_b = device.create_cq(256).unwrap();
    let make = |cq, limit| {
        let qp = pd.qp::<Rc>().send_cq(cq).recv_cq(cq).rate_limit(limit).create().unwrap();
        qp.init(InitAttr::default()).unwrap()
    };
    let options = Options { patience: Duration::from_secs(20), ..Options::default() };
    let listener = Listener::bind(&device, SocketAddr::from(HOME), &options).unwrap();
    let addr = listener.local_addr().unwrap();
    let (a, b) = std::thread::scope(|scope| {
        let b = make(&cq_b, RateLimit::NONE);
        let b = scope.spawn(|| listener.accept(b));
        let a = make(&cq_a, RateLimit::kbps(KBPS));
        (a.connect_tcp(Ipv4Addr::LOCALHOST.into(), addr, &options), b.join().unwrap())
    });
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!(a.attributes().rate_limit, RateLimit::kbps(KBPS));
    let memory = pd.alloc_mr(BYTES, Access::NONE.local_write()).unwrap();
    for id in 0..64 {
        b.post_recv(WrId(id), &memory).unwrap();
    }
    let (begun, mut received) = (Instant::now(), 0);
    let (mut sending, mut wcs) = (0, [Wc::default(); 32]);
    while begun.elapsed() < Duration::from_secs(1) {
        while sending < 32 && a.post_send(WrId(0), &memory).is_ok() {
            sending += 1;
        }
        sending -= cq_a.poll(&mut wcs).unwrap().len();
        for _ in cq_b.poll(&mut wcs).unwrap() {
            received += BYTES;
            b.post_recv(WrId(0), &memory).unwrap();
        }
    }
    // What TCP sends together comes on top: 64 KiB and more on such a fast path.
    let most = f64::from(KBPS) * 125.0 * begun.elapsed().as_secs_f64() * 1.1 + 256e3;
    assert!(received > 0 && received as f64 <= most, "{received} bytes, {most} at most");
    a.set_rate_limit(RateLimit::NONE).unwrap();
}
