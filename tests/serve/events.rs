//! Server-sent events.

use super::client::{Answer, Place, Stream, chunk};
use super::rig::{GIB, Rig, Server, charge, refuse};
use gpulimit_base::units::Size;
use gpulimit_support::{Running, is_root, skip, wait_until};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// An open event stream.
struct Events {
    stream: Box<dyn Stream>,
    text: String,
}

/// A message of a stream.
#[derive(Debug)]
struct Message {
    kind: String,
    id: Option<String>,
    data: Value,
}

impl Events {
    fn open(place: &Place) -> Self {
        let mut stream = place.connect();
        let head = format!(
            "GET /api/v1/events HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\n\r\n",
            place.host()
        );
        stream.write_all(head.as_bytes()).unwrap();
        let answer = Answer::head(&mut *stream).expect("a head");
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.headers["content-type"], "text/event-stream");
        let text = String::new();
        Self { stream, text }
    }

    /// Returns the next block of lines.
    fn block(&mut self) -> String {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                return block;
            }
            let bytes = chunk(&mut *self.stream).expect("more");
            self.text += &String::from_utf8(bytes).expect("UTF-8");
        }
    }

    /// Returns the message of the next block, unless that is a comment.
    fn read(&mut self) -> Option<Message> {
        let block = self.block();
        let field = |name: &str| {
            let lines = block.lines().filter_map(|line| line.split_once(": "));
            let mut values = lines
                .filter(|(key, _)| *key == name)
                .map(|(_, value)| value);
            let value = values.next();
            assert_eq!(values.next(), None, "{block}");
            value
        };
        Some(Message {
            kind: field("event")?.into(),
            id: field("id").map(str::to_owned),
            data: field("data").unwrap().parse().expect("JSON"),
        })
    }

    fn next(&mut self) -> Message {
        self.until(|_| true)
    }

    /// Returns the next message for which `is` is true.
    #[track_caller]
    fn until(&mut self, is: impl Fn(&Message) -> bool) -> Message {
        let mut found = None;
        wait_until("such a message comes", || {
            found = self.read().filter(&is);
            found.is_some()
        });
        found.unwrap()
    }
}

#[test]
fn a_stream_begins_with_the_state_and_follows_it() {
    let rig = Rig::new();
    rig.group("lab", Size::Bytes(4 * GIB));
    let (member, device) = rig.member("lab", GIB);
    refuse(&member, &device, 8 * GIB);
    let server = rig.unix(&[]);
    let mut events = Events::open(&server.place);
    assert_eq!(events.block(), "retry: 1000");
    let usage = |message: &Message| message.data["groups"][0]["gpus"][0]["usage"].as_u64();
    let first = events.next();
    assert_eq!((&*first.kind, usage(&first)), ("state", Some(GIB)));
    assert_eq!(first.data["schema"], 1);
    // Only events after the beginning are sent, each once, and from the beginning on.
    refuse(&member, &device, 8 * GIB);
    let event = events.until(|message| message.kind == "event");
    assert_eq!(
        event.data["number"], 1,
        "the earlier refusal has the number 0"
    );
    assert_eq!(event.id.as_deref(), event.data["time"].as_str());
    let all = server.place.json("/api/v1/events");
    // Equal events that follow each other quickly share an entry there, up to the time of the last.
    let time = &event.data["time"];
    let last = all["events"].as_array().unwrap().last().unwrap();
    assert!(last == &event.data || last["until"] == *time, "{all}");
    charge(&member, &device, GIB);
    events.until(|message| message.kind == "state" && usage(message) == Some(2 * GIB));
    refuse(&member, &device, 8 * GIB);
    let event = events.until(|message| message.kind == "event");
    assert_eq!(event.data["number"], 2);
}

/// Waits until a server without streams, which has this number of sockets, has looked.
fn look_without_streams(server: &Server, sockets: usize) {
    wait_until("the stream is closed", || server.sockets() == sockets);
    // The server looks once a second. A pause that is too short only makes a test prove less.
    thread::sleep(Duration::from_secs(1));
}

/// A new stream begins with a state that ends before the server's next look.
#[test]
fn a_stream_that_begins_with_a_short_state_is_corrected() {
    let rig = Rig::new();
    let server = rig.unix(&[]);
    let sockets = server.sockets();
    let groups = |state: &Value| state["groups"].as_array().unwrap().len();
    let mut first = Events::open(&server.place);
    first.until(|message| message.kind == "state");
    rig.group("lasting", Size::Max);
    first.until(|message| message.kind == "state" && groups(&message.data) == 1);
    // The server has sent this state to all streams.
    drop(first);
    look_without_streams(&server, sockets);
    rig.group("short", Size::Max);
    let mut events = Events::open(&server.place);
    events.until(|message| message.kind == "state" && groups(&message.data) == 2);
    rig.world.root().remove("short").expect("removed");
    events.until(|message| message.kind == "state" && groups(&message.data) == 1);
}

#[test]
fn events_right_after_the_beginning_of_a_stream_are_sent() {
    let rig = Rig::new();
    rig.group("lab", Size::Bytes(4 * GIB));
    let (member, device) = rig.member("lab", GIB);
    let server = rig.unix(&[]);
    let sockets = server.sockets();
    let sees = |number: u64| {
        let mut events = Events::open(&server.place);
        events.until(|message| message.kind == "state");
        refuse(&member, &device, 8 * GIB);
        let event = events.until(|message| message.kind == "event");
        assert_eq!(event.data["number"], number);
    };
    sees(0);
    look_without_streams(&server, sockets);
    sees(1);
}

/// All events of a second are sent to a client that reads, however many there are.
#[test]
fn many_events_at_once_are_sent() {
    let rig = Rig::new();
    rig.group("lab", Size::Bytes(4 * GIB));
    let (member, device) = rig.member("lab", GIB);
    let server = rig.unix(&[]);
    let mut events = Events::open(&server.place);
    events.until(|message| message.kind == "state");
    for _ in 0..80 {
        refuse(&member, &device, 8 * GIB);
    }
    for number in 0..80 {
        let event = events.until(|message| message.kind == "event");
        assert_eq!(event.data["number"], number);
    }
}

#[test]
fn a_stream_of_everybody_has_no_processes() {
    let rig = Rig::new();
    rig.group("lab", Size::Bytes(4 * GIB));
    let (member, device) = rig.member("lab", GIB);
    let server = rig.tcp(&["--public"]);
    let mut events = Events::open(&server.place);
    let first = events.until(|message| message.kind == "state");
    assert_eq!(first.data["public"], true);
    assert_eq!(first.data["processes"], serde_json::json!([]));
    if !rig.world.root().is_public() {
        skip("the groups of a public root, which belongs to root");
        return;
    }
    // The first look finds what was there before.
    charge(&member, &device, GIB);
    events.until(|message| message.data["groups"][0]["gpus"][0]["usage"] == 2 * GIB);
    refuse(&member, &device, 8 * GIB);
    let event = events.until(|message| message.kind == "event").data;
    for name in ["pid", "uid", "user", "command", "by"] {
        assert!(event[name].is_null(), "{event}");
    }
    assert_eq!(event["holders"], serde_json::json!([]));
}

#[test]
fn there_is_a_most_of_streams() {
    let rig = Rig::new();
    let server = rig.unix(&[]);
    let mut streams: Vec<Events> = (0..32).map(|_| Events::open(&server.place)).collect();
    let ask = || {
        server
            .place
            .ask("GET", "/api/v1/events", &["Accept: text/event-stream"])
    };
    let refused = ask();
    assert_eq!(refused.status, 503);
    assert!(refused.json()["error"].is_string());
    // The others still get their state, and a closed stream makes room.
    assert_eq!(
        streams[31].until(|message| message.kind == "state").kind,
        "state"
    );
    streams.pop();
    wait_until("there is room", || {
        let mut stream = server.place.connect();
        let head = "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\
                    Accept: text/event-stream\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        Answer::head(&mut *stream).expect("a head").status == 200
    });
}

/// Opens 40 streams at a port or a Unix socket, and prints how many the server has accepted. When
/// there is a line to read, waits for the end of the 16 oldest, and prints if others have ended.
const FLOOD: &str = r#"
import encodings.idna, socket, sys
place, kept = sys.argv[1], []
for number in range(40):
    if place.isdigit():
        s = socket.create_connection((["127.0.0.1", "::1"][number % 2], int(place)))
    else:
        s = socket.socket(socket.AF_UNIX)
        s.connect(place)
    s.sendall(f"GET /api/v1/events HTTP/1.1\r\nHost: {sys.argv[2]}\r\nConnection: close\r\n"
              "Accept: text/event-stream\r\n\r\n".encode())
    if s.recv(12) == b"HTTP/1.1 200":
        kept.append(s)
print(len(kept), flush=True)
sys.stdin.readline()
for s in kept[:16]:
    while s.recv(1 << 20): pass
for s in kept[16:]:
    s.setblocking(False)
    try:
        while s.recv(1 << 20): pass
        print("ended", flush=True)
    except BlockingIOError:
        pass
print("the oldest have ended", flush=True)
"#;

/// A user who keeps all streams loses the oldest ones to users with fewer, and only those.
#[test]
fn the_streams_of_one_user_keep_no_other_out() {
    if !is_root() {
        skip("another user");
        return;
    }
    let rig = Rig::new();
    let unix = rig.unix(&[]);
    let directory = rig.socket().parent().expect("a directory").to_owned();
    fs::set_permissions(directory, Permissions::from_mode(0o755)).expect("set");
    fs::set_permissions(rig.socket(), Permissions::from_mode(0o666)).expect("set");
    for server in [unix, rig.tcp(&["--public"])] {
        let place = match &server.place {
            Place::Unix(path) => path.display().to_string(),
            Place::Tcp(address) => address.port().to_string(),
        };
        let mut flood = Command::new("python3");
        flood.args(["-c", FLOOD, &place, &server.place.host()]);
        flood.uid(65_533).gid(65_533);
        flood.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut flood = Running::start(&mut flood);
        let mut said = BufReader::new(flood.stdout.take().expect("piped")).lines();
        let mut line = || said.next().expect("a line").expect("readable");
        assert_eq!(line(), "32", "{place}");
        let mut own: Vec<Events> = (0..16).map(|_| Events::open(&server.place)).collect();
        let stream = ["Accept: text/event-stream"];
        let more = server.place.ask("GET", "/api/v1/events", &stream);
        assert_eq!(more.status, 503, "as many as the other user has then");
        flood
            .stdin
            .take()
            .expect("piped")
            .write_all(b"\n")
            .expect("read");
        assert_eq!(line(), "the oldest have ended", "{place}");
        assert_eq!(own[0].next().kind, "state");
    }
}
