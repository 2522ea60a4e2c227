//! The socket's file: its mode, what is replaced, and its end. Sockets from systemd.

use super::access::TOKEN;
use super::client::Place;
use super::rig::{Rig, Server};
use gpulimit_support::{Running, is_root};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

fn refused(rig: &Rig) -> String {
    let listen = format!("unix:{}", rig.socket().display());
    let output = rig
        .gpulimit(&["serve", "--listen", &listen])
        .output()
        .expect("started");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn only_the_owner_can_connect_to_the_socket() {
    let rig = Rig::new();
    // The umask of the caller does not matter.
    let mut shell = Command::new("sh");
    let listen = format!("unix:{}", rig.socket().display());
    let controller = rig.gpulimit(&["serve", "--listen", &listen]);
    shell
        .args(["-c", "umask 0; exec \"$@\"", "sh"])
        .arg(controller.get_program());
    shell.args(controller.get_args());
    for (name, value) in controller.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let _server = Server::start(shell);
    let about = fs::symlink_metadata(rig.socket()).unwrap();
    assert_eq!(about.permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_signal_ends_the_server_and_removes_its_socket() {
    let rig = Rig::new();
    for signal in [15, 2] {
        let mut server = rig.unix(&[]);
        let _idle = server.place.connect();
        let _stream = server.place.connect();
        assert!(server.end(signal).success());
        assert!(!rig.socket().exists());
    }
}

#[test]
fn a_socket_without_listener_is_replaced() {
    let rig = Rig::new();
    let mut server = rig.unix(&[]);
    server.end(9);
    assert!(rig.socket().exists(), "a killed server leaves its socket");
    let server = rig.unix(&[]);
    assert_eq!(server.place.get("/metrics").status, 200);
    assert!(refused(&rig).contains("another process listens"));
    assert_eq!(server.place.get("/metrics").status, 200);
}

#[test]
fn other_files_are_neither_replaced_nor_followed() {
    let rig = Rig::new();
    fs::write(rig.socket(), "mine").unwrap();
    assert!(refused(&rig).contains("not a socket"));
    assert_eq!(fs::read_to_string(rig.socket()).unwrap(), "mine");
    fs::remove_file(rig.socket()).unwrap();
    // A link to a socket without listener, and one to nothing.
    let stale = rig.world.file("stale");
    drop(UnixListener::bind(&stale).unwrap());
    for target in [&stale, &rig.world.file("nothing")] {
        symlink(target, rig.socket()).unwrap();
        assert!(refused(&rig).contains("not a socket"));
        fs::remove_file(rig.socket()).unwrap();
    }
    assert!(stale.exists() && !rig.world.file("nothing").exists());
}

#[test]
fn a_socket_of_another_user_is_left_alone() {
    let rig = Rig::new();
    drop(UnixListener::bind(rig.socket()).unwrap());
    if !is_root() {
        return;
    }
    chown(rig.socket(), Some(65534), None).expect("given away");
    assert!(refused(&rig).contains("another user"));
    assert!(rig.socket().exists());
}

#[test]
fn a_server_leaves_a_file_that_replaced_its_socket() {
    let rig = Rig::new();
    let mut server = rig.unix(&[]);
    fs::remove_file(rig.socket()).unwrap();
    fs::write(rig.socket(), "mine").unwrap();
    assert!(server.end(15).success());
    assert_eq!(fs::read_to_string(rig.socket()).unwrap(), "mine");
}

#[test]
fn the_default_socket_is_private_to_the_user() {
    let rig = Rig::new();
    let folder = rig.world.file("runtime");
    fs::create_dir(&folder).unwrap();
    let mut command = rig.gpulimit(&["serve"]);
    command.env("XDG_RUNTIME_DIR", &folder);
    // Root's default is /run/gpulimit.sock.
    if fs::metadata(&folder).unwrap().uid() == 0 {
        const USER: u32 = 65_532;
        chown(&folder, Some(USER), Some(USER)).unwrap();
        command.uid(USER).gid(USER);
    }
    let server = Server::start(command);
    let Place::Unix(path) = &server.place else {
        unreachable!()
    };
    assert_eq!(*path, folder.join("gpulimit.sock"));
}

/// Starts a server as systemd does, with the sockets that this Python code makes: `pass_on(socket)`
/// passes a socket.
fn activated(rig: &Rig, sockets: &str, arguments: &[&str]) -> Command {
    let controller = rig.gpulimit(&["serve"]);
    let mut python = Command::new("python3");
    python
        .args(["-c", &format!("{BEFORE}{sockets}{AFTER}")])
        .arg(rig.socket())
        .arg(controller.get_program())
        .arg("serve")
        .args(arguments);
    for (name, value) in controller.get_envs() {
        match value {
            Some(value) => python.env(name, value),
            None => python.env_remove(name),
        };
    }
    python
}

const PRIVATE: &str = r#"
os.umask(0o177)
s.bind(path)
s.listen()
pass_on(s)
"#;

/// systemd passes an open socket as descriptor 3 (`sd_listen_fds`).
#[test]
fn a_socket_from_systemd_is_used() {
    let rig = Rig::new();
    let python = activated(&rig, PRIVATE, &[]);
    let mut server = Server::start_at(python, Place::Unix(rig.socket()));
    assert_eq!(server.place.get("/metrics").status, 200);
    assert!(server.end(15).success());
    assert!(rig.socket().exists(), "the socket is systemd's");
}

#[test]
fn a_socket_from_systemd_is_not_ignored_for_an_option() {
    let rig = Rig::new();
    let python = activated(&rig, PRIVATE, &["--listen", "unix:/nowhere/socket"]).output();
    let output = python.expect("started");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("leave out --listen"), "{text}");
}

#[test]
fn a_socket_from_systemd_for_everybody_needs_a_token_or_public() {
    let rig = Rig::new();
    let open = "os.umask(0)\ns.bind(path)\ns.listen()\npass_on(s)\n";
    let nameless = "s.bind('\\0gpulimit-' + path)\ns.listen()\npass_on(s)\n";
    for sockets in [open, nameless] {
        let output = activated(&rig, sockets, &[]).output().expect("started");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("SocketMode=0600"), "{text}");
        let _ = fs::remove_file(rig.socket());
    }
    let python = activated(&rig, open, &["--public"]);
    let server = Server::start_at(python, Place::Unix(rig.socket()));
    assert_eq!(server.place.get("/metrics").status, 200);
}

#[test]
fn sockets_from_systemd_that_cannot_be_served_are_refused() {
    let rig = Rig::new();
    let second = format!("{PRIVATE}pass_on(s)\n");
    for (sockets, why) in [
        ("s.bind(path)\npass_on(s)\n", "not a listening"),
        ("pass_on(socket.socketpair()[0])\n", "not a listening"),
        (&*second, "systemd passed 2 sockets"),
    ] {
        let output = activated(&rig, sockets, &[]).output().expect("started");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(why), "{text}");
        let _ = fs::remove_file(rig.socket());
    }
}

/// systemd keeps a port when the server ends, so a token may be expected there. `localhost` has two
/// addresses.
#[test]
fn ports_from_systemd_are_kept_and_may_be_two() {
    let rig = Rig::new();
    let token = rig.world.file("token");
    fs::write(&token, TOKEN).unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let (listener, port) = loop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        match TcpListener::bind(("::1", port)) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            _ => break (listener, port),
        }
    };
    drop(listener);
    let two = format!(
        "pass_on(socket.create_server(('127.0.0.1', {port})))\n\
         if socket.has_ipv6: pass_on(socket.create_server(('::1', {port}), \
         family=socket.AF_INET6))\n"
    );
    let arguments = ["--token-file", token.to_str().unwrap()];
    let place = Place::Tcp(([127, 0, 0, 1], port).into());
    if TcpListener::bind("[::1]:0").is_ok() {
        // Only systemd can keep the other address.
        let one = two.lines().next().expect("a line").to_owned() + "\n";
        let mut python = activated(&rig, &one, &arguments);
        let mut server = Running::start(python.stderr(Stdio::piped()));
        let errors = BufReader::new(server.stderr.take().expect("piped"));
        let said = errors.lines().next().expect("a line").expect("read");
        assert!(
            said.contains(&format!("ListenStream=[::1]:{port}")),
            "{said}"
        );
    }
    let server = Server::start_at(activated(&rig, &two, &arguments), place);
    assert_eq!(server.place.get("/metrics").status, 401);
    let second = Place::Tcp((std::net::Ipv6Addr::LOCALHOST, port).into());
    assert_eq!(second.get("/metrics").status, 401);
}

const BEFORE: &str = r#"
import fcntl, os, socket, sys
path = sys.argv[1]
passed = []
s = socket.socket(socket.AF_UNIX)
def pass_on(socket):
    passed.append(fcntl.fcntl(socket, fcntl.F_DUPFD, 20))
"#;

const AFTER: &str = r#"
for at, number in enumerate(passed):
    os.dup2(number, 3 + at)
    os.set_inheritable(3 + at, True)
os.environ["LISTEN_FDS"] = str(len(passed))
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"#;
