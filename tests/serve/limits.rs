//! Limits: heads, bodies, silent and slow clients, many connections.

use super::access::{TOKEN, with_token, with_token_and};
use super::client::{Answer, Place, Stream};
use super::rig::{GIB, Rig};
use gpulimit_base::units::Size;
use gpulimit_support::{eventually, is_root, skip};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Reads until the server closes the connection. Returns what came.
fn rest(stream: &mut dyn Stream) -> String {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => String::from_utf8_lossy(&rest).into_owned(),
    }
}

fn answers(place: &Place, request: &str) -> String {
    let mut stream = place.connect();
    // The server may close the connection before it has read everything.
    let _ = stream.write_all(request.as_bytes());
    rest(&mut *stream)
}

#[test]
fn oversized_heads_are_refused() {
    let rig = Rig::new();
    let server = rig.unix(&[]);
    let request = |name: &str, length: usize| {
        let value = "x".repeat(length);
        format!("GET /nothing HTTP/1.1\r\nHost: localhost\r\n{name}: {value}\r\n\r\n")
    };
    let fits = server
        .place
        .send(&request("X-Long", 8 << 10))
        .expect("an answer");
    assert_eq!(fits.status, 404);
    for length in [17 << 10, 48 << 10] {
        let long = server
            .place
            .send(&request("X-Long", length))
            .expect("an answer");
        assert_eq!(long.status, 431);
        let why = long.json()["error"].to_string();
        assert!(why.contains("16 KiB") && why.contains("cookies"), "{why}");
    }
    // No browser on a foreign page learns more than that.
    let foreign = request("X-Long", 17 << 10).replace("localhost", "elsewhere.test");
    assert_eq!(server.place.send(&foreign).expect("an answer").status, 403);
    // The server answers at once, and waits for the rest before it closes the connection.
    let mut stream = server.place.connect();
    let _ = stream.write_all(request("X-Long", 80 << 10).as_bytes());
    assert_eq!(Answer::head(&mut *stream).expect("a head").status, 431);
    let path = format!(
        "GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "x".repeat(64 << 10)
    );
    let long = answers(&server.place, &path);
    assert!(long.starts_with("HTTP/1.1 4"), "{long}");
    let lines: String = (0..1_000)
        .map(|number| format!("X-{number}: x\r\n"))
        .collect();
    let many = answers(
        &server.place,
        &format!("GET / HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n"),
    );
    assert!(many.starts_with("HTTP/1.1 431 "), "{many}");
    assert_eq!(server.place.get("/metrics").status, 200);
}

/// A client that says with the end of its request that it sends nothing more gets the answer.
#[test]
fn a_client_that_sends_nothing_more_is_answered() {
    let rig = Rig::new();
    rig.group("lab", Size::Bytes(GIB));
    let server = rig.unix(&[]);
    let half_closed = |request: &str| {
        let Place::Unix(path) = &server.place else {
            unreachable!()
        };
        let mut stream = UnixStream::connect(path).expect("connected");
        stream.write_all(request.as_bytes()).expect("written");
        stream.shutdown(Shutdown::Write).expect("shut down");
        stream
    };
    for path in ["/metrics", "/api/v1/state", "/"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let mut stream = half_closed(&request);
        let answer = Answer::read(&mut stream).expect("an answer");
        assert_eq!(answer.status, 200, "{path}");
        assert!(!answer.body.is_empty(), "{path}");
        assert_eq!(rest(&mut stream), "", "the server closes the connection");
    }
    // Half a request is none.
    let said = rest(&mut half_closed("GET /metrics HTTP/1.1\r\nHost: loc"));
    assert!(!said.contains("200 OK"), "{said}");
}

/// A request inside of another one's body is never answered.
#[test]
fn requests_cannot_be_smuggled() {
    let rig = Rig::new();
    let server = rig.unix(&[]);
    let inner = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let length = inner.len();
    let chunked = format!("{length:x}\r\n{inner}\r\n0\r\n\r\n");
    let head = "GET /nothing HTTP/1.1\r\nHost: localhost\r\n";
    for (request, what) in [
        (
            format!("{head}Content-Length: {length}\r\n\r\n{inner}"),
            "a body",
        ),
        (
            format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunked}"),
            "chunks",
        ),
        (
            format!("{head}Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n{chunked}"),
            "both",
        ),
        (
            format!("{head}Content-Length: 0\r\nContent-Length: {length}\r\n\r\n{inner}"),
            "two lengths",
        ),
        (
            format!("{head}Content-Length: +{length}\r\n\r\n{inner}"),
            "a sign",
        ),
        (
            format!("{head}Transfer-Encoding : chunked\r\n\r\n{chunked}"),
            "a space",
        ),
        (
            format!("{head}Transfer-Encoding: x, identity\r\n\r\n{inner}"),
            "another encoding",
        ),
        (
            format!("{head} Content-Length: {length}\r\n\r\n{inner}"),
            "a folded line",
        ),
    ] {
        let said = answers(&server.place, &request);
        assert!(said.starts_with("HTTP/1.1 4"), "{what}: {said}");
        assert_eq!(said.matches("HTTP/1.1").count(), 1, "{what}: {said}");
        assert!(!said.contains("gpulimit_"), "{what}: {said}");
    }
    for nonsense in [
        "\0\0\0\0\r\n\r\n",
        "GET\r\n\r\n",
        "\u{16}\u{3}\u{1}",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut stream = server.place.connect();
        stream.write_all(nonsense.as_bytes()).unwrap();
        let said = rest(&mut *stream);
        assert!(!said.contains("200 OK"), "{nonsense:?}: {said}");
    }
    assert_eq!(server.place.get("/metrics").status, 200);
}

/// Clients that never finish a head, and clients that stay silent after an answer, take all places.
#[test]
fn silent_clients_lose_their_places() {
    let rig = Rig::new();
    let server = rig.unix_with(&[], &[("GPULIMIT_DEBUG_HEAD_MS", "500")]);
    let mut silent = Vec::new();
    for number in 0..100 {
        let mut stream = server.place.connect();
        let said: &[u8] = match number % 3 {
            0 => b"GET /metrics HTTP/1.1\r\nHost: loc",
            1 => b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n",
            _ => b"",
        };
        // The client may have lost its place already.
        let _ = stream.write_all(said);
        silent.push(stream);
    }
    // A client that comes later is answered when the places of the others are free again.
    assert_eq!(server.place.get("/metrics").status, 200);
    for mut stream in silent {
        let said = rest(&mut *stream);
        assert!(!said.contains("200 OK"), "{said}");
    }
}

/// A client that asks for the state and does not read it is dropped, and others are not delayed.
#[test]
fn a_client_that_does_not_read_is_dropped() {
    let rig = Rig::new();
    // The state is long, so that the buffers of the socket hold little of it.
    for number in 0..300 {
        rig.group(&format!("group{number}"), Size::Bytes(GIB));
    }
    let server = rig.unix_with(&[], &[("GPULIMIT_DEBUG_WRITE_MS", "2000")]);
    let mut slow = server.place.connect();
    slow.write_all(b"GET /api/v1/state HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    assert_eq!(Answer::head(&mut *slow).expect("a head").status, 200);
    let mut metrics = server.place.connect();
    metrics
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    assert_eq!(Answer::head(&mut *metrics).expect("a head").status, 200);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // The state keeps changing until the server has dropped the clients.
            let mut number = 0;
            while !done.load(Ordering::Relaxed) {
                number += 1;
                rig.group(&format!("new{number}"), Size::Max);
                assert_eq!(server.place.get("/api/v1/state").status, 200);
            }
        });
        // The listening socket, two ends of the runtime's signal pipe, and one request.
        let are_dropped = eventually(|| server.sockets() <= 4);
        done.store(true, Ordering::Relaxed);
        assert!(are_dropped);
    });
    drop((slow, metrics));
}

/// Metrics that clients do not read on are kept for four readings; older ones are cut off.
#[test]
fn clients_that_read_metrics_slowly_hold_few_readings() {
    let rig = Rig::new();
    // The text is longer than the buffers of the socket.
    for number in 0..300 {
        rig.group(&format!("group{number}"), Size::Bytes(GIB));
    }
    let server = rig.unix(&[]);
    let open = || {
        let mut stream = server.place.connect();
        let head = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        assert_eq!(Answer::head(&mut *stream).expect("a head").status, 200);
        stream
    };
    let mut slow = Vec::new();
    for _ in 0..5 {
        slow.push(open());
        // A reading is shared for half a second: the next one is another.
        thread::sleep(Duration::from_millis(510));
    }
    let is_whole = |stream: &mut dyn Stream| rest(stream).ends_with("\r\n0\r\n\r\n");
    assert!(is_whole(&mut **slow.last_mut().unwrap()));
    assert!(!is_whole(&mut *slow[0]), "the oldest one is cut off");
    assert!(is_whole(&mut *open()), "others are not affected");
}

/// A client that is refused loses its connection, also if the next requests have the token.
#[test]
fn a_refused_client_keeps_no_connection() {
    let rig = Rig::new();
    let server = with_token(&rig);
    let host = server.place.host();
    let get = |headers: &str| format!("GET /nothing HTTP/1.1\r\n{headers}\r\n");
    let bearer = format!("Host: {host}\r\nAuthorization: Bearer {TOKEN}\r\n");
    for (first, status) in [
        (format!("Host: {host}\r\n"), 401),
        ("Host: elsewhere.test\r\n".into(), 403),
        (
            format!("Host: {host}\r\nX-Long: {}\r\n", "x".repeat(17 << 10)),
            431,
        ),
    ] {
        let said = answers(&server.place, &(get(&first) + &get(&first) + &get(&bearer)));
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{said}");
        assert_eq!(said.matches("HTTP/1.1").count(), 1, "{said}");
    }
}

/// Opens 192 connections as another user, over both addresses of `localhost`, and sends half a
/// request in each. Some of them are closed at once: the kernel says that such a
/// socket is root's.
const FLOOD: &str = r#"
import encodings.idna, os, socket, sys
os.setgid(65533)
os.setuid(65533)
kept = []
for number in range(192):
    try:
        s = socket.create_connection((["127.0.0.1", "::1"][number % 2], int(sys.argv[1])))
        s.send(b"GET /metrics HTTP/1.1\r\nHost: loc")
    except OSError:
        pass
    if number % 3:
        kept.append(s)
print("open", flush=True)
sys.stdin.read()
"#;

/// A user who keeps all places loses them to others, and takes none of a client with the token.
#[test]
fn a_flood_of_one_user_keeps_no_other_out() {
    if !is_root() {
        skip("another user");
        return;
    }
    let rig = Rig::new();
    let server = with_token_and(&rig, &[("GPULIMIT_DEBUG_HEAD_MS", "600000")]);
    let Place::Tcp(address) = server.place else {
        unreachable!()
    };
    let bearer = format!("Authorization: Bearer {TOKEN}");
    let host = server.place.host();
    let request = format!("GET /nothing HTTP/1.1\r\nHost: {host}\r\n{bearer}\r\n\r\n");
    let mut idle = server.place.connect();
    idle.write_all(request.as_bytes()).unwrap();
    assert_eq!(Answer::read(&mut *idle).expect("an answer").status, 404);
    let mut flood = Command::new("python3")
        .args(["-c", FLOOD, &address.port().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut line = String::new();
    let said = flood.stdout.take().expect("piped");
    BufReader::new(said).read_line(&mut line).expect("readable");
    assert_eq!(line, "open\n");
    // 64 of them have places; they would keep them for ten minutes.
    for _ in 0..20 {
        assert_eq!(server.place.ask("GET", "/metrics", &[&bearer]).status, 200);
    }
    idle.write_all(request.as_bytes()).unwrap();
    assert_eq!(Answer::read(&mut *idle).expect("an answer").status, 404);
    drop(flood.stdin.take());
    assert!(flood.wait().expect("ended").success());
}
