//! Streams between a program of C on rsockets and one of Rust in a runtime.

mod common;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use common::Folder;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use vernic::net::{RdmaListener, RdmaStream};

const LONG: Duration = Duration::from_secs(60);
/// As many bytes as the program sends.
const MANY: usize = 1_000_000;

fn folder_and_program() -> Option<(Folder, std::path::PathBuf)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join("rsocket_peer.c");
    let folder = Folder::new("rsocket_peer");
    let program = folder.compile(&source)?;
    Some((folder, program))
}

/// Waits for a good end of the program.
async fn finish(mut child: Child) {
    let ended = tokio::task::spawn_blocking(move || {
        let mut out = String::new();
        let _ = child.stdout.take().map(|mut pipe| pipe.read_to_string(&mut out));
        (child.wait().unwrap(), out)
    });
    let (status, out) = timeout(LONG, ended).await.unwrap().unwrap();
    assert!(status.success(), "{status:?}\n{out}");
}

#[tokio::test]
async fn a_server_of_c_sends_back_what_a_stream_writes_and_ends_after_it() {
    let Some((folder, program)) = folder_and_program() else { return };
    let mut command = folder.command_with(&program, &[]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let port: u16 = line.rsplit(' ').next().unwrap().trim().parse().unwrap();

    let stream = RdmaStream::connect(("127.0.0.1", port)).await.unwrap();
    let (mut incoming, mut outgoing) = tokio::io::split(stream);
    let bytes: Vec<u8> = (0..MANY).map(|at| (at % 241) as u8).collect();
    let sending = async {
        outgoing.write_all(&bytes).await.unwrap();
        outgoing.shutdown().await.unwrap();
    };
    let mut back = Vec::new();
    let both = async { tokio::join!(sending, incoming.read_to_end(&mut back)) };
    let ((), read) = timeout(LONG, both).await.unwrap();
    read.unwrap();
    assert!(back == bytes, "{} bytes came back", back.len());
    finish(child).await;
}

#[tokio::test]
async fn a_client_of_c_gets_back_what_it_sends_and_then_the_end() {
    let Some((folder, program)) = folder_and_program() else { return };
    let listener = RdmaListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let mut command = folder.command_with(&program, &[]);
    let child = command.arg(port).stdout(Stdio::piped()).spawn().unwrap();

    let mut stream = timeout(LONG, listener.accept()).await.unwrap().unwrap();
    let mut bytes = Vec::new();
    timeout(LONG, stream.read_to_end(&mut bytes)).await.unwrap().unwrap();
    assert_eq!(bytes.len(), MANY);
    stream.write_all(&bytes).await.unwrap();
    stream.shutdown().await.unwrap();
    finish(child).await;
}
