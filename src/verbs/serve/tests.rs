//! Thousands of scrapes, each with a reading of its own, do not make the server grow.

use super::access::{Access, Scope};
use super::connections::connection;
use super::peer::Peer;
use super::places::Places;
use super::routes::Site;
use super::worker::{Sources, Worker};
use crate::words::environment::env;
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::Size;
use gpulimit_group::{Member, Root};
use gpulimit_limits::LimitSet;
use gpulimit_support::{Counting, Scratch, finish};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

/// The environment variable with the number of scrapes: `SCRAPES=10000 cargo test … growth`.
const SCRAPES: &str = "SCRAPES";
/// Set in the process that makes the scrapes. Only the test runs there, so only the test takes
/// memory.
const MEASURES: &str = "GPULIMIT_TEST_MEASURES";

#[test]
fn scrapes_cause_no_growth() {
    let scrapes = env(SCRAPES).map_or(1_000, |number| {
        let number = number.to_str().expect("a number");
        number.parse().expect("a number")
    });
    if env(MEASURES).is_some() {
        return measure(scrapes);
    }
    let scratch = Scratch::new();
    let root = Root::at(scratch.at("root")).expect("a path");
    let limits = LimitSet::all(Size::Bytes(1 << 30));
    let mut members = Vec::new();
    for name in ["a", "b", "b/c"] {
        root.create(name, &limits).expect("made");
        let member = Member::join(&root, name).expect("joined");
        let gpu = DeviceId::gpu([7; 16]);
        member.device(gpu, 8 << 30).expect("a device");
        members.push(member);
    }
    let mut child = Command::new(std::env::current_exe().expect("a path"));
    child.args(["--exact", "verbs::serve::tests::scrapes_cause_no_growth"]);
    child.args(["--nocapture", "--test-threads=1"]);
    child.env("GPULIMIT_ROOT", root.path()).env(MEASURES, "1");
    let output = finish(&mut child);
    assert!(output.status.success(), "{output:?}");
}

fn measure(scrapes: usize) {
    let scope = Scope {
        public: false,
        processes: false,
    };
    let site = Arc::new(Site {
        access: Access {
            token: None,
            port: None,
            hosts: Vec::new(),
        },
        scope,
        worker: Worker::start(scope, None).expect("started"),
    });
    let places = Arc::new(Places::new(4));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let warm = scrapes / 5;
    let mut before = 0;
    for number in 0..scrapes {
        if number == warm {
            before = ALLOCATOR.in_use();
        }
        let (mut client, server) = UnixStream::pair().expect("a pair");
        let read = std::thread::spawn(move || {
            let head = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close";
            write!(client, "{head}\r\n\r\n").expect("written");
            let mut text = String::new();
            client.read_to_string(&mut text).expect("an answer");
            text
        });
        runtime.block_on(async {
            // Otherwise the scrapes of half a second share a reading.
            site.worker.ask(Sources::forget).await.expect("done");
            server.set_nonblocking(true).expect("set");
            let server = tokio::net::UnixStream::from_std(server).expect("a socket");
            let (place, lost) = places.wait(Peer(None)).await.expect("a place");
            connection(Box::pin(server), Arc::clone(&site), place, lost).await;
        });
        let text = read.join().expect("read");
        let series = "gpulimit_memory_usage_bytes{group=\"b/c\",gpu=\"";
        assert!(text.contains(series), "{text}");
    }
    let after = ALLOCATOR.in_use();
    eprintln!("{before} bytes after {warm} scrapes, {after} after {scrapes}");
    // A scrape that left a byte behind would add more.
    assert!(
        after < before + (scrapes - warm),
        "{before} have become {after}"
    );
}
