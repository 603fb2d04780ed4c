//! Programs of every day under the library: what it concerns they see, the rest is as it was.

use std::fs;
use std::io::Write as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Numbers for names.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A folder with a device, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let name = format!("vernic-paths-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let folder = std::env::temp_dir().join(name);
        let port = folder.join("sys/class/infiniband/vernic0/ports/1");
        fs::create_dir_all(&port).unwrap();
        fs::write(port.join("state"), "4: ACTIVE\n").unwrap();
        fs::create_dir_all(folder.join("dev/infiniband")).unwrap();
        symlink("/dev/null", folder.join("dev/infiniband/uverbs0")).unwrap();
        for list in ["counters", "hw_counters"] {
            fs::create_dir(port.join(list)).unwrap();
            fs::write(port.join(list).join("packets"), "").unwrap();
        }
        Self(folder)
    }

    /// A shell line under the library.
    fn shell(&self, line: &str) -> Output {
        self.command("sh").args(["-c", line]).output().unwrap()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", library()).env("VERNIC_PATHS", &self.0).env("LC_ALL", "C");
        command
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// cargo leaves the library in the folder of test programs.
fn library() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libvernic_paths.so");
    assert!(library.exists(), "cargo builds {} before its tests", library.display());
    library
}

/// A program of this folder, compiled.
fn compiled(folder: &Folder, source: &str) -> PathBuf {
    let program = folder.0.join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let built = Command::new("cc").arg("-O2").arg(&source).arg("-o").arg(&program).status();
    assert!(built.expect("a C compiler links Rust programs").success());
    program
}

fn printed(output: &Output) -> &str {
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    std::str::from_utf8(&output.stdout).unwrap()
}

#[test]
fn everyday_programs_read_what_is_shown() {
    let folder = Folder::new();
    let state = "/sys/class/infiniband/vernic0/ports/1/state";
    for (line, expected) in [
        ("ls /sys/class/infiniband", "vernic0\n"),
        ("ls /sys/class/infiniband/", "vernic0\n"),
        ("ls //sys///class//infiniband//", "vernic0\n"),
        ("ls -d /sys/class/infiniband/vernic0/ports/1", "/sys/class/infiniband/vernic0/ports/1\n"),
        (&format!("cat {state}"), "4: ACTIVE\n"),
        (&format!("read -r x < {state}; echo $x"), "4: ACTIVE\n"),
        (&format!("[ -r {state} ] && echo yes"), "yes\n"),
        (&format!("stat -c %s {state}"), "10\n"),
        ("find /sys/class/infiniband -name state", &format!("{state}\n")),
        ("cd /sys/class/infiniband/vernic0 && ls", "ports\n"),
        ("env -i cat /etc/hostname | cmp - /etc/hostname && echo same", "same\n"),
    ] {
        assert_eq!(printed(&folder.shell(line)), expected, "{line}");
    }
    let long = folder.shell("ls -l /sys/class/infiniband /dev/infiniband");
    assert!(printed(&long).contains("uverbs0 -> /dev/null"));
}

#[test]
fn a_device_node_is_a_character_device_that_can_be_opened_for_both() {
    let line = "[ -c /dev/infiniband/uverbs0 ] && [ -w /dev/infiniband/uverbs0 ] \
                && exec 3<>/dev/infiniband/uverbs0 && echo open";
    assert_eq!(printed(&Folder::new().shell(line)), "open\n");
}

#[test]
fn neighbours_of_what_is_shown_are_the_kernels() {
    let folder = Folder::new();
    fs::create_dir_all(folder.0.join("sys/class/infinibandit")).unwrap();
    fs::create_dir_all(folder.0.join("sys/class/net/other")).unwrap();
    let output = folder.shell("ls -d /sys/class/infinibandit /sys/class/net/other");
    assert!(output.stdout.is_empty() && !output.status.success(), "{output:?}");
    assert!(printed(&folder.shell("ls /sys/class/net")).contains("lo"));
}

#[test]
fn without_the_variable_nothing_is_shown() {
    let folder = Folder::new();
    for folder_variable in [None, Some("")] {
        let mut command = folder.command("ls");
        command.arg("/sys/class/infiniband/vernic0").env_remove("VERNIC_PATHS");
        command.envs(folder_variable.map(|value| ("VERNIC_PATHS", value)));
        let output = command.output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    }
}

#[test]
fn a_path_that_would_become_too_long_is_left_alone() {
    let folder = Folder::new();
    let path = format!("/dev/infiniband/{}", "x/".repeat(2030));
    let error = folder.shell(&format!("cat {path}"));
    let text = String::from_utf8(error.stderr).unwrap();
    assert!(text.contains("No such file or directory"), "{text}");
}

#[test]
fn a_file_is_created_where_the_folder_is_and_with_its_mode() {
    let folder = Folder::new();
    printed(&folder.shell("umask 0; echo one > /dev/infiniband/new"));
    let made = folder.0.join("dev/infiniband/new");
    assert_eq!(fs::read_to_string(&made).unwrap(), "one\n");
    assert_eq!(fs::metadata(&made).unwrap().permissions().mode() & 0o777, 0o666);
}

/// Calls of libc that everyday programs do not make.
#[test]
fn a_program_in_c_finds_the_files_by_every_function() {
    let folder = Folder::new();
    let program = compiled(&folder, "functions.c");
    let output = folder.command(program.to_str().unwrap()).output().unwrap();
    assert_eq!(printed(&output), "ok\n");
    let alone = Command::new(&program).output().unwrap();
    assert!(!alone.status.success(), "{alone:?}");
}

/// Processes that have a device open, as far as others see them: one for each text. They say it to
/// whoever asks.
struct Processes {
    device: String,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Processes {
    /// Their device is in the folder from now on, under a name of its own.
    fn new(folder: &Folder, texts: &[&str]) -> Self {
        let device = format!("fake{}", COUNT.fetch_add(1, Relaxed) + 100 * std::process::id());
        let class = folder.0.join("sys/class/infiniband");
        fs::rename(class.join("vernic0"), class.join(&device)).unwrap();
        let verbs = folder.0.join("sys/class/infiniband_verbs/uverbs7");
        fs::create_dir_all(&verbs).unwrap();
        fs::write(verbs.join("ibdev"), format!("{device}\n")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = |(number, text): (usize, &&str)| {
            let name = format!("vernic/status/{device}/{number}");
            let address = SocketAddr::from_abstract_name(name).unwrap();
            let listener = UnixListener::bind_addr(&address).unwrap();
            listener.set_nonblocking(true).unwrap();
            let (text, stop) = (text.to_string(), stop.clone());
            thread::spawn(move || {
                while !stop.load(Relaxed) {
                    match listener.accept() {
                        // One that has nothing to say is stopped: whoever asks waits.
                        Ok((asker, _)) if text.is_empty() => std::mem::forget(asker),
                        Ok((mut asker, _)) => asker.write_all(text.as_bytes()).unwrap(),
                        Err(_) => thread::sleep(Duration::from_millis(1)),
                    }
                }
            })
        };
        let threads = texts.iter().enumerate().map(thread).collect();
        Self { device, stop, threads }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn a_counter_is_the_sum_of_what_processes_say_when_it_is_opened() {
    for (texts, port, hw) in [
        (&[][..], "0", "0"),
        (&["device x\nport packets 7\nhw packets 1\nend\n"], "7", "1"),
        (&["port packets 7\nend\n", "new line\nport packets 5\nhw packets 3\nend\n"], "12", "3"),
    ] {
        let folder = Folder::new();
        let processes = Processes::new(&folder, texts);
        let port_folder = format!("/sys/class/infiniband/{}/ports/1", processes.device);
        let line = format!(
            "cat {port_folder}/counters/packets; cd {port_folder}/hw_counters; cat packets; \
             wc -c < packets"
        );
        assert_eq!(printed(&folder.shell(&line)), format!("{port}\n{hw}\n2\n"));
    }
}

#[test]
fn a_process_that_does_not_say_all_makes_a_counter_unknown_not_smaller() {
    for silent in ["", "port packets 5\n"] {
        let folder = Folder::new();
        let processes = Processes::new(&folder, &["port packets 7\nend\n", silent]);
        let path = format!("/sys/class/infiniband/{}/ports/1/counters/packets", processes.device);
        let output = folder.shell(&format!("cat {path}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.stdout.is_empty() && said.contains("timed out"), "{output:?}");
    }
}

#[test]
fn netlink_of_rdma_is_answered_also_by_sendmsg_and_in_pieces() {
    let folder = Folder::new();
    let _processes = Processes::new(&folder, &[]);
    let program = compiled(&folder, "netlink.c");
    let output = folder.command(program.to_str().unwrap()).output().unwrap();
    assert_eq!(printed(&output), "ok\n");
    // Without the variable such a socket is the kernel's, or none.
    let mut command = folder.command(program.to_str().unwrap());
    let output = command.env_remove("VERNIC_PATHS").output().unwrap();
    assert!(!output.status.success(), "{output:?}");
}
