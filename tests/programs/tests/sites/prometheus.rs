//! Debian's Prometheus with config/prometheus, which scrapes a live `gpulimit serve` on the
//! simulated driver: it answers every query of the rules and of the dashboard, with data. The tests
//! need Debian's prometheus (scripts/setup prometheus).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use gpulimit_programs::world::{self, Session, World, controller, eventually, repository, text};
use gpulimit_support::{fed, have};
use serde_json::Value;

#[path = "../../../observability/queries.rs"]
#[expect(
    dead_code,
    reason = "only tests of the files look for the metrics of a query"
)]
mod queries;

use queries::{list, string};

/// The token of the server.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Parts of the queries without data: the history is too short to tell whether the usage grows.
const WITHOUT_DATA: [&str; 2] = ["gpulimit_memory_growth_bytes_per_second", "== 1"];

/// A program that is killed when the value is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns an address of this machine that nothing listens at.
fn free() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], world::free_port()))
}

/// Returns the body of the answer to a request; `None` if it is no success.
fn get(address: SocketAddr, path: &str, header: &str) -> Option<String> {
    let header = format!("Host: {address}\r\n{header}");
    ask(TcpStream::connect(address).ok()?, path, &header)
}

/// Does the same through an open connection.
fn ask(mut stream: impl Read + Write, path: &str, header: &str) -> Option<String> {
    // With version 1.0 the body comes in one piece and ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\n{header}\r\n").ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = text(&answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?;
    (status == "200").then(|| body.to_owned())
}

/// Two groups with programs below the world's: one program waits, the other group is refused
/// memory on request.
struct Load {
    _holder: Session,
    _waiter: Session,
    refused: Session,
}

impl Load {
    fn start(world: &World) -> Load {
        world.settings(&["high=6G"]);
        world.below(
            "queue",
            &["max=2G", "on_limit=wait", "wait_timeout=1h", "low=1G"],
        );
        world.below("other", &["max=1G", "min=512M", "keep_free=1M"]);
        let mut holder = world.on_gpu_in("queue");
        holder.expect(&[("alloc a 900M", "0")]);
        let mut waiter = world.on_gpu_in("queue");
        waiter.tell("alloc b 800M");
        let refused = world.on_gpu_in("other");
        Load {
            _holder: holder,
            _waiter: waiter,
            refused,
        }
    }

    /// Makes a request that is refused.
    fn refuse(&mut self) {
        self.refused.expect(&[("alloc c 900M", "2")]);
    }
}

/// Starts the server, and waits until it answers.
fn serve(world: &World) -> (Running, SocketAddr) {
    let address = free();
    let token = world.file("token");
    fs::write(&token, TOKEN).expect("written");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&token, private).expect("changed");
    let mut command = world.bare(&controller());
    command
        .args(["serve", "--listen", &address.to_string(), "--processes"])
        .args(["--unprotected-port", "--token-file"])
        .arg(&token)
        .stderr(fs::File::create(world.file("serve.log")).expect("a log"));
    let server = Running(command.spawn().expect("started"));
    let answers = eventually(|| metrics(address).is_some());
    assert!(answers, "{:?}", fs::read_to_string(world.file("serve.log")));
    (server, address)
}

/// Returns the metrics as text.
fn metrics(address: SocketAddr) -> Option<String> {
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    get(address, "/metrics", &token)
}

/// Prometheus, which scrapes the server as config/prometheus/scrape.yml says, each second.
struct Prometheus {
    _process: Running,
    address: SocketAddr,
}

impl Prometheus {
    fn start(world: &World, server: SocketAddr) -> Prometheus {
        let folder = world.file("prometheus");
        let config = repository().join("config/prometheus");
        let read = |name: &str| fs::read_to_string(config.join(name)).expect(name);
        fs::create_dir_all(folder.join("gpulimit")).expect("made");
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).expect(name);
        write("gpulimit/rules.yml", &read("rules.yml"));
        write("gpulimit/gpulimit.token", TOKEN);
        let scrape = read("scrape.yml");
        let replaced = scrape
            .replace("127.0.0.1:13900", &server.to_string())
            .replace("scrape_interval: 15s", "scrape_interval: 1s");
        assert_eq!(replaced.matches(&server.to_string()).count(), 1, "{scrape}");
        // As in Kubernetes, the target has labels that the metrics have, too.
        let target = "        labels: {namespace: gpulimit, pod: plugin, container: serve}\n";
        let global = "global:\n  evaluation_interval: 1s\n";
        write("prometheus.yml", &format!("{replaced}{target}{global}"));
        let address = free();
        let process = Command::new("prometheus")
            .arg("--config.file=prometheus.yml")
            .arg(format!("--web.listen-address={address}"))
            .arg("--storage.tsdb.path=data")
            .current_dir(&folder)
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.join("log")).expect("a log"))
            .spawn();
        let process = Running(process.expect("started"));
        let ready = eventually(|| get(address, "/-/ready", "").is_some());
        assert!(ready, "{:?}", fs::read_to_string(folder.join("log")));
        Prometheus {
            _process: process,
            address,
        }
    }

    /// Returns the data of an answer; `None` if it is an error.
    fn ask(&self, path: &str) -> Option<Value> {
        let body = get(self.address, &format!("/api/v1/{path}"), "")?;
        let answer: Value = serde_json::from_str(&body).expect("JSON");
        (answer["status"] == "success").then(|| answer["data"].clone())
    }

    /// Returns the series that answer a query; `None` if the query is wrong.
    fn query(&self, query: &str) -> Option<Vec<Value>> {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let data = self.ask(&format!("query?query={escaped}"))?;
        Some(list(&data["result"]).to_owned())
    }

    /// Returns the rules of Prometheus.
    fn rules(&self) -> Vec<Value> {
        let data = self.ask("rules").expect("rules");
        let groups = list(&data["groups"]).iter();
        groups
            .flat_map(|group| list(&group["rules"]).to_owned())
            .collect()
    }

    /// Returns whether an alert fires for a group.
    fn fires(&self, alert: &str, group: &str) -> bool {
        let query = format!("ALERTS{{alertname='{alert}',alertstate='firing',group='{group}'}}");
        self.query(&query).is_some_and(|series| !series.is_empty())
    }
}

#[test]
fn prometheus_answers_every_query_of_rules_and_dashboard() {
    if !have("prometheus") {
        return;
    }
    let world = World::with(8 << 30, &[]);
    let mut load = Load::start(&world);
    let (_server, address) = serve(&world);
    let prometheus = Prometheus::start(&world, address);
    let has = |query: &str| {
        prometheus
            .query(query)
            .is_some_and(|series| !series.is_empty())
    };
    assert!(eventually(|| has("up{job=\"gpulimit\"} == 1")), "scraped");

    // A refusal after the first scrape fires the alert of the group, and not of the one above.
    let is_known = || has("gpulimit_refusals_total{group=\"world/other\"}");
    assert!(eventually(is_known), "the group is known");
    load.refuse();
    let alert = "GpulimitRefusals";
    assert!(
        eventually(|| prometheus.fires(alert, "world/other")),
        "{:?}",
        prometheus.rules()
    );
    assert!(has(
        "increase(gpulimit_refusals_total{group=\"world\"}[10m]) > 0"
    ));
    assert!(!prometheus.fires(alert, "world"));

    let evaluated = || prometheus.rules().iter().all(|rule| rule["health"] == "ok");
    assert!(eventually(evaluated), "{:?}", prometheus.rules());
    for rule in prometheus.rules() {
        let name = string(&rule["name"]);
        if rule["type"] == "recording" {
            assert!(has(name), "{name} is recorded");
        }
    }

    let dashboard = fs::read_to_string(repository().join("config/grafana/gpulimit.json"));
    let dashboard = serde_json::from_str(&dashboard.expect("a dashboard")).expect("JSON");
    let panels = queries::of_panels(&dashboard);
    assert!(panels.len() >= 20, "{panels:?}");
    for query in panels.iter().chain(&queries::of_variables(&dashboard)) {
        let asked = query.filled();
        let place = &query.place;
        assert!(prometheus.query(&asked).is_some(), "{place}: {asked}");
        let due = !WITHOUT_DATA.iter().any(|part| asked.contains(part));
        // A rate needs two scrapes.
        assert!(
            !due || eventually(|| has(&asked)),
            "{place}: no data: {asked}"
        );
    }

    // The memory of all groups, without those below them, is that of the groups at the top.
    let own = panels
        .iter()
        .find(|query| query.place == "GPU memory by group");
    let own = own.expect("a panel").filled();
    let same = format!("sum({own}) == sum(gpu:gpulimit_memory_usage_bytes:sum)");
    assert!(eventually(|| has(&same)), "{:?}", prometheus.query(&own));
    // Labels of the target do not replace those of the metric.
    let groups = prometheus.query("gpulimit_group_info").expect("groups");
    assert!(!groups.is_empty());
    for group in groups {
        assert_eq!(group["metric"]["pod"], Value::Null, "{group}");
        assert_eq!(group["metric"]["exported_pod"], Value::Null, "{group}");
    }
}

/// A metric's type and its labels.
type Family = (String, BTreeSet<String>);

/// Returns the metrics in the tables of docs/monitoring.md.
fn listed() -> BTreeMap<String, Family> {
    let page = fs::read_to_string(repository().join("docs/monitoring.md")).expect("a page");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `gpulimit_"));
    let families = rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let name = format!("gpulimit_{}", cells[0].trim_end_matches('`'));
        let labels = cells[2].split(", ").map(str::to_owned).collect();
        (name, (cells[1].to_owned(), labels))
    });
    families.collect()
}

/// Returns the metrics in the server's answer.
fn exported(answer: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in answer.lines() {
        if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|it| it.split_once(' '))
        {
            let kind = if name.ends_with("_info") {
                "info"
            } else {
                kind
            };
            families.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new()));
        } else if let Some((name, rest)) = line.split_once('{') {
            let (labels, _) = rest.rsplit_once('}').expect("labels");
            let names = labels
                .split("\",")
                .filter_map(|label| label.split_once('='));
            let family = families.get_mut(name).expect("a type");
            family.1.extend(names.map(|(name, _)| name.to_owned()));
        }
    }
    families
}

#[test]
fn the_page_lists_the_metrics_that_the_server_exports() {
    let world = World::with(8 << 30, &[]);
    let mut load = Load::start(&world);
    load.refuse();
    let (_server, address) = serve(&world);
    let waits = || {
        let answer = metrics(address).unwrap_or_default();
        let mut lines = answer.lines();
        lines.any(|line| line.starts_with("gpulimit_waiting_requests") && line.ends_with(" 1"))
    };
    assert!(eventually(waits), "{:?}", metrics(address));
    let answer = metrics(address).expect("metrics");
    let (listed, exported) = (listed(), exported(&answer));
    for (name, family) in &exported {
        assert_eq!(listed.get(name), Some(family), "{name}");
    }
    for name in listed.keys() {
        assert!(exported.contains_key(name), "{name} is not exported");
    }

    check(&answer);
}

/// Asserts that promtool finds no mistake in metrics.
#[track_caller]
fn check(answer: &str) {
    if !have("promtool") {
        return;
    }
    let mut promtool = Command::new("promtool");
    let output = fed(promtool.args(["check", "metrics"]), answer);
    let silent = output.stderr.is_empty();
    assert!(output.status.success() && silent, "{output:?}");
}

/// A server that answers on a socket.
struct Socket<'a> {
    world: &'a World,
    _server: Running,
}

impl<'a> Socket<'a> {
    fn new(world: &'a World) -> Self {
        let mut command = world.bare(&controller());
        let listen = format!("unix:{}", world.file("socket").display());
        command
            .args(["serve", "--listen", &listen])
            .stderr(fs::File::create(world.file("serve.log")).expect("a log"));
        let _server = Running(command.spawn().expect("started"));
        let it = Self { world, _server };
        assert!(eventually(|| it.read().is_some()), "it answers");
        it
    }

    fn read(&self) -> Option<String> {
        let stream = UnixStream::connect(self.world.file("socket")).ok()?;
        ask(stream, "/metrics", "Host: localhost\r\n")
    }
}

/// What docs/monitoring.md reads for the textfile collector of node_exporter.
#[test]
fn the_socket_gives_metrics_without_a_token() {
    let world = World::with(8 << 30, &[]);
    let _program = world.on_gpu();
    let answer = Socket::new(&world).read().expect("metrics");
    assert!(answer.contains("gpulimit_memory_usage_bytes{group=\"world\""));
    check(&answer);
}

#[test]
fn a_process_outside_gets_one_event() {
    let world = World::with(8 << 30, &[]);
    let _member = world.on_gpu();
    let start = || {
        let mut outsider = Session::start(world.bare(world::program()));
        outsider.expect(&[("start", "0 0"), ("alloc a 100M", "0")]);
        outsider
    };
    let first = start();
    let server = Socket::new(&world);
    let second = start();
    let events = || -> Vec<Value> {
        let mut command = world.bare(&controller());
        command.args(["events", "--kind", "outside", "--json"]);
        let said = text(&world::finish(command).stdout);
        let event = |line| serde_json::from_str(line).expect("JSON");
        said.lines().map(event).collect()
    };
    let pids = || -> Vec<Value> { events().iter().map(|it| it["pid"].clone()).collect() };
    let both = [first.pid(), second.pid()].map(Value::from);
    let are_recorded = || {
        server.read();
        pids() == both
    };
    assert!(eventually(are_recorded), "{:?}", events());
    // A later round finds the first one again.
    second.end();
    let one = |answer: &str| {
        let figure = |line: &str| {
            line.starts_with("gpulimit_gpu_processes_outside{") && line.ends_with(" 1")
        };
        answer.lines().any(figure)
    };
    assert!(eventually(|| server
        .read()
        .is_some_and(|answer| one(&answer))));
    let answer = server.read().expect("metrics");
    assert_eq!(pids(), both);
    let event = &events()[0];
    assert_eq!(event["group"], Value::Null, "{event}");
    assert!(event["bytes"].as_u64() >= Some(100 << 20), "{event}");
    assert!(answer.contains("event=\"refusal\""), "{answer}");
    assert!(!answer.contains("event=\"outside\""), "no group has them");
    first.end();
}
