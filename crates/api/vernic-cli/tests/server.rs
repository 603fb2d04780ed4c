//! A bench server serves its clients, whoever else knocks.

use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

fn vernic(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command
}

/// A server with `--once`, ended when dropped.
struct Server {
    process: Child,
    said: BufReader<ChildStdout>,
    port: u16,
}

impl Server {
    fn start(environment: &[(&str, &str)]) -> Self {
        // A port that was just free.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let mut command = vernic(&format!("bench server --once -p {port}"));
        command.envs(environment.iter().copied());
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(process.stdout.take().unwrap());
        let mut server = Self { process, said, port };
        assert!(server.line().contains("waiting"));
        server
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line
    }

    fn knock(&self) -> TcpStream {
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap()
    }

    fn client(&self, options: &str) -> Command {
        let port = self.port;
        vernic(&format!(
            "bench client 127.0.0.1 -p {port} --json --rounds 1 --no-baselines {options}"
        ))
    }

    fn exit_code(&mut self) -> Option<i32> {
        self.process.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended, or the test has failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn results(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["results"].as_array().unwrap().clone()
}

#[test]
fn a_client_measures_against_a_server() {
    let mut server = Server::start(&[]);
    let output = server.client("-n 20 -c RC,UD --op send -s 64").output().unwrap();
    assert_eq!(results(&output).len(), 2);
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn the_smaller_mtu_of_both_ends_is_taken() {
    let mut server = Server::start(&[("VERNIC_MTU", "512")]);
    let output = server.client("-n 20 -c RC --op send -s 64 --test lat").output().unwrap();
    assert_eq!(results(&output)[0]["mtu_bytes"], 512);
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn those_who_are_no_clients_hold_up_and_hurt_nobody() {
    let mut server = Server::start(&[]);
    let _mute = server.knock();
    let mut web = server.knock();
    web.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(server.line().contains("not a client: 127.0.0.1"));
    let mut endless = server.knock();
    // A line longer than any message; the server may hang up before it has all of it.
    let _ = endless.write_all(&vec![b'x'; 3 << 20]);
    assert!(server.line().contains("not a client"));
    let output = server.client("-n 20 -c RC --op send -s 64").output().unwrap();
    assert_eq!(results(&output).len(), 1);
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn an_order_beyond_all_memory_is_refused() {
    let mut server = Server::start(&[]);
    let mut client = server.knock();
    let hello = b"{\"Hello\":{\"protocol\":2,\"token\":\"\"}}\n";
    let order = br#"{"Prepare":{"Verbs":{"op":"WRITE","service":"RC","kind":"throughput","size":2147483648,"mtu":1024,
        "qps":1024,"tx_depth":1,"rx_depth":1,"post_list":1,"cq_mod":1,"inline_size":0,"outstanding":1,
        "qp_timeout":14,"passive":false}}}"#;
    let order: Vec<u8> = order.iter().copied().filter(|byte| *byte != b'\n').collect();
    let order = String::from_utf8(order).unwrap() + "\n";
    client.write_all(hello).unwrap();
    client.write_all(order.as_bytes()).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("Ready") && answer.contains("are available here"), "{answer}");
    assert_ne!(server.exit_code(), Some(0));
}

#[test]
fn a_client_that_fails_is_a_failure_of_a_server_for_one() {
    let mut server = Server::start(&[]);
    let line = "-n 5 -c RC --op write --test lat -s 64 -u 8";
    let output = server.client(line).env("VERNIC_FAULT", "loss=1").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(server.exit_code(), Some(1));
}

#[test]
fn a_server_with_bad_settings_does_not_start() {
    for (variable, value) in
        [("VERNIC_FAULT", "loss=2"), ("VERNIC_MTU", "1500"), ("VERNIC_DEVICE", "mlx5_0")]
    {
        let output = vernic("bench server --once -p 0").env(variable, value).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{variable}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(value), "{output:?}");
    }
}
