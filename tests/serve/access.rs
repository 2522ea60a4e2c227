//! Who may see: hosts, methods, tokens, and what everybody sees.

use super::client::{Answer, Place};
use super::rig::{GIB, Rig, Server, refuse};
use gpulimit_base::units::Size;
use gpulimit_support::{finish, is_root, skip, wait_until};
use std::fs::{self, Permissions};
use std::net::{Ipv6Addr, TcpListener};
use std::os::unix::fs::{PermissionsExt, symlink};

pub const TOKEN: &str = "0123456789abcdef+/==";

/// Every kind of answer.
const PATHS: [&str; 6] = [
    "/",
    "/metrics",
    "/api/v1/state",
    "/api/v1/history",
    "/api/v1/events",
    "/nothing",
];

pub fn with_token(rig: &Rig) -> Server {
    with_token_and(rig, &[])
}

/// Starts a server that wants the token, with these variables in its environment.
pub fn with_token_and(rig: &Rig, variables: &[(&str, &str)]) -> Server {
    let file = rig.world.file("token");
    fs::write(&file, format!("{TOKEN}\n")).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let listen = ["serve", "--listen", "127.0.0.1:0", "--unprotected-port"];
    let token = ["--token-file", file.to_str().unwrap()];
    let mut command = rig.gpulimit(&[&listen[..], &token].concat());
    command.envs(variables.iter().copied());
    Server::start(command)
}

fn with_host(place: &Place, host: &str) -> u16 {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n");
    place.send(&request).expect("an answer").status
}

#[test]
fn requests_for_other_hosts_are_refused() {
    let rig = Rig::new();
    let server = rig.tcp(&["--public", "--allow-host", "gpu.example.org"]);
    let Place::Tcp(address) = server.place else {
        unreachable!()
    };
    let port = address.port();
    for host in [
        format!("localhost:{port}"),
        format!("LOCALHOST:{port}"),
        format!("127.0.0.1:{port}"),
        format!("127.9.9.9:{port}"),
        format!("[::1]:{port}"),
        "gpu.example.org".into(),
        "gpu.example.org:443".into(),
    ] {
        assert_eq!(with_host(&server.place, &host), 200, "{host}");
    }
    for host in [
        format!("elsewhere.test:{port}"),
        format!("localhost.elsewhere.test:{port}"),
        format!("127.0.0.1.elsewhere.test:{port}"),
        format!("192.168.0.1:{port}"),
        format!("[::2]:{port}"),
        format!("0.0.0.0:{port}"),
        format!("localhost:{}", port ^ 1),
        "localhost".into(),
        "localhost:".into(),
        "localhost:x".into(),
        "::1".into(),
        String::new(),
    ] {
        assert_eq!(with_host(&server.place, &host), 403, "{host}");
    }
    let send = |text: &str| server.place.send(text).expect("an answer").status;
    assert_eq!(send("GET /metrics HTTP/1.1\r\n\r\n"), 403, "no host");
    assert_eq!(send("GET /metrics HTTP/1.0\r\n\r\n"), 403, "an old client");
    let both = format!("Host: 127.0.0.1:{port}\r\nHost: elsewhere.test\r\n");
    assert_eq!(
        send(&format!("GET / HTTP/1.1\r\n{both}\r\n")),
        403,
        "two hosts"
    );
    let whole = format!("GET http://elsewhere/metrics HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    assert_eq!(send(&whole), 403, "another host in the address");
}

#[test]
fn a_unix_socket_answers_for_any_port_of_this_machine_only() {
    let rig = Rig::new();
    let server = rig.unix(&[]);
    for host in ["localhost", "localhost:8000", "127.0.0.1:8000"] {
        assert_eq!(with_host(&server.place, host), 200, "{host}");
    }
    assert_eq!(with_host(&server.place, "elsewhere.test:8000"), 403);
}

#[test]
fn only_get_and_head_are_answered() {
    let rig = Rig::new();
    let server = rig.unix(&[]);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"] {
        let answer = server.place.ask(method, "/metrics", &[]);
        assert_eq!(answer.status, 405, "{method}");
        assert_eq!(answer.headers["allow"], "GET, HEAD");
    }
    let mut stream = server.place.connect();
    use std::io::{Read, Write};
    for path in PATHS {
        let head = format!("HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let answer = Answer::head(&mut *stream).expect("a head");
        let expected = if path == "/nothing" { 404 } else { 200 };
        assert_eq!(answer.status, expected, "{path}");
    }
    // No answer had a body, so the next bytes are the next answer's.
    stream
        .write_all(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.starts_with("HTTP/1.1 404 "), "{rest}");
}

#[test]
fn all_answers_have_the_headers_that_protect_a_browser() {
    let rig = Rig::new();
    let server = with_token(&rig);
    let bearer = format!("Authorization: Bearer {TOKEN}");
    for path in PATHS {
        for headers in [&[][..], &[&*bearer], &["Origin: http://elsewhere"]] {
            let answer = server.place.ask("GET", path, headers);
            let policy = &answer.headers["content-security-policy"];
            assert!(
                policy.starts_with("default-src 'none'; script-src 'self'"),
                "{policy}"
            );
            assert_eq!(answer.headers["x-content-type-options"], "nosniff");
            assert_eq!(answer.headers["referrer-policy"], "no-referrer");
            assert!(answer.headers.contains_key("content-type"));
            let kept = &answer.headers["cache-control"];
            assert_eq!(
                kept == "no-store",
                path != "/" || headers != [&*bearer],
                "{path}"
            );
            let cors = answer
                .headers
                .keys()
                .find(|name| name.contains("access-control"));
            assert_eq!(cors, None);
        }
    }
}

#[test]
fn without_the_token_nothing_is_shown() {
    let rig = Rig::new();
    let server = with_token(&rig);
    let ask = |path: &str, headers: &[&str]| server.place.ask("GET", path, headers);
    let bearer = |token: &str| format!("Authorization: Bearer {token}");
    for path in PATHS {
        for headers in [
            vec![],
            vec![bearer("0123456789abcdef+/=")],
            vec![bearer("")],
            vec![format!("Authorization: Basic {TOKEN}")],
            vec![format!("Cookie: other={TOKEN}")],
            vec![format!("Cookie: gpulimit-token={TOKEN}x")],
        ] {
            let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
            let answer = ask(path, &headers);
            assert_eq!(answer.status, 401, "{path} {headers:?}");
            assert_eq!(answer.headers["www-authenticate"], "Bearer");
            assert!(answer.json()["error"].is_string());
        }
        let status = if path == "/nothing" { 404 } else { 200 };
        assert_eq!(ask(path, &[&bearer(TOKEN)]).status, status, "{path}");
        let cookie = format!("Cookie: a=b; gpulimit-token={TOKEN}; c=d");
        assert_eq!(ask(path, &[&cookie]).status, status, "{path}");
        if path != "/" {
            assert_eq!(
                ask(&format!("{path}?token={TOKEN}"), &[]).status,
                401,
                "{path}"
            );
        }
    }
}

#[test]
fn a_browser_turns_the_token_in_its_address_into_a_cookie() {
    let rig = Rig::new();
    let server = with_token(&rig);
    for token in [TOKEN, "0123456789abcdef%2B%2F%3D%3D"] {
        let answer = server.place.get(&format!("/?token={token}"));
        assert_eq!((answer.status, &*answer.headers["location"]), (303, "./"));
        let cookie = &answer.headers["set-cookie"];
        let (value, rules) = cookie.split_once("; ").expect("rules");
        // A proxy may have the server at a path of its own, so neither names a path.
        assert_eq!(rules, "HttpOnly; SameSite=Strict");
        let sent = format!("Cookie: {value}");
        assert_eq!(server.place.ask("GET", "/", &[&sent]).status, 200);
    }
    let wrong = server.place.get("/?token=0123456789abcdef");
    assert_eq!(wrong.status, 401);
    assert!(!wrong.headers.contains_key("set-cookie"));
}

#[test]
fn a_token_that_others_can_read_is_refused() {
    let rig = Rig::new();
    let path = rig.world.file("token");
    let file = path.to_str().unwrap();
    let said = |file: &str| {
        let mut command = rig.gpulimit(&["serve", "--listen", "127.0.0.1:0", "--token-file", file]);
        let output = command.output().expect("started");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    fs::write(&path, TOKEN).unwrap();
    for mode in [0o640, 0o604, 0o620, 0o601] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let text = said(file);
        assert!(
            text.contains("chmod 600") && !text.contains(TOKEN),
            "{text}"
        );
    }
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    fs::write(&path, "short").unwrap();
    assert!(said(file).contains("16 to 256"));
    assert!(said("/dev/null").contains("not a regular file"));
}

/// Kubernetes mounts a Secret as links, in a directory in which others may make files of their own.
#[test]
fn a_link_to_the_token_is_followed_only_if_no_other_user_can_change_it() {
    let rig = Rig::new();
    let volume = rig.world.file("volume");
    let set = |name: &str, mode: u32| {
        fs::set_permissions(volume.join(name), Permissions::from_mode(mode)).unwrap();
    };
    fs::create_dir(&volume).unwrap();
    fs::create_dir(volume.join("..2026")).unwrap();
    set("..2026", 0o755);
    symlink("..2026", volume.join("..data")).unwrap();
    symlink("..data/token", volume.join("token")).unwrap();
    let (token, link) = ("..2026/token", volume.join("token"));
    fs::write(volume.join(token), TOKEN).unwrap();
    set(token, 0o400);
    set("", 0o1777);
    let arguments = ["--unprotected-port", "--token-file", link.to_str().unwrap()];
    let server = rig.tcp(&arguments);
    let bearer = format!("Authorization: Bearer {TOKEN}");
    assert_eq!(server.place.ask("GET", "/metrics", &[&bearer]).status, 200);
    assert_eq!(server.place.get("/metrics").status, 401);
    let refused = |why: &str| {
        let listen = ["serve", "--listen", "127.0.0.1:0"];
        let output = rig.gpulimit(&[&listen[..], &arguments].concat()).output();
        let output = output.expect("started");
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(why), "{text}");
    };
    // The mode and the kind of the file count as without a link.
    set(token, 0o440);
    refused("chmod 600");
    set(token, 0o400);
    set("", 0o777);
    refused("may be written by others");
    set("", 0o755);
    set("..2026", 0o770);
    refused("may be written by others");
    set("..2026", 0o755);
    fs::remove_file(volume.join("..data")).unwrap();
    refused("there is no");
    fs::remove_file(&link).unwrap();
    symlink("/dev", &link).unwrap();
    refused("not a regular file");
    symlink("..2026", volume.join("..data")).unwrap();
    fs::remove_file(&link).unwrap();
    symlink("..data/token", &link).unwrap();
    if !is_root() {
        return;
    }
    std::os::unix::fs::lchown(&link, Some(65_533), None).expect("given away");
    refused("belongs to user 65533");
}

#[test]
fn a_tcp_port_needs_a_token_or_public() {
    let rig = Rig::new();
    let said = |arguments: &[&str]| {
        let output = rig
            .gpulimit(&[&["serve"], arguments].concat())
            .output()
            .expect("started");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let text = said(&["--listen", "127.0.0.1:0"]);
    assert!(
        text.contains("--token-file") && text.contains("--public"),
        "{text}"
    );
    for far in ["0.0.0.0:13900", "[::]:13900", "10.0.0.1:13900"] {
        let text = said(&["--listen", far, "--public"]);
        assert!(text.contains("ssh -L"), "{text}");
    }
    said(&["--public", "--processes"]);
    said(&["--public", "--token-file", "/dev/null"]);
}

/// Any user gets the token of the next client at a port that is free for all when the server ends.
#[test]
fn a_token_needs_a_port_that_no_other_user_can_take() {
    let rig = Rig::new();
    let file = rig.world.file("token");
    fs::write(&file, TOKEN).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let token = ["--token-file", file.to_str().unwrap()];
    let listen = ["serve", "--listen", "127.0.0.1:0"];
    let output = finish(&mut rig.gpulimit(&[&listen[..], &token].concat()));
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    for way in ["gpulimit-serve.socket", "--unprotected-port"] {
        assert!(text.contains(way), "{text}");
    }
    // The file of a socket is as safe as its directory.
    let directory = rig.world.file("shared");
    fs::create_dir(&directory).unwrap();
    for (mode, is_refused) in [(0o777, true), (0o1777, true), (0o755, false)] {
        fs::set_permissions(&directory, Permissions::from_mode(mode)).unwrap();
        let listen = format!("unix:{}", directory.join("socket").display());
        let command = || rig.gpulimit(&[&["serve", "--listen", &listen], &token[..]].concat());
        match is_refused {
            true => {
                let text = String::from_utf8(finish(&mut command()).stderr).unwrap();
                assert!(text.contains("may be written by others"), "{text}");
            }
            false => assert_eq!(Server::start(command()).place.get("/metrics").status, 401),
        }
    }
    let start = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    if !is_root() || start.is_ok_and(|start| start.trim() == "0") {
        skip("ports that only root can take");
        return;
    }
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let port = (600..1024).rev().find(is_free).expect("a free port");
    let listen = format!("127.0.0.1:{port}");
    let listen = ["serve", "--listen", &listen];
    let server = Server::start(rig.gpulimit(&[&listen[..], &token].concat()));
    assert_eq!(server.place.get("/metrics").status, 401);
}

/// A client of `localhost` may ask ::1 first, where another user could listen.
#[test]
fn both_addresses_of_localhost_are_taken() {
    if TcpListener::bind("[::1]:0").is_err() {
        skip("IPv6");
        return;
    }
    let rig = Rig::new();
    let server = rig.tcp(&["--public"]);
    let Place::Tcp(first) = server.place else {
        unreachable!()
    };
    let second = Place::Tcp((Ipv6Addr::LOCALHOST, first.port()).into());
    assert_eq!(second.get("/metrics").status, 200);
    drop(server);
    let port = first.port();
    let taken = TcpListener::bind(("::1", port)).expect("free");
    for address in [format!("127.0.0.1:{port}"), format!("localhost:{port}")] {
        let output = finish(&mut rig.gpulimit(&["serve", "--public", "--listen", &address]));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            text.contains(&format!("cannot listen at [::1]:{port}")),
            "{text}"
        );
    }
    drop(taken);
    let server =
        Server::start(rig.gpulimit(&["serve", "--public", "--listen", &format!("[::1]:{port}")]));
    assert_eq!(Place::Tcp(first).get("/metrics").status, 200);
    drop(server);
}

/// Everybody sees GPUs and groups of a public root, and nothing else.
#[test]
fn public_shows_no_users_processes_commands_and_private_groups() {
    let rig = Rig::new();
    rig.group("lab", Size::Bytes(4 * GIB));
    let member = rig.member("lab", GIB);
    let device = rig.on(&member);
    refuse(&device, 8 * GIB);
    let collected = |server: &Server| {
        let events = server
            .place
            .ask("GET", "/api/v1/events", &["Accept: application/json"]);
        let texts = PATHS.map(|path| server.place.get(path).body);
        // The folder of the test has the test's pid in its name.
        let root = rig.world.root().path().display().to_string();
        (texts.concat() + &events.body).replace(&root, "ROOT")
    };
    let own = collected(&rig.unix(&["--processes"]));
    let public = collected(&rig.tcp(&["--public"]));
    let pid = std::process::id().to_string();
    let id = std::process::Command::new("id").arg("-un").output();
    let user = String::from_utf8(id.expect("id").stdout).unwrap();
    let program = std::env::args().next().unwrap();
    // Only the beginning of a command is shown, without folders.
    let command = program.rsplit('/').next().unwrap();
    let command = &command[..command.len().min(16)];
    let in_json = format!("\"user\":\"{}\"", user.trim());
    let in_metrics = format!("user=\"{}\"", user.trim());
    for secret in [&*in_json, &in_metrics, &pid, command] {
        // A pid is part of no longer number or word.
        let shows = |text: &str| {
            let is_edge = |c: Option<char>| secret != pid || c.is_none_or(|c| !c.is_alphanumeric());
            text.match_indices(secret).any(|(at, _)| {
                is_edge(text[..at].chars().next_back())
                    && is_edge(text[at + secret.len()..].chars().next())
            })
        };
        assert!(shows(&own), "the owner sees {secret}: {own}");
        assert!(!shows(&public), "{secret}: {public}");
    }
    let is_public = rig.world.root().is_public();
    assert_eq!(public.contains("\"lab\""), is_public, "{public}");
    if !is_public {
        skip("the groups of a public root, which belongs to root");
        return;
    }
    assert!(
        public.contains("gpulimit_refusals_total{group=\"lab\""),
        "{public}"
    );
    // A root that other users may not read is private, and so are its groups, also those that were
    // shown before.
    let server = rig.tcp(&["--public"]);
    assert!(collected(&server).contains("\"lab\""));
    fs::set_permissions(rig.world.root().path(), Permissions::from_mode(0o700)).unwrap();
    // A reading is shared for half a second.
    wait_until("the groups are private", || {
        !server.place.metrics().contains("\"lab\"")
    });
    let public = collected(&server);
    assert!(!public.contains("\"lab\""), "{public}");
    assert!(
        public.contains("gpulimit_gpu_memory_total_bytes{"),
        "{public}"
    );
}

/// The path of a root that cannot be read is only for the owner of the server.
#[test]
fn public_shows_no_path_of_a_broken_root() {
    let rig = Rig::new();
    let (own, public) = (rig.unix(&[]), rig.tcp(&["--public"]));
    let root = rig.world.root().path();
    fs::remove_dir_all(root).unwrap();
    fs::write(root, "a file").unwrap();
    let path = root.display().to_string();
    for asked in [
        "/metrics",
        "/api/v1/state",
        "/api/v1/history",
        "/api/v1/events",
    ] {
        let shown = own.place.get(asked);
        assert!(
            shown.status == 503 && shown.body.contains(&path),
            "{shown:?}"
        );
        let shown = public.place.get(asked);
        assert!(
            shown.status == 503 && !shown.body.contains(&path),
            "{shown:?}"
        );
    }
}
